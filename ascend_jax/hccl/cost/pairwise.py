"""Pairwise: p - 1 rounds, in each of which every rank exchanges with one other. For all-to-all."""

from ascend_jax.hccl.cost.level import Level


def pairwise_ns(level: Level, nbytes: float, ranks: int) -> float:
    """Return ``(p - 1) a + (p - 1) / p n b`` (HCCL documents).

    >>> pairwise_ns(Level("line", 10.0, 2.0, 1.0, 0.0, 0.0), 80.0, 4)
    150.0
    """
    return (ranks - 1) * level.step_ns + level.neighbour_ns(nbytes) * (ranks - 1) / ranks
