"""Lists of commands as lanes of one run of the engine, and what the scheduler says about them, array beside array."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from ascend_jax.runtime.clock import to_ns
from ascend_jax.runtime.layout import (
    LIMB,
    NONE,
    OPERANDS,
    Change,
    Condition,
    Field,
    Kind,
    Operand,
    Phase,
    Reach,
    Resource,
)
from ascend_jax.runtime.program import Program, nothing, numbered
from ascend_jax.runtime.simulate import simulate
from tests.runtime.random_tasks import CAPACITY, random_commands
from tests.runtime.scheduler import WORD, Command, Scheduler

LANES = 512
ROWS = 40
STREAMS = 4
CELLS = 4


class Answer(NamedTuple):
    """What became of the commands of one list, N rows with the padding; int64, times in ns."""

    ready: np.ndarray  # [N], NONE where the command never ended, as in the next three
    start: np.ndarray
    end: np.ndarray
    phase: np.ndarray  # [N]
    code: np.ndarray  # [N]
    is_stuck: np.ndarray  # []
    device_error: np.ndarray  # []


def random_list(seed: str) -> tuple[list[Command], dict[str, int]]:
    """Return a list of up to ROWS commands and the cores it runs on."""
    rng = random.Random(seed)
    capacity = CAPACITY | {"cube": rng.choice((1, 2, 3, 4, 24)), "vector": rng.choice((2, 3, 6, 7, 48))}
    length = rng.choice((6, 12, 24, ROWS))
    return random_commands(rng, length, streams=STREAMS, cells=CELLS, ties=rng.random() < 0.6), capacity


def scheduled(
    commands: Sequence[Command], capacity: dict[str, int], rows: int, *, streams: int = STREAMS, stops: bool = False
) -> Answer:
    """Run the scheduler; the list is used up by it."""
    scheduler = Scheduler(capacity, streams, CELLS, range(streams) if stops else ())
    for command in commands:
        scheduler.enqueue(command)
    assert scheduler.run_until(lambda: False) == "stuck"
    columns = np.full((5, rows), NONE, np.int64)
    columns[3:] = [[Phase.EMPTY], [0]]
    for row, command in enumerate(commands):
        columns[3, row] = Phase.DROPPED
        if command.end >= 0:
            failed = Phase.EXPIRED if command.result == command.timeout_code else Phase.FAULTED
            phase = failed if command.result else Phase.DONE
            columns[:, row] = command.ready, command.start, command.end, phase, command.result
    is_stuck = any(command.end < 0 and not command.dropped for command in commands)
    return Answer(*columns, np.array(is_stuck), np.array(scheduler.device_error))


def table_of(commands: Sequence[Command], rows: int) -> np.ndarray:
    """Return int32 [rows, FIELDS], without the columns that follow from the order."""
    table = nothing(rows, rows)
    number = {command: row for row, command in enumerate(commands)}
    for row, command in enumerate(commands):
        columns = {Field.KIND: _KINDS[command.kind], Field.STREAM: command.stream}
        columns |= _limbs(Field.ISSUE_HI, command.issue) | _limbs(Field.TIMEOUT_HI, command.timeout)
        columns |= {Field.FAULT: command.fault, Field.REACH: _REACHES[command.reach]}
        if command.is_task:
            assert command.timeout_reach == "device" or not command.timeout
            columns |= _task_columns(command)
        else:
            assert command.timeout_reach == "stream" or not command.timeout
            columns |= _mark_columns(command)
            columns[Field.DEPENDS] = NONE if command.depends is None else number[command.depends]
        table[row, list(columns)] = list(columns.values())
    return table


def programs_of(tables: Sequence[np.ndarray], streams: int = STREAMS) -> Program:
    """Return a batch of programs of one length; stream 0 need not come last in them."""
    table = np.stack(tables)
    numbers = np.array(_numbered(table))
    for column in (Field.ISSUE_HI, Field.ISSUE_LO):
        numbers[..., column] = table[..., column]
    operands = np.zeros((*table.shape[:2], OPERANDS, len(Operand)), np.int32)
    return Program(jax.numpy.asarray(numbers), jax.numpy.asarray(operands), streams, ())


def simulated(programs: Program, chip: object, *, stops: bool = False) -> Answer:
    """Run the engine; axes [B, N] and [B]."""
    found = jax.device_get(simulate(programs, chip, cells=CELLS, stops=stops))
    has_ended = np.isin(found.phase, (Phase.DONE, Phase.FAULTED, Phase.EXPIRED))
    times = [np.where(has_ended, to_ns(*time), NONE) for time in (found.ready, found.start, found.end)]
    return Answer(*times, found.phase, found.code, found.is_stuck, found.device_error)


def difference(found: Answer, wanted: Answer) -> str:
    """Return the first difference between two answers of one lane, or an empty text."""
    for name in ("end", "start", "phase", "code", "ready"):
        wrong = np.flatnonzero(getattr(found, name) != getattr(wanted, name))
        if wrong.size:
            row = wrong[np.minimum(wanted.end, found.end)[wrong].argmin()]
            return f"{name} of command {row}: {getattr(found, name)[row]} instead of {getattr(wanted, name)[row]}"
    for name in ("is_stuck", "device_error"):
        if getattr(found, name) != getattr(wanted, name):
            return f"{name}: {getattr(found, name)} instead of {getattr(wanted, name)}"
    return ""


def stacked(answers: Sequence[Answer]) -> Answer:
    """Return answers of several lists as a batch."""
    return Answer(*map(np.stack, zip(*answers, strict=True)))


def lane(answers: Answer, number: int) -> Answer:
    """Return one lane of a batch of answers."""
    return Answer(*(part[number] for part in answers))


_numbered = jax.jit(jax.vmap(numbered))
_KINDS = {
    "kernel": Kind.KERNEL,
    "copy": Kind.COPY,
    "memset": Kind.MEMSET,
    "event record": Kind.EVENT_RECORD,
    "event wait": Kind.EVENT_WAIT,
    "event reset": Kind.EVENT_RESET,
    "notify record": Kind.NOTIFY_RECORD,
    "notify wait": Kind.NOTIFY_WAIT,
    "value write": Kind.VALUE_WRITE,
    "value wait": Kind.VALUE_WAIT,
    "callback": Kind.CALLBACK,
    "callback wait": Kind.CALLBACK_WAIT,
}
_REACHES = {"stream": Reach.STREAM, "device": Reach.DEVICE}
_UNITS = {
    "cube": Resource.CUBE,
    "vector": Resource.VECTOR,
    "h2d": Resource.H2D,
    "d2h": Resource.D2H,
    "d2d": Resource.D2D,
}


def _limbs(column: Field, time: int) -> dict[int, int]:
    return {column: time // LIMB, column + 1: time % LIMB}


def _task_columns(command: Command) -> dict[int, int]:
    columns = {Field.NEED + _UNITS[unit]: count for unit, count in command.needs.items()}
    return (
        columns
        | _limbs(Field.BLOCK_HI, command.block)
        | {
            Field.BLOCKS: command.blocks,
            Field.MODE: command.mode,
            Field.PRIORITY: command.priority,
            Field.HEAD_NS: command.head,
            Field.HBM_SHARE: command.hbm,
            Field.L2_SHARE: command.l2,
        }
    )


def _mark_columns(command: Command) -> dict[int, int]:
    """A mark has one value: what it compares with is what it sets or adds, but for a change to 0."""
    change = Change.NONE
    if command.effect:
        is_clear = command.effect == "SET" and command.value2 == 0
        change = Change.CLEAR if is_clear else Change[command.effect]
    value = command.value if command.condition else command.value2
    assert change in (Change.NONE, Change.CLEAR) or value == command.value2
    words = np.array([value % WORD >> 32, value % (1 << 32)], np.uint32).astype(np.int32)
    return {
        Field.CELL: command.cell or 0,
        Field.CONDITION: Condition[command.condition or "NONE"],
        Field.CHANGE: change,
        Field.VALUE_HI: words[0],
        Field.VALUE_LO: words[1],
    }
