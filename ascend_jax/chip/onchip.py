"""On-chip memory: what a core's buffers take in L1, L0A, L0B, L0C and UB, and whether they fit.

:class:`Level` is the one allocator of an on-chip memory. :func:`place` lays the buffers of a tile with it, the sizes of
which may be traced; ``CoreMemory`` (see ``chip.tensors``) allocates and frees tensors of a kernel with it.
"""

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
class Level:
    """One memory, allocated lowest place first, in whole units of its alignment. What is free lies in holes and behind.

    Placing takes no notice of the capacity: ``end_bytes`` above it means that something does not fit.
    """

    name: str  # one of LEVELS
    capacity_bytes: Any  # int, or traced [...] int32
    end_bytes: Any = 0  # past the last byte taken
    holes: tuple[tuple[int, int], ...] = ()  # (first, past the last) free byte below `end_bytes`, in address order

    def aligned(self, size_bytes: Any) -> Any:
        """Bytes that `size_bytes` take: whole units of 32 B (L1, UB) or 512 B (L0A, L0B, L0C, L2)."""
        unit = ALIGN_BYTES[self.name]
        return -(-size_bytes // unit) * unit

    def taken(self, size_bytes: Any) -> tuple["Level", Any]:
        """The level with `size_bytes`, whole units, taken at the lowest place that holds them, and that place."""
        for index, (first, end) in enumerate(self.holes):  # only what was freed leaves holes, and then sizes are ints
            if end - first >= size_bytes:
                rest = ((first + size_bytes, end),) if end - first > size_bytes else ()
                return dataclasses.replace(self, holes=(*self.holes[:index], *rest, *self.holes[index + 1 :])), first
        return dataclasses.replace(self, end_bytes=_saturating_add(self.end_bytes, size_bytes)), self.end_bytes

    def freed(self, first: int, size_bytes: int) -> "Level":
        """The level with bytes given back that `taken` has placed."""
        holes: list[tuple[int, int]] = []
        for low, high in sorted((*self.holes, (first, first + size_bytes))):
            joins = holes and holes[-1][1] == low
            holes[-1:] = [(holes[-1][0], high)] if joins else [*holes[-1:], (low, high)]
        if holes[-1][1] == self.end_bytes:
            return dataclasses.replace(self, end_bytes=holes[-1][0], holes=tuple(holes[:-1]))
        return dataclasses.replace(self, holes=tuple(holes))

    @property
    def runs(self) -> list[int]:
        """Lengths of the runs of free bytes, from concrete numbers."""
        return [end - first for first, end in self.holes] + [self.capacity_bytes - self.end_bytes]


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
    levels = empty_levels(spec)
    offsets = []
    for buffer in buffers:
        level = levels[buffer.level]
        levels[buffer.level], offset = level.taken(level.aligned(buffer.size_bytes) * buffer.copies)
        offsets.append(offset)
    used = _stack([level.end_bytes for level in levels.values()])
    capacity = _stack([level.capacity_bytes for level in levels.values()])
    return OnChipPlan(
        offset_bytes=_stack(offsets),
        size_bytes=_stack([buffer.size_bytes for buffer in buffers]),
        used_bytes=used,
        capacity_bytes=capacity,
        fits=(used <= capacity).all(-1),
        buffers=tuple((buffer.level, buffer.name, buffer.copies) for buffer in buffers),
    )


def empty_levels(spec: ChipSpec) -> dict[str, Level]:
    """The empty memories of a core of a chip, and L2, by name; capacities int32 `[...]` with the axes of `spec`."""
    return {level: Level(level, _as_int32(spec[_FIELD[level]])) for level in LEVELS}


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
