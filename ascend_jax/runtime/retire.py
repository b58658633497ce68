"""Retirement: one command a step and lane leaves the head of its stream, and the next one comes up."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime.apart import UNROLLED, apart
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.heads import Bits, Head, Orders, Work, bit, fetch, is_met
from ascend_jax.runtime.lanes import NOBODY, Carry, Tables, goes_on, slots_of
from ascend_jax.runtime.layout import NONE, UNREADY, Change, Phase, Reach, Time
from ascend_jax.runtime.rows import get_lane_rows, part, put_lane_rows


class Retired(NamedTuple):
    """The command that retires in each lane, [B]."""

    slot: jax.Array  # its stream, NOBODY if none retires
    is_late: jax.Array  # its deadline has passed
    row: jax.Array  # N if none
    words: jax.Array  # [WORK, B]
    start: Instant  # of a task
    stops: jax.Array  # its stream takes no more commands after a failure

    @property
    def exists(self) -> jax.Array:
        """Whether a command retires, bool [B]."""
        return self.slot != NOBODY


class Outcome(NamedTuple):
    """What a retiring command leaves behind, [B]."""

    fails_stream: jax.Array
    fails_device: jax.Array
    is_changing: jax.Array  # it changes its cell
    cell: jax.Array
    value: Instant  # of the cell afterwards
    next_row: jax.Array
    stamps: jax.Array  # [len(Time), B]


def choose(tables: Tables, carry: Carry, head: Head, chosen: jax.Array) -> Retired:
    """Return the command that retires in each lane; ``chosen`` as in ``Look.turn``."""
    slots = len(head.row)
    slot = chosen - jnp.where(chosen >= 2 * slots, 2 * slots, jnp.where(chosen >= slots, slots, 0))
    slot = jnp.where(chosen == NOBODY, NOBODY, slot)
    is_slot = [slot == number for number in range(min(slots, UNROLLED))]

    def of_slot(array: jax.Array) -> jax.Array:
        """Return the entries of the chosen streams; an unrolled sum is one vector loop."""
        if slots > UNROLLED:
            return jnp.where(slots_of(head) == slot, array, 0).sum(-2)
        rows = (lax.index_in_dim(array, number, -2, keepdims=False) for number in range(slots))
        return sum(jnp.where(is_it, row, 0) for is_it, row in zip(is_slot, rows, strict=True))  # type: ignore[return-value]

    row = jnp.where(chosen == NOBODY, carry.times.shape[-2] - 1, of_slot(head.row))
    is_late = (chosen != NOBODY) & (chosen >= 2 * slots)
    start = Instant(of_slot(head.start_hi), of_slot(head.start_lo))
    return Retired(slot, is_late, row, of_slot(head.words), start, of_slot(tables.stops.astype(jnp.int32)) == 1)


def retire(
    flag: jax.Array, orders: Orders, tables: Tables, carry: Carry, retired: Retired, has_more: jax.Array
) -> Carry:
    """Stamp what retires, apply its change, and bring up the next command of its stream."""
    rows, exists = carry.times.shape[-2] - 1, retired.exists
    outcome = apart(flag, _outcome, carry, retired)
    times = put_lane_rows(carry.times, retired.row, outcome.stamps.T)
    target = jnp.where(outcome.is_changing, outcome.cell, carry.cells.shape[-2] - 1)
    cells = put_lane_rows(carry.cells, target, jnp.stack(outcome.value, axis=-1))
    words, counts = apart(flag, fetch, orders, times, cells, outcome.next_row, carry.now)
    is_hot = slots_of(carry.head) == retired.slot
    is_it = outcome.fails_stream & is_hot & (carry.failed == rows)
    await_row = jnp.where(exists & (carry.await_row == retired.row), rows, carry.await_row)
    is_counted = outcome.is_changing & (outcome.cell == carry.await_cell) & (outcome.value.lo >= carry.await_count)
    head = _next(carry.head, words, outcome, retired)  # in place: nothing reads the old words any more
    carry = carry._replace(
        head=head._replace(counts=apart(flag, _reopen, head, counts, outcome, retired)),
        failed=jnp.where(is_it, retired.row, carry.failed),
        lost=jnp.where(outcome.fails_device, retired.row, carry.lost),
        await_row=await_row,
        await_cell=jnp.where(is_counted, NONE, carry.await_cell),
        times=times,
        cells=cells,
        retired=carry.retired + exists,
        steps=carry.steps + 1,
    )
    return carry._replace(is_live=carry.is_live & goes_on(tables, carry, has_more))


def _outcome(carry: Carry, retired: Retired) -> Outcome:
    words, now, exists = retired.words, carry.now, retired.exists
    is_task, reach = bit(part(words, Work.BITS), Bits.TASK) == 1, bit(part(words, Work.BITS), Bits.REACH, 2)
    is_failed = exists & (retired.is_late | (reach > 0))
    reach = jnp.where(retired.is_late, jnp.where(is_task, Reach.DEVICE, Reach.STREAM), reach)
    fails_stream = is_failed & (reach == Reach.STREAM)
    phase = jnp.where(retired.is_late, Phase.EXPIRED, jnp.where(is_failed, Phase.FAULTED, Phase.DONE))
    change = jnp.where(is_task, Change.NONE, bit(part(words, Work.BITS), Bits.CHANGE, 2))
    cell, hi, lo = jnp.where(is_task, 0, part(words, Work.THIRD)), part(words, Work.FIRST), part(words, Work.SECOND)
    old = get_lane_rows(carry.cells, cell)
    added = old[:, 1] + lo
    overflow = (added.astype(jnp.uint32) < old[:, 1].astype(jnp.uint32)).astype(jnp.int32)
    hi = jnp.where(change == Change.ADD, old[:, 0] + hi + overflow, jnp.where(change == Change.SET, hi, 0))
    lo = jnp.where(change == Change.ADD, added, jnp.where(change == Change.SET, lo, 0))
    is_changing = exists & ~is_failed & (change != Change.NONE)
    start = [jnp.where(is_task, mine, here) for mine, here in zip(retired.start, now, strict=True)]
    stamps = {
        Time.READY_HI: part(words, Work.READY_HI),
        Time.READY_LO: part(words, Work.READY_LO),
        Time.PHASE: phase,
        **dict(zip((Time.START_HI, Time.START_LO, Time.END_HI, Time.END_LO), (*start, *now), strict=True)),
        Time.ORDER: carry.retired,
    }
    # the trash row, and the trash cell, stay as they are: a lane looks the same alone and among others
    kept = [jnp.where(exists, stamps[column], Phase.DONE if column == Time.PHASE else 0) for column in Time]
    return Outcome(
        fails_stream=fails_stream,
        fails_device=is_failed & (reach == Reach.DEVICE),
        is_changing=is_changing,
        cell=cell,
        value=Instant(jnp.where(is_changing, hi, 0), jnp.where(is_changing, lo, 0)),
        next_row=jnp.where(exists & ~(fails_stream & retired.stops), part(words, Work.NEXT), carry.times.shape[-2] - 1),
        stamps=jnp.stack(kept),
    )


def _next(head: Head, words: jax.Array, outcome: Outcome, retired: Retired) -> Head:
    """Put the next command in place of what retired."""
    is_hot = slots_of(head) == retired.slot
    return head._replace(
        row=jnp.where(is_hot, outcome.next_row, head.row),
        words=jnp.where(is_hot, words[:, None], head.words),
        key=jnp.where(is_hot, UNREADY, head.key),
    )


def _reopen(head: Head, counts: jax.Array, outcome: Outcome, retired: Retired) -> jax.Array:
    """Return ``Head.counts`` with those of the command that came up, and marks open that waited for what retired."""
    is_hot, old = slots_of(head) == retired.slot, head.counts
    is_held = (old & 1) * ~(retired.exists & (head.word(Work.FOURTH) == retired.row))

    def look_again() -> jax.Array:
        value = Instant(head.word(Work.FIRST), head.word(Work.SECOND))
        met = is_met(bit(head.word(Work.BITS), Bits.CONDITION, 3), outcome.value, value)
        return jnp.where(outcome.is_changing & (head.word(Work.THIRD) == outcome.cell), ~met * 2, old & 2)

    # most programs have no cells
    closed = is_held + lax.cond(outcome.is_changing.any(), look_again, lambda: old & 2)
    return jnp.where(is_hot, counts, jnp.where(head.is_task, old, closed))
