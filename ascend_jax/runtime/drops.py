"""Taking away: commands that will never run, and objects whose slots are given back. Everything goes by masks."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime import layout
from ascend_jax.runtime.commands import is_owed, is_pending
from ascend_jax.runtime.handles import master_of, vacate
from ascend_jax.runtime.layout import Clock, Effect, Field, Phase, Stream, Time
from ascend_jax.runtime.rows import Number, get_rows, with_entries
from ascend_jax.runtime.state import CardState


def drop(card: CardState, is_dropped: jax.Array) -> CardState:
    """Return ``card`` with everything unfinished in some streams dropped and those streams empty.

    A dropped command never ends, gives its cores back at once and has no further effect on data; commands that were
    recorded for a capture stay.

    Args:
      card: The card, simulated up to the moment of the drop.
      is_dropped: bool [S + 1], which streams.
    """
    is_dropped = is_dropped | get_rows(is_dropped, master_of(card.streams))  # sides of a program go with it
    phase = card.table.times[:, Time.PHASE]
    is_unfinished = is_pending(phase) & (phase != Phase.CAPTURED)
    card = _drop_rows(card, is_unfinished & get_rows(is_dropped, card.table.fields[:, Field.STREAM]))
    idle = dict.fromkeys(range(Stream.HEAD, len(Stream)), 0) | layout.FRESH_HEAD
    idle |= {Stream.HEAD: card.table.rows, Stream.LAST: card.table.rows, Stream.PENDING: 0}
    streams = jnp.where(is_dropped[:, None], with_entries(card.streams, idle), card.streams)
    return dataclasses.replace(card, streams=streams)


def _drop_rows(card: CardState, is_gone: jax.Array) -> CardState:
    """Mark rows as dropped now: END is the moment of the drop, and what had not begun has no START."""
    times, effects, clock = card.table.times, card.table.effects, card.clock
    never_began = is_gone & (times[:, Time.PHASE] != Phase.RUNNING)
    columns: dict[Time, tuple[jax.Array, Number]] = {
        Time.PHASE: (is_gone, Phase.DROPPED),
        Time.START_HI: (never_began, layout.NONE),
        Time.END_HI: (is_gone, clock[Clock.DEVICE_HI]),
        Time.END_LO: (is_gone, clock[Clock.DEVICE_LO]),
    }
    entries = {column: jnp.where(where, value, times[:, column]) for column, (where, value) in columns.items()}
    effects = jnp.where(never_began, Effect.PUBLISHED, effects)  # what had begun has computed
    table = dataclasses.replace(card.table, times=with_entries(times, entries), effects=effects)
    return dataclasses.replace(card, table=table)


def fresh_stream(card: CardState) -> dict[Stream, Number]:
    """Return the columns of a stream slot that nobody has used; the others are 0."""
    rows = {Stream.HEAD: card.table.rows, Stream.LAST: card.table.rows}
    return {**layout.FRESH_HEAD, **layout.NAMELESS, **rows}


def give_up_callbacks(card: CardState, is_gone: jax.Array) -> CardState:
    """Return ``card`` with callbacks (bool [N + 1], rows) that nobody will run any more."""
    effects = jnp.where(is_gone & is_owed(card.table.fields, card.table.effects), Effect.PUBLISHED, card.table.effects)
    return dataclasses.replace(card, table=dataclasses.replace(card.table, effects=effects))


def remove_streams(card: CardState, is_gone: jax.Array) -> CardState:
    """Return ``card`` without some streams (bool [S + 1]); what they hold is dropped, captured commands included."""
    is_gone |= get_rows(is_gone, master_of(card.streams))
    card = drop(card, is_gone)
    is_captured = card.table.times[:, Time.PHASE] == Phase.CAPTURED
    is_mine = get_rows(is_gone, card.table.fields[:, Field.STREAM])
    card = give_up_callbacks(_drop_rows(card, is_captured & is_mine), is_mine)
    first = card.events.shape[0] + card.values.shape[0]  # the streams' cells count callbacks
    counted = jnp.where(is_gone[:, None], 0, card.cells[first : first + card.streams.shape[0]])
    cells = lax.dynamic_update_slice(card.cells, counted, (first, 0))
    streams = vacate(card.streams, is_gone, fresh_stream(card), Stream)
    return dataclasses.replace(card, streams=streams, cells=cells)
