"""The timing tools run and say what their docstrings promise. No time is asserted."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

TOOLS = pathlib.Path(__file__).parents[2] / "tools"


def load(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_bench_tiling():
    flags = ["--points", "100", "--runs", "2", "--json"]
    done = subprocess.run(
        [sys.executable, TOOLS / "bench_tiling.py", *flags], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["points"] >= 100 and found["ms"] > 0


@pytest.mark.parametrize("group", ["memory", "gemm", "attention", "collective"])
def test_shipped_constants_are_those_of_the_fit(group):
    """From its neutral starts, the tool finds what the chip files say."""
    fit_timing = load("fit_timing")
    from ascend_jax.ops.timing.targets import read_targets
    from ascend_jax.ops.timing.validation import calibration_file

    rows = [row for row in read_targets(calibration_file()) if fit_timing.find_kind(row.kind)[0] == group]
    fitted = fit_timing.fit(rows, group, fit_timing.starts(group))
    spec = fit_timing.find_chip("A2")
    assert fitted == {name: float(f"{float(spec[name]):.{fit_timing.DIGITS}g}") for name in fitted}
    assert fitted != fit_timing.starts(group)


def test_fit_finds_constants_that_made_the_numbers(tmp_path):
    """Collective times made from other constants give those constants back."""
    fit_timing = load("fit_timing")
    from ascend_jax.chip import links
    from ascend_jax.ops.timing.targets import read_targets

    truth = fit_timing.find_chip("A2").replace(collective_chunk_bytes=2e6, collective_fill_bytes_per_s=5e10)
    lines = ["soc,kind,dtype,ranks,bytes,value,unit"]
    for log in range(12, 28):
        us = float(links.all_reduce_ns(truth, 1 << log, 8)) / 1e3
        lines.append(f"A2,allreduce,fp16,8,{1 << log},{us},us")
    (tmp_path / "made.csv").write_text("\n".join(lines))
    targets, start = read_targets(tmp_path / "made.csv"), fit_timing.starts("collective")
    fitted = fit_timing.fit(targets, "collective", start)
    assert fitted["collective_chunk_bytes"] == pytest.approx(2e6, rel=0.05)
    assert fitted["collective_fill_bytes_per_s"] == pytest.approx(5e10, rel=0.05)
    assert fitted["collective_host_ns"] == start["collective_host_ns"], "no row says anything of it"
    assert np.abs(fit_timing.log_errors(targets, fitted)).mean() < 0.01


def test_folds_keep_equal_shapes_together():
    fit_timing = load("fit_timing")
    from ascend_jax.ops.timing.targets import read_targets
    from ascend_jax.ops.timing.validation import calibration_file

    rows = [row for row in read_targets(calibration_file()) if row.kind == "gemm"]
    folds = fit_timing.folds_of(rows, 5)
    assert sorted(i for part in folds for i in part) == list(range(len(rows)))
    for part in folds:
        for i in part:
            same = [j for j, row in enumerate(rows) if row.counts == rows[i].counts]
            assert set(same) <= set(part)


def test_promises_are_checked():
    broken = load("validate_timing").broken_promises
    good = {"median_abs_error": 0.05, "p90_abs_error": 0.2, "not_covered": [], "by_group": {}}
    assert broken(good) == []
    bad = good | {
        "p90_abs_error": 0.3,
        "not_covered": [{"target": "V1", "reason": "no model"}],
        "by_group": {"gemm": {"median_abs_error": 0.2}, "launch": {"max_ratio": 1.6}},
    }
    assert len(broken(bad)) == 4
