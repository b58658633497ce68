"""Collectives of ``libhccl`` as pure verbs: ``card = HcclAllReduce(card, send, recv, count, dtype, op, comm, stream)``.

Each queues a collective on a stream and returns at once. The card moves real bytes when simulated time comes to it: all
ranks start together when the last one has come, and what was received is visible when the collective ends. Programs
run on all cards by :func:`ascend_jax.on_cards`, or on one of them by :func:`ascend_jax.hccl.on_card` where a rank does
something of its own; whatever waits (``synchronize_stream`` and the like) belongs in the former.

The status of the card holds the ``HcclResult``: 0; 1 for arguments that cannot be, 2 for a null pointer, 3 for memory
that is not the device's or not allocated, 5 in a captured stream, 6 for a communicator that was destroyed, 7 if a pair
of ranks finds no notify, 15 for a stream that is unknown or has failed; of the simulator 900001 and 900002. A wait for
the stream then tells what went wrong between the ranks: 107019 if some did not come in time, 507000 if they disagree.
What is static is refused at once, by an exception that carries the same code.
"""

import dataclasses
from typing import Any

import numpy as np

from ascend_jax.hccl.algorithm import collective_time
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.cost.phases import Collective
from ascend_jax.hccl.datatypes import ReduceOp, data_type, item_bytes
from ascend_jax.hccl.queueing import Buffer, Request, queue
from ascend_jax.hccl.results import HcclError, HcclResult
from ascend_jax.hccl.steps import REDUCTIONS, ROOTED, check_call
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState

NOTHING = Buffer(0)


def request_of(
    collective: Collective,
    comm: Communicator,
    count: int,
    dtype: Any,
    sends: int,
    recvs: int,
    *,
    op: Any = ReduceOp.SUM,
    root: int = 0,
    only_root: str = "",
) -> Request:
    """Return the request of a collective whose buffers hold ``sends`` and ``recvs`` times ``count`` elements.

    ``only_root`` says which buffer the others do not give.
    """
    kind = check_call(collective, comm, count, dtype, op, root)
    nbytes = int(count) * item_bytes(kind)
    said: dict[str, object] = {"operation": collective.value, "count": int(count), "dtype": kind.name}
    options: dict[str, object] = {}
    if collective in REDUCTIONS:
        said["op"] = ReduceOp(op).name
        largest = int(count) * item_bytes(kind) * max(sends, recvs)
        options = {"dtype": int(kind), "op": int(op), "order": reduction_order(collective, comm, largest)}
    if collective in ROOTED:
        said["root"] = options["root"] = int(root)
    roots = [group[int(root)] for group in comm.groups]
    has_send, has_recv = (
        [only_root != which or card in roots for card in range(comm.cards)] for which in ("send", "recv")
    )
    return Request(
        collective,
        comm,
        tuple(said.items()),
        tuple(options.items()),
        tuple(nbytes * sends * has for has in has_send),
        tuple(nbytes * recvs * has for has in has_recv),
        nbytes * max(sends, recvs),
        item_bytes=item_bytes(kind),
    )


_ORDERS = {"ring": "ring", "halving-doubling": "halving", "nhr": "halving"}  # of others: by rank


def reduction_order(collective: Collective, comm: Communicator, nbytes: int) -> str:
    """Return the order of additions: by rank if the communicator is ``deterministic``, else that of the algorithm."""
    if comm.config.deterministic or comm.home is None:
        return "rank"
    home = comm.home
    known = collective_time(home.chips[0], home.topology, collective, nbytes, comm.groups[0])
    return _ORDERS.get(known.algorithm, "rank")


def _buffer(pointer: Number, offset: Number, dtype: Any) -> Buffer:
    size = item_bytes(data_type(dtype))
    if isinstance(offset, int | np.integer) and offset % size:
        raise HcclError(HcclResult.PARA, f"offset = {offset}: must be a multiple of the {size} bytes of an element")
    return Buffer(pointer, offset)


@verb
def HcclAllReduce(
    card: CardState,
    send_buf: Number,
    recv_buf: Number,
    count: int,
    dtype: Any,
    op: ReduceOp,
    comm: Communicator,
    stream: Number,
    *,
    send_offset: Number = 0,
    recv_offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue the reduction of ``count`` elements of every rank's ``send_buf`` into every rank's ``recv_buf``.

    Both may be the same buffer. Offsets count bytes.

    >>> import jax, ascend_jax as aj
    >>> from ascend_jax import hccl
    >>> cluster = aj.cluster(aj.chip("Ascend910B2"), 2, hbm_backing_bytes=1 << 16, max_streams=1, max_commands=16)
    >>> cluster, comm = hccl.comm_init_all(cluster)
    >>> def program(card):
    ...     card, buf = aj.malloc(card, 64)
    ...     card = aj.memset_async(card, buf, 1 + jax.lax.axis_index("card"), 4, 0)
    ...     return HcclAllReduce(card, buf, buf, 4, "int8", hccl.ReduceOp.SUM, comm, 0), buf
    >>> cluster, _ = aj.on_cards(cluster, program)
    >>> cluster = hccl.synchronize_stream(cluster, 0)
    >>> cluster.cards.memory[:, :4].tolist()
    [[3, 3, 3, 3], [3, 3, 3, 3]]
    """
    request = request_of(Collective.ALL_REDUCE, comm, count, dtype, 1, 1, op=op)
    return queue_buffers(card, request, send_buf, recv_buf, dtype, stream, site, send_offset, recv_offset)


def queue_buffers(
    card: CardState,
    request: Request,
    send_buf: Number,
    recv_buf: Number,
    dtype: Any,
    stream: Number,
    site: Site,
    send_offset: Number = 0,
    recv_offset: Number = 0,
    *,
    in_place: bool = True,
) -> CardState:
    """Queue a request for two device pointers.

    Raises:
      HcclError: PARA: an offset that is no multiple of an element; else as :func:`ascend_jax.hccl.queueing.queue`.
    """
    send, recv = _buffer(send_buf, send_offset, dtype), _buffer(recv_buf, recv_offset, dtype)
    return queue(card, request, send, recv, stream, site, in_place=in_place)


@verb
def HcclBroadcast(
    card: CardState,
    buf: Number,
    count: int,
    dtype: Any,
    root: int,
    comm: Communicator,
    stream: Number,
    *,
    offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue the copy of ``count`` elements of the root's ``buf`` into that of every rank."""
    request = request_of(Collective.BROADCAST, comm, count, dtype, 1, 1, root=root)
    return queue_buffers(card, request, buf, buf, dtype, stream, site, offset, offset)


@verb
def HcclReduce(
    card: CardState,
    send_buf: Number,
    recv_buf: Number,
    count: int,
    dtype: Any,
    op: ReduceOp,
    root: int,
    comm: Communicator,
    stream: Number,
    *,
    send_offset: Number = 0,
    recv_offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue the reduction into the root's ``recv_buf``; the others' is not looked at."""
    request = request_of(Collective.REDUCE, comm, count, dtype, 1, 1, op=op, root=root, only_root="recv")
    return queue_buffers(card, request, send_buf, recv_buf, dtype, stream, site, send_offset, recv_offset)


@verb
def HcclReduceScatter(
    card: CardState,
    send_buf: Number,
    recv_buf: Number,
    recv_count: int,
    dtype: Any,
    op: ReduceOp,
    comm: Communicator,
    stream: Number,
    *,
    send_offset: Number = 0,
    recv_offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue the reduction of ``ranks * recv_count`` elements, of which rank r gets piece r."""
    request = request_of(Collective.REDUCE_SCATTER, comm, recv_count, dtype, comm.size, 1, op=op)
    return queue_buffers(card, request, send_buf, recv_buf, dtype, stream, site, send_offset, recv_offset)


@verb
def HcclAllGather(
    card: CardState,
    send_buf: Number,
    recv_buf: Number,
    send_count: int,
    dtype: Any,
    comm: Communicator,
    stream: Number,
    *,
    send_offset: Number = 0,
    recv_offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue the concatenation of all ranks' ``send_count`` elements, in every rank's ``recv_buf``."""
    request = request_of(Collective.ALL_GATHER, comm, send_count, dtype, 1, comm.size)
    return queue_buffers(card, request, send_buf, recv_buf, dtype, stream, site, send_offset, recv_offset)


@verb
def HcclScatter(
    card: CardState,
    send_buf: Number,
    recv_buf: Number,
    recv_count: int,
    dtype: Any,
    root: int,
    comm: Communicator,
    stream: Number,
    *,
    send_offset: Number = 0,
    recv_offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue piece r of the root's ``send_buf`` for rank r; the others' is not looked at."""
    request = request_of(Collective.SCATTER, comm, recv_count, dtype, comm.size, 1, root=root, only_root="send")
    return queue_buffers(card, request, send_buf, recv_buf, dtype, stream, site, send_offset, recv_offset)


@verb
def HcclBarrier(card: CardState, comm: Communicator, stream: Number, *, site: Site = None) -> CardState:
    """Queue a wait for all ranks."""
    request = dataclasses.replace(request_of(Collective.BARRIER, comm, 1, "uint8", 0, 0), moved_bytes=4)
    return queue(card, request, NOTHING, NOTHING, stream, site)
