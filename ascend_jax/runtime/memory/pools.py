"""Memory pools: device memory that is allocated and given back in the order of streams (``aclrtMemPool...``).

A pool takes blocks of whole 2 MiB pages from device memory and keeps those that are given back. A block that is given
back in a stream is idle: an allocation may take it when everything that was queued in that stream before is done, or
is bound to be done before the allocation's own stream gets there.
"""

import dataclasses
import enum

import jax
import jax.numpy as jnp

from ascend_jax.runtime import layout, status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, enqueue
from ascend_jax.runtime.edge import Site, concrete, packed, stage, verb
from ascend_jax.runtime.freed import note_freed
from ascend_jax.runtime.handles import find_stream, free_slot, handle_of, has_context, vacate
from ascend_jax.runtime.heap import FAR, block_at, change, join, row_at, split
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import (
    HUGE_PAGE,
    POOL_SHIFT,
    Clock,
    Field,
    HeapEntry,
    HeapFlag,
    Kind,
    Pool,
    Stream,
)
from ascend_jax.runtime.memory.allocation import allocate, new_entry
from ascend_jax.runtime.pool_blocks import (
    counted,
    find_pool,
    idle_flags,
    in_pages,
    is_followed,
    last_before,
    members,
    pool_of,
    require_pools,
    settled,
    stream_of,
    without_condemned,
    without_surplus,
)
from ascend_jax.runtime.ranges import address, split_bytes
from ascend_jax.runtime.refusals import pointer_given, size_given, wrong_size_given
from ascend_jax.runtime.rows import Number, get_row, put_if, with_entries
from ascend_jax.runtime.shortages import with_request
from ascend_jax.runtime.state import CardState, Heap
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import make_room


class PoolReuse(enum.IntFlag):
    """When a pool may hand out again what another stream gave back (``aclrtMemPoolAttr`` 1 to 3)."""

    FOLLOW_EVENTS = 1  # the allocating stream waits for an event recorded there afterwards
    OPPORTUNISTIC = 2  # the host has seen that stream get past it
    INTERNAL = 4  # always: if nothing else serves, the pool lets the allocating stream wait for that stream


_ALL_REUSE = int(PoolReuse.FOLLOW_EVENTS | PoolReuse.OPPORTUNISTIC | PoolReuse.INTERNAL)


@stage
def _create(card: CardState, request: jax.Array) -> tuple:
    whole, rest, most, most_rest, threshold, threshold_rest, reuse, site = request
    is_free, slot = free_slot(card.pools[:, Pool.ALIVE])
    size, limit, kept = in_pages(whole, rest), in_pages(most, most_rest), in_pages(threshold, threshold_rest)
    limit = jnp.where(limit == 0, FAR, limit)
    code = first_code(
        (~has_context(card), Code.RT_CONTEXT_NULL),
        ((whole < 0) | (most < 0) | (threshold < 0) | (size > limit), Code.INVALID_PARAM),
        ((reuse < 0) | (reuse > _ALL_REUSE), Code.INVALID_PARAM),
        (~is_free, Code.OBJECT_TABLE_FULL),
    )
    flags = idle_flags(int(HeapFlag.POOL) | (slot << POOL_SHIFT), card.streams.shape[0] - 1)
    tries: list[tuple[jax.Array, Number]] = [(size, HUGE_PAGE)]
    hbm, _, code = allocate(card, card.hbm, (whole, rest), tries, code, site, flags, is_wanted=size > 0)
    ok = code == Code.SUCCESS
    generation = get_row(card.pools, slot)[Pool.GENERATION]
    entry = {Pool.ALIVE: 1, Pool.GENERATION: generation, Pool.LIMIT: limit, Pool.THRESHOLD: kept, Pool.REUSE: reuse}
    pools = put_if(ok, card.pools, slot, with_entries(jnp.zeros(len(Pool), jnp.int32), entry))
    card = counted(dataclasses.replace(card, hbm=hbm, pools=pools), slot, ok)
    card = spend(card, card.chip["host_malloc_ns"])
    sizes = [(threshold, threshold_rest), (most, most_rest), (whole, rest)]
    wrong = [threshold < 0, most < 0, (whole < 0) | ((most >= 0) & (size > limit))]
    card = status.note(card, code, site, given=wrong_size_given(sizes, wrong))
    return card, jnp.where(ok, handle_of(slot, generation), layout.NONE)


def _with_wait(
    card: CardState, slot: Number, last: jax.Array, is_wanted: jax.Array, code: jax.Array, site: Number
) -> tuple[CardState, jax.Array]:
    """Let a stream wait for command ``last``, unless that is NONE, if it is wanted; return the card and the code."""
    is_wanted &= last != layout.NONE
    fields: dict[Field, Number] = {Field.OBJECT: layout.NONE, Field.DEPENDS: last, Field.SITE: site}
    skipped = jnp.where(is_wanted, Code.SUCCESS, layout.NONE)
    card, queued = enqueue(card, Command(Kind.EVENT_WAIT, slot, fields=fields), skipped)
    return card, jnp.where(is_wanted, queued, code)


@stage(static=("may_wait",))
def _alloc(card: CardState, request: jax.Array, *, may_wait: bool) -> tuple:
    pool, whole, rest, stream, site = request
    code, slot = find_stream(card, stream)
    pool_code, pool_slot = find_pool(card, pool)
    size = in_pages(whole, rest)
    is_wrong = (whole < 0) | (whole + rest <= 0)
    code = first_failing(code, pool_code, first_code((is_wrong, Code.INVALID_PARAM)))
    entry = get_row(card.pools, pool_slot)
    may_look = ((entry[Pool.REUSE] & PoolReuse.OPPORTUNISTIC) != 0) & (code == Code.SUCCESS)
    card = settled(card, members(card, pool_slot)[1] & may_look)
    hbm, (_, idle) = card.hbm, members(card, pool_slot)
    given_in = stream_of(hbm.blocks[HeapEntry.FLAGS])
    usable = (given_in == slot) | (given_in == card.streams.shape[0] - 1)
    usable |= ((entry[Pool.REUSE] & PoolReuse.FOLLOW_EVENTS) != 0) & is_followed(card, slot)
    fits = idle & usable & (hbm.blocks[HeapEntry.SIZE] >= size)
    if may_wait:
        is_captured = get_row(card.streams, slot)[Stream.CAPTURE] != layout.Capture.NONE
        waits = ((entry[Pool.REUSE] & PoolReuse.INTERNAL) != 0) & ~fits.any() & ~is_captured
        fits |= waits & idle & (hbm.blocks[HeapEntry.SIZE] >= size)
    best = jnp.where(fits, hbm.blocks[HeapEntry.SIZE], FAR).min()
    row = jnp.argmax(fits & (hbm.blocks[HeapEntry.SIZE] == best))
    if may_wait:
        is_wait = waits & fits.any() & (code == Code.SUCCESS)
        card, code = _with_wait(card, slot, last_before(card, block_at(hbm, row)), is_wait, code, site)
    grows = ~fits.any()
    is_limited = grows & (size > entry[Pool.LIMIT] - entry[Pool.RESERVED])
    limit = jnp.where(is_limited & (entry[Pool.LIMIT] != FAR), entry[Pool.LIMIT], 0)
    code = first_failing(code, first_code((is_limited, Code.MEMORY_ALLOCATION)))
    flags, start = int(HeapFlag.POOL) | (pool_slot << POOL_SHIFT), block_at(hbm, row)[HeapEntry.START]
    tries: list[tuple[jax.Array, Number]] = [(size, HUGE_PAGE)]
    numbers = (limit, entry[Pool.RESERVED])
    hbm, first, code = allocate(card, hbm, (whole, rest), tries, code, site, flags, is_wanted=grows, pool=numbers)
    ok = code == Code.SUCCESS
    facts = new_entry(card, start, size, (whole, rest), site, flags)
    columns = (HeapEntry.ASKED, HeapEntry.REST, HeapEntry.SITE, HeapEntry.BORN, HeapEntry.FLAGS)
    hbm = split(hbm, row, size, {column: facts[column] for column in columns}, ok & ~grows)
    card = counted(dataclasses.replace(card, hbm=hbm), pool_slot, ok)
    card = spend(card, jnp.where(grows, card.chip["host_malloc_ns"], card.chip["host_event_ns"]))
    return status.note(card, code, site, stream, given=size_given(whole, rest)), jnp.where(ok & ~grows, start, first)


@stage
def _free(card: CardState, request: jax.Array) -> CardState:
    pointer, stream, site = request
    code, slot = find_stream(card, stream)
    found, row = row_at(card.hbm, pointer)
    entry = block_at(card.hbm, row)
    flags = entry[HeapEntry.FLAGS]
    is_ours = (flags & (HeapFlag.POOL | HeapFlag.IDLE)) == HeapFlag.POOL
    # what is not from a pool is freed by a host function of the stream (CANN, aclrtMemPoolFreeAsync)
    is_plain = (flags & (HeapFlag.POOL | HeapFlag.PHYSICAL | HeapFlag.RUNTIME)) == 0
    refused = ~found | ~(is_ours | is_plain)
    wrong = first_code((pointer == layout.NULL, Code.INVALID_PARAM), (refused, Code.RT_PARAM_INVALID))
    code = first_failing(code, wrong)
    ok, pool_slot = code == Code.SUCCESS, jnp.minimum(pool_of(flags), card.pools.shape[0] - 1)
    card = note_freed(card, entry, site, ok, slot)
    kept = jnp.where(is_plain, flags | int(HeapFlag.POOL | HeapFlag.CONDEMNED), flags)
    given: dict[HeapEntry, Number] = {HeapEntry.ASKED: 0, HeapEntry.REST: 0, HeapEntry.FLAGS: idle_flags(kept, slot)}
    hbm = change(card.hbm, row, given | {HeapEntry.BORN: card.clock[Clock.ENQUEUED]}, ok)
    hbm = join(hbm, (hbm.blocks[HeapEntry.FLAGS] & HeapFlag.IDLE) != 0)
    card = counted(dataclasses.replace(card, hbm=hbm), pool_slot, ok)
    card = spend(card, card.chip["host_event_ns"])
    return status.note(card, code, site, stream, given=pointer_given(pointer))


@stage
def _trim(card: CardState, request: jax.Array) -> CardState:
    pool, whole, rest, site = request
    code, slot = find_pool(card, pool)
    code = first_failing(code, first_code((whole < 0, Code.INVALID_PARAM)))
    ok = code == Code.SUCCESS
    card = settled(card, members(card, slot)[1] & ok)
    card = without_surplus(card, slot, whole + (rest > 0), ok)
    card = spend(card, card.chip["host_free_ns"])
    return answer(card, code, site, layout.NONE, given=size_given(whole, rest))[0]


@stage
def _set_threshold(card: CardState, request: jax.Array) -> CardState:
    pool, whole, rest, site = request
    code, slot = find_pool(card, pool)
    code = first_failing(code, first_code((whole < 0, Code.INVALID_PARAM)))
    entry = with_entries(get_row(card.pools, slot), {Pool.THRESHOLD: in_pages(whole, rest)})
    pools = put_if(code == Code.SUCCESS, card.pools, slot, entry)
    card = dataclasses.replace(card, pools=pools)
    return answer(card, code, site, layout.NONE, given=size_given(whole, rest))[0]


@stage
def _destroy(card: CardState, request: jax.Array) -> CardState:
    pool, site = request
    code, slot = find_pool(card, pool)
    used, idle = members(card, slot)
    code = first_failing(code, first_code((used.any(), Code.RT_PARAM_INVALID)))
    ok = code == Code.SUCCESS
    flags = card.hbm.blocks[HeapEntry.FLAGS]
    flags = jnp.where(idle & ok, flags | HeapFlag.CONDEMNED, flags)
    blocks = with_entries(card.hbm.blocks.T, {HeapEntry.FLAGS: flags}).T
    card = without_condemned(dataclasses.replace(card, hbm=Heap(blocks, card.hbm.words)))
    card = counted(card, slot, ok)
    pools = vacate(card.pools, (jnp.arange(len(card.pools)) == slot) & ok, {}, Pool)
    card = spend(dataclasses.replace(card, pools=pools), card.chip["host_free_ns"])
    return answer(card, code, site, layout.NONE)[0]


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
    require_pools(card)
    sizes = [part for size in (reserved_bytes, max_bytes, release_threshold_bytes) for part in split_bytes(size)]
    card, pool = _create(card, packed(*sizes, int(reuse) if isinstance(reuse, PoolReuse) else reuse, site))
    return with_request(card, reserved_bytes), pool


@verb
def mem_pool_alloc(
    card: CardState, pool: Number, nbytes: Number, stream: Number, *, site: Site = None
) -> tuple[CardState, jax.Array]:
    """Allocate from a pool, for work queued in ``stream`` from now on (``aclrtMemPoolMallocAsync``).

    Takes the smallest idle block that is large enough and that ``stream`` may use, at the lowest address, and cuts it
    to whole 2 MiB: the host spends ``host_event_ns``. With ``PoolReuse.INTERNAL`` that of another stream serves next,
    and ``stream`` is made to wait for what was queued there before. Else the pool takes device memory, and the host
    spends ``host_malloc_ns``.

    Returns:
      The card and a pointer, 0 on failure. Status 107003 for an unknown stream, 107000 for an unknown pool, 100000 for
      a size of 0 or less, 207001 if the pool may not or cannot grow; of a wait, the errors of the stream and 900001.
    """
    known = concrete(card.pools[..., Pool.REUSE])
    may_wait = known is None or bool((known & int(PoolReuse.INTERNAL)).any())
    card = make_room(card, site, stream) if may_wait else card
    card, pointer = _alloc(card, packed(pool, *split_bytes(nbytes), stream, site), may_wait=may_wait)
    return with_request(card, nbytes), pointer


@verb
def mem_pool_free(card: CardState, pointer: Number, stream: Number, *, site: Site = None) -> CardState:
    """Give a block back to its pool, after the work queued in ``stream`` so far (``aclrtMemPoolFreeAsync``).

    A block of ``malloc`` is freed in the order of the stream: nothing may use it from now on, and its memory is free at
    the first synchronization after the stream is past what was queued there.

    Status 107003 for an unknown stream, 100000 for the null pointer, 107000 for what is no block in use.
    """
    require_pools(card)
    return _free(card, packed(address(pointer), stream, site))


@verb
def mem_pool_trim(card: CardState, pool: Number, keep_bytes: Number = 0, *, site: Site = None) -> CardState:
    """Give idle memory back to the device, highest first, while ``keep_bytes`` stay reserved (``aclrtMemPoolTrimTo``).

    Whole 2 MiB go, so a block may be cut. Blocks that queued work may still use stay.

    Status 107000 for an unknown pool, 100000 for a negative size.
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

    Idle blocks that queued work may still use go at the first synchronization after that work is done.

    Status 107000 for an unknown pool, or while blocks of it are in use.
    """
    return _destroy(card, packed(pool, site))
