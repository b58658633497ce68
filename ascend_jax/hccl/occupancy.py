"""Link occupancy: which links of a card a collective uses, how much of their rate, and what two at once do.

| equation | source |
|---|---|
| share of its links that a collective draws = (time - latency) / time | alpha-beta form: links idle during a |
| rate of a collective = min(1, 1 / sum of the shares of all that run on any of its links, itself included) | a link \
serves everybody in proportion to demand |
| end of a collective = that of its slowest rank | every rank needs the data of all others |

So two large collectives of the same cards take twice as long together, two small ones (all latency) hardly notice each
other, and groups of a mesh that have no two cards in common run on links of their own.
"""

from collections.abc import Sequence

from ascend_jax.chip import links
from ascend_jax.chip.spec import ChipSpec
from ascend_jax.hccl.algorithm import CollectiveTime
from ascend_jax.hccl.cost.phases import Collective
from ascend_jax.hccl.topology import Topology
from ascend_jax.runtime.layout import LINK_SHARES, LINKS

NETWORK = 1 << (LINKS - 1)  # the card's own port to other servers; the bits below are links inside the server
_SHARED = {"fabric": 1 << 0, "die": 1 << 1, "pcie": 1 << 2, "network": NETWORK}


def link_share(known: CollectiveTime) -> int:
    """Return the share of its links that a collective draws at full speed, in 1/LINK_SHARES, rounded down.

    >>> link_share(CollectiveTime(100.0, 25.0, "mesh", (), ""))
    192
    """
    moving = known.time_ns - known.latency_ns
    return min(int(LINK_SHARES * moving / known.time_ns), LINK_SHARES - 1) if known.time_ns > 0 else 0


def links_of(chip: ChipSpec, topology: Topology, collective: Collective, card: int, group: Sequence[int]) -> int:
    """Return the links of a card that a collective of a group uses, as bits.

    >>> from ascend_jax.chip import chip
    >>> a2 = chip("Ascend910B2")
    >>> [links_of(a2, Topology(16, 8), Collective.ALL_REDUCE, 0, group) for group in ((0, 1, 2), (0, 4), (0, 8))]
    [3, 8, 128]
    """
    rank = list(group).index(card)
    peers = [one for one in group if one != card]
    if collective == Collective.SEND_RECV:
        peers = [one for one in (group[rank - 1], group[(rank + 1) % len(group)]) if one != card]
    used = 0
    for peer in peers:
        path = topology.path(chip, card, peer)
        is_own = path == "fabric" and links.fabric(chip) == "mesh"  # a link for each pair
        used |= 1 << ((peer - card) % topology.per_server - 1) % (LINKS - 1) if is_own else _SHARED[path]
    return used


def occupancy(
    chip: ChipSpec, topology: Topology, collective: Collective, known: CollectiveTime, card: int, group: Sequence[int]
) -> int:
    """Return both as the engine takes them for a task of kind COLLECTIVE (``Field.L2_SHARE``)."""
    return link_share(known) + links_of(chip, topology, collective, card, group) * LINK_SHARES
