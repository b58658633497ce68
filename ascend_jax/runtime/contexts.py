"""Contexts: what a stream, an event or a notify belongs to. Each host thread has one current context, or none."""

import dataclasses

import jax
import jax.numpy as jnp

from ascend_jax.runtime import layout
from ascend_jax.runtime.advance import Goal
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import answer
from ascend_jax.runtime.drops import remove_streams
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.handles import find, free_slot, handle_of, has_context, vacate
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import Capture, Context, Device, Event, Stream, Thread
from ascend_jax.runtime.rows import Number, get_row, get_rows, put_if, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code
from ascend_jax.runtime.streams import drain, open_stream, streams_free, taken_slots

PRIMARY = 0  # slot of the primary context and of its default stream


def make_current(card: CardState, context: Number, is_wanted: jax.Array) -> CardState:
    """Return ``card`` with a context slot (or NONE) as the current thread's context, if that is wanted."""
    context = jnp.where(is_wanted, context, card.device[Device.CONTEXT])
    return dataclasses.replace(card, device=with_entries(card.device, {Device.CONTEXT: context}))


def open_context(card: CardState, context: Number, stream: Number, is_wanted: jax.Array) -> CardState:
    """Return ``card`` with a new context in a free slot, its default stream in another, and current, if wanted."""
    card = open_stream(card, stream, context, 0, 0, is_wanted)
    entry = with_entries(get_row(card.contexts, context), {Context.ALIVE: 1, Context.STREAM: stream})
    card = dataclasses.replace(card, contexts=put_if(is_wanted, card.contexts, context, entry))
    return make_current(card, context, is_wanted)


def remove_contexts(card: CardState, is_gone: jax.Array) -> CardState:
    """Return ``card`` without some contexts (bool [X]), their streams, events and notifies; nobody has them current."""

    def belongs(table: jax.Array, alive: Number, context: Number) -> jax.Array:
        return (table[:, alive] == 1) & get_rows(is_gone, table[:, context])

    own = belongs(card.streams[:-1], Stream.ALIVE, Stream.CONTEXT)
    card = remove_streams(card, jnp.concatenate([own, jnp.zeros(1, bool)]))
    events = vacate(card.events, belongs(card.events, Event.ALIVE, Event.CONTEXT), layout.UNUSED_EVENT, Event)
    closed = {Context.STREAM: layout.NONE}

    def without(current: jax.Array) -> jax.Array:
        return jnp.where((current >= 0) & get_rows(is_gone, jnp.maximum(current, 0)), layout.NONE, current)

    return dataclasses.replace(
        card,
        events=events,
        contexts=vacate(card.contexts, is_gone & (card.contexts[:, Context.ALIVE] == 1), closed, Context),
        threads=with_entries(card.threads, {Thread.CONTEXT: without(card.threads[:, Thread.CONTEXT])}),
        device=with_entries(card.device, {Device.CONTEXT: without(card.device[Device.CONTEXT])}),
    )


@stage
def _create(card: CardState, site: Number) -> tuple:
    alive = card.contexts[:, Context.ALIVE]
    is_free, context = free_slot(jnp.where(jnp.arange(alive.shape[0]) == PRIMARY, 1, alive))
    _, stream = free_slot(taken_slots(card))
    code = first_code(
        (~is_free, Code.OBJECT_TABLE_FULL),
        (streams_free(card) == 0, Code.RESOURCE_ALLOC_FAIL),
    )
    ok = code == Code.SUCCESS
    card = open_context(card, context, stream, ok)
    handle = handle_of(context, get_row(card.contexts, context)[Context.GENERATION])
    card, _ = answer(spend(card, card.chip["host_stream_create_ns"]), code, site, layout.NONE)
    return card, jnp.where(ok, handle, layout.NONE)


@stage
def _plan_destroy(card: CardState, context: Number, site: Number) -> tuple:
    is_alive, slot = find(card.contexts, context, Context)
    is_own = (card.streams[:, Stream.ALIVE] == 1) & (card.streams[:, Stream.CONTEXT] == slot)
    is_recording = (is_own & (card.streams[:, Stream.CAPTURE] != Capture.NONE)).any()
    code = first_code((~is_alive | (slot == PRIMARY), Code.RT_CONTEXT_NULL), (is_recording, Code.RT_STREAM_CAPTURED))
    card, code = answer(card, code, site, layout.NONE)
    return card, jnp.where(code == Code.SUCCESS, slot, layout.NONE)


@stage
def _remove(card: CardState, context: jax.Array) -> CardState:
    return remove_contexts(card, jnp.arange(card.contexts.shape[0]) == context)


@stage
def _set(card: CardState, context: Number, site: Number) -> CardState:
    is_alive, slot = find(card.contexts, context, Context)
    card = make_current(card, slot, is_alive)
    return answer(card, jnp.where(is_alive, Code.SUCCESS, Code.RT_PARAM_INVALID), site, layout.NONE)[0]


@stage(static=("wants_stream",))
def _get(card: CardState, site: Number, *, wants_stream: bool) -> tuple:
    ok = has_context(card)
    slot = jnp.maximum(card.device[Device.CONTEXT], 0)
    entry = get_row(card.contexts, slot)
    handle = handle_of(slot, entry[Context.GENERATION])
    if wants_stream:
        stream = jnp.maximum(entry[Context.STREAM], 0)
        handle = handle_of(stream, get_row(card.streams, stream)[Stream.GENERATION])
    card, _ = answer(card, first_code((~ok, Code.RT_CONTEXT_NULL)), site, layout.NONE)
    return card, jnp.where(ok, handle, layout.NONE)


@verb
def create_context(card: CardState, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Create a context with a default stream and make it the calling thread's current one (``aclrtCreateContext``).

    Takes the host time of creating a stream. Needs no ``set_device`` before; the primary context's default stream keeps
    its slot in any case.

    Returns:
      The card and the context's handle, -1 on failure. Status 900005 when all ``max_contexts`` are in use, 207005 when
      no stream is left for it.

    >>> import ascend_jax as aj
    >>> card, context = aj.create_context(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0))
    >>> int(context), int(aj.get_context(card)[1])
    (1, 1)
    """
    return _create(card, site)


@verb
def destroy_context(card: CardState, context: Number, *, site: Site = None) -> CardState:
    """Wait for the context's streams, then destroy it with its streams, events and notifies (``aclrtDestroyContext``).

    A thread that has it current is left without one. Status 107002 for the primary context, which only
    ``reset_device`` ends, and for a handle that is unknown or already destroyed (hicann/runtime ``api_impl.cc``);
    107027 while one of its streams is captured, as it waits for them; 900003 if one of them can never finish. Then
    nothing is destroyed.
    """
    card, slot = _plan_destroy(card, context, site)
    return _remove(*drain(card, Goal(context=slot), slot, site))


@verb
def set_context(card: CardState, context: Number, *, site: Site = None) -> CardState:
    """Make a context the calling thread's current one (``aclrtSetCurrentContext``).

    Status 107000 for a context that is unknown or destroyed.
    """
    return _set(card, context, site)


@verb
def get_context(card: CardState, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Return the card and the calling thread's current context (``aclrtGetCurrentContext``).

    Without one: status 107002 and -1, since 0 is the handle of the first primary context (CANN answers a null pointer).
    """
    return _get(card, site, wants_stream=False)


@verb
def current_default_stream(card: CardState, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Return the card and the current context's default stream (``aclrtCtxGetCurrentDefaultStream``).

    It is the stream that handle 0 means. Without a current context: status 107002 and -1.
    """
    return _get(card, site, wants_stream=True)
