"""Collectives queued on streams of cards: values and times against a twin, mistakes of ranks, communicators' memory."""

import dataclasses
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax import hccl
from ascend_jax.hccl import CommConfig, HcclError, HcclResult
from ascend_jax.hccl.communicator import Home
from ascend_jax.hccl.verbs import reduction_order
from ascend_jax.runtime.kernels import Argument, load_part
from ascend_jax.runtime.layout import Field
from tests.hccl import verb_cases

CHIP, SUM = aj.chip("Ascend910B2"), hccl.ReduceOp.SUM
SMALL = {"hbm_backing_bytes": 0, "max_streams": 2, "max_events": 1, "max_commands": 16, "max_blocks": 4}
BUF = verb_cases.buffer(0)


@pytest.fixture(scope="module")
def three():
    """Three cards with a communicator whose calls give up after 5 s, a block of memory and a stream."""
    cluster = aj.cluster(CHIP, 3, **SMALL)
    cluster, comm = hccl.comm_init_all(cluster, config=CommConfig(exec_timeout_s=5))
    return aj.on_cards(cluster, lambda card: aj.malloc(card, 1024))[0], comm


def reduce(comm, count=4, dtype="float32", op=SUM, stream=0):
    return lambda card: (hccl.HcclAllReduce(card, BUF, BUF, count, dtype, op, comm, stream), None)


def codes(cluster):
    return np.asarray(aj.last_code(cluster.cards)).tolist()


def test_random_delays_equal_the_twin():
    verb_cases.check("vmap", range(5))


def test_other_carriers_equal_the_twin():
    command = [sys.executable, "-m", "tests.hccl.verb_cases", "shard_map", "pmap"]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(verb_cases.__file__))))
    fast = "--xla_cpu_use_fusion_emitters=false"  # to compile; pmap takes no options
    environment = os.environ | {"PYTHONPATH": root, "XLA_FLAGS": fast}
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


def test_a_card_alone_cannot_wait(three):
    cluster, comm = three
    cluster, _ = hccl.on_card(cluster, 0, reduce(comm))
    with pytest.raises(ValueError, match="is alone: let all cards wait together"):
        hccl.on_card(cluster, 0, lambda card: (aj.synchronize_stream(card, 0), None))
    with pytest.raises(ValueError, match="no card has a number here"):
        reduce(comm)(cluster.card(0).__class__(**{**vars(cluster.card(0)), "coupling": cluster.cards.coupling}))


def test_buffers_and_streams_that_cannot_be(three):
    cluster, comm = three
    for call, code in (
        (lambda card: hccl.HcclAllReduce(card, 0, BUF, 4, "float32", SUM, comm, 0), HcclResult.PTR),
        (lambda card: hccl.HcclAllReduce(card, BUF, BUF, 300, "float32", SUM, comm, 0), HcclResult.MEMORY),
        (lambda card: hccl.HcclAllReduce(card, BUF, -5, 4, "float32", SUM, comm, 0), HcclResult.MEMORY),
        (lambda card: hccl.HcclAllReduce(card, BUF, BUF, 4, "float32", SUM, comm, 77), HcclResult.RUNTIME),
        (lambda card: hccl.HcclAlltoAll(card, BUF, 4, "int8", BUF, 4, "int8", comm, 0), HcclResult.PARA),
        (lambda card: hccl.HcclAllReduce(card, BUF, BUF, 1 << 30, "float32", SUM, comm, 0), HcclResult.MEMORY),
        (lambda card: hccl.HcclAllReduce(card, 0, 0, 0, "float32", SUM, comm, 0), HcclResult.SUCCESS),
        (lambda card: hccl.HcclAllReduce(card, BUF, BUF, 256, "float32", SUM, comm, 0), HcclResult.SUCCESS),
        (lambda card: hccl.HcclSend(card, BUF, 1, "float32", np.int64(1), comm, 0, offset=2), HcclResult.PARA),
        (lambda card: hccl.HcclBroadcast(card, BUF, 1, "float16", 0, comm, 0, offset=jnp.int32(3)), HcclResult.PARA),
        (lambda card: hccl.HcclReduce(card, BUF, 0, 4, "int8", SUM, 1, comm, 0), HcclResult.SUCCESS),
        (lambda card: hccl.HcclScatter(card, 0, BUF, 4, "int8", 1, comm, 0), HcclResult.SUCCESS),
    ):
        after, _ = hccl.on_card(cluster, 0, lambda card, call=call: (call(card), None))
        assert codes(after)[0] == code
        assert int(after.cards.clock[0, 4]) == (0 if code else 3)  # queued, all of it or nothing
    for call, words in (
        (lambda card: hccl.HcclAllReduce(card, BUF, BUF, 4, "uint8", SUM, comm, 0), "NOT_SUPPORT .*UINT8"),
        (lambda card: hccl.HcclAllReduce(card, BUF, BUF, -4, "int8", SUM, comm, 0), "count = -4"),
        (lambda card: hccl.HcclBroadcast(card, BUF, 4, "int8", 3, comm, 0), "root = 3"),
        (lambda card: hccl.HcclSend(card, BUF, 4, "int8", 0, comm, 0), "does not send to itself"),
        (lambda card: hccl.HcclSend(card, BUF, 4, "int8", 3, comm, 0), "dest_rank = 3"),
        (lambda card: hccl.HcclRecv(card, BUF, 4, "int8", [0, 1], comm, 0), "src_rank has 2 entries"),
        (lambda card: hccl.HcclAllReduce(card, BUF, BUF, 4, "int8", SUM, hccl.comm_world(3), 0), "on no cluster"),
        (lambda card: hccl.HcclAlltoAll(card, BUF, 4, "int8", BUF, 5, "int8", comm, 0), "must be equal"),
        (lambda card: hccl.HcclAllReduce(card, BUF, BUF, 1, "int32", SUM, comm, 0, send_offset=2), "offset = 2"),
        (lambda card: hccl.HcclAllReduce(card, BUF, BUF, 1, None, SUM, comm, 0), "PARA .*dtype = None"),
        (lambda card: hccl.HcclAllReduce(card, BUF, BUF, 1, "float31", SUM, comm, 0), "NOT_SUPPORT .*'float31'"),
        (lambda card: hccl.HcclSend(card, BUF, 4, "int8", 1.0, comm, 0), "dest_rank = 1.0: must be a rank"),
        (
            lambda card: hccl.HcclAlltoAllV(
                card, BUF, [[1] * 3] * 3, [[0, -2, 1]] * 3, "int8", 0, None, "int8", comm, 0
            ),
            "PARA .*rank 0: send_displs = -2 for rank 1",
        ),
        (lambda card: hccl.HcclAllGatherV(card, BUF, 3, BUF, [2, 0, 5], None, "int8", comm, 0), "send_count = 3: .* 2"),
        (lambda card: hccl.HcclAllGatherV(card, BUF, 2, BUF, [2, 0], None, "int8", comm, 0), "recv_counts = "),
        (
            lambda card: hccl.HcclReduceScatterV(card, BUF, [2, -1, 5], None, BUF, 2, "int8", SUM, comm, 0),
            "rank 1: .*-1",
        ),
        (lambda card: hccl.HcclReduceScatterV(card, BUF, [2] * 3, None, BUF, 2, "uint8", SUM, comm, 0), "NOT_SUPPORT"),
    ):
        with pytest.raises(HcclError, match=words):
            hccl.on_card(cluster, 0, lambda card, call=call: (call(card), None))


def test_sums_are_added_as_the_algorithm_does():
    def order(chip, topology, **config):
        comm = hccl.comm_world(4, CommConfig(**config))
        sheet = chip.name, chip.family, chip.calibration, np.asarray(chip.values, np.float32).tobytes()
        comm = dataclasses.replace(comm, home=Home(0, topology, (sheet,)))
        return reduction_order(hccl.Collective.ALL_REDUCE, comm, 1 << 20)

    first = aj.chip("Ascend910A")
    assert order(CHIP, hccl.Topology(4, 4)) == "rank"  # a mesh
    assert order(CHIP, hccl.Topology(4, 1)) == order(first, hccl.Topology(4, 4)) == "halving"
    assert order(first, hccl.Topology(4, 4), deterministic=True) == "rank"


def test_what_lies_past_the_end_does_not_shift_what_a_rank_has():
    memory = np.arange(20, dtype=np.uint8)
    for first, length in ((0, 8), (12, 8), (15, 5), (19, 1)):
        held = load_part(jnp.asarray(memory), jnp.int32(first), Argument((8,), np.dtype(np.uint8)))
        assert held[:length].tolist() == memory[first : first + length].tolist()


def test_a_captured_stream_refuses_and_records_nothing(three):
    cluster, comm = three

    def program(card):
        card, stream = aj.create_stream(card)
        card = aj.capture_begin(card, stream)
        card, _ = reduce(comm, stream=stream)(card)
        code = aj.last_code(card)
        card, recorded = aj.capture_end(card, stream)
        return card, (code, recorded.fields[..., Field.KIND])

    _, (code, kinds) = hccl.on_card(cluster, 0, program)
    assert int(code) == HcclResult.NOT_SUPPORT
    assert not np.asarray(kinds).any()


def test_a_communicator_of_another_cluster(three):
    cluster, comm = three
    other = aj.cluster(CHIP, 3, **SMALL)
    other, _ = hccl.comm_init(other, hccl.comm_world(3).sub([0, 1]))
    with pytest.raises(HcclError, match="was created on another cluster") as caught:
        hccl.on_card(other, 0, reduce(comm))
    assert caught.value.code == HcclResult.NOT_FOUND
    for use in (lambda: hccl.on_card(cluster, 0, reduce(None)), lambda: hccl.comm_destroy(cluster, None)):
        with pytest.raises(HcclError, match="comm = None: must be a communicator") as caught:
            use()
        assert caught.value.code == HcclResult.PTR


def test_a_batch_must_fit_itself(three):
    cluster, comm = three
    send, recv = (lambda ranks, way=way: hccl.SendRecvItem(way, BUF, 4, "int8", ranks) for way in (True, False))
    for items, words in (
        ([send([1, 2, 0])], "1 sends and 0 receives"),
        ([send([1, 2, 0]), recv([2, 0, -1])], "rank 1: sends to rank 2, which does not receive from it"),
        ([send([1, -1, 0]), recv([2, 0, 1])], "rank 2: receives from rank 1, which does not send to it"),
    ):
        with pytest.raises(HcclError, match=words):
            hccl.on_card(cluster, 0, lambda card, items=items: (hccl.HcclBatchSendRecv(card, items, comm, 0), None))


def test_communicators_take_memory_and_give_it_back(three):
    cluster, _ = three
    used = np.asarray(cluster.cards.hbm.words[:, 1]) * 64
    assert (used == (400 << 20) + 4096).all()  # and the block of 1 KiB, a page
    fresh, second = hccl.comm_init(cluster, hccl.comm_world(3).sub([2, 0], name="two"))
    assert (np.asarray(fresh.cards.hbm.words[:, 1]) * 64 - used).tolist() == [400 << 20, 0, 400 << 20]
    gone = hccl.comm_destroy(fresh, second)
    assert (np.asarray(gone.cards.hbm.words[:, 1]) * 64 == used).all()
    with pytest.raises(HcclError, match="two was destroyed") as caught:
        hccl.comm_destroy(gone, second)
    assert caught.value.code == HcclResult.NOT_FOUND
    # the same again is another one
    again, third = hccl.comm_init(gone, hccl.comm_world(3).sub([2, 0], name="two"))
    assert third != second
    x = np.ones((3, 2), np.float32)
    for use in (
        lambda: hccl.on_cards(again, lambda card, x: (card, hccl.all_reduce(x, second)), x),
        lambda: hccl.on_card(again, 0, reduce(second)),
        lambda: hccl.make_plan(CHIP, [[], [], [hccl.Call(hccl.Collective.ALL_REDUCE, second, 4)]], again),
    ):
        with pytest.raises(HcclError, match="two was destroyed") as caught:
            use()
        assert caught.value.code == HcclResult.NOT_FOUND
    _, total = hccl.on_cards(again, lambda card, x: (card, hccl.all_reduce(x, third)), x)
    assert total[:, 0].tolist() == [2, 1, 2]


def test_memory_that_is_not_there():
    cluster = aj.cluster([CHIP, CHIP.replace(hbm_bytes=float(300 << 20))], **SMALL)
    with pytest.raises(HcclError, match="rank 1: buffers of 2 x 200 MB do not fit") as caught:
        hccl.comm_init_all(cluster)
    assert caught.value.code == HcclResult.MEMORY
    cluster, comm = hccl.comm_init_all(cluster, config=CommConfig(buffer_mb=100))
    assert comm.memory_bytes == 200 << 20
