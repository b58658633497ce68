"""Retirement: one command a step and lane leaves the head of its stream, and the next one comes up."""

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime.apart import UNROLLED, apart
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.heads import Bits, Head, Orders, Work, bit, fetch, is_met
from ascend_jax.runtime.lanes import NOBODY, Carry, Lane, Tables, goes_on, is_late, slot_of, slots_of
from ascend_jax.runtime.layout import NONE, UNREADY, Change, Phase, Reach, Time
from ascend_jax.runtime.rows import get_lane_rows, part, put_lane_rows


class Retired(NamedTuple):
    """The command that retires in each lane, [B]."""

    turn: jax.Array  # see ``dispatch.Look``; NOBODY if none retires
    row: jax.Array  # N if none
    words: jax.Array  # [WORK, B]
    start: Instant  # of a task

    @property
    def exists(self) -> jax.Array:
        """Whether a command retires, bool [B]."""
        return self.turn != NOBODY

    def is_hot(self, head: Head) -> jax.Array:
        """Return which stream it leaves, bool [S, B]."""
        return slots_of(head) == slot_of(self.turn)

    @property
    def is_task(self) -> jax.Array:
        """Whether it is a task, bool [B]."""
        return bit(part(self.words, Work.BITS), Bits.TASK) == 1

    @property
    def cell(self) -> jax.Array:
        """The cell that it may change, 0 of a task."""
        return jnp.where(self.is_task, 0, part(self.words, Work.THIRD))


class Leaves(enum.IntFlag):
    """What of this a retiring command has done."""

    STREAM_FAILED = 1
    DEVICE_LOST = 2
    CELL_CHANGED = 4


class Outcome(NamedTuple):
    """What a retiring command leaves behind."""

    leaves: jax.Array  # int32 [B], Leaves
    value: Instant  # words of its cell afterwards, or of the trash cell
    next_row: jax.Array  # [B]
    stamps: jax.Array  # [B, len(Time)]

    def has(self, what: Leaves) -> jax.Array:
        """Return in which lanes it leaves this behind, bool [B]."""
        return (self.leaves & what) != 0


def choose(carry: Carry, head: Head, turn: jax.Array) -> Retired:
    """Return the command that retires in each lane; ``turn`` as in ``dispatch.Look``."""
    slot = slot_of(turn)
    row = jnp.where(turn == NOBODY, carry.times.shape[-2] - 1, _of_slot(slot, head.row))
    start = Instant(_of_slot(slot, head.start_hi), _of_slot(slot, head.start_lo))
    return Retired(turn, row, _of_slot(slot, head.words), start)


def _of_slot(slot: jax.Array, array: jax.Array) -> jax.Array:
    """Return the entries [..., B] of the chosen streams of [..., S, B], 0 of NOBODY."""
    slots = array.shape[-2]
    if slots > UNROLLED:
        return jnp.where(jnp.arange(slots, dtype=jnp.int32)[:, None] == slot, array, 0).sum(-2)
    rows = (lax.index_in_dim(array, number, -2, keepdims=False) for number in range(slots))
    # an unrolled sum is one vector loop
    return sum(jnp.where(slot == number, row, 0) for number, row in enumerate(rows))  # type: ignore[return-value]


def retire(
    flag: jax.Array,
    orders: Orders,
    tables: Tables,
    carry: Carry,
    retired: Retired,
    now: Instant,
    numbers: dict[Lane, jax.Array],
    has_more: jax.Array,
) -> Carry:
    """Stamp what retires now, apply its change, and bring up the next command of its stream.

    ``numbers`` are those of the carry that have changed in this step before.
    """
    rows, exists = carry.times.shape[-2] - 1, retired.exists
    outcome = apart(flag, _outcome, tables, carry, retired, now)
    times = put_lane_rows(carry.times, retired.row, outcome.stamps)
    is_changing = outcome.has(Leaves.CELL_CHANGED)
    cells = put_lane_rows(
        carry.cells, jnp.where(is_changing, retired.cell, carry.cells.shape[-2] - 1), jnp.stack(outcome.value, axis=-1)
    )
    words, counts = apart(flag, fetch, orders, times, cells, outcome.next_row, now)
    is_it = outcome.has(Leaves.STREAM_FAILED) & retired.is_hot(carry.head) & (carry.failed == rows)
    await_row, await_cell = carry.number(Lane.AWAIT_ROW), carry.number(Lane.AWAIT_CELL)
    is_counted = is_changing & (retired.cell == await_cell) & (outcome.value.lo >= carry.await_count)
    numbers = numbers | {
        Lane.RETIRED: carry.number(Lane.RETIRED) + exists,
        Lane.LOST: jnp.where(outcome.has(Leaves.DEVICE_LOST), retired.row, carry.number(Lane.LOST)),
        Lane.AWAIT_ROW: jnp.where(exists & (await_row == retired.row), rows, await_row),
        Lane.AWAIT_CELL: jnp.where(is_counted, NONE, await_cell),
    }
    head = _next(carry.head, words, outcome, retired)  # in place: nothing reads the old words any more
    carry = carry._replace(
        head=head._replace(counts=apart(flag, _reopen, head, counts, outcome, retired)),
        failed=jnp.where(is_it, retired.row, carry.failed),
        times=times,
        cells=cells,
    ).with_numbers(numbers)
    return carry.with_live(carry.is_live & goes_on(tables, carry, has_more))


def _outcome(tables: Tables, carry: Carry, retired: Retired, now: Instant) -> Outcome:
    words, exists, is_task, late = retired.words, retired.exists, retired.is_task, is_late(retired.turn)
    reach = bit(part(words, Work.BITS), Bits.REACH, 2)
    is_failed = exists & (late | (reach > 0))
    reach = jnp.where(late, jnp.where(is_task, Reach.DEVICE, Reach.STREAM), reach)
    fails_stream = is_failed & (reach == Reach.STREAM)
    phase = jnp.where(late, Phase.EXPIRED, jnp.where(is_failed, Phase.FAULTED, Phase.DONE))
    change = jnp.where(is_task, Change.NONE, bit(part(words, Work.BITS), Bits.CHANGE, 2))
    old, hi, lo = get_lane_rows(carry.cells, retired.cell), part(words, Work.FIRST), part(words, Work.SECOND)
    added = old[:, 1] + lo
    overflow = (added.astype(jnp.uint32) < old[:, 1].astype(jnp.uint32)).astype(jnp.int32)
    hi = jnp.where(change == Change.ADD, old[:, 0] + hi + overflow, jnp.where(change == Change.SET, hi, 0))
    lo = jnp.where(change == Change.ADD, added, jnp.where(change == Change.SET, lo, 0))
    is_changing = exists & ~is_failed & (change != Change.NONE)
    stops = _of_slot(slot_of(retired.turn), tables.stops.astype(jnp.int32)) == 1  # takes no more after a failure
    stamps = {
        Time.READY_HI: part(words, Work.READY_HI),
        Time.READY_LO: part(words, Work.READY_LO),
        Time.START_HI: jnp.where(is_task, retired.start.hi, now.hi),
        Time.START_LO: jnp.where(is_task, retired.start.lo, now.lo),
        Time.END_HI: now.hi,
        Time.END_LO: now.lo,
        Time.PHASE: phase,  # DONE if none retires: what depends on nothing depends on the trash row
        Time.ORDER: carry.number(Lane.RETIRED),
    }
    leaves = (
        (fails_stream, Leaves.STREAM_FAILED),
        (is_failed & (reach == Reach.DEVICE), Leaves.DEVICE_LOST),
        (is_changing, Leaves.CELL_CHANGED),
    )
    return Outcome(
        leaves=sum(jnp.where(is_left, int(what), 0) for is_left, what in leaves),  # type: ignore[arg-type]
        value=Instant(hi, lo),
        next_row=jnp.where(exists & ~(fails_stream & stops), part(words, Work.NEXT), carry.times.shape[-2] - 1),
        stamps=jnp.stack([stamps[column] for column in Time], axis=-1),
    )


def _next(head: Head, words: jax.Array, outcome: Outcome, retired: Retired) -> Head:
    """Put the next command in place of what retired."""
    is_hot = retired.is_hot(head)
    return head._replace(
        row=jnp.where(is_hot, outcome.next_row, head.row),
        words=jnp.where(is_hot, words[:, None], head.words),
        key=jnp.where(is_hot, UNREADY, head.key),
    )


def _reopen(head: Head, counts: jax.Array, outcome: Outcome, retired: Retired) -> jax.Array:
    """Return ``Head.counts`` with those of the command that came up, and marks open that waited for what retired."""
    is_hot, is_changing, old = retired.is_hot(head), outcome.has(Leaves.CELL_CHANGED), head.counts
    is_held = (old & 1) * ~(retired.exists & (head.word(Work.FOURTH) == retired.row))

    def look_again() -> jax.Array:
        value = Instant(head.word(Work.FIRST), head.word(Work.SECOND))
        met = is_met(bit(head.word(Work.BITS), Bits.CONDITION, 3), outcome.value, value)
        return jnp.where(is_changing & (head.word(Work.THIRD) == retired.cell), ~met * 2, old & 2)

    # most programs have no cells
    closed = is_held + lax.cond(is_changing.any(), look_again, lambda: old & 2)
    return jnp.where(is_hot, counts, jnp.where(head.is_task, old, closed))
