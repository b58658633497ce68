"""Execution: a ``Program`` is put in a stream as a whole, as if the host had enqueued its commands in one instant."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime.binding import bind, has_value_marks
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import answer, is_pending, planned_fault, refusal, row_of, taken_rows
from ascend_jax.runtime.drops import fresh_stream
from ascend_jax.runtime.edge import Site, concrete, stage, verb
from ascend_jax.runtime.handles import find_stream
from ascend_jax.runtime.host import host_now, spend
from ascend_jax.runtime.launch import load_kernel
from ascend_jax.runtime.layout import (
    NONE,
    TASKS,
    Capture,
    Clock,
    Device,
    Effect,
    Fault,
    Field,
    Kind,
    Phase,
    Stream,
    Time,
)
from ascend_jax.runtime.program import Program
from ascend_jax.runtime.rows import Number, get_row, get_rows, put_rows, with_entries
from ascend_jax.runtime.state import CardState, CommandTable
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.streams import streams_free, taken_slots
from ascend_jax.runtime.synchronize import await_room, look


class Place(NamedTuple):
    """Where the N commands and K streams of a program go."""

    commands: jax.Array  # int32, how many, without padding
    row: jax.Array  # int32 [N], of the card's table
    number: jax.Array  # int32 [rows of the table], the command that the row would take
    members: jax.Array  # bool [K, N], which commands are in which stream
    slot: jax.Array  # int32 [K]; the host's own slot for streams without commands
    is_used: jax.Array  # bool [K]
    entry: jax.Array  # int32 [K, len(Stream)], the streams before, those just opened included


@stage(static=("has_values",), reads=("chip", "memory"))
def _append(
    card: CardState, program: Program, kernel_of: jax.Array, stream: Number, site: Number, *, has_values: bool
) -> CardState:
    """Put all commands of the program in the table and link them into their streams, or none."""
    card = spend(card, card.chip["host_launch_ns"])
    code, slot = find_stream(card, stream)
    place, place_code = _place(card, program, slot)
    is_captured = get_row(card.streams, slot)[Stream.CAPTURE] != Capture.NONE
    sequence = card.clock[Clock.ENQUEUED] + jnp.arange(program.rows, dtype=jnp.int32)
    bound = bind(card, program, get_rows(place.slot, program.fields[:, Field.STREAM]), sequence, has_values)
    rules = first_code((is_captured, Code.RT_STREAM_CAPTURED))
    code = first_failing(code, rules, bound.code, refusal(card, slot), place_code)
    ok = code == Code.SUCCESS
    fields = with_entries(_on_card(card, program, place, kernel_of), bound.columns)
    table = _written(card, fields, program.operands, place, ok)
    streams, table = _linked(card, program, place, table, ok)
    words = {Clock.ENQUEUED: card.clock[Clock.ENQUEUED] + jnp.where(ok, place.commands, 0)}
    values, cells = jnp.where(ok, bound.values, card.values), jnp.where(ok, bound.cells, card.cells)
    clock = with_entries(card.clock, words)
    card = dataclasses.replace(card, table=table, streams=streams, clock=clock, values=values, cells=cells)
    return answer(card, code, site, stream)[0]


def _place(card: CardState, program: Program, slot: jax.Array) -> tuple[Place, jax.Array]:
    """Return where the program goes, and why it does not fit: 207005 for want of streams, 900001 for want of rows."""
    first = card.clock[Clock.ENQUEUED]
    is_command = program.fields[:, Field.KIND] != Kind.NOTHING
    streams = jnp.arange(program.streams, dtype=jnp.int32)
    members = (program.fields[None, :, Field.STREAM] == streams[:, None]) & is_command[None]
    is_used = members.any(1)
    slots, is_new, slots_code = _slots(card, is_used & (streams > 0), slot)
    entry = get_rows(card.streams, slots)
    opened: dict[Any, Number] = {
        **fresh_stream(card),
        Stream.ALIVE: 1,
        Stream.GENERATION: entry[:, Stream.GENERATION],
        Stream.CONTEXT: card.device[Device.CONTEXT],
        Stream.MASTER: slot,
        Stream.STOPS: get_row(card.streams, slot)[Stream.STOPS],
    }
    is_idle = is_used & (streams > 0) & (entry[:, Stream.PENDING] == 0)
    fresh = with_entries(jnp.zeros_like(entry), opened)
    place = Place(
        commands=is_command.sum(dtype=jnp.int32),
        row=row_of(card.table.fields, first + jnp.arange(program.rows, dtype=jnp.int32)),
        number=row_of(card.table.fields, jnp.arange(card.table.rows, dtype=jnp.int32) - first),
        members=members,
        slot=slots,
        is_used=is_used,
        entry=jnp.where(is_idle[:, None], fresh, entry),
    )
    is_short = ((place.number < place.commands) & taken_rows(card)[:-1]).any()
    rules = first_code(
        (is_new.sum() > streams_free(card), Code.RESOURCE_ALLOC_FAIL),
        (is_short | (place.commands > card.table.rows), Code.TABLE_FULL),
    )
    return place, first_failing(slots_code, rules)


def _slots(card: CardState, is_side: jax.Array, slot: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the slot of each stream of a program, whether that was free, and the code.

    A side stream takes one that works for ``slot``, where programs come one after the other anyway, or a free slot.
    """
    hosts = card.streams.shape[0] - 1
    is_free = taken_slots(card) == 0
    rank = jnp.where(card.streams[:-1, Stream.MASTER] == slot, 0, jnp.where(is_free, 1, 2))
    order = jnp.argsort(rank, stable=True).astype(jnp.int32)
    chosen = get_rows(order, jnp.clip(jnp.cumsum(is_side) - 1, 0, hosts - 1))
    is_short = is_side.sum() > (rank < 2).sum()
    slots = jnp.where(is_side, chosen, hosts).at[0].set(slot)
    return slots, is_side & get_rows(is_free, chosen), first_code((is_short, Code.RESOURCE_ALLOC_FAIL))


def _on_card(card: CardState, program: Program, place: Place, kernel_of: jax.Array) -> jax.Array:
    """Return the program's fields with the card's numbers in place of its own, int32 [N, FIELDS]."""
    fields, first, issue = program.fields, card.clock[Clock.ENQUEUED], host_now(card)
    sequence = first + jnp.arange(program.rows, dtype=jnp.int32)
    stream, depends, following = (fields[:, column] for column in (Field.STREAM, Field.DEPENDS, Field.NEXT))
    last = get_rows(card.table.fields, place.entry[:, Stream.LAST])
    is_busy = place.entry[:, Stream.PENDING] > 0
    queued = get_rows(jnp.where(is_busy, last[:, Field.POSITION] + 1, 0), stream)
    kernel = get_rows(kernel_of, jnp.maximum(fields[:, Field.KERNEL], 0))
    fault = jax.vmap(planned_fault, (None, 0))(card, sequence)
    is_planned = fault[:, Fault.CODE] != Code.SUCCESS
    columns: dict[Any, Number] = {
        Field.STREAM: get_rows(place.slot, stream),
        Field.SEQUENCE: sequence,
        Field.NEXT: jnp.where(
            following == program.rows,
            card.table.rows,
            get_rows(place.row, jnp.minimum(following, program.rows - 1)),
        ),
        Field.DEPENDS: jnp.where(depends == NONE, NONE, first + depends),
        Field.POSITION: queued + fields[:, Field.POSITION],
        Field.KERNEL: jnp.where(fields[:, Field.KERNEL] == NONE, NONE, kernel),
        Field.FAULT: jnp.where(is_planned, fault[:, Fault.CODE], fields[:, Field.FAULT]),
        Field.REACH: jnp.where(is_planned, fault[:, Fault.REACH], fields[:, Field.REACH]),
        Field.ISSUE_HI: issue.hi,
        Field.ISSUE_LO: issue.lo,
        Field.THREAD: card.device[Device.THREAD],
    }
    return with_entries(fields, columns)


def _written(card: CardState, fields: jax.Array, operands: jax.Array, place: Place, ok: jax.Array) -> CommandTable:
    """Return the table with the program's commands in it, if that is wanted."""
    kind = fields[:, Field.KIND]
    moves = jnp.isin(kind, jnp.array([*TASKS, Kind.VALUE_WRITE])) & card.has_values & (kind != Kind.HOST_FUNC)
    moves &= (kind != Kind.KERNEL) | (fields[:, Field.KERNEL] != NONE)
    moves |= kind == Kind.CALLBACK  # not run yet
    queued = with_entries(jnp.zeros((fields.shape[0], len(Time)), jnp.int32), {Time.PHASE: Phase.QUEUED})
    effects = jnp.where(moves, Effect.NONE, Effect.PUBLISHED).astype(jnp.int32)
    number = jnp.minimum(place.number, fields.shape[0] - 1)
    is_written = jnp.append((place.number < place.commands) & ok, False)

    def put(table: jax.Array, new: jax.Array) -> jax.Array:
        new = jnp.concatenate([get_rows(new, number), table[-1:]])
        return jnp.where(is_written.reshape(-1, *(1,) * (table.ndim - 1)), new, table)

    table = card.table
    return CommandTable(
        put(table.fields, fields), put(table.operands, operands), put(table.times, queued), put(table.effects, effects)
    )


def _linked(
    card: CardState, program: Program, place: Place, table: CommandTable, ok: jax.Array
) -> tuple[jax.Array, CommandTable]:
    """Return streams and table with the program's commands behind what was in the streams, if that is wanted."""
    begins, ends = program.fields[:, Field.POSITION] == 0, program.fields[:, Field.NEXT] == program.rows
    first = (place.members * (begins * place.row)[None]).sum(1, dtype=jnp.int32)
    last = (place.members * (ends * place.row)[None]).sum(1, dtype=jnp.int32)
    pending = place.entry[:, Stream.PENDING]
    columns = {
        Stream.HEAD: jnp.where(pending == 0, first, place.entry[:, Stream.HEAD]),
        Stream.LAST: last,
        Stream.PENDING: pending + place.members.sum(1, dtype=jnp.int32),
    }
    is_put = (place.is_used & ok)[:, None]
    entry = jnp.where(is_put, with_entries(place.entry, columns), get_rows(card.streams, place.slot))
    has_before = is_put[:, 0] & (pending > 0)
    before = jnp.where(has_before, place.entry[:, Stream.LAST], table.rows)
    following = jnp.where(has_before, first, table.rows)
    fields = table.fields.at[before, Field.NEXT].set(following, mode="promise_in_bounds")
    return put_rows(card.streams, place.slot, entry), dataclasses.replace(table, fields=fields)


@stage
def _blocker(card: CardState, program: Program) -> tuple:
    """The newest unfinished command whose row the program needs, or NONE."""
    place, _ = _place(card, program, jnp.int32(0))
    phase = card.table.times[:-1, Time.PHASE]
    is_awaited = (place.number < place.commands) & is_pending(phase) & (phase != Phase.CAPTURED)
    sequence = jnp.where(is_awaited, card.table.fields[:-1, Field.SEQUENCE], NONE).max()
    return card, jnp.where(place.commands > card.table.rows, NONE, sequence)


def _make_room(card: CardState, program: Program) -> CardState:
    """Block the host until the table has rows for the whole program, as a full queue does on a card."""
    last = NONE
    while True:
        card, blocker = _blocker(card, program)
        known = concrete(blocker)
        if known is None or known in (NONE, last):
            return card
        card, last = await_room(card, blocker), int(known)


@verb
def execute_program(card: CardState, program: Program, stream: Number, *, site: Site = None) -> CardState:
    """Run a program in ``stream``, as often as wanted (``aclmdlRIExecuteAsync``).

    It takes the host as long as one launch. Stream 0 of the program becomes ``stream``; its other streams are hidden
    ones in free slots of the card, which are free again when the host has seen them empty. The program begins after
    what is in ``stream`` and what comes later in ``stream`` waits for all of it. Failures planned for the numbers that
    its commands get apply; a failure in a hidden stream is one of ``stream``. If that stops on failure, the one that
    failed takes nothing more at once, the other streams of the program when the host next waits or asks. A callback is
    handed to the host thread that served its stream when it was captured. A wait for a value looks at what memory holds
    now, as if it were queued now.

    Under ``jit`` the program is one argument like others; pad programs to one number of rows to share a compilation. If
    its commands are traced too, each execution compiles the simulation of what went before it.

    Returns:
      The card. Status 107002 and 107003 as every stream call, 107027 while the stream is captured, 107015 for a program
      with a callback for a host thread that is not there, 107000 for one with a notify or a flag event that is not,
      900005 if ``max_values`` other addresses are in use, 207005 if there are not enough free streams, 900001 if the
      table has too few rows (outside ``jit`` the host first blocks until enough commands have finished).

    Raises:
      ValueError: The program is a batch.

    >>> import ascend_jax as aj
    >>> card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 20)
    >>> card, pointer = aj.malloc(card, 64)
    >>> card, stream = aj.create_stream(card)
    >>> card = aj.memset_async(aj.capture_begin(card, stream), pointer, 7, 64, stream)
    >>> card, program = aj.capture_end(card, stream)
    >>> for _ in range(3):
    ...     card = aj.execute_program(card, program, stream)
    >>> card, out = aj.download(aj.synchronize_stream(card, stream), pointer, (4,), "uint8")
    >>> program.rows, out.tolist()
    (1, [7, 7, 7, 7])
    """
    if program.fields.ndim != 2:
        raise ValueError(f"program has batch axes {program.fields.shape[:-2]}: use jax.vmap over cards and programs")
    numbers = []
    for spec in program.kernels:
        card, number = load_kernel(card, spec)
        numbers.append(number)
    plain = dataclasses.replace(program, kernels=()).padded(max(program.rows, 1))
    card = _make_room(card, plain)
    has_values = has_value_marks(program)
    if has_values is not False:
        card = look(card, site, has_values)  # memory as it is now
    return _append(card, plain, np.array(numbers or [NONE], np.int32), stream, site, has_values=has_values is not False)
