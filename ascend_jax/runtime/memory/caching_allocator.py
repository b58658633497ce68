"""A caching allocator with the behaviour that users know from torch_npu: segments, splitting, streams, statistics.

It runs on the host, as in the framework, and is immutable: every call returns a new allocator and a new card. Pointers
are those of the card; sizes and addresses inside count bytes.
"""

import dataclasses
from types import MappingProxyType

import numpy as np

from ascend_jax.runtime import callsite
from ascend_jax.runtime.codes import AscendError, Code
from ascend_jax.runtime.edge import Site, require_whole, verb
from ascend_jax.runtime.handles import find_stream
from ascend_jax.runtime.layout import GRANULE_BYTES, Clock, Field, HeapWord, Stream
from ascend_jax.runtime.memory.allocator_options import parse_allocator_options
from ascend_jax.runtime.memory.allocator_stats import AllocatorStats
from ascend_jax.runtime.memory.caching_expandable import reach
from ascend_jax.runtime.memory.caching_reports import CacheOutOfMemory, shortage
from ascend_jax.runtime.memory.caching_segments import is_refused_by_fraction, new_block
from ascend_jax.runtime.memory.caching_state import (
    MIN_BLOCK,
    SMALL_SIZE,
    Block,
    CachingAllocator,
    joined,
    rounded_size,
    with_blocks,
)
from ascend_jax.runtime.state import CardState, require_single
from ascend_jax.runtime.synchronize import look


def caching_allocator(card: CardState, options: str = "", *, pad_bytes: int | None = None) -> CachingAllocator:
    """Return an empty allocator for a card.

    Args:
      card: One card.
      options: As ``PYTORCH_NPU_ALLOC_CONF``; see :func:`parse_allocator_options`.
      pad_bytes: Added to every size before rounding; by default ``malloc_pad_bytes`` of the chip (torch_npu counts
        ceil((n + 32) / 512) * 512 on A2, and ceil(n / 512) * 512 with the newest products and CANN).

    Raises:
      ValueError: The options cannot be read, or the card has batch axes.

    >>> import ascend_jax as aj
    >>> card = aj.init(aj.chip("Ascend910B2"))
    >>> cache, card, ptr = aj.cache_alloc(aj.caching_allocator(card), card, 4096)
    >>> stats = aj.memory_stats(cache)
    >>> stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"]
    (4608, 2097152)
    """
    require_single(card)
    chosen = parse_allocator_options(options)
    pad = int(card.chip["malloc_pad_bytes"]) if pad_bytes is None else pad_bytes
    fraction, whole = chosen.per_process_memory_fraction, _share_of(card, 1.0)
    cache = CachingAllocator(chosen, pad, whole, False, MappingProxyType({}), MappingProxyType({}), AllocatorStats())
    return cache if fraction is None else set_per_process_memory_fraction(cache, card, fraction)


def set_per_process_memory_fraction(cache: CachingAllocator, card: CardState, fraction: float) -> CachingAllocator:
    """Return the allocator allowed to reserve a share of the card's memory (``set_per_process_memory_fraction``).

    From then on ``garbage_collection_threshold`` applies: torch_npu collects only where a fraction was set, be it 1.0.
    What is reserved already stays; an allocation past the limit first gives back what is cached.

    Raises:
      TypeError: ``fraction`` is no float.
      ValueError: It is not from 0.0 to 1.0.

    >>> import ascend_jax as aj
    >>> card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0)
    >>> cache = aj.set_per_process_memory_fraction(aj.caching_allocator(card), card, 0.5)
    >>> cache.allowed_bytes >> 30
    32
    """
    if not isinstance(fraction, float):
        raise TypeError(f"fraction = {fraction!r}: must be a float from 0.0 to 1.0")
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction = {fraction}: must be from 0.0 to 1.0")
    return dataclasses.replace(cache, allowed_bytes=_share_of(card, fraction), is_limited=True)


def _share_of(card: CardState, fraction: float) -> int:
    return int(int(np.asarray(card.hbm.words, np.int64)[HeapWord.END]) * GRANULE_BYTES * fraction)


def _fits(cache: CachingAllocator, block: Block, size: int, stream: int) -> bool:
    """Whether a cached block may serve a size: its own stream, its own pool, and not too large to be cut."""
    if not block.is_cached or block.stream != stream or block.size < size or block.is_small != (size <= SMALL_SIZE):
        return False
    options = cache.options
    if size < options.max_split_bytes <= block.size:
        return False
    is_whole = size >= options.max_split_bytes
    return not (is_whole and block.size >= size + options.max_non_split_rounding_bytes)


def _should_split(cache: CachingAllocator, block: Block, size: int) -> bool:
    rest = block.size - size
    if block.is_small or cache.options.expandable_segments:
        return rest >= MIN_BLOCK
    return size < cache.options.max_split_bytes and rest > SMALL_SIZE


def _best(cache: CachingAllocator, card: CardState, size: int, stream: int) -> Block | None:
    """Return the smallest block that fits, the lowest of equal ones.

    In expandable segments a larger one is taken as long as it could grow to less than the one before.
    """
    fitting = [block for block in cache.blocks.values() if _fits(cache, block, size, stream)]
    fitting.sort(key=lambda block: (block.size, block.address))
    if not cache.options.expandable_segments:
        return next(iter(fitting), None)
    reaches = [reach(cache, card, block) for block in fitting]
    last = next((at for at in range(len(fitting) - 1) if reaches[at + 1] >= reaches[at]), len(fitting) - 1)
    return fitting[last] if fitting else None


def _older(cache: CachingAllocator, is_small: bool) -> CachingAllocator:
    """Return the allocator after one more search of a pool; ages matter to garbage collection only."""
    if not cache.options.garbage_collection_threshold or not cache.is_limited:
        return cache
    aged = {
        at: dataclasses.replace(one, age=one.age + 1) if one.is_cached and one.is_small == is_small else one
        for at, one in cache.blocks.items()
    }
    return dataclasses.replace(cache, blocks=MappingProxyType(aged))


@verb
def cache_alloc(
    cache: CachingAllocator, card: CardState, nbytes: int, stream: int = 0, *, site: Site = None
) -> tuple[CachingAllocator, CardState, int]:
    """Allocate from the cache for use in ``stream``.

    The smallest cached block of that stream that is large enough serves, the lowest of equal ones; else a segment is
    allocated from the device; else what is cached is given back to the device and it is tried again.

    Returns:
      The allocator, the card and a pointer; 0 for 0 bytes.

    Raises:
      ValueError: ``nbytes`` is negative.
      TypeError: ``nbytes`` is no whole number.
      AscendError: 107003 for an unknown stream.
      CacheOutOfMemory: 207001, the memory is not there even now that all that could be was given back (or 900004, the
        card's ``max_blocks`` are in use); ``report`` says what was requested, free, cached and in use by whom. Go on
        with ``cache`` and ``card`` of the exception; those passed in are as they were, unless the card was made with
        ``donate=True``.
    """
    if isinstance(nbytes, bool | np.bool_) or not isinstance(nbytes, int | np.integer):
        raise TypeError(f"nbytes = {nbytes!r}: must be a whole number of bytes")
    if nbytes < 0:
        raise ValueError(f"nbytes = {nbytes}: must be 0 or more")
    code, slot = find_stream(card, stream)
    if int(code):
        raise AscendError(int(code), f"stream {stream}")
    if nbytes == 0:
        return cache, card, 0
    nbytes, site_text = int(nbytes), callsite.text(int(site or 0))
    cache, card = process_events(cache, card)
    size = rounded_size(cache, nbytes)
    cache = _older(cache, size <= SMALL_SIZE)
    block = _best(cache, card, size, int(slot))
    if block is None:
        cache, card, block = new_block(cache, card, size, int(slot), site)
    if block is None:
        stats = cache.stats.counted("num_ooms")
        if cache.options.throw_on_npumalloc_oom and is_refused_by_fraction(cache, size):
            stats = stats.counted("num_oom_rejections")
        cache = dataclasses.replace(cache, stats=stats)
        raise CacheOutOfMemory(shortage(cache, card, nbytes, site_text), cache, card)
    blocks = dict(cache.blocks)
    if _should_split(cache, block, size):
        at = block.address + size
        blocks[at] = dataclasses.replace(block, address=at, size=block.size - size, age=0)
        block = dataclasses.replace(block, size=size)
    blocks[block.address] = dataclasses.replace(block, requested=nbytes, site=site_text, age=0)
    return with_blocks(cache, blocks), card, block.address // GRANULE_BYTES


@verb
def cache_free(
    cache: CachingAllocator, card: CardState, pointer: int, *, site: Site = None
) -> tuple[CachingAllocator, CardState]:
    """Give a block back to the cache, at once for its own stream.

    Other streams that were recorded on it (:func:`record_stream`) keep it until what is queued in them now is done.
    The null pointer, which an allocation of 0 bytes gives, is freed without effect.

    Raises:
      AscendError: 107000 for what is no block in use.
    """
    if pointer == 0:
        return cache, card
    block = _in_use(cache, pointer)
    marks = tuple((stream, int(card.clock[Clock.ENQUEUED])) for stream in block.streams)
    freed = dataclasses.replace(block, streams=(), waits=marks)
    cache = with_blocks(cache, {**cache.blocks, block.address: freed})
    return (cache if marks else joined(cache, freed)), card


def _in_use(cache: CachingAllocator, pointer: int) -> Block:
    require_whole(pointer=pointer)
    block = cache.blocks.get(int(pointer) * GRANULE_BYTES)
    if block is None or not block.is_used:
        raise AscendError(Code.RT_PARAM_INVALID, f"pointer {int(pointer)} is no block of the allocator in use")
    return block


def record_stream(cache: CachingAllocator, card: CardState, pointer: int, stream: int) -> CachingAllocator:
    """Say that work in ``stream`` uses a block too, so that freeing it waits for what is queued there by then.

    Raises:
      AscendError: 107000 for what is no block in use, 107003 for an unknown stream.
    """
    block = _in_use(cache, pointer)
    code, slot = find_stream(card, stream)
    if int(code):
        raise AscendError(int(code), f"stream {stream}")
    if int(slot) == block.stream or int(slot) in block.streams:
        return cache
    used = dataclasses.replace(block, streams=(*block.streams, int(slot)))
    return dataclasses.replace(cache, blocks=MappingProxyType({**cache.blocks, block.address: used}))


def process_events(cache: CachingAllocator, card: CardState) -> tuple[CachingAllocator, CardState]:
    """Cache what was freed while other streams used it, if the host can see that those streams are past it."""
    waiting = [block for block in cache.blocks.values() if block.waits]
    if not waiting:
        return cache, card
    card = look(card, 0)
    streams = np.asarray(card.streams)
    oldest = np.asarray(card.table.fields)[streams[:, Stream.HEAD], Field.SEQUENCE]
    for block in waiting:
        if all(streams[slot, Stream.PENDING] == 0 or oldest[slot] >= mark for slot, mark in block.waits):
            cache = joined(cache, block)
    return cache, card
