"""``Plan``: steps of all cards of a cluster as one batch of programs that meet, ready for the exact engine."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.hccl.algorithm import collective_time
from ascend_jax.hccl.cluster import Cluster
from ascend_jax.hccl.creation import check_alive
from ascend_jax.hccl.membership import check_cards
from ascend_jax.hccl.mismatch import Mismatch, calls_of, find_mismatches
from ascend_jax.hccl.occupancy import occupancy
from ascend_jax.hccl.plan_rows import Rows, lay_out, timing
from ascend_jax.hccl.steps import Call, Step, Work
from ascend_jax.hccl.topology import Topology
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.coupling import Coupling
from ascend_jax.runtime.layout import NONE, OPERANDS, Field, Operand, Reach
from ascend_jax.runtime.program import Program, nothing, numbered

BLOCK = 16  # plans are filled up to whole blocks of commands, so that those of about one length share a program


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What C cards do. Row numbers are those of ``program``."""

    chip: ChipSpec
    topology: Topology
    steps: tuple[tuple[Step, ...], ...]  # one list for each card, or a single one for all
    rows: tuple[Rows, ...]  # as ``steps``
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

    def rows_of(self, card: int) -> Rows:
        """Return where the steps of a card are."""
        return self.rows[card if len(self.rows) > 1 else 0]


def make_plan(chip: ChipSpec, steps: Sequence[Step] | Sequence[Sequence[Step]], topology: Topology | Cluster) -> Plan:
    """Return the plan of steps.

    Calls of one communicator meet by their number in the order in which each host enqueues them, whatever the streams.

    Args:
      chip: What the cards are.
      steps: One list that all cards run, or a list for each card, in the order in which its host enqueues them.
      topology: How many cards, in which servers; or a cluster, whose destroyed communicators are refused.

    Raises:
      ValueError: Not one list for each card, a step waits for one that is not before it, or a card has no rank.
      HcclError: PARA: a communicator for another number of cards; NOT_FOUND: one that was destroyed.

    >>> from ascend_jax.chip import chip
    >>> from ascend_jax.hccl import Collective, comm_world
    >>> steps = [Work("matmul", 1000), Call(Collective.ALL_REDUCE, comm_world(2), 1 << 20)]
    >>> make_plan(chip("Ascend910B2"), steps, Topology(2, 8)).program.rows  # 5 commands and padding
    16
    """
    is_one = all(isinstance(step, Work | Call) for step in steps)
    lists: tuple[tuple[Step, ...], ...] = (tuple(steps),) if is_one else tuple(tuple(one) for one in steps)  # type: ignore[arg-type]
    where = topology.topology if isinstance(topology, Cluster) else topology
    if not is_one and len(lists) != where.cards:
        raise ValueError(f"{len(lists)} lists of steps: the topology has {where.cards} cards")
    for comm in dict.fromkeys(step.comm for one in lists for step in one if isinstance(step, Call)):
        check_cards(comm, where.cards)
        if isinstance(topology, Cluster):
            check_alive(topology, comm)
    layouts = [lay_out(chip, one) for one in lists]
    rows = -(-max(len(layout.table) for layout in layouts) // BLOCK) * BLOCK
    tables = np.stack([_padded(layout.table, rows) for layout in layouts])
    tables = np.repeat(tables, where.cards, axis=0) if is_one else tables
    channels, places = _channels(lists, where.cards)
    coupling, mismatches = Coupling(where.cards, channels or ((0,),)), find_mismatches(lists)
    _fill_calls(chip, where, tables, lists, layouts, places)
    for number, (one, layout) in enumerate(zip(lists, layouts, strict=True)):
        cards = slice(None) if is_one else slice(number, number + 1)
        _fill_work(chip, tables[cards], one, layout, number, where.cards)
    for wrong in mismatches:
        for card, position in wrong.calls:
            row = layouts[card].meet_of[position]
            tables[card, row, Field.FAULT], tables[card, row, Field.REACH] = Code.RT_INTERNAL_ERROR, Reach.STREAM
    return Plan(chip, where, lists, tuple(layouts), _program(tables, lists), coupling, mismatches)


Places = dict[tuple[int, int], np.ndarray]


def _channels(lists: Sequence[Sequence[Step]], cards: int) -> tuple[tuple[tuple[int, ...], ...], Places]:
    """Return the cards of each channel, and for each (number of a list, number of a call in it) the place of each card.

    What calls of one group share a channel that come on the same streams: each card serves those in order. So the n-th
    calls meet although others of the communicator, on other streams, overtake them.
    """
    channels: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
    found: list[tuple[int, int, int, int, int]] = []  # list, step, card, channel, rank
    comms = dict.fromkeys(step.comm for one in lists for step in one if isinstance(step, Call))
    for index, comm in enumerate(comms):
        own = [calls_of(one, comm) for one in lists]
        for group in comm.groups:
            list_of = [card if len(lists) > 1 else 0 for card in group]
            for number in range(max(len(own[one]) for one in list_of)):
                calls = [own[one][number] if number < len(own[one]) else NONE for one in list_of]
                pairs = list(zip(list_of, calls, strict=True))
                streams = tuple(lists[one][call].stream if call != NONE else NONE for one, call in pairs)
                channel = channels.setdefault((index, group, streams), len(channels))
                found += [(*pair, group[rank], channel, rank) for rank, pair in enumerate(pairs) if pair[1] != NONE]
    width = max((len(group) for _, group, _ in channels), default=1)
    places: Places = {}
    for one, call, card, channel, rank in found:
        places.setdefault((one, call), np.full(cards, NONE))[card] = channel * width + rank
    return tuple(group for _, group, _ in channels), places


def _fill_calls(
    chip: ChipSpec,
    topology: Topology,
    tables: np.ndarray,
    lists: Sequence[Sequence[Step]],
    layouts: Sequence[Rows],
    places: Places,
) -> None:
    """Fill in where the cards of each call meet, how long it takes and which links it holds."""
    known: dict[tuple, np.ndarray] = {}  # columns of calls that are alike
    for number, (steps, layout) in enumerate(zip(lists, layouts, strict=True)):
        cards = np.arange(topology.cards) if len(lists) == 1 else np.array([number])
        for position, step in enumerate(steps):
            if not isinstance(step, Call):
                continue
            mine = places.get((number, position), np.full(topology.cards, NONE))[cards]
            if (mine == NONE).any():
                card = int(cards[np.argmin(mine)])
                raise ValueError(f"card {card} calls {step.title} of {step.comm.name}: it has no rank there")
            key = step.collective, step.comm, step.nbytes, step.algorithm
            if key not in known:
                known[key] = _call_columns(chip, topology, step)
            tables[cards, layout.task_of[position]] = np.where(
                known[key][cards] == NONE, tables[cards, layout.task_of[position]], known[key][cards]
            )
            for row in (layout.meet_of[position], layout.end_of[position]):
                tables[cards, row, Field.VALUE_LO] = mine


def _call_columns(chip: ChipSpec, topology: Topology, call: Call) -> np.ndarray:
    """Return what a call fills into the row of its task, [C, FIELDS]; NONE where it fills nothing."""
    table = np.full((topology.cards, nothing(1, 1).shape[1]), NONE)
    for group in call.comm.groups:
        time = collective_time(chip, topology, call.collective, call.nbytes, group, algorithm=call.algorithm)
        for column, value in timing(chip, call, np.array([round(time.time_ns)]), 2.0 * call.nbytes).items():
            table[list(group), column] = value
        table[list(group), Field.L2_SHARE] = [
            occupancy(chip, topology, call.collective, time, card, group) for card in group
        ]
    return table


def _fill_work(chip: ChipSpec, tables: np.ndarray, steps: Sequence[Step], layout: Rows, card: int, cards: int) -> None:
    """Fill in how long each kernel takes on some cards, ``tables`` [n, N, FIELDS] from ``card`` on."""
    for position, step in enumerate(steps):
        if isinstance(step, Work):
            each = np.asarray(step.duration_ns, np.int64)
            if each.ndim and len(each) != cards:
                raise ValueError(f"work {step.name!r} has {len(each)} durations: there are {cards} cards")
            own = np.broadcast_to(each[card : card + len(tables)] if each.ndim else each, len(tables))
            for column, value in timing(chip, step, own, step.hbm_bytes).items():
                tables[:, layout.task_of[position], column] = value


def _padded(table: np.ndarray, rows: int) -> np.ndarray:
    return np.concatenate([table, nothing(rows - len(table), rows)])


def _program(tables: np.ndarray, lists: Sequence[Sequence[Step]]) -> Program:
    streams = 1 + max((step.stream for one in lists for step in one), default=0)
    operands = jnp.zeros((*tables.shape[:2], OPERANDS, len(Operand)), jnp.int32)
    return Program(jax.vmap(numbered)(jnp.asarray(tables)), operands, streams, ())
