"""Which core ran what: the engine counts cores, pictures need their numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from ascend_jax.insight.timeline import NEVER_NS, Counts, Timeline, Times


@dataclasses.dataclass(frozen=True, eq=False)
class CoreSlices:
    """Core numbers of one kind of core, a slice for each core that a command held.

    Dimension: ``M`` slices, in the order in which commands took their cores.
    """

    entry: Times  # [M] position of the command in the timeline
    core: Counts  # [M] core number, from 0

    def __len__(self) -> int:
        """Number of slices M."""
        return len(self.entry)

    def of(self, entry: int) -> Counts:
        """Core numbers that the command at this position held, ascending."""
        return self.core[self.entry == entry]


@dataclasses.dataclass(frozen=True, eq=False)
class CoreLanes:
    """The cube and the vector cores of every command that held some."""

    cube: CoreSlices
    vector: CoreSlices


def assign_cores(timeline: Timeline) -> CoreLanes:
    """Gives every started command concrete core numbers.

    All cores of a kind are alike, so the simulator only counts them. Here commands take, in the order of
    start and sequence number, the lowest-numbered cores whose last command has ended. The choice is
    deterministic and finds a place whenever the counts fit.

    Args:
      timeline: the log of one card. Commands that have not ended keep their cores.

    Raises:
      ValueError: the commands hold more cores at one time than the chip has: a fault of the time engine.

    >>> rows = [{"start_ns": 0, "end_ns": 4, "held_cube": 2}, {"start_ns": 2, "end_ns": 5, "held_cube": 1}]
    >>> log = Timeline.from_rows(rows, chip="x", calibration="", cube_cores=3, vector_cores=0)
    >>> assign_cores(log).cube.core.tolist()
    [0, 1, 2]
    """
    cube = _assign(timeline, timeline.held_cube, timeline.cube_cores, "cube")
    vector = _assign(timeline, timeline.held_vector, timeline.vector_cores, "vector")
    return CoreLanes(cube, vector)


def _assign(timeline: Timeline, held: Counts, cores: int, unit: str) -> CoreSlices:
    start, end = timeline.start_ns, np.where(timeline.finished, timeline.end_ns, NEVER_NS)
    free_at = np.zeros(cores, np.int64)
    entries: list[int] = []
    taken: list[NDArray[np.intp]] = []
    lasts = end > start  # a command of no length takes nothing from others, so it goes first at its time
    for entry in np.lexsort((timeline.command, lasts, start)):
        if held[entry] <= 0 or start[entry] < 0:
            continue
        free = np.flatnonzero(free_at <= start[entry])[: held[entry]]
        if len(free) < held[entry]:
            raise ValueError(
                f"command {timeline.command[entry]} holds {held[entry]} {unit} cores at {start[entry]} ns "
                f"but only {len(free)} of {cores} are free: the engine gave out more than the chip has"
            )
        free_at[free] = end[entry]
        entries.append(int(entry))
        taken.append(free)
    lengths = [len(cores_of_one) for cores_of_one in taken]
    core = np.concatenate(taken) if taken else np.zeros(0)
    return CoreSlices(np.repeat(np.array(entries, np.int64), lengths), core.astype(np.int32))
