"""Queueing a collective on a stream of a card: three commands, between two of which its part of the data moves.

The first waits until all ranks have come, the second holds the card's links for as long as the collective takes there,
the third waits until all ranks are through.
"""

import dataclasses
import functools
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.hccl.algorithm import CollectiveTime, collective_time, send_time
from ascend_jax.hccl.cluster import card_number, lone_card
from ascend_jax.hccl.communicator import Communicator, Home
from ascend_jax.hccl.cost.phases import Collective
from ascend_jax.hccl.creation import Entry, enter_comm, find_comm
from ascend_jax.hccl.exchange_values import operator
from ascend_jax.hccl.membership import check_cards
from ascend_jax.hccl.occupancy import occupancy
from ascend_jax.hccl.results import HcclError, HcclResult
from ascend_jax.hccl.timeouts import timeout_ns
from ascend_jax.runtime import bytes as hbm
from ascend_jax.runtime import status
from ascend_jax.runtime.apart import apart
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import append, is_taken, operand_rows, refusal, row_of
from ascend_jax.runtime.coupling import AXIS, Coupling
from ascend_jax.runtime.edge import Site, concrete, packed, stage
from ascend_jax.runtime.handles import find_stream
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.kernels import Argument, KernelSpec
from ascend_jax.runtime.launch import load_kernel
from ascend_jax.runtime.layout import LIMB, NONE, NULL, SHARES, Capture, Clock, Field, Kind, Stream
from ascend_jax.runtime.program import LONGEST_BLOCK_NS
from ascend_jax.runtime.ranges import Range, byte_range, is_empty, is_host, split_bytes
from ascend_jax.runtime.rows import Number, get_row, put_if, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import make_room
from ascend_jax.runtime.translation import translate
from ascend_jax.runtime.usable import is_live

COMMANDS = 3  # of one call


@dataclasses.dataclass(frozen=True)
class Request:
    """A collective as one rank asks for it; static. Byte counts are those of each card, 0 where it gives no buffer."""

    collective: Collective
    comm: Communicator
    signature: tuple[tuple[str, object], ...]  # what all ranks must say alike
    options: tuple[tuple[str, object], ...]  # of the value function
    send_bytes: tuple[int, ...]  # [C]
    recv_bytes: tuple[int, ...]  # [C]
    moved_bytes: int  # of the larger buffer of one rank
    with_counts: bool = False
    item_bytes: int = 1  # of an element, to which buffers must be aligned
    pairs: tuple[tuple[int, int], ...] = ()  # of a batch of sends: ranks
    callers: frozenset[int] | None = None  # cards that call; None: all that have a rank


def on_cards_of(comm: Communicator, of_ranks: Sequence[int]) -> tuple[int, ...]:
    """Return numbers of ranks as those of all cards, 0 for a card without a rank."""
    numbers = [0] * comm.cards
    for group in comm.groups:
        for card, number in zip(group, of_ranks, strict=True):
            numbers[card] = int(number)
    return tuple(numbers)


class Buffer(NamedTuple):
    """A device pointer, and bytes from there."""

    pointer: Number
    offset: Number = 0


def queue(
    card: CardState, request: Request, send: Buffer, recv: Buffer, stream: Number, site: Site, *, in_place: bool = True
) -> CardState:
    """Queue a collective; the card answers with its ``HcclResult``. Nothing happens on a card without a rank.

    Raises:
      HcclError: NOT_FOUND: the communicator was not created on a cluster, or was destroyed.
    """
    comm = request.comm
    home, _ = require_home(card, comm)
    number = card_number()
    for _ in range(0 if concrete(card.clock) is None else COMMANDS):
        card = make_room(card, site, stream)
    card, kernel = load_kernel(card, _spec(request))
    table = _row_of(_columns(request), number)
    places = [
        _place(one, _row_of(_lengths(nbytes), number))
        for one, nbytes in ((send, request.send_bytes), (recv, request.recv_bytes))
    ]
    text = repr((comm.groups, request.signature)).encode()
    call = packed(home.number, zlib.crc32(text) & 0x7FFFFFFF, kernel, int(in_place), request.item_bytes)
    parent = home.number if home.parent is None else home.parent
    return _queue(card, places[0], places[1], call, table, parent, stream, site, joins=home.parent is not None)


def _row_of(table: np.ndarray, card: jax.Array) -> Any:
    """Return the row of a card; on the host if that is known, where nothing is compiled for it."""
    known = concrete(card)
    return jnp.asarray(table)[card] if known is None else table[known]


def _lengths(nbytes: tuple[int, ...]) -> np.ndarray:
    """Return the byte counts of all cards as int32 [C, 2]: whole granules and the rest."""
    return np.array([split_bytes(one) for one in nbytes], np.int32)


def _place(buffer: Buffer, length: jax.Array) -> Range:
    place = byte_range(buffer.pointer, buffer.offset, 0)
    is_nowhere = isinstance(place.whole, int) and place.whole == NONE
    return place if is_nowhere else place._replace(whole=length[0], rest=length[1])


def require_home(card: CardState, comm: Communicator) -> tuple[Home, Coupling]:
    """Return where a communicator was created, or refuse it.

    Raises:
      HcclError: NOT_FOUND: on no cluster or another one, or it was destroyed; PARA: for another number of cards.
    """
    if not isinstance(comm, Communicator):
        raise HcclError(HcclResult.PTR, f"comm = {comm!r}: must be a communicator")
    if comm.home is None or card.coupling is None:
        raise HcclError(
            HcclResult.NOT_FOUND, f"communicator {comm.name} was created on no cluster: cluster, comm = comm_init(...)"
        )
    check_cards(comm, card.coupling.cards)
    first = card.coupling.firsts[comm.home.number] if comm.home.number < len(card.coupling.firsts) else 0
    if card.coupling.channels[first : first + len(comm.groups)] != comm.groups:
        raise HcclError(HcclResult.NOT_FOUND, f"communicator {comm.name} was created on another cluster")
    return comm.home, card.coupling


class Column:
    """Places in a row of :func:`_columns`."""

    IS_MEMBER, BLOCK_HI, BLOCK_LO, HBM_SHARE, LINKS, FIRST_HI, FIRST_LO, NEXT_HI, NEXT_LO = range(9)
    COUNT = 9


@functools.lru_cache(maxsize=256)
def _columns(request: Request) -> np.ndarray:
    """Return what the engine needs to know of each card's part, int32 [C, Column.COUNT]."""
    comm = request.comm
    assert comm.home is not None
    chip, topology = comm.home.chips[0], comm.home.topology
    table = np.zeros((comm.cards, Column.COUNT), np.int64)
    limits = [timeout_ns(chip, comm.config, is_first=is_first) for is_first in (True, False)]
    for group in comm.groups:
        known = max((_time(request, one, group) for one in comm.home.chips), key=lambda time: time.time_ns)
        duration = max(round(known.time_ns), 1)
        if duration > LONGEST_BLOCK_NS:
            what = f"{request.collective.value} takes {duration} ns: at most {LONGEST_BLOCK_NS} ns are possible"
            raise HcclError(HcclResult.PARA, f"{what}; use a smaller count")
        share = int(SHARES * 2.0 * request.moved_bytes / (duration * 1e-9 * float(chip["hbm_bytes_per_s"])))
        for card in group:
            calls = request.callers is None or card in request.callers
            held = occupancy(chip, topology, request.collective, known, card, group) if len(group) > 1 else 0
            own = (int(calls), *divmod(duration, LIMB), min(share, SHARES - 1), held)
            table[card] = (*own, *divmod(limits[0], LIMB), *divmod(limits[1], LIMB))
    return table.astype(np.int32)


def _time(request: Request, chip: Any, group: tuple[int, ...]) -> CollectiveTime:
    assert request.comm.home is not None
    topology = request.comm.home.topology
    if not request.pairs:
        return collective_time(chip, topology, request.collective, request.moved_bytes, group)
    routes = [(group[source], group[target]) for source, target in request.pairs]
    return send_time(chip, topology, request.moved_bytes, routes)


def _spec(request: Request) -> KernelSpec:
    name = operator(request.collective, with_counts=request.with_counts)
    send, recv = (Argument((max(nbytes),), np.dtype(np.uint8)) for nbytes in (request.send_bytes, request.recv_bytes))
    options = (("comm", request.comm), ("said", request.signature), *request.options)
    return KernelSpec(name, options, (send, recv), (recv,), meets=True)


@stage(static=("joins",))
def _queue(card: CardState, send: Range, recv: Range, *numbers: Number, joins: bool) -> CardState:
    queue_now = functools.partial(_queue_now, joins=joins)
    args = jax.tree.map(jnp.asarray, (card, send, recv, *numbers))
    if lone_card() is not None:
        return queue_now(*args)
    # XLA takes ever longer for a program of many calls unless each of them has its results in memory
    return apart(lax.pmax(card.clock[Clock.ENQUEUED], AXIS) >= 0, queue_now, *args)


def _queue_now(
    card: CardState,
    send: Range,
    recv: Range,
    call: jax.Array,
    column: jax.Array,
    parent: Number,
    stream: Number,
    site: Number,
    *,
    joins: bool,
) -> CardState:
    send, recv = translate(card, send), translate(card, recv)
    number, _, _, in_place, item = call
    is_member = column[Column.IS_MEMBER] == 1
    has_parent, _ = find_comm(card, parent)
    entered = jnp.int32(Code.SUCCESS)
    if joins:  # a pair of ranks links up at its first call
        is_new = is_member & has_parent & ~find_comm(card, number)[0]
        card, entered = enter_comm(card, number, NULL, is_new)
    _, row = find_comm(card, number)
    calls = get_row(card.events, row)[Entry.CALLS]
    found, slot = find_stream(card, stream)
    entry = get_row(card.streams, slot)
    is_same = (send.pointer == recv.pointer) & (send.offset == recv.offset) & ~is_empty(send) & ~is_empty(recv)
    code = first_code(
        (~has_parent, int(HcclResult.NOT_FOUND)),
        (entered != Code.SUCCESS, int(HcclResult.UNAVAIL)),
        (found != Code.SUCCESS, int(HcclResult.RUNTIME)),
        (entry[Stream.CAPTURE] != Capture.NONE, int(HcclResult.NOT_SUPPORT)),
        (is_same & (in_place == 0), int(HcclResult.PARA)),
        (_is_odd(send, item) | _is_odd(recv, item), int(HcclResult.PARA)),
    )
    code = first_failing(code, _check_buffer(card, send), _check_buffer(card, recv))
    code = first_failing(code, first_code((refusal(card, slot) != Code.SUCCESS, int(HcclResult.RUNTIME))))
    first = card.clock[Clock.ENQUEUED]
    rows = [row_of(card.table.fields, first + n) for n in range(COMMANDS)]
    is_full = functools.reduce(jnp.logical_or, [is_taken(card, one) for one in rows])
    code = first_failing(code, first_code((is_full, int(Code.TABLE_FULL))))
    code = jnp.where(is_member, code, Code.SUCCESS)
    ok = is_member & (code == Code.SUCCESS)
    card = spend(card, jnp.where(is_member, card.chip["host_launch_ns"], 0.0))
    operands = jnp.stack([operand_rows(), operand_rows(send, recv, recv), operand_rows()])
    card = append(card, _commands(card, call, column, calls, slot, site), operands, slot, ok)
    entries = with_entries(get_row(card.events, row), {Entry.CALLS: calls + ok})
    return status.note(dataclasses.replace(card, events=put_if(ok, card.events, row, entries)), code, site, stream)


def _commands(
    card: CardState, call: jax.Array, column: jax.Array, calls: jax.Array, slot: Number, site: Number
) -> dict[Any, jax.Array]:
    """Return the columns of the three commands, [3] each: what they are and when they meet."""
    number, signature, kernel, *_ = call
    first, middle = card.clock[Clock.ENQUEUED], np.array([0, 1, 0])
    is_first = calls == 0
    limit = [jnp.where(is_first, column[Column.FIRST_HI + limb], column[Column.NEXT_HI + limb]) for limb in (0, 1)]
    of_all = {Field.STREAM: slot, Field.OBJECT: number, Field.VALUE_HI: signature, Field.SITE: site}
    of_task = {
        Field.BLOCK_HI: column[Column.BLOCK_HI],
        Field.BLOCK_LO: column[Column.BLOCK_LO],
        Field.HBM_SHARE: column[Column.HBM_SHARE],
        Field.L2_SHARE: column[Column.LINKS],
        Field.MODE: 1,
        Field.READS: 0b011,
        Field.WRITES: 0b100,
    }
    return {
        **{name: jnp.broadcast_to(jnp.asarray(value, jnp.int32), (3,)) for name, value in of_all.items()},
        **{name: jnp.asarray(value, jnp.int32) * middle for name, value in of_task.items()},
        Field.KIND: jnp.asarray([int(Kind.RENDEZVOUS), int(Kind.COLLECTIVE), int(Kind.RENDEZVOUS)]),
        Field.KERNEL: jnp.where(middle == 1, kernel, NONE),
        Field.DEPENDS: jnp.where(middle == 1, NONE, first + np.arange(3)),  # on itself, see runtime.coupling
        Field.VALUE_LO: jnp.stack([2 * calls, calls, 2 * calls + 1]),
        Field.TIMEOUT_HI: limit[0] * (1 - middle),
        Field.TIMEOUT_LO: limit[1] * (1 - middle),
    }


def _is_odd(place: Range, item: jax.Array) -> jax.Array:
    """Return whether a buffer does not begin at a multiple of an element; granules do for every type."""
    return ~is_empty(place) & (place.offset > 0) & (place.offset % item != 0)


def _check_buffer(card: CardState, place: Range) -> jax.Array:
    """Return 0, or why a buffer cannot be used: null 2, not allocated on the device 3, no bytes behind it 900002."""
    no_bytes = ~hbm.is_backed(card, place) if card.has_values else jnp.bool_(False)
    code = first_code(
        (place.pointer == NULL, int(HcclResult.PTR)),
        (is_host(place.pointer) | ~is_live(card, place), int(HcclResult.MEMORY)),
        (no_bytes, int(Code.NO_BYTES_BEHIND)),
    )
    return jnp.where(is_empty(place), Code.SUCCESS, code)
