"""Tensors of a kernel: in device memory (``GlobalTensor``) and in a core's own memories (``LocalTensor``).

A core's memories are allocators: a kernel that asks for more than a level has fails where it asks, with the numbers.
Host-side and immutable: what a kernel plans before it is launched.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ascend_jax.chip.onchip import LEVELS, Level, OnChipError, empty_levels
from ascend_jax.chip.spec import ChipSpec


@dataclasses.dataclass(frozen=True)
class GlobalTensor:
    """A tensor in device memory: a pointer of ``malloc``, bytes from there, shape and dtype."""

    pointer: Any  # granule
    shape: tuple[int, ...]
    dtype: np.dtype
    offset_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def rows(self, start: int, count: int) -> "GlobalTensor":
        """Return some rows along the first axis.

        Raises:
          IndexError: They are not all in the tensor.
        """
        _check_rows(self.shape, start, count)
        step = math.prod(self.shape[1:]) * self.dtype.itemsize
        return dataclasses.replace(self, shape=(count, *self.shape[1:]), offset_bytes=self.offset_bytes + start * step)


@dataclasses.dataclass(frozen=True)
class LocalTensor:
    """A tensor in one memory of a core."""

    level: str  # one of LEVELS
    name: str
    offset_bytes: int  # from the start of the level
    shape: tuple[int, ...]
    dtype: np.dtype
    serial: int = dataclasses.field(default=0, compare=False)  # of the allocation, to tell it from a later one

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def rows(self, start: int, count: int) -> "LocalTensor":
        """Return some rows along the first axis; raises IndexError if they are not all in the tensor."""
        _check_rows(self.shape, start, count)
        step = math.prod(self.shape[1:]) * self.dtype.itemsize
        return dataclasses.replace(self, shape=(count, *self.shape[1:]), offset_bytes=self.offset_bytes + start * step)


@dataclasses.dataclass(frozen=True)
class LocalBuffer:
    """Equal tensors that take turns: two are double buffering, in which one is filled while the other is used."""

    tensors: tuple[LocalTensor, ...]

    def turn(self, step: int) -> LocalTensor:
        """Return the tensor of a step of the loop."""
        return self.tensors[step % len(self.tensors)]


@dataclasses.dataclass(frozen=True)
class CoreMemory:
    """The memories of one core (and L2, which all share) with what lies in them."""

    levels: Mapping[str, Level]
    live: Mapping[int, tuple[str, int, int]]  # by serial number: level, offset, aligned bytes
    made: int = dataclasses.field(default=0, compare=False)  # allocations so far

    def free_bytes(self, level: str) -> int:
        """Return the free bytes of a level."""
        return sum(self.levels[_known(level)].runs)

    def largest_free_bytes(self, level: str) -> int:
        """Return the longest run of free bytes of a level."""
        return max(self.levels[_known(level)].runs)


def core_memory(spec: ChipSpec) -> CoreMemory:
    """Return the empty memories of a core of a chip.

    >>> from ascend_jax.chip import chip
    >>> memory = core_memory(chip("Ascend910B2"))
    >>> memory, left = alloc_local(memory, "L0A", (128, 64), "float16", name="left", copies=2)
    >>> left.turn(3).offset_bytes, memory.free_bytes("L0A")
    (16384, 32768)
    """
    levels = empty_levels(spec)
    whole = {
        name: dataclasses.replace(level, capacity_bytes=int(level.capacity_bytes)) for name, level in levels.items()
    }
    return CoreMemory(MappingProxyType(whole), MappingProxyType({}))


def alloc_local(
    memory: CoreMemory, level: str, shape: Sequence[int], dtype: Any, *, name: str = "", copies: int = 1
) -> tuple[CoreMemory, LocalBuffer]:
    """Allocate a tensor in a level, or several that take turns, each at the lowest place where it fits.

    Tensors begin and end at multiples of 32 bytes in L1 and UB, 512 bytes elsewhere.

    Raises:
      OnChipError: It does not fit; the message has the level, what was asked for and what is free.
      ValueError: Unknown level, a negative extent or fewer than one copy.
    """
    kind, extents = np.dtype(dtype), tuple(int(extent) for extent in shape)
    if copies < 1 or any(extent < 0 for extent in extents):
        raise ValueError(f"shape = {extents}, copies = {copies}: extents must be 0 or more, copies 1 or more")
    tensors = []
    for copy in range(copies):
        label, before = f"{name}[{copy}]" if copies > 1 else name, memory.levels[_known(level)]
        size = before.aligned(max(math.prod(extents) * kind.itemsize, 1))  # so that no two begin at one place
        now, offset = before.taken(size)
        if now.end_bytes > now.capacity_bytes:
            raise OnChipError(
                f"{level}: {label or 'a tensor'} asks for {size} bytes, {memory.free_bytes(level)} are free, "
                f"{memory.largest_free_bytes(level)} of them in one run, of {now.capacity_bytes}; "
                "take a smaller tile, fewer copies, or free what is no longer used"
            )
        serial = memory.made + 1
        live = MappingProxyType({**memory.live, serial: (level, offset, size)})
        memory = CoreMemory(MappingProxyType({**memory.levels, level: now}), live, serial)
        tensors.append(LocalTensor(level, label, offset, extents, kind, serial))
    return memory, LocalBuffer(tuple(tensors))


def free_local(memory: CoreMemory, buffer: LocalBuffer) -> CoreMemory:
    """Give the tensors of a buffer back.

    Raises:
      ValueError: One is not allocated, or was given back before.
    """
    for tensor in buffer.tensors:
        level, offset, size = memory.live.get(tensor.serial, ("", 0, 0))
        if (level, offset) != (tensor.level, tensor.offset_bytes):
            raise ValueError(f"{tensor.level}: {tensor.name!r} at {tensor.offset_bytes} is not allocated")
        live = MappingProxyType({serial: one for serial, one in memory.live.items() if serial != tensor.serial})
        levels = MappingProxyType({**memory.levels, level: memory.levels[level].freed(offset, size)})
        memory = CoreMemory(levels, live, memory.made)
    return memory


def _known(level: str) -> str:
    if level not in LEVELS:
        raise ValueError(f"level = {level!r}: must be one of {', '.join(LEVELS)}")
    return level


def _check_rows(shape: tuple[int, ...], start: int, count: int) -> None:
    if not shape or start < 0 or count < 0 or start + count > shape[0]:
        raise IndexError(f"rows {start} to {start + count} of shape {shape}: must lie inside the first axis")
