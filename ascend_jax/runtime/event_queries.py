"""What a program can ask about its events: whether they have happened, and when."""

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import clock, layout
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.codes import AscendError, Code
from ascend_jax.runtime.commands import answer
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.event_slots import EventFlag, Record, latest_record, slots_left
from ascend_jax.runtime.handles import find_event, has_context
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import LIMB, Device, Event, EventKind, Field, Kind, Phase, Time
from ascend_jax.runtime.rows import Number, get_row
from ascend_jax.runtime.state import CardState, require_single
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import look

COMPLETE, NOT_READY = 0, 1  # aclrtEventStatus and aclrtEventWaitStatus; aclrtEventRecordedStatus has them swapped


@stage
def _spend_query(card: CardState) -> CardState:
    return spend(card, card.chip["host_sync_ns"])


def _asked(card: CardState, event: Number, bars_ex: bool) -> tuple[jax.Array, jax.Array, Record]:
    """Return (code, entry, latest record) of an event whose state is asked for."""
    code, row = find_event(card, event)
    entry = get_row(card.events, row)
    record = latest_record(card, entry)
    is_barred = (entry[Event.FLAGS] == EventFlag.EXTERNAL) | (bars_ex & (entry[Event.KIND] == EventKind.EX))
    state = first_code((is_barred, Code.FEATURE_NOT_SUPPORT), (entry[Event.CAPTURED] == 1, Code.RT_EVENT_CAPTURED))
    return first_failing(code, card.device[Device.ERROR], state), entry, record


def _reply(card: CardState, code: jax.Array, status: jax.Array, site: Number) -> tuple[CardState, jax.Array]:
    card, _ = answer(card, code, site, layout.NONE)
    return card, jnp.where(code == Code.SUCCESS, status, layout.NONE).astype(jnp.int32)


@stage
def _query(card: CardState, event: Number, site: Number) -> tuple:
    code, _, record = _asked(card, event, bars_ex=True)
    return _reply(card, code, jnp.where(record.is_unfinished, NOT_READY, COMPLETE), site)


@stage
def _query_status(card: CardState, event: Number, site: Number) -> tuple:
    code, entry, record = _asked(card, event, bars_ex=False)
    is_unused = (record.sequence == layout.NONE) & (entry[Event.KIND] != EventKind.EX)
    return _reply(card, code, ~(record.is_unfinished | is_unused), site)


@stage
def _query_wait_status(card: CardState, event: Number, site: Number) -> tuple:
    code, _, _ = _asked(card, event, bars_ex=True)
    fields, phase = card.table.fields, card.table.times[:, Time.PHASE]
    is_wait = (fields[:, Field.KIND] == Kind.EVENT_WAIT) & (fields[:, Field.OBJECT] == event)
    is_unfinished = (phase >= Phase.QUEUED) & (phase < Phase.DONE)
    return _reply(card, code, jnp.where((is_wait & is_unfinished).any(), NOT_READY, COMPLETE), site)


@stage
def _elapsed(card: CardState, start: Number, end: Number, site: Number) -> tuple:
    start_code, first = _time_of(card, start)
    end_code, last = _time_of(card, end)
    hi, lo = last.hi - first.hi, last.lo - first.lo
    # both limbs with one sign, so that the sum of the floats loses nothing
    carry = jnp.where((hi > 0) & (lo < 0), 1, jnp.where((hi < 0) & (lo > 0), -1, 0))
    ns = (hi - carry).astype(jnp.float32) * LIMB + (lo + carry * LIMB).astype(jnp.float32)
    code = _first_of_two(start_code, end_code)
    card, _ = answer(card, code, site, layout.NONE)
    return card, jnp.where(code == Code.SUCCESS, ns / 1e6, 0.0)


def _first_of_two(start: jax.Array, end: jax.Array) -> jax.Array:
    """Return the code of a pair of events: no such event before never recorded before not finished."""
    pair = (start, end)
    states = (Code.RT_INTERNAL_ERROR, Code.RT_EVENT_TIMESTAMP_INVALID)
    wrong = [jnp.where(jnp.isin(code, jnp.array(states)), Code.SUCCESS, code) for code in pair]
    return first_failing(*wrong, *(jnp.where(code == state, code, Code.SUCCESS) for state in states for code in pair))


def _time_of(card: CardState, event: Number) -> tuple[jax.Array, Instant]:
    code, entry, record = _asked(card, event, bars_ex=False)
    times = get_row(card.table.times, record.row)
    is_late = ~(record.is_kept & (record.phase == Phase.DONE)) | ((entry[Event.FLAGS] & EventFlag.TIME_LINE) == 0)
    state = first_code(
        (entry[Event.FLAGS] == EventFlag.IPC, Code.FEATURE_NOT_SUPPORT),
        (record.sequence == layout.NONE, Code.RT_INTERNAL_ERROR),
        (is_late, Code.RT_EVENT_TIMESTAMP_INVALID),
    )
    return first_failing(code, state), Instant(times[Time.END_HI], times[Time.END_LO])


@stage
def _id(card: CardState, event: Number, site: Number) -> tuple:
    code, slot = find_event(card, event)
    card, _ = answer(card, code, site, layout.NONE)
    return card, jnp.where(code == Code.SUCCESS, slot, layout.NONE)


@stage
def _available(card: CardState, site: Number) -> tuple:
    code = first_code((~has_context(card), Code.RT_CONTEXT_NULL))
    card, _ = answer(card, code, site, layout.NONE)
    return card, jnp.where(code == Code.SUCCESS, slots_left(card, EventKind.PLAIN), 0)


@verb
def query_event(card: CardState, event: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Ask whether the latest record has happened by now (``aclrtQueryEvent``, deprecated in CANN 8.5).

    Every query takes as much host time as synchronising an idle stream, so that a loop of queries comes to an end.

    Returns:
      The card and 0 (complete, or never recorded) or 1 (not ready), -1 on failure. Status: the error with which the
      device was lost, 107000 for an unknown event, 207000 for an Ex or an EXTERNAL event, 107028 for a record of a
      capture that is under way.
    """
    return _query(look(_spend_query(card), site), event, site)


@verb
def query_event_status(card: CardState, event: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Ask whether the latest record has happened by now (``aclrtQueryEventStatus``).

    Returns:
      The card and 0 (not ready) or 1 (complete), -1 on failure: the other way round than :func:`query_event`. An event
      that was never recorded is not ready, but an Ex event is complete. Status as there, but Ex events may be asked.
    """
    return _query_status(look(_spend_query(card), site), event, site)


@verb
def query_event_wait_status(card: CardState, event: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Ask whether every wait for the event is over by now (``aclrtQueryEventWaitStatus``).

    Returns:
      The card and 0 (complete, or nobody waits) or 1 (not ready), -1 on failure. Status as :func:`query_event`.
    """
    return _query_wait_status(look(_spend_query(card), site), event, site)


@verb
def event_elapsed_time(
    card: CardState, start: Number, end: Number, *, site: Site = None
) -> tuple[CardState, jax.Array]:
    """Return the time from one event to another (``aclrtEventElapsedTime``), usable under ``jit``.

    Returns:
      The card and float32 ms, negative if ``end`` came first, 0 on failure. Status: 507000 if one was never recorded;
      107006 if one has not happened, or so long ago that the command table has forgotten it, or was created without
      TIME_LINE, which the manual demands and the open runtime does not check; 207000 for EXTERNAL and IPC events,
      107028 for a record of a capture. (The manual also lists 107007 for an end before the start; the open runtime
      returns the negative time.)
    """
    return _elapsed(look(_spend_query(card), site), start, end, site)


@verb
def event_available_count(card: CardState, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Return the card and how many more events can be created (``aclrtGetEventAvailNum``); int32. Status 107002."""
    return _available(card, site)


def event_elapsed_ms(card: CardState, start: Number, end: Number) -> float:
    """Return the exact time between two recorded and finished events in ms (``aclrtEventElapsedTime``); host-side.

    Raises:
      AscendError: 507000 if one was never recorded, 107006 if one is not finished, its command fell out of the log, or
        it was created without TIME_LINE.
    """
    require_single(card)
    (start_code, first), (end_code, last) = (_time_of(card, event) for event in (start, end))
    _raise(_first_of_two(start_code, end_code), f"from event {int(start)} to event {int(end)}")
    return (_ns(last) - _ns(first)) / 1e6


def event_timestamp_us(card: CardState, event: Number) -> int:
    """Return when an event happened, in whole us since the card was set up (``aclrtEventGetTimestamp``); host-side.

    Raises:
      AscendError: As :func:`event_elapsed_ms`.
    """
    require_single(card)
    code, end = _time_of(card, event)
    _raise(code, f"event {int(event)}")
    return _ns(end) // 1000


def _raise(code: jax.Array, what: str) -> None:
    why = {
        Code.RT_PARAM_INVALID: "does not exist",
        Code.RT_INTERNAL_ERROR: "never recorded",
        Code.RT_EVENT_TIMESTAMP_INVALID: "has no time stamp: not finished, forgotten, or created without TIME_LINE",
    }
    if int(code) != Code.SUCCESS:
        raise AscendError(int(code), f"{what}: {why.get(Code(int(code)), 'has no time')}")


def _ns(time: Instant) -> int:
    return int(clock.to_ns(np.asarray(time.hi), np.asarray(time.lo)))


@verb
def event_id(card: CardState, event: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Return the card and the event's number on the device, -1 on failure (``aclrtGetEventId``): its slot.

    Status 107002 without a current context, 107000 for an unknown event.
    """
    return _id(card, event, site)
