"""Enqueueing: one command becomes one row of the table, linked behind the last one of its stream."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.runtime import clock, layout, status
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.host import host_now
from ascend_jax.runtime.layout import Clock, Effect, Field, Kind, Operand, Phase, Resource, Stream, Time
from ascend_jax.runtime.memory import Range
from ascend_jax.runtime.rows import Number, get_row, put_if, put_row, with_entries
from ascend_jax.runtime.state import CardState, CommandTable


def host_stream(card: CardState) -> int:
    """Return S, the slot of the host's own stream: blocking copies run there, unordered with all others."""
    return int(card.streams.shape[-2]) - 1


def is_stream(card: CardState, stream: Number) -> jax.Array:
    """Return whether ``stream`` is a live stream handle."""
    slots = host_stream(card)
    stream = jnp.asarray(stream, jnp.int32)
    entry = get_row(card.streams, jnp.clip(stream, 0, slots))
    return (stream >= 0) & (stream < slots) & (entry[Stream.ALIVE] == 1)


@dataclasses.dataclass(frozen=True)
class Command:
    """What is to be enqueued; numbers may be Python ints or int32 scalars."""

    kind: Kind
    stream: Number
    duration: Instant | None = None  # None: takes no time
    need: dict[Resource, Number] = dataclasses.field(default_factory=dict)
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
    unused = [Range(0, 0, 0, 0)] * (layout.OPERANDS - len(ranges))
    numbers = [jnp.asarray(number, jnp.int32) for one in (*ranges, *unused) for number in one[: len(Operand)]]
    return jnp.stack(numbers).reshape(layout.OPERANDS, len(Operand))


def enqueue(card: CardState, command: Command, code: jax.Array) -> tuple[CardState, jax.Array]:
    """Append ``command`` if ``code`` is 0; return the card and the code of the call.

    Status 900001 if the row that the command would take belongs to one that is not finished.
    """
    rows = card.table.rows
    sequence = card.clock[Clock.ENQUEUED]
    row = row_of(card.table.fields, sequence)
    phase = get_row(card.table.times, row)[Time.PHASE]
    is_taken = (phase >= Phase.QUEUED) & (phase < Phase.DONE)
    code = jnp.where((code == Code.SUCCESS) & is_taken, jnp.int32(Code.TABLE_FULL), code)
    ok = code == Code.SUCCESS
    stream = jnp.clip(jnp.asarray(command.stream, jnp.int32), 0, host_stream(card))

    entry = get_row(card.streams, stream)
    is_empty = entry[Stream.PENDING] == 0
    linked = {
        Stream.HEAD: jnp.where(is_empty, row, entry[Stream.HEAD]),
        Stream.LAST: row,
        Stream.PENDING: entry[Stream.PENDING] + 1,
    }
    streams = put_if(ok, card.streams, stream, with_entries(entry, linked))
    previous = jnp.where(ok & ~is_empty, entry[Stream.LAST], rows)
    fields = card.table.fields
    behind = with_entries(get_row(fields, previous), {Field.NEXT: jnp.where(previous == rows, rows, row)})
    table = dataclasses.replace(card.table, fields=put_row(fields, previous, behind))
    table = _write_row(card, table, command, row, ok)
    words = with_entries(card.clock, {Clock.ENQUEUED: sequence + ok.astype(jnp.int32)})
    return dataclasses.replace(card, table=table, streams=streams, clock=words), code


def _write_row(card: CardState, table: CommandTable, command: Command, row: jax.Array, ok: jax.Array) -> CommandTable:
    issue = host_now(card)
    duration = Instant(jnp.int32(0), jnp.int32(0)) if command.duration is None else command.duration
    columns: dict[Any, Number] = {
        Field.KIND: command.kind,
        Field.STREAM: command.stream,
        Field.SEQUENCE: card.clock[Clock.ENQUEUED],
        Field.NEXT: card.table.rows,
        Field.DEPENDS: layout.NONE,
        Field.EVENT: layout.NONE,
        Field.DURATION_HI: duration.hi,
        Field.DURATION_LO: duration.lo,
        Field.ISSUE_HI: issue.hi,
        Field.ISSUE_LO: issue.lo,
        Field.KERNEL: layout.NONE,
        Field.READS: command.reads,
        Field.WRITES: command.writes,
        **{Field.NEED + resource: units for resource, units in command.need.items()},
        **command.fields,
    }
    fields = jnp.stack([jnp.asarray(columns.get(i, 0), jnp.int32) for i in range(layout.FIELDS)])
    operands = operand_rows() if command.operands is None else command.operands
    waits = card.has_values and command.has_effect and command.kind in (Kind.KERNEL, Kind.COPY, Kind.MEMSET)
    effect = Effect.NONE if waits else Effect.PUBLISHED
    times = with_entries(jnp.zeros(len(Time), jnp.int32), {Time.PHASE: Phase.QUEUED, Time.EFFECT: effect})
    return CommandTable(
        put_if(ok, table.fields, row, fields),
        put_if(ok, table.operands, row, operands),
        put_if(ok, table.times, row, times),
    )


def at_least_1ns(duration: Instant) -> Instant:
    """Return ``duration``, but 1 ns if it is 0: a command that moves bytes ends after it starts."""
    is_zero = (duration.hi == 0) & (duration.lo == 0)
    return Instant(duration.hi, duration.lo + is_zero.astype(jnp.int32))


def transfer_time(place: Range, bytes_per_s: jax.Array, latency_ns: jax.Array) -> Instant:
    """Return latency + bytes / rate in float32, rounded up to ns once."""
    nbytes = place.whole * jnp.float32(layout.GRANULE_BYTES) + place.rest
    return at_least_1ns(clock.from_ns(latency_ns + nbytes * (1e9 / bytes_per_s)))


def answer(card: CardState, code: jax.Array, site: Number, stream: Number) -> tuple[CardState, jax.Array]:
    """Note ``code`` in the status word and return both."""
    return status.note(card, code, site, stream), code
