"""Counting notifies: a number of 32 bits that streams set, add to and wait for (``aclrtCntNotify*``).

Only the 950 has them (``has_counting_notifies`` of the chip); on other products every call here answers 207000 before
it looks at anything else (CANN, ``docs/zh/api_ref/09_cntNotify_management.md``). They take the slots of notifies.
Queueing either side first is allowed, as with notifies. The sum of what is added is kept in 64 bits: it does not wrap
beyond 2**32 - 1.
"""

import enum

import jax
import jax.numpy as jnp

from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, enqueue
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.handles import find_stream
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import Change, Condition, EventKind, Field, Kind
from ascend_jax.runtime.notifies import create_kind, destroy_kind, find_kind, id_of_kind
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import make_room
from ascend_jax.runtime.timeouts import is_wrong_timeout, timeout_fields
from ascend_jax.runtime.value_marks import Words, words_of


class CntRecordMode(enum.IntEnum):
    """What a record does to the number (``aclrtCntNotifyRecordMode``); the last two are not supported here."""

    SET_VALUE = 0
    ADD = 1
    BIT_OR = 2
    BIT_AND = 4


class CntWaitMode(enum.IntEnum):
    """What a wait demands of the number (``aclrtCntNotifyWaitMode``); the first and the last are not supported here."""

    LESS = 0
    EQUAL = 1
    BIGGER = 2
    BIGGER_OR_EQUAL = 3
    EQUAL_WITH_BITMASK = 4


def _check(value: Words, mode: jax.Array, known: type[enum.IntEnum], ours: tuple[int, ...]) -> jax.Array:
    high, low = (jnp.asarray(word, jnp.int32) for word in value)
    is_number = (high == 0) & (low != 0)
    is_known = jnp.stack([mode == int(one) for one in known]).any()
    is_ours = jnp.stack([mode == one for one in ours]).any()
    return first_code((~is_known | ~is_number, Code.RT_PARAM_INVALID), (~is_ours, Code.FEATURE_NOT_SUPPORT))


def _find_both(card: CardState, notify: Number, stream: Number) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (code, slot of the stream, row of the notify); 207000 where the product has none comes first."""
    stream_code, slot = find_stream(card, stream)
    code, row = find_kind(card, notify, EventKind.COUNTING)
    return jnp.where(code == Code.FEATURE_NOT_SUPPORT, code, first_failing(stream_code, code)), slot, row


@stage
def _record(card: CardState, notify: Number, value: Words, stream: Number, mode: Number, site: Number) -> CardState:
    code, slot, row = _find_both(card, notify, stream)
    mode = jnp.asarray(mode, jnp.int32)
    wrong = _check(value, mode, CntRecordMode, (CntRecordMode.SET_VALUE, CntRecordMode.ADD))
    fields = {
        Field.OBJECT: notify,
        Field.CELL: row,
        Field.CHANGE: jnp.where(mode == CntRecordMode.ADD, Change.ADD, Change.SET),
        Field.VALUE_LO: value[1],
        Field.SITE: site,
    }
    card = spend(card, card.chip["host_event_ns"])
    card, code = enqueue(card, Command(Kind.NOTIFY_RECORD, slot, fields=fields), first_failing(code, wrong))
    return answer(card, code, site, stream)[0]


@stage
def _wait(
    card: CardState,
    notify: Number,
    value: Words,
    stream: Number,
    mode: Number,
    clears: Number,
    timeout_s: Number,
    site: Number,
) -> CardState:
    code, slot, row = _find_both(card, notify, stream)
    mode, low = jnp.asarray(mode, jnp.int32), jnp.asarray(value[1], jnp.int32)
    ours = (CntWaitMode.EQUAL, CntWaitMode.BIGGER, CntWaitMode.BIGGER_OR_EQUAL)
    wrong = first_failing(
        _check(value, mode, CntWaitMode, ours), first_code((is_wrong_timeout(timeout_s), Code.RT_PARAM_INVALID))
    )
    least = low + (mode == CntWaitMode.BIGGER)  # bigger than 2**32 - 1: at least 2**32
    fields = {
        Field.OBJECT: notify,
        Field.CELL: row,
        Field.CONDITION: jnp.where(mode == CntWaitMode.EQUAL, Condition.EQ, Condition.GE),
        Field.CHANGE: jnp.where(jnp.asarray(clears, bool), Change.CLEAR, Change.NONE),
        Field.VALUE_HI: (least == 0).astype(jnp.int32),
        Field.VALUE_LO: least,
        Field.SITE: site,
        **timeout_fields(timeout_s),
    }
    card = spend(card, card.chip["host_event_ns"])
    card, code = enqueue(card, Command(Kind.NOTIFY_WAIT, slot, fields=fields), first_failing(code, wrong))
    return answer(card, code, site, stream)[0]


@stage
def _reset(card: CardState, notify: Number, stream: Number, site: Number) -> CardState:
    code, slot, row = _find_both(card, notify, stream)
    fields = {Field.OBJECT: notify, Field.CELL: row, Field.CHANGE: Change.CLEAR, Field.SITE: site}
    card = spend(card, card.chip["host_event_ns"])
    card, code = enqueue(card, Command(Kind.NOTIFY_RECORD, slot, fields=fields), code)
    return answer(card, code, site, stream)[0]


@verb
def create_cnt_notify(card: CardState, flag: Number = 0, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Create a counting notify that holds 0 (``aclrtCntNotifyCreate``).

    Args:
      card: The card.
      flag: Reserved, 0.
      site: Call site, filled in by the runtime.

    Returns:
      The card and a handle. Status 207000 on a product without counting notifies, else as
      :func:`create_notify`, whose slots it shares.

    >>> import ascend_jax as aj
    >>> card, done = aj.create_cnt_notify(aj.init(aj.chip("Ascend950PR_9599"), hbm_backing_bytes=0))
    >>> card, one = aj.create_stream(card)
    >>> card = aj.wait_cnt_notify(card, done, 2, one, mode=aj.CntWaitMode.BIGGER_OR_EQUAL)
    >>> for _ in range(2):
    ...     card = aj.record_cnt_notify(card, done, 1, 0, mode=aj.CntRecordMode.ADD)
    >>> aj.last_code(aj.synchronize_stream(card, one)).item()
    0
    """
    return create_kind(card, flag, site, kind=EventKind.COUNTING)


@verb
def destroy_cnt_notify(card: CardState, notify: Number, *, site: Site = None) -> CardState:
    """Give its slot back without blocking (``aclrtCntNotifyDestroy``); what is queued stays queued.

    Status 107000 for an unknown counting notify.
    """
    return destroy_kind(card, notify, site, kind=EventKind.COUNTING)


@verb
def record_cnt_notify(
    card: CardState,
    notify: Number,
    value: Number,
    stream: Number,
    *,
    mode: Number = CntRecordMode.SET_VALUE,
    site: Site = None,
) -> CardState:
    """Change the number when ``stream`` gets there (``aclrtCntNotifyRecord``).

    Args:
      card: The card.
      notify: Which number.
      value: 1 to 2**32 - 1.
      stream: Stream that changes it.
      mode: A :class:`CntRecordMode`: set to the value, or add it.
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status 107003 for an unknown stream, 107000 for an unknown counting notify, another value or another
      mode, 207000 for the modes with bits.
    """
    return _record(make_room(card, site, stream), notify, words_of(value), stream, mode, site)


@verb
def wait_cnt_notify(
    card: CardState,
    notify: Number,
    value: Number,
    stream: Number,
    *,
    mode: Number = CntWaitMode.EQUAL,
    clears: Number | bool = False,
    timeout_s: Number = 0,
    site: Site = None,
) -> CardState:
    """Hold ``stream`` until the number satisfies a condition (``aclrtCntNotifyWaitWithTimeout``).

    Args:
      card: The card.
      notify: Which number.
      value: What it is compared with, 1 to 2**32 - 1.
      stream: Stream that waits.
      mode: A :class:`CntWaitMode`: equal, bigger, or bigger or equal.
      clears: Whether the wait sets the number to 0 when it is over.
      timeout_s: Whole seconds after which a wait that has come up fails the stream; 0 = never.
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status as :func:`record_cnt_notify`; 207000 for LESS and EQUAL_WITH_BITMASK, 107000 for a timeout
      below 0.
    """
    card = make_room(card, site, stream)
    return _wait(card, notify, words_of(value), stream, mode, clears, timeout_s, site)


@verb
def reset_cnt_notify(card: CardState, notify: Number, stream: Number, *, site: Site = None) -> CardState:
    """Set the number to 0 when ``stream`` gets there (``aclrtCntNotifyReset``).

    Status 107003 for an unknown stream, 107000 for an unknown counting notify.
    """
    return _reset(make_room(card, site, stream), notify, stream, site)


@verb
def cnt_notify_id(card: CardState, notify: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Return the card and the counting notify's number on the device, -1 on failure (``aclrtCntNotifyGetId``)."""
    return id_of_kind(card, notify, site, kind=EventKind.COUNTING)
