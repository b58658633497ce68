"""Ring: each rank passes pieces to the next one. ``phases ((p - 1) a + (p - 1) / p n b)``."""

from ascend_jax.hccl.cost.level import Level


def ring_ns(level: Level, phases: int, nbytes: float, ranks: int) -> float:
    """Return the time of ``phases`` phases; AllReduce: ``2 (p - 1) a + 2 (p - 1) / p n b`` (HCCL documents).

    >>> ring_ns(Level("line", 10.0, 2.0, 1.0, 0.0, 0.0), 2, 80.0, 4)
    300.0
    """
    return phases * ((ranks - 1) * level.step_ns + level.neighbour_ns(nbytes) * (ranks - 1) / ranks)
