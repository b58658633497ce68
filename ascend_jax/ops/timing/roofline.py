"""Roofline: how close operators come to what compute and memory of a chip allow.

An operator with `flop` operations and `hbm_bytes` of HBM traffic cannot run faster than
min(peak, intensity * HBM rate), intensity = flop / hbm_bytes. What stays in L2 has no HBM traffic: its roof is L2's.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ascend_jax.chip import memory
from ascend_jax.chip.spec import ChipSpec, peak_flops
from ascend_jax.ops import tiling
from ascend_jax.ops.attention.tiling import AttentionShape
from ascend_jax.ops.attention.visibility import SparseMode
from ascend_jax.ops.timing.attention import forward_flop
from ascend_jax.ops.timing.measured import Measurements, kernel_key
from ascend_jax.ops.timing.targets import DTYPE_BYTES
from ascend_jax.ops.timing.vector import OPERATORS
from ascend_jax.runtime.kernels import LIMITS, KernelSpec
from ascend_jax.runtime.layout import GRANULE_BYTES, LIMB, NONE, Field, Kind, Resource
from ascend_jax.runtime.program import Program

VECTOR_OPERATORS = frozenset(OPERATORS)


@dataclasses.dataclass(frozen=True)
class Point:
    """One operator under the roof."""

    name: str
    flop: float
    moved_bytes: float  # to and from HBM, or the operands' bytes if all of them stay in L2
    memory: str  # "hbm" or "l2": whose rate bounds it
    time_us: float
    peak_flops: float  # of the unit that computes it
    rate_bytes_per_s: float  # of that memory
    limit: str  # unit that the model finds busiest

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flop / self.moved_bytes

    @property
    def achieved(self) -> float:
        """Operations a second."""
        return self.flop / (self.time_us * 1e-6)

    @property
    def roof(self) -> float:
        """Operations a second that the roofline allows."""
        return min(self.peak_flops, self.intensity * self.rate_bytes_per_s)


def vector_peak(spec: ChipSpec, dtype_bytes: int) -> float:
    """Operations a second of all vector cores, one an element and cycle."""
    lanes = float(spec["vector_bytes_per_cycle"]) / dtype_bytes
    return float(spec["vector_cores"]) * lanes * float(spec["clock_hz"])


def operator_point(
    operator: str, shape: Any, dtype: str, spec: ChipSpec, measurements: Measurements | None = None
) -> Point:
    """Point of one operator with its best tile, at its measured time if there is one.

    Raises:
        ValueError: As `tiling.choose`; or an operator that computes nothing (copy, memset, transpose, cast).

    Example:
        >>> from ascend_jax.chip import chip
        >>> point = operator_point("matmul", (4096, 4096, 4096), "float16", chip("Ascend910B2"))
        >>> point.achieved < point.roof <= 354e12
        True
    """
    best = tiling.choose(operator, shape, dtype, spec, measurements=measurements)
    if not best.flop:
        raise ValueError(f"operator {operator!r} computes nothing; a roofline needs operations")
    size = DTYPE_BYTES[dtype]
    peak = vector_peak(spec, size) if operator in VECTOR_OPERATORS else float(peak_flops(spec, size))
    compulsory = tiling.compulsory_bytes(operator, shape, dtype)
    name = f"{operator} {'x'.join(str(n) for n in shape) if isinstance(shape, tuple) else ''} {dtype}".replace(
        "  ", " "
    )
    return _point(spec, name, best.flop, best.hbm_bytes, compulsory, best.time_us, peak, best.limit)


def program_points(program: Program, spec: ChipSpec, measurements: Measurements | None = None) -> list[Point]:
    """A point for each kind of kernel launch of a program, in order of first use; launches alike are one point.

    Operations come from the operator's shapes where its formula is known, else from the busy time of its cube cores
    at peak rate; kernels with neither are left out.
    """
    fields = np.asarray(program.fields)
    if fields.ndim != 2:
        raise ValueError(f"a batch of {fields.shape[0]} programs: take one of them")
    found: dict[tuple[int, ...], Point] = {}
    for row in fields[fields[:, Field.KIND] == Kind.KERNEL]:
        key = tuple(int(row[column]) for column in (Field.KERNEL, Field.BLOCKS, Field.BLOCK_HI, Field.BLOCK_LO))
        point = _kernel_point(spec, program, row, measurements)
        if key not in found and point is not None:
            found[key] = point
    return list(found.values())


def _kernel_point(spec: ChipSpec, program: Program, row: np.ndarray, measurements: Measurements | None) -> Point | None:
    kernel = None if row[Field.KERNEL] == NONE else program.kernels[row[Field.KERNEL]]
    blocks = int(row[Field.BLOCKS])
    block_ns = int(row[Field.BLOCK_HI]) * LIMB + int(row[Field.BLOCK_LO])
    needs = ((Resource.CUBE, "cube_cores"), (Resource.VECTOR, "vector_cores"))
    at_once = [int(spec[field]) // int(row[Field.NEED + unit]) for unit, field in needs if row[Field.NEED + unit]]
    waves = -(-blocks // max(min(at_once, default=1), 1))
    measured = measurements.find(*kernel_key(kernel)) if measurements and kernel else None
    time_us = (int(row[Field.HEAD_NS]) + waves * block_ns) / 1e3 if measured is None else measured
    size = kernel.inputs[0].dtype.itemsize if kernel and kernel.inputs[0].dtype.itemsize in (1, 2, 4) else 2
    peak = float(peak_flops(spec, size))
    busy = min(blocks, int(spec["cube_cores"])) * int(row[Field.CUBE_NS]) * 1e-9
    flop = kernel_flop(kernel) or busy * peak / int(spec["cube_cores"])
    moved = float(row[Field.MOVED]) * GRANULE_BYTES
    operands = float(sum(each.nbytes for each in (*kernel.inputs, *kernel.outputs))) if kernel else moved
    if not flop or not max(moved, operands):
        return None
    name = kernel.operator if kernel else "kernel"
    return _point(spec, name, flop, moved, operands, time_us, peak, LIMITS[int(row[Field.LIMIT])])


def kernel_flop(kernel: KernelSpec | None) -> float:
    """Operations of a launch, from its shapes; 0 where no formula is known."""
    if kernel is None:
        return 0.0
    shapes = [each.shape for each in kernel.inputs]
    if kernel.operator == "FlashAttentionScore":
        (batch, heads, q_len, dim), (_, kv_heads, kv_len, _), (*_, value_dim) = shapes[:3]
        mode = SparseMode(int(dict(kernel.attributes).get("sparse_mode", 0)))  # type: ignore[call-overload]
        return forward_flop(AttentionShape(batch, heads, kv_heads, q_len, kv_len, dim, value_dim, 2, mode))
    if kernel.operator == "Matmul":
        return 2.0 * math.prod(shapes[0]) * shapes[1][-1]
    return 0.0


def _point(
    spec: ChipSpec, name: str, flop: float, hbm: float, operands: float, time_us: float, peak: float, limit: str
) -> Point:
    in_l2 = hbm < 0.01 * operands
    rate = float(spec["l2_bytes_per_s"]) if in_l2 else float(memory.hbm_rate(spec))
    return Point(name, flop, operands if in_l2 else hbm, "l2" if in_l2 else "hbm", time_us, peak, rate, limit)


def table(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Plain data, one dictionary a point."""
    return [
        {
            "operator": point.name,
            "gflop": round(point.flop / 1e9, 4),
            "moved_mb": round(point.moved_bytes / 1e6, 3),
            "memory": point.memory,
            "flop_per_byte": round(point.intensity, 2),
            "time_us": round(point.time_us, 3),
            "tflops": round(point.achieved / 1e12, 3),
            "roof_tflops": round(point.roof / 1e12, 3),
            "share_of_roof": round(point.achieved / point.roof, 4),
            "limit": point.limit,
        }
        for point in points
    ]
