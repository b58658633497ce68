"""Ranks against each other on streams: missing, late, in another order, in disagreement; all end, and a line says why.

All scenarios run on the same cards with the same kernels, so that their waits are compiled once.
"""

import dataclasses

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax import hccl
from ascend_jax.hccl import CommConfig, HcclError, HcclResult
from ascend_jax.runtime.clock import to_ns

CHIP, SUM, S = aj.chip("Ascend910B2"), hccl.ReduceOp.SUM, 1_000_000_000
BUF = 32768  # first granule of device memory
EXEC_S = 1
TIMEOUT, WRONG = aj.Code.RT_WAIT_TIMEOUT, aj.Code.RT_INTERNAL_ERROR


def reduce(comm, count=4, dtype="float32"):
    return lambda card: hccl.HcclAllReduce(card, BUF, BUF, count, dtype, SUM, comm, 0)


def send(comm, rank):
    return lambda card: hccl.HcclSend(card, BUF, 4, "float32", rank, comm, 0)


def recv(comm, rank):
    return lambda card: hccl.HcclRecv(card, BUF, 4, "float32", rank, comm, 0)


def late(ns):
    return lambda card: aj.host_work(card, ns)


def called(cluster, calls):
    """Return the cluster after ``calls``: (card, verb) one after another."""
    for number, call in calls:
        cluster, _ = hccl.on_card(cluster, number, lambda card, call=call: (call(card), None))
    return cluster


@pytest.fixture(scope="module")
def ranks():
    """Three cards, the communicator of all and one of cards 0 and 1; every kernel of the scenarios is loaded."""
    sizes = {"hbm_backing_bytes": 0, "max_streams": 1, "max_events": 1, "max_commands": 16, "max_blocks": 4}
    cluster = aj.cluster(CHIP, 3, **sizes)
    cluster, world = hccl.comm_init_all(cluster, config=CommConfig(exec_timeout_s=EXEC_S))
    cluster, two = hccl.comm_init(cluster, world.sub([0, 1], name="two"))
    cluster = aj.on_cards(cluster, lambda card: aj.malloc(card, 1024))[0]
    every = [reduce(world), reduce(world, 3), reduce(world, 4, "float16"), reduce(two)]
    every += [send(world, 1), send(world, 2)]
    known = called(called(cluster, [(0, call) for call in every]), [(1, send(world, 0))]).cards
    cards = dataclasses.replace(cluster.cards, kernels=known.kernels, coupling=known.coupling)
    return dataclasses.replace(cluster, cards=cards), world, two


def waited(cluster, calls):
    """Return (codes, seconds that each host waited, report, cluster) after ``calls`` and a wait of all cards."""
    cluster = called(cluster, calls)
    assert codes(cluster) == [0, 0, 0]  # the calls themselves succeed
    before = host_ns(cluster)
    after = hccl.synchronize_stream(cluster, 0)
    return codes(after), ((host_ns(after) - before) / S).round(2).tolist(), hccl.explain_cluster(after), after


def codes(cluster):
    return np.asarray(aj.last_code(cluster.cards)).tolist()


def host_ns(cluster):
    clock = np.asarray(cluster.cards.clock)
    return to_ns(clock[:, 0], clock[:, 1])


def test_a_rank_that_does_not_call(ranks):
    # a first call links up: 120 and 20 s
    cluster, world, _ = ranks
    given, seconds, (line,), after = waited(cluster, [(0, reduce(world)), (2, reduce(world))])
    assert given == [TIMEOUT, 0, TIMEOUT]
    assert seconds == [140, 0, 140]
    assert "HCCL_E_TIMEOUT (9) [EI0006]: call 0 of hccl_world_group, all_reduce at hccl/test_ranks.py:" in line
    assert "rank(s) [1] do not call; rank(s) [0, 2] wait for them and give up after 140 s" in line
    # nothing more is taken by a stream that has failed, and what failed keeps nobody from destroying the communicator
    assert codes(called(after, [(0, reduce(world))]))[0] == HcclResult.RUNTIME
    hccl.comm_destroy(after, world)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ((3, "float32"), "rank 1 has count = 3, rank 0 has 4"),
        ((4, "float16"), "rank 1 has dtype = FP16, rank 0 has FP32"),
    ],
)
def test_a_rank_that_disagrees(ranks, wrong, words):
    cluster, world, _ = ranks
    calls = [(0, reduce(world)), (1, reduce(world, *wrong)), (2, reduce(world))]
    given, seconds, lines, _ = waited(cluster, calls)
    assert given == [WRONG] * 3
    assert max(seconds) < 1  # all end at once
    assert lines == [f"HCCL_E_PARA (1) [EI0005]: call 0 of hccl_world_group: {words}"]


def test_another_order(ranks):
    cluster, world, _ = ranks
    calls = [(card, reduce(world, n)) for card, counts in enumerate([(4, 3), (4, 3), (3, 4)]) for n in counts]
    given, _, lines, _ = waited(cluster, calls)
    assert given == [WRONG] * 3
    assert lines == ["HCCL_E_PARA (1) [EI0005]: call 0 of hccl_world_group: rank 2 has count = 3, rank 0 has 4"]


def test_a_rank_that_leaves_and_one_that_is_late(ranks):
    cluster, world, _ = ranks
    given, _, lines, cluster = waited(cluster, [(card, reduce(world)) for card in range(3)])
    assert (given, lines) == ([0, 0, 0], [])
    given, seconds, (line,), _ = waited(cluster, [(0, reduce(world)), (1, reduce(world))])
    assert given == [TIMEOUT, TIMEOUT, 0]
    assert seconds == [EXEC_S, EXEC_S, 0]
    assert "[EI0002]: call 1" in line
    assert "rank(s) [2] do not call" in line
    calls = [(0, reduce(world)), (1, late(2 * S)), (1, reduce(world)), (2, reduce(world))]
    given, _, (line,), _ = waited(cluster, calls)
    assert given == [TIMEOUT] * 3
    assert "rank 1 comes 2 s after rank 0; rank(s) [0, 2] wait for them and give up after 1 s" in line
    calls[1] = (1, late(S // 2))
    given, seconds, lines, _ = waited(cluster, calls)
    assert (given, lines) == ([0, 0, 0], [])
    assert seconds == [0.5, 0, 0.5]


def test_a_send_without_a_receive(ranks):
    cluster, world, _ = ranks
    given, seconds, (line,), _ = waited(cluster, [(0, send(world, 2))])
    assert given == [TIMEOUT, 0, 0]
    assert seconds == [140, 0, 0]
    assert ", send_recv at hccl/test_ranks.py:" in line
    assert "rank(s) [2] do not call; rank(s) [0] wait for them" in line  # ranks of the communicator, not of the pair


def test_a_late_receive_and_two_that_send_first(ranks):
    cluster, world, _ = ranks
    given, seconds, lines, _ = waited(cluster, [(0, send(world, 1)), (1, late(S)), (1, recv(world, 0))])
    assert (given, seconds, lines) == ([0, 0, 0], [1, 0, 0], [])
    both = [(0, send(world, 1)), (0, recv(world, 1)), (1, send(world, 0)), (1, recv(world, 0))]
    given, seconds, lines, _ = waited(cluster, both)
    assert given == [TIMEOUT, TIMEOUT, 0]
    assert seconds == [140, 140, 0]
    assert len(lines) == 2
    for line, waits, held in zip(sorted(lines, key=lambda one: "rank 0 is held" in one), (0, 1), (1, 0), strict=True):
        assert f"rank {held} is held by call 0 of hccl_world_group, send_recv at hccl/test_ranks.py:" in line
        assert f"rank(s) [{waits}] wait for them and give up after 140 s" in line


def test_two_communicators_in_another_order(ranks):
    cluster, world, two = ranks
    calls = [(0, reduce(world)), (0, reduce(two)), (1, reduce(two)), (1, reduce(world)), (2, reduce(world))]
    given, seconds, lines, _ = waited(cluster, calls)
    assert given == [TIMEOUT] * 3
    assert seconds == [140] * 3
    assert len(lines) == 2
    assert "rank 1 is held by call 0 of two, all_reduce at" in lines[0]
    assert "rank(s) [0, 2] wait for them" in lines[0]
    assert "rank 0 is held by call 0 of hccl_world_group, all_reduce at" in lines[1]
    assert "rank(s) [1] wait for them" in lines[1]


def test_destroying_what_is_in_use(ranks):
    cluster, world, two = ranks
    for call, card in ((reduce(world), 2), (send(world, 2), 0)):
        busy = called(cluster, [(card, call)])
        with pytest.raises(HcclError, match=rf"rank {card}: .* is in use .*test_ranks.py:\d+; synchronize") as caught:
            hccl.comm_destroy(busy, world)
        assert caught.value.code == HcclResult.AGAIN
        hccl.comm_destroy(busy, two)
    # pairs that have linked up go with it, and give their notifies back
    _, _, _, done = waited(cluster, [(0, send(world, 1)), (1, recv(world, 0))])
    assert np.asarray(done.cards.events[..., 0]).sum(1).tolist() == [3, 3, 1]
    gone = hccl.comm_destroy(hccl.comm_destroy(done, world), two)
    assert np.asarray(gone.cards.events[..., 0]).sum() == 0


def test_codes_of_the_library_are_explained(ranks):
    cluster, world, _ = ranks
    wrong, _ = hccl.on_card(cluster, 0, lambda card: (hccl.HcclAllReduce(card, 0, BUF, 4, "int8", SUM, world, 0), None))
    assert aj.status(wrong.card(0)).name == "HCCL_E_PTR"
    with pytest.raises(aj.AscendError, match=r"2 HCCL_E_PTR: a required pointer is null\. Remedy: pass a device"):
        aj.raise_if_error(wrong.card(0))
