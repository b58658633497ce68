"""Compare the timing model with published measurements.

    python tools/validate_timing.py [--targets CSV] [--json]

The same report as `ascend-jax validate`. Without --targets, the rows that the model was fitted to; rows of other files
are told apart as not fitted. Exit status 1 if a row of the calibration file is not covered, or if its errors exceed
what the project promises (below).
"""

import argparse
import json
import sys

from ascend_jax.cli import validation_report
from ascend_jax.cli.errors import UsageError

MEDIAN, P90 = 0.08, 0.25
MEDIAN_OF_GROUP = {"gemm": 0.08, "memory": 0.08, "attention": 0.10, "collective": 0.15}
LAUNCH_RATIO = 1.5


def broken_promises(found: dict) -> list[str]:
    """Every promise that a summary does not keep, in words."""
    wrong = [f"row {row['target']}: not covered: {row['reason']}" for row in found["not_covered"]]
    checks = [("all", "median", found["median_abs_error"], MEDIAN), ("all", "p90", found["p90_abs_error"], P90)]
    groups = found["by_group"]
    checks += [(n, "median", groups[n]["median_abs_error"], at) for n, at in MEDIAN_OF_GROUP.items() if n in groups]
    if "launch" in groups:
        checks.append(("launch", "greatest ratio", groups["launch"]["max_ratio"], LAUNCH_RATIO))
    return wrong + [f"{name}: {what} {at} above {most}" for name, what, at, most in checks if at is None or at > most]


def main() -> int:
    """Print the report; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", metavar="CSV")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        report = validation_report.validate(args.targets, as_json=True)
        print(report if args.json else validation_report.validate(args.targets, as_json=False))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    wrong = broken_promises(json.loads(report)) if args.targets is None else []
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
