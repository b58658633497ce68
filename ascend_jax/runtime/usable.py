"""Whether bytes in memory can be used: allocated or mapped, and real where values are kept."""

import jax
import jax.numpy as jnp

from ascend_jax.runtime import bytes as hbm
from ascend_jax.runtime import layout
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.heap import heap_of, holds
from ascend_jax.runtime.ranges import Range
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code
from ascend_jax.runtime.translation import segment_left


def is_live(card: CardState, place: Range) -> jax.Array:
    """Return whether a range lies inside one live block of device or pinned host memory, or is mapped in a segment."""
    (end, rest), left = place.end, segment_left(card, place.pointer)
    is_mapped = (left > 0) & (end + (rest > 0) <= left) & (place.offset >= 0) & (place.whole >= 0)
    return holds(heap_of(card.host, card.hbm, place.pointer), place) | is_mapped


def check_range(card: CardState, place: Range) -> jax.Array:
    """Return 0, or why a range cannot be used: null 100000, not allocated 107000, no bytes behind it 900002."""
    no_bytes = ~hbm.is_backed(card, place) if card.has_values else jnp.bool_(False)
    return first_code(
        (place.pointer == layout.NULL, Code.INVALID_PARAM),
        (~is_live(card, place), Code.RT_PARAM_INVALID),
        (no_bytes, Code.NO_BYTES_BEHIND),
    )
