"""Times of collectives: the documented forms by hand, the published AllReduce rows, and the choice between them."""

import csv
import importlib.resources
import math

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax import hccl
from ascend_jax.chip import links
from ascend_jax.hccl import Collective, Topology, collective_time

A2, A3, FIRST = (aj.chip(name) for name in ("Ascend910B2", "Ascend910_9392", "Ascend910A"))
ONE, TWO = Topology(8, 8), Topology(16, 8)
A, LINK = 7400.0, 1e9 / (28e9 * 0.69)  # ns a step, ns a byte of one link
NETWORK = 1e9 / (25e9 * 0.69)


def time(chip, topology, collective, nbytes, cards, **options):
    return collective_time(chip, topology, collective, nbytes, cards, **options).time_ns


@pytest.mark.parametrize(
    ("algorithm", "by_hand"),
    [
        ("mesh", lambda n, p, fill: 2 * A + 2 * n / p * LINK + fill),
        ("ring", lambda n, p, fill: 2 * (p - 1) * A + 2 * (p - 1) / p * n * LINK),
        ("halving-doubling", lambda n, p, fill: 2 * math.log2(p) * A + 2 * (p - 1) / p * n * LINK),
        ("nhr", lambda n, p, fill: 2 * math.ceil(math.log2(p)) * A + 2 * (p - 1) / p * n * LINK),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("nbytes", [1000, 1 << 24])
def test_all_reduce_forms(algorithm, by_hand, ranks, nbytes):
    fill = min(nbytes, 4 << 20) / 90
    want = by_hand(nbytes, ranks, fill)
    assert time(A2, ONE, Collective.ALL_REDUCE, nbytes, range(ranks), algorithm=algorithm) == pytest.approx(
        want, rel=1e-5
    )


def test_halves_of_an_all_reduce_and_a_broadcast():
    whole = time(A2, ONE, Collective.ALL_REDUCE, 1 << 20, range(8))
    assert time(A2, ONE, Collective.REDUCE_SCATTER, 1 << 20, range(8)) == pytest.approx(whole / 2)
    assert time(A2, ONE, Collective.ALL_GATHER, 1 << 20, range(8)) == pytest.approx(whole / 2)
    assert time(A2, ONE, Collective.BROADCAST, 1 << 20, range(8)) == pytest.approx(whole)
    pairs = time(A2, ONE, Collective.ALL_TO_ALL, 1 << 20, range(8), algorithm="pairwise")
    assert pairs == pytest.approx(7 * A + 7 / 8 * (1 << 20) * LINK, rel=1e-5)
    assert time(A2, ONE, Collective.BARRIER, 0, range(8)) == pytest.approx(2 * A, rel=1e-4)
    assert time(A2, ONE, Collective.ALL_REDUCE, 1 << 20, [3]) == 0


def test_three_ranks_beyond_a_power_of_two():
    # four ranks halve and double, the fifth hands its data over and gets the result
    n = 1 << 20
    want = 2 * (2 * A + 3 / 4 * n * LINK) + 2 * (A + n * LINK)
    got = time(A2, ONE, Collective.ALL_REDUCE, n, range(5), algorithm="halving-doubling")
    assert got == pytest.approx(want, rel=1e-5)


def test_across_servers():
    n = 1 << 24
    inside = 2 * A + 2 * n / 8 * LINK + (4 << 20) / 90
    across = 2 * A + n / 8 * NETWORK  # two servers: one step of half the share each way
    asked = {"algorithm": "hierarchical"}
    assert time(A2, TWO, Collective.ALL_REDUCE, n, range(16), **asked) == pytest.approx(inside + across, rel=1e-5)
    # four pieces: each pays the latency of both sides anew, the longer side counts and one piece of the other
    piped = max(inside + 3 * 2 * A, across + 3 * 2 * A) + min(inside + 3 * 2 * A, across + 3 * 2 * A) / 4
    assert time(A2, TWO, Collective.ALL_REDUCE, n, range(16)) == pytest.approx(piped, rel=1e-5)
    # one card of each server: the network alone
    alone = time(A2, TWO, Collective.ALL_REDUCE, n, [0, 8])
    assert alone == pytest.approx(2 * A + n * NETWORK, rel=1e-5)


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.ALL_TO_ALL])
@pytest.mark.parametrize("chip", [A2, A3, FIRST])
def test_more_bytes_never_take_less_time(chip, collective):
    topology = Topology(32, 4)
    for cards in (range(4), range(32), [0, 1, 2, 5]):
        for algorithm in (None, "hierarchical", "pipeline"):
            if algorithm and len(cards) == 4 and isinstance(cards, range):
                continue
            sizes = sorted({*(1 << power for power in range(2, 30)), *(3 << power for power in range(2, 28)), 0})
            known = [collective_time(chip, topology, collective, n, cards, algorithm=algorithm) for n in sizes]
            assert (np.diff([one.time_ns for one in known]) >= 0).all()
            assert all(one.latency_ns <= one.time_ns for one in known)
    small, large = (collective_time(A2, TWO, Collective.ALL_REDUCE, n, range(16)).algorithm for n in (1e4, 1e9))
    assert (small.split()[0], large.split()[0]) == ("hierarchical", "pipeline")


def test_servers_with_unequal_numbers_of_cards():
    # 8 + 4 ranks: the mesh of four moves n / 4 over each link, and its cards carry n / 4 outside
    n = 1 << 22
    fill = min(n, 4 << 20) / 90
    want = 2 * A + 2 * n / 4 * LINK + fill + 2 * A + n / 4 * NETWORK
    got = time(A2, Topology(12, 8), Collective.ALL_REDUCE, n, range(12), algorithm="hierarchical")
    assert got == pytest.approx(want, rel=1e-5)
    assert (
        "2 servers with 4 to 8 ranks each"
        in collective_time(A2, Topology(12, 8), Collective.ALL_REDUCE, n, range(12)).why
    )
    # 8 + 1: the card that is alone sends everything
    want = 2 * A + 2 * n / 8 * LINK + fill + 2 * A + n * NETWORK
    got = time(A2, Topology(9, 8), Collective.ALL_REDUCE, n, range(9), algorithm="hierarchical")
    assert got == pytest.approx(want, rel=1e-5)


def test_sends_take_the_path_between_the_cards():
    n = 1 << 20
    for cards, path in (((0, 7), "fabric"), ((0, 8), "network")):
        want = float(links.copy_between_ns(A2, n, path)) + A
        assert time(A2, TWO, Collective.SEND_RECV, n, cards) == pytest.approx(want, rel=1e-5)
    ring = time(A2, TWO, Collective.SEND_RECV, n, range(9))  # card 7 to 8 and 8 to 0 leave the server
    assert ring == pytest.approx(want, rel=1e-5)


def test_the_choice_and_its_reason():
    assert collective_time(A2, ONE, Collective.ALL_REDUCE, 1 << 26, range(8)).algorithm == "mesh"
    small, large = (collective_time(A3, Topology(16, 16), Collective.ALL_REDUCE, n, range(16)) for n in (1e3, 1e9))
    assert small.algorithm == "mesh"
    assert small.candidates[0].time_ns == small.time_ns
    assert large.algorithm in ("nhr", "ring", "mesh")
    rings = [collective_time(FIRST, Topology(8, 8), Collective.ALL_REDUCE, n, range(4)) for n in (1e3, 1e9)]
    assert rings[0].algorithm == "halving-doubling"
    words = hccl.explain_collective(collective_time(A2, ONE, Collective.ALL_REDUCE, 1 << 20, range(8)))
    assert "8 ranks in one server, fabric mesh" in words
    assert "not considered: ring" in words


def test_wrong_requests():
    with pytest.raises(ValueError, match="algorithm = 'star'"):
        collective_time(A2, ONE, Collective.ALL_REDUCE, 1, range(8), algorithm="star")
    with pytest.raises(ValueError, match="does not fit"):
        collective_time(A2, ONE, Collective.ALL_REDUCE, 1, range(8), algorithm="pipeline")
    with pytest.raises(ValueError, match="nbytes = -1"):
        collective_time(A2, ONE, Collective.ALL_REDUCE, -1, range(8))
    with pytest.raises(ValueError, match="card = 8"):
        collective_time(A2, ONE, Collective.ALL_REDUCE, 1, range(9))


def published():
    text = importlib.resources.files("ascend_jax.ops.timing").joinpath("data/calibration.csv").read_text()
    return [row for row in csv.DictReader(text.splitlines()) if row["kind"].startswith("allreduce")]


def test_published_all_reduce_times():
    errors = []
    for row in published():
        chip = FIRST if "first gen" in row["soc"] else A2
        predicted = time(chip, ONE, Collective.ALL_REDUCE, int(row["bytes"]), range(int(row["ranks"])))
        host = float(chip["collective_host_ns"]) if row["kind"].endswith("host") else 0.0
        errors.append(abs((predicted + host) / 1e3 / float(row["value"]) - 1))
    assert len(errors) == 10
    assert np.median(errors) <= 0.15
