"""Notifies: flags between streams of which a wait consumes one record (binary semaphores).

A record sets the notify, once however often it is recorded; a wait holds its stream until it is set and clears it.
Either may be queued first (CANN, ``docs/zh/api_ref/08_notify_management.md``).
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ascend_jax.runtime import layout
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, enqueue
from ascend_jax.runtime.edge import Site, require_whole, stage, verb
from ascend_jax.runtime.event_slots import is_missing, put_back, take
from ascend_jax.runtime.handles import find_notify, find_stream
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import Change, Condition, EventKind, Field, Kind
from ascend_jax.runtime.rows import Number, put_row
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import look, make_room
from ascend_jax.runtime.timeouts import is_wrong_timeout, timeout_fields


@stage(static=("kind",))
def create_kind(card: CardState, flag: Number, site: Number, *, kind: EventKind) -> tuple:
    """Return the card with one more notify of a kind, and its handle."""
    card, handle, code = take(spend(card, card.chip["host_event_ns"]), flag, kind)
    return answer(card, code, site, layout.NONE)[0], handle


@stage(static=("kind",))
def destroy_kind(card: CardState, notify: Number, site: Number, *, kind: EventKind) -> CardState:
    """Return the card without a notify of a kind."""
    code, row = find_kind(card, notify, kind)
    return answer(put_back(card, row, code), code, site, layout.NONE)[0]


@stage(static=("kind",))
def id_of_kind(card: CardState, notify: Number, site: Number, *, kind: EventKind) -> tuple:
    """Return the card and the number of a notify of a kind on the device, -1 on failure."""
    code, row = find_kind(card, notify, kind)
    card, _ = answer(card, code, site, layout.NONE)
    return card, jnp.where(code == Code.SUCCESS, row - card.max_events, layout.NONE)


def find_kind(card: CardState, notify: Number, kind: EventKind) -> tuple[jax.Array, jax.Array]:
    """Return (code, row of ``card.events``) of a notify of a kind; 207000 where the product has none."""
    code, row = find_notify(card, notify, kind)
    return first_failing(first_code((is_missing(card, kind), Code.FEATURE_NOT_SUPPORT)), code), row


@stage
def _record(card: CardState, notify: Number, stream: Number, site: Number) -> CardState:
    code, slot = find_stream(card, stream)
    notify_code, row = find_notify(card, notify)
    fields = {Field.OBJECT: notify, Field.CELL: row, Field.CHANGE: Change.SET, Field.VALUE_LO: 1, Field.SITE: site}
    card = spend(card, card.chip["host_event_ns"])
    card, code = enqueue(card, Command(Kind.NOTIFY_RECORD, slot, fields=fields), first_failing(code, notify_code))
    return answer(card, code, site, stream)[0]


@stage
def _wait(card: CardState, notify: Number, stream: Number, timeout_s: Number, site: Number) -> CardState:
    code, slot = find_stream(card, stream)
    notify_code, row = find_notify(card, notify)
    code = first_failing(code, notify_code, first_code((is_wrong_timeout(timeout_s), Code.RT_PARAM_INVALID)))
    fields = {
        Field.OBJECT: notify,
        Field.CELL: row,
        Field.CONDITION: Condition.GE,
        Field.CHANGE: Change.CLEAR,
        Field.VALUE_LO: 1,
        Field.SITE: site,
        **timeout_fields(timeout_s),
    }
    card = spend(card, card.chip["host_event_ns"])
    card, code = enqueue(card, Command(Kind.NOTIFY_WAIT, slot, fields=fields), code)
    return answer(card, code, site, stream)[0]


@stage
def _batch_reset(card: CardState, notifies: tuple[Number, ...], site: Number) -> CardState:
    found = [find_notify(card, notify) for notify in notifies]
    code = first_failing(*(code for code, _ in found), first_code((jnp.bool_(not found), Code.RT_PARAM_INVALID)))
    cells = card.cells
    for _, row in found:
        cells = put_row(cells, row, jnp.zeros(2, jnp.int32))
    card = dataclasses.replace(card, cells=jnp.where(code == Code.SUCCESS, cells, card.cells))
    return answer(spend(card, card.chip["host_event_ns"]), code, site, layout.NONE)[0]


@verb
def create_notify(card: CardState, flag: Number = 0, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Create a notify (``aclrtCreateNotify``).

    Args:
      card: The card.
      flag: 0, or 1 for use on the device only, which changes nothing here.
      site: Call site, filled in by the runtime.

    Returns:
      The card and a handle. Status 107000 for another flag; 207009 and handle -1 when the slots or the product's limit
      are used up. The slot of a destroyed notify is free again once a synchronisation or query has seen that all queued
      for it is over.

    >>> import ascend_jax as aj
    >>> card, notify = aj.create_notify(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0))
    >>> int(notify)
    0
    """
    return create_kind(card, flag, site, kind=EventKind.NOTIFY)


@verb
def destroy_notify(card: CardState, notify: Number, *, site: Site = None) -> CardState:
    """Give the notify's slot back without blocking (``aclrtDestroyNotify``); what is queued stays queued.

    Status 107000 for an unknown notify.
    """
    return destroy_kind(card, notify, site, kind=EventKind.NOTIFY)


@verb
def record_notify(card: CardState, notify: Number, stream: Number, *, site: Site = None) -> CardState:
    """Set the notify when ``stream`` gets there (``aclrtRecordNotify``).

    Status 107003 for an unknown stream, 107000 for an unknown notify.
    """
    return _record(make_room(card, site, stream), notify, stream, site)


@verb
def wait_and_reset_notify(
    card: CardState, notify: Number, stream: Number, timeout_s: Number = 0, *, site: Site = None
) -> CardState:
    """Hold ``stream`` until the notify is set, then clear it (``aclrtWaitAndResetNotify``).

    Of several streams that wait for one notify, one goes on per record: the one with the lowest slot of those that have
    come up.

    Args:
      card: The card.
      notify: What to wait for.
      stream: Stream that waits.
      timeout_s: Whole seconds after which a wait that has come up fails the stream; 0 = never.
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status as :func:`record_notify`, 107000 for a timeout below 0.
    """
    return _wait(make_room(card, site, stream), notify, stream, timeout_s, site)


@verb
def notify_batch_reset(card: CardState, notifies: Sequence[Number], *, site: Site = None) -> CardState:
    """Clear notifies now, without a stream (``aclrtNotifyBatchReset``).

    Status 107000 for no notify at all, or if any is unknown; then none is cleared.
    """
    notifies = tuple(notifies)
    for notify in notifies:
        require_whole(notify=notify)
    return _batch_reset(look(card, site), notifies, site)


@verb
def notify_id(card: CardState, notify: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Return the card and the notify's number on the device, -1 on failure (``aclrtGetNotifyId``)."""
    return id_of_kind(card, notify, site, kind=EventKind.NOTIFY)
