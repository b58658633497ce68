"""``ascend-jax validate``: predicted and measured times, row by row, and how large the errors are."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ascend_jax.cli import files
from ascend_jax.cli.errors import UsageError
from ascend_jax.ops.timing import validation
from ascend_jax.ops.timing.targets import read_targets


def validate(path: str | None, *, measurements: str | None = None, as_json: bool) -> str:
    """Return the report on a file of measurements; None: on those that the model was fitted to.

    `measurements` names a file of your own times, which replace predictions.

    Raises:
      UsageError: The file cannot be read or is malformed.
    """
    try:
        targets = read_targets(validation.calibration_file() if path is None else Path(path))
    except FileNotFoundError:
        raise UsageError(f"--targets {path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"--targets: {error}") from None
    rows = validation.validate(targets, None if measurements is None else files.own_measurements(measurements))
    found = validation.summary(rows)
    if as_json:
        return json.dumps({**found, "targets": validation.table(rows)}, allow_nan=False)
    return "\n\n".join([_rows(rows), _missing(found), _summary(found)])


def _rows(rows: Sequence[validation.Row]) -> str:
    head = f"{'target':<9}{'soc':<14}{'kind':<24}{'measured':>12}{'predicted':>12} {'unit':<7}{'error':>8}"
    lines = [f"{head}  bound by, trust"]
    for row in rows:
        target = row.target
        if row.predicted is None or row.error is None or row.confidence is None:
            continue
        trust = f"{row.confidence.label} +-{100 * row.confidence.band:.0f} %"
        apart = "" if row.is_fitted else ", not fitted"
        values = f"{target.value:>12.5g}{row.predicted:>12.5g} {target.unit:<7}{100 * row.error:>+7.1f}%"
        name = f"{target.name[:8]:<9}{target.soc[:13]:<14}{target.kind[:23]:<24}"
        lines.append(f"{name}{values}  {row.limit}, {trust}{apart}")
    return "\n".join(lines)


def _missing(found: dict[str, Any]) -> str:
    if not found["not_covered"]:
        return "Every row is covered."
    lines = [f"  line {row['line']} ({row['kind']}): {row['reason']}" for row in found["not_covered"]]
    return "\n".join([f"{len(lines)} of {found['rows']} rows cannot be predicted:", *lines])


def _summary(found: dict[str, Any]) -> str:
    lines = [f"{'absolute error':<28}{'rows':>6}{'covered':>9}{'median':>9}{'p90':>9}{'greatest ratio':>16}"]
    parts = {"all": found, "fitted": found["fitted"], "not fitted": found["not_fitted"]}
    parts |= {"chip constants themselves": found["constants"], "without these": found["without_constants"]}
    parts |= {f"group {name}": part for name, part in found["by_group"].items()}
    parts |= {f"  {name}": part for name, part in found["by_kind"].items()}
    for name, part in parts.items():
        shares = [_percent(part["median_abs_error"]), _percent(part["p90_abs_error"])]
        ratio = "-" if part["max_ratio"] is None else f"{part['max_ratio']:.2f}"
        lines.append(f"{name[:27]:<28}{part['rows']:>6}{part['covered']:>9}{shares[0]:>9}{shares[1]:>9}{ratio:>16}")
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
