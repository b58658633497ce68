"""Values of every collective against NumPy, bit for bit, on every carrier; orders of reduction; groups; refusals."""

import functools
import os
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from ascend_jax import hccl
from ascend_jax.hccl import DataType, HcclError, HcclResult, ReduceOp

ROOT = pathlib.Path(__file__).parents[2]
CARDS = ("1", "2", "3", "4", "6", "8", "13", "16")


def test_every_collective_equals_numpy_on_every_carrier():
    # sixteen devices must be there before JAX starts, so the carriers run in a process of their own
    fast = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    environment = os.environ | {"XLA_FLAGS": fast, "PYTHONPATH": str(ROOT)}
    script = ROOT / "tests" / "hccl" / "value_cases.py"
    command = [sys.executable, script, ",".join(hccl.CARRIERS), *CARDS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all equal\n"


@functools.cache
def rows():
    return np.random.default_rng(0).standard_normal((5, 11)).astype(np.float32)


def test_ring_order_starts_each_piece_at_the_next_rank():
    x, out = rows(), np.zeros(11, np.float32)
    for piece in range(5):  # 11 elements in pieces of 3: the last one is empty
        part = slice(3 * piece, min(3 * piece + 3, 11))
        for step in range(5):
            rank = (piece + 1 + step) % 5
            out[part] = x[rank, part] if step == 0 else out[part] + x[rank, part]
    comm = hccl.comm_world(5)
    given = hccl.carry(lambda a: hccl.all_reduce(a, comm, order="ring"), 5)(x)
    assert (np.asarray(given) == out).all()


def test_halving_order_adds_neighbours_first():
    x = rows()
    comm = hccl.comm_world(5)
    given = hccl.carry(lambda a: hccl.all_reduce(a, comm, order="halving"), 5)(x)
    assert (np.asarray(given) == ((x[0] + x[1]) + (x[2] + x[3])) + x[4]).all()


def test_orders_differ_in_bits_only():
    x = rows()
    comm = hccl.comm_world(5)
    by_order = hccl.carry(lambda a: [hccl.all_reduce(a, comm, order=o) for o in ("rank", "ring", "halving")], 5)(x)
    first, *others = map(np.asarray, by_order)
    assert all((first != other).any() and np.allclose(first, other, atol=1e-5) for other in others)


def test_vendor_samples():
    # official samples: the sum of ranks, element i = i * N; even ranks send to the odd one after them
    comm = hccl.comm_world(8)
    summed = hccl.carry(lambda x: hccl.all_reduce(x, comm), 8)(jnp.broadcast_to(jnp.arange(8), (8, 8)))
    assert summed.tolist() == [[0, 8, 16, 24, 32, 40, 48, 56]] * 8
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7)]
    came = hccl.carry(lambda x: hccl.send_recv(x, comm, pairs, jnp.full_like(x, -1)), 8)(jnp.arange(8))
    assert came.tolist() == [-1, 0, -1, 2, -1, 4, -1, 6]


def test_groups_and_cards_without_a_rank():
    comm = hccl.comm_world(6).sub([1, 4, 2])
    x = jnp.arange(6)
    assert hccl.carry(lambda a: hccl.all_reduce(a, comm), 6)(x).tolist() == [0, 7, 7, 3, 7, 5]
    assert hccl.carry(lambda a: hccl.broadcast(a, comm, 1), 6)(x).tolist() == [0, 4, 4, 3, 4, 5]
    pairs = hccl.comm_world(6).split([0, 1, 2, 0, 1, 2])
    assert hccl.carry(lambda a: hccl.all_reduce(a, pairs), 6)(x).tolist() == [3, 5, 7, 3, 5, 7]
    assert hccl.carry(lambda a: hccl.all_gather(a, pairs), 6)(x).tolist()[4] == [1, 4]
    swapped = hccl.carry(lambda a: hccl.all_to_all(a, pairs), 6)(jnp.arange(12).reshape(6, 2))
    assert swapped.tolist() == [[0, 6], [2, 8], [4, 10], [1, 7], [3, 9], [5, 11]]
    assert hccl.carry(lambda a: a + hccl.barrier(comm), 6)(x * 0).tolist() == [0, 3, 3, 0, 3, 0]


def test_one_rank_sends_to_several():
    comm = hccl.comm_world(4)
    routes = [(0, 1), (0, 2), (3, 0)]
    came = hccl.carry(lambda x: hccl.send_recv(x, comm, routes, x * 0 - 1), 4)(jnp.arange(10, 14))
    assert came.tolist() == [13, 10, 10, -1]
    both = hccl.carry(lambda x: hccl.batch_send_recv([x, 2 * x], comm, [[(0, 1)], [(1, 0)]], [x * 0, x * 0]), 4)
    assert [part.tolist() for part in both(jnp.arange(4) + 1)] == [[0, 1, 0, 0], [4, 0, 0, 0]]


def refused(function, cards=4, dtype=np.float32, shape=(4,)):
    with pytest.raises(HcclError) as caught:
        hccl.carry(function, cards)(jnp.zeros((cards, *shape), dtype))
    return caught.value


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        (lambda x, c: hccl.broadcast(x, c, 4), HcclResult.PARA, "root = 4"),
        (lambda x, c: hccl.scatter(x[:3], c, 0), HcclResult.PARA, "3 elements do not divide by 4"),
        (lambda x, c: hccl.reduce_scatter(x[:2], c), HcclResult.PARA, "2 elements"),
        (lambda x, c: hccl.all_to_all(x[:1], c), HcclResult.PARA, "1 elements"),
        (lambda x, c: hccl.all_reduce(x.astype(jnp.uint8), c), HcclResult.NOT_SUPPORT, "UINT8"),
        (lambda x, c: hccl.all_reduce(x.astype(jnp.int16), c, ReduceOp.PROD), HcclResult.NOT_SUPPORT, "INT16"),
        (lambda x, c: hccl.all_reduce(x > 0, c), HcclResult.NOT_SUPPORT, "bool"),
        (lambda x, c: hccl.all_reduce(x, c, 7), HcclResult.PARA, "op = 7"),
        (lambda x, c: hccl.send_recv(x, c, [(1, 9)], x), HcclResult.PARA, "rank 9"),
        (lambda x, c: hccl.send_recv(x, c, [(1, 1)], x), HcclResult.PARA, "rank 1: sends to itself"),
        (lambda x, c: hccl.send_recv(x, c, [(0, 2), (1, 2)], x), HcclResult.PARA, "rank 2: receives twice"),
        (lambda x, c: hccl.all_to_all_v(x, c, [[1]]), HcclResult.PARA, "must be [4, 4]"),
        (lambda x, c: hccl.all_to_all_v(x, c, [[0] * 4, [0, 0, -2, 0], [0] * 4, [0] * 4]), HcclResult.PARA, "rank 1"),
        (lambda x, c: hccl.all_to_all_v(x, c, [[2] * 4] + [[0] * 4] * 3), HcclResult.PARA, "rank 0: sends 2"),
        (lambda x, c: hccl.all_to_all_v(x, c, [[1.5] * 4] * 4), HcclResult.PARA, "rank 0: counts has 1.5"),
        (lambda x, c: hccl.all_to_all_v(x, c, [[True] * 4] * 4), HcclResult.PARA, "counts has True"),
        (lambda x, c: hccl.all_to_all_v(x, c, [[1] * 4] * 4, send_displs=[0] * 4), HcclResult.PARA, "send_displs has"),
        (
            lambda x, c: hccl.all_to_all_v(x, c, [[1] * 4] * 4, recv=x[:3]),
            HcclResult.PARA,
            "rank 0: takes 1 elements at 3",
        ),
        (lambda x, c: hccl.all_to_all_v(x, c, [[1] * 4] * 4, recv=x > 0), HcclResult.PARA, "of one data type"),
        (lambda x, c: hccl.all_to_all_v(x[:, None], c, [[1] * 4] * 4), HcclResult.PARA, "must be [n]"),
        (lambda x, c: hccl.all_reduce_bytes(x, DataType.FP32, c), HcclResult.PARA, "uint8"),
    ],
)
def test_refusals_name_rank_and_value(function, code, words):
    error = refused(lambda x: function(x, hccl.comm_world(4)))
    assert error.code == code
    assert words in str(error)


def test_carrier_needs_devices():
    with pytest.raises(ValueError, match="1000 cards need as many XLA devices"):
        hccl.carry(lambda x: x, 1000, "shard_map")
    with pytest.raises(ValueError, match="carrier = 'thread'"):
        hccl.choose_carrier(2, "thread")
    with pytest.raises(ValueError, match="first axis must be the 3 cards"):
        hccl.carry(lambda x: x, 3)(jnp.zeros(4))
    with pytest.raises(TypeError, match="function = 5: must be a function"):
        hccl.carry(5, 3)
    with pytest.raises(ValueError, match=r"cards = 2\.0: must be an integer"):
        hccl.carry(lambda x: x, 2.0)
    with pytest.raises(ValueError, match=r"argument 1 has shape \[\]: its first axis must be the 3 cards"):
        hccl.carry(lambda x, y: x, 3)(jnp.zeros(3), 1.0)
    assert "1000 card(s) share one of" in hccl.choose_carrier(1000).reason
    with pytest.raises(ValueError, match="count = 0"):
        hccl.set_host_devices(0)
    len(jnp.zeros(1).devices())  # JAX has started
    with pytest.raises(RuntimeError, match="JAX has started with"):
        hccl.set_host_devices(4096)
