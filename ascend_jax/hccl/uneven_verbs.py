"""``HcclAllGatherV`` and ``HcclReduceScatterV``: pieces of any length as verbs of a card.

See :mod:`ascend_jax.hccl.verbs`. Counts and displacements are those that every rank passes alike, one for each rank.
Both take as long as if all pieces were as long as the longest: links of a mesh work side by side, steps of a ring in
turn, and each waits for the longest piece.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ascend_jax.hccl.cluster import lone_card
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.cost.phases import Collective
from ascend_jax.hccl.datatypes import DataType, ReduceOp, check_reduction, data_type, item_bytes
from ascend_jax.hccl.queueing import Request, on_cards_of
from ascend_jax.hccl.results import HcclError, HcclResult
from ascend_jax.hccl.verbs import queue_buffers, reduction_order
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState


@verb
def HcclAllGatherV(
    card: CardState,
    send_buf: Number,
    send_count: int | Sequence[int],
    recv_buf: Number,
    recv_counts: Sequence[int],
    recv_displs: Sequence[int] | None,
    dtype: Any,
    comm: Communicator,
    stream: Number,
    *,
    send_offset: Number = 0,
    recv_offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue the gathering of ``recv_counts[r]`` elements of rank r at ``recv_displs[r]`` of every ``recv_buf``.

    Args:
      card: The card.
      send_buf: Device pointer.
      send_count: Elements that the rank sends, ``recv_counts`` at its place; in a program of all cards one number for
        each rank.
      recv_buf: Device pointer; what lies between the pieces stays.
      recv_counts: [ranks] elements.
      recv_displs: [ranks] elements from ``recv_buf``; one piece after another by default.
      dtype: Their type.
      comm: Communicator.
      stream: Stream handle.
      send_offset: Bytes from ``send_buf``.
      recv_offset: Bytes from ``recv_buf``.
      site: Call site, filled in by the runtime.

    Raises:
      HcclError: PARA: not one count and displacement for each rank, one below 0, or another ``send_count``.
    """
    kind, (counts, starts) = data_type(dtype), _pieces("recv", recv_counts, recv_displs, comm)
    _check_own("send_count", send_count, counts, comm)
    # an exchange in which every rank gets the same
    table = tuple((one,) * comm.size for one in counts)
    options = (
        ("dtype", int(kind)),
        ("counts", table),
        ("send_displs", ((0,) * comm.size,) * comm.size),
        ("recv_displs", (starts,) * comm.size),
    )
    request = _request(Collective.ALL_GATHER, comm, counts, starts, kind, (), options)
    return queue_buffers(card, request, send_buf, recv_buf, dtype, stream, site, send_offset, recv_offset)


@verb
def HcclReduceScatterV(
    card: CardState,
    send_buf: Number,
    send_counts: Sequence[int],
    send_displs: Sequence[int] | None,
    recv_buf: Number,
    recv_count: int | Sequence[int],
    dtype: Any,
    op: ReduceOp,
    comm: Communicator,
    stream: Number,
    *,
    send_offset: Number = 0,
    recv_offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue the reduction of every rank's ``send_buf``, of which rank r gets ``send_counts[r]`` elements.

    Its own begin at ``send_displs[r]``. Arguments and errors as :func:`HcclAllGatherV`; NOT_SUPPORT for the data type.
    """
    kind, (counts, starts) = data_type(dtype), _pieces("send", send_counts, send_displs, comm)
    check_reduction(kind, op)
    _check_own("recv_count", recv_count, counts, comm)
    order = reduction_order(Collective.REDUCE_SCATTER, comm, max(counts) * item_bytes(kind) * comm.size)
    options = ("dtype", int(kind)), ("op", int(op)), ("order", order), ("counts", counts), ("displs", starts)
    said = (("op", ReduceOp(op).name),)
    request = _request(Collective.REDUCE_SCATTER, comm, counts, starts, kind, said, options)
    return queue_buffers(card, request, send_buf, recv_buf, dtype, stream, site, send_offset, recv_offset)


def _pieces(
    side: str, counts: Sequence[int], displs: Sequence[int] | None, comm: Communicator
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (elements, first element) of the piece of each rank, or refuse them."""
    lengths = _whole_numbers(f"{side}_counts", counts, comm)
    if displs is None:
        return lengths, tuple(int(n) for n in np.cumsum(lengths) - lengths)
    return lengths, _whole_numbers(f"{side}_displs", displs, comm)


def _whole_numbers(name: str, given: Sequence[int], comm: Communicator) -> tuple[int, ...]:
    if not isinstance(given, Sequence | np.ndarray) or len(given) != comm.size:
        raise HcclError(HcclResult.PARA, f"{name} = {given!r}: must be one number for each of {comm.size} ranks")
    for rank, value in enumerate(given):
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < 0:
            raise HcclError(HcclResult.PARA, f"{name} has {value!r}: must be an integer of at least 0", rank=rank)
    return tuple(int(value) for value in given)


def _check_own(name: str, given: int | Sequence[int], counts: tuple[int, ...], comm: Communicator) -> None:
    """Refuse a count of the calling rank that is not its place in the table."""
    card = lone_card()
    callers = range(comm.size) if card is None else [comm.rank_of(card)]
    for rank in callers:
        own = given if isinstance(given, int | np.integer) else _whole_numbers(name, given, comm)[rank]
        if own != counts[rank]:
            raise HcclError(HcclResult.PARA, f"{name} = {own}: the table of all ranks has {counts[rank]}", rank=rank)


def _request(
    collective: Collective,
    comm: Communicator,
    counts: tuple[int, ...],
    starts: tuple[int, ...],
    kind: DataType,
    said: tuple[tuple[str, object], ...],
    options: tuple[tuple[str, object], ...],
) -> Request:
    size = item_bytes(kind)
    end = max(start + count if count else 0 for start, count in zip(starts, counts, strict=True))
    pieces, whole = (on_cards_of(comm, lengths) for lengths in ([n * size for n in counts], [end * size] * comm.size))
    sends, recvs = (pieces, whole) if collective == Collective.ALL_GATHER else (whole, pieces)
    signature = ("operation", f"{collective.value}_v"), ("counts", counts), ("displs", starts), ("dtype", kind.name)
    return Request(
        collective,
        comm,
        (*signature, *said),
        options,
        sends,
        recvs,
        moved_bytes=max(counts) * size * comm.size,
        with_counts=True,
        item_bytes=size,
    )
