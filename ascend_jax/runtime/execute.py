"""Execution: a ``Program`` is put in a stream as a whole, as if the host had enqueued its commands in one instant."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import layout
from ascend_jax.runtime.capture_rules import illegal_sync
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import answer, is_pending, planned_fault, refusal, row_of
from ascend_jax.runtime.drops import fresh_stream
from ascend_jax.runtime.edge import Site, concrete, stage, verb
from ascend_jax.runtime.handles import GENERATIONS, find_stream
from ascend_jax.runtime.host import host_now, spend
from ascend_jax.runtime.launch import load_kernel
from ascend_jax.runtime.layout import (
    NONE,
    TASKS,
    Clock,
    Device,
    Effect,
    Fault,
    Field,
    Kind,
    Phase,
    Stream,
    Time,
)
from ascend_jax.runtime.program import Program
from ascend_jax.runtime.rows import Number, get_row, get_rows, put_rows, with_entries
from ascend_jax.runtime.state import CardState, CommandTable
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.streams import streams_free, taken_slots
from ascend_jax.runtime.synchronize import Goal, settle

HIDDEN = GENERATIONS  # generation of a stream that no handle names: it carries side streams of programs


@stage
def _append(
    card: CardState, program: Program, kernel_of: jax.Array, stream: Number, site: Number
) -> CardState:
    """Put the program's commands in the table and link them into the streams: all of them or none."""
    card = spend(card, card.chip["host_launch_ns"])
    code, slot = find_stream(card, stream)
    slots, is_new, slots_code = _slots(card, program, slot)
    has_room = ~(_is_wanted(card, program) & is_pending(card.table.times[:-1, Time.PHASE])).any()
    code = first_failing(
        code,
        illegal_sync(card, slot),
        refusal(card, slot),
        slots_code,
        first_code((~has_room | (_count(program) > card.table.rows), Code.TABLE_FULL)),
    )
    ok = code == Code.SUCCESS
    rows = _rows(card, program)
    fields = _on_card(card, program, slots, kernel_of, rows)
    card = _linked(card, program, slots, is_new, rows, ok)
    card = dataclasses.replace(card, table=_written(card, program, fields, ok))
    words = {Clock.ENQUEUED: card.clock[Clock.ENQUEUED] + jnp.where(ok, _count(program), 0)}
    return answer(dataclasses.replace(card, clock=with_entries(card.clock, words)), code, site, stream)[0]


def _is_command(program: Program) -> jax.Array:
    return program.fields[:, Field.KIND] != Kind.NOTHING


def _count(program: Program) -> jax.Array:
    return _is_command(program).sum(dtype=jnp.int32)


def _rows(card: CardState, program: Program) -> jax.Array:
    """Return the table row of each command of the program, int32 [N]."""
    return row_of(card.table.fields, card.clock[Clock.ENQUEUED] + jnp.arange(program.rows, dtype=jnp.int32))


def _number_in(card: CardState, program: Program) -> jax.Array:
    """Return for each row of the table which command of the program it would take, int32 [rows of the table]."""
    table = jnp.arange(card.table.rows, dtype=jnp.int32)
    return row_of(card.table.fields, table - card.clock[Clock.ENQUEUED])


def _is_wanted(card: CardState, program: Program) -> jax.Array:
    """Return which rows of the table the program needs, bool [rows of the table]."""
    return _number_in(card, program) < _count(program)


def _in_stream(program: Program) -> jax.Array:
    """Return which commands are in which stream of the program, bool [streams, N]."""
    streams = jnp.arange(program.streams, dtype=jnp.int32)
    return (program.fields[:, Field.STREAM] == streams[:, None]) & _is_command(program)


def _slots(card: CardState, program: Program, slot: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the stream slot of each stream of the program, which of them are to be opened, and the code.

    A side stream takes, in this order: a hidden one in which only programs of the same stream are under way, as
    they come one after the other anyway; another hidden one that is empty; a free slot. The host's own slot stands for
    streams without commands.
    """
    is_hidden = (card.streams[:-1, Stream.GENERATION] & HIDDEN) != 0
    is_empty = card.streams[:-1, Stream.PENDING] == 0
    is_ours = is_hidden & (card.streams[:-1, Stream.FLAGS] == slot)
    is_free = (taken_slots(card) == 0) & is_empty
    rank = jnp.where(is_ours, 0, jnp.where(is_hidden & is_empty, 1, jnp.where(is_free, 2, 3)))
    order = jnp.argsort(rank, stable=True).astype(jnp.int32)
    is_used = _in_stream(program).any(1) & (jnp.arange(program.streams) > 0)
    turn = jnp.clip(jnp.cumsum(is_used) - 1, 0, order.shape[0] - 1)
    slots = jnp.where(is_used, get_rows(order, turn), order.shape[0])
    best = get_rows(rank, get_rows(order, turn))
    is_new = is_used & (best == 2)
    too_many = is_used.sum() > (rank < 3).sum()
    code = first_code((too_many | (is_new.sum() > streams_free(card)), Code.RESOURCE_ALLOC_FAIL))
    return slots.at[0].set(slot), is_new, code
