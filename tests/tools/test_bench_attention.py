"""The attention benchmark and the tuner run, and say what they promise."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

TOOLS = pathlib.Path(__file__).parent.parent.parent / "tools"
ON_TWO = """
import jax, json
jax.config.update("jax_num_cpu_devices", 2)
import bench_attention as bench
rows = bench.measure(64, 16, "float32", True, True, 2, 1, 2)
rows += bench.measure_steps(64, 16, "bfloat16", False, True, 2, 1, 2)
rows += bench.measure_decode(1, 2, 256, with_steps=True)
print(json.dumps({"rows": rows, "ratios": bench.ratios(rows)}))
"""


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)


def load(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_implementation_of_a_case_is_measured():
    rows = load("bench_attention").measure(64, 16, "float32", True, True, 2, 1)
    assert {row["impl"] for row in rows} >= {"flash", "jax.nn", "naive"}
    for row in rows:
        assert set(row) == {"case", "impl", "gflops", "ms", "spread", "temp_bytes"}
        assert row["gflops"] == pytest.approx(4 * 16 * 2 * 64 * 65 / 2 * 3.5 / row["ms"] / 1e6)


def test_ratios_are_taken_case_by_case():
    bench = load("bench_attention")
    times = {"full fwd": (20.0, 30.0), "causal fwd": (10.0, 40.0, 15.0)}
    rows = [
        {"case": f"float32 S=4096 D=64 {what}", "impl": impl, "ms": ms}
        for what, each in times.items()
        for impl, ms in zip(("flash", "jax.nn", "flash, full"), each, strict=False)
    ]
    rows += [
        {"case": "float32 S=512 D=64 full fwd", "impl": i, "ms": ms} for i, ms in (("flash", 1.0), ("jax.nn", 9.0))
    ]
    found = bench.ratios(rows)
    assert found == {
        "float32 full fwd / jax.nn": pytest.approx(1.5),
        "float32 causal fwd / jax.nn": pytest.approx(4),
        "float32 causal / full speed fwd": pytest.approx(1.5),
    }


def test_what_one_device_gives_is_said_apart():
    bench = load("bench_attention")
    times = {"flash": 2.0, "jax.nn": 9.0, "flash 1 device": 3.0, "jax.nn 1 device": 8.0, "torch": 6.0}
    rows = [{"case": "float32 S=1024 D=64 full fwd", "impl": name, "ms": ms} for name, ms in times.items()]
    times = {"flash": 6.0, "read": 4.0, "flash 1 device": 8.0, "copies": 4.0, "products": 0.5, "softmax": 0.5}
    rows += [{"case": "float32 decode B=4", "impl": name, "ms": ms} for name, ms in times.items()]
    assert bench.ratios(rows) == {
        "float32 full fwd / jax.nn": pytest.approx(4),
        "float32 full fwd / flash 1 device": pytest.approx(1.5),
        "float32 full fwd / torch": pytest.approx(3),
        "float32 full fwd / torch, 1 device": pytest.approx(2),
        "decode time / time to read the bytes": pytest.approx(1.5),
        "decode time / time to read the bytes, 1 device": pytest.approx(2),
        "decode time / time to read the bytes, steps alone": pytest.approx(1.25),
    }


def run(*arguments):
    environment = os.environ | {"PYTHONPATH": f"{TOOLS}{os.pathsep}{TOOLS.parent}"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=300)


def test_all_run_on_a_device_for_each_core():
    done = run("-c", ON_TWO)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    of_case = {}
    for row in found["rows"]:
        of_case.setdefault(row["case"], {})[row["impl"]] = row
    causal, full, decode = of_case.values()
    alone = {"flash 1 device", "jax.nn 1 device", "naive 1 device"}
    assert causal.keys() - {"torch"} == {"flash", "flash, full", "jax.nn", "naive"} | alone
    assert full.keys() - {"torch"} == {"flash", "flash 1 device", "products", "softmax"}
    assert decode.keys() == {"flash", "flash 1 device", "read", "copies", "products", "softmax"}
    assert causal["flash"]["temp_bytes"] > 0
    assert {"decode time / time to read the bytes" + end for end in ("", ", 1 device", ", steps alone")} <= set(
        found["ratios"]
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--heads 3 --devices 2", "--heads 3 --devices 2: each device takes as many heads; give a multiple of 2 heads"),
        ("--devices 3", "--devices 3: give at most 2, one for each core of this process"),
        ("--seq 1024 0", "argument --seq: 0: give at least 1"),
        ("--dims 0", "argument --dims: 0: give at least 1"),
        ("--heads 0", "argument --heads: 0: give at least 1"),
        ("--rounds -1", "argument --rounds: -1: give at least 1"),
        ("--dtypes float64", "argument --dtypes: invalid choice: 'float64'"),
    ],
)
def test_flags_that_cannot_be_are_refused(flags, message, monkeypatch, capsys):
    bench = load("bench_attention")
    monkeypatch.setattr(bench, "usable_cores", lambda: 2)
    monkeypatch.setattr(sys, "argv", ["bench_attention.py", *flags.split()])
    with pytest.raises(SystemExit, match="2"):
        bench.main()
    assert message in capsys.readouterr().err


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="set jax_num_cpu_devices before its first use"):
        load("bench_attention").measure(64, 16, "float32", True, False, 99, 1, devices=99)


@pytest.mark.parametrize(("length", "devices", "heads"), [(1024, 2, 4), (4096, 2, 2), (8192, 1, 1), (512, 8, 8)])
def test_each_device_has_as_many_heads(length, devices, heads):
    assert load("bench_attention").default_heads(length, devices) == heads


def test_the_table_is_written_as_it_stands():
    tune = load("tune_attention")
    table = tune.host_tile_table
    stands = pathlib.Path(table.__file__).read_text()
    assert tune.render(table.HOST_TILES, table.NARROW_PRODUCTS) == stands


def test_rows_that_the_next_ones_repeat_are_left_out():
    shortened = load("tune_attention").shortened
    small, large = ((256, 256), (256, 256)), ((512, 512), (256, 256))
    last = [(2048, 128, *large), (2048, 0, *large), (0, 64, *large), (0, 0, *large)]
    assert shortened([(512, 0, *large), (2048, 64, *small), *last]) == [
        (512, 0, *large),
        (2048, 64, *small),
        (0, 0, *large),
    ]
    needed = [(2048, 0, *large), (0, 64, *small), (0, 0, *large)]
    assert shortened(needed) == needed


def test_a_device_per_core_has_its_own_tiles_and_no_types(tmp_path, monkeypatch):
    tune = load("tune_attention")
    before, written = tune.host_tile_table, tmp_path / "table.py"

    def measure(length, dim, causal, rounds, mesh):
        assert mesh == "mesh of 2"
        return {(64, 64): (2.0, 3.0), (32, 16 << causal): (1.0, 5.0)}

    names = ("HOST_TILES", "NARROW_PRODUCTS", "__doc__")
    copy = types.SimpleNamespace(**{name: getattr(before, name) for name in names}, __file__=written)
    monkeypatch.setattr(tune, "host_tile_table", copy)
    monkeypatch.setattr(tune, "usable_cores", lambda: 2)
    monkeypatch.setattr(tune, "make_mesh", lambda devices: f"mesh of {devices}")
    monkeypatch.setattr(tune.jax.config, "update", lambda *_: None)
    monkeypatch.setattr(tune, "measure", measure)
    monkeypatch.setattr(tune, "narrow_gain", lambda rounds: 1.0)
    monkeypatch.setattr(sys, "argv", ["tune_attention.py", "--write", "--per-core"])
    tune.main()
    space = {}
    exec(compile(written.read_text(), "table.py", "exec"), space)
    assert space["HOST_TILES"] == before.HOST_TILES | {"cpu core": ((0, 0, (32, 16), (32, 32)),)}
    assert space["NARROW_PRODUCTS"] == before.NARROW_PRODUCTS


def test_a_tile_is_timed_forward_and_in_training(monkeypatch):
    tune = load("tune_attention")
    monkeypatch.setattr(tune, "TILES", ((16, 16), (32, 16)))
    times = tune.measure(32, 16, True, 1, None)
    assert list(times) == [(16, 16), (32, 16)]
    assert all(forward > 0 and step > 0 for forward, step in times.values())


def test_devices_per_core_need_two_cores(monkeypatch, capsys):
    tune = load("tune_attention")
    monkeypatch.setattr(tune, "usable_cores", lambda: 1)
    monkeypatch.setattr(sys, "argv", ["tune_attention.py", "--per-core"])
    with pytest.raises(SystemExit, match="2"):
        tune.main()
    assert "--per-core: this process may use one core" in capsys.readouterr().err


def test_the_steps_are_products_and_softmax_alone():
    rows = load("bench_attention").measure_steps(64, 16, "bfloat16", True, True, 2, 1)
    assert {row["impl"] for row in rows} >= {"flash", "products", "softmax"}
    for row in rows:
        assert row["gflops"] == pytest.approx(4 * 16 * 2 * 64 * 65 / 2 * 3.5 / row["ms"] / 1e6)
