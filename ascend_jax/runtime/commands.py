"""Enqueueing: one command becomes one row of the table, linked behind the last one of its stream."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.runtime import clock, layout, status
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import computed_once
from ascend_jax.runtime.host import host_now
from ascend_jax.runtime.layout import (
    Clock,
    Device,
    Effect,
    Fault,
    Field,
    Kind,
    Operand,
    Phase,
    Resource,
    StatusWord,
    Stream,
    Time,
)
from ascend_jax.runtime.ranges import Range
from ascend_jax.runtime.refusals import Given
from ascend_jax.runtime.rows import Number, get_row, put_if, put_row, with_entries
from ascend_jax.runtime.state import CardState, CommandTable
from ascend_jax.runtime.status import first_failing

WAITS = (Kind.EVENT_WAIT, Kind.NOTIFY_WAIT, Kind.VALUE_WAIT)


def host_stream(card: CardState) -> int:
    """Return S, the slot of the host's own stream: blocking copies run there, unordered with all others."""
    return int(card.streams.shape[-2]) - 1


@dataclasses.dataclass(frozen=True)
class Command:
    """What is to be enqueued; numbers may be Python ints or int32 scalars."""

    kind: Kind
    stream: Number  # slot
    block: Instant | None = None  # time of one block; None: a mark, takes no time
    head_ns: Number = 0
    blocks: Number = 1
    need: dict[Resource, Number] = dataclasses.field(default_factory=dict)  # units per block
    operands: jax.Array | None = None  # int32 [P, len(Operand)]
    reads: Number = 0
    writes: Number = 0
    has_effect: bool = True  # False: the caller moves the bytes itself
    fields: dict[Any, Number] = dataclasses.field(default_factory=dict)  # columns that only some kinds use


def row_of(fields: jax.Array, sequence: jax.Array) -> jax.Array:
    """Return the row of a sequence number >= 0; N is a power of two."""
    return sequence & (fields.shape[0] - 2)


def operand_rows(*ranges: Range) -> jax.Array:
    """Return int32 [P, len(Operand)] of ranges in normal form; operands not given are empty."""
    numbers = [jnp.asarray(number, jnp.int32) for one in ranges for number in one[: len(Operand)]]
    rows = jnp.zeros((layout.OPERANDS, len(Operand)), jnp.int32)
    return rows.at[: len(ranges)].set(jnp.stack(numbers).reshape(len(ranges), -1)) if ranges else rows


def is_pending(phase: jax.Array) -> jax.Array:
    """Return whether the row of a command may not be overwritten: unfinished or captured."""
    return (phase >= Phase.QUEUED) & (phase < Phase.DONE) | (phase == Phase.CAPTURED)


def is_taken(card: CardState, row: jax.Array) -> jax.Array:
    """Return whether a row may not be overwritten: its command is pending, or a callback that is still to be run."""
    table = card.table
    return _may_not_go(get_row(table.fields, row), get_row(table.times, row), get_row(table.effects, row))


def taken_rows(card: CardState) -> jax.Array:
    """Return :func:`is_taken` of all rows, bool [N + 1]."""
    return _may_not_go(card.table.fields, card.table.times, card.table.effects)


def _may_not_go(fields: jax.Array, times: jax.Array, effect: jax.Array) -> jax.Array:
    phase = times[..., Time.PHASE]
    return is_pending(phase) | (phase == Phase.DONE) & is_owed(fields, effect)


def is_owed(fields: jax.Array, effect: jax.Array) -> jax.Array:
    """Return whether a command is a callback that its thread has not run and that was not given up."""
    return (fields[..., Field.KIND] == Kind.CALLBACK) & (effect == Effect.NONE)


def refusal(card: CardState, slot: jax.Array) -> jax.Array:
    """Return 0, or why a stream takes no more commands.

    The device is lost, the stream stops on failure and has failed, or nothing will ever make room in its queue.
    """
    entry = get_row(card.streams, slot)
    stopped = jnp.where(entry[Stream.STOPS] == 1, entry[Stream.ERROR], Code.SUCCESS)
    return first_failing(card.device[Device.ERROR], stopped, card.status[StatusWord.REFUSES])


def enqueue(card: CardState, command: Command, code: jax.Array) -> tuple[CardState, jax.Array]:
    """Append ``command`` if ``code`` is 0; return the card and the code of the call.

    On a stream that is being captured the row is kept for the ``Program`` and does not run.

    Status 900001 if the row that the command would take belongs to one that is not finished; the stream's or device's
    error if that takes no more commands.
    """
    rows = card.table.rows
    sequence = card.clock[Clock.ENQUEUED]
    row = row_of(card.table.fields, sequence)
    slot = jnp.clip(jnp.asarray(command.stream, jnp.int32), 0, host_stream(card))
    code = jnp.where(code == Code.SUCCESS, refusal(card, slot), code)
    code = jnp.where((code == Code.SUCCESS) & is_taken(card, row), jnp.int32(Code.TABLE_FULL), code)
    code = computed_once(code)
    ok = code == Code.SUCCESS

    entry = get_row(card.streams, slot)
    is_captured = entry[Stream.CAPTURE] != layout.Capture.NONE
    is_queued = ok & ~is_captured
    is_empty = entry[Stream.PENDING] == 0
    linked = {
        Stream.HEAD: jnp.where(is_empty, row, entry[Stream.HEAD]),
        Stream.LAST: row,
        Stream.PENDING: entry[Stream.PENDING] + 1,
    }
    streams = put_if(is_queued, card.streams, slot, with_entries(entry, linked))
    previous = jnp.where(is_queued & ~is_empty, entry[Stream.LAST], rows)
    fields = card.table.fields
    behind = with_entries(get_row(fields, previous), {Field.NEXT: jnp.where(previous == rows, rows, row)})
    table = dataclasses.replace(card.table, fields=put_row(fields, previous, behind))
    position = jnp.where(is_empty, 0, get_row(fields, entry[Stream.LAST])[Field.POSITION] + 1)
    table = _write_row(card, table, command, row, ok, is_captured, position)
    words = with_entries(card.clock, {Clock.ENQUEUED: sequence + ok.astype(jnp.int32)})
    return dataclasses.replace(card, table=table, streams=streams, clock=words), code


def _write_row(
    card: CardState,
    table: CommandTable,
    command: Command,
    row: jax.Array,
    ok: jax.Array,
    is_captured: jax.Array,
    position: jax.Array,
) -> CommandTable:
    issue, device = host_now(card), card.device
    slot = jnp.clip(jnp.asarray(command.stream, jnp.int32), 0, host_stream(card))
    block = Instant(jnp.int32(0), jnp.int32(0)) if command.block is None else command.block
    sequence = card.clock[Clock.ENQUEUED]
    fault = planned_fault(card, sequence)
    columns: dict[Any, Number] = {
        Field.KIND: command.kind,
        Field.STREAM: slot,
        Field.SEQUENCE: sequence,
        Field.NEXT: card.table.rows,
        Field.DEPENDS: layout.NONE,
        Field.OBJECT: layout.NONE,
        Field.BLOCKS: command.blocks,
        Field.PRIORITY: jnp.where(card.chip["has_priorities"] > 0, get_row(card.streams, slot)[Stream.PRIORITY], 0),
        Field.HEAD_NS: command.head_ns,
        Field.BLOCK_HI: jnp.minimum(block.hi, layout.LONGEST_BLOCK_HI),
        Field.BLOCK_LO: block.lo,
        Field.FAULT: fault[Fault.CODE],
        Field.REACH: fault[Fault.REACH],
        Field.ISSUE_HI: issue.hi,
        Field.ISSUE_LO: issue.lo,
        Field.THREAD: device[Device.THREAD],
        Field.POSITION: position,
        Field.KERNEL: layout.NONE,
        Field.READS: command.reads,
        Field.WRITES: command.writes,
        **_default_timeout(card, command.kind),
        **{Field.NEED + resource: units for resource, units in command.need.items()},
        **command.fields,
    }
    fields = jnp.stack([jnp.asarray(columns.get(i, 0), jnp.int32) for i in range(layout.FIELDS)])
    operands = operand_rows() if command.operands is None else command.operands
    has_bytes = command.kind in (*layout.TASKS, Kind.VALUE_WRITE)
    waits = card.has_values and command.has_effect and has_bytes
    effect = jnp.where(is_captured | (not waits), Effect.PUBLISHED, Effect.NONE)
    phase = jnp.where(is_captured, Phase.CAPTURED, Phase.QUEUED)
    times = with_entries(jnp.zeros(len(Time), jnp.int32), {Time.PHASE: phase})
    return CommandTable(
        put_if(ok, table.fields, row, fields),
        put_if(ok, table.operands, row, operands),
        put_if(ok, table.times, row, times),
        put_if(ok, table.effects, row, effect.astype(jnp.int32)),
    )


def append(
    card: CardState, columns: dict[Any, jax.Array], operands: jax.Array, slot: jax.Array, is_wanted: jax.Array
) -> CardState:
    """Return the card with n commands behind one another in the stream ``slot``, if they are wanted.

    Their rows must be free, and the stream take them: see :func:`is_taken` and :func:`refusal`. It stops if one fails.

    Args:
      card: The card.
      columns: Of ``Field``, int32 [n]; those not given are 0, or what every command has.
      operands: int32 [n, P, len(Operand)].
      slot: int32.
      is_wanted: bool.
    """
    count, rows, first = operands.shape[0], card.table.rows, card.clock[Clock.ENQUEUED]
    entry, fields = get_row(card.streams, slot), card.table.fields
    number = first + jnp.arange(count, dtype=jnp.int32)
    row = row_of(fields, number)
    is_empty = entry[Stream.PENDING] == 0
    after = jnp.where(is_empty, 0, get_row(fields, entry[Stream.LAST])[Field.POSITION] + 1)
    faults = card.faults[None]
    is_fault = faults[..., Fault.SEQUENCE] == number[:, None]
    issue = host_now(card)
    priority = jnp.where(card.chip["has_priorities"] > 0, entry[Stream.PRIORITY], 0)
    every = {
        Field.SEQUENCE: number,
        Field.NEXT: jnp.append(row[1:], rows),
        Field.POSITION: after + jnp.arange(count, dtype=jnp.int32),
        Field.BLOCKS: 1,
        Field.PRIORITY: priority,
        Field.FAULT: jnp.where(is_fault, faults[..., Fault.CODE], 0).sum(1),
        Field.REACH: jnp.where(is_fault, faults[..., Fault.REACH], 0).sum(1),
        Field.ISSUE_HI: issue.hi,
        Field.ISSUE_LO: issue.lo,
        Field.THREAD: card.device[Device.THREAD],
    } | columns
    values = [jnp.broadcast_to(jnp.asarray(value, jnp.int32), (count,)) for value in every.values()]
    place = dict(zip(map(int, every), values, strict=True))
    zero = jnp.zeros(count, jnp.int32)
    written = jnp.stack([place.get(column, zero) for column in range(layout.FIELDS)], axis=1)
    times = with_entries(jnp.zeros((count, len(Time)), jnp.int32), {Time.PHASE: int(Phase.QUEUED)})
    effects = jnp.full(count, int(Effect.NONE if card.has_values else Effect.PUBLISHED), jnp.int32)
    behind = jnp.where(is_wanted & ~is_empty, entry[Stream.LAST], rows)
    link = with_entries(get_row(fields, behind), {Field.NEXT: jnp.where(behind == rows, rows, row[0])})
    table = dataclasses.replace(card.table, fields=put_row(fields, behind, link))
    for n in range(count):
        table = CommandTable(
            put_if(is_wanted, table.fields, row[n], written[n]),
            put_if(is_wanted, table.operands, row[n], operands[n]),
            put_if(is_wanted, table.times, row[n], times[n]),
            put_if(is_wanted, table.effects, row[n], effects[n]),
        )
    linked: dict[Any, Number] = {
        Stream.HEAD: jnp.where(is_empty, row[0], entry[Stream.HEAD]),
        Stream.LAST: row[-1],
        Stream.PENDING: entry[Stream.PENDING] + count,
        Stream.STOPS: 1,
    }
    streams = put_if(is_wanted, card.streams, slot, with_entries(entry, linked))
    words = with_entries(card.clock, {Clock.ENQUEUED: first + count * is_wanted.astype(jnp.int32)})
    return dataclasses.replace(card, table=table, streams=streams, clock=words)


def _default_timeout(card: CardState, kind: Kind) -> dict[Any, Number]:
    device = card.device
    if kind in WAITS:
        return {
            Field.TIMEOUT_HI: device[Device.WAIT_TIMEOUT_HI],
            Field.TIMEOUT_LO: device[Device.WAIT_TIMEOUT_LO],
        }
    if kind != Kind.KERNEL:
        return {}
    hi, lo = device[Device.OP_TIMEOUT_HI], device[Device.OP_TIMEOUT_LO]
    default = clock.of_ms(card.chip["op_timeout_s"].astype(jnp.int32) * 1000)
    is_set = hi != layout.NONE
    return {Field.TIMEOUT_HI: jnp.where(is_set, hi, default.hi), Field.TIMEOUT_LO: jnp.where(is_set, lo, default.lo)}


def planned_fault(card: CardState, sequence: jax.Array) -> jax.Array:
    """Return the entry of ``card.faults`` for a command, zeros if none is planned."""
    is_it = card.faults[:, Fault.SEQUENCE] == sequence
    return get_row(card.faults, jnp.argmax(is_it)) * is_it.any()


def at_least_1ns(duration: Instant) -> Instant:
    """Return ``duration``, but 1 ns if it is 0: a command that moves bytes ends after it starts."""
    is_zero = (duration.hi == 0) & (duration.lo == 0)
    return Instant(duration.hi, duration.lo + is_zero.astype(jnp.int32))


def answer(
    card: CardState, code: jax.Array, site: Number, stream: Number, *, given: Given | None = None
) -> tuple[CardState, jax.Array]:
    """Note ``code`` in the status word and return both."""
    return status.note(card, code, site, stream, given=given), code
