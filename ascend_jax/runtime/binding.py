"""What the commands of a program refer to, found anew on the card and at the moment of each execution.

A program knows notifies and events by their handles, values by their addresses and callbacks by their host threads.
Which cell that is depends on the card, and for a value on what its slots are used for at the time.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import concrete
from ascend_jax.runtime.event_slots import HAS_CELL
from ascend_jax.runtime.handles import find, find_thread, stream_cell, thread_cell, value_cell
from ascend_jax.runtime.layout import Change, Condition, Event, Field, Kind, Operand
from ascend_jax.runtime.program import Program
from ascend_jax.runtime.ranges import Range
from ascend_jax.runtime.rows import Number, get_row, get_rows
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code
from ascend_jax.runtime.value_marks import give_slot, value_slots

VALUE_MARKS = (Kind.VALUE_WRITE, Kind.VALUE_WAIT)
NOTIFY_MARKS = (Kind.NOTIFY_RECORD, Kind.NOTIFY_WAIT)
EVENT_MARKS = (Kind.EVENT_RECORD, Kind.EVENT_WAIT, Kind.EVENT_RESET)


class Binding(NamedTuple):
    """The N commands of a program on a card."""

    columns: dict[Any, jax.Array]  # of Field, int32 [N]
    values: jax.Array  # int32 [V, 2], as ``card.values`` with the addresses of the program
    cells: jax.Array  # int32 [C, 2]
    code: jax.Array  # why the card cannot run it, or 0


def has_value_marks(program: Program) -> bool | jax.Array:
    """Return whether a program writes or waits for values, a traced boolean while the program is traced."""
    known = concrete(program.fields)  # as a whole: under ``jit`` a part of a constant would be traced
    kind = (program.fields if known is None else known)[..., Field.KIND]
    found = ((kind == VALUE_MARKS[0]) | (kind == VALUE_MARKS[1])).any()
    return found if known is None else bool(found)


def bind(card: CardState, program: Program, slots: jax.Array, sequence: jax.Array, has_values: bool) -> Binding:
    """Return what the commands refer to.

    Args:
      card: The card; its memory is read if there are values.
      program: N commands, padding included.
      slots: int32 [N], streams that they go to.
      sequence: int32 [N], numbers that they get; a wait for a callback comes right after it.
      has_values: Whether there may be value marks among them.
    """
    kind = program.fields[:, Field.KIND]
    object_cell, object_code = _objects(card, program.fields)
    is_callback = kind == Kind.CALLBACK
    is_alive, thread = jax.vmap(find_thread, (None, 0))(card, program.fields[:, Field.THREAD])
    is_held = kind == Kind.CALLBACK_WAIT
    cell = jnp.where(is_callback, thread_cell(card, thread), object_cell)
    columns = {
        Field.OBJECT: program.fields[:, Field.OBJECT],
        Field.CELL: jnp.where(is_held, stream_cell(card, slots), cell),
        Field.VALUE_LO: jnp.where(is_held, sequence, program.fields[:, Field.VALUE_LO]),
    }
    values, cells, value_code = card.values, card.cells, jnp.int32(Code.SUCCESS)
    if has_values and len(card.values):
        is_value = jnp.isin(kind, jnp.array(VALUE_MARKS))
        values, cells, slot, is_full = _values(card, program.operands[:, 0], is_value)
        columns[Field.OBJECT] = jnp.where(is_value, slot, columns[Field.OBJECT])
        columns[Field.CELL] = jnp.where(is_value, value_cell(card, slot), columns[Field.CELL])
        value_code = first_code((is_full, Code.OBJECT_TABLE_FULL))
    is_unserved = (is_callback & ~is_alive).any()
    code = first_code(
        (is_unserved, Code.RT_STREAM_NO_CB_REG), (object_code != 0, object_code), (value_code != 0, value_code)
    )
    return Binding(columns, values, cells, code)


def _objects(card: CardState, fields: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return int32 [N], cells of notifies and of events that are flags, and 107000 if one of those is not there."""
    kind, handle = fields[:, Field.KIND], fields[:, Field.OBJECT]
    is_used = (fields[:, Field.CONDITION] != Condition.NONE) | (fields[:, Field.CHANGE] != Change.NONE)
    is_notify = jnp.isin(kind, jnp.array(NOTIFY_MARKS))
    is_flag = jnp.isin(kind, jnp.array(EVENT_MARKS)) & is_used
    events, notifies = card.events[: card.max_events], card.events[card.max_events :]
    has_event, event = jax.vmap(find, (None, 0, None))(events, handle, Event)
    has_notify, notify = jax.vmap(find, (None, 0, None))(notifies, handle, Event)
    row = jnp.where(is_notify, card.max_events + notify, event)
    is_there = jnp.where(is_notify, has_notify, has_event)
    is_there &= jnp.isin(get_rows(card.events, row)[:, Event.KIND], jnp.array(HAS_CELL))
    is_it = is_notify | is_flag
    return jnp.where(is_it, row, fields[:, Field.CELL]), first_code(((is_it & ~is_there).any(), Code.RT_PARAM_INVALID))


def _values(
    card: CardState, places: jax.Array, is_value: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return (values, cells, slot of each address that is wanted, whether the slots are too few)."""
    slots, content = value_slots(card, jax.vmap(lambda place: Range(*place))(places))

    def body(row: Number, carry: tuple) -> tuple:
        slots, chosen, is_full = carry
        place = get_row(places, row)
        wanted = get_row(is_value, row)
        pointer, offset = place[Operand.POINTER], place[Operand.OFFSET]
        given, slot, found = give_slot(slots, pointer, offset, get_row(content, row), keeps=not card.has_values)
        slots = jax.tree.map(lambda new, old: jnp.where(wanted & found, new, old), given, slots)
        return slots, chosen.at[row].set(jnp.where(wanted, slot, 0)), is_full | (wanted & ~found)

    chosen = jnp.zeros(places.shape[0], jnp.int32)
    end = (is_value * (1 + jnp.arange(places.shape[0], dtype=jnp.int32))).max()
    slots, chosen, is_full = lax.fori_loop(0, end, body, (slots, chosen, jnp.bool_(False)))
    cells = lax.dynamic_update_slice(card.cells, slots.cells, (card.events.shape[0], 0))
    return slots.places, cells, chosen, is_full
