"""Virtual addresses: which bytes lie behind them. Commands hold physical addresses, or those of a segment."""

import jax
import jax.numpy as jnp

from ascend_jax.runtime.layout import (
    GRANULE_BYTES,
    HOST_END,
    HUGE_PAGE,
    NONE,
    Device,
    HeapEntry,
    HeapFlag,
    Virtual,
    VirtualKind,
)
from ascend_jax.runtime.ranges import Range
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState

ADDRESSES_END = 2**31 - 1  # granules
FEWEST_ADDRESSES = (4 << 30) // GRANULE_BYTES


def virtual_span(memory_end: Number) -> tuple[Number, Number]:
    """Return (first granule, granule past the last) of the addresses that can be reserved, whole 2 MiB.

    They lie behind the device memory. Where it leaves less than 4 GiB of the 128 GiB up to the last pointer, they are
    the 126 GiB between host memory and the null pointer. Of a Python int these are Python ints.
    """
    is_far = (ADDRESSES_END - memory_end >= FEWEST_ADDRESSES) * 1
    behind, last = (memory_end + HUGE_PAGE - 1) & -HUGE_PAGE, ADDRESSES_END & -HUGE_PAGE
    return is_far * behind + (1 - is_far) * HOST_END, is_far * last


def translate(card: CardState, place: Range) -> Range:
    """Return a range in normal form, with the physical address if all of it is mapped in one piece.

    Elementwise. What is not mapped stays as it is; a virtual address then lies in no live block. Memory of
    ``malloc_physical`` has no address of its own: what is reached by its handle gets a negative length, to be refused.
    """
    place = place.as_int32()
    end, rest = place.end
    rows = (1,) * place.pointer.ndim + card.virtual.shape[:1]
    kind, start, size, physical = (card.virtual[:, column].reshape(rows) for column in Virtual)
    ahead = place.pointer[..., None] - start
    fits = (end + (rest > 0))[..., None] <= size - ahead
    is_it = (kind == VirtualKind.MAPPING) & (ahead >= 0) & fits & (place.whole >= 0)[..., None]
    moved = jnp.where(is_it, physical + ahead, 0).max(axis=-1)
    is_mapped = is_it.any(axis=-1)
    is_refused = ~is_mapped & _is_handle(card, place.pointer)
    whole = jnp.where(is_refused, NONE, place.whole)
    return place._replace(pointer=jnp.where(is_mapped, moved, place.pointer), whole=whole)


def segment_left(card: CardState, pointer: jax.Array) -> jax.Array:
    """Return, elementwise, how many granules of an expandable segment are mapped from an address on; 0: none."""
    is_it, ahead, size, _ = _segments(card, pointer)
    return jnp.where(is_it, size - ahead, 0).max(axis=-1)


def segment_bytes(card: CardState, pointer: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return, elementwise, (granule of ``card.memory``, how many from there on) of the real bytes of a segment.

    A segment has a window as long as the backing of the device memory; windows follow the pinned host memory.
    """
    is_it, ahead, _, bytes_at = _segments(card, pointer)
    window = jnp.maximum(card.device[Device.HBM_BACKING], 1)
    windows = card.device[Device.HBM_BACKING] + card.device[Device.HOST_BACKING]
    left = window - (bytes_at - windows) % window - ahead
    is_real = is_it & (bytes_at > 0) & (left > 0)
    return tuple(jnp.where(is_real, each, 0).max(axis=-1) for each in (bytes_at + ahead, left))  # type: ignore[return-value]


def _segments(card: CardState, pointer: jax.Array) -> tuple[jax.Array, ...]:
    """Return, for every pointer and row, whether a segment is mapped there, and how; int32 [..., W] each."""
    pointer = jnp.asarray(pointer, jnp.int32)
    rows = (1,) * pointer.ndim + card.virtual.shape[:1]
    kind, start, size, bytes_at = (card.virtual[:, column].reshape(rows) for column in Virtual)
    ahead = pointer[..., None] - start
    return (kind == VirtualKind.SEGMENT) & (ahead >= 0) & (ahead < size), ahead, size, bytes_at


def _is_handle(card: CardState, pointer: jax.Array) -> jax.Array:
    """Return for every pointer whether it lies in memory that was allocated to be mapped."""
    rows = (1,) * pointer.ndim + card.hbm.blocks.shape[1:]
    start, size, flags = (
        card.hbm.blocks[column].reshape(rows) for column in (HeapEntry.START, HeapEntry.SIZE, HeapEntry.FLAGS)
    )
    ahead = pointer[..., None] - start
    return ((ahead >= 0) & (ahead < size) & ((flags & HeapFlag.PHYSICAL) != 0)).any(axis=-1)
