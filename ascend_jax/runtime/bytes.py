"""The value plane's memory: real bytes, moved in chunks, one flat address space for HBM and pinned host memory."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime import layout
from ascend_jax.runtime.layout import GRANULE_SHIFT, Device, Virtual, VirtualKind
from ascend_jax.runtime.loop import settle_loop
from ascend_jax.runtime.ranges import Range, is_host
from ascend_jax.runtime.state import CHUNK_BYTES, CardState
from ascend_jax.runtime.translation import segment_bytes


def is_backed(card: CardState, place: Range) -> jax.Array:
    """Return whether real bytes lie behind a range."""
    pointer = place.pointer
    end, rest = place.end
    on_host = is_host(pointer)
    granule = jnp.where(on_host, pointer - layout.HOST_BASE, pointer - layout.HBM_BASE)
    size = jnp.where(on_host, card.device[Device.HOST_BACKING], card.device[Device.HBM_BACKING])
    is_backed = (granule >= 0) & (granule <= size) & (end + (rest > 0) <= size - granule)
    left = segment_bytes(card, pointer)[1]
    return is_backed | ((left > 0) & (end + (rest > 0) <= left))


def first_byte(card: CardState, pointer: jax.Array, offset: jax.Array) -> jax.Array:
    """Return the index in ``card.memory`` of a backed address (elementwise; garbage for others)."""
    device = (pointer - layout.HBM_BASE) << GRANULE_SHIFT
    host = (pointer - layout.HOST_BASE + card.device[Device.HBM_BACKING]) << GRANULE_SHIFT
    plain = jnp.where(is_host(pointer), host, device)

    def of_segments(pointer: jax.Array) -> jax.Array:
        place, left = segment_bytes(card, pointer)
        return jnp.where(left > 0, place << GRANULE_SHIFT, plain)

    has_segments = (card.virtual[:, Virtual.KIND] == VirtualKind.SEGMENT).any()
    return lax.cond(has_segments, of_segments, lambda pointer: plain, pointer) + offset


def move(
    target: jax.Array, to: jax.Array, nbytes: jax.Array, read: Callable[..., jax.Array], sources: tuple
) -> jax.Array:
    """Return ``target`` with ``nbytes`` bytes from ``read`` written at ``to``.

    Touches O(nbytes), not O(len(target)); a count of 0 costs nothing. Byte arrays need a chunk of slack at the end.

    Args:
      target: uint8, where to write.
      to: int32, index of the first byte written.
      nbytes: int32.
      read: ``(sources, done) -> uint8 [CHUNK_BYTES]``, the bytes that follow the first ``done``; closes over nothing
        traced.
      sources: What ``read`` reads from.
    """

    def step(tables: tuple, state: tuple) -> tuple:
        to, nbytes, sources = tables
        done, target = state
        old = lax.dynamic_slice(target, (to + done,), (CHUNK_BYTES,), allow_negative_indices=False)
        new = jnp.where(jnp.arange(CHUNK_BYTES) < nbytes - done, read(sources, done), old)
        return done + CHUNK_BYTES, lax.dynamic_update_slice(target, new, (to + done,), allow_negative_indices=False)

    def has_more(tables: tuple, state: tuple) -> jax.Array:
        return state[0] < tables[1]

    return settle_loop(has_more, step, (to, nbytes, sources), (jnp.int32(0), target))[1]


ROW_CHUNK_BYTES = 1 << 12  # rows of a 2-D copy are shorter than what a plain copy moves


class Rows(NamedTuple):
    """Rows of equal width in memory: the shape of one side of a 2-D copy. int32 scalars."""

    first: jax.Array  # index of the first byte
    pitch: jax.Array  # bytes from one row to the next
    width: jax.Array  # bytes
    rows: jax.Array  # how many; 0: nothing is moved


def move_rows(target: jax.Array, to: Rows, source: jax.Array, start: Rows) -> jax.Array:
    """Return ``target`` with the rows ``to`` read from the rows ``start`` of ``source``; what lies between stays."""

    def step(tables: tuple, state: tuple) -> tuple:
        (to, start, source), (row, done, target) = tables, state
        there, here = (each.first + row * each.pitch + done for each in (to, start))
        old = lax.dynamic_slice(target, (there,), (ROW_CHUNK_BYTES,), allow_negative_indices=False)
        new = lax.dynamic_slice(source, (here,), (ROW_CHUNK_BYTES,), allow_negative_indices=False)
        new = jnp.where(jnp.arange(ROW_CHUNK_BYTES) < to.width - done, new, old)
        target = lax.dynamic_update_slice(target, new, (there,), allow_negative_indices=False)
        is_over = done + ROW_CHUNK_BYTES >= to.width
        return row + is_over, jnp.where(is_over, 0, done + ROW_CHUNK_BYTES), target

    def has_more(tables: tuple, state: tuple) -> jax.Array:
        return state[0] < tables[0].rows

    return settle_loop(has_more, step, (to, start, source), (jnp.int32(0), jnp.int32(0), target))[2]


def read_chunk(sources: tuple, done: jax.Array) -> jax.Array:
    """Read the next chunk of ``sources = (bytes, index of the first one)``."""
    array, start = sources
    return lax.dynamic_slice(array, (start + done,), (CHUNK_BYTES,), allow_negative_indices=False)
