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

from ascend_jax.chip.onchip import ALIGN_BYTES, LEVELS, OnChipError, capacity_bytes
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

    capacity_bytes: Mapping[str, int]
    taken: Mapping[str, tuple[tuple[int, int, str, int], ...]]  # per level (offset, aligned bytes, name, serial)
    made: int = dataclasses.field(default=0, compare=False)  # allocations so far

    def free_bytes(self, level: str) -> int:
        """Return the free bytes of a level."""
        return self.capacity_bytes[_known(level)] - sum(size for _, size, *_ in self.taken[level])

    def largest_free_bytes(self, level: str) -> int:
        """Return the longest run of free bytes of a level."""
        return max(end - begin for begin, end in self._gaps(_known(level)))

    def _gaps(self, level: str) -> list[tuple[int, int]]:
        starts = [offset for offset, *_ in self.taken[level]] + [self.capacity_bytes[level]]
        ends = [0] + [offset + size for offset, size, *_ in self.taken[level]]
        return list(zip(ends, starts, strict=True))


def core_memory(spec: ChipSpec) -> CoreMemory:
    """Return the empty memories of a core of a chip.

    >>> from ascend_jax.chip import chip
    >>> memory = core_memory(chip("Ascend910B2"))
    >>> memory, left = alloc_local(memory, "L0A", (128, 64), "float16", name="left", copies=2)
    >>> left.turn(3).offset_bytes, memory.free_bytes("L0A")
    (16384, 32768)
    """
    capacity = {level: int(capacity_bytes(spec, level)) for level in LEVELS}
    return CoreMemory(MappingProxyType(capacity), MappingProxyType(dict.fromkeys(LEVELS, ())))


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
    tensors, align = [], ALIGN_BYTES[_known(level)]
    for copy in range(copies):
        label = f"{name}[{copy}]" if copies > 1 else name
        size = max(-(-math.prod(extents) * kind.itemsize // align), 1) * align
        places = [begin for begin, end in memory._gaps(level) if end - begin >= size]
        if not places:
            raise OnChipError(
                f"{level}: {label or 'a tensor'} asks for {size} bytes, {memory.free_bytes(level)} are free, "
                f"{memory.largest_free_bytes(level)} of them in one run, of {memory.capacity_bytes[level]}; "
                "take a smaller tile, fewer copies, or free what is no longer used"
            )
        taken = tuple(sorted((*memory.taken[level], (places[0], size, label, memory.made + 1))))
        taken_now = MappingProxyType({**memory.taken, level: taken})
        memory = dataclasses.replace(memory, taken=taken_now, made=memory.made + 1)
        tensors.append(LocalTensor(level, label, places[0], extents, kind, memory.made))
    return memory, LocalBuffer(tuple(tensors))


def free_local(memory: CoreMemory, buffer: LocalBuffer) -> CoreMemory:
    """Give the tensors of a buffer back.

    Raises:
      ValueError: One is not allocated, or was given back before.
    """
    for tensor in buffer.tensors:
        rows = memory.taken[tensor.level]
        kept = tuple(row for row in rows if (row[0], row[3]) != (tensor.offset_bytes, tensor.serial))
        if len(kept) == len(rows):
            raise ValueError(f"{tensor.level}: {tensor.name!r} at {tensor.offset_bytes} is not allocated")
        memory = dataclasses.replace(memory, taken=MappingProxyType({**memory.taken, tensor.level: kept}))
    return memory


def _known(level: str) -> str:
    if level not in LEVELS:
        raise ValueError(f"level = {level!r}: must be one of {', '.join(LEVELS)}")
    return level


def _check_rows(shape: tuple[int, ...], start: int, count: int) -> None:
    if not shape or start < 0 or count < 0 or start + count > shape[0]:
        raise IndexError(f"rows {start} to {start + count} of shape {shape}: must lie inside the first axis")
