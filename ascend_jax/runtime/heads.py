"""The command at the head of each stream, as the engine sees it: few packed words, refreshed when a command retires."""

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.layout import (
    CHUNK_NS,
    FULL_RATE,
    NONE,
    TASKS,
    UNREADY,
    WORK_CHUNK,
    Condition,
    Field,
    Phase,
    Resource,
    Time,
)
from ascend_jax.runtime.rows import get_lane_rows


class Work(enum.IntEnum):
    """Columns of the engine's table [N + 1, WORK]. "task | mark" share a word."""

    BITS = 0
    ISSUE_HI = 1
    ISSUE_LO = 2
    TIMEOUT_US = 3
    FIRST = 4  # rest of a block's work beyond its chunks | high word of the value
    SECOND = 5  # work of the launch head | low word of the value
    THIRD = 6  # chunks of a block's work | cell
    FOURTH = 7  # shares, HBM + L2 << 16 | row of the command to wait for, N for none
    BLOCKS = 8
    NEXT = 9


WORK = len(Work)


class Bits(enum.IntEnum):
    """Positions in ``Work.BITS``."""

    TASK = 0
    CUBE = 1
    VECTOR = 2  # two bits
    ENGINE = 4  # two bits: none, H2D, D2H, D2D
    MODE = 6
    PRIORITY = 7  # three bits
    CONDITION = 10  # three bits
    REACH = 13  # two bits, of a planned fault
    CHANGE = 15  # two bits


class Head(NamedTuple):
    """Heads of all streams, int32 [S, B]. The first ORDERS are the command's, the others how far it has come."""

    row: jax.Array  # N: the stream is empty
    bits: jax.Array
    timeout_us: jax.Array
    first: jax.Array
    second: jax.Array
    third: jax.Array
    fourth: jax.Array
    following: jax.Array  # row of the next command
    key: jax.Array  # UNREADY until it is issued
    wake_hi: jax.Array  # when it is issued, or its deadline
    wake_lo: jax.Array
    start_hi: jax.Array  # NONE before the first block has started
    start_lo: jax.Array
    counts: jax.Array  # task: blocks waiting << 16 | second group << 8 | first group; mark: 1 unless it may happen
    chunks: jax.Array  # second group << 16 | first group
    rest_first: jax.Array
    rest_second: jax.Array


def bit(bits: jax.Array, position: Bits, width: int = 1) -> jax.Array:
    """Return one entry of a packed word."""
    return (bits >> position) & ((1 << width) - 1)


ORDERS = 8  # fields of Head that are the command's; the others say how far it has come


def chunks_of(block: Instant) -> tuple[jax.Array, jax.Array]:
    """Return a block's work at full speed as (whole chunks, rest); the rest is never 0 while chunks are left."""
    chunks, rest = (block.hi << 8) + (block.lo >> 22), (block.lo & (CHUNK_NS - 1)) * FULL_RATE
    is_whole = (rest == 0) & (chunks > 0)
    return chunks - is_whole, jnp.where(is_whole, WORK_CHUNK, rest)


def with_blocks(work: jax.Array, block: Instant) -> jax.Array:
    """Return the engine's table with other times of one block, int32 limbs [N + 1], where a command is a task."""
    chunks, rest = chunks_of(block)
    column = jnp.arange(WORK)[None, :]
    new = jnp.where(column == Work.FIRST, rest[:, None], jnp.where(column == Work.THIRD, chunks[:, None], work))
    return jnp.where(bit(work[:, Work.BITS, None], Bits.TASK) == 1, new, work)


def work_of(fields: jax.Array, has_gone: jax.Array) -> jax.Array:
    """Return the engine's table int32 [N + 1, WORK] of ``CommandTable.fields``.

    Args:
      fields: int32 [N + 1, FIELDS].
      has_gone: int32 [N + 1], row each command depends on, the trash row for none.
    """
    kind = fields[:, Field.KIND]
    is_task = jnp.isin(kind, jnp.array(TASKS))
    need = [fields[:, Field.NEED + resource] for resource in Resource]
    engine = need[Resource.H2D] + 2 * need[Resource.D2H] + 3 * need[Resource.D2D]
    packed = (
        (is_task, Bits.TASK),
        (need[Resource.CUBE], Bits.CUBE),
        (need[Resource.VECTOR], Bits.VECTOR),
        (engine, Bits.ENGINE),
        (fields[:, Field.MODE], Bits.MODE),
        (fields[:, Field.PRIORITY], Bits.PRIORITY),
        (fields[:, Field.CONDITION], Bits.CONDITION),
        (jnp.where(fields[:, Field.FAULT] != 0, fields[:, Field.REACH], 0), Bits.REACH),
        (fields[:, Field.CHANGE], Bits.CHANGE),
    )
    chunks, rest = chunks_of(Instant(fields[:, Field.BLOCK_HI], fields[:, Field.BLOCK_LO]))
    head = jnp.minimum(fields[:, Field.HEAD_NS], CHUNK_NS - 1) * FULL_RATE
    shares = fields[:, Field.HBM_SHARE] | (fields[:, Field.L2_SHARE] << 16)
    limbs, rest_ns = fields[:, Field.TIMEOUT_HI], fields[:, Field.TIMEOUT_LO]
    timeout_us = limbs * 1_073_741 + (limbs * 824 + rest_ns) // 1000  # 2**30 ns are 1,073,741.824 us
    columns = {
        Work.BITS: sum(jnp.asarray(value, jnp.int32) << position for value, position in packed),
        Work.ISSUE_HI: fields[:, Field.ISSUE_HI],
        Work.ISSUE_LO: fields[:, Field.ISSUE_LO],
        Work.TIMEOUT_US: jnp.where(limbs > 1999, 2**31 - 1, timeout_us),  # longer ones end after 35 minutes
        Work.FIRST: jnp.where(is_task, rest, fields[:, Field.VALUE_HI]),
        Work.SECOND: jnp.where(is_task, head, fields[:, Field.VALUE_LO]),
        Work.THIRD: jnp.where(is_task, chunks, fields[:, Field.CELL]),
        Work.FOURTH: jnp.where(is_task, shares, has_gone),
        Work.BLOCKS: jnp.where(is_task, fields[:, Field.BLOCKS], 0),
        Work.NEXT: fields[:, Field.NEXT],
    }
    return jnp.stack([jnp.asarray(columns[column], jnp.int32) for column in Work], axis=1)


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


def fetch(work: jax.Array, times: jax.Array, cells: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Look up commands that come to the head of their streams, in tables [B, N + 1, columns].

    Args:
      work: The engine's table.
      times: The stamps of what has happened.
      cells: int32 [B, C, 2].
      row: int32 [..., B].

    Returns:
      (words int32 [WORK, ..., B], what closes a mark int32 [..., B]: 1 what it depends on, 2 its cell).
    """
    words = jnp.moveaxis(get_lane_rows(work, row), -1, 0)
    is_mark = bit(words[Work.BITS], Bits.TASK) == 0
    depends = jnp.where(is_mark, words[Work.FOURTH], work.shape[-2] - 1)
    phase = get_lane_rows(times[..., Time.PHASE], depends)
    cell = get_lane_rows(cells, jnp.maximum(jnp.where(is_mark, words[Work.THIRD], 0), 0))
    value = Instant(words[Work.FIRST], words[Work.SECOND])
    met = is_met(bit(words[Work.BITS], Bits.CONDITION, 3), Instant(cell[..., 0], cell[..., 1]), value)
    return words, ~has_passed(phase) * 1 + ~met * 2


def head_of(row: jax.Array, words: jax.Array, closed: jax.Array) -> Head:
    """Return a head that nothing has happened to yet; arguments as :func:`fetch` returns them."""
    zero = jnp.zeros_like(row)
    return Head(
        row=row,
        bits=words[Work.BITS],
        timeout_us=words[Work.TIMEOUT_US],
        first=words[Work.FIRST],
        second=words[Work.SECOND],
        third=words[Work.THIRD],
        fourth=words[Work.FOURTH],
        following=words[Work.NEXT],
        key=zero + UNREADY,
        wake_hi=words[Work.ISSUE_HI],
        wake_lo=words[Work.ISSUE_LO],
        start_hi=zero + NONE,
        start_lo=zero,
        counts=jnp.where(bit(words[Work.BITS], Bits.TASK) == 1, words[Work.BLOCKS] << 16, closed),
        chunks=zero,
        rest_first=zero,
        rest_second=zero,
    )
