"""The command at the head of each stream, as the engine sees it: few packed words, refreshed when a command retires."""

import enum
import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime.clock import Instant, later, plus
from ascend_jax.runtime.layout import (
    CHUNK_NS,
    FOREVER_HI,
    FULL_RATE,
    TASKS,
    WORK_CHUNK,
    Condition,
    Field,
    Kind,
    Phase,
    Resource,
    Time,
)
from ascend_jax.runtime.rows import get_lane_entries, get_lane_rows, part


class Work(enum.IntEnum):
    """Columns of the engine's table [N + 1, WORK]. "task | mark" share a word."""

    BITS = 0
    CORES = 1  # of a block: cube cores + vector cores << 16
    ENGINE = 2  # copy engine of a block: a bit in the byte of H2D, D2H or D2D
    TIMEOUT_HI = 3  # 0, 0: none
    TIMEOUT_LO = 4
    SECOND = 5  # work of the launch head | low word of the value
    FOURTH = 6  # shares, HBM + L2 << 16 | row of the command to wait for, N for none
    BLOCKS = 7  # 0 for a mark
    NEXT = 8  # row of the next command of the stream
    # looked up when it comes to the head
    READY_HI = 9  # when it is issued; of a head, when it was issued and at the head
    READY_LO = 10
    FIRST = 11  # rest of a block's work beyond its chunks, from the table of blocks | high word of the value
    THIRD = 12  # chunks of a block's work, from the table of blocks | cell


WORK = len(Work)


class Orders(NamedTuple):
    """All commands, as the engine sees them. One lane of a table serves all if there is only one."""

    work: jax.Array  # int32 [B or 1, N + 1, WORK]
    blocks: jax.Array  # int32 [B or 1, N + 1, 2], work of one block: chunks, rest


class Bits(enum.IntEnum):
    """Positions in ``Work.BITS``."""

    TASK = 0
    MODE = 1
    PRIORITY = 2  # three bits
    CONDITION = 5  # three bits
    REACH = 8  # two bits, of a planned fault
    CHANGE = 10  # two bits
    RENDEZVOUS = 12
    COMPLETE = 13  # of a rendezvous at the head: all have come; FIRST and BLOCKS say when
    LINKS = 14  # a task on links between cards: its L2 share is one of links


class Head(NamedTuple):
    """Heads of all streams: what they are, and how far they have come. Int32 [S, B] unless it says otherwise."""

    row: jax.Array  # N: the stream is empty
    words: jax.Array  # [WORK, S, B], the command's columns
    key: jax.Array  # UNREADY until it is seen to be ready
    start_hi: jax.Array  # of a task, once a block has started
    start_lo: jax.Array
    counts: jax.Array  # task: blocks waiting << 16 | second group << 8 | first group; mark: 0 once it may happen
    chunks: jax.Array  # second group << 16 | first group; like the rests, of groups that run
    rest_first: jax.Array
    rest_second: jax.Array

    def word(self, column: Work) -> jax.Array:
        """Return one column of all heads, int32 [S, B]."""
        return part(self.words, column)

    @property
    def is_task(self) -> jax.Array:
        """Whether it takes time and units, bool [S, B]; if not it is a mark."""
        return bit(self.word(Work.BITS), Bits.TASK) == 1

    @property
    def ready(self) -> Instant:
        """When it was at the head of its stream and issued, or will be issued."""
        return Instant(self.word(Work.READY_HI), self.word(Work.READY_LO))

    @property
    def start(self) -> Instant:
        """When the first block of a task started; undefined before."""
        return Instant(self.start_hi, self.start_lo)

    @property
    def deadline(self) -> Instant:
        """When it fails unless it is over: a task counts from its start, a mark from ready; FOREVER_HI if never."""
        wait = Instant(self.word(Work.TIMEOUT_HI), self.word(Work.TIMEOUT_LO))
        since = Instant(*(jnp.where(self.is_task, a, b) for a, b in zip(self.start, self.ready, strict=True)))
        counts = ((wait.hi | wait.lo) > 0) & (self.has_begun | ~self.is_task)
        end = plus(since, wait)
        return Instant(jnp.where(counts, end.hi, FOREVER_HI), jnp.where(counts, end.lo, 0))

    @property
    def has_begun(self) -> jax.Array:
        """Whether a task has started a block, bool [S, B]; false for marks."""
        return self.is_task & (groups_of(self.counts)[0] < self.word(Work.BLOCKS))


def bit(bits: jax.Array, position: Bits, width: int = 1) -> jax.Array:
    """Return one entry of a packed word."""
    return (bits >> position) & ((1 << width) - 1)


def groups_of(counts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (blocks waiting, blocks in the first group, in the second) of ``Head.counts`` of tasks."""
    return lax.shift_right_logical(counts, jnp.full_like(counts, 16)), counts & 255, (counts >> 8) & 255


def chunks_of(block: Instant) -> tuple[jax.Array, jax.Array]:
    """Return a block's work at full speed as (whole chunks, rest); the rest is never 0 while chunks are left."""
    chunks, rest = (block.hi << 8) + (block.lo >> 22), (block.lo & (CHUNK_NS - 1)) * FULL_RATE
    is_whole = (rest == 0) & (chunks > 0)
    return chunks - is_whole, jnp.where(is_whole, WORK_CHUNK, rest)


def blocks_of(block: Instant) -> jax.Array:
    """Return the engine's table of the work of one block, int32 [N + 1, 2]: chunks and rest, of limbs [N + 1]."""
    return jnp.stack(chunks_of(block), axis=-1)


def work_of(fields: jax.Array, has_gone: jax.Array) -> jax.Array:
    """Return the engine's table int32 [N + 1, WORK] of ``CommandTable.fields``.

    Args:
      fields: int32 [N + 1, FIELDS].
      has_gone: int32 [N + 1], row each command depends on, the trash row for none.
    """
    kind = fields[:, Field.KIND]
    is_task = functools.reduce(operator.or_, (kind == task for task in TASKS))
    need = [fields[:, Field.NEED + resource] for resource in Resource]
    packed = (
        (is_task, Bits.TASK),
        (fields[:, Field.MODE], Bits.MODE),
        (fields[:, Field.PRIORITY], Bits.PRIORITY),
        (fields[:, Field.CONDITION], Bits.CONDITION),
        (jnp.where(fields[:, Field.FAULT] != 0, fields[:, Field.REACH], 0), Bits.REACH),
        (fields[:, Field.CHANGE], Bits.CHANGE),
        (kind == Kind.RENDEZVOUS, Bits.RENDEZVOUS),
        (kind == Kind.COLLECTIVE, Bits.LINKS),
    )
    head = jnp.minimum(fields[:, Field.HEAD_NS], CHUNK_NS - 1) * FULL_RATE
    shares = fields[:, Field.HBM_SHARE] | (fields[:, Field.L2_SHARE] << 16)
    columns = {
        Work.BITS: sum(jnp.asarray(value, jnp.int32) << position for value, position in packed),
        Work.CORES: need[Resource.CUBE] + (need[Resource.VECTOR] << 16),
        Work.ENGINE: need[Resource.H2D] + (need[Resource.D2H] << 8) + (need[Resource.D2D] << 16),
        Work.READY_HI: fields[:, Field.ISSUE_HI],
        Work.READY_LO: fields[:, Field.ISSUE_LO],
        Work.TIMEOUT_HI: fields[:, Field.TIMEOUT_HI],
        Work.TIMEOUT_LO: fields[:, Field.TIMEOUT_LO],
        Work.FIRST: jnp.where(is_task, 0, fields[:, Field.VALUE_HI]),
        Work.SECOND: jnp.where(is_task, head, fields[:, Field.VALUE_LO]),
        Work.THIRD: jnp.where(is_task, 0, fields[:, Field.CELL]),
        Work.FOURTH: jnp.where(is_task, shares, has_gone),
        Work.BLOCKS: jnp.where(is_task, fields[:, Field.BLOCKS], 0),
        Work.NEXT: fields[:, Field.NEXT],
    }
    listed = [jnp.asarray(columns[column], jnp.int32) for column in Work]
    halves = listed[: WORK // 2], listed[WORK // 2 :]  # a stack of few is one kernel
    return jnp.concatenate([jnp.stack(half, axis=1) for half in halves], axis=1)


def is_met(condition: jax.Array, cell: Instant, value: Instant) -> jax.Array:
    """Return whether a cell satisfies a condition; both are (high, low) words of an int64 (CANN, aclrtValueWait)."""
    borrow = cell.lo.astype(jnp.uint32) < value.lo.astype(jnp.uint32)
    difference_hi = cell.hi - value.hi - borrow.astype(jnp.int32)
    is_equal = (cell.hi == value.hi) & (cell.lo == value.lo)
    shares_bit = ((cell.hi & value.hi) | (cell.lo & value.lo)) != 0
    misses_bit = (~(cell.hi | value.hi) | ~(cell.lo | value.lo)) != 0
    either = jnp.where(condition == Condition.AND, shares_bit, misses_bit)
    either = jnp.where(condition == Condition.EQ, is_equal, either)
    return (condition == Condition.NONE) | jnp.where(condition == Condition.GE, difference_hi >= 0, either)


def has_passed(phase: jax.Array) -> jax.Array:
    """Return whether a command with this phase holds nobody back any more; a dropped one does for ever."""
    return (phase >= Phase.DONE) & (phase < Phase.DROPPED)


def fetch(orders: Orders, times: jax.Array, cells: jax.Array, row: jax.Array, now: Instant) -> tuple:
    """Look up commands that come to the head of their streams.

    Args:
      orders: All commands.
      times: The stamps of what has happened, int32 [B, N + 1, len(Time)].
      cells: int32 [B, C, 2].
      row: int32 [..., B].
      now: [B].

    Returns:
      (words int32 [WORK, ..., B], ``Head.counts`` int32 [..., B]: blocks of a task << 16; what closes a mark: 1 what it
      depends on, 2 its cell).
    """
    words = jnp.moveaxis(get_lane_rows(orders.work, row), -1, 0)
    chunks, rest = jnp.moveaxis(get_lane_rows(orders.blocks, row), -1, 0)
    bits, first, third = (part(words, word) for word in (Work.BITS, Work.FIRST, Work.THIRD))
    is_task = bit(bits, Bits.TASK) == 1
    waited = jnp.where(is_task, times.shape[-2] - 1, part(words, Work.FOURTH))
    phase = get_lane_entries(times, waited, Time.PHASE)
    cell = get_lane_rows(cells, jnp.maximum(jnp.where(is_task, 0, third), 0))
    value = Instant(first, part(words, Work.SECOND))
    met = is_met(bit(bits, Bits.CONDITION, 3), Instant(cell[..., 0], cell[..., 1]), value)
    counts = jnp.where(is_task, part(words, Work.BLOCKS) << 16, ~has_passed(phase) * 1 + ~met * 2)
    ready = later(Instant(part(words, Work.READY_HI), part(words, Work.READY_LO)), now)
    news = jnp.stack([*ready, jnp.where(is_task, rest, first), jnp.where(is_task, chunks, third)])
    return jnp.concatenate([words[: Work.READY_HI], news]), counts
