"""Mesh: every rank talks to all others at once. ``phases (a + (n / p) b)``, plus the first chunk's way."""

from ascend_jax.hccl.cost.level import Level


def mesh_ns(level: Level, phases: int, nbytes: float, ranks: int) -> float:
    """Return the time of ``phases`` phases; AllReduce has two: ``2 a + 2 (n / p) b`` (HCCL documents).

    >>> mesh_ns(Level("mesh", 10.0, 2.0, 1.0, 0.0, 0.0), 2, 80.0, 8)
    60.0
    """
    if ranks < 2:
        return 0.0
    return phases * (level.step_ns + level.spread_ns(nbytes / ranks, ranks - 1) + level.fill_ns(nbytes) / 2)
