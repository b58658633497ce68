"""The model against a file of measurements: predicted, measured, error of every row; nothing is dropped."""

import dataclasses
import functools
import importlib.resources
from collections import defaultdict
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np

from ascend_jax.ops.timing.confidence import Confidence, confidence
from ascend_jax.ops.timing.predictions import find_kind
from ascend_jax.ops.timing.products import find_chip
from ascend_jax.ops.timing.targets import INT32_MAX, Target, read_targets


def calibration_file() -> Traversable:
    """The file of measurements that constants were fitted to or read from."""
    return importlib.resources.files("ascend_jax.ops.timing").joinpath("data/calibration.csv")


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement and what the model says to it."""

    target: Target
    group: str  # "" if the kind has no model
    predicted: float | None  # in the unit of the target
    reason: str  # why there is no prediction, else ""
    limit: str  # the unit that bounds the time
    confidence: Confidence | None
    is_fitted: bool  # the row belongs to the calibration file

    @property
    def error(self) -> float | None:
        """Relative error, predicted / measured - 1, or None."""
        return None if self.predicted is None else self.predicted / self.target.value - 1


def validate(targets: Sequence[Target]) -> list[Row]:
    """Predict every target, in order. A row that cannot be predicted says why."""
    return [_row(target) for target in targets]


def _row(target: Target) -> Row:
    is_fitted = _key(target) in _calibration_keys()
    group = ""
    try:
        group, predict = find_kind(target.kind)
        spec = find_chip(target.soc)
        _check_counts(target)
        answer = predict(spec, target)
        predicted = answer.in_unit(target.unit)
        if not np.isfinite(predicted):
            raise ValueError(f"no tile of this shape fits {spec.name}")
        if predicted <= 0:
            raise ValueError(f"the model says {predicted:g} {target.unit}, which no measurement can be compared with")
        size = answer.flop or answer.nbytes or answer.time_ns
        trust = confidence(spec, group, target.dtype, size)
    except (ValueError, ArithmeticError) as error:
        return Row(target, group, None, " ".join(str(error).split()), "", None, is_fitted)
    return Row(target, group, predicted, "", answer.limit, trust, is_fitted)


def _check_counts(target: Target) -> None:
    """Refuse sizes that no launch has: CANN counts elements of an axis, ranks and cores in int32."""
    for name, count in target.counts.items():
        if name != "bytes" and count > INT32_MAX:
            raise ValueError(f"column {name} is {count}; at most {INT32_MAX}")


def _key(target: Target) -> tuple[Any, ...]:
    return (target.soc, target.kind, target.dtype, tuple(sorted(target.counts.items())), target.value, target.unit)


@functools.cache
def _calibration_keys() -> frozenset[tuple[Any, ...]]:
    return frozenset(_key(target) for target in read_targets(calibration_file()))


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Errors of all rows, by kind, by group, and apart for rows that were fitted and rows that were not.

    `rows`, `covered`, `median_abs_error`, `p90_abs_error` (None without a covered row), `max_ratio` is the greatest of
    predicted / measured and its inverse.
    """
    by_kind, by_group = defaultdict(list), defaultdict(list)
    for row in rows:
        by_kind[row.target.kind].append(row)
        by_group[row.group or "no model"].append(row)
    return {
        **_errors(rows),
        "fitted": _errors([row for row in rows if row.is_fitted]),
        "not_fitted": _errors([row for row in rows if not row.is_fitted]),
        "by_group": {name: _errors(part) for name, part in by_group.items()},
        "by_kind": {name: _errors(part) for name, part in by_kind.items()},
        "not_covered": [
            {"target": row.target.name, "line": row.target.line, "kind": row.target.kind, "reason": row.reason}
            for row in rows
            if row.predicted is None
        ],
    }


def _errors(rows: Sequence[Row]) -> dict[str, Any]:
    errors = np.array([row.error for row in rows if row.error is not None])
    ratios = np.maximum(1 + errors, 1 / (1 + errors))
    found = len(errors) > 0
    return {
        "rows": len(rows),
        "covered": len(errors),
        "median_abs_error": round(float(np.median(np.abs(errors))), 4) if found else None,
        "p90_abs_error": round(float(np.quantile(np.abs(errors), 0.9)), 4) if found else None,
        "max_ratio": round(float(ratios.max()), 4) if found else None,
    }


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Plain data, one dictionary a row."""
    return [
        {
            "target": row.target.name,
            "soc": row.target.soc,
            "kind": row.target.kind,
            "dtype": row.target.dtype,
            **row.target.counts,
            "unit": row.target.unit,
            "measured": row.target.value,
            "predicted": None if row.predicted is None else float(f"{row.predicted:.5g}"),
            "error": None if row.error is None else round(row.error, 4),
            "limit": row.limit,
            "confidence": row.confidence.label if row.confidence else None,
            "band": row.confidence.band if row.confidence else None,
            "is_fitted": row.is_fitted,
            "reason": row.reason,
        }
        for row in rows
    ]
