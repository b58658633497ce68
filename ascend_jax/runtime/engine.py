"""The exact engine: event-driven, integers only, tables of fixed size.

A stream runs at most one command at a time, so everything is an array over streams. One step:

1. a command at the head of its stream is *ready* once it is issued and the command it depends on is done;
2. ready commands start in order of (time they became ready, stream number), while every resource they need is free and
   nobody before them in that order still waits for one of the same resources (:func:`grant`);
3. time moves to the next moment at which something can change, never past the limit;
4. commands with no time left end, all that are due at once.

Later rules have their places: priorities order :func:`grant`, shared bandwidth slows ``LEFT`` in :func:`move_time`,
time limits are one more deadline there, faults end a command in :func:`finish`.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ascend_jax.runtime import clock, layout
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.layout import LIMB, Clock, Field, Phase, Resource, Stream, Time
from ascend_jax.runtime.loop import settle_loop
from ascend_jax.runtime.rows import with_entries
from ascend_jax.runtime.state import CardState

ALL_STREAMS = -2


class Goal(NamedTuple):
    """When to stop. With ``is_blocking`` the host waits for the goal, else it looks at the present only."""

    stream: jax.Array  # int32: stream that must be empty; NONE for none, ALL_STREAMS for all
    command: jax.Array  # int32: sequence number of a command that must be done, or NONE
    is_blocking: jax.Array  # bool


class Tables(NamedTuple):
    """What the engine reads only."""

    fields: jax.Array  # int32 [N + 1, FIELDS]
    capacity: jax.Array  # int32 [R]
    goal: Goal
    limit: Instant  # time that must not be passed


class Carry(NamedTuple):
    """What the engine changes."""

    streams: jax.Array  # int32 [S + 1, len(Stream)]
    times: jax.Array  # int32 [N + 1, len(Time)]
    now: Instant
    is_stuck: jax.Array  # bool: something waits and nothing can ever start


class View(NamedTuple):
    """The head command of every stream, gathered once per step."""

    row: jax.Array  # int32 [S + 1]
    fields: jax.Array  # int32 [S + 1, FIELDS]
    times: jax.Array  # int32 [S + 1, len(Time)]
    is_present: jax.Array  # bool [S + 1]
    is_running: jax.Array  # bool [S + 1]

    @property
    def need(self) -> jax.Array:
        """Units of each resource, int32 [S + 1, R]."""
        return self.fields[:, Field.NEED : Field.NEED + len(Resource)]


def capacity(card: CardState) -> jax.Array:
    """Return how many units of each resource the card has, int32 [R]."""
    cores = [card.chip["cube_cores"], card.chip["vector_cores"]]
    engines = [jnp.ones_like(cores[0])] * (len(Resource) - len(cores))
    return jnp.stack(cores + engines).astype(jnp.int32)


def advance(card: CardState, goal: Goal) -> tuple[CardState, jax.Array]:
    """Simulate until the goal is reached; return the card and whether it is stuck before that.

    A blocking goal may move the host's clock forward, to the moment the goal is reached. Otherwise the device is
    simulated up to where the host stands, so that the host can look at it.
    """
    host = Instant(card.clock[Clock.HOST_HI], card.clock[Clock.HOST_LO])
    device = Instant(card.clock[Clock.DEVICE_HI], card.clock[Clock.DEVICE_LO])
    limit = Instant(
        jnp.where(goal.is_blocking, layout.FOREVER_HI, host.hi), jnp.where(goal.is_blocking, 0, host.lo)
    )
    tables = Tables(card.table.fields, capacity(card), goal, limit)
    with jax.named_scope("engine"):
        end = settle_loop(is_unfinished, step, tables, Carry(card.streams, card.table.times, device, jnp.bool_(False)))
    host = clock.later(host, jax.tree.map(lambda now, old: jnp.where(goal.is_blocking, now, old), end.now, host))
    words = jnp.stack([host.hi, host.lo, end.now.hi, end.now.lo, card.clock[Clock.ENQUEUED]])
    table = dataclasses.replace(card.table, times=end.times)
    return dataclasses.replace(card, streams=end.streams, table=table, clock=words), end.is_stuck


def is_unfinished(tables: Tables, carry: Carry) -> jax.Array:
    """Return whether the engine must go on."""
    goal = tables.goal
    slots = jnp.arange(carry.streams.shape[0])
    concerned = (slots == goal.stream) | (goal.stream == ALL_STREAMS)
    streams_done = ~(concerned & (carry.streams[:, Stream.PENDING] > 0)).any()
    reached = streams_done & is_done(tables.fields, carry.times, goal.command)
    in_time = clock.is_before(carry.now, tables.limit)
    return in_time & ~carry.is_stuck & ~(goal.is_blocking & reached)


def is_done(fields: jax.Array, times: jax.Array, sequence: jax.Array) -> jax.Array:
    """Return whether the commands with these sequence numbers are done; NONE and forgotten ones are."""
    rows = fields.shape[0] - 1
    row = jnp.where(sequence < 0, rows, sequence % rows)
    return (
        (sequence < 0) | (fields[row, Field.SEQUENCE] != sequence) | (times[row, Time.PHASE] == Phase.DONE)
    )


def step(tables: Tables, carry: Carry) -> Carry:
    """Let commands start, move time to the next change, let commands end."""
    live = is_unfinished(tables, carry)
    view = look(tables, carry)
    issue = Instant(view.fields[:, Field.ISSUE_HI], view.fields[:, Field.ISSUE_LO])
    is_issued = ~clock.is_before(carry.now, issue)
    depends = is_done(tables.fields, carry.times, view.fields[:, Field.DEPENDS])
    is_waiting = live & view.is_present & ~view.is_running & is_issued & depends
    starts = grant(tables, carry, view, is_waiting)
    carry, view = start(carry, view, is_waiting, starts)
    carry, delta, is_due = move_time(tables, carry, view, is_waiting & ~starts, clock.until(carry.now, issue), live)
    return finish(carry, view, is_due)


def look(tables: Tables, carry: Carry) -> View:
    """Gather the head of every stream."""
    row = carry.streams[:, Stream.HEAD]
    is_present = carry.streams[:, Stream.PENDING] > 0
    row = jnp.where(is_present, row, tables.fields.shape[0] - 1)
    return View(row, tables.fields[row], carry.times[row], is_present, carry.streams[:, Stream.RUNNING] == 1)


def grant(tables: Tables, carry: Carry, view: View, is_waiting: jax.Array) -> jax.Array:
    """Return which waiting commands start now, bool [S + 1].

    Order is (ready time, stream number). A command starts if for each resource that it needs the demand of all waiting
    commands up to and including it fits what is free: so nobody overtakes in a queue for a resource.
    """
    free = tables.capacity - (view.need * view.is_running[:, None]).sum(0)
    age = jnp.where(is_waiting, carry.streams[:, Stream.AGE], -1)
    slot = jnp.arange(age.shape[0])
    comes_first = (age[None, :] > age[:, None]) | ((age[None, :] == age[:, None]) & (slot[None, :] <= slot[:, None]))
    ahead = (comes_first & is_waiting[None, :]).astype(jnp.int32)
    demand = (ahead[:, :, None] * view.need[None, :, :]).sum(1)
    return is_waiting & ((view.need == 0) | (demand <= free)).all(-1)


def start(carry: Carry, view: View, is_waiting: jax.Array, starts: jax.Array) -> tuple[Carry, View]:
    """Mark commands ready and started, and load their durations."""
    times, now = view.times, carry.now
    is_new = is_waiting & (times[:, Time.PHASE] < Phase.READY)
    times = _stamp(times, is_new, Time.READY_HI, now)
    times = _stamp(times, starts, Time.START_HI, now)
    phase = jnp.where(starts, Phase.RUNNING, jnp.where(is_new, Phase.READY, times[:, Time.PHASE]))
    times = with_entries(times, {Time.PHASE: phase})
    is_running = view.is_running | starts
    changed = {
        Stream.RUNNING: is_running,
        Stream.LEFT_HI: jnp.where(starts, view.fields[:, Field.DURATION_HI], carry.streams[:, Stream.LEFT_HI]),
        Stream.LEFT_LO: jnp.where(starts, view.fields[:, Field.DURATION_LO], carry.streams[:, Stream.LEFT_LO]),
    }
    carry = carry._replace(streams=with_entries(carry.streams, changed))
    return carry, view._replace(times=times, is_running=is_running)


def move_time(
    tables: Tables, carry: Carry, view: View, is_waiting: jax.Array, until_issue: jax.Array, live: jax.Array
) -> tuple[Carry, jax.Array, jax.Array]:
    """Move to the next moment at which something changes; return (carry, ns moved, commands that are due)."""
    left = Instant(carry.streams[:, Stream.LEFT_HI], carry.streams[:, Stream.LEFT_LO])
    running_for = jnp.where(view.is_running, jnp.where(left.hi > 0, LIMB, left.lo), LIMB)
    not_issued = view.is_present & ~view.is_running & (until_issue > 0)
    issued_in = jnp.where(not_issued, until_issue, LIMB)
    nothing_to_come = ~(view.is_running.any() | not_issued.any())
    is_stuck = live & nothing_to_come & tables.goal.is_blocking
    to_limit = clock.until(carry.now, tables.limit)
    delta = jnp.minimum(jnp.minimum(running_for.min(), issued_in.min()), to_limit)
    delta = jnp.where(live & ~nothing_to_come, delta, 0)
    # with nothing to come, a look at the present ends at its limit at once; a blocked host would wait for ever
    jumps = live & nothing_to_come & ~tables.goal.is_blocking
    moved = clock.add(carry.now, delta)
    now = jax.tree.map(lambda end, mid: jnp.where(jumps, end, mid), tables.limit, moved)
    is_due = live & view.is_running & (left.hi == 0) & (left.lo <= delta)
    left = clock.minus(left, jnp.where(view.is_running, delta, 0))
    age = carry.streams[:, Stream.AGE]
    age += jnp.where(is_waiting, jnp.minimum(delta, LIMB - age), 0)
    changed = {Stream.LEFT_HI: left.hi, Stream.LEFT_LO: left.lo, Stream.AGE: age}
    streams = with_entries(carry.streams, changed)
    return carry._replace(streams=streams, now=now, is_stuck=carry.is_stuck | is_stuck), delta, is_due


def finish(carry: Carry, view: View, is_due: jax.Array) -> Carry:
    """End commands: stamp them, free what they hold, move their streams on, and write the rows back."""
    times = _stamp(view.times, is_due, Time.END_HI, carry.now)
    times = with_entries(times, {Time.PHASE: jnp.where(is_due, Phase.DONE, times[:, Time.PHASE])})
    streams = carry.streams
    moved_on = {
        Stream.HEAD: jnp.where(is_due, view.fields[:, Field.NEXT], streams[:, Stream.HEAD]),
        Stream.RUNNING: view.is_running & ~is_due,
        Stream.AGE: jnp.where(is_due, 0, streams[:, Stream.AGE]),
        Stream.PENDING: streams[:, Stream.PENDING] - is_due,
    }
    return carry._replace(streams=with_entries(streams, moved_on), times=carry.times.at[view.row].set(times))


def _stamp(times: jax.Array, where: jax.Array, column: Time, now: Instant) -> jax.Array:
    hi, lo = times[:, column], times[:, column + 1]
    return with_entries(times, {column: jnp.where(where, now.hi, hi), column + 1: jnp.where(where, now.lo, lo)})
