"""``HcclSend``, ``HcclRecv`` and ``HcclBatchSendRecv`` as verbs of a card; see :mod:`ascend_jax.hccl.verbs`.

A pair of ranks links up at its first call and then has a channel of its own, so that a send waits for nobody but the
rank that receives it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ascend_jax.hccl.cluster import lone_card
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.cost.phases import Collective
from ascend_jax.hccl.datatypes import data_type, item_bytes
from ascend_jax.hccl.queueing import Buffer, Request, on_cards_of, queue, require_home
from ascend_jax.hccl.results import HcclError, HcclResult
from ascend_jax.hccl.steps import check_call
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState

Ranks = int | Sequence[int]
Pair = tuple[int, int]  # ranks: from, to


@verb
def HcclSend(
    card: CardState,
    send_buf: Number,
    count: int,
    dtype: Any,
    dest_rank: Ranks,
    comm: Communicator,
    stream: Number,
    *,
    offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue the sending of ``count`` elements; it meets the ``HcclRecv`` of the other rank, and both wait for it.

    Args:
      card: The card.
      send_buf: Device pointer.
      count: Elements.
      dtype: Their type.
      dest_rank: The other rank, in a program of one card (:func:`ascend_jax.hccl.on_card`); in a program of all cards
        a rank for each rank, -1 for those that send nothing.
      comm: Communicator.
      stream: Stream handle.
      offset: Bytes from ``send_buf``.
      site: Call site, filled in by the runtime.

    Raises:
      HcclError: PARA: no such rank, a rank that sends to itself, or not one rank for each rank.
    """
    for pair in _by_rank(dest_rank, comm, "dest_rank"):
        card = _queue(card, Buffer(send_buf, offset), count, dtype, pair, pair[0], comm, stream, site)
    return card


@verb
def HcclRecv(
    card: CardState,
    recv_buf: Number,
    count: int,
    dtype: Any,
    src_rank: Ranks,
    comm: Communicator,
    stream: Number,
    *,
    offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue the receiving of what :func:`HcclSend` of the other rank sends; arguments and errors as there."""
    for rank, other in _by_rank(src_rank, comm, "src_rank"):
        card = _queue(card, Buffer(recv_buf, offset), count, dtype, (other, rank), rank, comm, stream, site)
    return card


@dataclasses.dataclass(frozen=True, eq=False)
class SendRecvItem:
    """``HcclSendRecvItem``: one transfer of a batch."""

    is_send: bool
    buf: Number
    count: int
    dtype: Any
    remote_rank: Ranks  # for each rank the other one, -1: nothing
    offset: Number = 0


@verb
def HcclBatchSendRecv(
    card: CardState, items: Sequence[SendRecvItem], comm: Communicator, stream: Number, *, site: Site = None
) -> CardState:
    """Queue sends and receives that do not wait for each other: the n-th send of the batch goes with its n-th receive.

    All ranks of the communicator take part. One program serves them all, so that ``remote_rank`` has an entry for each.

    Raises:
      HcclError: PARA: not as many sends as receives, or they do not fit each other; names the rank.

    >>> from ascend_jax import hccl
    >>> ring = [1, 2, 0], [2, 0, 1]  # to the next rank, from the one before
    >>> items = [hccl.SendRecvItem(way, 0, 4, "float32", ranks) for way, ranks in zip((True, False), ring)]
    >>> items[0].is_send, items[1].remote_rank
    (True, [2, 0, 1])
    """
    sends, recvs = ([item for item in items if item.is_send == way] for way in (True, False))
    if len(sends) != len(recvs):
        raise HcclError(HcclResult.PARA, f"{len(sends)} sends and {len(recvs)} receives: must be equal")
    for send, recv in zip(sends, recvs, strict=True):
        pairs = _matched(send, recv, comm)
        kind = check_call(Collective.SEND_RECV, comm, send.count, send.dtype)
        request = _request(comm, tuple(pairs), int(send.count), item_bytes(kind))
        said = ("count", int(send.count)), ("dtype", kind.name), ("pairs", tuple(pairs))
        request = dataclasses.replace(request, signature=(("operation", "batch_send_recv"), *said), pairs=tuple(pairs))
        buffers = Buffer(send.buf, send.offset), Buffer(recv.buf, recv.offset)
        card = queue(card, request, *buffers, stream, site) if pairs else card
    return card


def _matched(send: SendRecvItem, recv: SendRecvItem, comm: Communicator) -> list[Pair]:
    pairs = _by_rank(send.remote_rank, comm, "remote_rank")
    others = {(other, rank) for rank, other in _by_rank(recv.remote_rank, comm, "remote_rank")}
    if (send.count, data_type(send.dtype)) != (recv.count, data_type(recv.dtype)):
        raise HcclError(
            HcclResult.PARA,
            f"sends {send.count} of {data_type(send.dtype).name}, receives {recv.count} of "
            f"{data_type(recv.dtype).name}: must be equal",
        )
    for source, target in pairs:
        if (source, target) not in others:
            raise HcclError(HcclResult.PARA, f"sends to rank {target}, which does not receive from it", rank=source)
    for source, target in others:
        if (source, target) not in pairs:
            raise HcclError(HcclResult.PARA, f"receives from rank {source}, which does not send to it", rank=target)
    return pairs


def _by_rank(ranks: Ranks, comm: Communicator, name: str) -> list[Pair]:
    """Return (rank that calls, the other one) of all that call."""
    if isinstance(ranks, int | np.integer):
        card = lone_card()
        if card is None:
            raise HcclError(
                HcclResult.PARA, f"{name} = {ranks}: a program of all cards gives one for each rank, -1 for none"
            )
        calls = [(comm.rank_of(card), ranks)]
    else:
        if not isinstance(ranks, Sequence | np.ndarray):
            what = f"{name} = {ranks}: must be a rank, or a sequence with one for each rank"
            raise HcclError(HcclResult.PARA, what)
        if len(ranks) != comm.size:
            raise HcclError(HcclResult.PARA, f"{name} has {len(ranks)} entries: must be one for each of {comm.size}")
        calls = [(rank, other) for rank, other in enumerate(ranks) if other != -1]
    for rank, other in calls:
        comm.check_rank(other, name)
        if rank == other:
            raise HcclError(HcclResult.PARA, f"{name} = {other}: a rank does not send to itself", rank=rank)
    return [(rank, int(other)) for rank, other in calls]


def _queue(
    card: CardState,
    buffer: Buffer,
    count: int,
    dtype: Any,
    pair: Pair,
    caller: int,
    comm: Communicator,
    stream: Number,
    site: Site,
) -> CardState:
    kind = check_call(Collective.SEND_RECV, comm, count, dtype)
    card, joint = _joined(card, comm, pair)
    request = _request(joint, ((0, 1),), int(count), item_bytes(kind))
    said = ("operation", "send_recv"), ("count", int(count)), ("dtype", kind.name)
    callers = frozenset(group[caller] for group in comm.groups)
    request = dataclasses.replace(request, signature=said, callers=callers)
    return queue(card, request, buffer, buffer, stream, site)


def _joined(card: CardState, comm: Communicator, pair: Pair) -> tuple[CardState, Communicator]:
    """Return the communicator of a pair of ranks of each group; it comes into being at the first call."""
    home, coupling = require_home(card, comm)
    groups = tuple((group[pair[0]], group[pair[1]]) for group in comm.groups)
    for spec in card.kernels:
        known = dict(spec.attributes).get("comm")
        if (
            isinstance(known, Communicator)
            and known.groups == groups
            and known.home
            and known.home.parent == home.number
        ):
            return card, known
    own = dataclasses.replace(home, number=len(coupling.firsts), parent=home.number, pair=pair)
    card = dataclasses.replace(card, coupling=coupling.with_communicator(groups))
    return card, Communicator(comm.cards, groups, comm.config, own)


def _request(comm: Communicator, pairs: tuple[Pair, ...], count: int, item: int) -> Request:
    sources, targets = (frozenset(pair[end] for pair in pairs) for end in (0, 1))
    sends, recvs = (
        on_cards_of(comm, [count * item * (rank in ends) for rank in range(comm.size)]) for ends in (sources, targets)
    )
    return Request(Collective.SEND_RECV, comm, (), (("pairs", pairs),), sends, recvs, count * item, item_bytes=item)
