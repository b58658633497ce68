"""The memory benchmark and the memory fuzzer run and report what their docstrings say. They assert no time."""

import json
import pathlib
import subprocess
import sys

import pytest

TOOLS = pathlib.Path(__file__).parents[2] / "tools"


def run(name, *flags):
    return subprocess.run([sys.executable, TOOLS / name, *flags, "--json"], capture_output=True, text=True, timeout=300)


def test_the_benchmark_reports_every_figure():
    done = run("bench_memory.py", "--lanes", "4", "--ops", "40", "--live", "8", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {"ops_per_s", "lanes", "live_blocks", "eager_pair_us"} <= set(result)
    assert (result["lanes"], result["live_blocks"], result["traces"]) == (4, 8, 1)
    assert sorted(map(int, result["ns_per_op_by_live_blocks"])) == [16, 64, 256, 1024]


@pytest.mark.parametrize(("kind", "sequences"), [("heap", 20), ("cache", 2)])
def test_the_fuzzer_counts_what_it_has_compared(kind, sequences):
    done = run("fuzz_memory.py", "--kind", kind, "--sequences", str(sequences), "--seed", "3")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["sequences_equal"], result["calls"], result["difference"]) == (sequences, 40 * sequences, None)
