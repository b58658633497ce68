"""``Plan``: steps of all cards of a cluster as one batch of programs that meet, ready for the exact engine."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.hccl.algorithm import collective_time
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.membership import check_cards
from ascend_jax.hccl.mismatch import Mismatch, find_mismatches
from ascend_jax.hccl.steps import Call, Step, Work
from ascend_jax.hccl.timeouts import timeout_ns
from ascend_jax.hccl.topology import Topology
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.layout import LIMB, NONE, OPERANDS, SHARES, Field, Kind, Operand, Reach, Resource
from ascend_jax.runtime.program import LONGEST_BLOCK_NS, Program, nothing, numbered
from ascend_jax.runtime.rendezvous import Coupling


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What C cards do. Row numbers are those of ``program``."""

    chip: ChipSpec
    topology: Topology
    steps: tuple[tuple[Step, ...], ...]  # one list for each card, or a single one for all
    row_of: tuple[np.ndarray, ...]  # row of the task of each step, as ``steps``
    program: Program  # [C, N]
    coupling: Coupling
    mismatches: tuple[Mismatch, ...]

    @property
    def cards(self) -> int:
        """C."""
        return self.topology.cards

    def steps_of(self, card: int) -> tuple[Step, ...]:
        """Return the steps of a card."""
        return self.steps[card if len(self.steps) > 1 else 0]

    def rows_of(self, card: int) -> np.ndarray:
        """Return the row of each step of a card."""
        return self.row_of[card if len(self.row_of) > 1 else 0]


def make_plan(chip: ChipSpec, steps: Sequence[Step] | Sequence[Sequence[Step]], topology: Topology) -> Plan:
    """Return the plan of steps.

    Args:
      chip: What the cards are.
      steps: One list that all cards run, or a list for each card, in the order in which its host enqueues them.
      topology: How many cards, in which servers.

    Raises:
      ValueError: Not one list for each card, or a step waits for one that is not before it.

    >>> from ascend_jax.chip import chip
    >>> from ascend_jax.hccl import Collective, comm_world
    >>> steps = [Work("matmul", 1000), Call(Collective.ALL_REDUCE, comm_world(2), 1 << 20)]
    >>> make_plan(chip("Ascend910B2"), steps, Topology(2, 8)).program.rows
    4
    """
    is_one = all(isinstance(step, Work | Call) for step in steps)
    lists: tuple[tuple[Step, ...], ...] = (tuple(steps),) if is_one else tuple(tuple(one) for one in steps)  # type: ignore[arg-type]
    cards = topology.cards
    if not is_one and len(lists) != cards:
        raise ValueError(f"{len(lists)} lists of steps: the topology has {cards} cards")
    channels = _channels(lists)
    for comm in channels:
        check_cards(comm, cards)
    coupling = Coupling(cards, tuple(group for comm in channels for group in comm.groups) or ((0,),))
    layouts = [_lay_out(chip, topology, one, number if not is_one else None) for number, one in enumerate(lists)]
    rows = max(len(table) for table, *_ in layouts)
    tables = np.stack([_padded(table, rows) for table, *_ in layouts])
    tables = np.repeat(tables, cards, axis=0) if is_one else tables
    mismatches = find_mismatches(lists, cards)
    row_of = tuple(row for _, row, _ in layouts)
    plan = Plan(chip, topology, lists, row_of, _program(tables, lists), coupling, mismatches)
    _fill(plan, tables, [meets for *_, meets in layouts], channels)
    return dataclasses.replace(plan, program=_program(tables, lists))


def _channels(lists: Sequence[Sequence[Step]]) -> list[Communicator]:
    found: list[Communicator] = []
    for step in (step for one in lists for step in one):
        if isinstance(step, Call) and step.comm not in found:
            found.append(step.comm)
    return found


def _lay_out(
    chip: ChipSpec, topology: Topology, steps: Sequence[Step], card: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of one card, the row of each step's task, and that of its rendezvous or NONE."""
    rows: list[dict[Any, int]] = []
    linked: set[Communicator] = set()  # used before
    known: dict[Any, dict[Any, int]] = {}  # tasks of equal calls
    last: dict[int, int] = {}
    task, meets = np.full(len(steps), NONE), np.full(len(steps), NONE)

    def put(columns: dict[Any, int]) -> int:
        stream = columns[Field.STREAM]
        if stream not in last and stream > 0:
            begins = {Field.KIND: Kind.EVENT_WAIT, Field.STREAM: stream, Field.DEPENDS: 0}
            last[stream] = len(rows)
            rows.append(begins)
        last[stream] = len(rows)
        rows.append(columns)
        return len(rows) - 1

    put({Field.KIND: Kind.EVENT_RECORD, Field.STREAM: 0})
    for number, step in enumerate(steps):
        for before in step.after:
            if not 0 <= before < number:
                raise ValueError(f"step {number} ({_title(step)}) is after step {before}: must be an earlier one")
            put({Field.KIND: Kind.EVENT_WAIT, Field.STREAM: step.stream, Field.DEPENDS: int(task[before])})
        if isinstance(step, Call):
            limit = timeout_ns(chip, step.comm.config, is_first=step.comm not in linked)
            linked.add(step.comm)
            meeting = {Field.KIND: Kind.RENDEZVOUS, Field.STREAM: step.stream}
            meets[number] = put(meeting | {Field.TIMEOUT_HI: limit // LIMB, Field.TIMEOUT_LO: limit % LIMB})
            key = step.collective, step.comm, step.nbytes, step.algorithm, step.stream
            if key not in known:
                known[key] = _task(chip, topology, step, card)
            task[number] = put(known[key])
        else:
            task[number] = put(_task(chip, topology, step, card))
    for stream in sorted(last):
        if stream > 0:
            put({Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 0, Field.DEPENDS: last[stream]})
    table = nothing(len(rows), len(rows))
    table[:, Field.BLOCKS] = 1
    for number, columns in enumerate(rows):
        table[number, list(columns)] = list(columns.values())
    return table, task, meets


def _title(step: Step) -> str:
    return step.name if isinstance(step, Work) else step.title


def _task(chip: ChipSpec, topology: Topology, step: Step, card: int | None) -> dict[Any, int]:
    if isinstance(step, Work):
        each = np.broadcast_to(step.duration_ns, topology.cards)
        duration = int(each.max() if card is None else each[card])
        moved, cores = step.hbm_bytes, (step.cube_cores, step.vector_cores)
    else:
        group = next((one for one in step.comm.groups if card is None or card in one), step.comm.groups[0])
        known = collective_time(chip, topology, step.collective, step.nbytes, group, algorithm=step.algorithm)
        duration, moved, cores = round(known.time_ns), 2.0 * step.nbytes, (0, 0)
    duration = max(duration, 1)
    if duration > LONGEST_BLOCK_NS:
        raise ValueError(f"{_title(step)} takes {duration} ns: a task takes at most {LONGEST_BLOCK_NS} ns")
    blocks = max(*cores, 1)
    share = int(SHARES * moved / (duration * 1e-9 * float(chip["hbm_bytes_per_s"]) * blocks))
    return {
        Field.KIND: Kind.KERNEL,
        Field.STREAM: step.stream,
        Field.MODE: 1,
        Field.BLOCKS: blocks,
        Field.NEED + Resource.CUBE: int(cores[0] > 0),
        Field.NEED + Resource.VECTOR: int(cores[1] > 0) if cores[0] in (0, cores[1]) else min(2, cores[1] // cores[0]),
        Field.BLOCK_HI: duration // LIMB,
        Field.BLOCK_LO: duration % LIMB,
        Field.HBM_SHARE: min(share, SHARES - 1),
    }


def _padded(table: np.ndarray, rows: int) -> np.ndarray:
    return np.concatenate([table, nothing(rows - len(table), rows)])


def _fill(plan: Plan, tables: np.ndarray, meets: Sequence[np.ndarray], channels: Sequence[Communicator]) -> None:
    """Fill in what differs between cards: places in channels, own durations, and calls that do not agree."""
    width, first, place = plan.coupling.width, 0, {}
    for comm in channels:
        places = np.full(plan.cards, NONE)
        for number, group in enumerate(comm.groups):
            places[list(group)] = (first + number) * width + np.arange(comm.size)
        place[comm] = places
        first += len(comm.groups)
    every = slice(None)
    for number, steps in enumerate(plan.steps):
        cards = every if len(plan.steps) == 1 else slice(number, number + 1)
        for position, step in enumerate(steps):
            row = plan.row_of[number][position]
            if isinstance(step, Work):
                duration = np.maximum(np.broadcast_to(step.duration_ns, plan.cards), 1)[cards]
                tables[cards, row, Field.BLOCK_HI] = duration // LIMB
                tables[cards, row, Field.BLOCK_LO] = duration % LIMB
                continue
            mine = place[step.comm][cards]
            if (mine == NONE).any():
                card = number if len(plan.steps) > 1 else int(np.argmin(mine))
                raise ValueError(f"card {card} calls {step.title} of {step.comm.name}: it has no rank there")
            tables[cards, meets[number][position], Field.VALUE_LO] = mine
    for wrong in plan.mismatches:
        for card, position in wrong.calls:
            row = meets[card if len(plan.steps) > 1 else 0][position]
            tables[card, row, Field.FAULT], tables[card, row, Field.REACH] = Code.RT_INTERNAL_ERROR, Reach.STREAM


def _program(tables: np.ndarray, lists: Sequence[Sequence[Step]]) -> Program:
    streams = 1 + max((step.stream for one in lists for step in one), default=0)
    operands = jnp.zeros((*tables.shape[:2], OPERANDS, len(Operand)), jnp.int32)
    return Program(jax.vmap(numbered)(jnp.asarray(tables)), operands, streams, ())
