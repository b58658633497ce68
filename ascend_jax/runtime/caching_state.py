"""The state of the caching allocator, and the sizes that it rounds to: blocks, segments, what one step changes."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ascend_jax.runtime.allocator_options import MIB, AllocatorOptions
from ascend_jax.runtime.allocator_stats import AllocatorStats, Held

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


def with_blocks(
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
