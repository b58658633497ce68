"""Algorithm selection: which algorithm a collective uses on a topology, how long it takes, and why it was chosen."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from ascend_jax.chip import links
from ascend_jax.chip.spec import ChipSpec
from ascend_jax.hccl.cost.halving import halving_doubling_ns
from ascend_jax.hccl.cost.hierarchical import hierarchical_ns
from ascend_jax.hccl.cost.level import Level, across_servers, inside_server
from ascend_jax.hccl.cost.mesh import mesh_ns
from ascend_jax.hccl.cost.nhr import nhr_ns
from ascend_jax.hccl.cost.pairwise import pairwise_ns
from ascend_jax.hccl.cost.phases import PHASES, Collective
from ascend_jax.hccl.cost.pipeline import pipeline_ns
from ascend_jax.hccl.cost.ring import ring_ns
from ascend_jax.hccl.topology import Topology

FORMS: dict[str, Callable[[Level, int, float, int], float]] = {
    "mesh": mesh_ns,
    "ring": ring_ns,
    "halving-doubling": halving_doubling_ns,
    "nhr": nhr_ns,
    "pairwise": lambda level, phases, nbytes, ranks: phases * pairwise_ns(level, nbytes, ranks),
}
# what the library considers inside a server: A2 always takes the mesh (HCCL documents)
INSIDE = {"mesh": ("mesh",), "clos": ("mesh", "nhr", "ring", "pairwise"), "line": ("ring", "halving-doubling", "nhr")}
ACROSS = ("nhr", "halving-doubling", "ring", "pairwise")
ALGORITHMS = (*FORMS, "hierarchical", "pipeline", "copy")


class Candidate(NamedTuple):
    """One way to do a collective."""

    name: str
    time_ns: float


class CollectiveTime(NamedTuple):
    """Time of a collective, with what it was chosen from."""

    time_ns: float
    latency_ns: float  # part of it that is there without a byte; in the rest, the links are full
    algorithm: str
    candidates: tuple[Candidate, ...]  # fastest first
    why: str


def collective_time(
    chip: ChipSpec,
    topology: Topology,
    collective: Collective,
    nbytes: float,
    cards: Sequence[int],
    *,
    algorithm: str | None = None,
) -> CollectiveTime:
    """Return how long a collective takes on idle links once all ranks are there.

    Args:
      chip: The cards, all alike.
      topology: Where they are.
      collective: What they do.
      nbytes: Bytes of the larger buffer of one rank: for AllGather all that it receives, for ReduceScatter and Scatter
        all that is sent.
      cards: The ranks' cards.
      algorithm: One of ALGORITHMS instead of the library's choice (``HCCL_ALGO``); inside a server, or across servers
        between those inside and across.

    Raises:
      ValueError: No such algorithm, or one that does not fit the collective or the topology; a negative size.

    >>> from ascend_jax.chip import chip
    >>> known = collective_time(chip("Ascend910B2"), Topology(8, 8), Collective.ALL_REDUCE, 8 << 20, range(8))
    >>> known.algorithm, round(known.time_ns / 1e3)
    ('mesh', 170)
    """
    if nbytes < 0:
        raise ValueError(f"nbytes = {nbytes}: must be at least 0")
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm = {algorithm!r}: must be one of {', '.join(ALGORITHMS)}")
    servers = topology.split(cards)
    ranks = max(len(server) for server in servers)
    most = int(chip["fabric_links"]) + 1
    if links.fabric(chip) == "mesh" and ranks > most:
        raise ValueError(f"{ranks} cards in one server: {chip.name} has links for a mesh of {most}; use more servers")
    if len(cards) == 1:
        return CollectiveTime(0.0, 0.0, "copy", (Candidate("copy", 0.0),), "one rank: nothing moves")
    if collective == Collective.SEND_RECV:
        return _send_recv(chip, topology, nbytes, cards)
    if collective == Collective.BARRIER:
        collective, nbytes = Collective.ALL_REDUCE, 4.0
    sizes = [len(server) for server in servers]
    ways, empty = (_ways(chip, collective, moved, sizes) for moved in (float(nbytes), 0.0))
    return _choose(ways, empty, algorithm, f"{_where(chip, sizes)}, {collective.value} of {nbytes:.0f} bytes a rank")


def _ways(chip: ChipSpec, collective: Collective, nbytes: float, sizes: Sequence[int]) -> dict[str, float]:
    """Return the time of every algorithm that fits; ``sizes`` are the numbers of ranks in the servers."""
    if len(sizes) == 1:
        return _flat(inside_server(chip), INSIDE, collective, nbytes, sizes[0])
    if max(sizes) == 1:
        return _flat(across_servers(chip), {"line": ACROSS}, collective, nbytes, len(sizes))
    return _levels(chip, collective, nbytes, sizes)


def _where(chip: ChipSpec, sizes: Sequence[int]) -> str:
    few, many = min(sizes), max(sizes)
    if len(sizes) == 1:
        return f"{many} ranks in one server, fabric {links.fabric(chip)}"
    if many == 1:
        return f"one rank in each of {len(sizes)} servers"
    return f"{len(sizes)} servers with {few if few == many else f'{few} to {many}'} ranks each"


def explain_collective(known: CollectiveTime) -> str:
    """Return the choice in words, one line for each candidate.

    >>> from ascend_jax.chip import chip
    >>> topology = Topology(16, 8)
    >>> known = collective_time(chip("Ascend910B2"), topology, Collective.ALL_REDUCE, 1 << 20, range(16))
    >>> print(explain_collective(known).splitlines()[0])
    hierarchical with nhr, 62.4 us: 2 servers with 8 ranks each, all_reduce of 1048576 bytes a rank
    """
    lines = [f"{known.algorithm}, {known.time_ns / 1e3:.1f} us: {known.why}"]
    lines += [f"  {one.name}: {one.time_ns / 1e3:.1f} us" for one in known.candidates]
    return "\n".join(lines)


def _flat(
    level: Level, names: dict[str, tuple[str, ...]], collective: Collective, nbytes: float, ranks: int
) -> dict[str, float]:
    """Return the time of every form on one level; those that the library considers come first."""
    own = names.get(level.kind, ())
    if collective == Collective.ALL_TO_ALL:
        own = ("mesh", "pairwise") if level.kind != "line" else ("pairwise",)
    others = [name for name in FORMS if name not in own]
    usable = [*own, *others] if collective == Collective.ALL_TO_ALL else [n for n in (*own, *others) if n != "pairwise"]
    phases = PHASES[collective]
    return {
        ("" if name in own else "not considered: ") + name: FORMS[name](level, phases, nbytes, ranks) for name in usable
    }


def _levels(chip: ChipSpec, collective: Collective, nbytes: float, sizes: Sequence[int]) -> dict[str, float]:
    """Return the times of what goes inside and across servers, given the number of ranks in each.

    The slowest server holds up the others inside; across, each card carries n / ranks of its own server, so that those
    of the server with the fewest ranks carry most.
    """
    level, ways = inside_server(chip), {}

    def inside_ns(moved: float) -> float:
        return max(
            min(_considered(_flat(level, INSIDE, collective, moved, ranks)).values()) if ranks > 1 else 0.0
            for ranks in set(sizes)
        )

    share = 1 if collective == Collective.ALL_TO_ALL else min(sizes)
    outside = across_servers(chip)
    whole, latency = (
        _considered(_flat(outside, {"line": ACROSS}, collective, moved / share, len(sizes))) for moved in (nbytes, 0.0)
    )
    inside, inside_latency = inside_ns(nbytes), inside_ns(0.0)
    for name, across in whole.items():
        ways[f"hierarchical with {name}"] = hierarchical_ns(inside, across)
        times = (inside, inside_latency), (across, latency[name])
        ways[f"pipeline with {name}"] = pipeline_ns(*times, PIECES)
    return ways


PIECES = 4  # of a pipelined message


def _considered(ways: dict[str, float]) -> dict[str, float]:
    return {name: time for name, time in ways.items() if not name.startswith("not considered")}


def _choose(ways: dict[str, float], empty: dict[str, float], algorithm: str | None, what: str) -> CollectiveTime:
    candidates = tuple(sorted((Candidate(*way) for way in ways.items()), key=lambda one: one.time_ns))
    usable = _considered(ways)
    if algorithm is not None:
        usable = {name: time for name, time in ways.items() if algorithm in name.removeprefix("not considered: ")}
        what += f"; algorithm = {algorithm!r} was asked for"
        if not usable:
            raise ValueError(f"algorithm = {algorithm!r}: does not fit {what}; there are {', '.join(ways)}")
    name = min(usable, key=lambda one: usable[one])
    return CollectiveTime(usable[name], empty[name], name.removeprefix("not considered: "), candidates, what)


def _send_recv(chip: ChipSpec, topology: Topology, nbytes: float, cards: Sequence[int]) -> CollectiveTime:
    """Two cards exchange; of more, each sends to the next one."""
    return send_time(chip, topology, nbytes, list(zip(cards, [*cards[1:], cards[0]], strict=True)))


def send_time(chip: ChipSpec, topology: Topology, nbytes: float, routes: Sequence[tuple[int, int]]) -> CollectiveTime:
    """Return how long sends between cards take that go on at once, ``routes`` (from card, to card): the slowest counts.

    Raises:
      ValueError: There is no such card, or one sends to itself.
    """
    paths = sorted({topology.path(chip, *route) for route in routes})
    step = float(chip["collective_step_ns"])
    with jax.ensure_compile_time_eval():  # concrete numbers also while a program is traced
        times = {path: float(links.copy_between_ns(chip, float(nbytes), path)) + step for path in paths}
        slowest = max(paths, key=lambda path: times[path])
        latency = float(links.path_latency_ns(chip, slowest)) + step
    candidates = (Candidate("copy", times[slowest]),)
    return CollectiveTime(times[slowest], latency, "copy", candidates, f"{nbytes:.0f} bytes over a {slowest} path")
