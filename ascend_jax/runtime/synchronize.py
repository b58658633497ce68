"""Waiting: the only calls that let simulated time pass on the device."""

import dataclasses

import jax
import jax.numpy as jnp

from ascend_jax.runtime import engine, layout, status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import is_stream, row_of
from ascend_jax.runtime.edge import Site, concrete, stage, verb
from ascend_jax.runtime.engine import ALL_STREAMS, Goal
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import Clock, Event, Phase, Time
from ascend_jax.runtime.rows import Number, get_row
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.values import apply_effects


@stage
def _advance(
    card: CardState, stream: Number, command: Number, is_blocking: bool | jax.Array, site: Number
) -> CardState:
    goal = Goal(jnp.asarray(stream, jnp.int32), jnp.asarray(command, jnp.int32), jnp.asarray(is_blocking))
    card, is_stuck = engine.advance(card, goal)
    failed = status.overrule(card, Code.DEADLOCK, jnp.asarray(site, jnp.int32), goal.stream)
    return dataclasses.replace(card, status=jnp.where(is_stuck, failed, card.status))


def settle(card: CardState, stream: Number, command: Number, is_blocking: bool | jax.Array, site: Site) -> CardState:
    """Simulate until a goal is reached and bring memory up to date (see :class:`~.engine.Goal`).

    Status 900003 if the goal can never be reached.
    """
    return apply_effects(_advance(card, stream, command, is_blocking, site))


@stage
def _blocker(card: CardState) -> tuple:
    """The command whose row the next one needs and that is not finished, or NONE."""
    sequence = card.clock[Clock.ENQUEUED]
    phase = get_row(card.table.times, row_of(card.table.fields, sequence))[Time.PHASE]
    is_taken = (phase >= Phase.QUEUED) & (phase < Phase.DONE)
    return card, jnp.where(is_taken, sequence - card.table.rows, layout.NONE)


def make_room(card: CardState, site: Site) -> CardState:
    """Block the host until the command table has a row for the next command, as a full queue does on a card.

    Under ``jit`` the table must be large enough: there the call answers 900001 instead.
    """
    card, blocker = _blocker(card)
    known = concrete(blocker)
    return card if known is None or known == layout.NONE else settle(card, layout.NONE, blocker, True, site)


def look(card: CardState, site: Site) -> CardState:
    """Simulate the device up to where the host stands."""
    return settle(card, layout.NONE, layout.NONE, False, site)


@stage
def _begin_stream(card: CardState, stream: Number, site: Number) -> tuple:
    good = is_stream(card, stream)
    code = jnp.where(good, Code.SUCCESS, Code.RT_STREAM_CONTEXT)
    card = status.note(spend(card, card.chip["host_sync_ns"]), code, site, stream)
    return card, jnp.where(good, stream, layout.NONE)


@stage
def _begin_event(card: CardState, event: Number, site: Number) -> tuple:
    slot = jnp.clip(event, 0, card.events.shape[0] - 1)
    entry = get_row(card.events, slot)
    good = (event == slot) & (entry[Event.ALIVE] == 1)
    code = jnp.where(good, Code.SUCCESS, Code.RT_PARAM_INVALID)
    card = status.note(spend(card, card.chip["host_sync_ns"]), code, site)
    return card, jnp.where(good, entry[Event.RECORD], layout.NONE)


@stage
def _begin_device(card: CardState, site: Number) -> CardState:
    return status.note(spend(card, card.chip["host_sync_ns"]), jnp.int32(Code.SUCCESS), site)


@verb
def synchronize_stream(card: CardState, stream: Number, *, site: Site = None) -> CardState:
    """Block the host until every command of ``stream`` is done (``aclrtSynchronizeStream``).

    Status 107003 if there is no such stream, 900003 if the stream can never finish.
    """
    card, goal = _begin_stream(card, stream, site)
    return settle(card, goal, layout.NONE, True, site)


@verb
def synchronize_event(card: CardState, event: Number, *, site: Site = None) -> CardState:
    """Block the host until the latest record of ``event`` is done (``aclrtSynchronizeEvent``).

    An event that was never recorded does not block. Status 107000 if there is no such event.
    """
    card, command = _begin_event(card, event, site)
    return settle(card, layout.NONE, command, True, site)


@verb
def synchronize_device(card: CardState, *, site: Site = None) -> CardState:
    """Block the host until every stream of the card is empty (``aclrtSynchronizeDevice``)."""
    return settle(_begin_device(card, site), ALL_STREAMS, layout.NONE, True, site)
