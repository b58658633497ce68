"""The state of the caching allocator, and the sizes that it rounds to: blocks, segments, what one step changes."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ascend_jax.runtime.memory.allocator_options import MIB, AllocatorOptions
from ascend_jax.runtime.memory.allocator_stats import AllocatorStats, Held
from ascend_jax.runtime.memory.segment_pages import Piece

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
    age: int = 0  # searches of its pool since it was cached

    @property
    def is_cached(self) -> bool:
        """Whether anybody may have it."""
        return not self.requested

    @property
    def is_used(self) -> bool:
        """Whether somebody has it; what is neither cached nor used waits for streams."""
        return bool(self.requested) and not self.waits

    @property
    def end(self) -> int:
        """Address past the last byte."""
        return self.address + self.size


class Segment(NamedTuple):
    """Device memory at one run of addresses; of an expandable segment, what has memory from one hole to the next."""

    size: int
    is_small: bool


class Space(NamedTuple):
    """An expandable segment: addresses, of which some have memory."""

    stream: int
    is_small: bool
    window: int  # granule of ``CardState.memory`` from which on its bytes are kept; 0: they are not
    pieces: tuple[Piece, ...] = ()


class Workspace(NamedTuple):
    """Device memory that operators in one stream use one after another."""

    address: int  # byte
    size: int


@dataclasses.dataclass(frozen=True)
class CachingAllocator:
    """The state of the allocator of one card. Made by :func:`caching_allocator`."""

    options: AllocatorOptions
    pad_bytes: int  # added to every size: 32 on products whose runtime adds them, 0 on newer ones
    allowed_bytes: int  # most that it may reserve
    is_limited: bool  # a fraction was set
    blocks: Mapping[int, Block]  # by address, sorted
    segments: Mapping[int, Segment]  # by address, sorted
    stats: AllocatorStats
    spaces: Mapping[int, Space] = dataclasses.field(default_factory=lambda: MappingProxyType({}))  # by address, sorted
    workspaces: Mapping[int, Workspace] = dataclasses.field(default_factory=lambda: MappingProxyType({}))  # by stream

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments.values())

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all workspaces; no part of the statistics."""
        return sum(workspace.size for workspace in self.workspaces.values())


def rounded_size(cache: CachingAllocator, nbytes: int) -> int:
    """Return the bytes that a block of ``nbytes`` counts."""
    size = nbytes + cache.pad_bytes
    divisions = cache.options.divisions_for(size)
    if divisions > 1 and size > MIN_BLOCK * divisions:
        power = 1 << (size - 1).bit_length()
        if power == size:
            return size
        step = (power >> 1) // divisions
        return up(size, step)
    return max(MIN_BLOCK, up(size, MIN_BLOCK))


def segment_size(cache: CachingAllocator, size: int) -> int:
    """Return the bytes of the segment that is made for a block of ``size``."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if cache.options.page_size_1g:
        return up(size, GIANT)
    return cache.options.large_segment_bytes if size < MIN_LARGE else up(size, ROUND_LARGE)


def chunk_size(cache: CachingAllocator, is_small: bool) -> int:
    """Return the bytes in whole numbers of which an expandable segment grows and shrinks."""
    if is_small:
        return SMALL_SEGMENT
    return GIANT if cache.options.page_size_1g else up(cache.options.large_segment_bytes, ROUND_LARGE)


def up(value: int, unit: int) -> int:
    """Return ``value`` rounded up to a multiple of ``unit``."""
    return -(-value // unit) * unit


def with_blocks(
    cache: CachingAllocator, blocks: Mapping[int, Block], segments: Mapping[int, Segment] | None = None
) -> CachingAllocator:
    """Return the allocator after one step, with the statistics brought up to date."""
    segments = cache.segments if segments is None else MappingProxyType(dict(sorted(segments.items())))
    blocks = MappingProxyType(dict(sorted(blocks.items())))
    limit, expands = cache.options.max_split_bytes, cache.options.expandable_segments
    kind = "mapped" if expands else "segment"
    held = [Held(kind, one.size, one.is_small, is_oversize=one.size >= limit) for one in segments.values()]
    for address, one in blocks.items():
        kind = "cached" if one.is_cached else "waiting" if one.waits else "used"
        is_split = not expands and (address not in segments or segments[address].size != one.size)
        held.append(Held(kind, one.size, one.is_small, one.requested, is_split, one.size >= limit))
    return dataclasses.replace(cache, blocks=blocks, segments=segments, stats=cache.stats.seen(held))


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
