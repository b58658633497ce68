"""Streams: queues of commands that run in order; handles are small integers, 0 is the default stream."""

import dataclasses

import jax
import jax.numpy as jnp

from ascend_jax.runtime import layout, status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import host_stream, is_stream
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import Stream
from ascend_jax.runtime.rows import Number, get_row, put_if, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.synchronize import settle


@stage
def _create(card: CardState, site: Number) -> tuple:
    slots = host_stream(card)
    alive = card.streams[:slots, Stream.ALIVE]
    slot = jnp.argmin(alive)
    within_limit = alive.sum() < card.chip["max_streams"]
    entry = get_row(card.streams, slot)
    ok = (entry[Stream.ALIVE] == 0) & within_limit
    streams = put_if(ok, card.streams, slot, with_entries(entry, {Stream.ALIVE: 1}))
    card = spend(dataclasses.replace(card, streams=streams), card.chip["host_stream_create_ns"])
    code = jnp.where(ok, Code.SUCCESS, Code.RESOURCE_ALLOC_FAIL)
    return status.note(card, code, site), jnp.where(ok, slot, layout.NONE).astype(jnp.int32)


@stage
def _destroy(card: CardState, stream: Number, site: Number) -> CardState:
    good = is_stream(card, stream) & (stream != 0)
    slot = jnp.clip(stream, 0, host_stream(card))
    dead = with_entries(get_row(card.streams, slot), {Stream.ALIVE: 0})
    card = dataclasses.replace(card, streams=put_if(good, card.streams, slot, dead))
    return status.note(card, jnp.where(good, Code.SUCCESS, Code.RT_STREAM_CONTEXT), site, stream)


@stage
def _goal_of(card: CardState, stream: Number) -> tuple:
    """The stream to wait for before it is destroyed: none if the handle will be refused."""
    stream = jnp.asarray(stream, jnp.int32)
    return card, jnp.where(is_stream(card, stream) & (stream != 0), stream, layout.NONE)


@verb
def create_stream(card: CardState, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Create a stream (``aclrtCreateStream``); return the card and its handle.

    Status 207005 and handle -1 when the slots or the product's limit are used up. The default stream counts.
    """
    return _create(card, site)


@verb
def destroy_stream(card: CardState, stream: Number, *, site: Site = None) -> CardState:
    """Wait for the stream's commands, then give its slot back (``aclrtDestroyStream``).

    Status 107003 for an unknown stream or the default stream, which belongs to the card.
    """
    card, goal = _goal_of(card, stream)
    card = settle(card, goal, layout.NONE, True, site)
    return _destroy(card, stream, site)
