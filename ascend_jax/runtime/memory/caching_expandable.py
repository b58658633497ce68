"""Expandable segments of the caching allocator: addresses of which whole chunks have memory where they are needed.

A segment begins with addresses alone. What is needed is mapped at the lowest of them, chunk by chunk, from anywhere in
the device memory; what is cached can be unmapped again and leaves a hole (torch_npu, ExpandableSegment).
"""

import dataclasses
from types import MappingProxyType

from ascend_jax.runtime.edge import Site
from ascend_jax.runtime.layout import GRANULE_BYTES
from ascend_jax.runtime.memory.caching_state import (
    GIANT,
    ROUND_LARGE,
    SMALL_SIZE,
    Block,
    CachingAllocator,
    Segment,
    Space,
    chunk_size,
    joined,
    up,
    with_blocks,
)
from ascend_jax.runtime.memory.segment_pages import (
    Chunks,
    addresses,
    map_chunks,
    ranges,
    taken_addresses,
    taken_windows,
    unmap_chunks,
    with_window,
)
from ascend_jax.runtime.state import CardState

SMALL_SPACE = 2 << 30  # addresses of a segment of small blocks (torch_npu, with zero-copy HCCL)


def reach(cache: CachingAllocator, card: CardState, block: Block) -> int:
    """Return the bytes that a block could grow to: with the hole behind it."""
    if block.end in cache.blocks:
        return block.size
    return _hole_end(cache, card, space_of(cache, block), block.end) - block.address


def space_of(cache: CachingAllocator, block: Block) -> int:
    """Return the first address of the segment that a block lies in."""
    return max(start for start in cache.spaces if start <= block.address)


def expanded(
    cache: CachingAllocator, card: CardState, size: int, stream: int, site: Site
) -> tuple[CachingAllocator, CardState, Block | None]:
    """Map what a block of ``size`` needs at the lowest addresses that can have it; return the block or None.

    What was mapped before memory ran out stays, cached.
    """
    is_small = size <= SMALL_SIZE
    found = _room(cache, card, size, stream, is_small)
    if found is None:
        space = _new_space(cache, card, size, is_small)
        if space is None:
            return cache, card, None
        windows = {one.window for one in cache.spaces.values()}
        card, window = with_window(card, taken_windows(card) | windows)
        found = space, space
        cache = _with_space(cache, space, Space(stream, is_small, window))
    space, at = found
    while True:
        block = cache.blocks.get(at)
        have = block.size if block else 0
        if block is not None and have >= size:
            return cache, card, block
        end = _hole_end(cache, card, space, at + have)
        length = min(up(size - have, chunk_size(cache, is_small)), end - at - have)
        changed = _mapped(cache, card, (space, at + have, length), site)
        if changed is None:
            return _without_empty(cache, space), card, None
        cache, card = changed


def released(cache: CachingAllocator, card: CardState, block: Block, site: Site) -> tuple[CachingAllocator, CardState]:
    """Unmap the whole chunks that lie in a cached block; the rest stays cached."""
    start, unit = space_of(cache, block), chunk_size(cache, block.is_small)
    low = start + up(block.address - start, unit)
    high = start + (block.end - start) // unit * unit
    if low >= high:
        return cache, card
    space = cache.spaces[start]
    changed = unmap_chunks(card, space.pieces, _chunks(cache, low, high - low, block.is_small), _origin(start, space),
                           int(site or 0))  # fmt: skip
    if changed is None:
        return cache, card
    card, pieces = changed
    blocks = {at: one for at, one in cache.blocks.items() if at != block.address}
    for first, end in ((block.address, low), (high, block.end)):
        if first < end:
            blocks[first] = dataclasses.replace(block, address=first, size=end - first)
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_device_free"))
    segments = _segments(cache, start, space._replace(pieces=pieces))
    cache = with_blocks(_with_space(cache, start, space._replace(pieces=pieces)), blocks, segments)
    return _without_empty(cache, start), card


def _room(cache: CachingAllocator, card: CardState, size: int, stream: int, is_small: bool) -> tuple[int, int] | None:
    """Return (segment, address) of the lowest hole of a stream, or the cached block before it, that ``size`` fits."""
    for start, space in cache.spaces.items():
        if (space.stream, space.is_small) != (stream, is_small):
            continue
        for hole in _holes(cache, start):
            before = next((one for one in cache.blocks.values() if one.end == hole and start <= one.address), None)
            first = before.address if before is not None and before.is_cached else hole
            if _free_addresses(cache, card, start, first, size) >= size:
                return start, first
    return None


def _holes(cache: CachingAllocator, start: int) -> list[int]:
    """Return where the holes of a segment begin."""
    spans = ranges(cache.spaces[start].pieces)
    at_front = [start] if spans[0][0] * GRANULE_BYTES > start else []
    return at_front + [sum(span) * GRANULE_BYTES for span in spans]


def _free_addresses(cache: CachingAllocator, card: CardState, start: int, first: int, enough: int) -> int:
    """Return the bytes from ``first`` on that are holes or cached, or ``enough`` if they are at least that."""
    at = first
    while at - first < enough:
        block = cache.blocks.get(at)
        if block is not None and not block.is_cached:
            break
        end = block.end if block is not None else _hole_end(cache, card, start, at)
        if end <= at:
            break
        at = end
    return at - first


def _hole_end(cache: CachingAllocator, card: CardState, start: int, hole: int) -> int:
    """Return where the hole at an address of a segment ends: whole chunks, up to what somebody else has."""
    space = cache.spaces[start]
    firsts = [first * GRANULE_BYTES for first, _ in ranges(space.pieces)]
    behind = [first for first in firsts if first >= hole]
    if behind:
        return behind[0]
    others = [first * GRANULE_BYTES for first, _ in taken_addresses(card)] + list(cache.spaces)
    end = addresses(card)[1] * GRANULE_BYTES
    limit = min((at for at in others if at >= max(hole, start + 1)), default=end)
    limit = min(limit, start + SMALL_SPACE) if space.is_small else limit
    unit = chunk_size(cache, space.is_small)
    return start + (limit - start) // unit * unit


def _new_space(cache: CachingAllocator, card: CardState, size: int, is_small: bool) -> int | None:
    """Return where a new segment begins, or None if nowhere are enough addresses.

    Small blocks: at the end of the addresses, 2 GiB each. Large ones: at their beginning, and later in the middle of
    what is free in the longest run, so that those before can grow.
    """
    page = GIANT if cache.options.page_size_1g and not is_small else ROUND_LARGE
    taken = [(low * GRANULE_BYTES, high * GRANULE_BYTES) for low, high in taken_addresses(card)]
    taken += [(at, _past(at, one)) for at, one in cache.spaces.items()]
    begin, end = (address * GRANULE_BYTES for address in addresses(card))
    first = up(begin, page)
    gaps, opening = [], first
    for low, high in [*sorted(taken), (end, end)]:
        gaps.append((opening, low))
        opening = max(opening, up(high, page))
    need = up(size, chunk_size(cache, is_small))
    high_gaps = [end for begin, end in gaps if end - begin >= SMALL_SPACE]
    if is_small and high_gaps:
        return (high_gaps[-1] - SMALL_SPACE) // page * page
    begin, end = max(gaps, key=lambda gap: gap[1] - gap[0])
    middle = begin if begin == first else up((begin + end) // 2, page)
    start = middle if need <= end - middle else begin
    return start if need <= end - start else None


def _past(start: int, space: Space) -> int:
    """Return the address past what belongs to a segment whatever is mapped: its holes too, which it fills itself."""
    mapped = [piece.end * GRANULE_BYTES for piece in space.pieces]
    return max([start + SMALL_SPACE if space.is_small else start, *mapped])


def _chunks(cache: CachingAllocator, first: int, nbytes: int, is_small: bool) -> Chunks:
    unit, page = chunk_size(cache, is_small), GIANT if cache.options.page_size_1g and not is_small else ROUND_LARGE
    return Chunks(*(number // GRANULE_BYTES for number in (first, nbytes, unit, page)))


def _origin(start: int, space: Space) -> tuple[int, int]:
    return start // GRANULE_BYTES, space.window


def _mapped(
    cache: CachingAllocator, card: CardState, place: tuple[int, int, int], site: Site
) -> tuple[CachingAllocator, CardState] | None:
    """Map (segment, first address, bytes) as a cached block, joined to its neighbours; None if memory ran out."""
    start, first, nbytes = place
    space = cache.spaces[start]
    chunks = _chunks(cache, first, nbytes, space.is_small)
    changed = map_chunks(card, space.pieces, chunks, _origin(start, space), int(site or 0))
    if changed is None:
        return None
    card, pieces = changed
    space = space._replace(pieces=pieces)
    cache = dataclasses.replace(cache, stats=cache.stats.counted("num_device_alloc"))
    segments = MappingProxyType(dict(sorted(_segments(cache, start, space).items())))
    cache = dataclasses.replace(_with_space(cache, start, space), segments=segments)
    return joined(cache, Block(first, nbytes, space.stream, space.is_small)), card


def _segments(cache: CachingAllocator, start: int, space: Space) -> dict[int, Segment]:
    """Return the ranges of all segments that have memory, with those of one space as they are now."""
    old = {first * GRANULE_BYTES for first, _ in ranges(cache.spaces[start].pieces)}
    spans = {at: one for at, one in cache.segments.items() if at not in old}
    for first, size in ranges(space.pieces):
        spans[first * GRANULE_BYTES] = Segment(size * GRANULE_BYTES, space.is_small)
    return spans


def _with_space(cache: CachingAllocator, start: int, space: Space) -> CachingAllocator:
    return dataclasses.replace(cache, spaces=MappingProxyType(dict(sorted({**cache.spaces, start: space}.items()))))


def _without_empty(cache: CachingAllocator, start: int) -> CachingAllocator:
    """Return the allocator without a segment that has no memory any more."""
    if cache.spaces[start].pieces:
        return cache
    left = {at: one for at, one in cache.spaces.items() if at != start}
    return dataclasses.replace(cache, spaces=MappingProxyType(left))
