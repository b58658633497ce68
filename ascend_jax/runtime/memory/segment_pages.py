"""Physical pages behind expandable segments: which they are, and the addresses under which commands see them.

Host-side, like the allocator that uses it. A segment has virtual addresses; whole chunks of them are
mapped to device memory, each to the lowest place where it fits. Commands hold the segment's addresses, so an operand
may lie on any number of chunks; physical pages only count, and have no address of their own. The bytes are kept in a
window of ``CardState.memory`` that belongs to the segment.
"""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime.edge import stage
from ascend_jax.runtime.freed import note_freed
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import (
    GRANULE_BYTES,
    Clock,
    Device,
    HeapEntry,
    HeapFlag,
    HeapWord,
    Virtual,
    VirtualKind,
)
from ascend_jax.runtime.state import CHUNK_BYTES, CardState, Heap
from ascend_jax.runtime.translation import virtual_span


class Piece(NamedTuple):
    """Chunks that follow one another both in the segment and in device memory: one row of its table. Granules."""

    first: int  # address in the segment
    physical: int
    size: int

    @property
    def end(self) -> int:
        """Address past the last granule."""
        return self.first + self.size


class Chunks(NamedTuple):
    """Addresses to map or to unmap. Granules."""

    first: int
    size: int
    unit: int  # one chunk, which lies in one piece
    page: int  # what its place is a multiple of


Rows = list[list[int]]  # facts of live blocks, in the order of their addresses


class _Request(NamedTuple):
    """What is done to a card in one step; arrays."""

    blocks: np.ndarray
    words: np.ndarray
    virtual: np.ndarray
    gone: np.ndarray  # int32 [len(HeapEntry)], the range that is unmapped
    counts: np.ndarray  # int32, chunks mapped and unmapped, call site of an unmapping


@stage(changes=("hbm", "virtual", "clock", "freed"))
def _commit(card: CardState, request: _Request) -> CardState:
    mapped, unmapped, site = request.counts
    card = note_freed(card, jnp.asarray(request.gone), site, unmapped > 0)
    hbm, virtual = Heap(jnp.asarray(request.blocks), jnp.asarray(request.words)), jnp.asarray(request.virtual)
    # a chunk is allocated and mapped, or unmapped and freed: two calls
    busy_ns = 2.0 * (mapped * card.chip["host_malloc_ns"] + unmapped * card.chip["host_free_ns"])
    return spend(dataclasses.replace(card, hbm=hbm, virtual=virtual), busy_ns)


def ranges(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    """Return (first, size) of the runs of addresses without a hole, in granules."""
    found: list[tuple[int, int]] = []
    for piece in sorted(pieces):
        if found and sum(found[-1]) == piece.first:
            found[-1] = (found[-1][0], found[-1][1] + piece.size)
        else:
            found.append((piece.first, piece.size))
    return found


def map_chunks(
    card: CardState, pieces: tuple[Piece, ...], chunks: Chunks, origin: tuple[int, int], site: int
) -> tuple[CardState, tuple[Piece, ...]] | None:
    """Put device memory behind addresses of a segment that have none.

    Args:
      card: One card.
      pieces: What the segment has so far.
      chunks: Where.
      origin: First address of the segment, and the granule of ``card.memory`` that its window begins at, 0 for none.
      site: Call site.

    Returns:
      The card and the pieces, or None if there is not enough memory or a table is full: then nothing has changed.
    """
    rows, added = _rows(card.hbm), list(pieces)
    words, at = np.asarray(card.hbm.words), chunks.first
    while at < chunks.first + chunks.size:
        row, place, fitting = _lowest(rows, words, chunks)
        size = min(chunks.first + chunks.size - at, fitting // chunks.unit * chunks.unit)
        before = next((one for one in added if one.end == at and one.physical + one.size == place), None)
        if not size or (before is None and len(rows) == card.hbm.blocks.shape[1]):
            return None
        if before is None:
            rows.insert(row, _fresh_row(card, place, size, site))
            added.append(Piece(at, place, size))
        else:
            rows[row - 1][HeapEntry.SIZE] += size
            rows[row - 1][HeapEntry.ASKED] += size
            added[added.index(before)] = before._replace(size=before.size + size)
        at += size
    virtual = _with_ranges(card, pieces, added, origin)
    if virtual is None:
        return None
    counts = chunks.size // chunks.unit, 0, site
    return _changed(card, rows, virtual, np.zeros(len(HeapEntry), np.int32), counts), tuple(sorted(added))


def unmap_chunks(
    card: CardState, pieces: tuple[Piece, ...], chunks: Chunks, origin: tuple[int, int], site: int
) -> tuple[CardState, tuple[Piece, ...]] | None:
    """Take the device memory behind mapped addresses of a segment away; None if a table has no row for what is left."""
    rows, left, gone = _rows(card.hbm), [], np.zeros(len(HeapEntry), np.int32)
    low, high = chunks.first, chunks.first + chunks.size
    for piece in sorted(pieces):
        if piece.end <= low or high <= piece.first:
            left.append(piece)
            continue
        row = next(index for index, facts in enumerate(rows) if facts[HeapEntry.START] == piece.physical)
        facts = rows.pop(row)
        gone = np.array(facts, np.int32) if not gone.any() else gone
        for start, end in ((max(piece.first, high), piece.end), (piece.first, min(piece.end, low))):
            if start < end:
                part = Piece(start, piece.physical + start - piece.first, end - start)
                left.append(part)
                rows.insert(row, _cut(facts, part.physical, part.size))
    virtual = _with_ranges(card, pieces, left, origin)
    if virtual is None or len(rows) > card.hbm.blocks.shape[1]:
        return None
    gone[[HeapEntry.START, HeapEntry.ASKED, HeapEntry.REST]] = low, high - low, 0
    counts = 0, chunks.size // chunks.unit, site
    return _changed(card, rows, virtual, gone, counts), tuple(sorted(left))


def _rows(heap: Heap) -> Rows:
    count = int(np.asarray(heap.words)[HeapWord.COUNT])
    return np.asarray(heap.blocks)[:, :count].T.tolist()


def _lowest(rows: Rows, words: np.ndarray, chunks: Chunks) -> tuple[int, int, int]:
    """Return (row, first granule, granules free from there) of the lowest gap with room for a chunk."""
    opening = int(words[HeapWord.BASE])
    for row in range(len(rows) + 1):
        closing = rows[row][HeapEntry.START] if row < len(rows) else int(words[HeapWord.END])
        place = -(-opening // chunks.page) * chunks.page
        if closing - place >= chunks.unit:
            return row, place, closing - place
        opening = rows[row][HeapEntry.START] + rows[row][HeapEntry.SIZE] if row < len(rows) else closing
    return 0, 0, 0


def _fresh_row(card: CardState, place: int, size: int, site: int) -> list[int]:
    facts = {
        HeapEntry.START: place,
        HeapEntry.SIZE: size,
        HeapEntry.ASKED: size,
        HeapEntry.SITE: site,
        HeapEntry.BORN: int(card.clock[Clock.ENQUEUED]),
        HeapEntry.FLAGS: int(HeapFlag.PHYSICAL | HeapFlag.SEGMENT),
    }
    return [facts.get(column, 0) for column in HeapEntry]


def _cut(facts: list[int], start: int, size: int) -> list[int]:
    cut = list(facts)
    cut[HeapEntry.START], cut[HeapEntry.SIZE], cut[HeapEntry.ASKED] = start, size, size
    return cut


def _with_ranges(
    card: CardState, before: Iterable[Piece], after: Iterable[Piece], origin: tuple[int, int]
) -> np.ndarray | None:
    """Return the table of virtual addresses with a segment's ranges replaced, or None if it has too few rows."""
    table, (start, window) = np.array(card.virtual), origin
    old, new = {first for first, _ in ranges(before)}, ranges(after)
    is_old = (table[:, Virtual.KIND] == VirtualKind.SEGMENT) & np.isin(table[:, Virtual.START], list(old))
    table[is_old] = 0
    (free,) = np.nonzero(table[:, Virtual.KIND] == VirtualKind.NONE)
    if len(free) < len(new):
        return None
    reach = int(card.device[Device.HBM_BACKING])
    for row, (first, size) in zip(free, new, strict=False):
        bytes_at = window + first - start if window and first - start < reach else -window  # whose it is, all the same
        table[row] = VirtualKind.SEGMENT, first, size, bytes_at
    return table


def _changed(
    card: CardState, rows: Rows, virtual: np.ndarray, gone: np.ndarray, counts: tuple[int, int, int]
) -> CardState:
    blocks = np.zeros(card.hbm.blocks.shape, np.int32)
    blocks[HeapEntry.START] = 2**31 - 1
    blocks[:, : len(rows)] = np.array(rows, np.int32).reshape(len(rows), len(HeapEntry)).T
    words = np.array(card.hbm.words)
    used = sum(facts[HeapEntry.SIZE] for facts in rows)
    words[[HeapWord.COUNT, HeapWord.USED]] = len(rows), used
    words[HeapWord.PEAK] = max(used, words[HeapWord.PEAK])
    return _commit(card, _Request(blocks, words, virtual, gone, np.array(counts, np.int32)))


def with_window(card: CardState, taken: Iterable[int]) -> tuple[CardState, int]:
    """Return the card and the granule of its bytes where a new segment's begin: a window as long as the backing.

    ``taken`` are those of other segments. Without real bytes, or past the 2 GiB that can be real, it is 0: none.
    """
    window = int(card.device[Device.HBM_BACKING])
    if not card.has_values or not window:
        return card, 0
    first = window + int(card.device[Device.HOST_BACKING])
    length = card.memory.shape[0] - CHUNK_BYTES
    others, place = set(taken), first
    while place in others:
        place += window
    end = (place + window) * GRANULE_BYTES
    if end > 2**31 - 1 - CHUNK_BYTES:
        return card, 0
    if end > length:
        more = jnp.zeros(end - length, jnp.uint8)
        memory, shadow = (jnp.concatenate([each, more]) for each in (card.memory, card.shadow))
        card = dataclasses.replace(card, memory=memory, shadow=shadow)
    return card, place


def taken_addresses(card: CardState) -> list[tuple[int, int]]:
    """Return (first, granule past the last) of all that of the virtual addresses is reserved or mapped."""
    table = np.asarray(card.virtual, np.int64)
    is_taken = np.isin(table[:, Virtual.KIND], [VirtualKind.RESERVATION, VirtualKind.SEGMENT])
    return sorted((int(row[Virtual.START]), int(row[Virtual.START] + row[Virtual.SIZE])) for row in table[is_taken])


def taken_windows(card: CardState) -> set[int]:
    """Return the granules where windows begin that some mapped segment has."""
    window = int(card.device[Device.HBM_BACKING])
    table = np.asarray(card.virtual, np.int64)
    is_kept = (table[:, Virtual.KIND] == VirtualKind.SEGMENT) & (table[:, Virtual.PHYSICAL] != 0)
    places = abs(table[is_kept, Virtual.PHYSICAL])
    first = window + int(card.device[Device.HOST_BACKING])
    return {int(first + (place - first) // window * window) for place in places} if window else set()


def addresses(card: CardState) -> tuple[int, int]:
    """Return (first granule, granule past the last) of the addresses that segments can have."""
    first, end = virtual_span(int(np.asarray(card.hbm.words)[HeapWord.END]))
    return int(first), int(end)
