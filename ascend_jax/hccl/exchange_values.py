"""What collectives give each card, as functions of raw bytes that the value plane runs on all cards at once.

Each takes what the card sends and what its receive buffer held, uint8, and returns the receive buffer.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.hccl import collectives
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.cost.phases import Collective
from ascend_jax.hccl.datatypes import DataType, ReduceOp, item_bytes
from ascend_jax.hccl.membership import my_rank
from ascend_jax.runtime.kernels import register

Bytes = jax.Array


def _all_reduce(send: Bytes, old: Bytes, comm: Communicator, dtype: int, op: int, order: str) -> Bytes:
    return collectives.all_reduce_bytes(send, DataType(dtype), comm, ReduceOp(op), order=order)


def _reduce(send: Bytes, old: Bytes, comm: Communicator, dtype: int, op: int, order: str, root: int) -> Bytes:
    return jnp.where(my_rank(comm) == root, _all_reduce(send, old, comm, dtype, op, order), old)


def _reduce_scatter(send: Bytes, old: Bytes, comm: Communicator, dtype: int, op: int, order: str) -> Bytes:
    pieces = _all_reduce(send, old, comm, dtype, op, order).reshape(comm.size, -1)
    return pieces[jnp.maximum(my_rank(comm), 0)]


def _reduce_scatter_v(
    send: Bytes, old: Bytes, comm: Communicator, dtype: int, op: int, order: str, counts: Any, displs: Any
) -> Bytes:
    size = item_bytes(DataType(dtype))
    total = jnp.pad(_all_reduce(send, old, comm, dtype, op, order), (0, old.shape[0]))
    start = jnp.array([size * start * (count > 0) for start, count in zip(displs, counts, strict=True)])
    return lax.dynamic_slice(total, (start[jnp.maximum(my_rank(comm), 0)],), old.shape)


def _all_gather(send: Bytes, old: Bytes, comm: Communicator) -> Bytes:
    return collectives.all_gather(send, comm)


def _broadcast(send: Bytes, old: Bytes, comm: Communicator, root: int) -> Bytes:
    return collectives.broadcast(send, comm, root)


def _scatter(send: Bytes, old: Bytes, comm: Communicator, root: int) -> Bytes:
    return collectives.scatter(send, comm, root)


def _all_to_all(send: Bytes, old: Bytes, comm: Communicator) -> Bytes:
    return collectives.all_to_all(send, comm)


def _all_to_all_v(
    send: Bytes, old: Bytes, comm: Communicator, dtype: int, counts: Any, send_displs: Any, recv_displs: Any
) -> Bytes:
    size = item_bytes(DataType(dtype))
    counts, sends, lands = ([[size * n for n in row] for row in table] for table in (counts, send_displs, recv_displs))
    return collectives.all_to_all_v(send, comm, counts, send_displs=sends, recv_displs=lands, recv=old)


def _send_recv(send: Bytes, old: Bytes, comm: Communicator, pairs: tuple[tuple[int, int], ...]) -> Bytes:
    return collectives.send_recv(send, comm, pairs, old)


def _barrier(send: Bytes, old: Bytes, comm: Communicator) -> Bytes:
    return old


def operator(collective: Collective, *, with_counts: bool = False) -> str:
    """Return the name under which the value plane knows a collective.

    >>> operator(Collective.ALL_REDUCE)
    'hccl all_reduce'
    """
    return f"hccl {collective.value}{'_v' if with_counts else ''}"


def _as_outputs(function: Callable[..., Bytes], *buffers: Bytes, said: Any = (), **options: Any) -> tuple[Bytes]:
    del said  # for reports
    return (function(*buffers, **options),)


for _name, _function in (
    (operator(Collective.ALL_REDUCE), _all_reduce),
    (operator(Collective.REDUCE), _reduce),
    (operator(Collective.REDUCE_SCATTER), _reduce_scatter),
    (operator(Collective.REDUCE_SCATTER, with_counts=True), _reduce_scatter_v),
    (operator(Collective.ALL_GATHER), _all_gather),
    (operator(Collective.ALL_GATHER, with_counts=True), _all_to_all_v),
    (operator(Collective.BROADCAST), _broadcast),
    (operator(Collective.SCATTER), _scatter),
    (operator(Collective.ALL_TO_ALL), _all_to_all),
    (operator(Collective.ALL_TO_ALL, with_counts=True), _all_to_all_v),
    (operator(Collective.SEND_RECV), _send_recv),
    (operator(Collective.BARRIER), _barrier),
):
    register(_name, functools.partial(_as_outputs, _function))
