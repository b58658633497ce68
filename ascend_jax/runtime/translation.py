"""Virtual addresses: which physical bytes lie behind them. Commands hold physical addresses only."""

import jax
import jax.numpy as jnp

from ascend_jax.runtime.layout import NONE, HeapEntry, HeapFlag, Virtual, VirtualKind
from ascend_jax.runtime.ranges import Range
from ascend_jax.runtime.state import CardState


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


def _is_handle(card: CardState, pointer: jax.Array) -> jax.Array:
    """Return for every pointer whether it lies in memory that was allocated to be mapped."""
    rows = (1,) * pointer.ndim + card.hbm.blocks.shape[1:]
    start, size, flags = (
        card.hbm.blocks[column].reshape(rows) for column in (HeapEntry.START, HeapEntry.SIZE, HeapEntry.FLAGS)
    )
    ahead = pointer[..., None] - start
    return ((ahead >= 0) & (ahead < size) & ((flags & HeapFlag.PHYSICAL) != 0)).any(axis=-1)
