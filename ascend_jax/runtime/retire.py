"""Retirement: one command a step and lane leaves the head of its stream, and the next one comes up."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime.apart import apart, over_streams
from ascend_jax.runtime.clock import Instant, is_before
from ascend_jax.runtime.heads import Bits, Head, bit, fetch, head_of, is_met
from ascend_jax.runtime.lanes import NOBODY, Carry, Tables, goes_on, slots_of
from ascend_jax.runtime.layout import NONE, Change, Phase, Reach, Time
from ascend_jax.runtime.rows import get_lane_rows, put_lane_rows


class Retired(NamedTuple):
    """The command that retires in each lane, [B]."""

    exists: jax.Array
    is_late: jax.Array  # its deadline has passed
    row: jax.Array  # N if none
    bits: jax.Array
    start: Instant  # of a task
    following: jax.Array  # row of the next command
    cell: jax.Array  # of a mark
    value: Instant  # of a mark


class Outcome(NamedTuple):
    """What a retiring command leaves behind, [B]."""

    phase: jax.Array
    fails_stream: jax.Array
    fails_device: jax.Array
    is_changing: jax.Array  # it changes its cell
    cell: jax.Array
    value: Instant  # of the cell afterwards
    next_row: jax.Array


def choose(carry: Carry, first_over: jax.Array, first: jax.Array, is_idle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (what retires: slot, S + slot or 2 S + slot, NOBODY for none, [B]; the stream it is in, bool [S, B])."""
    slots = len(carry.head.row)
    chosen = jnp.minimum(first_over, jnp.where(is_idle, NOBODY, first))
    slot = chosen - jnp.where(chosen >= 2 * slots, 2 * slots, jnp.where(chosen >= slots, slots, 0))
    return chosen, (slots_of(carry.head) == slot) & (chosen != NOBODY)


def retired(carry: Carry, head: Head, chosen: jax.Array, is_hot: jax.Array) -> Retired:
    """Return the command that retires in each lane."""
    words = (head.row, head.bits, head.start_hi, head.start_lo, head.following, head.third, head.first, head.second)
    row, bits, hi, lo, following, cell, *value = over_streams(*(jnp.where(is_hot, word, 0) for word in words))
    exists = chosen != NOBODY
    is_late = exists & (chosen >= 2 * len(head.row))
    row = jnp.where(exists, row, carry.times.shape[-2] - 1)
    return Retired(exists, is_late, row, bits, Instant(hi, lo), following, cell, Instant(*value))


def retire(
    flag: jax.Array, tables: Tables, carry: Carry, retired: Retired, is_hot: jax.Array, has_more: jax.Array
) -> Carry:
    """Stamp what retires, apply its change, and bring up the next command of its stream."""
    rows, now = carry.times.shape[-2] - 1, carry.now
    outcome = apart(flag, _outcome, tables, carry, retired, is_hot)
    is_task = bit(retired.bits, Bits.TASK) == 1
    start = Instant(*(jnp.where(is_task, mine, here) for mine, here in zip(retired.start, now, strict=True)))
    # the trash row stays as it is, so that a lane looks the same alone and among others
    marks = (jnp.where(retired.exists, mark, 0) for mark in (*start, *now, carry.retired))
    stamps = jnp.stack([outcome.phase, *marks], axis=-1)
    times = put_lane_rows(carry.times, retired.row, stamps, slice(Time.PHASE, Time.ORDER + 1))
    target = jnp.where(outcome.is_changing, outcome.cell, carry.cells.shape[-2] - 1)
    cells = put_lane_rows(carry.cells, target, jnp.stack(outcome.value, axis=-1))
    words, closed = apart(flag, fetch, tables.work, times, cells, outcome.next_row)
    fresh = head_of(outcome.next_row, words, closed)
    issue = Instant(fresh.wake_hi, fresh.wake_lo)
    is_waiting, is_row = is_before(now, issue), outcome.next_row != rows
    limbs = [jnp.where(is_waiting, then, here) * is_row for then, here in zip(issue, now, strict=True)]
    ready = jnp.stack(limbs, axis=-1)
    times = put_lane_rows(times, outcome.next_row, ready, slice(Time.READY_HI, Time.READY_LO + 1))
    head = _refresh(carry.head, fresh, outcome, retired, is_hot)  # in place, so not apart
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
        retired=carry.retired + retired.exists,
        steps=carry.steps + 1,
    )
    return carry._replace(is_live=carry.is_live & goes_on(tables, carry, has_more))


def _outcome(tables: Tables, carry: Carry, retired: Retired, is_hot: jax.Array) -> Outcome:
    is_task, reach = bit(retired.bits, Bits.TASK) == 1, bit(retired.bits, Bits.REACH, 2)
    is_failed = retired.exists & (retired.is_late | (reach > 0))
    reach = jnp.where(retired.is_late, jnp.where(is_task, Reach.DEVICE, Reach.STREAM), reach)
    fails_stream = is_failed & (reach == Reach.STREAM)
    change = jnp.where(is_task, Change.NONE, bit(retired.bits, Bits.CHANGE, 2))
    cell, (hi, lo) = jnp.where(is_task, 0, retired.cell), retired.value
    old = get_lane_rows(carry.cells, cell)
    added = old[:, 1] + lo
    overflow = (added.astype(jnp.uint32) < old[:, 1].astype(jnp.uint32)).astype(jnp.int32)
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
        next_row=jnp.where(retired.exists & ~is_stopped, retired.following, rows),
    )


def _refresh(head: Head, fresh: Head, outcome: Outcome, retired: Retired, is_hot: jax.Array) -> Head:
    """Put the next command in place of what retired, and open marks that waited for that."""
    is_mark = bit(head.bits, Bits.TASK) == 0
    is_held = (head.counts & 1) * ~(retired.exists & (head.fourth == retired.row))

    def look_again() -> jax.Array:
        met = is_met(bit(head.bits, Bits.CONDITION, 3), outcome.value, Instant(head.first, head.second))
        return jnp.where(outcome.is_changing & (head.third == outcome.cell), ~met * 2, head.counts & 2)

    # most programs have no cells
    closed = is_held + lax.cond(outcome.is_changing.any(), look_again, lambda: head.counts & 2)
    waiting = head._replace(counts=jnp.where(is_mark, closed, head.counts))
    return jax.tree.map(lambda new, old: jnp.where(is_hot, new, old), fresh, waiting)
