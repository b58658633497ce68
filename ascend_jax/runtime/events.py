"""Events: a record marks a point in one stream, a wait holds another stream until that point is reached.

Three kinds (CANN, ``docs/zh/api_ref/07_event_management.md``). Waits for PLAIN and EX events are bound, when they are
called, to the record that is the latest then. A FLAG event is a flag that the device sets, looks at and clears when it
gets there: a wait may be queued before the record, and a reset takes the flag from all who have not come up yet.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.runtime import layout
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, enqueue, refusal
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.event_slots import AWAITED, EventFlag, latest_record, put_back, take
from ascend_jax.runtime.handles import find_event, find_stream
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import (
    Capture,
    Change,
    Clock,
    Condition,
    Context,
    Device,
    Event,
    EventKind,
    Field,
    Kind,
    Stream,
)
from ascend_jax.runtime.rows import Number, get_row, put_if, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import make_room
from ascend_jax.runtime.timeouts import is_wrong_timeout, timeout_fields


@stage(static=("kind",))
def _create(card: CardState, flag: Number, site: Number, *, kind: EventKind) -> tuple:
    card, handle, code = take(spend(card, card.chip["host_event_ns"]), flag, kind)
    return answer(card, code, site, layout.NONE)[0], handle


@stage
def _destroy(card: CardState, event: Number, site: Number) -> CardState:
    code, row = find_event(card, event)
    return answer(put_back(card, row, code), code, site, layout.NONE)[0]


def _barred(stream: jax.Array, entry: jax.Array) -> jax.Array:
    """Return 207000 for an event that a captured stream cannot use: a capture takes Ex and EXTERNAL events only.

    hicann/runtime ``api_impl.cc`` (EventRecord, StreamWaitEvent, EventReset).
    """
    flags = entry[Event.FLAGS]
    is_fit = ((entry[Event.KIND] == EventKind.EX) & (flags != EventFlag.IPC)) | (flags == EventFlag.EXTERNAL)
    return first_code(((stream[Stream.CAPTURE] != Capture.NONE) & ~is_fit, Code.FEATURE_NOT_SUPPORT))


def _usable(entry: jax.Array) -> jax.Array:
    """Return 0, or why neither a record nor a wait nor a reset may use the event."""
    return first_code(((entry[Event.FLAGS] & EventFlag.DEVICE_USE_ONLY) != 0, Code.RT_PARAM_INVALID))


@stage
def _record(card: CardState, event: Number, stream: Number, site: Number) -> CardState:
    code, slot = find_stream(card, stream)
    event_code, row = find_event(card, event)
    entry = get_row(card.events, row)
    recorder = get_row(card.streams, slot)
    is_captured = recorder[Stream.CAPTURE] != Capture.NONE
    code = first_failing(code, event_code, _usable(entry), _barred(recorder, entry))
    fields = {
        Field.OBJECT: event,
        Field.CELL: row,
        Field.CHANGE: jnp.where(entry[Event.KIND] == EventKind.FLAG, Change.SET, Change.NONE),
        Field.VALUE_LO: 1,
        Field.SITE: site,
    }
    recorded = {Event.RECORD: card.clock[Clock.ENQUEUED], Event.CAPTURED: is_captured}
    card = spend(card, card.chip["host_event_ns"])
    card, code = enqueue(card, Command(Kind.EVENT_RECORD, slot, fields=fields), code)
    events = put_if(code == Code.SUCCESS, card.events, row, with_entries(entry, recorded))
    return answer(dataclasses.replace(card, events=events), code, site, stream)[0]


@stage
def _reset(card: CardState, event: Number, stream: Number, site: Number) -> CardState:
    code, slot = find_stream(card, stream)
    event_code, row = find_event(card, event)
    entry = get_row(card.events, row)
    is_flag = (entry[Event.KIND] == EventKind.FLAG) & ((entry[Event.FLAGS] & AWAITED) != 0)
    barred = _barred(get_row(card.streams, slot), entry)
    code = first_failing(code, event_code, _usable(entry), first_code((~is_flag, Code.FEATURE_NOT_SUPPORT)), barred)
    fields = {Field.OBJECT: event, Field.CELL: row, Field.CHANGE: Change.CLEAR, Field.SITE: site}
    card = spend(card, card.chip["host_event_ns"])
    card, code = enqueue(card, Command(Kind.EVENT_RESET, slot, fields=fields), code)
    return answer(card, code, site, stream)[0]


@stage
def _wait(card: CardState, stream: Number, event: Number, timeout_s: Number | None, site: Number) -> CardState:
    code, slot = find_stream(card, stream)
    event_code, row = find_event(card, event)
    entry, waiter = get_row(card.events, row), get_row(card.streams, slot)
    record, is_flag = latest_record(card, entry), entry[Event.KIND] == EventKind.FLAG
    joined, join_code = _join(card, slot, entry, record.stream)
    is_missing = (entry[Event.KIND] == EventKind.PLAIN) & (entry[Event.RECORD] == layout.NONE)
    own_code = first_code(
        (is_wrong_timeout(timeout_s), Code.RT_PARAM_INVALID),
        ((entry[Event.FLAGS] & AWAITED) == 0, Code.FEATURE_NOT_SUPPORT),
        (is_missing, Code.RT_PARAM_INVALID),
    )
    barred = _barred(waiter, entry)
    code = first_failing(code, event_code, _usable(entry), own_code, barred, join_code, refusal(card, slot))
    is_idle = (code == Code.SUCCESS) & ~is_flag & record.is_kept & (record.stream == slot)
    fields: dict[Any, Number] = {
        Field.OBJECT: event,
        Field.DEPENDS: jnp.where(is_flag, layout.NONE, record.sequence),
        Field.CELL: row,
        Field.CONDITION: jnp.where(is_flag, Condition.GE, Condition.NONE),
        Field.VALUE_LO: 1,
        Field.SITE: site,
        **timeout_fields(timeout_s),
    }
    card = dataclasses.replace(card, streams=put_if(code == Code.SUCCESS, card.streams, slot, joined))
    card = spend(card, jnp.where(is_idle, 0.0, card.chip["host_event_ns"]))
    skipped = jnp.where(is_idle, jnp.int32(layout.NONE), code)
    card, queued = enqueue(card, Command(Kind.EVENT_WAIT, slot, fields=fields), skipped)
    code = jnp.where(is_idle, Code.SUCCESS, queued)
    streams = put_if(code != Code.SUCCESS, card.streams, slot, waiter)
    return answer(dataclasses.replace(card, streams=streams), code, site, stream)[0]


def _join(card: CardState, slot: jax.Array, entry: jax.Array, recorder: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the stream's row after a wait for the event took it into the capture that recorded that, and the code."""
    waiter, captured = get_row(card.streams, slot), get_row(card.streams, recorder)
    is_inside, was_inside = waiter[Stream.CAPTURE] != Capture.NONE, entry[Event.CAPTURED] == 1
    is_bound = (entry[Event.KIND] != EventKind.FLAG) & (entry[Event.RECORD] != layout.NONE)
    joins = is_bound & was_inside & ~is_inside
    columns: dict[Any, Number] = {
        Stream.CAPTURE: Capture.JOINED,
        Stream.CAPTURE_MODE: captured[Stream.CAPTURE_MODE],
        Stream.CAPTURE_THREAD: captured[Stream.CAPTURE_THREAD],
    }
    context = get_row(card.contexts, jnp.maximum(card.device[Device.CONTEXT], 0))
    code = first_code(
        (joins & (context[Context.STREAM] == slot), Code.RT_STREAM_CAPTURE_IMPLICIT),
        (is_bound & is_inside & ~was_inside, Code.RT_CAPTURE_DEPENDENCY),
    )
    return jnp.where(joins, with_entries(waiter, columns), waiter), code


@verb
def create_event(card: CardState, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Create an event that streams can wait for and that keeps its time (``aclrtCreateEvent``).

    Returns:
      The card and a handle. Status 207007 and handle -1 when the slots or the product's limit are used up.

    >>> import ascend_jax as aj
    >>> card, event = aj.create_event(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0))
    >>> int(event)
    0
    """
    return _create(card, EventFlag.SYNC | EventFlag.TIME_LINE, site, kind=EventKind.PLAIN)


@verb
def create_event_with_flag(card: CardState, flag: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Create an event for what ``flag`` says, a flag at run time (``aclrtCreateEventWithFlag``).

    A record sets it, a wait, which may be queued before the record, blocks until it is set, and ``reset_event`` clears
    it. With ``EventFlag.EXTERNAL`` it links a capture with streams outside and takes no stream into the capture.

    Args:
      card: The card.
      flag: Any of SYNC, CAPTURE_STREAM_PROGRESS and TIME_LINE together, or DEVICE_USE_ONLY or EXTERNAL alone.
      site: Call site, filled in by the runtime.

    Returns:
      The card and a handle. Status 107000 for other flags, 207007 as :func:`create_event`; the slot of a destroyed
      event of this kind is free again once a synchronisation or query has seen that all queued for it is over.
    """
    return _create(card, flag, site, kind=EventKind.FLAG)


@verb
def create_event_ex_with_flag(card: CardState, flag: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Create an event that can be recorded again at any time (``aclrtCreateEventExWithFlag``), as PyTorch uses them.

    Args:
      card: The card.
      flag: Any of SYNC, CAPTURE_STREAM_PROGRESS and TIME_LINE together, or IPC alone.
      site: Call site, filled in by the runtime.

    Returns:
      The card and a handle. Status 107000 for other flags, 207007 as :func:`create_event`.
    """
    return _create(card, flag, site, kind=EventKind.EX)


@verb
def destroy_event(card: CardState, event: Number, *, site: Site = None) -> CardState:
    """Give the event's slot back without blocking (``aclrtDestroyEvent``).

    What is queued stays queued: waits keep what they wait for, and no later event in the slot releases them. Status
    107000 for an unknown event.
    """
    return _destroy(card, event, site)


@verb
def record_event(card: CardState, event: Number, stream: Number, *, site: Site = None) -> CardState:
    """Mark the current end of ``stream`` (``aclrtRecordEvent``). Recording again moves the mark.

    Status 107003 for an unknown stream, 107000 for an unknown event or one for the device only, 207000 in a captured
    stream for an event that is neither Ex nor EXTERNAL.
    """
    return _record(make_room(card, site, stream), event, stream, site)


@verb
def reset_event(card: CardState, event: Number, stream: Number, *, site: Site = None) -> CardState:
    """Clear the event when ``stream`` gets there, so that it can be waited for again (``aclrtResetEvent``).

    Streams whose wait has not come up by then go on waiting, for the next record. Status 207000 for an event that was
    not created by ``create_event_with_flag`` with SYNC or EXTERNAL; otherwise as :func:`record_event`.
    """
    return _reset(make_room(card, site, stream), event, stream, site)


@verb
def stream_wait_event(
    card: CardState, stream: Number, event: Number, *, timeout_s: Number | None = None, site: Site = None
) -> CardState:
    """Let ``stream`` wait for ``event`` (``aclrtStreamWaitEvent``, ``aclrtStreamWaitEventWithTimeout``).

    The wait is bound to the record that is the latest now, a later one does not change it, and an Ex event that was
    never recorded holds nobody up. If the latest record is in ``stream`` itself nothing is queued, at no cost. For an
    event of ``create_event_with_flag`` the wait looks at the flag when the stream gets there instead.

    Args:
      card: The card.
      stream: Stream that waits.
      event: Event it waits for.
      timeout_s: Whole seconds after which a wait that has come up fails the stream, 0 = never; None = what the card's
        wait timeout says (``aclrtSetOpWaitTimeout``).
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status as :func:`record_event`, 207000 for an event without SYNC, 107000 for a timeout below 0 and for
      an event of ``create_event`` that was never recorded (hicann/runtime ``event.cc``, EE1018). A wait for a record of
      a capture takes ``stream`` into it, 107031 if it is the default stream; a captured stream cannot wait for a record
      outside, 107024.
    """
    return _wait(make_room(card, site, stream), stream, event, timeout_s, site)
