"""A caching allocator with the behaviour that users know from torch_npu: segments, splitting, streams, statistics.

It runs on the host, as in the framework, and is immutable: every call returns a new allocator and a new card. Pointers
are those of the card; sizes and addresses inside count bytes.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ascend_jax.runtime import callsite
from ascend_jax.runtime.allocator_options import MIB, UNLIMITED, AllocatorOptions, parse_allocator_options
from ascend_jax.runtime.allocator_stats import AllocatorStats, Held
from ascend_jax.runtime.codes import AscendError, Code
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.handles import find_stream
from ascend_jax.runtime.layout import GRANULE_BYTES, Clock, Field, HeapWord, Stream
from ascend_jax.runtime.memory import MallocPolicy, free, malloc_align32
from ascend_jax.runtime.memory_info import OutOfMemory, Owner, memory_report
from ascend_jax.runtime.state import CardState, require_single
from ascend_jax.runtime.status import clear_error, first_failure, last_code
from ascend_jax.runtime.synchronize import look, synchronize_device

# torch_npu, NPUCachingAllocator
MIN_BLOCK = 512
SMALL_SIZE = MIB
SMALL_SEGMENT = 2 * MIB
MIN_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB
GIANT = 1 << 30


@dataclasses.dataclass(frozen=True)
class Block:
    """Bytes of a segment, in use or cached."""

    address: int  # byte
    size: int
    stream: int
    is_small: bool
    requested: int = 0  # bytes asked for; 0 = cached
    site: str = ""  # of the allocation
    streams: tuple[int, ...] = ()  # others that use it (record_stream)
    waits: tuple[tuple[int, int], ...] = ()  # (stream, commands enqueued when it was freed): freed, but not yet cached
    age: int = 0  # allocations since it was cached

    @property
    def is_cached(self) -> bool:
        """Whether anybody may have it."""
        return not self.requested and not self.waits


class Segment(NamedTuple):
    """What one allocation from the device gave; an expandable segment is several that touch."""

    size: int
    is_small: bool


@dataclasses.dataclass(frozen=True)
class CachingAllocator:
    """The state of the allocator of one card. Made by :func:`caching_allocator`."""

    options: AllocatorOptions
    pad_bytes: int  # added to every size: 32 on products whose runtime adds them, 0 on newer ones
    allowed_bytes: int  # most that it may reserve
    blocks: Mapping[int, Block]  # by address, sorted
    segments: Mapping[int, Segment]  # by address, sorted
    stats: AllocatorStats

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments.values())


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
    words = np.asarray(card.hbm.words, np.int64)
    allowed = int(int(words[HeapWord.END]) * GRANULE_BYTES * chosen.per_process_memory_fraction)
    pad = int(card.chip["malloc_pad_bytes"]) if pad_bytes is None else pad_bytes
    return CachingAllocator(chosen, pad, allowed, MappingProxyType({}), MappingProxyType({}), AllocatorStats())


def rounded_size(cache: CachingAllocator, nbytes: int) -> int:
    """Return the bytes that a block of ``nbytes`` counts."""
    size, divisions = nbytes + cache.pad_bytes, cache.options.roundup_power2_divisions
    if divisions > 1 and size > MIN_BLOCK * divisions:
        power = 1 << (size - 1).bit_length()
        if power == size:
            return size
        step = (power >> 1) // divisions
        return _up(size, step)
    return max(MIN_BLOCK, _up(size, MIN_BLOCK))


def segment_size(cache: CachingAllocator, size: int) -> int:
    """Return the bytes of the segment that is made for a block of ``size``."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if cache.options.page_size_1g:
        return _up(size, GIANT)
    return cache.options.large_segment_bytes if size < MIN_LARGE else _up(size, ROUND_LARGE)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _with(
    cache: CachingAllocator, blocks: Mapping[int, Block], segments: Mapping[int, Segment] | None = None
) -> CachingAllocator:
    """Return the allocator after one step, with the statistics brought up to date."""
    segments = cache.segments if segments is None else MappingProxyType(dict(sorted(segments.items())))
    blocks = MappingProxyType(dict(sorted(blocks.items())))
    limit = cache.options.max_split_bytes
    held = [Held("segment", one.size, one.is_small, is_oversize=one.size >= limit) for one in segments.values()]
    for address, one in blocks.items():
        kind = "cached" if one.is_cached else "waiting" if one.waits else "used"
        is_split = address not in segments or segments[address].size != one.size
        held.append(Held(kind, one.size, one.is_small, one.requested, is_split, one.size >= limit))
    return dataclasses.replace(cache, blocks=blocks, segments=segments, stats=cache.stats.seen(held))


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
      AscendError: 107003 for an unknown stream.
      CacheOutOfMemory: 207001, the memory is not there; ``report`` says what was requested, free, cached and in use by
        whom. ``cache`` and ``card`` are as they were (unless the card was made with ``donate=True``).
    """
    if nbytes < 0:
        raise ValueError(f"nbytes = {nbytes}: must be 0 or more")
    code, slot = find_stream(card, stream)
    if int(code):
        raise AscendError(int(code), f"stream {stream}")
    if nbytes == 0:
        return cache, card, 0
    site_text, given = callsite.text(int(site or 0)), (cache, card)
    cache, card = process_events(cache, card)
    size = rounded_size(cache, nbytes)
    block = _best(cache, size, int(slot))
    if block is None:
        cache, card, block = _new_block(_older(cache), card, size, int(slot), site)
    if block is None:
        raise CacheOutOfMemory(_shortage(*given, nbytes, site_text))
    blocks = dict(cache.blocks)
    if _should_split(cache, block, size):
        blocks[block.address + size] = dataclasses.replace(block, address=block.address + size, size=block.size - size)
        block = dataclasses.replace(block, size=size)
    blocks[block.address] = dataclasses.replace(block, requested=nbytes, site=site_text, age=0)
    return _with(cache, blocks), card, block.address // GRANULE_BYTES


def _best(cache: CachingAllocator, size: int, stream: int) -> Block | None:
    fitting = [block for block in cache.blocks.values() if _fits(cache, block, size, stream)]
    return min(fitting, key=lambda block: (block.size, block.address)) if fitting else None


def _older(cache: CachingAllocator) -> CachingAllocator:
    aged = {at: dataclasses.replace(one, age=one.age + 1) if one.is_cached else one for at, one in cache.blocks.items()}
    return dataclasses.replace(cache, blocks=MappingProxyType(aged))


def _new_block(
    cache: CachingAllocator, card: CardState, size: int, stream: int, site: Site
) -> tuple[CachingAllocator, CardState, Block | None]:
    """Make room for ``size``: a new segment, or after giving back what is cached; return the block or None."""
    cache, card = _collect_garbage(cache, card)
    cache, card, block = _grow(cache, card, size, stream, site)
    if block is not None:
        return cache, card, block
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_alloc_retries"))
    cache, card = _release_oversize(cache, card, size)
    cache, card, block = _grow(cache, card, size, stream, site)
    if block is None:
        cache, card = empty_cache(cache, card)
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
        policy = MallocPolicy.HUGE1G_ONLY if is_giant else MallocPolicy.HUGE_FIRST
        had_failed = bool(int(first_failure(card)))
        card, pointer = malloc_align32(card, length, policy, site=site)
        if int(last_code(card)) != Code.SUCCESS:
            card = card if had_failed else clear_error(card)
            continue
        address = int(pointer) * GRANULE_BYTES
        if base is not None and base.address + base.size != address:  # somebody else lies behind the tail
            card = free(card, pointer, site=site)
            continue
        block = Block(address, length, stream, is_small)
        if base is not None:
            block = dataclasses.replace(base, size=base.size + length)
        cache = dataclasses.replace(cache, stats=cache.stats.counted("num_device_alloc"))
        segments = {**cache.segments, address: Segment(length, is_small)}
        return _with(cache, {**cache.blocks, block.address: block}, segments), card, block
    return cache, card, None


def _tail(cache: CachingAllocator, is_small: bool, stream: int) -> Block | None:
    """Return the cached block at the end of the stream's expandable segment, if there is one."""
    ours = [one for one in cache.blocks.values() if one.is_small == is_small and one.stream == stream]
    return ours[-1] if ours and ours[-1].is_cached else None


@verb
def cache_free(
    cache: CachingAllocator, card: CardState, pointer: int, *, site: Site = None
) -> tuple[CachingAllocator, CardState]:
    """Give a block back to the cache, at once for its own stream.

    Other streams that were recorded on it (:func:`record_stream`) keep it until what is queued in them now is done.

    Raises:
      AscendError: 107000 for what is no block in use.
    """
    block = _in_use(cache, pointer)
    marks = tuple((stream, int(card.clock[Clock.ENQUEUED])) for stream in block.streams)
    freed = dataclasses.replace(block, requested=0, site="", streams=(), waits=marks)
    cache = _with(cache, {**cache.blocks, block.address: freed})
    return (cache if marks else _cached(cache, freed)), card


def _in_use(cache: CachingAllocator, pointer: int) -> Block:
    block = cache.blocks.get(int(pointer) * GRANULE_BYTES)
    if block is None or not block.requested:
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


def _cached(cache: CachingAllocator, block: Block) -> CachingAllocator:
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
    return _with(cache, blocks)


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
            cache = _cached(cache, block)
    return cache, card


def empty_cache(cache: CachingAllocator, card: CardState) -> tuple[CachingAllocator, CardState]:
    """Synchronize the device and give every segment back that nobody uses a part of."""
    card = synchronize_device(card, site=0)
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_sync_all_streams"))
    for block in [one for one in cache.blocks.values() if one.waits]:
        cache = _cached(cache, block)
    for address, segment in list(cache.segments.items()):
        cache, card = _release(cache, card, address, segment)
    return cache, card


def _release(
    cache: CachingAllocator, card: CardState, address: int, segment: Segment
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
    return _with(cache, blocks, segments), free(card, address // GRANULE_BYTES, site=0)


def _whole_cached(cache: CachingAllocator, least: int) -> list[Block]:
    """Return cached blocks of at least a size that are whole segments, smallest first."""
    found = [
        block
        for at, block in cache.blocks.items()
        if block.is_cached and block.size >= least and at in cache.segments and cache.segments[at].size == block.size
    ]
    return sorted(found, key=lambda block: (block.size, block.address))


def _release_oversize(cache: CachingAllocator, card: CardState, size: int) -> tuple[CachingAllocator, CardState]:
    """Give back cached blocks too large to be cut: one that is enough for ``size``, or the largest until they are."""
    limit = cache.options.max_split_bytes
    if limit == UNLIMITED:
        return cache, card
    wanted, blocks = max(size, limit), _whole_cached(cache, limit)
    enough = [block for block in blocks if block.size >= wanted]
    released = 0
    for block in enough[:1] or reversed(blocks):
        if released >= wanted:
            break
        cache, card = _release(cache, card, block.address, cache.segments[block.address])
        released += block.size
    return cache, card


def _collect_garbage(cache: CachingAllocator, card: CardState) -> tuple[CachingAllocator, CardState]:
    """Above the threshold, give back whole large blocks that have been cached for longest, until it is reached."""
    threshold = cache.options.garbage_collection_threshold * cache.allowed_bytes
    while 0 < threshold < cache.reserved_bytes:
        old = [block for block in _whole_cached(cache, SMALL_SIZE + 1) if not block.is_small]
        if not old:
            break
        mean = sum(block.age for block in old) / len(old)
        for block in sorted(old, key=lambda block: (-block.age, block.address)):
            if block.age >= mean and cache.reserved_bytes > threshold:
                cache, card = _release(cache, card, block.address, cache.segments[block.address])
    return cache, card


class CacheOutOfMemory(AscendError):
    """An allocation that did not fit even after everything cached was given back; ``report`` has the numbers."""

    def __init__(self, report: OutOfMemory) -> None:
        super().__init__(Code.MEMORY_ALLOCATION, str(report))
        self.report = report


def _shortage(cache: CachingAllocator, card: CardState, nbytes: int, site: str) -> OutOfMemory:
    device = memory_report(card)
    cached = sum(block.size for block in cache.blocks.values() if not block.requested)
    sites: dict[str, list[int]] = {}
    for block in cache.blocks.values():
        if block.requested:
            sites.setdefault(block.site, []).append(block.size)
    owners = [Owner(name, sum(sizes), len(sizes)) for name, sizes in sites.items()]
    return OutOfMemory(
        requested_bytes=nbytes,
        free_bytes=min(device.free_bytes, cache.allowed_bytes - cache.reserved_bytes),
        largest_free_bytes=device.largest_free_bytes,
        reserved_unused_bytes=cached + device.idle_bytes,
        site=site,
        shortages=cache.stats.numbers.get("num_ooms", 0) + 1,
        memory="device",
        owners=tuple(sorted(owners, key=lambda one: (-one.nbytes, one.site))),
    )


def memory_stats(cache: CachingAllocator) -> dict[str, int]:
    """Return the statistics under the names of ``torch_npu.npu.memory_stats``, and ``max_split_size``."""
    limit = cache.options.max_split_bytes
    return cache.stats.as_dict() | {"max_split_size": -1 if limit == UNLIMITED else limit}


def reset_peak_memory_stats(cache: CachingAllocator) -> CachingAllocator:
    """Return the allocator with every peak at what is current."""
    return dataclasses.replace(cache, stats=cache.stats.fresh_peaks())


def memory_snapshot(cache: CachingAllocator) -> list[dict[str, object]]:
    """Return every segment with its blocks, as ``torch_npu.npu.memory_snapshot`` does; plain data, fit for JSON.

    A block that reaches over parts of an expandable segment is listed with the part in which it begins.
    """
    rows: list[dict[str, object]] = []
    for address, segment in cache.segments.items():
        inside = [one for at, one in cache.blocks.items() if address <= at < address + segment.size]
        states = ["inactive" if one.is_cached else "active_pending_free" if one.waits else "active_allocated"
                  for one in inside]  # fmt: skip
        rows.append(
            {
                "address": address,
                "total_size": segment.size,
                "allocated_size": sum(one.size for one in inside if one.requested),
                "active_size": sum(one.size for one in inside if not one.is_cached),
                "segment_type": "small" if segment.is_small else "large",
                "stream": inside[0].stream if inside else None,
                "blocks": [
                    {
                        "address": one.address,
                        "size": one.size,
                        "requested_size": one.requested,
                        "state": state,
                        "site": one.site,
                        "used_by_streams": list(one.streams or [slot for slot, _ in one.waits]),
                    }
                    for one, state in zip(inside, states, strict=True)
                ],
            }
        )
    return rows
