"""The model against a file of measurements: predicted, measured, error of every row; nothing is dropped."""

import dataclasses
import functools
import importlib.resources
from collections import defaultdict
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops.tile_problems import input_shapes
from ascend_jax.ops.timing.attention import forward_confidence
from ascend_jax.ops.timing.confidence import Confidence, confidence
from ascend_jax.ops.timing.matmul_rows import matmul_shape
from ascend_jax.ops.timing.measured import Measurements
from ascend_jax.ops.timing.predictions import attention_shape, find_kind, kind_name, vector_shape
from ascend_jax.ops.timing.products import find_chip
from ascend_jax.ops.timing.targets import INT32_MAX, Target, read_targets

# Kinds whose rows in the calibration file are the source of a chip constant; per-core rates only where they were read.
_CONSTANTS = frozenset(
    (
        *("hbm_read_all_aic", "gm_l1_one_aic", "l1_l0a_one_aic", "gm_ub_one_aiv_duplex", "l0c_gm_one_aic"),
        *("scalar_fma_cycles", "task_minus_core", "inter_kernel_gap", "stream_sync_idle", "memset_plus_sync"),
        *("memcpy_async_enqueue", "notify_record_wait", "aclnn_add_enqueue", "h2d", "p2p_bidir"),
    )
)
_PER_CORE = frozenset(("gm_ub_read_per_core", "ub_gm_write_per_core"))
_READ_AT_CORES = (1, 4)


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
    def is_constant(self) -> bool:
        """Whether the prediction is a chip constant that was read from this very row: its error says nothing."""
        few = self.target.counts.get("cores", 0) in _READ_AT_CORES
        return self.is_fitted and (self.target.kind in _CONSTANTS or (self.target.kind in _PER_CORE and few))

    @property
    def error(self) -> float | None:
        """Relative error, predicted / measured - 1, or None."""
        return None if self.predicted is None else self.predicted / self.target.value - 1


def validate(targets: Sequence[Target], measurements: Measurements | None = None) -> list[Row]:
    """Predict every target, in order; your own measurement of its operator, shape and dtype replaces the prediction.

    A row that cannot be predicted says why.
    """
    return [_row(target, measurements or Measurements({})) for target in targets]


def _row(target: Target, measurements: Measurements) -> Row:
    is_fitted = _key(target) in _calibration_keys()
    group = ""
    try:
        group, predict = find_kind(target.kind)
        spec, known = find_chip(target.soc), dataclasses.replace(target, kind=kind_name(target.kind))
        _check_counts(target)
        answer = predict(spec, known)
        if not np.isfinite(answer.time_ns):
            raise ValueError(f"no tile of this shape fits {spec.name}")
        trust = _trust(spec, group, known, answer.flop or answer.nbytes or answer.time_ns, answer.guess)
        asked = _measured_as(known)
        own = measurements.look_up(*asked, trust) if asked else None
        if own is not None:
            answer, trust = dataclasses.replace(answer, time_ns=1e3 * own[0], limit="measured"), own[1]
        predicted = answer.in_unit(target.unit)
        if predicted <= 0:
            raise ValueError(f"the model says {predicted:g} {target.unit}, which no measurement can be compared with")
    except (ValueError, ArithmeticError) as error:
        return Row(target, group, None, " ".join(str(error).split()), "", None, is_fitted)
    return Row(target, group, predicted, "", answer.limit, trust, is_fitted)


def _measured_as(target: Target) -> tuple[str, Sequence[Sequence[int]], str, int] | None:
    """Operator, input shapes, dtype and mask of a launch on all cores; None: a row that is no such launch."""
    if "cores" in target.counts:
        return None
    if target.kind in ("gemm", "gemm_task"):
        return "matmul", input_shapes("matmul", matmul_shape(target)), target.dtype, 0
    if target.kind.startswith("fa_"):
        name, shape = "flash_attention", attention_shape(target)
        name += "_backward" if target.kind.startswith("fa_bwd") else ""
        return name, input_shapes(name, shape), target.dtype, int(shape.mode)
    if find_kind(target.kind)[0] == "vector":
        work = vector_shape(target)
        return work.operator, input_shapes(work.operator, work), target.dtype, 0
    return None


def _trust(spec: ChipSpec, group: str, target: Target, size: float, guess: str) -> Confidence:
    if target.kind in ("fa_fwd", "fa_fwd_vendor"):
        return forward_confidence(spec, attention_shape(target), target.kind)
    ranks = target.counts.get("ranks", 0)
    return confidence(spec, group, target.dtype, size, kind=target.kind, ranks=ranks, unlike=guess)


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
        "constants": _errors([row for row in rows if row.is_constant]),
        "without_constants": _errors([row for row in rows if not row.is_constant]),
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
            "is_constant": row.is_constant,
            "reason": row.reason,
        }
        for row in rows
    ]
