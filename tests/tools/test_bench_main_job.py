"""The measuring tool runs and reports what its docstring says. It asserts no time."""

import json
import pathlib
import subprocess
import sys

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "bench_main_job.py"


def test_reports_every_figure():
    flags = ["--runs", "1", "--json", "--", "--heads", "1", "--seq", "16", "--dim", "16"]
    done = subprocess.run([sys.executable, TOOL, *flags], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) == {"wall_s", "wall_spread_s", "peak_mib", "import_added_s", "runs"}
    assert result["wall_s"] > 0 and result["peak_mib"] > 50


def test_a_failing_job_is_not_measured():
    done = subprocess.run([sys.executable, TOOL, "--runs", "1", "--", "--seq", "0"], capture_output=True, text=True)
    assert done.returncode != 0 and "status 2" in done.stderr
