"""Clusters: cards of their own, verbs written once for one card, differences between cards, all carriers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax import hccl
from ascend_jax.hccl import CommConfig, HcclError, HcclResult, Topology

CHIP = aj.chip("Ascend910B2")
SMALL = {"hbm_backing_bytes": 1 << 16, "max_streams": 1, "max_events": 1, "max_commands": 8, "max_blocks": 8}


def exchange(card, x):
    """Set bytes, copy them on a stream, then add up over the cards what lies in device memory."""
    comm = hccl.comm_world(3)
    card, source = aj.malloc(card, 64)
    card, target = aj.malloc(card, 64)
    card = aj.memset_async(card, source, x, 16, 0)
    card = aj.memcpy_async(card, target, source, 16, 0)
    card = aj.synchronize_stream(card, 0)
    card, mine = aj.download(card, target, (4,), np.int32)
    return card, (hccl.all_reduce(mine, comm), target)


def test_one_program_on_every_card():
    three = aj.cluster(CHIP, 3, **SMALL)
    x = np.array([1, 2, 4])
    three, (total, pointer) = aj.on_cards(three, exchange, x)
    assert total.tolist() == [[0x07070707] * 4] * 3
    card = three.card(2)
    aj.raise_if_error(card)
    first = (int(pointer[2]) - 32768) * 64  # of device memory, which begins at granule 32768
    assert np.asarray(card.memory)[first : first + 16].tolist() == [4] * 16
    assert three.choice.reason == f"vmap: 3 card(s) share one of {len(jax.devices())} XLA device(s)"


def test_cards_may_differ():
    specs = [CHIP, CHIP.replace(d2d_bytes_per_s=1e9), CHIP.replace(hbm_bytes=float(8 << 20))]
    three = aj.cluster(specs, **(SMALL | {"hbm_backing_bytes": 0}))

    def program(card):
        card, pointer = aj.malloc(card, 4 << 20)
        card, source = aj.malloc(card, 1 << 20)
        card = aj.memcpy_async(card, pointer, source, 1 << 20, 0)
        card = aj.synchronize_stream(card, 0)
        before = aj.last_code(card)
        card, _ = aj.malloc(card, 4 << 20)
        return card, (before, aj.last_code(card), card.clock[1])

    _, (copied, allocated, now) = aj.on_cards(three, program)
    assert copied.tolist() == [0, 0, 0]
    assert allocated.tolist() == [0, 0, aj.Code.MEMORY_ALLOCATION]
    assert now[1] - now[0] == pytest.approx((1 << 20) * (1 - 1e9 / float(CHIP["d2d_bytes_per_s"])), rel=0.01)


def test_requests_that_cannot_be():
    for wrong, words in (
        ({"cards": 0}, "cards = 0"),
        ({"cards": 3, "topology": Topology(4, 4)}, "topology has 4 cards"),
        ({"cards": 2, "carrier": "thread"}, "carrier = 'thread'"),
        ({"cards": 4096, "carrier": "pmap"}, "4096 cards need as many XLA devices"),
    ):
        with pytest.raises(ValueError, match=words):
            aj.cluster(CHIP, **wrong, **SMALL)
    with pytest.raises(ValueError, match="several products"):
        aj.cluster([CHIP, aj.chip("Ascend910B3")], **SMALL)
    with pytest.raises(ValueError, match="2 chips are given"):
        aj.cluster([CHIP, CHIP], 3, **SMALL)
    with pytest.raises(ValueError, match="hold hbm_backing_bytes"):
        aj.cluster([CHIP, CHIP.replace(hbm_bytes=float(3 << 20))], **(SMALL | {"hbm_backing_bytes": 4 << 20}))
    with pytest.raises(ValueError, match="card = 2"):
        aj.cluster(CHIP, 2, **SMALL).card(2)


def test_communicators_of_a_cluster():
    two = aj.cluster(CHIP, 2, **(SMALL | {"hbm_backing_bytes": 0}))
    two, comm = hccl.comm_init_all(two, [1, 0])
    assert comm.rank_of(0) == 1
    with pytest.raises(HcclError, match="rank 1: card 1 already is rank 0") as caught:
        hccl.comm_init_all(two, [1, 1])
    assert caught.value.code == HcclResult.PARA
    with pytest.raises(HcclError, match="rank 0: card 2: the cluster has cards 0 to 1"):
        hccl.comm_init_all(two, [2])
    with pytest.raises(HcclError, match="2 x 40000 MB") as caught:
        hccl.comm_init_all(two, config=CommConfig(buffer_mb=40000))
    assert caught.value.code == HcclResult.MEMORY
    two = hccl.comm_destroy(two, comm)
    with pytest.raises(HcclError, match="was destroyed") as caught:
        hccl.check_alive(two, comm)
    assert caught.value.code == HcclResult.NOT_FOUND


def test_many_cards_on_one_device():
    many = aj.cluster(CHIP, 100, **(SMALL | {"hbm_backing_bytes": 0}))
    assert many.topology == Topology(100, 8)
    _, out = aj.on_cards(many, lambda card, x: (card, x + jax.lax.axis_index("card")), jnp.zeros(100, jnp.int32))
    assert out.tolist() == list(range(100))


def test_a_communicator_of_another_size_is_refused():
    five = hccl.comm_world(5)
    for make in (
        lambda: hccl.carry(lambda x: hccl.all_reduce(x, five), 4, "vmap")(np.ones((4, 2), np.float32)),
        lambda: hccl.make_plan(
            aj.chip("Ascend910B2"), [hccl.Call(hccl.Collective.ALL_REDUCE, five, 8)], hccl.Topology(4, 8)
        ),
    ):
        with pytest.raises(hccl.HcclError, match="is for 5 cards: 4 cards"):
            make()
    with pytest.raises(ValueError, match="links for a mesh of 8"):
        hccl.collective_time(
            aj.chip("Ascend910B2"), hccl.Topology(16, 16), hccl.Collective.ALL_REDUCE, 1 << 20, range(16)
        )


def test_cards_without_a_rank_get_nothing_of_others():
    comm = hccl.comm_world(3).sub([1, 0])
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    shares = hccl.carry(lambda x: hccl.reduce_scatter(x, comm), 3, "vmap")(x)
    np.testing.assert_array_equal(shares, [[8, 10], [4, 6], [0, 0]])
    met = hccl.carry(lambda x: hccl.barrier(comm), 3, "vmap")(x)
    assert np.asarray(met).tolist() == [2, 2, 0]
