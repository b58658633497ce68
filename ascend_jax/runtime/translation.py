"""Virtual addresses: which physical bytes lie behind them. Commands hold physical addresses only."""

import jax.numpy as jnp

from ascend_jax.runtime.layout import Virtual, VirtualKind
from ascend_jax.runtime.ranges import Range
from ascend_jax.runtime.state import CardState


def translate(card: CardState, place: Range) -> Range:
    """Return a range in normal form, with the physical address if all of it is mapped in one piece.

    Elementwise. What is not mapped stays as it is; a virtual address then lies in no live block.
    """
    place = place.as_int32()
    end, rest = place.end
    rows = (1,) * place.pointer.ndim + card.virtual.shape[:1]
    kind, start, size, physical = (card.virtual[:, column].reshape(rows) for column in Virtual)
    ahead = place.pointer[..., None] - start
    fits = (end + (rest > 0))[..., None] <= size - ahead
    is_it = (kind == VirtualKind.MAPPING) & (ahead >= 0) & fits & (place.whole >= 0)[..., None]
    moved = jnp.where(is_it, physical + ahead, 0).max(axis=-1)
    return place._replace(pointer=jnp.where(is_it.any(axis=-1), moved, place.pointer))
