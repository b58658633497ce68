"""Waiting: the only calls that let simulated time pass on the device."""

import dataclasses

import jax
import jax.numpy as jnp

from ascend_jax.runtime import status
from ascend_jax.runtime.advance import ALL_STREAMS, Ending, Goal, advance
from ascend_jax.runtime.capture_rules import illegal_event, illegal_sync
from ascend_jax.runtime.clock import of_ms
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import is_taken, row_of
from ascend_jax.runtime.edge import Site, concrete, stage, verb
from ascend_jax.runtime.event_slots import EventFlag, latest_record
from ascend_jax.runtime.handles import find_event, find_stream, has_context
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import (
    FOREVER_HI,
    NONE,
    Clock,
    Device,
    Event,
    Field,
    Phase,
    StatusWord,
    Stream,
    Time,
)
from ascend_jax.runtime.pool_blocks import release_idle
from ascend_jax.runtime.rows import Number, get_row, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.values import apply_effects


@stage
def _advance(card: CardState, goal: Goal) -> tuple[CardState, Ending]:
    # the one place where the engine is compiled for a card
    return advance(card, Goal(*(jnp.asarray(number, jnp.int32) for number in goal)))


@stage
def _report(card: CardState, goal: Goal, ending: Ending, expired: Number, site: Number) -> CardState:
    code = first_code(
        (card.device[Device.ERROR] != 0, card.device[Device.ERROR]),
        (_stream_errors(card, goal.stream) != 0, _stream_errors(card, goal.stream)),
        (_is_dropped(card, goal.command), Code.RT_STREAM_ABORT),
        (ending.is_stuck, Code.DEADLOCK),
        (ending.is_late, expired),
    )
    failed = status.overrule(card, code, site, jnp.maximum(goal.stream, NONE))
    was_refused = status.last_code(card) != Code.SUCCESS  # then it keeps its own code
    # a blocking copy answers for itself; the host's own stream keeps no error
    streams = card.streams.at[-1, Stream.ERROR].set(int(Code.SUCCESS))
    word = jnp.where(was_refused | (code == Code.SUCCESS), card.status, failed)
    return dataclasses.replace(card, streams=streams, status=word)


def _stream_errors(card: CardState, stream: Number) -> jax.Array:
    """Return the error of the stream waited for; of the first stream that has one if it is all of them."""
    errors = card.streams[:, Stream.ERROR]
    wrong = ((jnp.arange(len(errors)) == stream) | (stream == ALL_STREAMS)) & (errors != 0)
    return jnp.where(wrong.any(), get_row(errors, jnp.argmax(wrong)), Code.SUCCESS)


def _is_dropped(card: CardState, command: Number) -> jax.Array:
    fields, command = card.table.fields, jnp.asarray(command, jnp.int32)
    row = row_of(fields, jnp.maximum(command, 0))
    is_known = (command >= 0) & (get_row(fields, row)[Field.SEQUENCE] == command)
    return is_known & (get_row(card.table.times, row)[Time.PHASE] == Phase.DROPPED)


def reach(card: CardState, goal: Goal) -> tuple[CardState, Ending]:
    """Block the host until ``goal`` is reached, stuck or late, and bring memory up to date; the status stays."""
    card, ending = _advance(card, goal)
    return apply_effects(card), ending


def settle(card: CardState, goal: Goal, site: Site, expired: Number = Code.RT_STREAM_SYNC_TIMEOUT) -> CardState:
    """Block the host until ``goal`` is reached and bring memory up to date.

    The status of the call noted last is overruled with the error of the device or of the stream waited for, 107023 if
    the command waited for was dropped, 900003 if the goal can never be reached, ``expired`` past its timeout.
    """
    card, ending = reach(card, goal)
    return _report(card, goal, ending, expired, site)


def look(card: CardState, site: Site, is_wanted: jax.Array | bool = True) -> CardState:
    """Simulate the device up to where the host stands, if that is wanted."""
    del site
    stays = 1 - jnp.asarray(is_wanted, jnp.int32) if isinstance(is_wanted, jax.Array) else int(not is_wanted)
    return reach(card, Goal(is_look=1, stays=stays))[0]


@stage(static=("ahead",))
def _blocker(card: CardState, stream: Number, *, ahead: int = 0) -> tuple:
    """The command that must finish before the next one, or the one ``ahead`` of it, fits in ``stream``, or NONE."""
    sequence, fields = card.clock[Clock.ENQUEUED] + ahead, card.table.fields
    row = row_of(fields, sequence)
    is_captured = get_row(card.table.times, row)[Time.PHASE] == Phase.CAPTURED  # waiting does not free it
    is_full = is_taken(card, row) & ~is_captured
    code, slot = find_stream(card, stream)
    entry = get_row(card.streams, slot)
    pending = entry[Stream.PENDING]
    is_deep = (code == Code.SUCCESS) & (pending > 0) & (pending + ahead >= card.chip["queue_depth"])
    oldest = get_row(fields, entry[Stream.HEAD])[Field.SEQUENCE]
    return card, jnp.where(is_full, sequence - card.table.rows, jnp.where(is_deep, oldest, NONE))


def make_room(card: CardState, site: Site, stream: Number = 0) -> CardState:
    """Block the host until the next command has a row in the table and a place in its stream's queue, as on a card.

    Under ``jit`` both must be large enough: there the call answers 900001 when the table is full, and a stream is as
    deep as the table.
    """
    del site
    return _without_blocker(*_blocker(card, stream))


def make_room_for_two(card: CardState, site: Site, stream: Number) -> CardState:
    """Block the host until the next two commands have what :func:`make_room` sees to for one."""
    return _without_blocker(*_blocker(make_room(card, site, stream), stream, ahead=1))


def _without_blocker(card: CardState, blocker: jax.Array) -> CardState:
    known = concrete(blocker)
    return card if known is None or known == NONE else await_room(card, blocker)


@stage(reads=(), changes=("status",))
def _refuse(card: CardState, is_stuck: jax.Array) -> CardState:
    refuses = jnp.where(is_stuck, int(Code.DEADLOCK), int(Code.SUCCESS))
    return dataclasses.replace(card, status=with_entries(card.status, {StatusWord.REFUSES: refuses}))


def await_room(card: CardState, command: jax.Array) -> CardState:
    """Block the host until a command has gone; if it never will, the call under way is to be refused with 900003."""
    card, ending = reach(card, Goal(command=command))
    return _refuse(card, ending.is_stuck)


def timeout_of(timeout_ms: Number) -> tuple[jax.Array, jax.Array]:
    """Return a timeout in ms as (hi, lo) limbs of ns; never for a negative one."""
    ms = jnp.asarray(timeout_ms, jnp.int32)
    limit = of_ms(jnp.maximum(ms, 0))
    return jnp.where(ms < 0, FOREVER_HI, limit.hi), limit.lo


def _refused(timeout_ms: Number) -> jax.Array:
    ms = jnp.asarray(timeout_ms, jnp.int32)
    return (ms == 0) | (ms < -1)


@stage
def _begin_stream(card: CardState, stream: Number, timeout_ms: Number, site: Number) -> tuple:
    code, slot = find_stream(card, stream)
    code = jnp.where(code == Code.SUCCESS, illegal_sync(card, slot), code)
    code = jnp.where(code == Code.SUCCESS, first_code((_refused(timeout_ms), Code.RT_PARAM_INVALID)), code)
    card = status.note(spend(card, card.chip["host_sync_ns"]), code, site, stream)
    ok = code == Code.SUCCESS
    hi, lo = timeout_of(timeout_ms)
    return card, Goal(stream=jnp.where(ok, slot, NONE), timeout_hi=jnp.where(ok, hi, FOREVER_HI), timeout_lo=lo)


@stage
def _begin_event(card: CardState, event: Number, timeout_ms: Number, site: Number) -> tuple:
    code, slot = find_event(card, event)
    entry = get_row(card.events, slot)
    record = latest_record(card, entry)
    is_external = entry[Event.FLAGS] == EventFlag.EXTERNAL
    own = first_code((_refused(timeout_ms), Code.RT_PARAM_INVALID), (is_external, Code.FEATURE_NOT_SUPPORT))
    code = first_failing(code, own, illegal_event(card, slot))
    card = status.note(spend(card, card.chip["host_sync_ns"]), code, site)
    ok = code == Code.SUCCESS
    hi, lo = timeout_of(timeout_ms)
    command = jnp.where(ok, record.sequence, NONE)
    return card, Goal(command=command, timeout_hi=jnp.where(ok, hi, FOREVER_HI), timeout_lo=lo)


@stage
def _begin_device(card: CardState, timeout_ms: Number, site: Number) -> tuple:
    code = first_code((~has_context(card), Code.RT_CONTEXT_NULL), (_refused(timeout_ms), Code.RT_PARAM_INVALID))
    code = jnp.where(code == Code.SUCCESS, illegal_sync(card, ALL_STREAMS), code)
    card = status.note(spend(card, card.chip["host_sync_ns"]), code, site)
    ok = code == Code.SUCCESS
    hi, lo = timeout_of(timeout_ms)
    goal = Goal(stream=jnp.where(ok, ALL_STREAMS, NONE), timeout_hi=jnp.where(ok, hi, FOREVER_HI), timeout_lo=lo)
    return card, goal


@verb
def synchronize_stream(card: CardState, stream: Number, *, timeout_ms: Number = -1, site: Site = None) -> CardState:
    """Block the host until every command of ``stream`` is done (``aclrtSynchronizeStreamWithTimeout``).

    Args:
      card: The card.
      stream: Stream handle.
      timeout_ms: How long to wait at most; -1 for ever.
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status: 107002 and 107003 as every stream call; 107000 for a timeout of 0 or below -1; 507046 when the
      timeout comes first, and the stream goes on; the stream's or device's error if a command has failed, now and at
      every later call; 107027 while the stream is captured; 900003 if it can never finish (see ``deadlock_report``).
    """
    card, goal = _begin_stream(card, stream, timeout_ms, site)
    return release_idle(settle(card, goal, site))


@verb
def synchronize_event(card: CardState, event: Number, *, timeout_ms: Number = -1, site: Site = None) -> CardState:
    """Block the host until the latest record of ``event`` is done (``aclrtSynchronizeEventWithTimeout``).

    An event that was never recorded does not block.

    Status 107000 if there is no such event or the timeout is 0 or below -1, 207000 for an EXTERNAL event, 107028 while
    its record belongs to a capture, 507047 when the timeout comes first, 107023 if the record was dropped.
    """
    card, goal = _begin_event(card, event, timeout_ms, site)
    return settle(card, goal, site, Code.RT_EVENT_SYNC_TIMEOUT)


@verb
def synchronize_device(card: CardState, *, timeout_ms: Number = -1, site: Site = None) -> CardState:
    """Block the host until every stream of the card is empty (``aclrtSynchronizeDeviceWithTimeout``).

    Codes as :func:`synchronize_stream`; 107027 while anything is captured.
    """
    card, goal = _begin_device(card, timeout_ms, site)
    return release_idle(settle(card, goal, site))
