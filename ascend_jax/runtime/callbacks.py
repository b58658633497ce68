"""Callbacks: functions of the host program that a stream calls in the thread that serves it.

What a callback does is up to the program; the card knows it by a number that the program chooses. A stream that comes
to a callback hands it to its thread, and if the callback blocks, it waits until the thread has run it. The thread runs
one callback per ``process_report``. A program that waits for the stream before it has made that call has a deadlock
(900003), as on a card when the thread that should run the callback is the one that waits.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.runtime import clock, layout
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, enqueue, is_owed, is_taken, refusal, row_of, taken_rows
from ascend_jax.runtime.drops import give_up_callbacks
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.handles import find_stream, find_thread, stream_cell, thread_cell
from ascend_jax.runtime.host import LONGEST_NS, duration_limbs, host_now, set_host, spend
from ascend_jax.runtime.host_functions import is_no_function
from ascend_jax.runtime.layout import (
    Capture,
    Change,
    Clock,
    Condition,
    Device,
    Effect,
    Field,
    Kind,
    Phase,
    StatusWord,
    Stream,
    Time,
)
from ascend_jax.runtime.rows import Number, get_row, put_if, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import Goal, look, make_room, make_room_for_two, settle, timeout_of

LAST = 2**31 - 1


@stage
def _subscribe(card: CardState, thread: Number, stream: Number, site: Number) -> CardState:
    thread = jnp.asarray(thread, jnp.int32)
    code, slot = find_stream(card, stream)
    entry = get_row(card.streams, slot)
    is_there, _ = find_thread(card, thread)
    is_served = entry[Stream.REPORTER] != layout.NONE
    code = first_failing(code, first_code((~is_there, Code.RT_PARAM_INVALID), (is_served, Code.RT_STREAM_SUBSCRIBE)))
    streams = put_if(code == Code.SUCCESS, card.streams, slot, with_entries(entry, {Stream.REPORTER: thread}))
    return answer(dataclasses.replace(card, streams=streams), code, site, stream)[0]


@stage
def _unsubscribe(card: CardState, thread: Number, stream: Number, site: Number) -> CardState:
    code, slot = find_stream(card, stream)
    entry = get_row(card.streams, slot)
    reporter = entry[Stream.REPORTER]
    rest = first_code((reporter < 0, Code.RT_STREAM_SUBSCRIBE), (reporter != thread, Code.RT_THREAD_SUBSCRIBE))
    code = first_failing(code, rest)
    alone = with_entries(entry, {Stream.REPORTER: layout.NONE})
    ok = code == Code.SUCCESS
    fields = card.table.fields
    is_lost = ok & (fields[:, Field.STREAM] == slot) & (fields[:, Field.CELL] == thread_cell(card, thread))
    card = give_up_callbacks(card, is_lost)
    return answer(dataclasses.replace(card, streams=put_if(ok, card.streams, slot, alone)), code, site, stream)[0]


@stage(static=("is_blocking",))
def _launch(card: CardState, stream: Number, callback: Number, site: Number, *, is_blocking: bool) -> CardState:
    code, slot = find_stream(card, stream)
    reporter, sequence = get_row(card.streams, slot)[Stream.REPORTER], card.clock[Clock.ENQUEUED]
    rest = first_code((is_no_function(callback), Code.RT_PARAM_INVALID), (reporter < 0, Code.RT_STREAM_NO_CB_REG))
    code = first_failing(code, rest)
    if is_blocking:  # both commands or none
        is_short = is_taken(card, row_of(card.table.fields, sequence + 1))
        code = first_failing(code, refusal(card, slot), first_code((is_short, Code.TABLE_FULL)))
    card, code = _hand_over(spend(card, card.chip["host_event_ns"]), slot, callback, code, site)
    if is_blocking:
        card, code = _hold(card, slot, sequence, code, site)
    return answer(card, code, site, stream)[0]


def _hand_over(card: CardState, slot: jax.Array, callback: Number, code: jax.Array, site: Number) -> tuple:
    """Queue what gives the callback to the thread; return the card and the code."""
    entry, sequence = get_row(card.streams, slot), card.clock[Clock.ENQUEUED]
    fields = {
        Field.OBJECT: callback,
        Field.CELL: thread_cell(card, jnp.maximum(entry[Stream.REPORTER], 0)),
        Field.CHANGE: Change.ADD,
        Field.VALUE_LO: 1,
        Field.SITE: site,
    }
    card, code = enqueue(card, Command(Kind.CALLBACK, slot, fields=fields), code)
    row = row_of(card.table.fields, sequence)
    is_queued = (code == Code.SUCCESS) & (entry[Stream.CAPTURE] == Capture.NONE)
    effects = put_if(is_queued, card.table.effects, row, jnp.int32(Effect.NONE))  # not run yet
    table = dataclasses.replace(card.table, effects=effects)
    return dataclasses.replace(card, table=table), code


def _hold(card: CardState, slot: jax.Array, sequence: jax.Array, code: jax.Array, site: Number) -> tuple:
    """Queue what holds the stream until the callback of command ``sequence`` has run; return the card and the code."""
    fields: dict[Any, Number] = {
        Field.CELL: stream_cell(card, slot),
        Field.CONDITION: Condition.GE,
        Field.VALUE_LO: sequence + 1,  # a stream's callbacks run in order, so its cell counts by their numbers
        Field.SITE: site,
    }
    return enqueue(card, Command(Kind.CALLBACK_WAIT, slot, fields=fields), code)


@stage
def _await_report(card: CardState, timeout_ms: Number, site: Number) -> tuple:
    thread, timeout_ms = card.device[Device.THREAD], jnp.asarray(timeout_ms, jnp.int32)
    code = first_code(
        ((timeout_ms == 0) | (timeout_ms < -1), Code.INVALID_PARAM),
        (~is_serving(card, thread), Code.RT_THREAD_SUBSCRIBE),
    )
    card = answer(spend(card, card.chip["host_sync_ns"]), code, site, layout.NONE)[0]
    own = thread_cell(card, thread)
    count = jnp.stack([jnp.int32(0), _is_due(card).sum(dtype=jnp.int32)])
    card = dataclasses.replace(card, cells=put_if(code == Code.SUCCESS, card.cells, own, count))
    cell = jnp.where(code == Code.SUCCESS, own, layout.NONE)
    hi, lo = timeout_of(timeout_ms)
    return card, Goal(cell=cell, at_least=1, timeout_hi=hi, timeout_lo=lo)


def _is_due(card: CardState) -> jax.Array:
    """Return bool [N + 1]: callbacks that were handed to the current thread and that it has not run."""
    is_handed = card.table.times[:, Time.PHASE] == Phase.DONE
    return _is_owed_by(card, card.device[Device.THREAD]) & is_handed


def _is_owed_by(card: CardState, thread: Number) -> jax.Array:
    is_mine = card.table.fields[:, Field.CELL] == thread_cell(card, thread)
    return is_owed(card.table.fields, card.table.effects) & is_mine


def is_serving(card: CardState, thread: Number) -> jax.Array:
    """Return whether a thread serves a stream, or has callbacks of a program to run."""
    serves = (card.streams[:, Stream.ALIVE] == 1) & (card.streams[:, Stream.REPORTER] == thread)
    return serves.any() | (_is_owed_by(card, thread) & taken_rows(card)).any()


@stage
def _run(card: CardState, duration: tuple[Number, Number]) -> tuple:
    """Take the callback that was handed over first and run it; return the card, its number and its command's."""
    table, is_due = card.table, _is_due(card)
    row = jnp.argmin(jnp.where(is_due, table.times[:, Time.ORDER], LAST)).astype(jnp.int32)
    taken = is_due.any() & (card.status[StatusWord.LAST] == Code.SUCCESS)
    now = host_now(card)
    after = clock.plus(now, Instant(*(jnp.asarray(limb, jnp.int32) for limb in duration)))
    card = set_host(card, Instant(jnp.where(taken, after.hi, now.hi), jnp.where(taken, after.lo, now.lo)))
    effects = put_if(taken, table.effects, row, jnp.int32(Effect.PUBLISHED))
    card = dataclasses.replace(card, table=dataclasses.replace(table, effects=effects))
    one = get_row(table.fields, row)
    number, sequence = (jnp.where(taken, one[column], layout.NONE) for column in (Field.OBJECT, Field.SEQUENCE))
    return card, number, sequence


@stage
def _let_go(card: CardState, sequence: jax.Array) -> CardState:
    """Let the stream of a callback that has run go on."""
    row = row_of(card.table.fields, jnp.maximum(sequence, 0))
    cell = stream_cell(card, get_row(card.table.fields, row)[Field.STREAM])
    last = get_row(card.cells, cell)[1]  # a program's callbacks may be another thread's, in another order
    reached = jnp.stack([jnp.int32(0), jnp.maximum(sequence + 1, last)])
    return dataclasses.replace(card, cells=put_if(sequence != layout.NONE, card.cells, cell, reached))


@verb
def subscribe_report(card: CardState, thread: Number, stream: Number, *, site: Site = None) -> CardState:
    """Let a host thread run the callbacks of ``stream`` (``aclrtSubscribeReport``); it may serve many streams.

    Status 107003 for an unknown stream, 107000 for an unknown thread, 107011 if the stream is already served,
    also by the runtime's own thread since it has called a host function.
    """
    return _subscribe(card, thread, stream, site)


@verb
def unsubscribe_report(card: CardState, thread: Number, stream: Number, *, site: Site = None) -> CardState:
    """Let a host thread no longer run the callbacks of ``stream`` (``aclrtUnSubscribeReport``).

    Callbacks that it has not run by then are never run. Status 107003 for an unknown stream, 107011 if no thread
    of the program serves it, 107012 if another one does.
    """
    return _unsubscribe(card, thread, stream, site)


@verb
def launch_callback(
    card: CardState, stream: Number, callback: Number, *, is_blocking: bool = True, site: Site = None
) -> CardState:
    """Queue a callback in ``stream`` (``aclrtLaunchCallback``).

    Args:
      card: The card.
      stream: Stream that calls it; the thread that serves it now will run it.
      callback: The host program's number of the callback, from 0; ``process_report`` returns it.
      is_blocking: Whether the stream waits until the callback has run.
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status 107003 for an unknown stream, 107000 for a number below 0, 107015 for one that nobody serves. A
      callback keeps its row of the command table until it has run: 900001 if all rows are taken.

    In a stream that is captured it is recorded, and each execution of the program hands it to the thread that serves
    the stream now (hicann/runtime ``stream_c.cc``, where a captured stream keeps its subscriber).

    >>> import ascend_jax as aj
    >>> card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0)
    >>> card = aj.launch_callback(aj.subscribe_report(card, 0, 0), 0, 7)
    >>> card, number = aj.process_report(card, -1, callback_ns=500)
    >>> int(number), aj.last_code(aj.synchronize_device(card)).item()
    (7, 0)
    """
    card = (make_room_for_two if is_blocking else make_room)(card, site, stream)
    return _launch(card, stream, callback, site, is_blocking=bool(is_blocking))


@verb
def process_report(
    card: CardState, timeout_ms: Number, *, callback_ns: Number | float = 0, site: Site = None
) -> tuple[CardState, jax.Array]:
    """Wait for a callback of the streams that the current thread serves, and run it (``aclrtProcessReport``).

    Of those handed over, the first one is run; when it is over, the stream goes on if it waits for it.

    Args:
      card: The card.
      timeout_ms: How long to wait for one, -1 = for ever.
      callback_ns: How long it runs in the thread, in ns.
      site: Call site, filled in by the runtime.

    Returns:
      The card and the number that ``launch_callback`` was given, -1 if none was run. Status 100000 for a timeout of 0
      or below -1, 107012 for a thread that serves no stream, 507012 if none came in time, 900003 if none can come.
    """
    card, goal = _await_report(card, timeout_ms, site)
    card = settle(card, goal, site, expired=Code.RT_REPORT_TIMEOUT)
    card, number, sequence = _run(card, duration_limbs(callback_ns, "callback_ns", LONGEST_NS))
    return _let_go(look(card, site), sequence), number
