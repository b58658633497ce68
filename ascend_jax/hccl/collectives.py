"""The collectives of HCCL on arrays, under the axis name ``card``: every carrier runs them.

They change no card and take no time: :func:`ascend_jax.hccl.collective_time` and plans have the times, and
:mod:`ascend_jax.hccl.verbs` queues collectives on the streams of cards. All are pure functions of one
card's buffers. Data of any type moves; 64-bit integers, which JAX has only in its 64-bit mode, go as bytes
(:func:`all_reduce_bytes`).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.hccl.carrier import AXIS
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.datatypes import DataType, ReduceOp, check_reduction, data_type, item_bytes
from ascend_jax.hccl.membership import gather_group, if_member, my_rank
from ascend_jax.hccl.reduction import reduce_bytes, reduce_ranks
from ascend_jax.hccl.results import HcclError, HcclResult


def all_reduce(x: jax.Array, comm: Communicator, op: ReduceOp = ReduceOp.SUM, *, order: str = "rank") -> jax.Array:
    """Return the reduction over all ranks, on every rank (``HcclAllReduce``).

    Args:
      x: [...], equally shaped on all ranks.
      comm: Who takes part.
      op: Operation.
      order: Order of the additions, see :mod:`ascend_jax.hccl.reduction`; the same bits on every carrier.

    Raises:
      HcclError: NOT_SUPPORT for data types and products that HCCL refuses.

    >>> from ascend_jax.hccl import carry, comm_world
    >>> carry(lambda x: all_reduce(x, comm_world(3)), 3)(jnp.arange(3)).tolist()
    [3, 3, 3]
    """
    check_reduction(data_type(x.dtype), op)
    return if_member(comm, reduce_ranks(gather_group(x, comm), op, order), x)


def all_reduce_bytes(
    x: jax.Array, dtype: DataType, comm: Communicator, op: ReduceOp = ReduceOp.SUM, *, order: str = "rank"
) -> jax.Array:
    """As :func:`all_reduce` on raw bytes, uint8 [count * item_bytes(dtype)]; takes 64-bit integers too.

    Raises:
      HcclError: PARA: not a whole number of elements; NOT_SUPPORT as :func:`all_reduce`.
    """
    if x.ndim != 1 or x.dtype != jnp.uint8 or x.shape[0] % item_bytes(dtype):
        raise HcclError(
            HcclResult.PARA, f"x is {x.dtype}{list(x.shape)}: needs uint8 [n], n a multiple of {item_bytes(dtype)}"
        )
    return if_member(comm, reduce_bytes(gather_group(x, comm), dtype, op, order), x)


def reduce(x: jax.Array, comm: Communicator, op: ReduceOp, root: int, *, order: str = "rank") -> jax.Array:
    """Return the reduction on rank ``root``, ``x`` on the others (``HcclReduce``).

    Raises:
      HcclError: PARA for the root, NOT_SUPPORT as :func:`all_reduce`.
    """
    comm.check_rank(root, "root")
    total = all_reduce(x, comm, op, order=order)
    return jnp.where(my_rank(comm) == root, total, x)


def all_gather(x: jax.Array, comm: Communicator) -> jax.Array:
    """Return what all ranks hold, one after another along the first axis (``HcclAllGather``); zeros elsewhere."""
    gathered = gather_group(x, comm)
    gathered = gathered.reshape(-1, *x.shape[1:]) if x.ndim else gathered
    return if_member(comm, gathered, jnp.zeros_like(gathered))


def reduce_scatter(x: jax.Array, comm: Communicator, op: ReduceOp = ReduceOp.SUM, *, order: str = "rank") -> jax.Array:
    """Return this rank's share of the reduction, along the first axis (``HcclReduceScatter``); zeros without a rank.

    Raises:
      HcclError: PARA: the first axis does not divide by the ranks; NOT_SUPPORT as :func:`all_reduce`.
    """
    check_reduction(data_type(x.dtype), op)
    share = _share(x, comm)
    total = reduce_ranks(gather_group(x, comm), op, order)
    return _piece_of_member(total, comm, share)


def broadcast(x: jax.Array, comm: Communicator, root: int) -> jax.Array:
    """Return what rank ``root`` holds (``HcclBroadcast``).

    Raises:
      HcclError: PARA: no such rank.
    """
    comm.check_rank(root, "root")
    return if_member(comm, gather_group(x, comm)[root], x)


def scatter(x: jax.Array, comm: Communicator, root: int) -> jax.Array:
    """Return this rank's share of what ``root`` holds, along the first axis (``HcclScatter``); zeros without a rank.

    Raises:
      HcclError: PARA: no such rank, or the first axis does not divide by the ranks.
    """
    comm.check_rank(root, "root")
    share = _share(x, comm)
    return _piece_of_member(gather_group(x, comm)[root], comm, share)


def all_to_all(x: jax.Array, comm: Communicator) -> jax.Array:
    """Return piece ``rank`` of every rank, in order, along the first axis (``HcclAlltoAll``).

    Raises:
      HcclError: PARA: the first axis does not divide by the ranks.
    """
    share = _share(x, comm)
    if comm.groups == (tuple(range(comm.cards)),):
        return lax.all_to_all(x, AXIS, split_axis=0, concat_axis=0, tiled=True)
    pieces = gather_group(x, comm).reshape(comm.size, comm.size, share, *x.shape[1:])
    mine = jnp.moveaxis(pieces, 1, 0)[jnp.maximum(my_rank(comm), 0)]
    return if_member(comm, mine.reshape(x.shape), x)


def all_to_all_v(
    x: jax.Array,
    comm: Communicator,
    counts: Sequence[Sequence[int]],
    *,
    send_displs: Sequence[Sequence[int]] | None = None,
    recv_displs: Sequence[Sequence[int]] | None = None,
    recv: jax.Array | None = None,
) -> jax.Array:
    """Exchange pieces of any length (``HcclAlltoAllVC``; with displacements ``HcclAlltoAllV``).

    Args:
      x: [n], send buffer, as long on every rank.
      comm: Who takes part.
      counts: [ranks][ranks] elements that rank i sends to rank j; static.
      send_displs: [ranks][ranks] where in rank i's buffer the piece for rank j starts; one after another by default.
      recv_displs: [ranks][ranks] where in rank i's buffer the piece of rank j lands; one after another by default.
      recv: [m], receive buffer before; zeros as long as the longest sum by default. The rest of it stays.

    Raises:
      HcclError: PARA: no square matrix, a negative count, or a piece outside a buffer; names the ranks.
    """
    if x.ndim != 1 or (recv is not None and (recv.ndim != 1 or recv.dtype != x.dtype)):
        shape = "none" if recv is None else f"{recv.dtype}{list(recv.shape)}"
        raise HcclError(HcclResult.PARA, f"buffers {x.dtype}{list(x.shape)} and {shape}: must be [n], of one data type")
    table = checked_counts(counts, comm)
    sends = displacements("send_displs", table, send_displs, comm)
    lands = displacements("recv_displs", table.T, recv_displs, comm)
    if recv is None:
        recv = jnp.zeros(max(int(table.sum(0).max()), 1), x.dtype)
    source = np.full((comm.size, recv.shape[0]), -1, np.int64)
    for i, j in np.ndindex(*table.shape):
        n = int(table[i, j])
        if sends[i, j] < 0 or sends[i, j] + n > x.shape[0]:
            raise HcclError(
                HcclResult.PARA,
                f"sends {n} elements from {sends[i, j]} to rank {j}, its buffer has {x.shape[0]}",
                rank=i,
            )
        if lands[j, i] < 0 or lands[j, i] + n > recv.shape[0]:
            raise HcclError(
                HcclResult.PARA,
                f"takes {n} elements at {lands[j, i]} from rank {i}, its buffer has {recv.shape[0]}",
                rank=j,
            )
        source[j, lands[j, i] : lands[j, i] + n] = i * x.shape[0] + sends[i, j] + np.arange(n)
    mine = jnp.asarray(source.astype(np.int32))[jnp.maximum(my_rank(comm), 0)]
    taken = gather_group(x, comm).reshape(-1)[jnp.maximum(mine, 0)]
    return if_member(comm, jnp.where(mine >= 0, taken, recv), recv)


def send_recv(x: jax.Array, comm: Communicator, pairs: Sequence[tuple[int, int]], recv: jax.Array) -> jax.Array:
    """Send along pairs (from rank, to rank); ``recv`` stays where nothing comes (``HcclSend`` with ``HcclRecv``).

    Raises:
      HcclError: PARA: a rank out of range, one that sends to itself, or one that receives twice.
    """
    for source, target in pairs:
        for rank in (source, target):
            comm.check_rank(rank)
        if source == target:
            raise HcclError(HcclResult.PARA, "sends to itself", rank=source)
    targets = [target for _, target in pairs]
    twice = next((rank for rank in targets if targets.count(rank) > 1), None)
    if twice is not None:
        raise HcclError(HcclResult.PARA, "receives twice in one call; use batch_send_recv", rank=twice)
    routes = [(group[source], group[target]) for group in comm.groups for source, target in pairs]
    moved = x
    for wave in _waves(routes):  # a rank that sends to several needs several permutations
        came = lax.ppermute(x, AXIS, _whole(wave, comm.cards))
        is_target = np.isin(np.arange(comm.cards), [target for _, target in wave])
        moved = jnp.where(jnp.asarray(is_target)[lax.axis_index(AXIS)], came, moved)
    takes = jnp.isin(my_rank(comm), jnp.asarray(targets or [-2]))
    return jnp.where(takes, moved, recv)


def batch_send_recv(
    sends: Sequence[jax.Array],
    comm: Communicator,
    batches: Sequence[Sequence[tuple[int, int]]],
    recvs: Sequence[jax.Array],
) -> list[jax.Array]:
    """Do several exchanges in one call (``HcclBatchSendRecv``): item i moves ``sends[i]`` along ``batches[i]``.

    Raises:
      HcclError: PARA: not as many buffers as batches; else as :func:`send_recv`.
    """
    if not len(sends) == len(batches) == len(recvs):
        raise HcclError(
            HcclResult.PARA,
            f"{len(sends)} send and {len(recvs)} receive buffers for {len(batches)} batches: must be equal",
        )
    return [send_recv(x, comm, pairs, y) for x, pairs, y in zip(sends, batches, recvs, strict=True)]


def barrier(comm: Communicator) -> jax.Array:
    """Return the number of ranks that met (``HcclBarrier``), 0 on a card without a rank.

    It orders nothing by itself, XLA sees only data.
    """
    return if_member(comm, gather_group(jnp.int32(1), comm).sum(), jnp.int32(0))


def _waves(routes: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    waves: list[list[tuple[int, int]]] = []
    for route in routes:
        wave = next((one for one in waves if all(route[0] != source for source, _ in one)), None)
        if wave is None:
            waves.append([route])
        else:
            wave.append(route)
    return waves


def _whole(routes: list[tuple[int, int]], cards: int) -> list[tuple[int, int]]:
    """Return the routes with every other card sending somewhere too, which ``vmap`` demands."""
    sources, targets = ({route[end] for route in routes} for end in (0, 1))
    others = ([card for card in range(cards) if card not in used] for used in (sources, targets))
    return [*routes, *zip(*others, strict=True)]


def _share(x: jax.Array, comm: Communicator) -> int:
    length = x.shape[0] if x.ndim else 0
    if x.ndim == 0 or length % comm.size:
        raise HcclError(HcclResult.PARA, f"{length} elements do not divide by {comm.size} ranks; pad them")
    return length // comm.size


def _piece_of_member(x: jax.Array, comm: Communicator, share: int) -> jax.Array:
    piece = _piece(x, jnp.maximum(my_rank(comm), 0), share)
    return if_member(comm, piece, jnp.zeros_like(piece))


def _piece(x: jax.Array, rank: jax.Array, share: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(x, jnp.maximum(rank, 0) * share, share)


def checked_counts(counts: Sequence[Sequence[int]], comm: Communicator) -> np.ndarray:
    """Return how much rank i sends to rank j as an array, or refuse it.

    Raises:
      HcclError: PARA: no square table of whole numbers of at least 0; names the rank.
    """
    table = _whole_table("counts", counts, comm)
    if (table < 0).any():
        i, j = np.argwhere(table < 0)[0]
        raise HcclError(HcclResult.PARA, f"count = {table[i, j]} for rank {j}: must be at least 0", rank=int(i))
    return table


def _whole_table(name: str, given: Sequence[Sequence[int]], comm: Communicator) -> np.ndarray:
    """Return [ranks][ranks] integers as an array, or refuse them."""
    lengths = [len(row) if isinstance(row, Sequence | np.ndarray) else None for row in given]
    if len(lengths) != comm.size or any(length != comm.size for length in lengths):
        raise HcclError(
            HcclResult.PARA, f"{name} has {len(lengths)} rows of {lengths}: must be [{comm.size}, {comm.size}]"
        )
    for rank, row in enumerate(given):
        for value in row:
            if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
                raise HcclError(HcclResult.PARA, f"{name} has {value!r}: must be whole numbers", rank=rank)
    return np.asarray(given, np.int64)


def displacements(
    name: str, table: np.ndarray, given: Sequence[Sequence[int]] | None, comm: Communicator
) -> np.ndarray:
    """Return where the pieces of a table of counts begin: one after another unless it is ``given``.

    Raises:
      HcclError: PARA: no square table of whole numbers; names the rank.
    """
    return np.cumsum(table, 1) - table if given is None else _whole_table(name, given, comm)
