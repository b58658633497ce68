"""Memory pools: device memory that is allocated and given back in the order of streams (``aclrtMemPool...``).

A pool takes blocks of whole 2 MiB pages from device memory and keeps those that are given back. A block that is given
back in a stream is idle: an allocation may take it when everything that was queued in that stream before is done, or
is bound to be done before the allocation's own stream gets there.
"""

import dataclasses
import enum

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.runtime import layout, status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import answer, row_of
from ascend_jax.runtime.edge import Site, concrete, packed, stage, verb
from ascend_jax.runtime.handles import find, find_stream, free_slot, handle_of, has_context, vacate
from ascend_jax.runtime.heap import (
    FAR,
    block_at,
    change,
    find_gap,
    insert,
    join,
    remove_all,
    row_at,
    split,
    with_words,
)
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import (
    GRANULE_BYTES,
    HUGE_PAGE,
    POOL_SHIFT,
    STREAM_SHIFT,
    Clock,
    Field,
    HeapEntry,
    HeapFlag,
    HeapWord,
    Kind,
    Pool,
    Stream,
)
from ascend_jax.runtime.memory import new_entry, note_shortage
from ascend_jax.runtime.ranges import split_bytes
from ascend_jax.runtime.rows import Number, get_row, get_rows, put_if, with_entries
from ascend_jax.runtime.state import CardState, Heap, require_single
from ascend_jax.runtime.status import first_code, first_failing


class PoolReuse(enum.IntFlag):
    """When a pool may hand out again what another stream gave back (``aclrtMemPoolAttr`` 1 and 2)."""

    FOLLOW_EVENTS = 1  # the allocating stream waits for an event recorded there afterwards
    OPPORTUNISTIC = 2  # the host has seen that stream get past it


@dataclasses.dataclass(frozen=True)
class PoolStats:
    """What a pool holds, in bytes (``aclrtMemPoolAttr`` 5 to 8)."""

    reserved_bytes: int
    reserved_high_bytes: int
    used_bytes: int
    used_high_bytes: int
    blocks_used: int
    blocks_idle: int
    largest_idle_bytes: int


def _members(card: CardState, slot: Number) -> tuple[jax.Array, jax.Array]:
    """Return masks of the blocks of a pool that are (in use, idle), bool [M]."""
    flags = card.hbm.blocks[HeapEntry.FLAGS]
    live = jnp.arange(flags.shape[0]) < card.hbm.words[HeapWord.COUNT]
    is_ours = live & ((flags & HeapFlag.POOL) != 0) & (((flags >> POOL_SHIFT) & 255) == slot)
    is_idle = (flags & HeapFlag.IDLE) != 0
    return is_ours & ~is_idle, is_ours & is_idle


def _is_done(card: CardState) -> jax.Array:
    """Return for every block whether the stream it was given back in is past that point, bool [M]."""
    stream = card.hbm.blocks[HeapEntry.FLAGS] >> STREAM_SHIFT
    oldest = get_rows(card.table.fields[:, Field.SEQUENCE], card.streams[:, Stream.HEAD])
    oldest = jnp.where(card.streams[:, Stream.PENDING] == 0, FAR, oldest)
    return get_rows(oldest, stream) >= card.hbm.blocks[HeapEntry.BORN]


def _is_followed(card: CardState, slot: jax.Array) -> jax.Array:
    """Return for every block whether ``slot`` waits for an event recorded after it was given back, bool [M]."""
    fields = card.table.fields
    depends = fields[:, Field.DEPENDS]
    is_wait = (fields[:, Field.KIND] == Kind.EVENT_WAIT) & (fields[:, Field.STREAM] == slot) & (depends >= 0)
    record = get_rows(fields, row_of(fields, jnp.maximum(depends, 0)))
    is_wait &= record[:, Field.SEQUENCE] == depends
    seen = jnp.full(card.streams.shape[0], layout.NONE).at[record[:, Field.STREAM]].max(jnp.where(is_wait, depends, -1))
    stream = card.hbm.blocks[HeapEntry.FLAGS] >> STREAM_SHIFT
    return get_rows(seen, stream) >= card.hbm.blocks[HeapEntry.BORN]


def _counted(card: CardState, slot: Number, is_wanted: jax.Array) -> CardState:
    """Return the card with the numbers of a pool as its blocks say."""
    used, idle = _members(card, slot)
    sizes = card.hbm.blocks[HeapEntry.SIZE]
    taken = jnp.where(used, sizes, 0).sum(dtype=jnp.int32)
    reserved = taken + jnp.where(idle, sizes, 0).sum(dtype=jnp.int32)
    entry = get_row(card.pools, slot)
    numbers: dict[Pool, Number] = {
        Pool.RESERVED: reserved,
        Pool.RESERVED_HIGH: jnp.maximum(entry[Pool.RESERVED_HIGH], reserved),
        Pool.USED: taken,
        Pool.USED_HIGH: jnp.maximum(entry[Pool.USED_HIGH], taken),
    }
    is_idle = (card.hbm.blocks[HeapEntry.FLAGS] & HeapFlag.IDLE) != 0
    words = {HeapWord.IDLE: jnp.where(is_idle, sizes, 0).sum(dtype=jnp.int32)}
    hbm = Heap(card.hbm.blocks, with_words(card.hbm.words, words))
    return dataclasses.replace(card, hbm=hbm, pools=put_if(is_wanted, card.pools, slot, with_entries(entry, numbers)))


def _in_pages(whole: jax.Array, rest: jax.Array) -> jax.Array:
    return (whole + (rest > 0) + HUGE_PAGE - 1) & -HUGE_PAGE


def find_pool(card: CardState, handle: Number) -> tuple[jax.Array, jax.Array]:
    """Return (code, slot) of a pool; 107000 for one that is unknown or destroyed."""
    is_alive, slot = find(card.pools, handle, Pool)
    return first_code((~is_alive, Code.RT_PARAM_INVALID)), slot


@stage
def _create(card: CardState, request: jax.Array) -> tuple:
    whole, rest, most, most_rest, threshold, threshold_rest, reuse, site = request
    is_free, slot = free_slot(card.pools[:, Pool.ALIVE])
    size, limit, kept = _in_pages(whole, rest), _in_pages(most, most_rest), _in_pages(threshold, threshold_rest)
    limit = jnp.where(limit == 0, FAR, limit)
    code = first_code(
        (~has_context(card), Code.RT_CONTEXT_NULL),
        ((whole < 0) | (most < 0) | (threshold < 0) | (size > limit), Code.INVALID_PARAM),
        ((reuse < 0) | (reuse > int(PoolReuse.FOLLOW_EVENTS | PoolReuse.OPPORTUNISTIC)), Code.INVALID_PARAM),
        (~is_free, Code.OBJECT_TABLE_FULL),
        ((size > 0) & (card.hbm.words[HeapWord.COUNT] >= card.hbm.blocks.shape[1]), Code.HEAP_TABLE_FULL),
    )
    gap = find_gap(card.hbm, size[None], jnp.array([HUGE_PAGE]))
    code = first_failing(code, first_code(((size > 0) & ~gap.is_found, Code.MEMORY_ALLOCATION)))
    ok = code == Code.SUCCESS
    hbm = note_shortage(card.hbm, (whole, rest), site, code == Code.MEMORY_ALLOCATION)
    host = card.streams.shape[0] - 1
    flags = int(HeapFlag.POOL | HeapFlag.IDLE) | (slot << POOL_SHIFT) | (host << STREAM_SHIFT)
    hbm = insert(hbm, gap.row, new_entry(card, gap.first, size, (0, 0), site, flags), ok & (size > 0))
    generation = get_row(card.pools, slot)[Pool.GENERATION]
    entry = {Pool.ALIVE: 1, Pool.GENERATION: generation, Pool.LIMIT: limit, Pool.THRESHOLD: kept, Pool.REUSE: reuse}
    pools = put_if(ok, card.pools, slot, with_entries(jnp.zeros(len(Pool), jnp.int32), entry))
    card = _counted(dataclasses.replace(card, hbm=hbm, pools=pools), slot, ok)
    card = spend(card, card.chip["host_malloc_ns"])
    return status.note(card, code, site), jnp.where(ok, handle_of(slot, generation), layout.NONE)


@stage
def _alloc(card: CardState, request: jax.Array) -> tuple:
    pool, whole, rest, stream, site = request
    code, slot = find_stream(card, stream)
    pool_code, pool_slot = find_pool(card, pool)
    size = _in_pages(whole, rest)
    is_wrong = (whole < 0) | (whole + rest <= 0)
    code = first_failing(code, pool_code, first_code((is_wrong, Code.INVALID_PARAM)))
    entry = get_row(card.pools, pool_slot)
    is_opportunistic = (entry[Pool.REUSE] & PoolReuse.OPPORTUNISTIC) != 0
    card = _settled(card, _members(card, pool_slot)[1] & is_opportunistic & (code == Code.SUCCESS))
    hbm, (_, idle) = card.hbm, _members(card, pool_slot)
    given_in = hbm.blocks[HeapEntry.FLAGS] >> STREAM_SHIFT
    usable = (given_in == slot) | (given_in == card.streams.shape[0] - 1)
    usable |= ((entry[Pool.REUSE] & PoolReuse.FOLLOW_EVENTS) != 0) & _is_followed(card, slot)
    fits = idle & usable & (hbm.blocks[HeapEntry.SIZE] >= size)
    best = jnp.where(fits, hbm.blocks[HeapEntry.SIZE], FAR).min()
    row = jnp.argmax(fits & (hbm.blocks[HeapEntry.SIZE] == best))
    gap = find_gap(hbm, size[None], jnp.array([HUGE_PAGE]))
    grows = ~fits.any()
    code = first_failing(
        code,
        first_code(
            (grows & (size > entry[Pool.LIMIT] - entry[Pool.RESERVED]), Code.MEMORY_ALLOCATION),
            (grows & (hbm.words[HeapWord.COUNT] >= hbm.blocks.shape[1]), Code.HEAP_TABLE_FULL),
            (grows & ~gap.is_found, Code.MEMORY_ALLOCATION),
        ),
    )
    ok = code == Code.SUCCESS
    flags = int(HeapFlag.POOL) | (pool_slot << POOL_SHIFT)
    facts = new_entry(card, jnp.where(grows, gap.first, block_at(hbm, row)[HeapEntry.START]), size, (whole, rest), site)
    columns = (HeapEntry.ASKED, HeapEntry.REST, HeapEntry.SITE, HeapEntry.BORN)
    front: dict[HeapEntry, Number] = {column: facts[column] for column in columns}
    front[HeapEntry.FLAGS] = flags
    hbm = note_shortage(hbm, (whole, rest), site, code == Code.MEMORY_ALLOCATION)
    hbm = split(hbm, row, size, front, ok & ~grows)
    hbm = insert(hbm, gap.row, with_entries(facts, {HeapEntry.FLAGS: flags}), ok & grows)
    card = _counted(dataclasses.replace(card, hbm=hbm), pool_slot, ok)
    card = spend(card, jnp.where(grows, card.chip["host_malloc_ns"], card.chip["host_event_ns"]))
    return status.note(card, code, site, stream), jnp.where(ok, facts[HeapEntry.START], layout.NULL)


@stage
def _free(card: CardState, request: jax.Array) -> CardState:
    pointer, stream, site = request
    code, slot = find_stream(card, stream)
    found, row = row_at(card.hbm, pointer)
    entry = block_at(card.hbm, row)
    flags = entry[HeapEntry.FLAGS]
    is_ours = ((flags & HeapFlag.POOL) != 0) & ((flags & HeapFlag.IDLE) == 0)
    wrong = first_code((pointer == layout.NULL, Code.INVALID_PARAM), (~found | ~is_ours, Code.RT_PARAM_INVALID))
    code = first_failing(code, wrong)
    ok, pool_slot = code == Code.SUCCESS, (flags >> POOL_SHIFT) & 255
    idle = (flags & 0xFFFF) | HeapFlag.IDLE | (slot << STREAM_SHIFT)
    given: dict[HeapEntry, Number] = {HeapEntry.ASKED: 0, HeapEntry.REST: 0, HeapEntry.FLAGS: idle}
    hbm = change(card.hbm, row, given | {HeapEntry.BORN: card.clock[Clock.ENQUEUED]}, ok)
    hbm = join(hbm, (hbm.blocks[HeapEntry.FLAGS] & HeapFlag.IDLE) != 0)
    pool_slot = jnp.minimum(pool_slot, max(card.pools.shape[0] - 1, 0))
    card = _counted(dataclasses.replace(card, hbm=hbm), pool_slot, ok)
    return status.note(spend(card, card.chip["host_event_ns"]), code, site, stream)


def _settled(card: CardState, is_meant: jax.Array) -> CardState:
    """Return the card with idle blocks of a mask, bool [M], in nobody's order any more where their streams are past.

    What is in nobody's order has the host's own slot as its stream, and joins its neighbours.
    """
    flags = card.hbm.blocks[HeapEntry.FLAGS]
    is_idle = (flags & HeapFlag.IDLE) != 0
    nobodys = (flags & ((1 << STREAM_SHIFT) - 1)) | ((card.streams.shape[0] - 1) << STREAM_SHIFT)
    blocks = with_entries(
        card.hbm.blocks.T, {HeapEntry.FLAGS: jnp.where(is_meant & is_idle & _is_done(card), nobodys, flags)}
    ).T
    return dataclasses.replace(card, hbm=join(Heap(blocks, card.hbm.words), is_idle))


def _surplus(card: CardState, slot: Number, keep: Number) -> jax.Array:
    """Return which idle blocks of a pool to give back, highest first, while ``keep`` granules stay; bool [M]."""
    _, idle = _members(card, slot)
    is_free = idle & _is_done(card)
    freed = jnp.cumsum(jnp.where(is_free, card.hbm.blocks[HeapEntry.SIZE], 0)[::-1])[::-1]
    return is_free & (get_row(card.pools, slot)[Pool.RESERVED] - freed >= keep)


@stage
def _trim(card: CardState, request: jax.Array) -> CardState:
    pool, whole, rest, site = request
    code, slot = find_pool(card, pool)
    code = first_failing(code, first_code((whole < 0, Code.INVALID_PARAM)))
    ok = code == Code.SUCCESS
    card = _settled(card, _members(card, slot)[1] & ok)
    hbm = remove_all(card.hbm, _surplus(card, slot, whole + (rest > 0)) & ok)
    card = _counted(dataclasses.replace(card, hbm=hbm), slot, ok)
    return answer(spend(card, card.chip["host_free_ns"]), code, site, layout.NONE)[0]


@stage
def _set_threshold(card: CardState, request: jax.Array) -> CardState:
    pool, whole, rest, site = request
    code, slot = find_pool(card, pool)
    code = first_failing(code, first_code((whole < 0, Code.INVALID_PARAM)))
    entry = with_entries(get_row(card.pools, slot), {Pool.THRESHOLD: _in_pages(whole, rest)})
    pools = put_if(code == Code.SUCCESS, card.pools, slot, entry)
    return answer(dataclasses.replace(card, pools=pools), code, site, layout.NONE)[0]


@stage
def _destroy(card: CardState, request: jax.Array) -> CardState:
    pool, site = request
    code, slot = find_pool(card, pool)
    used, idle = _members(card, slot)
    code = first_failing(code, first_code((used.any(), Code.RT_PARAM_INVALID)))
    ok = code == Code.SUCCESS
    card = _counted(dataclasses.replace(card, hbm=remove_all(card.hbm, idle & ok)), slot, ok)
    pools = vacate(card.pools, (jnp.arange(len(card.pools)) == slot) & ok, {}, Pool)
    card = spend(dataclasses.replace(card, pools=pools), card.chip["host_free_ns"])
    return answer(card, code, site, layout.NONE)[0]


@stage
def _release_idle(card: CardState) -> CardState:
    slots, is_gone = range(card.pools.shape[0]), jnp.zeros(card.hbm.blocks.shape[1], bool)
    card = _settled(card, ~is_gone)
    for slot in slots:
        entry = card.pools[slot]
        is_gone |= _surplus(card, slot, entry[Pool.THRESHOLD]) & (entry[Pool.ALIVE] == 1)
    card = dataclasses.replace(card, hbm=remove_all(card.hbm, is_gone))
    for slot in slots:
        card = _counted(card, slot, card.pools[slot, Pool.ALIVE] == 1)
    return card


def release_idle(card: CardState) -> CardState:
    """Return the card with what its pools hold idle above their thresholds given back, as after a synchronization."""
    if card.pools.shape[-2] == 0:
        return card
    alive = concrete(card.pools[..., Pool.ALIVE])
    if alive is not None:
        return _release_idle(card) if alive.any() else card
    return lax.cond((card.pools[:, Pool.ALIVE] == 1).any(), _release_idle, lambda card: card, card)


@verb
def mem_pool_create(
    card: CardState,
    reserved_bytes: Number = 0,
    *,
    max_bytes: Number = 0,
    release_threshold_bytes: Number = 0,
    reuse: PoolReuse | Number = PoolReuse.FOLLOW_EVENTS | PoolReuse.OPPORTUNISTIC,
    site: Site = None,
) -> tuple[CardState, jax.Array]:
    """Create a memory pool (``aclrtMemPoolCreate``); sizes are rounded up to 2 MiB.

    Args:
      card: The card.
      reserved_bytes: Device memory that it takes at once.
      max_bytes: Most that it may take; 0 = what the device has.
      release_threshold_bytes: What it keeps when a stream or the device is synchronized (attribute 4).
      reuse: When it may hand out what another stream gave back.
      site: Call site, filled in by the runtime.

    Returns:
      The card and the pool, an int32; -1 on failure. Status 107002 without a current context, 100000 for a negative
      size, more reserved than allowed or unknown reuse bits, 207001 if the memory is not there, 900005 if the card
      has no more pools.

    >>> import ascend_jax as aj
    >>> card, pool = aj.mem_pool_create(aj.init(aj.chip("Ascend910B2")), 8 << 20)
    >>> card, ptr = aj.mem_pool_alloc(card, pool, 3 << 20, 0)
    >>> stats = aj.mem_pool_stats(card, pool)
    >>> stats.reserved_bytes >> 20, stats.used_bytes >> 20
    (8, 4)
    """
    if card.pools.shape[-2] == 0:
        raise ValueError("max_pools = 0: this card has no memory pools; give init a larger max_pools")
    sizes = [part for size in (reserved_bytes, max_bytes, release_threshold_bytes) for part in split_bytes(size)]
    return _create(card, packed(*sizes, int(reuse) if isinstance(reuse, PoolReuse) else reuse, site))


@verb
def mem_pool_alloc(
    card: CardState, pool: Number, nbytes: Number, stream: Number, *, site: Site = None
) -> tuple[CardState, jax.Array]:
    """Allocate from a pool, for work queued in ``stream`` from now on (``aclrtMemPoolMallocAsync``).

    Takes the smallest idle block that is large enough and that ``stream`` may use, at the lowest address, and cuts it
    to whole 2 MiB: the host spends ``host_event_ns``. Else the pool takes device memory: ``host_malloc_ns``.

    Returns:
      The card and a pointer, 0 on failure. Status 107003 for an unknown stream, 107000 for an unknown pool, 100000 for
      a size of 0 or less, 207001 if the pool may not or cannot grow.
    """
    return _alloc(card, packed(pool, *split_bytes(nbytes), stream, site))


@verb
def mem_pool_free(card: CardState, pointer: Number, stream: Number, *, site: Site = None) -> CardState:
    """Give a block back to its pool, after the work queued in ``stream`` so far (``aclrtMemPoolFreeAsync``).

    Status 107003 for an unknown stream, 100000 for the null pointer, 107000 for what is no block of a pool in use.
    """
    return _free(card, packed(pointer, stream, site))


@verb
def mem_pool_trim(card: CardState, pool: Number, keep_bytes: Number = 0, *, site: Site = None) -> CardState:
    """Give idle blocks back to the device, highest first, while ``keep_bytes`` stay reserved (``aclrtMemPoolTrimTo``).

    Blocks that queued work may still use stay. Status 107000 for an unknown pool, 100000 for a negative size.
    """
    return _trim(card, packed(pool, *split_bytes(keep_bytes), site))


@verb
def mem_pool_set_release_threshold(
    card: CardState, pool: Number, threshold_bytes: Number, *, site: Site = None
) -> CardState:
    """Set what a pool keeps when a stream is synchronized (``aclrtMemPoolSetAttr``, attribute 4); status as trim."""
    return _set_threshold(card, packed(pool, *split_bytes(threshold_bytes), site))


@verb
def mem_pool_destroy(card: CardState, pool: Number, *, site: Site = None) -> CardState:
    """Destroy a pool and give all it holds back to the device (``aclrtMemPoolDestroy``).

    Status 107000 for an unknown pool, or while blocks of it are in use.
    """
    return _destroy(card, packed(pool, site))


def mem_pool_stats(card: CardState, pool: Number) -> PoolStats:
    """Return what a pool holds (``aclrtMemPoolGetAttr``); host-side, for one card.

    Raises:
      ValueError: The pool is unknown or destroyed, or the card has batch axes.
    """
    require_single(card)
    code, slot = find_pool(card, pool)
    if int(code):
        raise ValueError(f"pool = {int(pool)}: no such pool, or destroyed; pass what mem_pool_create returned")
    entry = np.asarray(card.pools, np.int64)[int(slot)] * GRANULE_BYTES
    used, idle = (np.asarray(mask) for mask in _members(card, slot))
    sizes = np.asarray(card.hbm.blocks, np.int64)[HeapEntry.SIZE] * GRANULE_BYTES
    return PoolStats(
        reserved_bytes=int(entry[Pool.RESERVED]),
        reserved_high_bytes=int(entry[Pool.RESERVED_HIGH]),
        used_bytes=int(entry[Pool.USED]),
        used_high_bytes=int(entry[Pool.USED_HIGH]),
        blocks_used=int(used.sum()),
        blocks_idle=int(idle.sum()),
        largest_idle_bytes=int(sizes[idle].max(initial=0)),
    )
