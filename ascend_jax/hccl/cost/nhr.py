"""NHR, nonuniform hierarchical ring: tree steps, any number of ranks. ``phases (ceil(log2 p) a + (p - 1) / p n b)``."""

from ascend_jax.hccl.cost.level import Level, doublings


def nhr_ns(level: Level, phases: int, nbytes: float, ranks: int) -> float:
    """Return the time of ``phases`` phases (HCCL documents, NHR).

    >>> nhr_ns(Level("line", 10.0, 2.0, 1.0, 0.0, 0.0), 2, 60.0, 3)
    200.0
    """
    return phases * (doublings(ranks) * level.step_ns + level.neighbour_ns(nbytes) * (ranks - 1) / ranks)
