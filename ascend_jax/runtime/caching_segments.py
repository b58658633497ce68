"""Segments of the caching allocator: how it gets memory from the device, and how it gives memory back."""

import dataclasses

from ascend_jax.runtime.allocator_options import UNLIMITED
from ascend_jax.runtime.caching_state import (
    SMALL_SIZE,
    Block,
    CachingAllocator,
    Segment,
    segment_size,
    with_blocks,
)
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.layout import GRANULE_BYTES
from ascend_jax.runtime.memory import MallocPolicy, free, malloc_align32, malloc_at
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import clear_error, first_failure, last_code
from ascend_jax.runtime.synchronize import synchronize_device


def new_block(
    cache: CachingAllocator, card: CardState, size: int, stream: int, site: Site
) -> tuple[CachingAllocator, CardState, Block | None]:
    """Make room for ``size``: a new segment, or after giving back what is cached; return the block or None."""
    cache, card = _collect_garbage(cache, card, site)
    cache, card, block = _grow(cache, card, size, stream, site)
    if block is not None:
        return cache, card, block
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_alloc_retries"))
    cache, card = _release_oversize(cache, card, size, site)
    cache, card, block = _grow(cache, card, size, stream, site)
    if block is None:
        cache, card = empty_cache(cache, card, site=site)
        cache, card, block = _grow(cache, card, size, stream, site)
    return cache, card, block


def _grow(
    cache: CachingAllocator, card: CardState, size: int, stream: int, site: Site
) -> tuple[CachingAllocator, CardState, Block | None]:
    """Allocate a segment from the device; an expandable one first tries to become longer where it ends."""
    is_small, is_giant = size <= SMALL_SIZE, cache.options.page_size_1g and size > SMALL_SIZE
    tail = _tail(cache, is_small, stream) if cache.options.expandable_segments else None
    for base in [tail, None] if tail else [None]:
        length = segment_size(cache, size) if base is None else segment_size(cache, size - base.size)
        if cache.reserved_bytes + length > cache.allowed_bytes:
            continue
        card, pointer = _place(card, length, is_giant, base, site)
        if not pointer:
            continue
        address = pointer * GRANULE_BYTES
        block = Block(address, length, stream, is_small)
        if base is not None:
            block = dataclasses.replace(base, size=base.size + length)
        cache = dataclasses.replace(cache, stats=cache.stats.counted("num_device_alloc"))
        segments = {**cache.segments, address: Segment(length, is_small)}
        return with_blocks(cache, {**cache.blocks, block.address: block}, segments), card, block
    return cache, card, None


def _place(card: CardState, nbytes: int, is_giant: bool, base: Block | None, site: Site) -> tuple[CardState, int]:
    """Allocate from the device, right behind ``base`` if that is given; 0 and no error if that does not fit."""
    if base is not None:
        card, pointer = malloc_at(card, (base.address + base.size) // GRANULE_BYTES, nbytes, site)
        return card, int(pointer)
    policy = MallocPolicy.HUGE1G_ONLY if is_giant else MallocPolicy.HUGE_FIRST
    had_failed = bool(int(first_failure(card)))
    card, pointer = malloc_align32(card, nbytes, policy, site=site)
    if int(last_code(card)) != Code.SUCCESS and not had_failed:
        card = clear_error(card)
    return card, int(pointer)


def _tail(cache: CachingAllocator, is_small: bool, stream: int) -> Block | None:
    """Return the cached block at the end of the stream's expandable segment, if there is one."""
    ours = [one for one in cache.blocks.values() if one.is_small == is_small and one.stream == stream]
    return ours[-1] if ours and ours[-1].is_cached else None


def joined(cache: CachingAllocator, block: Block) -> CachingAllocator:
    """Return the allocator with a free block joined to its free neighbours."""
    block = dataclasses.replace(block, waits=())
    blocks = {**cache.blocks, block.address: block}
    order = sorted(blocks)
    index = order.index(block.address)
    for address in order[index + 1 : index + 2] + order[max(index - 1, 0) : index]:
        other = blocks[address]
        first, second = sorted((block, other), key=lambda one: one.address)
        touches = first.address + first.size == second.address and other.stream == block.stream
        crosses = second.address in cache.segments and not cache.options.expandable_segments
        if other.is_cached and touches and not crosses and other.is_small == block.is_small:
            del blocks[second.address]
            block = dataclasses.replace(first, size=first.size + second.size, age=0)
            blocks[block.address] = block
    return with_blocks(cache, blocks)


def _synchronized(cache: CachingAllocator, card: CardState, site: Site) -> tuple[CachingAllocator, CardState]:
    """Wait for the device, because running work may still use what is going to be given back to it."""
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_sync_all_streams"))
    return cache, synchronize_device(card, site=site)


@verb
def empty_cache(cache: CachingAllocator, card: CardState, *, site: Site = None) -> tuple[CachingAllocator, CardState]:
    """Synchronize the device and give every segment back that nobody uses a part of."""
    cache, card = _synchronized(cache, card, site)
    for block in [one for one in cache.blocks.values() if one.waits]:
        cache = joined(cache, block)
    for address, segment in list(cache.segments.items()):
        cache, card = _release(cache, card, address, segment, site)
    return cache, card


def _release(
    cache: CachingAllocator, card: CardState, address: int, segment: Segment, site: Site
) -> tuple[CachingAllocator, CardState]:
    """Give one segment back if a cached block covers it; what the block has on either side stays cached."""
    end = address + segment.size
    covers = [b for b in cache.blocks.values() if b.is_cached and b.address <= address and end <= b.address + b.size]
    if not covers:
        return cache, card
    block, blocks = covers[0], dict(cache.blocks)
    del blocks[block.address]
    if block.address < address:
        blocks[block.address] = dataclasses.replace(block, size=address - block.address)
    if end < block.address + block.size:
        blocks[end] = dataclasses.replace(block, address=end, size=block.address + block.size - end)
    segments = {at: one for at, one in cache.segments.items() if at != address}
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_device_free"))
    return with_blocks(cache, blocks, segments), free(card, address // GRANULE_BYTES, site=site)


def _whole_cached(cache: CachingAllocator, least: int) -> list[Block]:
    """Return cached blocks of at least a size that are whole segments, smallest first."""
    found = [
        block
        for at, block in cache.blocks.items()
        if block.is_cached and block.size >= least and at in cache.segments and cache.segments[at].size == block.size
    ]
    return sorted(found, key=lambda block: (block.size, block.address))


def _release_oversize(
    cache: CachingAllocator, card: CardState, size: int, site: Site
) -> tuple[CachingAllocator, CardState]:
    """Give back cached blocks too large to be cut: one that is enough for ``size``, or the largest until they are."""
    limit = cache.options.max_split_bytes
    if limit == UNLIMITED:
        return cache, card
    wanted, blocks = max(size, limit), _whole_cached(cache, limit)
    enough = [block for block in blocks if block.size >= wanted]
    released = 0
    if blocks:
        cache, card = _synchronized(cache, card, site)
    for block in enough[:1] or reversed(blocks):
        if released >= wanted:
            break
        cache, card = _release(cache, card, block.address, cache.segments[block.address], site)
        released += block.size
    return cache, card


def _collect_garbage(cache: CachingAllocator, card: CardState, site: Site) -> tuple[CachingAllocator, CardState]:
    """Above the threshold, give back whole large blocks that have been cached for longest, until it is reached."""
    threshold, is_safe = cache.options.garbage_collection_threshold * cache.allowed_bytes, False
    while 0 < threshold < cache.reserved_bytes:
        old = [block for block in _whole_cached(cache, SMALL_SIZE + 1) if not block.is_small]
        if not old:
            break
        if not is_safe:
            cache, card = _synchronized(cache, card, site)
            is_safe = True
        mean = sum(block.age for block in old) / len(old)
        for block in sorted(old, key=lambda block: (-block.age, block.address)):
            if block.age >= mean and cache.reserved_bytes > threshold:
                cache, card = _release(cache, card, block.address, cache.segments[block.address], site)
    return cache, card
