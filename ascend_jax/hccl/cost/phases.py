"""Collectives, and of which phases each of them consists."""

import enum


class Collective(enum.Enum):
    """What the ranks do together; ``n`` below is the bytes of the larger buffer of one rank."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"
    BARRIER = "barrier"


# one phase moves (p - 1) / p n of each rank; broadcast and reduce go by way of a scattered buffer
PHASES = {
    Collective.ALL_REDUCE: 2,
    Collective.ALL_GATHER: 1,
    Collective.REDUCE_SCATTER: 1,
    Collective.BROADCAST: 2,
    Collective.REDUCE: 2,
    Collective.SCATTER: 1,
    Collective.ALL_TO_ALL: 1,
}
