"""Creating and destroying the communicators of a cluster: each takes HBM and an entry in the tables of its cards.

The entry stands among a card's notifies, which communicators are made of (HCCL documents); it counts the calls.
"""

import dataclasses
import enum
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.hccl.cluster import Cluster, on_cards
from ascend_jax.hccl.communicator import CommConfig, Communicator, Home, comm_world
from ascend_jax.hccl.membership import check_cards
from ascend_jax.hccl.results import HcclError, HcclResult
from ascend_jax.runtime import callsite
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.coupling import Coupling
from ascend_jax.runtime.edge import concrete
from ascend_jax.runtime.handles import free_slot, vacate
from ascend_jax.runtime.heap import gaps, insert, remove, row_at
from ascend_jax.runtime.layout import (
    GRANULE_BYTES,
    HUGE_PAGE,
    NONE,
    UNUSED_EVENT,
    Device,
    Event,
    EventKind,
    Field,
    HeapWord,
    Kind,
    Phase,
    Time,
)
from ascend_jax.runtime.memory.allocation import new_entry
from ascend_jax.runtime.rows import Number, get_row, put_if, with_entries
from ascend_jax.runtime.state import CardState, Heap
from ascend_jax.runtime.status import first_code


class Entry(enum.IntEnum):
    """Columns of ``CardState.events`` in the row of a communicator."""

    NUMBER = Event.FLAGS  # of the communicator, from 1
    CALLS = Event.RECORD  # made so far
    BUFFER = Event.CAPTURED  # granule at which its memory starts


def comm_init_all(
    cluster: Cluster, devices: Sequence[int] | None = None, config: CommConfig | None = None
) -> tuple[Cluster, Communicator]:
    """Create a communicator of the given cards, all of them by default, rank by position (``HcclCommInitAll``).

    Raises:
      HcclError: As :func:`comm_init`, and PARA: a card twice, or out of range.

    >>> import ascend_jax as aj
    >>> cluster, comm = comm_init_all(aj.cluster(aj.chip("Ascend910B2"), 2, hbm_backing_bytes=0))
    >>> comm.size
    2
    """
    config = config or CommConfig()
    comm = (
        comm_world(cluster.size, config) if devices is None else Communicator(cluster.size, (tuple(devices),), config)
    )
    return comm_init(cluster, comm)


def comm_init(cluster: Cluster, comm: Communicator) -> tuple[Cluster, Communicator]:
    """Create on a cluster a communicator that was described: by root info, by rank table, by ``sub`` or ``split``.

    It takes 2 x ``buffer_mb`` MB of HBM of every card that has a rank, at the upper end (HCCL, HCCL_BUFFSIZE).

    Returns:
      The cluster, and the communicator as calls on its cards need it.

    Raises:
      HcclError: PARA: for another number of cards; MEMORY: its buffers do not fit a card; UNAVAIL: a card has no notify
        left. Names the rank. Nothing is created then.
    """
    check_cards(comm, cluster.size)
    coupling = cluster.cards.coupling or Coupling(cluster.size, (), depth=cluster.cards.table.fields.shape[1] - 1)
    home = Home(len(coupling.firsts), cluster.topology, _sheets(cluster))
    comm = dataclasses.replace(comm, home=home)
    is_member = np.zeros(cluster.size, bool)
    is_member[[card for group in comm.groups for card in group]] = True
    numbers = np.full(cluster.size, home.number, np.int32)
    granules = np.full(cluster.size, comm.memory_bytes // GRANULE_BYTES, np.int32)
    after, codes = on_cards(cluster, _open, is_member, numbers, granules)
    for rank, card in ((rank, card) for group in comm.groups for rank, card in enumerate(group)):
        if codes[card] == Code.MEMORY_ALLOCATION or codes[card] == Code.HEAP_TABLE_FULL:
            free = float(cluster.cards.chip["hbm_bytes"][card]) / 2**20
            what = f"2 x {comm.config.buffer_mb} MB do not fit what is left of the {free:.0f} MB of card {card}"
            raise HcclError(HcclResult.MEMORY, f"buffers of {what}; use a smaller buffer_mb", rank=rank)
        if codes[card]:
            what = f"card {card} has no notify left; give cluster a larger max_notifies"
            raise HcclError(HcclResult.UNAVAIL, what, rank=rank)
    cards = dataclasses.replace(after.cards, coupling=coupling.with_communicator(comm.groups))
    return dataclasses.replace(after, cards=cards), comm


def _sheets(cluster: Cluster) -> tuple[tuple[str, str, str, bytes], ...]:
    chip = cluster.cards.chip
    values = np.asarray(chip.values, np.float32)
    names = chip.name, chip.family, chip.calibration
    return tuple((*names, row) for row in dict.fromkeys(row.tobytes() for row in values))


def comm_destroy(cluster: Cluster, comm: Communicator) -> Cluster:
    """Return the cluster without a communicator; its cards get the memory back (``HcclCommDestroy``).

    Raises:
      HcclError: NOT_FOUND: it is none of this cluster, or was destroyed before; PTR: no communicator; AGAIN: calls of
        it are queued and have not been waited for (the library: "comm is in use"); names the rank.
    """
    if not isinstance(comm, Communicator):
        raise HcclError(HcclResult.PTR, f"comm = {comm!r}: must be a communicator")
    check_alive(cluster, comm)
    if comm.home is None:
        raise HcclError(HcclResult.NOT_FOUND, f"communicator {comm.name} was not created on this cluster")
    numbers = [comm.home.number, *_pairs_of(cluster.cards, comm.home.number)]
    _check_unused(cluster, comm, numbers)
    cluster = on_cards(cluster, _close, np.broadcast_to(np.array(numbers, np.int32), (cluster.size, len(numbers))))[0]
    return dataclasses.replace(cluster, destroyed=cluster.destroyed | set(numbers))


def _pairs_of(cards: CardState, number: int) -> list[int]:
    """Return the numbers of the pairs of ranks of a communicator that have linked up to send."""
    comms = [dict(spec.attributes)["comm"] for spec in cards.kernels if spec.meets]
    homes = [comm.home for comm in comms if isinstance(comm, Communicator) and comm.home is not None]
    return sorted({home.number for home in homes if home.parent == number})


def _check_unused(cluster: Cluster, comm: Communicator, numbers: Sequence[int]) -> None:
    fields, times = concrete(cluster.cards.table.fields), concrete(cluster.cards.table.times)
    if fields is None or times is None:
        return  # traced: nobody can be told
    phase = times[..., Time.PHASE]
    is_call = np.isin(fields[..., Field.KIND], (Kind.RENDEZVOUS, Kind.COLLECTIVE))
    is_used = is_call & np.isin(fields[..., Field.OBJECT], numbers) & (phase >= Phase.QUEUED) & (phase < Phase.DONE)
    if is_used.any():
        card, row = np.argwhere(is_used)[0]
        site = callsite.text(int(fields[card, row, Field.SITE]))
        what = f"communicator {comm.name} is in use on card {card}, by a call at {site}; synchronize its streams first"
        raise HcclError(HcclResult.AGAIN, what, rank=comm.rank_of(int(card)))


def check_alive(cluster: Cluster, comm: Communicator) -> None:
    """Refuse a communicator that was destroyed.

    Raises:
      HcclError: NOT_FOUND.
    """
    if comm.home is not None and comm.home.number in cluster.destroyed:
        raise HcclError(HcclResult.NOT_FOUND, f"communicator {comm.name} was destroyed; create another one")


def find_comm(card: CardState, number: Number) -> tuple[jax.Array, jax.Array]:
    """Return (whether a card has a communicator, its row of ``card.events``)."""
    rows = card.events
    is_it = (rows[:, Event.ALIVE] == 1) & (rows[:, Event.KIND] == EventKind.COMMUNICATOR)
    is_it &= rows[:, Entry.NUMBER] == jnp.asarray(number) + 1
    return is_it.any(), jnp.argmax(is_it)


def enter_comm(card: CardState, number: Number, buffer: Number, is_wanted: jax.Array) -> tuple[CardState, jax.Array]:
    """Return the card with an entry for a communicator, and the code: 900005 if no notify is left."""
    is_free, slot = free_slot(card.events[card.max_events :, Event.ALIVE])
    row = slot + card.max_events
    entries: dict[int, Number] = {
        Event.ALIVE: 1,
        Event.CONTEXT: card.device[Device.CONTEXT],
        Event.KIND: EventKind.COMMUNICATOR,
        Entry.NUMBER: jnp.asarray(number) + 1,
        Entry.CALLS: 0,
        Entry.BUFFER: buffer,
    }
    events = put_if(is_wanted & is_free, card.events, row, with_entries(get_row(card.events, row), entries))
    code = first_code((is_wanted & ~is_free, Code.OBJECT_TABLE_FULL))
    return dataclasses.replace(card, events=events), code


def _open(card: CardState, is_member: jax.Array, number: jax.Array, granules: jax.Array) -> tuple:
    heap, pointer, code = _at_top(card, card.hbm, granules)
    is_wanted = is_member & (code == Code.SUCCESS)
    heap = jax.tree.map(lambda new, old: jnp.where(is_wanted, new, old), heap, card.hbm)
    card, entered = enter_comm(dataclasses.replace(card, hbm=heap), number, pointer, is_wanted)
    return card, jnp.where(is_member, jnp.where(code == Code.SUCCESS, entered, code), Code.SUCCESS)


def _at_top(card: CardState, heap: Heap, granules: jax.Array) -> tuple[Heap, jax.Array, jax.Array]:
    """Return the heap with a block at its upper end, the block's first granule and a code.

    So the lower end, where real bytes lie, stays for the program.
    """
    size = (granules + HUGE_PAGE - 1) & -HUGE_PAGE
    opening, closing = gaps(heap)
    start = (closing - size) & -HUGE_PAGE
    rows = jnp.arange(opening.shape[0])
    row = jnp.where((start >= opening) & (rows <= heap.words[HeapWord.COUNT]), rows, NONE).max()
    is_full = heap.words[HeapWord.COUNT] >= heap.blocks.shape[1]
    code = first_code((is_full, Code.HEAP_TABLE_FULL), (row == NONE, Code.MEMORY_ALLOCATION))
    first = get_row(start, jnp.maximum(row, 0))
    entry = new_entry(card, first, size, (granules, 0), 0)
    return insert(heap, jnp.maximum(row, 0), entry, code == Code.SUCCESS), first, code


def _close(card: CardState, numbers: jax.Array) -> tuple:
    for place in range(numbers.shape[0]):
        card = _closed(card, numbers[place])
    return card, numbers


def _closed(card: CardState, number: jax.Array) -> CardState:
    is_there, row = find_comm(card, number)
    is_found, block = row_at(card.hbm, get_row(card.events, row)[Entry.BUFFER])
    heap = remove(card.hbm, jnp.where(is_found, block, 0), is_there & is_found)
    is_gone = (jnp.arange(card.events.shape[0]) == row) & is_there
    events = vacate(card.events, is_gone, UNUSED_EVENT, Event)
    return dataclasses.replace(card, hbm=heap, events=events)
