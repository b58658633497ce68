"""Events: a record marks a point in one stream, a wait holds another stream until that point is reached."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import clock, layout, status
from ascend_jax.runtime.codes import AscendError, Code
from ascend_jax.runtime.commands import Command, answer, enqueue, is_stream
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import Clock, Event, Field, Kind, Phase, Time
from ascend_jax.runtime.rows import Number, get_row, put_if, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code
from ascend_jax.runtime.synchronize import make_room


def _is_event(card: CardState, event: Number) -> tuple[jax.Array, jax.Array]:
    event = jnp.asarray(event, jnp.int32)
    slot = jnp.clip(event, 0, card.events.shape[0] - 1)
    return (event == slot) & (get_row(card.events, slot)[Event.ALIVE] == 1), slot


@stage
def _create(card: CardState, site: Number) -> tuple:
    alive = card.events[:, Event.ALIVE]
    slot = jnp.argmin(alive)
    ok = (get_row(alive, slot) == 0) & (alive.sum() < card.chip["max_events"])
    fresh = jnp.array([1, layout.NONE], jnp.int32)
    events = put_if(ok, card.events, slot, fresh)
    card = spend(dataclasses.replace(card, events=events), card.chip["host_event_ns"])
    code = jnp.where(ok, Code.SUCCESS, Code.NO_EVENT_RESOURCE)
    return status.note(card, code, site), jnp.where(ok, slot, layout.NONE).astype(jnp.int32)


@stage
def _destroy(card: CardState, event: Number, site: Number) -> CardState:
    good, slot = _is_event(card, event)
    events = put_if(good, card.events, slot, jnp.array([0, layout.NONE], jnp.int32))
    return status.note(
        dataclasses.replace(card, events=events), jnp.where(good, Code.SUCCESS, Code.RT_PARAM_INVALID), site
    )


@stage
def _record(card: CardState, event: Number, stream: Number, site: Number) -> CardState:
    good, slot = _is_event(card, event)
    code = first_code((~is_stream(card, stream), Code.RT_STREAM_CONTEXT), (~good, Code.RT_PARAM_INVALID))
    sequence = card.clock[Clock.ENQUEUED]
    card = spend(card, card.chip["host_event_ns"])
    card, code = enqueue(card, Command(Kind.EVENT_RECORD, stream, fields={Field.EVENT: event, Field.SITE: site}), code)
    recorded = with_entries(get_row(card.events, slot), {Event.RECORD: sequence})
    card = dataclasses.replace(card, events=put_if(code == Code.SUCCESS, card.events, slot, recorded))
    return answer(card, code, site, stream)[0]


@stage
def _wait(card: CardState, stream: Number, event: Number, site: Number) -> CardState:
    good, slot = _is_event(card, event)
    code = first_code((~is_stream(card, stream), Code.RT_STREAM_CONTEXT), (~good, Code.RT_PARAM_INVALID))
    depends = get_row(card.events, slot)[Event.RECORD]
    card = spend(card, card.chip["host_event_ns"])
    fields = {Field.EVENT: event, Field.DEPENDS: depends, Field.SITE: site}
    card, code = enqueue(card, Command(Kind.EVENT_WAIT, stream, fields=fields), code)
    return answer(card, code, site, stream)[0]


@verb
def create_event(card: CardState, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Create an event (``aclrtCreateEventExWithFlag``); return the card and its handle.

    Status 207007 and handle -1 when the slots or the product's limit are used up.
    """
    return _create(card, site)


@verb
def destroy_event(card: CardState, event: Number, *, site: Site = None) -> CardState:
    """Give the event's slot back (``aclrtDestroyEvent``); waits already queued keep what they wait for."""
    return _destroy(card, event, site)


@verb
def record_event(card: CardState, event: Number, stream: Number, *, site: Site = None) -> CardState:
    """Mark the current end of ``stream`` (``aclrtRecordEvent``). Recording again moves the mark.

    Status 107003 for an unknown stream, 107000 for an unknown event.
    """
    return _record(make_room(card, site), event, stream, site)


@verb
def stream_wait_event(card: CardState, stream: Number, event: Number, *, site: Site = None) -> CardState:
    """Let ``stream`` wait for the latest record of ``event`` (``aclrtStreamWaitEvent``).

    The wait is bound to the record that is the latest now; a later record does not change it, and an event that was
    never recorded holds nobody up (hicann/runtime ``docs/zh/api_ref/07_event_management.md``, Ex events).
    """
    return _wait(make_room(card, site), stream, event, site)


def event_elapsed_ms(card: CardState, start: Number, end: Number) -> float:
    """Return the time between two recorded and finished events in ms (``aclrtEventElapsedTime``); host-side.

    Raises:
      AscendError: 507000 if one was never recorded, 107006 if one is not finished or its command fell out of the log.
    """
    instants = []
    fields, times = np.asarray(card.table.fields), np.asarray(card.table.times)
    for name, event in (("start", start), ("end", end)):
        sequence = int(card.events[int(event), Event.RECORD])
        if sequence == layout.NONE:
            raise AscendError(Code.RT_INTERNAL_ERROR, f"{name} event {int(event)} was never recorded")
        row = sequence % card.table.rows
        if fields[row, Field.SEQUENCE] != sequence or times[row, Time.PHASE] != Phase.DONE:
            raise AscendError(Code.RT_EVENT_TIMESTAMP_INVALID, f"{name} event {int(event)} has no time stamp")
        instants.append(int(clock.to_ns(times[row, Time.END_HI], times[row, Time.END_LO])))
    return (instants[1] - instants[0]) / 1e6
