"""The attention benchmark and the tuner run, and say what they promise."""

import importlib.util
import pathlib

import pytest

TOOLS = pathlib.Path(__file__).parent.parent.parent / "tools"


def load(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_implementation_of_a_case_is_measured():
    rows = load("bench_attention").measure(64, 16, "float32", True, True, 2, 1)
    assert {row["impl"] for row in rows} >= {"flash", "jax.nn", "naive"}
    for row in rows:
        assert set(row) == {"case", "impl", "gflops", "ms", "temp_bytes"}
        assert row["gflops"] == pytest.approx(4 * 16 * 2 * 64 * 65 / 2 * 3.5 / row["ms"] / 1e6)


def test_ratios_are_taken_case_by_case():
    bench = load("bench_attention")
    times = {"full fwd": (20.0, 30.0), "causal fwd": (10.0, 40.0)}
    rows = [
        {"case": f"float32 S=4096 D=64 {what}", "impl": impl, "ms": ms}
        for what, pair in times.items()
        for impl, ms in zip(("flash", "jax.nn"), pair, strict=True)
    ]
    rows += [
        {"case": "float32 S=512 D=64 full fwd", "impl": i, "ms": ms} for i, ms in (("flash", 1.0), ("jax.nn", 9.0))
    ]
    found = bench.ratios(rows)
    assert found == {
        "float32 full fwd / jax.nn": pytest.approx(1.5),
        "float32 causal fwd / jax.nn": pytest.approx(4),
        "float32 causal / full speed fwd": pytest.approx(2),
    }


def test_the_table_is_written_as_it_is_read(tmp_path):
    tune = load("tune_attention")
    from ascend_jax.ops.attention.host_tile_table import HOST_TILES, NARROW_PRODUCTS

    space = {}
    exec(compile(tune.render(HOST_TILES, NARROW_PRODUCTS), "host_tile_table.py", "exec"), space)
    assert (space["HOST_TILES"], space["NARROW_PRODUCTS"]) == (HOST_TILES, NARROW_PRODUCTS)


def test_the_ceiling_is_that_of_products_and_softmax_alone():
    rows = load("bench_attention").measure_ceiling(64, 16, "bfloat16", True, True, 2, 1)
    assert {row["impl"] for row in rows} >= {"flash", "products", "softmax"}
    for row in rows:
        assert row["gflops"] == pytest.approx(4 * 16 * 2 * 64 * 65 / 2 * 3.5 / row["ms"] / 1e6)
