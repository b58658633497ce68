"""Measure the main job as a user meets it: cold process, no compilation cache.

    python tools/bench_main_job.py [--runs 5] [--json] [-- FLAGS OF ascend-jax run flash-attention]

Prints the median wall time and the peak resident memory of the whole process, and what ``import ascend_jax`` adds to
``import jax`` (medians of alternating runs, so that a busy machine disturbs both alike).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

LIMITS = {"wall_s": 15.0, "peak_mib": 1024.0, "import_added_s": 0.3}


def run_cold(code: str) -> tuple[float, float]:
    """Run Python code in a process of its own; return (wall seconds, peak MiB)."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the measured process ended with status {process.returncode}")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def measure(runs: int, flags: list[str]) -> dict[str, float]:
    """Return the medians of ``runs`` runs."""
    command = ["ascend-jax", "run", "flash-attention", *flags]
    job = f"from ascend_jax.cli.main import main; raise SystemExit(main({command}))"
    walls, peaks, added = [], [], []
    for _ in range(runs):
        wall, peak = run_cold(job)
        walls.append(wall)
        peaks.append(peak)
    for _ in range(3 * runs):
        base, _ = run_cold("import jax")
        ours, _ = run_cold("import jax, ascend_jax")
        added.append(ours - base)
    return {
        "wall_s": statistics.median(walls),
        "wall_spread_s": max(walls) - min(walls),
        "peak_mib": max(peaks),
        "import_added_s": statistics.median(added),
        "runs": runs,
    }


def main() -> None:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="cold runs (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("flags", nargs="*", help="after --: flags of the job")
    options = parser.parse_args()
    result = measure(options.runs, options.flags)
    if options.json:
        print(json.dumps(result))
        return
    print(f"{'what':<18}{'measured':>10}{'limit':>10}")
    for name, limit in LIMITS.items():
        print(f"{name:<18}{result[name]:>10.3f}{limit:>10.1f}")
    print(
        f"spread of the wall time {result['wall_spread_s']:.3f} s over {result['runs']} runs on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
