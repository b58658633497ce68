"""The exact engine: event-driven, integers only, tables of fixed size.

A stream runs at most one command at a time, so everything is an array over streams. One step:

1. a command at the head of its stream is *ready* once it is issued and the command it depends on is done; commands that
   take no time (event records and waits) start and end at once, before any other of the same instant;
2. ready commands start in order of (time they became ready, stream number), while every resource they need is free and
   nobody before them in that order still waits for one of the same resources (:func:`grant`);
3. time moves to the next moment at which something can change, never past the limit;
4. commands with no time left end, all that are due at once.

Later rules have their places: priorities order :func:`grant`; shared bandwidth sets how far work gets in
:func:`move_time`, where a time limit is one more deadline; a fault ends a command in :func:`write_back`.
"""

import dataclasses
import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ascend_jax.runtime import clock, layout
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.commands import row_of
from ascend_jax.runtime.layout import LIMB, Clock, Field, Phase, Resource, Stream, Time
from ascend_jax.runtime.loop import settle_loop
from ascend_jax.runtime.rows import get_row, get_rows, put_rows, with_entries
from ascend_jax.runtime.state import CardState

ALL_STREAMS = -2


class Goal(NamedTuple):
    """When to stop. With ``is_blocking`` the host waits for the goal, else it looks at the present only."""

    stream: jax.Array  # int32: stream that must be empty; NONE for none, ALL_STREAMS for all
    command: jax.Array  # int32: sequence number of a command that must be done, or NONE
    is_blocking: jax.Array  # bool


class Work(enum.IntEnum):
    """Columns of ``Tables.work``: what a step needs of a command; few, because a step gathers them for every stream."""

    NEED = 0  # first of len(Resource) columns
    DURATION_HI = len(Resource)
    DURATION_LO = len(Resource) + 1
    ISSUE_HI = len(Resource) + 2
    ISSUE_LO = len(Resource) + 3
    DEPENDS = len(Resource) + 4  # row of the command to wait for; the trash row, which is done, for none
    NEXT = len(Resource) + 5


class Tables(NamedTuple):
    """What the engine reads only."""

    work: jax.Array  # int32 [N + 1, 11], columns of Work
    goal_row: jax.Array  # int32, row of the command to wait for
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
    """The streams and the command at the head of each, gathered once per step. All [S + 1]."""

    row: jax.Array  # int32
    work: jax.Array  # int32 [S + 1, 11], columns of Work
    times: jax.Array  # int32 [S + 1, len(Time)]
    is_present: jax.Array  # bool
    is_running: jax.Array  # bool
    left: Instant  # time left, of running commands
    ready: Instant  # when the command became ready; now, if it has not

    @property
    def need(self) -> jax.Array:
        """Units of each resource, int32 [S + 1, R]."""
        return self.work[:, Work.NEED : Work.NEED + len(Resource)]

    @property
    def issue(self) -> Instant:
        """When the host issued the command."""
        return Instant(self.work[:, Work.ISSUE_HI], self.work[:, Work.ISSUE_LO])


class Moves(NamedTuple):
    """What happens in one step. Masks are bool [S + 1]."""

    is_waiting: jax.Array  # ready, and not running before this step
    starts: jax.Array
    is_due: jax.Array  # ends
    delta_ns: jax.Array  # int32, how far time moves
    now: Instant  # after that
    is_stuck: jax.Array  # bool


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
    limit = Instant(jnp.where(goal.is_blocking, layout.FOREVER_HI, host.hi), jnp.where(goal.is_blocking, 0, host.lo))
    fields = card.table.fields
    tables = Tables(work_of(fields), row_to_await(fields, goal.command), capacity(card), goal, limit)
    with jax.named_scope("engine"):
        end = settle_loop(is_unfinished, step, tables, Carry(card.streams, card.table.times, device, jnp.bool_(False)))
    host = clock.later(host, jax.tree.map(lambda now, old: jnp.where(goal.is_blocking, now, old), end.now, host))
    words = jnp.stack([host.hi, host.lo, end.now.hi, end.now.lo, card.clock[Clock.ENQUEUED]])
    table = dataclasses.replace(card.table, times=end.times)
    return dataclasses.replace(card, streams=end.streams, table=table, clock=words), end.is_stuck


def work_of(fields: jax.Array) -> jax.Array:
    """Return the columns that a step needs, int32 [N + 1, 11]."""
    need = [fields[:, Field.NEED + resource] for resource in Resource]
    others = (Field.DURATION_HI, Field.DURATION_LO, Field.ISSUE_HI, Field.ISSUE_LO)
    depends = row_to_await(fields, fields[:, Field.DEPENDS])
    return jnp.stack([*need, *(fields[:, column] for column in others), depends, fields[:, Field.NEXT]], axis=1)


def row_to_await(fields: jax.Array, sequence: jax.Array) -> jax.Array:
    """Return the rows of commands to wait for; the trash row, which is done, for NONE and for forgotten ones."""
    rows = fields.shape[0] - 1
    row = jnp.where(sequence < 0, rows, row_of(fields, sequence))
    return jnp.where(get_rows(fields[:, Field.SEQUENCE], row) == sequence, row, rows)


def is_unfinished(tables: Tables, carry: Carry) -> jax.Array:
    """Return whether the engine must go on."""
    goal = tables.goal
    slots = jnp.arange(carry.streams.shape[0])
    concerned = (slots == goal.stream) | (goal.stream == ALL_STREAMS)
    streams_done = ~(concerned & (carry.streams[:, Stream.PENDING] > 0)).any()
    reached = streams_done & (get_row(carry.times, tables.goal_row)[Time.PHASE] == Phase.DONE)
    in_time = clock.is_before(carry.now, tables.limit)
    return in_time & ~carry.is_stuck & ~(goal.is_blocking & reached)


def step(tables: Tables, carry: Carry) -> Carry:
    """Let commands start, move time to the next change, let commands end."""
    live = is_unfinished(tables, carry)
    view = look(tables, carry)
    is_issued = ~clock.is_before(carry.now, view.issue)
    is_free = get_rows(carry.times, view.work[:, Work.DEPENDS])[:, Time.PHASE] == Phase.DONE
    is_waiting = live & view.is_present & ~view.is_running & is_issued & is_free
    duration = Instant(view.work[:, Work.DURATION_HI], view.work[:, Work.DURATION_LO])
    # records and waits of this instant come first: only when none is left is it known who is ready
    marks = is_waiting & (duration.hi == 0) & (duration.lo == 0)
    starts = jnp.where(marks.any(), marks, grant(tables, view, is_waiting))
    running = view._replace(
        is_running=view.is_running | starts,
        left=Instant(*(jnp.where(starts, new, old) for new, old in zip(duration, view.left, strict=True))),
    )
    delta, now, is_stuck = move_time(tables, carry, running, live)
    is_due = live & running.is_running & (running.left.hi == 0) & (running.left.lo <= delta)
    return write_back(carry, running, Moves(is_waiting, starts, is_due, delta, now, is_stuck))


def look(tables: Tables, carry: Carry) -> View:
    """Gather the head of every stream."""
    streams = carry.streams
    is_present = streams[:, Stream.PENDING] > 0
    row = jnp.where(is_present, streams[:, Stream.HEAD], tables.work.shape[0] - 1)
    times = get_rows(carry.times, row)
    is_ready = times[:, Time.PHASE] >= Phase.READY
    stamps = ((Time.READY_HI, carry.now.hi), (Time.READY_LO, carry.now.lo))
    return View(
        row=row,
        work=get_rows(tables.work, row),
        times=times,
        is_present=is_present,
        is_running=streams[:, Stream.RUNNING] == 1,
        left=Instant(streams[:, Stream.LEFT_HI], streams[:, Stream.LEFT_LO]),
        ready=Instant(*(jnp.where(is_ready, times[:, column], limb) for column, limb in stamps)),
    )


def grant(tables: Tables, view: View, is_waiting: jax.Array) -> jax.Array:
    """Return which waiting commands start now, bool [S + 1].

    Order is (ready time, stream number). A command starts if for each resource that it needs the demand of all waiting
    commands up to and including it fits what is free: so nobody overtakes in a queue for a resource.
    """
    need = view.need
    free = tables.capacity - (need * view.is_running[:, None]).sum(0)
    slot = jnp.arange(is_waiting.shape[0])
    mine, other = Instant(*(x[:, None] for x in view.ready)), Instant(*(x[None, :] for x in view.ready))
    is_tie = (other.hi == mine.hi) & (other.lo == mine.lo)
    comes_first = clock.is_before(other, mine) | (is_tie & (slot[None, :] <= slot[:, None]))
    ahead = (comes_first & is_waiting[None, :]).astype(jnp.int32)
    demand = (ahead[:, :, None] * need[None, :, :]).sum(1)
    return is_waiting & ((need == 0) | (demand <= free[None, :])).all(-1)


def move_time(tables: Tables, carry: Carry, view: View, live: jax.Array) -> tuple[jax.Array, Instant, jax.Array]:
    """Return (ns that running commands get, the next moment at which something changes, whether none will ever come).

    While something runs, a step is never longer than LIMB, so longer commands take several; idle time is one jump.
    """
    until_issue = clock.until(carry.now, view.issue)
    is_coming = view.is_present & ~view.is_running & (until_issue > 0)
    running_for = jnp.where(view.is_running, jnp.where(view.left.hi > 0, LIMB, view.left.lo), LIMB)
    next_change = jnp.minimum(running_for, jnp.where(is_coming, until_issue, LIMB)).min()
    is_idle = live & ~view.is_running.any()
    delta = jnp.where(live & ~is_idle, jnp.minimum(next_change, clock.until(carry.now, tables.limit)), 0)
    hi = jnp.where(is_coming, view.issue.hi, tables.limit.hi).min()
    lo = jnp.where(is_coming & (view.issue.hi == hi), view.issue.lo, LIMB - 1).min()
    next_issue = Instant(hi, jnp.where(hi == tables.limit.hi, jnp.minimum(lo, tables.limit.lo), lo))
    # with nothing to come, a look at the present jumps to its limit; a blocked host would wait for ever
    is_stuck = is_idle & ~is_coming.any() & tables.goal.is_blocking
    jumps = is_idle & ~is_stuck
    moved = clock.add(carry.now, delta)
    now = Instant(*(jnp.where(jumps, end, mid) for end, mid in zip(next_issue, moved, strict=True)))
    return delta, now, carry.is_stuck | is_stuck


def write_back(carry: Carry, view: View, moves: Moves) -> Carry:
    """Stamp the commands that became ready, started or ended, and move their streams on."""
    is_due, delta, now = moves.is_due, moves.delta_ns, moves.now
    times, phase = view.times, view.times[:, Time.PHASE]
    is_new = moves.is_waiting & (phase < Phase.READY)
    stamps = (
        (is_new, Time.READY_HI, carry.now),
        (moves.starts, Time.START_HI, carry.now),
        (is_due, Time.END_HI, now),
    )
    entries: dict[int, jax.Array] = {}
    for where, column, instant in stamps:
        entries[column] = jnp.where(where, instant.hi, times[:, column])
        entries[column + 1] = jnp.where(where, instant.lo, times[:, column + 1])
    phase = jnp.where(moves.is_waiting, Phase.READY, phase)
    entries[Time.PHASE] = jnp.where(is_due, Phase.DONE, jnp.where(moves.starts, Phase.RUNNING, phase))
    left = clock.minus(view.left, jnp.where(view.is_running, delta, 0))
    streams = with_entries(
        carry.streams,
        {
            Stream.HEAD: jnp.where(is_due, view.work[:, Work.NEXT], carry.streams[:, Stream.HEAD]),
            Stream.RUNNING: view.is_running & ~is_due,
            Stream.LEFT_HI: left.hi,
            Stream.LEFT_LO: left.lo,
            Stream.PENDING: carry.streams[:, Stream.PENDING] - is_due,
        },
    )
    rows = with_entries(times, entries)
    return Carry(streams, put_rows(carry.times, view.row, rows), now, moves.is_stuck)
