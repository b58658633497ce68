"""Handles: small integers that tell a live object from one that used to be in its slot.

A handle is ``slot | generation << SHIFT``: a destroyed object's handle stays wrong after its slot is taken again. The
first object of a slot has its slot number as handle.
"""

import enum
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import require_whole
from ascend_jax.runtime.layout import NONE, Context, Device, Event, EventKind, Stream, Thread
from ascend_jax.runtime.rows import Number, get_row, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code

SHIFT = 18
SLOTS = 1 << SHIFT
GENERATIONS = 1 << 12


def slot_of(handle: Number) -> jax.Array:
    """Return the slot a handle names."""
    return jnp.asarray(handle, jnp.int32) & (SLOTS - 1)


def handle_of(slot: Number, generation: Number) -> jax.Array:
    """Return the handle of what lives in ``slot`` now."""
    return jnp.asarray(slot, jnp.int32) | (jnp.asarray(generation, jnp.int32) << SHIFT)


def find(table: jax.Array, handle: Number, columns: type[enum.IntEnum]) -> tuple[jax.Array, jax.Array]:
    """Return (whether ``handle`` is alive, its slot, in range even if not) in a table with ALIVE and GENERATION.

    Raises:
      TypeError: The handle is no whole number.
    """
    require_whole(handle=handle)
    handle = jnp.asarray(handle, jnp.int32)
    slot = jnp.minimum(slot_of(handle), table.shape[0] - 1)
    entry = get_row(table, slot)
    is_it = handle == handle_of(slot, entry[columns["GENERATION"]])
    return is_it & (entry[columns["ALIVE"]] == 1), slot


def master_of(streams: jax.Array) -> jax.Array:
    """Return for each stream slot the one it works for, int32 [S + 1]: itself, or where its program was executed."""
    master = streams[:, Stream.MASTER]
    return jnp.where(master == NONE, jnp.arange(streams.shape[0], dtype=jnp.int32), master)


def free_slot(alive: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (whether a slot is free, the first free one) of int32 [slots] that is 0 where free."""
    slot = jnp.argmin(alive)
    return get_row(alive, slot) == 0, slot.astype(jnp.int32)


def vacate(
    table: jax.Array, is_gone: jax.Array, unused: Mapping[Any, Number], columns: type[enum.IntEnum]
) -> jax.Array:
    """Return ``table`` with some slots (bool [slots]) unused, not alive, one generation on: old handles are wrong.

    Args:
      table: int32 [slots, columns].
      is_gone: Which slots.
      unused: What the columns of an unused slot hold unless 0.
      columns: The table's columns.
    """
    generation = (table[:, columns["GENERATION"]] + 1) & (GENERATIONS - 1)
    empty = with_entries(jnp.zeros_like(table), {**unused, columns["GENERATION"]: generation})
    return jnp.where(is_gone[:, None], empty, table)


def has_context(card: CardState) -> jax.Array:
    """Return whether the current thread has a current context that is alive."""
    slot = card.device[Device.CONTEXT]
    return (slot >= 0) & (get_row(card.contexts, jnp.maximum(slot, 0))[Context.ALIVE] == 1)


def find_stream(card: CardState, handle: Number) -> tuple[jax.Array, jax.Array]:
    """Return (code, slot) of a stream handle; 0 is the default stream of the current context (CANN, aclrtStream).

    Codes: 107002 without a current context, 107003 for a stream that is unknown, destroyed or another context's.
    """
    require_whole(stream=handle)
    context = card.device[Device.CONTEXT]
    default = get_row(card.contexts, jnp.maximum(context, 0))[Context.STREAM]
    handle = jnp.asarray(handle, jnp.int32)
    is_alive, slot = find(card.streams[:-1], handle, Stream)
    is_alive &= get_row(card.streams, slot)[Stream.MASTER] == NONE  # sides of programs have no handle
    slot = jnp.where(handle == 0, jnp.maximum(default, 0), slot)
    is_mine = (handle == 0) | (is_alive & (get_row(card.streams, slot)[Stream.CONTEXT] == context))
    code = first_code((~has_context(card), Code.RT_CONTEXT_NULL), (~is_mine, Code.RT_STREAM_CONTEXT))
    return code, slot


def find_event(card: CardState, handle: Number) -> tuple[jax.Array, jax.Array]:
    """Return (code, row) of an event handle; 107002 without a current context, 107000 for an unknown event."""
    is_alive, slot = find(card.events[: card.max_events], handle, Event)
    return first_code((~has_context(card), Code.RT_CONTEXT_NULL), (~is_alive, Code.RT_PARAM_INVALID)), slot


def find_notify(card: CardState, handle: Number, kind: EventKind = EventKind.NOTIFY) -> tuple[jax.Array, jax.Array]:
    """Return (code, row of ``card.events``) of the handle of a notify of a kind; codes as :func:`find_event`."""
    is_alive, slot = find(card.events[card.max_events :], handle, Event)
    row = slot + card.max_events
    is_alive &= get_row(card.events, row)[Event.KIND] == kind
    return first_code((~has_context(card), Code.RT_CONTEXT_NULL), (~is_alive, Code.RT_PARAM_INVALID)), row


def find_thread(card: CardState, thread: Number) -> tuple[jax.Array, jax.Array]:
    """Return (whether there is such a thread, its row, in range even if not); TypeError for no whole number."""
    require_whole(thread=thread)
    thread = jnp.asarray(thread, jnp.int32)
    row = jnp.clip(thread, 0, card.threads.shape[0] - 1)
    return (row == thread) & (get_row(card.threads, row)[Thread.ALIVE] == 1), row


def value_cell(card: CardState, slot: Number) -> jax.Array:
    """Return the cell of a value slot."""
    return card.events.shape[0] + jnp.asarray(slot, jnp.int32)


def stream_cell(card: CardState, slot: Number) -> jax.Array:
    """Return the cell that counts the callbacks of a stream that have run."""
    return card.events.shape[0] + card.values.shape[0] + jnp.asarray(slot, jnp.int32)


def thread_cell(card: CardState, thread: Number) -> jax.Array:
    """Return the cell that counts the callbacks handed to a host thread."""
    return stream_cell(card, card.streams.shape[0]) + jnp.asarray(thread, jnp.int32)
