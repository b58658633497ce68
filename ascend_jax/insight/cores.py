"""Which core ran what: the engine counts cores, pictures need their numbers."""

from __future__ import annotations

import dataclasses

import numpy as np

from ascend_jax.insight.timeline import NEVER_NS, Counts, Timeline, Times


@dataclasses.dataclass(frozen=True, eq=False)
class CoreSlices:
    """Core numbers of one kind of core, a slice for each core that a command took.

    Dimension: ``M`` slices, in the order in which commands took their cores.
    """

    entry: Times  # [M] position of the command in the timeline
    core: Counts  # [M] core number, from 0
    until_ns: Times  # [M] when the command gave it up; the horizon for one that is still running

    def __len__(self) -> int:
        """Number of slices M."""
        return len(self.entry)

    def of(self, entry: int) -> Counts:
        """Core numbers that the command at this position took, ascending."""
        return np.sort(self.core[self.entry == entry])


@dataclasses.dataclass(frozen=True, eq=False)
class CoreLanes:
    """The cube and the vector cores of every command that took some."""

    cube: CoreSlices
    vector: CoreSlices


def assign_cores(timeline: Timeline) -> CoreLanes:
    """Gives every started command concrete core numbers.

    All cores of a kind are alike, so the simulator only counts them, and it gives them out block by block: the log
    has when a kernel started and ended and how many cores it can hold, not which blocks ran when. So this is a
    picture. Kernels take, in the order of start and sequence number, the lowest-numbered cores that are free, at
    most as many as they can hold, and keep them to their end. Where none is free, the kernel that has been at work
    longest gives up one, because its last blocks have left room. A kernel may have run on more or fewer cores than
    shown; while kernels fit side by side, what is shown is what ran. No core shows two kernels at one time.

    >>> rows = [{"start_ns": 0, "end_ns": 4, "held_cube": 2}, {"start_ns": 2, "end_ns": 5, "held_cube": 2}]
    >>> log = Timeline.from_rows(rows, chip="x", calibration="", cube_cores=3, vector_cores=0)
    >>> assign_cores(log).cube.core.tolist()
    [0, 1, 2]
    """
    cube = _assign(timeline, timeline.held_cube, timeline.cube_cores)
    vector = _assign(timeline, timeline.held_vector, timeline.vector_cores)
    return CoreLanes(cube, vector)


def _assign(timeline: Timeline, held: Counts, cores: int) -> CoreSlices:
    start, shown = timeline.start_ns, timeline.until_ns()
    until = np.where(timeline.finished | (timeline.dropped_ns >= 0), shown, NEVER_NS)
    lasts = until > start  # a command of no length takes nothing from others, so it goes first at its time
    order = np.lexsort((timeline.command, lasts, start))
    entries: list[int] = []
    numbers: list[int] = []
    ends: list[int] = []
    free_at = np.zeros(cores, np.int64)
    latest = np.zeros(cores, np.int64)  # slice of each core
    for entry in order[(held[order] > 0) & (start[order] >= 0) & (cores > 0)].tolist():
        chosen = np.flatnonzero(free_at <= start[entry])[: held[entry]]
        if not len(chosen):
            chosen = np.array([np.argmin([start[entries[one]] for one in latest])])
            ends[latest[chosen[0]]] = int(start[entry])
        free_at[chosen] = until[entry]
        latest[chosen] = len(entries) + np.arange(len(chosen))
        entries += [entry] * len(chosen)
        numbers += chosen.tolist()
        ends += [int(shown[entry])] * len(chosen)
    return CoreSlices(np.array(entries, np.int64), np.array(numbers, np.int32), np.array(ends, np.int64))
