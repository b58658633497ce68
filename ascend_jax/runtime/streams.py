"""Streams: queues of commands that run in order. Handle 0 is the default stream of the current context."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.runtime import layout, status
from ascend_jax.runtime.advance import Goal
from ascend_jax.runtime.capture_rules import illegal_sync
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import answer
from ascend_jax.runtime.drops import drop, fresh_stream, remove_streams
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.handles import find_stream, free_slot, handle_of, has_context
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import Context, Device, Stream
from ascend_jax.runtime.rows import Number, get_row, put_if, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import look, reach

FLAGS = 0x3F  # fast launch, fast sync, persistent, huge, CPU schedule, device use only (acl_rt.h, ACL_STREAM_*)
LEAST_PRIORITY, GREATEST_PRIORITY = 7, 0
CONTINUE_ON_FAILURE, STOP_ON_FAILURE = 0, 1
COMPLETE, NOT_READY = 0, 1  # aclrtStreamStatus


def taken_slots(card: CardState) -> jax.Array:
    """Return int32 [S], 1 where no stream can be made: slot 0 is kept for the primary context's default stream.

    What ran a side of a program and is empty can be made anew.
    """
    streams = card.streams[:-1]
    is_left = (streams[:, Stream.MASTER] != layout.NONE) & (streams[:, Stream.PENDING] == 0)
    return jnp.where(jnp.arange(len(streams)) == 0, 1, streams[:, Stream.ALIVE] * ~is_left)


def streams_free(card: CardState) -> jax.Array:
    """Return how many streams can still be made: slots or the product's limit, less those there are. int32."""
    taken = taken_slots(card)
    most = jnp.minimum(card.chip["max_streams"].astype(jnp.int32), taken.shape[0])
    return jnp.maximum(most - taken.sum(dtype=jnp.int32), 0)


def open_stream(
    card: CardState, slot: Number, context: Number, priority: Number, flags: Number, is_wanted: jax.Array
) -> CardState:
    """Return ``card`` with a new stream in a free slot, if it is wanted.

    It stops on failure if the default stream of its context does.
    """
    old = get_row(card.streams, slot)
    default = get_row(card.contexts, context)[Context.STREAM]
    is_stopping = get_row(card.streams, jnp.maximum(default, 0))[Stream.STOPS]
    columns: dict[Any, Number] = {
        **fresh_stream(card),
        Stream.ALIVE: 1,
        Stream.GENERATION: old[Stream.GENERATION],
        Stream.CONTEXT: context,
        Stream.PRIORITY: priority,
        Stream.FLAGS: flags,
        Stream.STOPS: jnp.where(default == layout.NONE, CONTINUE_ON_FAILURE, is_stopping),
    }
    streams = put_if(is_wanted, card.streams, slot, with_entries(jnp.zeros_like(old), columns))
    return dataclasses.replace(card, streams=streams)


@stage
def _granted(card: CardState, stream: Number, is_stuck: jax.Array, wanted: Number, site: Number) -> tuple:
    failed = status.overrule(card, Code.DEADLOCK, site, stream)
    card = dataclasses.replace(card, status=jnp.where(is_stuck, failed, card.status))
    return card, jnp.where(is_stuck, layout.NONE, wanted)


def drain(card: CardState, goal: Goal, wanted: Number, site: Site) -> tuple[CardState, jax.Array]:
    """Block the host until what is about to be taken away is empty; return the card and ``wanted``.

    If that can never be, NONE instead of ``wanted``, and the status of the call noted last becomes 900003. Unlike
    :func:`~.synchronize.settle` this does not report what has failed before.
    """
    card, ending = reach(card, goal)
    return _granted(card, goal.stream, ending.is_stuck, wanted, site)


@stage
def _create(card: CardState, priority: Number, flags: Number, site: Number) -> tuple:
    priority, flags = jnp.asarray(priority, jnp.int32), jnp.asarray(flags, jnp.int32)
    code = first_code(
        (~has_context(card), Code.RT_CONTEXT_NULL),
        ((priority < GREATEST_PRIORITY) | (priority > LEAST_PRIORITY), Code.RT_PARAM_INVALID),
        ((flags & ~FLAGS) != 0, Code.RT_PARAM_INVALID),
        (streams_free(card) == 0, Code.RESOURCE_ALLOC_FAIL),
    )
    ok = code == Code.SUCCESS
    _, slot = free_slot(taken_slots(card))
    context = jnp.maximum(card.device[Device.CONTEXT], 0)
    card = open_stream(card, slot, context, priority, flags, ok)
    handle = handle_of(slot, get_row(card.streams, slot)[Stream.GENERATION])
    card, _ = answer(spend(card, card.chip["host_stream_create_ns"]), code, site, layout.NONE)
    return card, jnp.where(ok, handle, layout.NONE)


def _find_own(card: CardState, stream: Number) -> tuple[jax.Array, jax.Array]:
    """Return (code, slot) of a stream that can be destroyed: no default stream, and not being captured."""
    code, slot = find_stream(card, stream)
    is_default = (card.contexts[:, Context.STREAM] == slot).any()
    rest = first_code((is_default, Code.RT_STREAM_CONTEXT))
    return first_failing(code, rest, illegal_sync(card, slot)), slot


@stage
def _plan_destroy(card: CardState, stream: Number, site: Number) -> tuple:
    code, slot = _find_own(card, stream)
    card, _ = answer(card, code, site, stream)
    return card, jnp.where(code == Code.SUCCESS, slot, layout.NONE)


@stage
def _remove(card: CardState, slot: jax.Array) -> CardState:
    return remove_streams(card, jnp.arange(card.streams.shape[0]) == slot)


@stage
def _query(card: CardState, stream: Number, site: Number) -> tuple:
    code, slot = find_stream(card, stream)
    entry = get_row(card.streams, slot)
    code = first_failing(code, illegal_sync(card, slot), card.device[Device.ERROR], entry[Stream.ERROR])
    card, code = answer(card, code, site, stream)
    found = jnp.where(entry[Stream.PENDING] == 0, COMPLETE, NOT_READY)
    return card, jnp.where(code == Code.SUCCESS, found, layout.NONE)


@stage
def _spend_query(card: CardState) -> CardState:
    return spend(card, card.chip["host_sync_ns"])


@stage(static=("column",))
def _read(card: CardState, stream: Number, site: Number, *, column: Stream | None) -> tuple:
    code, slot = find_stream(card, stream)
    value = slot if column is None else get_row(card.streams, slot)[column]
    card, _ = answer(card, code, site, stream)
    return card, jnp.where(code == Code.SUCCESS, value, layout.NONE)


@stage
def _available(card: CardState, site: Number) -> tuple:
    code = first_code((~has_context(card), Code.RT_CONTEXT_NULL))
    card, _ = answer(card, code, site, layout.NONE)
    return card, jnp.where(code == Code.SUCCESS, streams_free(card), 0)


@stage
def _abort(card: CardState, stream: Number, site: Number) -> CardState:
    code, slot = find_stream(card, stream)
    is_dropped = (jnp.arange(card.streams.shape[0]) == slot) & (code == Code.SUCCESS)
    return answer(drop(card, is_dropped), code, site, stream)[0]


@stage
def _set_failure_mode(card: CardState, stream: Number, mode: Number, site: Number) -> CardState:
    code, slot = find_stream(card, stream)
    entry, mode = get_row(card.streams, slot), jnp.asarray(mode, jnp.int32)
    rest = first_code(
        ((mode != CONTINUE_ON_FAILURE) & (mode != STOP_ON_FAILURE), Code.RT_PARAM_INVALID),
        ((mode == CONTINUE_ON_FAILURE) & (entry[Stream.STOPS] == 1), Code.FEATURE_NOT_SUPPORT),
    )
    code = first_failing(code, rest)
    is_same = (card.streams[:, Stream.ALIVE] == 1) & (card.streams[:, Stream.CONTEXT] == entry[Stream.CONTEXT])
    is_own = is_same & (jnp.arange(is_same.shape[0]) < is_same.shape[0] - 1)
    stops = is_own & (code == Code.SUCCESS) & (mode == STOP_ON_FAILURE)
    streams = with_entries(card.streams, {Stream.STOPS: jnp.where(stops, 1, card.streams[:, Stream.STOPS])})
    card = drop(dataclasses.replace(card, streams=streams), stops & (streams[:, Stream.ERROR] != Code.SUCCESS))
    return answer(card, code, site, stream)[0]


@verb
def create_stream(
    card: CardState, *, priority: Number = 0, flags: Number = 0, site: Site = None
) -> tuple[CardState, jax.Array]:
    """Create a stream in the current context (``aclrtCreateStream``, ``aclrtCreateStreamWithConfig``).

    Args:
      card: The card.
      priority: 0 (served first) to 7. The open CANN runtime moves others to the nearest one; here they are an error.
      flags: Bits of ``ACL_STREAM_*``, 0x01 to 0x20; they are kept and change nothing.
      site: Call site, filled in by the runtime.

    Returns:
      The card and the stream's handle, -1 on failure. Status 107002 without a current context, 107000 for a priority or
      a flag that does not exist, 207005 when the slots or the product's limit are used up (default streams count).

    >>> import ascend_jax as aj
    >>> card, stream = aj.create_stream(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0), priority=3)
    >>> int(stream), int(aj.stream_priority(card, stream)[1])
    (1, 3)
    """
    return _create(card, priority, flags, site)


@verb
def destroy_stream(card: CardState, stream: Number, *, site: Site = None) -> CardState:
    """Wait for the stream's commands, then give its slot back (``aclrtDestroyStream``).

    What has failed in the stream is not reported here, but by a synchronisation or a query before. Status 107002
    without a current context, 107003 for a default stream (it belongs to its context) or one that is unknown, destroyed
    or another context's, 107027 while it is captured; 900003 if it can never finish, and then it stays.
    """
    card, slot = _plan_destroy(card, stream, site)
    return _remove(*drain(card, Goal(stream=slot), slot, site))


@verb
def destroy_stream_force(card: CardState, stream: Number, *, site: Site = None) -> CardState:
    """Drop what is unfinished in the stream and give its slot back at once (``aclrtDestroyStreamForce``).

    Status as :func:`destroy_stream`, but never 900003.
    """
    card, slot = _plan_destroy(look(card, site), stream, site)
    return _remove(card, slot)


@verb
def stream_query(card: CardState, stream: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Ask whether everything in the stream has finished by now (``aclrtStreamQuery``).

    A query takes as much host time as synchronising an idle stream, so that a loop of queries comes to an end.

    Returns:
      The card and 0 (complete) or 1 (not ready), -1 on failure. Status 107002, 107003, 107027 while the stream is
      captured; else the error with which the device was lost, or that of the stream's first failed command.
    """
    return _query(look(_spend_query(card), site), stream, site)


@verb
def stream_priority(card: CardState, stream: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Return the card and the stream's priority, -1 on failure (``aclrtStreamGetPriority``). Status 107002, 107003."""
    return _read(card, stream, site, column=Stream.PRIORITY)


@verb
def stream_flags(card: CardState, stream: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Return the card and the flags the stream was made with, -1 on failure (``aclrtStreamGetFlags``)."""
    return _read(card, stream, site, column=Stream.FLAGS)


@verb
def stream_id(card: CardState, stream: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Return the card and the stream's number on the device, -1 on failure (``aclrtStreamGetId``): its slot."""
    return _read(card, stream, site, column=None)


@verb
def stream_available_count(card: CardState, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Return the card and how many more streams can be made (``aclrtGetStreamAvailableNum``).

    It falls by one with each stream. Status 107002, and 0, without a current context (measured on a 910C).
    """
    return _available(card, site)


@verb
def stream_abort(card: CardState, stream: Number, *, site: Site = None) -> CardState:
    """Drop everything unfinished in the stream, the running command too (``aclrtStreamAbort``).

    The stream stays usable, and what a capture has recorded stays recorded; what other streams wait for and was dropped
    never comes. Status 107002, 107003.
    """
    return _abort(look(card, site), stream, site)


@verb
def set_stream_failure_mode(card: CardState, stream: Number, mode: Number, *, site: Site = None) -> CardState:
    """Choose what follows a failed command (``aclrtSetStreamFailureMode``).

    0: the stream goes on (default); 1: the rest of its queue is dropped and it takes nothing more, at once if it has
    failed already. Mode 1 holds for all streams of the stream's context, also for those made later, and stays: asking
    for the mode that already holds changes nothing, going back from 1 to 0 is refused (hicann/runtime ``api_impl.cc``
    and ``docs/zh/api_ref/06_stream_management.md``). The manual excludes default streams on 310P and first-generation
    910; here every product takes them.

    Status 107002, 107003, 107000 for another mode, 207000 for going back.
    """
    return _set_failure_mode(look(card, site), stream, mode, site)
