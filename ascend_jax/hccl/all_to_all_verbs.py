"""``HcclAlltoAll`` and its forms with pieces of any length as verbs of a card; see :mod:`ascend_jax.hccl.verbs`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ascend_jax.hccl.collectives import checked_counts, displacements
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.cost.phases import Collective
from ascend_jax.hccl.datatypes import data_type, item_bytes
from ascend_jax.hccl.queueing import Request, on_cards_of
from ascend_jax.hccl.results import HcclError, HcclResult
from ascend_jax.hccl.verbs import queue_buffers, request_of
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState


@verb
def HcclAlltoAll(
    card: CardState,
    send_buf: Number,
    send_count: int,
    send_type: Any,
    recv_buf: Number,
    recv_count: int,
    recv_type: Any,
    comm: Communicator,
    stream: Number,
    *,
    send_offset: Number = 0,
    recv_offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue the exchange of ``send_count`` elements with every rank; the buffers must differ (status 1)."""
    if send_count != recv_count or data_type(send_type) != data_type(recv_type):
        what = f"send_count = {send_count!r} of {data_type(send_type).name}, recv_count = {recv_count!r}"
        raise HcclError(HcclResult.PARA, f"{what} of {data_type(recv_type).name}: must be equal")
    request = request_of(Collective.ALL_TO_ALL, comm, send_count, send_type, comm.size, comm.size)
    offsets = send_offset, recv_offset
    return queue_buffers(card, request, send_buf, recv_buf, send_type, stream, site, *offsets, in_place=False)


@verb
def HcclAlltoAllV(
    card: CardState,
    send_buf: Number,
    send_counts: Sequence[Sequence[int]],
    send_displs: Sequence[Sequence[int]] | None,
    send_type: Any,
    recv_buf: Number,
    recv_displs: Sequence[Sequence[int]] | None,
    recv_type: Any,
    comm: Communicator,
    stream: Number,
    *,
    site: Site = None,
) -> CardState:
    """Queue the exchange of pieces of any length.

    One program serves all ranks, so that counts and displacements are tables with a row for each rank; what a rank
    receives is the column of ``send_counts``. Displacements of None put one piece after another.
    """
    if data_type(send_type) != data_type(recv_type):
        raise HcclError(
            HcclResult.PARA,
            f"send_type = {data_type(send_type).name}, recv_type = {data_type(recv_type).name}: must be equal",
        )
    counts = checked_counts(send_counts, comm)
    sends = displacements("send_displs", counts, send_displs, comm)
    lands = displacements("recv_displs", counts.T, recv_displs, comm)
    for name, table, starts in (("send_displs", counts, sends), ("recv_displs", counts.T, lands)):
        if ((table > 0) & (starts < 0)).any():
            rank, other = np.argwhere((table > 0) & (starts < 0))[0]
            what = f"{name} = {starts[rank, other]} for rank {other}: must be at least 0"
            raise HcclError(HcclResult.PARA, what, rank=int(rank))
    kind, size = data_type(send_type), item_bytes(data_type(send_type))
    tables = [tuple(tuple(int(n) for n in row) for row in table) for table in (counts, sends, lands)]
    lengths = [
        np.where(table > 0, start + table, 0).max(1) * size for table, start in ((counts, sends), (counts.T, lands))
    ]
    request = Request(
        Collective.ALL_TO_ALL,
        comm,
        (("operation", "all_to_all_v"), ("counts", tables[0]), ("dtype", kind.name)),
        tuple(zip(("dtype", "counts", "send_displs", "recv_displs"), (int(kind), *tables), strict=True)),
        send_bytes=on_cards_of(comm, lengths[0]),
        recv_bytes=on_cards_of(comm, lengths[1]),
        moved_bytes=int(max(counts.sum(1).max(), counts.sum(0).max())) * size,
        with_counts=True,
        item_bytes=size,
    )
    return queue_buffers(card, request, send_buf, recv_buf, send_type, stream, site, in_place=False)


@verb
def HcclAlltoAllVC(
    card: CardState,
    send_buf: Number,
    send_count_matrix: Sequence[Sequence[int]],
    send_type: Any,
    recv_buf: Number,
    recv_type: Any,
    comm: Communicator,
    stream: Number,
    *,
    site: Site = None,
) -> CardState:
    """Queue the exchange of ``send_count_matrix[i][j]`` elements from rank i to rank j, one piece after another."""
    tables = send_count_matrix, None, send_type
    return HcclAlltoAllV(card, send_buf, *tables, recv_buf, None, recv_type, comm, stream, site=site)
