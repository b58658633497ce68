"""A level: ranks that are joined alike, the server's fabric or the network, as the cost forms see it.

The numbers are those of :mod:`ascend_jax.chip.links`: ``a`` = ``collective_step_ns``, ``b`` = 1 / (rate *
``collective_efficiency``). The reduction itself is hidden behind the links (gamma = 0).
"""

import math
from typing import NamedTuple

from ascend_jax.chip import links
from ascend_jax.chip.spec import ChipSpec

NS = 1e9


class Level(NamedTuple):
    """What joins the ranks of one level."""

    kind: str  # "mesh": a link for each pair; "clos": all links to any peer; "line": one link
    step_ns: float  # latency of one step, a
    ns_per_byte: float  # of one link, b
    links: float  # links that one rank drives at one time, clos only
    chunk_bytes: float  # what moves before the pipeline is full
    fill_ns_per_byte: float

    def spread_ns(self, nbytes: float, peers: int) -> float:
        """Time of sending ``nbytes`` to each of several peers at once."""
        if self.kind == "mesh":
            return nbytes * self.ns_per_byte if peers else 0.0
        return peers * nbytes * self.ns_per_byte / (self.links if self.kind == "clos" else 1)

    def neighbour_ns(self, nbytes: float) -> float:
        """Time of sending ``nbytes`` to one peer."""
        return nbytes * self.ns_per_byte / (self.links if self.kind == "clos" else 1)

    def fill_ns(self, nbytes: float) -> float:
        """Time until both phases of an all-at-once algorithm overlap, half of it for each phase."""
        return min(nbytes, self.chunk_bytes) * self.fill_ns_per_byte


def inside_server(chip: ChipSpec) -> Level:
    """Return the level of one server; concrete chips only."""
    kind = {"mesh": "mesh", "clos": "clos"}.get(links.fabric(chip), "line")
    rate = float(chip["fabric_link_bytes_per_s"]) * float(chip["collective_efficiency"])
    fill = NS / float(chip["collective_fill_bytes_per_s"]) if kind != "line" else 0.0
    count, chunk = max(float(chip["fabric_links"]), 1.0), float(chip["collective_chunk_bytes"])
    return Level(kind, float(chip["collective_step_ns"]), NS / rate, count, chunk, fill)


def across_servers(chip: ChipSpec) -> Level:
    """Return the level of the network; each card has its own port. Concrete chips only."""
    rate = float(chip["network_bytes_per_s"]) * float(chip["collective_efficiency"])
    step = max(float(chip["collective_step_ns"]), float(chip["network_latency_ns"]))
    return Level("line", step, NS / rate, 1.0, float(chip["collective_chunk_bytes"]), 0.0)


def doublings(ranks: int) -> int:
    """Return ceil(log2 ranks): steps in which everybody can be reached.

    >>> [doublings(ranks) for ranks in (1, 2, 5, 8)]
    [0, 1, 3, 3]
    """
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0
