"""Capture: what is put in a stream between begin and end is recorded as a ``Program`` instead of run.

Captured commands lie in the card's command table with ``Phase.CAPTURED`` until the end. A stream that waits for an
event which the capture recorded joins it. Several captures can be under way at once if none waits for another.
"""

import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.runtime.capture_rules import CaptureMode
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import answer, refusal, row_of
from ascend_jax.runtime.drops import erase_recorded
from ascend_jax.runtime.edge import Site, concrete, stage, verb
from ascend_jax.runtime.handles import find_stream, thread_cell
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import NONE, Capture, Context, Device, Field, Kind, Phase, Stream, Thread, Time
from ascend_jax.runtime.program import Program, is_joined, nothing, numbered, trimmed
from ascend_jax.runtime.rows import Number, get_row, get_rows, put_if, put_row, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing


class CaptureStatus(enum.IntEnum):
    """What ``capture_info`` answers (``aclmdlRICaptureStatus``)."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2  # the stream or the device has failed: the capture can only be ended, and gives nothing


class Recording(NamedTuple):
    """The commands of one capture. N is the number of rows of the card's table."""

    fields: jax.Array  # int32 [N, FIELDS], in order and with local numbers, then padding
    operands: jax.Array  # int32 [N, P, len(Operand)]
    is_mine: jax.Array  # bool [N], rows of the card's table that belong to it
    streams: jax.Array  # bool [S + 1], streams that take part
    is_torn: jax.Array  # bool: some command depends on one outside


def unsupported(card: CardState) -> jax.Array:
    """Return 207000 on a product that captures no streams."""
    return first_code((card.chip["has_captures"] == 0, Code.FEATURE_NOT_SUPPORT))


@stage
def _begin(card: CardState, stream: Number, mode: Number, site: Number) -> CardState:
    code, slot = find_stream(card, stream)
    entry, mode = get_row(card.streams, slot), jnp.asarray(mode, jnp.int32)
    rules = first_code(
        ((mode < CaptureMode.GLOBAL) | (mode > CaptureMode.RELAXED), Code.RT_PARAM_INVALID),
        ((card.contexts[:, Context.STREAM] == slot).any(), Code.RT_STREAM_CAPTURE_IMPLICIT),
        (entry[Stream.CAPTURE] != Capture.NONE, Code.RT_STREAM_CAPTURED),
    )
    code = first_failing(unsupported(card), code, rules)
    columns: dict[Any, Number] = {
        Stream.CAPTURE: Capture.ORIGIN,
        Stream.CAPTURE_MODE: mode,
        Stream.CAPTURE_THREAD: card.device[Device.THREAD],
    }
    streams = put_if(code == Code.SUCCESS, card.streams, slot, with_entries(entry, columns))
    card = spend(dataclasses.replace(card, streams=streams), card.chip["host_event_ns"])
    return answer(card, code, site, stream)[0]


@stage
def _exchange(card: CardState, mode: Number, site: Number) -> tuple:
    mode, thread = jnp.asarray(mode, jnp.int32), card.device[Device.THREAD]
    entry = get_row(card.threads, thread)
    wrong = first_code(((mode < CaptureMode.GLOBAL) | (mode > CaptureMode.RELAXED), Code.RT_PARAM_INVALID))
    code = first_failing(unsupported(card), wrong)
    changed = with_entries(entry, {Thread.CAPTURE_MODE: mode})
    card = dataclasses.replace(card, threads=put_if(code == Code.SUCCESS, card.threads, thread, changed))
    card, _ = answer(card, code, site, NONE)
    return card, jnp.where(code == Code.SUCCESS, entry[Thread.CAPTURE_MODE], NONE)


@stage
def _info(card: CardState, stream: Number, site: Number) -> tuple:
    code, slot = find_stream(card, stream)
    entry = get_row(card.streams, slot)
    status = jnp.where(refusal(card, slot) == Code.SUCCESS, CaptureStatus.ACTIVE, CaptureStatus.INVALIDATED)
    status = jnp.where(entry[Stream.CAPTURE] == Capture.NONE, CaptureStatus.NONE, status)
    card, code = answer(card, first_failing(unsupported(card), code), site, stream)
    return card, jnp.where(code == Code.SUCCESS, status, NONE)


@stage
def _end(card: CardState, stream: Number, site: Number) -> tuple:
    code, slot = find_stream(card, stream)
    entry = get_row(card.streams, slot)
    is_elsewhere = entry[Stream.CAPTURE_THREAD] != card.device[Device.THREAD]
    rules = first_code(
        (entry[Stream.CAPTURE] == Capture.NONE, Code.RT_STREAM_NOT_CAPTURED),
        (entry[Stream.CAPTURE] == Capture.JOINED, Code.RT_STREAM_CAPTURE_UNMATCHED),
        (is_elsewhere & (entry[Stream.CAPTURE_MODE] != CaptureMode.RELAXED), Code.RT_STREAM_CAPTURE_WRONG_THREAD),
    )
    code = first_failing(unsupported(card), code, rules)
    found = _recording(card, slot)
    has_open_group = (found.streams & (card.streams[:, Stream.CAPTURE_GROUP] != 0)).any()
    card = _forget(card, found, code == Code.SUCCESS)
    flaws = first_code(
        (has_open_group, Code.STREAM_TASK_GROUP_INTR),
        (refusal(card, slot) != Code.SUCCESS, Code.RT_STREAM_CAPTURE_INVALIDATED),
        (found.is_torn, Code.RT_STREAM_CAPTURE_CONFLICT),
        (~is_joined(found.fields).all(), Code.RT_STREAM_UNJOINED),
    )
    code = first_failing(code, flaws)
    is_good = code == Code.SUCCESS
    card, _ = answer(spend(card, card.chip["host_event_ns"]), code, site, stream)
    rows = found.fields.shape[0]
    return (
        card,
        jnp.where(is_good, found.fields, nothing(1, rows)),
        jnp.where(is_good, found.operands, 0),
        jnp.where(is_good, found.is_mine.sum(dtype=jnp.int32), 0),
    )


def _recording(card: CardState, slot: jax.Array) -> Recording:
    rows = card.table.rows
    fields = card.table.fields[:rows]
    is_captured = card.table.times[:rows, Time.PHASE] == Phase.CAPTURED
    streams = origins_of(card, fields, is_captured) == slot
    is_mine = is_captured & get_rows(streams, fields[:, Field.STREAM])
    order = _in_order(fields, is_mine)
    number_of = jnp.argsort(order)  # of each row of the table
    mine, fields = get_rows(is_mine, order), get_rows(fields, order)

    depends = fields[:, Field.DEPENDS]
    target = row_of(card.table.fields, jnp.maximum(depends, 0))
    is_inside = get_rows(is_mine, target) & (get_rows(card.table.fields, target)[:, Field.SEQUENCE] == depends)
    is_side = streams & (jnp.arange(streams.shape[0]) != slot)
    local = jnp.where(is_side, jnp.cumsum(is_side), 0)
    columns: dict[Any, Number] = {
        Field.STREAM: get_rows(local, fields[:, Field.STREAM]),
        Field.DEPENDS: jnp.where(is_inside, get_rows(number_of, target), NONE),
        Field.FAULT: 0,  # a failure was planned for the command that did not run
        Field.REACH: 0,
        Field.THREAD: _server(card, fields),
    }
    fields = jnp.where(mine[:, None], with_entries(fields, columns), nothing(1, rows))
    operands = jnp.where(mine[:, None, None], get_rows(card.table.operands, order), 0)
    is_torn = (mine & (depends != NONE) & ~is_inside).any()
    return Recording(numbered(fields), operands, is_mine, streams, is_torn)


def _server(card: CardState, fields: jax.Array) -> jax.Array:
    """Return which host thread a callback is handed to, 0 for other commands; int32 [...] of [..., FIELDS]."""
    is_callback = fields[..., Field.KIND] == Kind.CALLBACK
    return jnp.where(is_callback, fields[..., Field.CELL] - thread_cell(card, 0), 0)


def _in_order(fields: jax.Array, is_wanted: jax.Array) -> jax.Array:
    """Return the rows of a table as they were enqueued, int32 [N], those not wanted at the end."""
    last = jnp.iinfo(jnp.int32).max
    return jnp.argsort(jnp.where(is_wanted, fields[:, Field.SEQUENCE], last), stable=True)


def origins_of(card: CardState, fields: jax.Array, is_captured: jax.Array) -> jax.Array:
    """Return int32 [S + 1]: the stream on which the capture began that each stream is in, or NONE.

    The first command that a joined stream records is the wait with which it joined.
    """
    order = _in_order(fields, is_captured)
    slots = jnp.arange(card.streams.shape[0], dtype=jnp.int32)

    def body(step: jax.Array, origins: jax.Array) -> jax.Array:
        row = get_row(order, step)
        command = get_row(fields, row)
        target = row_of(card.table.fields, jnp.maximum(command[Field.DEPENDS], 0))
        source = get_row(origins, get_row(card.table.fields, target)[Field.STREAM])
        old = get_row(origins, command[Field.STREAM])
        joins = get_row(is_captured, row) & (old == NONE) & (command[Field.DEPENDS] != NONE)
        return put_row(origins, command[Field.STREAM], jnp.where(joins, source, old))

    began = jnp.where(card.streams[:, Stream.CAPTURE] == Capture.ORIGIN, slots, NONE)
    return lax.fori_loop(0, is_captured.sum(), body, began)


def _forget(card: CardState, found: Recording, is_wanted: jax.Array) -> CardState:
    """Return ``card`` without the capture: its rows empty, its streams free, its events as if never recorded."""
    card = erase_recorded(card, jnp.append(found.is_mine & is_wanted, False))
    free = {Stream.CAPTURE: Capture.NONE, Stream.CAPTURE_MODE: 0, Stream.CAPTURE_THREAD: 0, Stream.CAPTURE_GROUP: 0}
    is_free = (found.streams & is_wanted)[:, None]
    return dataclasses.replace(card, streams=jnp.where(is_free, with_entries(card.streams, free), card.streams))


@verb
def capture_begin(
    card: CardState, stream: Number, mode: Number = CaptureMode.GLOBAL, *, site: Site = None
) -> CardState:
    """Record what is put in ``stream`` from now on instead of running it (``aclmdlRICaptureBegin``).

    Host time of this and of the end of a capture is that of an event call; nothing is published.

    Status 207000 on a product without captures (``has_captures``: 910 and 310B have none), as of every call on captures
    there; 107002 and 107003 as every stream call, 107000 for a mode that does not exist, 107031 for a default stream,
    107027 for a stream that is captured already.
    """
    return _begin(card, stream, mode, site)


@verb
def capture_end(card: CardState, stream: Number, *, site: Site = None) -> tuple[CardState, Program]:
    """End the capture that began on ``stream`` (``aclmdlRICaptureEnd``); return the card and what was recorded.

    Outside ``jit`` the program has a row per command; under ``jit`` it is padded to the rows of the card's table. A
    failure that was planned for a captured command is not part of the program.

    Status, with an empty program: 107029 if the stream is not captured, 107036 if it only joined a capture, 107038 in
    another thread than the one that began, unless the mode is RELAXED; these change nothing. The capture is over after
    107034 (a task group is open), 107025 (the last command of ``stream`` does not come after all others), 107032 (a
    command depends on another capture) and 507903 (the stream or the device has failed).
    """
    kernels = card.kernels
    card, fields, operands, count = _end(card, stream, site)
    known = concrete(count)
    if known is None or known.ndim:
        return card, Program(fields, operands, card.streams.shape[-2], kernels)
    return card, _exact(trimmed(np.asarray(fields), int(known)), np.asarray(operands)[: int(known)], kernels)


def _exact(fields: np.ndarray, operands: np.ndarray, kernels: tuple) -> Program:
    """Return the program with the streams and kernels it uses, and no others."""
    used = np.unique(fields[:, Field.KERNEL])
    used = used[used != NONE]
    has_kernel = fields[:, Field.KERNEL] != NONE
    fields[has_kernel, Field.KERNEL] = np.searchsorted(used, fields[has_kernel, Field.KERNEL])
    streams = int(fields[:, Field.STREAM].max(initial=0)) + 1
    return Program(jnp.array(fields), jnp.array(operands), streams, tuple(kernels[i] for i in used))


@verb
def capture_info(card: CardState, stream: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Return the card and how the stream stands in a capture (``aclmdlRICaptureGetInfo``), a :class:`CaptureStatus`.

    Status 107002 and 107003 as every stream call; then the answer is -1.
    """
    return _info(card, stream, site)


@verb
def capture_thread_exchange_mode(card: CardState, mode: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Choose which captures bar the current thread's blocking calls (``aclmdlRICaptureThreadExchangeMode``).

    Args:
      card: The card.
      mode: GLOBAL (every thread's at first): captures as :func:`capture_begin` says. THREAD_LOCAL: only those that the
        thread began itself. RELAXED: none.
      site: Call site, filled in by the runtime.

    Returns:
      The card and the mode it had before, so that it can be put back; status 107000 and -1 for a mode that does not
      exist.

    >>> import ascend_jax as aj
    >>> card, stream = aj.create_stream(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0))
    >>> card = aj.capture_begin(card, stream)
    >>> card, before = aj.capture_thread_exchange_mode(card, aj.CaptureMode.RELAXED)
    >>> card, pointer = aj.malloc(card, 64)
    >>> int(before), aj.last_code(aj.memset(card, pointer, 0, 64)).item()
    (0, 0)
    """
    return _exchange(card, mode, site)
