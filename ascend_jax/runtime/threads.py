"""Host threads: timelines beside the first one. Each has its own clock and its own current context.

One thread is current: the calls that a program makes are its calls and move its clock, until :func:`use_thread`
chooses another one. Calls happen in the order in which they are made, whatever the clocks say: a thread whose clock is
behind finds the device as earlier calls have left it. A program that wants threads to meet the device in the order of
their clocks makes the next call on :func:`earliest_thread`.

These verbs drive the simulation and are no calls of CANN, so they take no host time.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import clock, layout
from ascend_jax.runtime.callbacks import is_serving
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.codes import AscendError, Code
from ascend_jax.runtime.commands import answer
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.handles import find_thread, free_slot
from ascend_jax.runtime.host import host_now, set_host
from ascend_jax.runtime.layout import Device, Thread
from ascend_jax.runtime.rows import Number, get_row, put_if, put_row, with_entries
from ascend_jax.runtime.state import CardState, require_single
from ascend_jax.runtime.status import first_code


def _all_threads(card: CardState) -> jax.Array:
    """Return ``card.threads`` with the current thread's row brought up to date."""
    now, current = host_now(card), card.device[Device.THREAD]
    columns = {Thread.HOST_HI: now.hi, Thread.HOST_LO: now.lo, Thread.CONTEXT: card.device[Device.CONTEXT]}
    return put_row(card.threads, current, with_entries(get_row(card.threads, current), columns))


def _note(card: CardState, ok: jax.Array, wrong: Code, site: Number) -> CardState:
    return answer(card, jnp.where(ok, Code.SUCCESS, wrong), site, layout.NONE)[0]


@stage
def _create(card: CardState, site: Number) -> tuple:
    ok, thread = free_slot(card.threads[:, Thread.ALIVE])
    now = host_now(card)
    fresh = jnp.stack([jnp.int32(1), now.hi, now.lo, jnp.int32(layout.NONE), jnp.int32(0)])
    card = dataclasses.replace(card, threads=put_if(ok, card.threads, thread, fresh))
    card = _note(card, ok, Code.OBJECT_TABLE_FULL, site)
    return card, jnp.where(ok, thread, layout.NONE)


@stage
def _use(card: CardState, thread: Number, site: Number) -> CardState:
    ok, row = find_thread(card, thread)
    row = jnp.where(ok, row, card.device[Device.THREAD])
    threads = _all_threads(card)
    entry = get_row(threads, row)
    device = with_entries(card.device, {Device.THREAD: row, Device.CONTEXT: entry[Thread.CONTEXT]})
    card = set_host(card, Instant(entry[Thread.HOST_HI], entry[Thread.HOST_LO]))
    return _note(dataclasses.replace(card, threads=threads, device=device), ok, Code.RT_PARAM_INVALID, site)


@stage
def _join(card: CardState, thread: Number, site: Number) -> CardState:
    ok, row = find_thread(card, thread)
    entry = get_row(_all_threads(card), jnp.where(ok, row, card.device[Device.THREAD]))
    card = set_host(card, clock.later(host_now(card), Instant(entry[Thread.HOST_HI], entry[Thread.HOST_LO])))
    return _note(card, ok, Code.RT_PARAM_INVALID, site)


@stage
def _end(card: CardState, thread: Number, site: Number) -> CardState:
    is_there, row = find_thread(card, thread)
    code = first_code(
        (~is_there | (row == card.device[Device.THREAD]), Code.RT_PARAM_INVALID),
        (is_serving(card, row), Code.RT_STREAM_SUBSCRIBE),
    )
    gone = jnp.array([0, 0, 0, layout.NONE, 0], jnp.int32)
    card = dataclasses.replace(card, threads=put_if(code == Code.SUCCESS, card.threads, row, gone))
    return answer(card, code, site, layout.NONE)[0]


@verb
def create_thread(card: CardState, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Start a host thread where the current one stands, with no current context (as CANN's threads have none).

    Returns:
      The card and the thread's number; the first thread of a program is number 0. Status 900005 and -1 when all
      ``max_threads`` are in use.

    >>> import ascend_jax as aj
    >>> card = aj.host_work(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0), 100)
    >>> card, worker = aj.create_thread(card)
    >>> card = aj.host_work(aj.use_thread(card, worker), 40)
    >>> aj.thread_time_ns(card, worker), aj.thread_time_ns(card, 0), int(aj.earliest_thread(card))
    (140, 100, 0)
    """
    return _create(card, site)


@verb
def use_thread(card: CardState, thread: Number, *, site: Site = None) -> CardState:
    """Let the calls that follow be those of ``thread``, at its clock and in its context. Status 107000 if unknown."""
    return _use(card, thread, site)


@verb
def join_thread(card: CardState, thread: Number, *, site: Site = None) -> CardState:
    """Let the current thread wait until where ``thread`` stands. Status 107000 for an unknown thread.

    The thread remains, until :func:`end_thread`.
    """
    return _join(card, thread, site)


@verb
def end_thread(card: CardState, thread: Number, *, site: Site = None) -> CardState:
    """Give a thread's number back.

    Status 107000 for an unknown thread and for the current one, 107011 while it serves the callbacks of a stream
    or has callbacks of a program to run.
    """
    return _end(card, thread, site)


def thread_time_ns(card: CardState, thread: Number) -> int:
    """Return where a host thread stands, in ns; host-side, for one card.

    Raises:
      AscendError: 107000 if there is no such thread.
    """
    require_single(card)
    is_there, row = find_thread(card, thread)
    if not is_there:
        raise AscendError(Code.RT_PARAM_INVALID, f"thread {int(thread)} does not exist")
    hi, lo = np.asarray(_all_threads(card))[int(row), [Thread.HOST_HI, Thread.HOST_LO]]
    return int(clock.to_ns(hi, lo))


def earliest_thread(card: CardState) -> jax.Array:
    """Return the number of the thread whose clock stands earliest, the lowest number on a tie; int32."""
    threads = _all_threads(card)
    never = jnp.int32(layout.FOREVER_HI)
    hi = jnp.where(threads[:, Thread.ALIVE] == 1, threads[:, Thread.HOST_HI], never)
    lo = jnp.where(hi == hi.min(), threads[:, Thread.HOST_LO], layout.LIMB)
    return jnp.argmin(lo).astype(jnp.int32)
