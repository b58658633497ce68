"""Recursive halving-doubling: partners at distance 1, 2, 4, ... ``phases (ceil(log2 p) a + (p - 1) / p n b)``."""

from ascend_jax.hccl.cost.level import Level, doublings


def halving_doubling_ns(level: Level, phases: int, nbytes: float, ranks: int) -> float:
    """Return the time of ``phases`` phases (HCCL documents, RHD).

    Where p is no power of two, the ranks beyond it hand all their data to a partner first and get it back at the end.

    >>> halving_doubling_ns(Level("line", 10.0, 2.0, 1.0, 0.0, 0.0), 2, 80.0, 4)
    280.0
    """
    power = 1 << (ranks.bit_length() - 1)
    whole = phases * (doublings(power) * level.step_ns + level.neighbour_ns(nbytes) * (power - 1) / power)
    return whole if power == ranks else whole + phases * (level.step_ns + level.neighbour_ns(nbytes))
