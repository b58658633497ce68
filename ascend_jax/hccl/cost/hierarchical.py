"""Hierarchical: ReduceScatter inside the servers, AllReduce of the shares across them, AllGather inside (HCCL)."""


def hierarchical_ns(inside_ns: float, across_ns: float) -> float:
    """Return the time of steps inside and across, one after another.

    >>> hierarchical_ns(40.0, 25.0)
    65.0
    """
    return inside_ns + across_ns
