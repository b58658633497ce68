"""What went wrong between the ranks of a cluster, from the command tables of its cards."""

from typing import Any, NamedTuple

import numpy as np

from ascend_jax.hccl.cluster import Cluster
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.explain_plan import timeout_line, wait_s
from ascend_jax.hccl.mismatch import Mismatch, odd_one_out
from ascend_jax.hccl.timeouts import S
from ascend_jax.runtime import callsite
from ascend_jax.runtime.clock import to_ns
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.layout import Field, Kind, Phase, StatusWord, Time

_FAILED = (Phase.FAULTED, Phase.EXPIRED, Phase.DROPPED)


class _Tables(NamedTuple):
    """The command tables of all cards on the host."""

    fields: np.ndarray  # [C, N, FIELDS]
    times: np.ndarray  # [C, N, len(Time)]
    kernels: tuple[Any, ...]
    is_stuck: bool


def explain_cluster(cluster: Cluster) -> list[str]:
    """Return what went wrong between the ranks, a line each, as :func:`ascend_jax.hccl.explain_plan`; else nothing.

    It knows the latest commands of each card, as many as its table has rows.
    """
    cards = cluster.cards
    is_stuck = bool((np.asarray(cards.status)[:, StatusWord.LAST] == Code.DEADLOCK).any())
    # the last row is no command
    fields, times = (np.asarray(one)[:, :-1] for one in (cards.table.fields, cards.table.times))
    tables = _Tables(fields, times, cards.kernels, is_stuck)
    comms: list[Any] = [dict(spec.attributes)["comm"] for spec in cards.kernels if spec.meets]
    lines = []
    for comm in dict.fromkeys(comms):
        for group in comm.groups:
            calls = [_calls_of(tables, card, comm) for card in group]
            for number in sorted({number for one in calls for number in one}):
                line = _line(tables, comm, group, number, [one.get(number) for one in calls])
                if line is not None:
                    lines.append(line)
                    break
    return lines


def _calls_of(tables: _Tables, card: int, comm: Communicator) -> dict[int, int]:
    """Return the row of the collective of each call that a card's table still holds, by number."""
    fields = tables.fields[card]
    is_it = (fields[:, Field.KIND] == Kind.COLLECTIVE) & (fields[:, Field.OBJECT] == _number(comm))
    calls = {int(fields[row, Field.VALUE_LO]): int(row) for row in np.flatnonzero(is_it)}
    # later commands may have taken the row of its begin; then it is over
    return {number: row for number, row in calls.items() if _begin(tables, card, comm, number) is not None}


def _number(comm: Communicator) -> int:
    assert comm.home is not None
    return comm.home.number


def _line(
    tables: _Tables, comm: Communicator, group: tuple[int, ...], number: int, rows: list[int | None]
) -> str | None:
    """Return what is wrong with a call, or None; ``rows`` are those of its collective, None if a rank has none."""
    here = [(rank, card, row) for rank, (card, row) in enumerate(zip(group, rows, strict=True)) if row is not None]
    begins = {rank: row for rank, card, _ in here if (row := _begin(tables, card, comm, number)) is not None}
    phases = {rank: Phase(tables.times[card, begins[rank], Time.PHASE]) for rank, card, _ in here}
    if not any(phase in _FAILED for phase in phases.values()) and not (tables.is_stuck and _waits(phases)):
        return None
    if len(here) == len(group):
        odd = odd_one_out([dict(_said(tables, card, row)) for _, card, row in here])
        if odd is not None:
            rank, parameter, value, expected, judge = odd
            ours = _rank(comm, rank), parameter, value, expected, _rank(comm, judge)
            return str(Mismatch(comm, number, *ours, group, ()))
    ready = {
        rank: int(to_ns(*tables.times[card, begins[rank]][[Time.READY_HI, Time.READY_LO]])) for rank, card, _ in here
    }
    came = [rank for rank, card, _ in here if _obstacle(tables, card, begins[rank]) is None]
    held = [
        f"rank {_rank(comm, rank)} is held by {_name(tables, card, obstacle)}"
        for rank, card, _ in here
        if (obstacle := _obstacle(tables, card, begins[rank])) is not None
    ]
    missing = [_rank(comm, rank) for rank, row in enumerate(rows) if row is None]
    if not came:
        return None  # told where it is held
    assert comm.home is not None
    seconds = wait_s(comm.home.chips[0], comm, number)
    first = min(ready[rank] for rank in came)
    late = [(rank, ready[rank] - first) for rank in came if seconds and ready[rank] - first >= seconds * S]
    waiting = [rank for rank in came if rank not in dict(late)]
    title = _name(tables, group[waiting[0]], begins[waiting[0]])
    late, waiting = [(_rank(comm, rank), after) for rank, after in late], [_rank(comm, rank) for rank in waiting]
    return timeout_line(title, number, seconds, missing, held, late, waiting)


def _rank(comm: Communicator, rank: int) -> int:
    """Return a rank as the program knows it: of a pair that sends, that in the communicator it belongs to."""
    return comm.home.pair[rank] if comm.home is not None and comm.home.pair else rank


def _waits(phases: dict[int, Phase]) -> bool:
    return any(phase in (Phase.QUEUED, Phase.READY) for phase in phases.values())


def _begin(tables: _Tables, card: int, comm: Communicator, number: int) -> int | None:
    """Return the row of the rendezvous that begins a call, or None if the table does not hold it any more."""
    fields = tables.fields[card]
    is_it = (fields[:, Field.KIND] == Kind.RENDEZVOUS) & (fields[:, Field.OBJECT] == _number(comm))
    rows = np.flatnonzero(is_it & (fields[:, Field.VALUE_LO] == 2 * number))
    return int(rows[0]) if len(rows) else None


def _said(tables: _Tables, card: int, row: int) -> Any:
    return dict(tables.kernels[tables.fields[card, row, Field.KERNEL]].attributes)["said"]


def _obstacle(tables: _Tables, card: int, row: int) -> int | None:
    """Return the row ahead in the stream of a command that it has not got past, or None if it is at the head."""
    fields, times = tables.fields[card], tables.times[card]
    is_ahead = (fields[:, Field.STREAM] == fields[row, Field.STREAM]) & (fields[:, Field.SEQUENCE] >= 0)
    is_ahead &= fields[:, Field.SEQUENCE] < fields[row, Field.SEQUENCE]
    is_ahead &= (times[:, Time.PHASE] != Phase.DONE) & (times[:, Time.PHASE] != Phase.EMPTY)
    ahead = np.flatnonzero(is_ahead)
    return int(ahead[np.argmin(fields[ahead, Field.SEQUENCE])]) if len(ahead) else None


def _name(tables: _Tables, card: int, row: int) -> str:
    """Return what a command is: of a collective, which call of which communicator, and where it was made."""
    fields = tables.fields[card]
    kind, site = Kind(fields[row, Field.KIND]), callsite.text(fields[row, Field.SITE])
    if kind not in (Kind.RENDEZVOUS, Kind.COLLECTIVE):
        return f"{kind.name.lower()} at {site}"
    number = fields[row, Field.VALUE_LO] // (2 if kind == Kind.RENDEZVOUS else 1)
    is_task = (fields[:, Field.KIND] == Kind.COLLECTIVE) & (fields[:, Field.OBJECT] == fields[row, Field.OBJECT])
    tasks = np.flatnonzero(is_task & (fields[:, Field.VALUE_LO] == number))
    if not len(tasks):
        return f"a collective at {site}"
    task = int(tasks[0])
    said = dict(_said(tables, card, task))
    comm = dict(tables.kernels[fields[task, Field.KERNEL]].attributes)["comm"]
    return f"call {number} of {comm.name}, {said['operation']} at {site}"
