"""Rows of a plan: the commands of one card that do its steps.

A call is three rows: a rendezvous at which all ranks have come, the card's part of the collective, and a rendezvous at
which all ranks are through.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.steps import Call, Step, Work
from ascend_jax.hccl.timeouts import timeout_ns
from ascend_jax.runtime.layout import LIMB, NONE, SHARES, Field, Kind, Resource
from ascend_jax.runtime.program import LONGEST_BLOCK_NS, nothing

Columns = dict[Any, int]


class Rows(NamedTuple):
    """The rows of one card, or of all cards that do the same."""

    table: np.ndarray  # int32 [N, FIELDS]
    task_of: np.ndarray  # int64 [steps], row of the task of each step
    meet_of: np.ndarray  # int64 [steps], row of the rendezvous before it; NONE for work
    end_of: np.ndarray  # int64 [steps], row with which the step ends


def lay_out(chip: ChipSpec, steps: Sequence[Step]) -> Rows:
    """Return the rows of steps; those of tasks have no times yet, those of calls no places (see :func:`timing`)."""
    rows: list[Columns] = []
    linked: set[Communicator] = set()  # used before
    last: dict[int, int] = {}
    task, meet, end = (np.full(len(steps), NONE) for _ in range(3))

    def put(columns: Columns) -> int:
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
        own = {Field.STREAM: step.stream}
        for before in step.after:
            if not 0 <= before < number:
                raise ValueError(f"step {number} ({step.title}) is after step {before}: must be an earlier one")
            put(own | {Field.KIND: Kind.EVENT_WAIT, Field.DEPENDS: int(end[before])})
        if isinstance(step, Call):
            limit = timeout_ns(chip, step.comm.config, is_first=step.comm not in linked)
            linked.add(step.comm)
            times = {Field.TIMEOUT_HI: limit // LIMB, Field.TIMEOUT_LO: limit % LIMB}
            meet[number] = put(own | {Field.KIND: Kind.RENDEZVOUS} | times)
            task[number] = put(own | {Field.KIND: Kind.COLLECTIVE, Field.MODE: 1})
            end[number] = put(own | {Field.KIND: Kind.RENDEZVOUS})
        else:
            task[number] = end[number] = put(own | _cores(step))
    for stream in sorted(last):
        if stream > 0:
            put({Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 0, Field.DEPENDS: last[stream]})
    table = nothing(len(rows), len(rows))
    table[:, Field.BLOCKS] = 1
    for number, columns in enumerate(rows):
        table[number, list(columns)] = list(columns.values())
    return Rows(table, task, meet, end)


def _cores(work: Work) -> Columns:
    cube, vector = work.cube_cores, work.vector_cores
    per_cube = int(vector > 0) if cube in (0, vector) else min(2, vector // cube)
    return {
        Field.KIND: Kind.KERNEL,
        Field.MODE: 1,
        Field.BLOCKS: blocks_of(work),
        Field.NEED + Resource.CUBE: int(cube > 0),
        Field.NEED + Resource.VECTOR: per_cube,
    }


def blocks_of(step: Step) -> int:
    """Return the number of blocks of a step's task."""
    return max(step.cube_cores, step.vector_cores, 1) if isinstance(step, Work) else 1


def timing(chip: ChipSpec, step: Step, duration_ns: np.ndarray, moved_bytes: float) -> dict[Any, np.ndarray]:
    """Return the columns of a task that takes so long, at least 1 ns, and moves so much of HBM meanwhile.

    Raises:
      ValueError: It is too long for one task.
    """
    duration_ns = np.maximum(duration_ns, 1)
    if (duration_ns > LONGEST_BLOCK_NS).any():
        raise ValueError(
            f"{step.title} takes {int(duration_ns.max())} ns: a task takes at most {LONGEST_BLOCK_NS} ns; split it"
        )
    seconds = duration_ns * 1e-9 * blocks_of(step)
    share = (SHARES * moved_bytes / (seconds * float(chip["hbm_bytes_per_s"]))).astype(np.int64)
    return {
        Field.BLOCK_HI: duration_ns // LIMB,
        Field.BLOCK_LO: duration_ns % LIMB,
        Field.HBM_SHARE: np.minimum(share, SHARES - 1),
    }
