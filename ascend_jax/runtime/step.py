"""One step of the exact engine: what can happen now happens, or time moves to where something can.

Everything is an array over streams and lanes, ``[S, B]``, because a stream serves one command at a time: its head. A
step does one of two things in each lane. If a command is over, a mark can happen or a deadline has passed, the first
such command retires and its stream's next command becomes the head. Otherwise waiting blocks are granted units, the
running ones share the memory rates, and time moves to the next change; a command that is over there retires at once. So
N commands take about N steps.

The stages are kept apart, and few wide arrays are carried, because a step is bound by memory traffic.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ascend_jax.runtime.apart import apart, sum_of_pairs
from ascend_jax.runtime.clock import Instant, is_before, until
from ascend_jax.runtime.heads import Bits, Fresh, Head, Work, bit, fetch, head_of, is_met
from ascend_jax.runtime.layout import (
    CHUNK_NS,
    FOREVER_HI,
    LIMB,
    NONE,
    UNREADY,
    WORK_CHUNK,
    Change,
    Phase,
    Reach,
    Resource,
    Time,
)
from ascend_jax.runtime.rows import get_lane_rows, put_lane_rows
from ascend_jax.runtime.share import divide, pace

NOBODY = 1 << 30
ALL = 255  # more blocks of one command than a chip has cores


class Tables(NamedTuple):
    """What a run reads only. N rows, S streams, B lanes."""

    work: jax.Array  # int32 [B, N + 1, WORK], what the engine needs of a command (see ``heads``)
    capacity: jax.Array  # int32 [R, B]
    stops: jax.Array  # bool [S, B]: the stream takes no more commands after a failure
    is_goal: jax.Array  # bool [S, B]: streams that must become empty
    has_goal: jax.Array  # bool [B]; without one the run goes on to its limit
    limit: Instant  # [B], time that must not be passed


class Carry(NamedTuple):
    """What a run changes."""

    head: Head
    now: Instant  # [B]
    instants: jax.Array  # int32 [B], moments at which something happened
    failed: jax.Array  # int32 [S, B]: row of the stream's first failed command, N if none
    lost: jax.Array  # int32 [B]: row of the command that took the device with it, N if none
    await_row: jax.Array  # int32 [B]: row of a command that must finish, N if none or finished
    await_cell: jax.Array  # int32 [B]: cell that must reach a count, NONE if none or reached
    await_count: jax.Array  # int32 [B]
    is_live: jax.Array  # bool [B]
    is_stuck: jax.Array  # bool [B]: the goal can never be reached
    times: jax.Array  # int32 [B, N + 1, len(Time)]
    cells: jax.Array  # int32 [B, C, 2]
    steps: jax.Array  # int32


class Look(NamedTuple):
    """What the heads could do now, [S, B]."""

    turn: jax.Array  # slot if it is over, S + slot for a mark, 2 S + slot past a deadline, else NOBODY
    key: jax.Array
    wake_hi: jax.Array
    wake_lo: jax.Array
    queue: jax.Array  # key of those with waiting blocks, UNREADY for others
    claim: jax.Array  # units that those need: cube + vector << 16
    engine_claim: jax.Array  # copy engines, a byte each
    held: jax.Array  # units that running blocks hold
    engine_held: jax.Array


class Retired(NamedTuple):
    """The command that retires in each lane, [B]."""

    exists: jax.Array
    is_late: jax.Array  # its deadline has passed
    row: jax.Array  # N if none
    bits: jax.Array
    start: Instant  # of a task


def step(tables: Tables, carry: Carry) -> Carry:
    """Do one step in every live lane."""
    flag = carry.steps >= 0
    look = apart(flag, _look, tables, carry)
    first = look.turn.min(0)
    is_idle = carry.is_live & (first == NOBODY) & is_before(carry.now, tables.limit)
    held = look.held.sum(0), look.engine_held.sum(0)
    granted = apart(flag, _grant, tables.capacity, carry.head, look, held, is_idle)
    head, running = apart(flag, _begin, carry, look, granted)
    rate = pace(flag, running, head.fourth)
    wait_ns = apart(flag, _wait_ns, carry, head, running, rate).min(0)
    delta_ns, now, is_stuck = apart(flag, _move, tables, carry, wait_ns, is_idle)
    head, over = apart(flag, _work, carry, head, rate, delta_ns)
    chosen, is_hot, has_more = apart(flag, _choose, carry, over, over.min(0), first, is_idle)
    retired = _retired(carry, head, chosen, is_hot)
    moved = (now.hi != carry.now.hi) | (now.lo != carry.now.lo)
    carry = carry._replace(head=head, now=now, instants=carry.instants + moved, is_stuck=carry.is_stuck | is_stuck)
    return _retire(flag, tables, carry, retired, is_hot, has_more.any(0))


def _slots(head: Head) -> jax.Array:
    return jnp.arange(head.row.shape[0], dtype=jnp.int32)[:, None]


def _groups(counts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (blocks waiting, blocks in the first group, in the second)."""
    return jax.lax.shift_right_logical(counts, jnp.full_like(counts, 16)), counts & 255, (counts >> 8) & 255


def _after(now: Instant, wait_us: jax.Array) -> Instant:
    """Return ``now`` plus microseconds."""
    thousands = (wait_us >> 15) * 1000  # of 2**15 us, so that nothing overflows
    low = ((thousands & (2**15 - 1)) << 15) + (wait_us & (2**15 - 1)) * 1000
    hi, low = now.hi + (thousands >> 15) + (low >> 30), (low & (LIMB - 1)) + now.lo
    return Instant(hi + (low >> 30), low & (LIMB - 1))


def _look(tables: Tables, carry: Carry) -> Look:
    head, now, slots = carry.head, carry.now, len(carry.head.row)
    is_task = bit(head.bits, Bits.TASK) == 1
    is_present = (head.row != carry.times.shape[-2] - 1) & carry.is_live
    is_due = is_present & ~is_before(now, Instant(head.wake_hi, head.wake_lo))
    comes, is_late = is_due & (head.key == UNREADY), is_due & (head.key != UNREADY)
    key = jnp.where(comes, (bit(head.bits, Bits.PRIORITY, 3) << 27) + carry.instants, head.key)
    deadline = _after(now, head.timeout_us)
    has_deadline = ~is_task & (head.timeout_us > 0)  # a task's deadline counts from its start
    waiting, first, second = _groups(head.counts)
    is_over = is_present & is_task & (head.start_hi >= 0) & (head.counts == 0)
    may = is_present & ~is_task & (key != UNREADY) & (head.counts == 0)
    turn = jnp.where(may, slots, jnp.where(is_late, 2 * slots, NOBODY))
    turn = jnp.where(is_before(now, tables.limit), turn, NOBODY)
    asks = is_present & is_task & (key != UNREADY) & (waiting > 0)
    units = bit(head.bits, Bits.CUBE) + (bit(head.bits, Bits.VECTOR, 2) << 16)
    engine = bit(head.bits, Bits.ENGINE, 2)
    engine_unit = jnp.where(engine > 0, 1 << ((engine - 1) * 8), 0)
    running = jnp.where(is_task, first + second, 0)
    return Look(
        turn=jnp.where(is_over, _slots(head), jnp.where(turn == NOBODY, NOBODY, turn + _slots(head))),
        key=key,
        wake_hi=jnp.where(comes, jnp.where(has_deadline, deadline.hi, FOREVER_HI), head.wake_hi),
        wake_lo=jnp.where(comes, jnp.where(has_deadline, deadline.lo, 0), head.wake_lo),
        queue=jnp.where(asks, key, UNREADY),
        claim=jnp.where(asks, jnp.minimum(waiting, ALL) * units, 0),
        engine_claim=jnp.where(asks, engine_unit, 0),
        held=running * units,
        engine_held=running * engine_unit,
    )


def _grant(capacity: jax.Array, head: Head, look: Look, held: tuple, is_idle: jax.Array) -> jax.Array:
    """Return how many blocks of each stream start now, int32 [S, B].

    In order of (priority, instant at which ready, slot); a command leaves free what those before it ask for, so nobody
    overtakes in a queue for a unit, and looking twice at one instant grants nothing new.
    """
    slots = _slots(head)

    def ahead(key: jax.Array, slot: jax.Array, claim: jax.Array) -> jax.Array:
        return jnp.where(key < look.queue + (slot < slots), claim, 0)

    others = look.queue, slots
    taken, engine_taken = (
        mine + sum_of_pairs(ahead, *others, claim)
        for mine, claim in zip(held, (look.claim, look.engine_claim), strict=True)
    )
    vector, engine = bit(head.bits, Bits.VECTOR, 2), bit(head.bits, Bits.ENGINE, 2)
    free_cube = capacity[Resource.CUBE] - (taken & 0xFFFF)
    free_vector = (capacity[Resource.VECTOR] - (taken >> 16)) >> (vector >> 1)
    free_engine = 1 - ((engine_taken >> (jnp.maximum(engine - 1, 0) * 8)) & 255)
    fits = jnp.where(bit(head.bits, Bits.CUBE) > 0, free_cube, NOBODY)
    fits = jnp.minimum(fits, jnp.where(vector > 0, free_vector, NOBODY))
    fits = jnp.maximum(jnp.minimum(fits, jnp.where(engine > 0, free_engine, NOBODY)), 0)
    waiting, first, second = _groups(head.counts)
    some = jnp.minimum(jnp.minimum(fits, waiting), ALL)
    all_or_none = jnp.where(some >= waiting, waiting, 0)
    granted = jnp.where(bit(head.bits, Bits.MODE) == 1, all_or_none, some)
    has_room = (first == 0) | (second == 0)
    return jnp.where((look.queue != UNREADY) & has_room & is_idle, granted, 0)


def _begin(carry: Carry, look: Look, granted: jax.Array) -> tuple[Head, jax.Array]:
    """Let granted blocks start as a group; return the heads and how many blocks of each run."""
    head, now = carry.head, carry.now
    begins, is_task = granted > 0, bit(head.bits, Bits.TASK) == 1
    is_first = begins & (head.start_hi == NONE)
    _, first, second = _groups(head.counts)
    work = head.first + jnp.where(is_first, head.second, 0)
    carries_over = work > WORK_CHUNK
    work -= carries_over * WORK_CHUNK
    chunks = head.third + carries_over
    in_first, in_second = begins & (first == 0), begins & (first != 0)
    deadline = _after(now, head.timeout_us)
    has_deadline = is_first & (head.timeout_us > 0)
    counts = head.counts - (granted << 16) + jnp.where(in_first, granted, granted << 8)
    begun = head._replace(
        key=look.key,
        wake_hi=jnp.where(has_deadline, deadline.hi, look.wake_hi),
        wake_lo=jnp.where(has_deadline, deadline.lo, look.wake_lo),
        start_hi=jnp.where(is_first, now.hi, head.start_hi),
        start_lo=jnp.where(is_first, now.lo, head.start_lo),
        counts=counts,
        chunks=jnp.where(
            in_first,
            (head.chunks & ~0xFFFF) | chunks,
            jnp.where(in_second, (head.chunks & 0xFFFF) | (chunks << 16), head.chunks),
        ),
        rest_first=jnp.where(in_first, work, head.rest_first),
        rest_second=jnp.where(in_second, work, head.rest_second),
    )
    return begun, jnp.where(is_task, first + second + granted, 0)


def _chunks(chunks: jax.Array) -> tuple[jax.Array, jax.Array]:
    return chunks & 0xFFFF, jax.lax.shift_right_logical(chunks, jnp.full_like(chunks, 16))


def _wait_ns(carry: Carry, head: Head, running: jax.Array, rate: jax.Array) -> jax.Array:
    """Return how long until something changes in each stream, NOBODY for never."""
    _, first, second = _groups(head.counts)
    is_present = (head.row != carry.times.shape[-2] - 1) & carry.is_live
    wake = Instant(head.wake_hi, head.wake_lo)
    soonest = jnp.where(
        is_present & (head.wake_hi < FOREVER_HI), jnp.minimum(until(carry.now, wake), NOBODY - 1), NOBODY
    )
    for blocks, chunks, rest in zip((first, second), _chunks(head.chunks), _rests(head), strict=True):
        work = jnp.minimum(rest, rate << 22)
        left = divide(work, rate)
        left = jnp.where(chunks > 0, CHUNK_NS, left + (left * rate < work))
        soonest = jnp.where((running > 0) & (blocks > 0), jnp.minimum(soonest, left), soonest)
    return soonest


def _rests(head: Head) -> tuple[jax.Array, jax.Array]:
    return head.rest_first, head.rest_second


def _move(
    tables: Tables, carry: Carry, wait_ns: jax.Array, is_idle: jax.Array
) -> tuple[jax.Array, Instant, jax.Array]:
    """Return (ns that running blocks get, the next moment, whether none will ever come), all [B]."""
    now, limit = carry.now, tables.limit
    is_over = is_idle & (wait_ns == NOBODY)  # nothing runs and nothing is to come
    is_stuck = is_over & (limit.hi == FOREVER_HI)
    delta_ns = jnp.where(is_idle & ~is_over, jnp.minimum(wait_ns, until(now, limit)), 0)
    low, jumps = now.lo + delta_ns, is_over & ~is_stuck
    hi, lo = now.hi + (low >> 30), low & (LIMB - 1)
    return delta_ns, Instant(jnp.where(jumps, limit.hi, hi), jnp.where(jumps, limit.lo, lo)), is_stuck


def _work(carry: Carry, head: Head, rate: jax.Array, delta_ns: jax.Array) -> tuple[Head, jax.Array]:
    """Let running blocks work for ``delta_ns``; return the heads, and the slots of those that are over."""
    done = delta_ns * rate
    counts, rests, chunks = head.counts, [], []
    is_task = bit(head.bits, Bits.TASK) == 1
    groups = zip(_groups(counts)[1:], _chunks(head.chunks), _rests(head), (0, 8), strict=True)
    for blocks, whole, rest, shift in groups:
        rest = rest - done
        borrows = (rest <= 0) & (whole > 0)
        rest += borrows * WORK_CHUNK
        counts -= jnp.where((rest <= 0) & is_task, blocks << shift, 0)
        rests.append(rest)
        chunks.append(whole - borrows)
    is_present = (head.row != carry.times.shape[-2] - 1) & carry.is_live
    is_over = is_present & is_task & (head.start_hi >= 0) & (counts == 0)
    worked = head._replace(
        counts=counts, chunks=chunks[0] | (chunks[1] << 16), rest_first=rests[0], rest_second=rests[1]
    )
    return worked, jnp.where(is_over, _slots(head), NOBODY)


def _choose(
    carry: Carry, over: jax.Array, first_over: jax.Array, first: jax.Array, is_idle: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (what retires [B], the stream it is in as bool [S, B], who else is over [S, B])."""
    slots = over.shape[0]
    chosen = jnp.minimum(first_over, jnp.where(is_idle, NOBODY, first))
    slot = chosen - jnp.where(chosen >= 2 * slots, 2 * slots, jnp.where(chosen >= slots, slots, 0))
    is_hot = (_slots(carry.head) == slot) & (chosen != NOBODY)
    return chosen, is_hot, (over != NOBODY) & ~is_hot


def _retired(carry: Carry, head: Head, chosen: jax.Array, is_hot: jax.Array) -> Retired:
    def of(words: jax.Array) -> jax.Array:
        return jnp.where(is_hot, words, 0).sum(0)

    exists = chosen != NOBODY
    row = jnp.where(exists, of(head.row), carry.times.shape[-2] - 1)
    is_late = exists & (chosen >= 2 * len(head.row))
    return Retired(exists, is_late, row, of(head.bits), Instant(of(head.start_hi), of(head.start_lo)))


class Outcome(NamedTuple):
    """What a retiring command leaves behind, [B]."""

    phase: jax.Array
    fails_stream: jax.Array
    fails_device: jax.Array
    is_changing: jax.Array  # it changes its cell
    cell: jax.Array
    value: Instant  # of the cell afterwards
    next_row: jax.Array


def _outcome(tables: Tables, carry: Carry, retired: Retired, is_hot: jax.Array) -> Outcome:
    words = get_lane_rows(tables.work, retired.row)
    is_task, reach = bit(retired.bits, Bits.TASK) == 1, bit(retired.bits, Bits.REACH, 2)
    is_failed = retired.exists & (retired.is_late | (reach > 0))
    reach = jnp.where(retired.is_late, jnp.where(is_task, Reach.DEVICE, Reach.STREAM), reach)
    fails_stream = is_failed & (reach == Reach.STREAM)
    change, cell = words[:, Work.CHANGE], words[:, Work.CELL]
    old = get_lane_rows(carry.cells, cell)
    added = old[:, 1] + words[:, Work.VALUE_LO]
    overflow = (added.astype(jnp.uint32) < old[:, 1].astype(jnp.uint32)).astype(jnp.int32)
    hi, lo = words[:, Work.VALUE_HI], words[:, Work.VALUE_LO]
    hi = jnp.where(change == Change.ADD, old[:, 0] + hi + overflow, jnp.where(change == Change.SET, hi, 0))
    lo = jnp.where(change == Change.ADD, added, jnp.where(change == Change.SET, lo, 0))
    is_stopped = fails_stream & (tables.stops & is_hot).any(0)
    rows = carry.times.shape[-2] - 1
    phase = jnp.where(retired.is_late, Phase.EXPIRED, jnp.where(is_failed, Phase.FAULTED, Phase.DONE))
    return Outcome(
        phase=phase,
        fails_stream=fails_stream,
        fails_device=is_failed & (reach == Reach.DEVICE),
        is_changing=retired.exists & ~is_failed & (change != Change.NONE),
        cell=cell,
        value=Instant(hi, lo),
        next_row=jnp.where(retired.exists & ~is_stopped, words[:, Work.NEXT], rows),
    )


def _retire(
    flag: jax.Array, tables: Tables, carry: Carry, retired: Retired, is_hot: jax.Array, has_more: jax.Array
) -> Carry:
    """Stamp what retires, apply its change, and bring up the next command of its stream."""
    rows, now = carry.times.shape[-2] - 1, carry.now
    outcome = apart(flag, _outcome, tables, carry, retired, is_hot)
    is_task = bit(retired.bits, Bits.TASK) == 1
    start = Instant(*(jnp.where(is_task, mine, here) for mine, here in zip(retired.start, now, strict=True)))
    stamps = jnp.stack([outcome.phase, *start, *now], axis=-1)
    times = put_lane_rows(carry.times, retired.row, stamps, slice(Time.PHASE, Time.END_LO + 1))
    target = jnp.where(outcome.is_changing, outcome.cell, carry.cells.shape[-2] - 1)
    cells = put_lane_rows(carry.cells, target, jnp.stack(outcome.value, axis=-1))
    fresh = head_of(outcome.next_row, apart(flag, fetch, tables.work, times, cells, outcome.next_row))
    issue = Instant(fresh.wake_hi, fresh.wake_lo)
    is_waiting = is_before(now, issue)
    ready = jnp.stack([jnp.where(is_waiting, then, here) for then, here in zip(issue, now, strict=True)], axis=-1)
    times = put_lane_rows(times, outcome.next_row, ready, slice(Time.READY_HI, Time.READY_LO + 1))
    head = apart(flag, _refresh, carry.head, apart(flag, lambda x: x, fresh), outcome, retired, is_hot)
    is_it = outcome.fails_stream & is_hot & (carry.failed == rows)
    await_row = jnp.where(retired.exists & (carry.await_row == retired.row), rows, carry.await_row)
    is_counted = outcome.is_changing & (outcome.cell == carry.await_cell) & (outcome.value.lo >= carry.await_count)
    await_cell = jnp.where(is_counted, NONE, carry.await_cell)
    lost = jnp.where(outcome.fails_device, retired.row, carry.lost)
    carry = carry._replace(
        head=head,
        failed=jnp.where(is_it, retired.row, carry.failed),
        lost=lost,
        await_row=await_row,
        await_cell=await_cell,
        times=times,
        cells=cells,
        steps=carry.steps + 1,
    )
    return carry._replace(is_live=carry.is_live & goes_on(tables, carry, has_more))


def _refresh(head: Head, fresh: Head, outcome: Outcome, retired: Retired, is_hot: jax.Array) -> Head:
    """Put the next command in place of what retired, and open marks that waited for that."""
    is_mark = bit(head.bits, Bits.TASK) == 0
    is_held = (head.counts & 1) * ~(retired.exists & (head.fourth == retired.row))
    is_seen = outcome.is_changing & (head.third == outcome.cell)
    met = is_met(bit(head.bits, Bits.CONDITION, 3), outcome.value, Instant(head.first, head.second))
    closed = is_held + jnp.where(is_seen, ~met * 2, head.counts & 2)
    waiting = head._replace(counts=jnp.where(is_mark, closed, head.counts))
    return jax.tree.map(lambda new, old: jnp.where(is_hot, new, old), fresh, waiting)


def is_reached(tables: Tables, carry: Carry) -> jax.Array:
    """Return which lanes have what they are run for, bool [B]; never where there is no goal."""
    rows = carry.times.shape[-2] - 1
    is_empty = (~tables.is_goal | (carry.head.row == rows)).all(0)
    return tables.has_goal & is_empty & (carry.await_row == rows) & (carry.await_cell == NONE)


def goes_on(tables: Tables, carry: Carry, has_more: jax.Array) -> jax.Array:
    """Return which lanes have neither reached their goal nor run out of time, bool [B]."""
    in_time = is_before(carry.now, tables.limit) | has_more
    is_lost = carry.lost != carry.times.shape[-2] - 1
    return ~is_reached(tables, carry) & in_time & ~is_lost & ~carry.is_stuck
