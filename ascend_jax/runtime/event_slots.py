"""Which events and notifies there are, and when a slot may be taken again.

A FLAG event and a notify are a cell that commands on the device look at and change. Their slot is taken again only when
no unfinished command uses that cell, so that what is queued for a destroyed one never meets its successor.
"""

import dataclasses
import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ascend_jax.runtime import layout
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import is_pending, row_of
from ascend_jax.runtime.handles import free_slot, handle_of, has_context, vacate
from ascend_jax.runtime.layout import Change, Condition, Device, Event, EventKind, Field, Phase, Time
from ascend_jax.runtime.rows import Number, get_row, put_if, put_rows, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code


class EventFlag(enum.IntFlag):
    """What an event is for (``ACL_EVENT_*``). The first three may be combined, the others stand alone."""

    SYNC = 0x01
    CAPTURE_STREAM_PROGRESS = 0x02
    TIME_LINE = 0x08
    DEVICE_USE_ONLY = 0x10
    EXTERNAL = 0x20
    IPC = 0x40


COMBINABLE = EventFlag.SYNC | EventFlag.CAPTURE_STREAM_PROGRESS | EventFlag.TIME_LINE
AWAITED = EventFlag.SYNC | EventFlag.EXTERNAL | EventFlag.IPC  # without any of them nothing can wait for the event
ALONE = {
    EventKind.PLAIN: (),
    EventKind.FLAG: (EventFlag.DEVICE_USE_ONLY, EventFlag.EXTERNAL),
    EventKind.EX: (EventFlag.IPC,),
    EventKind.NOTIFY: (0, 1),  # ACL_NOTIFY_DEFAULT, ACL_NOTIFY_DEVICE_USE_ONLY
    EventKind.COUNTING: (0,),  # reserved
}
NOTIFIES = (EventKind.NOTIFY, EventKind.COUNTING)  # they share slots
HAS_CELL = (EventKind.FLAG, *NOTIFIES)


class Record(NamedTuple):
    """The latest record of an event."""

    sequence: jax.Array  # NONE: never recorded
    row: jax.Array  # of the command table, if it is kept there
    is_kept: jax.Array  # False: never recorded, or finished so long ago that the table has forgotten it
    stream: jax.Array  # slot, if it is kept
    phase: jax.Array

    @property
    def is_unfinished(self) -> jax.Array:
        """Whether it is queued and has not happened."""
        return self.is_kept & (self.phase < Phase.DONE)


def latest_record(card: CardState, entry: jax.Array) -> Record:
    """Return the latest record of the event ``entry``."""
    fields, sequence = card.table.fields, entry[Event.RECORD]
    row = row_of(fields, jnp.maximum(sequence, 0))
    command = get_row(fields, row)
    is_kept = (sequence != layout.NONE) & (command[Field.SEQUENCE] == sequence)
    return Record(sequence, row, is_kept, command[Field.STREAM], get_row(card.table.times, row)[Time.PHASE])


def busy_cells(card: CardState) -> jax.Array:
    """Return int32 [C], 1 where an unfinished command looks at the cell or will change it."""
    fields, cells = card.table.fields, card.cells.shape[0]
    is_used = (fields[:, Field.CONDITION] != Condition.NONE) | (fields[:, Field.CHANGE] != Change.NONE)
    is_used &= is_pending(card.table.times[:, Time.PHASE])
    marked = put_rows(jnp.zeros(cells + 1, jnp.int32), jnp.where(is_used, fields[:, Field.CELL], cells), jnp.int32(1))
    return marked[:cells]


def slots_left(card: CardState, kind: EventKind) -> jax.Array:
    """Return how many more events (or notifies) the slots and the product allow. int32."""
    alive = _slots(card.events[:, Event.ALIVE], card, kind)
    limit = card.chip["max_notifies" if kind in NOTIFIES else "max_events"]
    most = jnp.minimum(limit.astype(jnp.int32), alive.shape[0])
    return jnp.maximum(most - alive.sum(dtype=jnp.int32), 0)


def _slots(column: jax.Array, card: CardState, kind: EventKind) -> jax.Array:
    return column[card.max_events : card.events.shape[0]] if kind in NOTIFIES else column[: card.max_events]


def is_missing(card: CardState, kind: EventKind) -> jax.Array:
    """Return whether the product has no events or notifies of a kind: only the 950 has counting notifies."""
    return card.chip["has_counting_notifies"] == 0 if kind == EventKind.COUNTING else jnp.bool_(False)


def take(card: CardState, flag: Number, kind: EventKind) -> tuple[CardState, jax.Array, jax.Array]:
    """Return the card with one more event or notify, its handle or NONE, and the code."""
    flag = jnp.asarray(flag, jnp.int32)
    is_known = (flag > 0) & ((flag & ~int(COMBINABLE)) == 0) & (kind not in NOTIFIES)
    for lone in ALONE[kind]:
        is_known |= flag == lone
    taken = card.events[:, Event.ALIVE]
    if kind in HAS_CELL:
        taken |= busy_cells(card)[: taken.shape[0]]
    is_free, slot = free_slot(_slots(taken, card, kind))
    code = first_code(
        (is_missing(card, kind), Code.FEATURE_NOT_SUPPORT),
        (~has_context(card), Code.RT_CONTEXT_NULL),
        (~is_known, Code.RT_PARAM_INVALID),
        (
            ~is_free | (slots_left(card, kind) == 0),
            Code.NO_NOTIFY_RESOURCE if kind in NOTIFIES else Code.NO_EVENT_RESOURCE,
        ),
    )
    ok = code == Code.SUCCESS
    row = slot + card.max_events if kind in NOTIFIES else slot
    columns: dict[Event, Number] = {
        Event.ALIVE: 1,
        Event.CONTEXT: card.device[Device.CONTEXT],
        Event.KIND: kind,
        Event.FLAGS: flag,
        Event.RECORD: layout.NONE,
        Event.CAPTURED: 0,
    }
    entry = with_entries(get_row(card.events, row), columns)
    events = put_if(ok, card.events, row, entry)
    cells = put_if(ok, card.cells, row, jnp.zeros(2, jnp.int32)) if kind in HAS_CELL else card.cells
    handle = jnp.where(ok, handle_of(slot, entry[Event.GENERATION]), layout.NONE)
    return dataclasses.replace(card, events=events, cells=cells), handle, code


def put_back(card: CardState, row: jax.Array, code: jax.Array) -> CardState:
    """Return the card without the event or notify in ``row``, if ``code`` is 0."""
    is_gone = (jnp.arange(card.events.shape[0]) == row) & (code == Code.SUCCESS)
    return dataclasses.replace(card, events=vacate(card.events, is_gone, layout.UNUSED_EVENT, Event))
