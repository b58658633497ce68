"""The benchmark of many cards measures what it says."""

import importlib.util
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench_cards.py"


def test_the_makespan_is_that_of_the_latest_card_each_time():
    spec = importlib.util.spec_from_file_location("ascend_jax_bench_cards", TOOL)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    result = bench.measure(4, 3)
    assert (result["cards"], result["collectives"]) == (4, 3)
    assert min(result[name] for name in ("plan_s", "first_s", "again_s")) > 0
    twice = bench.measure(4, 6)
    assert 1.7 < twice["makespan_ns"] / result["makespan_ns"] < 2.3
