"""A card in front of the exact engine: laid out as one lane of a run, and brought back afterwards."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime import clock
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.coupling import AXIS, Coupling, seated, with_mismatches
from ascend_jax.runtime.drops import drop
from ascend_jax.runtime.engine import capacity_of, orders_of, row_to_await, run, run_stacked
from ascend_jax.runtime.faults import result_codes
from ascend_jax.runtime.handles import master_of
from ascend_jax.runtime.heads import WORK, Head, Orders
from ascend_jax.runtime.lanes import Carry, Lane, State, Tables, is_reached
from ascend_jax.runtime.layout import (
    FOREVER_HI,
    NONE,
    UNREADY,
    Clock,
    Device,
    Field,
    Phase,
    Stream,
    Time,
)
from ascend_jax.runtime.rows import Number, get_row, get_rows, put_row, with_entries
from ascend_jax.runtime.state import CardState

ALL_STREAMS = -2


class Goal(NamedTuple):
    """What the host waits for; all parts given must come true. Numbers may be Python ints or int32 scalars."""

    stream: Number = NONE  # slot of a stream that must be empty, or ALL_STREAMS
    command: Number = NONE  # sequence number of a command that must be finished
    cell: Number = NONE  # cell whose low word must be
    at_least: Number = 0  # this
    timeout_hi: Number = FOREVER_HI  # how long to wait at most
    timeout_lo: Number = 0
    context: Number = NONE  # slot of a context whose streams must be empty
    is_look: Number = 0  # 1: nothing is waited for, the device is simulated up to where the host stands;
    stays: Number = 0  # 1: or not even that


class Ending(NamedTuple):
    """How a run for a goal ended."""

    is_stuck: jax.Array  # bool: the goal can never be reached
    is_late: jax.Array  # bool: the timeout came first


def advance(card: CardState, goal: Goal) -> tuple[CardState, Ending]:
    """Simulate until the goal is reached, and take the host there; for a look, up to where the host stands.

    A look sees every instant before the host's present, and what is over at the present. Cards of a cluster with
    communicators are simulated together, each with its own goal, by every one of them: the call belongs in a program
    that all of them run.

    Raises:
      ValueError: A card of a cluster with communicators is alone.
    """
    if card.coupling is not None:
        return _advance_together(card, goal, card.coupling)
    lane = _prepare(card, goal, card.table.fields)
    with jax.named_scope("engine"):
        end = run(*lane)
    return _conclude(card, goal, lane, end)


def _advance_together(card: CardState, goal: Goal, coupling: Coupling) -> tuple[CardState, Ending]:
    try:
        mine = lax.axis_index(AXIS)
    except NameError:
        raise ValueError(
            "a card whose collectives meet those of others is alone: let all cards wait together, with "
            "ascend_jax.on_cards or ascend_jax.hccl.synchronize_stream"
        ) from None
    cards, goals = lax.all_gather((card, goal), AXIS)
    fields = with_mismatches(coupling, cards.table.fields, cards.table.times)
    cards = dataclasses.replace(cards, table=dataclasses.replace(cards.table, fields=fields))
    lanes = jax.vmap(_prepare)(cards, goals, seated(coupling, fields))
    with jax.named_scope("engine"):
        is_batched = jax.tree.map(lambda _: True, tuple(lanes))
        end = run_stacked(coupling.cards, is_batched, *lanes, coupling=coupling)
    ended = jax.vmap(_conclude)(cards, goals, lanes, end)
    return jax.tree.map(lambda leaf: get_row(leaf, mine), ended)


class _Lane(NamedTuple):
    """What a card is to the engine; arguments of :func:`ascend_jax.runtime.engine.run`."""

    orders: Orders
    tables: Tables
    carry: Carry
    is_fresh: jax.Array


def _prepare(card: CardState, goal: Goal, fields: jax.Array) -> _Lane:
    """Lay a card out as the one lane of a run, given its commands as the engine is to see them."""
    has_goal = jnp.asarray(goal.is_look) == 0
    host = Instant(card.clock[Clock.HOST_HI], card.clock[Clock.HOST_LO])
    device = Instant(card.clock[Clock.DEVICE_HI], card.clock[Clock.DEVICE_LO])
    timeout = Instant(jnp.asarray(goal.timeout_hi, jnp.int32), jnp.asarray(goal.timeout_lo, jnp.int32))
    is_endless = timeout.hi >= FOREVER_HI
    until = clock.plus(host, Instant(jnp.where(is_endless, 0, timeout.hi), timeout.lo))
    stays = jnp.asarray(goal.stays) == 1
    limit = Instant(
        jnp.where(has_goal, jnp.where(is_endless, FOREVER_HI, until.hi), jnp.where(stays, device.hi, host.hi)),
        jnp.where(has_goal, until.lo, jnp.where(stays, device.lo, host.lo)),
    )
    return _Lane(orders_of(fields), *_enter(card, goal, has_goal, limit))


def _conclude(card: CardState, goal: Goal, lane: _Lane, end: Carry) -> tuple[CardState, Ending]:
    """Bring what a run has done back into the card, and take its host to the goal."""
    host = Instant(card.clock[Clock.HOST_HI], card.clock[Clock.HOST_LO])
    has_goal, limit = lane.tables.has_goal[0], Instant(lane.tables.limit.hi[0], lane.tables.limit.lo[0])
    card, now = _leave(card, end)
    is_there = is_reached(lane.tables, end)[0]
    is_late = has_goal & ~clock.is_before(now, limit) & ~is_there
    has_waited = has_goal & ~is_reached(lane.tables, lane.carry)[0]
    there = clock.later(host, Instant(jnp.where(is_late, limit.hi, now.hi), jnp.where(is_late, limit.lo, now.lo)))
    words = {
        Clock.HOST_HI: jnp.where(has_waited, there.hi, host.hi),
        Clock.HOST_LO: jnp.where(has_waited, there.lo, host.lo),
    }
    card = dataclasses.replace(card, clock=with_entries(card.clock, words))
    return card, Ending(end.is_stuck[0], is_late)


def _enter(card: CardState, goal: Goal, has_goal: jax.Array, limit: Instant) -> tuple[Tables, Carry, jax.Array]:
    """Lay a card out as the one lane of a run; also return which heads are new, bool [S, 1]."""
    table, streams, rows = card.table, card.streams, card.table.rows
    slots = jnp.arange(streams.shape[0])
    is_own = (streams[:, Stream.ALIVE] == 1) & (slots < len(slots) - 1)  # of a context, not the host's
    awaited = (slots == goal.stream) | (jnp.asarray(goal.stream) == ALL_STREAMS)
    awaited |= is_own & (streams[:, Stream.CONTEXT] == goal.context)
    tables = Tables(
        capacity=capacity_of(card.chip)[:, None],
        stops=(streams[:, Stream.STOPS] == 1)[:, None],
        is_goal=awaited[:, None],
        has_goal=has_goal[None],
        limit=Instant(limit.hi[None], limit.lo[None]),
    )
    cell = jnp.asarray(goal.cell, jnp.int32)
    count = get_row(card.cells, jnp.maximum(cell, 0))[1]
    stopped = get_rows((streams[:, Stream.STOPS] == 1) & (streams[:, Stream.ERROR] != 0), master_of(streams))
    none = jnp.full((streams.shape[0], 1), rows, jnp.int32)
    head = Head(
        jnp.where(stopped | (card.device[Device.ERROR] != 0), rows, streams[:, Stream.HEAD])[:, None],
        jnp.zeros((WORK, *none.shape), jnp.int32),
        *(streams[:, column : column + 1] for column in _PROGRESS),
    )
    carry = Carry(
        head=head,
        numbers=jnp.zeros((len(Lane), 1), jnp.int32),
        await_count=jnp.asarray(goal.at_least, jnp.int32)[None],
        failed=none,
        times=table.times[None],
        cells=jnp.concatenate([card.cells, jnp.zeros((1, 2), jnp.int32)])[None],
    )
    awaited_row = row_to_await(table.fields, jnp.asarray(goal.command, jnp.int32))
    phase = get_row(table.times, awaited_row)[Time.PHASE]
    numbers = {
        Lane.NOW_HI: card.clock[Clock.DEVICE_HI],
        Lane.NOW_LO: card.clock[Clock.DEVICE_LO],
        Lane.INSTANTS: card.device[Device.INSTANTS],
        Lane.RETIRED: card.device[Device.RETIRED],
        Lane.LOST: jnp.where(card.device[Device.ERROR] != 0, 0, rows),  # nothing goes on
        Lane.AWAIT_ROW: jnp.where(phase >= Phase.DONE, rows, awaited_row),
        Lane.AWAIT_CELL: jnp.where(count >= goal.at_least, NONE, cell),
        Lane.STATE: jnp.int32(State.LIVE),
    }
    carry = carry.with_numbers({which: number[None] for which, number in numbers.items()})
    return tables, carry, (streams[:, Stream.KEY] == UNREADY)[:, None]


def _errors(failed: jax.Array, times: jax.Array, code: jax.Array, master: jax.Array) -> jax.Array:
    """Return the code of the first command that failed in each stream or in a side of its programs, int32 [S + 1]."""
    never = jnp.int32(2**31 - 1)
    order = jnp.where(failed == times.shape[0] - 1, never, get_rows(times[:, Time.ORDER], failed))
    first = jnp.full_like(order, never).at[master].min(order)
    is_it = (order != never) & (order == get_rows(first, master))
    return jnp.zeros_like(order).at[master].max(jnp.where(is_it, get_rows(code, failed), 0))


_PROGRESS = (
    Stream.KEY,
    Stream.START_HI,
    Stream.START_LO,
    Stream.COUNTS,
    Stream.CHUNKS,
    Stream.REST_FIRST,
    Stream.REST_SECOND,
)


def _leave(card: CardState, end: Carry) -> tuple[CardState, Instant]:
    """Bring what one lane has done back into the card; return it and the device's time."""
    rows, fields, head = card.table.rows, card.table.fields, jax.tree.map(lambda x: x[..., 0], end.head)
    # a lane that idled among others has written its trash row
    times = put_row(end.times[0], rows, get_row(card.table.times, rows))
    now = Instant(end.now.hi[0], end.now.lo[0])
    code = result_codes(fields, times[:, Time.PHASE])
    old = card.streams
    error = _errors(end.failed[:, 0], times, code, master_of(old))
    last = get_rows(fields[:, Field.POSITION], old[:, Stream.LAST])
    position = get_rows(fields[:, Field.POSITION], head.row)
    entries = {
        Stream.HEAD: head.row,
        Stream.PENDING: jnp.where(head.row == rows, 0, last - position + 1),
        Stream.ERROR: jnp.where(old[:, Stream.ERROR] == 0, error, old[:, Stream.ERROR]),
        **dict(zip(_PROGRESS, head[2:], strict=True)),
    }
    streams = with_entries(old, entries)
    phase = jnp.where(head.key != UNREADY, Phase.READY, Phase.QUEUED)
    begun = head.has_begun
    marks = jnp.stack(
        [*head.ready, jnp.where(begun, Phase.RUNNING, phase), jnp.where(begun, head.start_hi, NONE), head.start_lo], -1
    )
    shown = jnp.where((head.row == rows)[:, None], times[rows, : Time.START_LO + 1], marks)
    times = times.at[head.row, : Time.START_LO + 1].set(shown, mode="promise_in_bounds")
    lost = end.number(Lane.LOST)[0]
    is_lost = (lost != rows) & (card.device[Device.ERROR] == 0)
    device = with_entries(
        card.device,
        {
            Device.INSTANTS: end.number(Lane.INSTANTS)[0],
            Device.RETIRED: end.number(Lane.RETIRED)[0],
            Device.ERROR: jnp.where(is_lost, get_row(code, lost), card.device[Device.ERROR]),
        },
    )
    words = with_entries(card.clock, {Clock.DEVICE_HI: now.hi, Clock.DEVICE_LO: now.lo})
    card = dataclasses.replace(
        card,
        streams=streams,
        table=dataclasses.replace(card.table, times=times),
        cells=end.cells[0, :-1],
        device=device,
        clock=words,
    )
    has_failed, stops = streams[:, Stream.ERROR] != 0, streams[:, Stream.STOPS] == 1
    return drop(card, (device[Device.ERROR] != 0) | (has_failed & stops)), now
