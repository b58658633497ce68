"""Taking away: commands that will never run, and objects whose slots are given back. Everything goes by masks."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime import layout
from ascend_jax.runtime.commands import is_owed, is_pending, row_of
from ascend_jax.runtime.handles import master_of, vacate
from ascend_jax.runtime.layout import Clock, Effect, Event, Field, Phase, Stream, Time
from ascend_jax.runtime.program import nothing
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


def erase_recorded(card: CardState, is_gone: jax.Array) -> CardState:
    """Return ``card`` without some recorded commands (bool [N + 1]): rows empty, their events as if never recorded."""
    rows = card.table.rows
    fields, times = card.table.fields, card.table.times

    def is_inside(sequence: jax.Array) -> jax.Array:
        row = row_of(fields, jnp.maximum(sequence, 0))
        is_it = get_rows(fields, row)[:, Field.SEQUENCE] == sequence
        return (sequence != layout.NONE) & get_rows(is_gone, row) & is_it

    is_recorded = is_inside(card.events[:, Event.RECORD])
    events = {
        Event.RECORD: jnp.where(is_recorded, layout.NONE, card.events[:, Event.RECORD]),
        Event.CAPTURED: jnp.where(is_recorded, 0, card.events[:, Event.CAPTURED]),
    }
    table = dataclasses.replace(
        card.table,
        fields=jnp.where(is_gone[:, None], nothing(1, rows), fields),
        times=jnp.where(is_gone[:, None], with_entries(times, {Time.PHASE: Phase.EMPTY}), times),
    )
    return dataclasses.replace(card, table=table, events=with_entries(card.events, events))


def remove_streams(card: CardState, is_gone: jax.Array) -> CardState:
    """Return ``card`` without some streams (bool [S + 1]); what they hold is dropped, what they record is forgotten."""
    is_gone |= get_rows(is_gone, master_of(card.streams))
    card = drop(card, is_gone)
    is_mine = get_rows(is_gone, card.table.fields[:, Field.STREAM])
    is_recorded = is_mine & (card.table.times[:, Time.PHASE] == Phase.CAPTURED)
    card = erase_recorded(give_up_callbacks(card, is_mine), is_recorded)
    first = card.events.shape[0] + card.values.shape[0]  # the streams' cells count callbacks
    counted = jnp.where(is_gone[:, None], 0, card.cells[first : first + card.streams.shape[0]])
    cells = lax.dynamic_update_slice(card.cells, counted, (first, 0))
    streams = vacate(card.streams, is_gone, fresh_stream(card), Stream)
    return dataclasses.replace(card, streams=streams, cells=cells)
