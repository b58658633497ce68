"""Segments of the caching allocator: how it gets memory from the device, and how it gives memory back."""

import dataclasses
from types import MappingProxyType

import numpy as np

from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.layout import GRANULE_BYTES
from ascend_jax.runtime.memory.allocation import MallocPolicy, free, free_workspace, malloc_align32
from ascend_jax.runtime.memory.allocator_options import UNLIMITED
from ascend_jax.runtime.memory.caching_expandable import expanded, released
from ascend_jax.runtime.memory.caching_state import (
    SMALL_SIZE,
    Block,
    CachingAllocator,
    Segment,
    joined,
    segment_size,
    with_blocks,
)
from ascend_jax.runtime.memory.synced_free import synced
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import forgiven


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
    """Take device memory: a new segment, or more behind the addresses of an expandable one."""
    length, is_small = segment_size(cache, size), size <= SMALL_SIZE
    if is_refused_by_fraction(cache, size):
        return cache, card, None
    if cache.options.expandable_segments:
        return expanded(cache, card, size, stream, site)
    card, pointer = _place(card, length, cache.options.page_size_1g and not is_small, site)
    if not pointer:
        return cache, card, None
    block = Block(pointer * GRANULE_BYTES, length, stream, is_small)
    segments = {**cache.segments, block.address: Segment(length, is_small)}
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_device_alloc"))
    return with_blocks(cache, {**cache.blocks, block.address: block}, segments), card, block


def is_refused_by_fraction(cache: CachingAllocator, size: int) -> bool:
    """Whether a segment for a block of ``size`` would be more than a fraction that was set allows."""
    return cache.is_limited and cache.reserved_bytes + segment_size(cache, size) > cache.allowed_bytes


def _place(card: CardState, nbytes: int, is_giant: bool, site: Site) -> tuple[CardState, int]:
    """Allocate from the device; 0 and no error if that does not fit."""
    policy = MallocPolicy.HUGE1G_ONLY if is_giant else MallocPolicy.HUGE_FIRST
    before = np.asarray(card.status)  # the card may be given away
    card, pointer = malloc_align32(card, nbytes, policy, site=site)
    return (card if int(pointer) else forgiven(card, before)), int(pointer)


@verb
def empty_cache(cache: CachingAllocator, card: CardState, *, site: Site = None) -> tuple[CachingAllocator, CardState]:
    """Synchronize the device and give back every segment without a used part; of expandable ones, whole chunks.

    All workspaces (:func:`cache_workspace`) go too. Status as :func:`synchronize_device`, and nothing is given back if
    that fails.
    """
    card, is_synced = synced(card, site)
    if not is_synced:
        return cache, card
    for workspace in cache.workspaces.values():
        card = free_workspace(card, workspace.address // GRANULE_BYTES, site)
    cache = dataclasses.replace(cache, workspaces=MappingProxyType({}))
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_sync_all_streams"))
    for block in [one for one in cache.blocks.values() if one.waits]:
        cache = joined(cache, block)
    release = released if cache.options.expandable_segments else _release
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
    card, is_synced = synced(card, site)
    if not is_synced:
        return cache, card, False
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

    Only where a fraction of the memory was set (torch_npu, ``set_fraction``).
    Blocks of at least the mean age go together, however little is left to give back then.
    """
    threshold = int(cache.options.garbage_collection_threshold * cache.allowed_bytes)
    old = [block for block in _whole_cached(cache, 0) if not block.is_small]
    if not threshold or not cache.is_limited or cache.reserved_bytes <= threshold or not old:
        return cache, card
    card, is_synced = synced(card, site)
    while is_synced and cache.reserved_bytes > threshold and old:
        mean = sum(block.age for block in old) / len(old)
        for block in [one for one in old if one.age >= mean]:
            cache, card = _release(cache, card, block, site)
        old = [block for block in old if block.age < mean]
    return cache, card
