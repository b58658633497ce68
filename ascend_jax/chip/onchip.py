"""On-chip memory: what a core's buffers take in L1, L0A, L0B, L0C and UB, and whether they fit."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip.spec import ChipSpec

LEVELS = ("L1", "L0A", "L0B", "L0C", "UB", "L2")  # of one core, except L2, which the card shares
_FIELD = {level: f"{level.lower()}_bytes" for level in LEVELS}
ALIGN_BYTES = {"L1": 32, "L0A": 512, "L0B": 512, "L0C": 512, "UB": 32, "L2": 512}
_INT32_MAX = 2**31 - 1


class OnChipError(ValueError):
    """Buffers do not fit into an on-chip memory."""


@dataclasses.dataclass(frozen=True)
class Buffer:
    """One on-chip buffer; `copies=2` is double buffering.

    Raises:
        ValueError: Unknown level, or fewer than one copy, or a negative size.
    """

    level: str  # one of LEVELS
    name: str
    size_bytes: Any  # int, or traced [...] int32: one copy
    copies: int = 1

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"buffer {self.name!r}: level {self.level!r} is none of {', '.join(LEVELS)}")
        if self.copies < 1:
            raise ValueError(f"buffer {self.name!r}: copies={self.copies}, at least 1")
        if isinstance(self.size_bytes, int) and self.size_bytes < 0:
            raise ValueError(f"buffer {self.name!r}: size_bytes={self.size_bytes}, at least 0")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class OnChipPlan:
    """Where `N` buffers lie in `L = len(LEVELS)` memories. Sums beyond int32 are held at its maximum."""

    offset_bytes: np.ndarray | jax.Array  # [..., N] int32, start of the first copy in its level
    size_bytes: np.ndarray | jax.Array  # [..., N] int32, one copy as asked for
    used_bytes: np.ndarray | jax.Array  # [..., L] int32, with alignment and copies
    capacity_bytes: np.ndarray | jax.Array  # [..., L] int32
    fits: np.ndarray | jax.Array  # [...] bool
    buffers: tuple[tuple[str, str, int], ...] = dataclasses.field(metadata={"static": True})  # as report()

    def report(self) -> list[dict[str, str | int]]:
        """Rows (level, buffer, offset_bytes, size_bytes, copies), from concrete, unbatched numbers."""
        offsets, sizes = np.asarray(self.offset_bytes).tolist(), np.asarray(self.size_bytes).tolist()
        return [
            {"level": level, "buffer": name, "offset_bytes": offset, "size_bytes": size, "copies": copies}
            for (level, name, copies), offset, size in zip(self.buffers, offsets, sizes, strict=True)
        ]


def place(spec: ChipSpec, buffers: Sequence[Buffer]) -> OnChipPlan:
    """Lay buffers one behind the other in each level, in the order given.

    Every copy starts at a multiple of 32 B (L1, UB) or 512 B (L0A, L0B, L0C, L2). Sizes may be traced or
    batched, so a table of tiles can be placed under `vmap`.

    Example:
        >>> from ascend_jax.chip import chip
        >>> plan = place(chip("Ascend910B2"), [Buffer("L0A", "q", 32768, copies=2), Buffer("L0A", "p", 100)])
        >>> plan.report()[1]["offset_bytes"], bool(plan.fits)
        (65536, False)
    """
    free: dict[str, Any] = dict.fromkeys(LEVELS, 0)
    offsets = []
    for buffer in buffers:
        offsets.append(free[buffer.level])
        align = ALIGN_BYTES[buffer.level]
        step = -(-buffer.size_bytes // align) * align * buffer.copies
        free[buffer.level] = _saturating_add(free[buffer.level], step)
    used = _stack([free[level] for level in LEVELS])
    capacity = _stack([capacity_bytes(spec, level) for level in LEVELS])
    return OnChipPlan(
        offset_bytes=_stack(offsets),
        size_bytes=_stack([buffer.size_bytes for buffer in buffers]),
        used_bytes=used,
        capacity_bytes=capacity,
        fits=(used <= capacity).all(-1),
        buffers=tuple((buffer.level, buffer.name, buffer.copies) for buffer in buffers),
    )


def capacity_bytes(spec: ChipSpec, level: str) -> Any:
    """What a level of a chip holds, int32 `[...]` with the batch axes of `spec`."""
    return _as_int32(spec[_FIELD[level]])


def require(plan: OnChipPlan) -> OnChipPlan:
    """The plan itself if it fits. Concrete, unbatched numbers only.

    Raises:
        OnChipError: A level is too small; names the level, the bytes asked for and the bytes there are.
    """
    used, available = np.asarray(plan.used_bytes).tolist(), np.asarray(plan.capacity_bytes).tolist()
    rows = zip(LEVELS, used, available, strict=True)
    short = [f"{level}: {asked} bytes asked for, {there} available" for level, asked, there in rows if asked > there]
    if short:
        raise OnChipError(f"buffers do not fit: {'; '.join(short)}; take a smaller tile or fewer copies")
    return plan


def _saturating_add(total: Any, step: Any) -> Any:
    """Sum held at int32's maximum: both terms are below 2**31, so an overflow turns negative."""
    if isinstance(total, int) and isinstance(step, int):
        return min(total + step, _INT32_MAX)
    wrapped = jnp.asarray(total, jnp.int32) + jnp.asarray(step, jnp.int32)
    return jnp.where(wrapped < 0, _INT32_MAX, wrapped)


def _as_int32(value: Any) -> Any:
    if isinstance(value, jax.Array):
        return jnp.minimum(value, 2.0**31 - 128).astype(jnp.int32)  # the largest float32 below 2**31
    return np.minimum(value, 2.0**31 - 128).astype(np.int32)


def _stack(values: list[Any]) -> Any:
    if any(isinstance(value, jax.Array) for value in values):
        values = [jnp.asarray(min(v, _INT32_MAX) if isinstance(v, int) else v, jnp.int32) for v in values]
        return jnp.stack(jnp.broadcast_arrays(*values), axis=-1)
    if not values:
        return np.zeros(0, np.int32)
    return np.stack(np.broadcast_arrays(*values), axis=-1).clip(max=_INT32_MAX).astype(np.int32)
