"""Segments of the caching allocator: how it gets memory from the device, and how it gives memory back."""

import dataclasses
from types import MappingProxyType

import numpy as np

from ascend_jax.runtime.allocator_options import UNLIMITED
from ascend_jax.runtime.caching_state import (
    SMALL_SIZE,
    Block,
    CachingAllocator,
    Segment,
    chunk_size,
    segment_size,
    up,
    with_blocks,
)
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.layout import GRANULE_BYTES
from ascend_jax.runtime.memory import MallocPolicy, free, free_part, free_workspace, grow, malloc_align32
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import forgiven
from ascend_jax.runtime.synchronize import synchronize_device


def new_block(
    cache: CachingAllocator, card: CardState, size: int, stream: int, site: Site
) -> tuple[CachingAllocator, CardState, Block | None]:
    """Make room for ``size``: a new segment, or after giving back what is cached; return the block or None."""
    cache, card = _collect_garbage(cache, card, site)
    cache, card, block = _grow(cache, card, size, stream, site)
    if block is None and cache.options.max_split_bytes != UNLIMITED:
        cache, card, is_enough = _release_oversize(cache, card, size, stream, site)
        if is_enough:
            cache, card, block = _grow(cache, card, size, stream, site)
    if block is None:
        cache, card = empty_cache(cache, card, site=site)
        cache = dataclasses.replace(cache, stats=cache.stats.counted("num_alloc_retries"))
        cache, card, block = _grow(cache, card, size, stream, site)
    return cache, card, block


def _grow(
    cache: CachingAllocator, card: CardState, size: int, stream: int, site: Site
) -> tuple[CachingAllocator, CardState, Block | None]:
    """Take device memory: a new segment, or more of the expandable one that can become longer."""
    length, is_small = segment_size(cache, size), size <= SMALL_SIZE
    if is_refused_by_fraction(cache, size):
        return cache, card, None
    if cache.options.expandable_segments:
        length = up(size, chunk_size(cache, is_small))
        last = last_block(cache, is_small, stream)
        if last is not None:
            cache, card, block = _expand(cache, card, size, last)
            if block is not None:
                return cache, card, block
    card, pointer = _place(card, length, cache.options.page_size_1g and not is_small, site)
    if not pointer:
        return cache, card, None
    block = Block(pointer * GRANULE_BYTES, length, stream, is_small)
    segments = {**cache.segments, block.address: Segment(length, is_small)}
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_device_alloc"))
    return with_blocks(cache, {**cache.blocks, block.address: block}, segments), card, block


def is_refused_by_fraction(cache: CachingAllocator, size: int) -> bool:
    """Whether a segment for a block of ``size`` would be more than ``per_process_memory_fraction`` allows."""
    is_limited = cache.options.per_process_memory_fraction < 1.0
    return is_limited and cache.reserved_bytes + segment_size(cache, size) > cache.allowed_bytes


def _expand(
    cache: CachingAllocator, card: CardState, size: int, last: Block
) -> tuple[CachingAllocator, CardState, Block | None]:
    """Make the segment that ends with ``last`` longer by what a block of ``size`` there needs, if there is room."""
    length = up(size - last.size if last.is_cached else size, chunk_size(cache, last.is_small))
    start = max(address for address in cache.segments if address <= last.address)
    card, is_longer = grow(card, start // GRANULE_BYTES, length)
    if not is_longer:
        return cache, card, None
    block = Block(last.end, length, last.stream, last.is_small)
    if last.is_cached:
        block = dataclasses.replace(last, size=last.size + length)
    segments = {**cache.segments, start: Segment(cache.segments[start].size + length, last.is_small)}
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_device_alloc"))
    return with_blocks(cache, {**cache.blocks, block.address: block}, segments), card, block


def _place(card: CardState, nbytes: int, is_giant: bool, site: Site) -> tuple[CardState, int]:
    """Allocate from the device; 0 and no error if that does not fit."""
    policy = MallocPolicy.HUGE1G_ONLY if is_giant else MallocPolicy.HUGE_FIRST
    before = np.asarray(card.status)  # the card may be given away
    card, pointer = malloc_align32(card, nbytes, policy, site=site)
    return (card if int(pointer) else forgiven(card, before)), int(pointer)


def last_block(cache: CachingAllocator, is_small: bool, stream: int) -> Block | None:
    """Return the last block of the expandable segment of a stream that can become longer, if there is one."""
    ours = [one for one in cache.blocks.values() if one.is_small == is_small and one.stream == stream]
    return ours[-1] if ours else None


def joined(cache: CachingAllocator, block: Block) -> CachingAllocator:
    """Return the allocator with a free block joined to its free neighbours."""
    block = dataclasses.replace(block, requested=0, site="", waits=())
    blocks = {**cache.blocks, block.address: block}
    order = sorted(blocks)
    index = order.index(block.address)
    for address in order[index + 1 : index + 2] + order[max(index - 1, 0) : index]:
        other = blocks[address]
        first, second = sorted((block, other), key=lambda one: one.address)
        touches = first.address + first.size == second.address and other.stream == block.stream
        if other.is_cached and touches and second.address not in cache.segments and other.is_small == block.is_small:
            del blocks[second.address]
            block = dataclasses.replace(first, size=first.size + second.size, age=0)
            blocks[block.address] = block
    return with_blocks(cache, blocks)


@verb
def empty_cache(cache: CachingAllocator, card: CardState, *, site: Site = None) -> tuple[CachingAllocator, CardState]:
    """Synchronize the device and give back every segment without a used part; of expandable ones, whole chunks.

    All workspaces (:func:`cache_workspace`) go too.
    """
    card = synchronize_device(card, site=site)
    for workspace in cache.workspaces.values():
        card = free_workspace(card, workspace.address // GRANULE_BYTES, site)
    cache = dataclasses.replace(cache, workspaces=MappingProxyType({}))
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_sync_all_streams"))
    for block in [one for one in cache.blocks.values() if one.waits]:
        cache = joined(cache, block)
    release = _release_chunks if cache.options.expandable_segments else _release
    blocks = cache.blocks.values() if cache.options.expandable_segments else _whole_cached(cache, 0)
    for block in [one for one in blocks if one.is_cached]:
        cache, card = release(cache, card, block, site)
    return cache, card


def _release(cache: CachingAllocator, card: CardState, block: Block, site: Site) -> tuple[CachingAllocator, CardState]:
    """Give back a cached block that is a whole segment."""
    blocks = {at: one for at, one in cache.blocks.items() if at != block.address}
    segments = {at: one for at, one in cache.segments.items() if at != block.address}
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_device_free"))
    return with_blocks(cache, blocks, segments), free(card, block.address // GRANULE_BYTES, site=site)


def _release_chunks(
    cache: CachingAllocator, card: CardState, block: Block, site: Site
) -> tuple[CachingAllocator, CardState]:
    """Give back the whole chunks of an expandable segment that lie in a cached block; the rest stays cached."""
    start = max(address for address in cache.segments if address <= block.address)
    segment, chunk = cache.segments[start], chunk_size(cache, block.is_small)
    first = start + up(block.address - start, chunk)
    end = start + (block.end - start) // chunk * chunk
    if first >= end:
        return cache, card
    card, is_freed = free_part(card, start // GRANULE_BYTES, first // GRANULE_BYTES, end - first, site)
    if not is_freed:
        return cache, card
    blocks = {at: one for at, one in cache.blocks.items() if at != block.address}
    for low, high in ((block.address, first), (end, block.end)):
        if low < high:
            blocks[low] = dataclasses.replace(block, address=low, size=high - low)
    segments = {at: one for at, one in cache.segments.items() if at != start}
    for low, high in ((start, first), (end, start + segment.size)):
        if low < high:
            segments[low] = Segment(high - low, block.is_small)
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_device_free"))
    return with_blocks(cache, blocks, segments), card


def _whole_cached(cache: CachingAllocator, least: int) -> list[Block]:
    """Return cached blocks of at least a size that are whole segments, smallest first."""
    found = [
        block
        for at, block in cache.blocks.items()
        if block.is_cached and block.size >= least and at in cache.segments and cache.segments[at].size == block.size
    ]
    return sorted(found, key=lambda block: (block.size, block.address))


def _release_oversize(
    cache: CachingAllocator, card: CardState, size: int, stream: int, site: Site
) -> tuple[CachingAllocator, CardState, bool]:
    """Give back cached blocks of the stream too large to be cut: one of ``size`` or more, or the largest until enough.

    Return whether it was enough.
    """
    limit = cache.options.max_split_bytes
    card = synchronize_device(card, site=site)
    wanted, is_small = max(size, limit), size <= SMALL_SIZE
    blocks = [one for one in _whole_cached(cache, limit) if one.stream == stream and one.is_small == is_small]
    enough = [block for block in blocks if block.size >= wanted]
    released = 0
    for block in enough[:1] or reversed(blocks):
        if released >= wanted:
            break
        cache, card = _release(cache, card, block, site)
        released += block.size
    return cache, card, released >= wanted


def _collect_garbage(cache: CachingAllocator, card: CardState, site: Site) -> tuple[CachingAllocator, CardState]:
    """Above the threshold, give back whole large blocks that have been cached for longest, until it is reached.

    Blocks of at least the mean age go together, however little is left to give back then.
    """
    threshold = int(cache.options.garbage_collection_threshold * cache.allowed_bytes)
    old = [block for block in _whole_cached(cache, 0) if not block.is_small]
    if not threshold or cache.reserved_bytes <= threshold or not old:
        return cache, card
    card = synchronize_device(card, site=site)
    while cache.reserved_bytes > threshold and old:
        mean = sum(block.age for block in old) / len(old)
        for block in [one for one in old if one.age >= mean]:
            cache, card = _release(cache, card, block, site)
        old = [block for block in old if block.age < mean]
    return cache, card
