"""Fit the free constants of the timing model to published measurements, and cross-validate the fit.

    python tools/fit_timing.py [--targets CSV] [--folds 5] [--group gemm ...] [--json]

Each group of kinds has a few constants of its own. They are fitted one after another, by coordinate search, to the
least sum of |log(predicted / measured)| over the rows, so that no row counts more than another, plus PULL times the
distance of each constant from where it starts: a constant that few rows determine stays near what documents say.
Cross-validation fits on all folds but one and measures the error on that one; rows with equal shapes stay in one fold.
Constants that come straight from a measurement or a document (rates, latencies) are not touched. The values printed,
rounded to DIGITS, are those of the chip files; a test holds them to it.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ascend_jax.chip import ChipSpec
from ascend_jax.ops.timing.predictions import find_kind
from ascend_jax.ops.timing.products import find_chip
from ascend_jax.ops.timing.targets import Target, read_targets
from ascend_jax.ops.timing.validation import calibration_file

# constant: (start, least, greatest, first step), in its own unit. The start is what one would write down before any row
# is seen: ranges of documents, or no effect. A constant that no row determines stays there.
CONSTANTS: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "memory": {"burst_overhead_bytes": (32.0, 1.0, 512.0, 16.0), "copy_issue_cycles": (10.0, 1.0, 100.0, 4.0)},
    "gemm": {
        "l2_effective_share": (0.7, 0.2, 1.0, 0.1),
        "overlap_loss": (0.05, 0.0, 0.5, 0.02),
        "matmul_fixed_ns": (5000.0, 100.0, 20000.0, 2000.0),
        "flag_cycles": (20.0, 1.0, 200.0, 20.0),
        "tiling_cycles": (10.0, 0.0, 100.0, 8.0),
    },
    "attention": {
        "attention_overlap_loss": (0.5, 0.0, 1.0, 0.1),
        "attention_fixed_ns": (20000.0, 100.0, 1e5, 8000.0),
        "attention_start_ns": (5000.0, 100.0, 30000.0, 3000.0),
    },
    "collective": {
        "collective_chunk_bytes": (1048576.0, 65536.0, 67108864.0, 1048576.0),
        "collective_fill_bytes_per_s": (1e11, 1e10, 1e12, 2e10),
        "collective_host_ns": (300000.0, 1e4, 1e6, 5e4),
    },
}
LEAST_GAIN = 3e-4  # of the loss, for a constant to move
PULL = 0.08  # rows' worth of |log error| that a constant far from its start costs
DIGITS = 2
Values = dict[str, float]


def log_errors(targets: Sequence[Target], values: Values) -> np.ndarray:
    """log(predicted / measured) of each row with some constants replaced; kinds of no group are 0."""
    return np.array([_log_error(target, values) for target in targets])


def _log_error(target: Target, values: Values) -> float:
    spec: ChipSpec = find_chip(target.soc)
    _, predict = find_kind(target.kind)
    return float(np.log(predict(spec.replace(**values), target).in_unit(target.unit) / target.value))


def fit(targets: Sequence[Target], group: str, start: Values, rounds: int = 5) -> Values:
    """Constants of one group with the least loss that the search meets, rounded."""
    values = dict(start)

    def loss(trial: Values) -> float:
        moved = sum(2 * abs(trial[name] - start[name]) / (trial[name] + start[name]) for name in start)
        return float(np.abs(log_errors(targets, trial)).sum() + PULL * moved) / len(targets)

    best = loss(values)
    for turn in range(rounds):
        for name, (_, least, greatest, step) in CONSTANTS[group].items():
            for sign in (1.0, -1.0):
                while True:
                    moved = float(np.clip(values[name] + sign * step / 2**turn, least, greatest))
                    found = loss(values | {name: moved})
                    if found >= best - LEAST_GAIN:
                        break
                    best, values = found, values | {name: moved}
    return {name: float(f"{value:.{DIGITS}g}") for name, value in values.items()}


def starts(group: str) -> Values:
    """What the constants of a group start from."""
    return {name: bounds[0] for name, bounds in CONSTANTS[group].items()}


def folds_of(targets: Sequence[Target], folds: int) -> list[list[int]]:
    """Row numbers of each fold; rows with the same kind and sizes share a fold."""
    keys = [(target.kind, tuple(target.counts.items())) for target in targets]
    order = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    parts: list[list[int]] = [[] for _ in range(folds)]
    for row, key in enumerate(keys):
        parts[order[key] % folds].append(row)
    return [part for part in parts if part]


def report(targets: Sequence[Target], group: str, folds: int) -> dict[str, Any]:
    """Catalogue, fitted and cross-validated errors of one group."""
    rows = [target for target in targets if find_kind(target.kind)[0] == group]
    spec = find_chip("A2")
    catalogue = {name: float(spec[name]) for name in CONSTANTS[group]}
    start = starts(group)
    fitted = fit(rows, group, start)
    held: list[float] = []
    for part in folds_of(rows, folds) if folds > 1 else []:
        kept = [row for i, row in enumerate(rows) if i not in part]
        held += np.abs(np.expm1(log_errors([rows[i] for i in part], fit(kept, group, start)))).tolist()
    errors = {"catalogue": log_errors(rows, catalogue), "fitted": log_errors(rows, fitted)}
    summary = {name: _summary(np.abs(np.expm1(log))) for name, log in errors.items()}
    if held:
        summary["cross_validated"] = _summary(np.array(held))
    return {"group": group, "rows": len(rows), "catalogue": catalogue, "fitted": fitted, "errors": summary}


def _summary(errors: np.ndarray) -> dict[str, float]:
    return {"median": round(float(np.median(errors)), 4), "p90": round(float(np.quantile(errors, 0.9)), 4)}


def main() -> None:
    """Read, fit, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", type=Path, help="CSV file (default: the calibration file of the package)")
    parser.add_argument("--folds", type=int, default=5, help="0: no cross-validation")
    parser.add_argument("--group", nargs="*", choices=tuple(CONSTANTS), default=tuple(CONSTANTS))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    targets = read_targets(args.targets or calibration_file())
    results = [report(targets, group, args.folds) for group in args.group]
    if args.json:
        print(json.dumps(results, indent=2))
        return
    for result in results:
        print(f"{result['group']}: {result['rows']} rows")
        for name, value in result["fitted"].items():
            print(f"  {name:<30}{result['catalogue'][name]:>16.6g} -> {value:.6g}")
        for name, errors in result["errors"].items():
            print(f"  {name:<30}median {100 * errors['median']:5.1f} %   p90 {100 * errors['p90']:5.1f} %")


if __name__ == "__main__":
    main()
