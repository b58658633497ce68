"""A heap: live blocks of one memory in address order, so that gaps are differences. Tables and pure functions only.

Each table row is one column of facts over all blocks, so that moving blocks up or down is a vector operation.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime.layout import REST_BITS, HeapEntry, HeapWord
from ascend_jax.runtime.ranges import Range, is_host
from ascend_jax.runtime.rows import Number, get_row, with_entries
from ascend_jax.runtime.state import Heap

FAR = 2**31 - 1
REST_MASK = (1 << REST_BITS) - 1


class Gap(NamedTuple):
    """Where a block may go."""

    is_found: jax.Array  # bool
    row: jax.Array  # int32, row that the block takes
    first: jax.Array  # int32, its first granule
    size: jax.Array  # int32, granules


def with_words(words: jax.Array, entries: Mapping[HeapWord, Number]) -> jax.Array:
    """Return the words of a heap with some replaced: selections, which XLA puts into one loop."""
    index = jnp.arange(len(HeapWord))
    for word, value in entries.items():
        words = jnp.where(index == word, value, words)
    return words


def gaps(heap: Heap) -> tuple[jax.Array, jax.Array]:
    """Return (first granule, granule past the last) of the space before each block and after the last, int32 [M].

    Rows past the number of live blocks are empty. A table that is full does not show what is behind its last block.
    """
    starts, sizes = heap.blocks[HeapEntry.START], heap.blocks[HeapEntry.SIZE]
    count = heap.words[HeapWord.COUNT]
    rows = jnp.arange(starts.shape[0])
    opening = jnp.concatenate([heap.words[HeapWord.BASE][None], (starts + sizes)[:-1]])
    closing = jnp.where(rows < count, starts, heap.words[HeapWord.END])
    return opening, jnp.where(rows <= count, closing, opening)


def find_gap(heap: Heap, sizes: jax.Array, aligns: jax.Array) -> Gap:
    """Return the lowest gap for the first of several tries, int32 [T], that fits.

    Args:
      heap: Where to look.
      sizes: Granules; 0 is no try.
      aligns: What the first granule is a multiple of, powers of two.
    """
    opening, closing = gaps(heap)
    rows = jnp.arange(opening.shape[0])[None]
    first = (opening[None] + aligns[:, None] - 1) & -aligns[:, None]
    fits = (first >= opening[None]) & (sizes[:, None] <= closing[None] - first) & (sizes[:, None] > 0)
    fits &= rows <= heap.words[HeapWord.COUNT]
    row = jnp.where(fits, rows, FAR).min(axis=1)
    chosen = jnp.argmax(row != FAR)
    row, size, align = (get_row(each, chosen) for each in (row, sizes, aligns))
    start = get_row(opening, jnp.minimum(row, opening.shape[0] - 1))
    return Gap(row != FAR, row, (start + align - 1) & -align, size)


def largest_gap(heap: Heap) -> jax.Array:
    """Return the length of the longest run of free granules."""
    opening, closing = gaps(heap)
    last = get_row(heap.blocks.T, heap.blocks.shape[1] - 1)
    is_full = heap.words[HeapWord.COUNT] == heap.blocks.shape[1]
    behind = jnp.where(is_full, heap.words[HeapWord.END] - last[HeapEntry.START] - last[HeapEntry.SIZE], 0)
    return jnp.maximum((closing - opening).max(), behind)


def insert(heap: Heap, row: Number, entry: jax.Array, is_wanted: Number = True) -> Heap:
    """Return ``heap`` with one more block before ``row``, int32 [len(HeapEntry)], if that is wanted; it numbers it."""
    rows, made = jnp.arange(heap.blocks.shape[1]), heap.words[HeapWord.MADE]
    entry = jnp.where(jnp.arange(len(HeapEntry)) == HeapEntry.REST, (entry & REST_MASK) | (made << REST_BITS), entry)
    row = jnp.where(is_wanted, row, FAR)
    blocks = jnp.where(rows < row, heap.blocks, jnp.where(rows == row, entry[:, None], _shifted(heap.blocks, 1)))
    used = heap.words[HeapWord.USED] + jnp.where(is_wanted, entry[HeapEntry.SIZE], 0)
    words: dict[HeapWord, Number] = {
        HeapWord.COUNT: heap.words[HeapWord.COUNT] + jnp.where(is_wanted, 1, 0),
        HeapWord.USED: used,
        HeapWord.PEAK: jnp.maximum(used, heap.words[HeapWord.PEAK]),
        HeapWord.MADE: made + jnp.where(is_wanted, 1, 0),
    }
    return Heap(blocks, with_words(heap.words, words))


def remove(heap: Heap, row: Number, is_wanted: Number = True) -> Heap:
    """Return ``heap`` without the block at ``row``, if that is wanted."""
    rows = jnp.arange(heap.blocks.shape[1])
    gone = block_at(heap, row)[HeapEntry.SIZE]
    blocks = jnp.where(rows < jnp.where(is_wanted, row, FAR), heap.blocks, _moved_down(heap.blocks))
    words: dict[HeapWord, Number] = {
        HeapWord.COUNT: heap.words[HeapWord.COUNT] - jnp.where(is_wanted, 1, 0),
        HeapWord.USED: heap.words[HeapWord.USED] - jnp.where(is_wanted, gone, 0),
    }
    return Heap(blocks, with_words(heap.words, words))


def _moved_down(blocks: jax.Array) -> jax.Array:
    unused = with_entries(jnp.zeros((1, len(HeapEntry)), jnp.int32), {HeapEntry.START: FAR}).T
    is_last = jnp.arange(blocks.shape[1]) == blocks.shape[1] - 1
    return jnp.where(is_last, unused, _shifted(blocks, -1))


def _shifted(blocks: jax.Array, by: int) -> jax.Array:
    """Return columns moved to the right, with 0 behind: a pad, which XLA's CPU loops do faster than a concatenation."""
    return lax.pad(blocks, jnp.int32(0), ((0, 0, 0), (by, -by, 0)))


def split(heap: Heap, row: Number, size: Number, front: Mapping[HeapEntry, Number], is_wanted: jax.Array) -> Heap:
    """Return ``heap`` with the block at ``row`` cut after ``size`` granules if that is wanted and leaves anything.

    The front gets the facts of ``front`` and a number of its own, the rest keeps those of the block. A full table cuts
    nothing: then the front is all of the block.
    """
    entry = block_at(heap, row)
    has_rest = is_wanted & (entry[HeapEntry.SIZE] > size) & (heap.words[HeapWord.COUNT] < heap.blocks.shape[1])
    rest = {HeapEntry.START: entry[HeapEntry.START] + size, HeapEntry.SIZE: entry[HeapEntry.SIZE] - size}
    cut = insert(heap, row + 1, with_entries(entry, rest), has_rest)
    made = cut.words[HeapWord.MADE]
    words = {HeapWord.USED: heap.words[HeapWord.USED], HeapWord.PEAK: heap.words[HeapWord.PEAK]}
    cut = Heap(cut.blocks, with_words(cut.words, {**words, HeapWord.MADE: made + jnp.where(is_wanted, 1, 0)}))
    facts = {**front, HeapEntry.SIZE: jnp.where(has_rest, size, entry[HeapEntry.SIZE])}
    return change(cut, row, facts | {HeapEntry.REST: front[HeapEntry.REST] | (made << REST_BITS)}, is_wanted)


def join(heap: Heap, may_join: jax.Array) -> Heap:
    """Return ``heap`` with blocks of a mask, bool [M], joined where they touch and have the same flags.

    A joined block has the facts of its first part and the latest BORN of all.
    """
    blocks, rows = heap.blocks, jnp.arange(heap.blocks.shape[1])
    ends, flags = blocks[HeapEntry.START] + blocks[HeapEntry.SIZE], blocks[HeapEntry.FLAGS]
    follows = (blocks[HeapEntry.START] == jnp.roll(ends, 1)) & (flags == jnp.roll(flags, 1))
    follows &= may_join & jnp.roll(may_join, 1) & (rows > 0)
    run = jnp.cumsum(~follows) - 1
    end = jnp.zeros_like(ends).at[run].max(jnp.where(may_join, ends, 0))
    born = jnp.zeros_like(ends).at[run].max(blocks[HeapEntry.BORN])
    size = jnp.where(may_join, end[run] - blocks[HeapEntry.START], blocks[HeapEntry.SIZE])
    latest = jnp.where(may_join, born[run], blocks[HeapEntry.BORN])
    joined = with_entries(blocks.T, {HeapEntry.SIZE: size, HeapEntry.BORN: latest}).T
    fewer = remove_all(Heap(joined, heap.words), follows)
    return Heap(fewer.blocks, with_words(fewer.words, {HeapWord.USED: heap.words[HeapWord.USED]}))


def remove_all(heap: Heap, is_gone: jax.Array) -> Heap:
    """Return ``heap`` without the live blocks of a mask, bool [M]."""
    order = jnp.argsort(is_gone, stable=True)
    unused = with_entries(jnp.zeros((1, len(HeapEntry)), jnp.int32), {HeapEntry.START: FAR}).T
    count = heap.words[HeapWord.COUNT] - is_gone.sum(dtype=jnp.int32)
    size = jnp.where(is_gone, heap.blocks[HeapEntry.SIZE], 0).sum(dtype=jnp.int32)
    blocks = jnp.where(jnp.arange(heap.blocks.shape[1]) < count, heap.blocks[:, order], unused)
    words = {HeapWord.COUNT: count, HeapWord.USED: heap.words[HeapWord.USED] - size}
    return Heap(blocks, with_words(heap.words, words))


def shorten(heap: Heap, gone: jax.Array) -> Heap:
    """Return ``heap`` with some granules given back at the end of each block, int32 [M]; a block of no size goes."""
    left = heap.blocks[HeapEntry.SIZE] - gone
    words = {HeapWord.USED: heap.words[HeapWord.USED] - gone.sum(dtype=jnp.int32)}
    blocks = with_entries(heap.blocks.T, {HeapEntry.SIZE: left}).T
    return remove_all(Heap(blocks, with_words(heap.words, words)), (gone > 0) & (left == 0))


def emptied(heap: Heap) -> Heap:
    """Return ``heap`` without any block."""
    blocks = with_entries(jnp.zeros_like(heap.blocks).T, {HeapEntry.START: FAR}).T
    return Heap(blocks, with_words(heap.words, {HeapWord.COUNT: 0, HeapWord.USED: 0, HeapWord.IDLE: 0}))


def row_at(heap: Heap, pointer: Number) -> tuple[jax.Array, jax.Array]:
    """Return (whether a live block starts at ``pointer``, its row; past the table if none does)."""
    rows = jnp.arange(heap.blocks.shape[1])
    match = (heap.blocks[HeapEntry.START] == pointer) & (rows < heap.words[HeapWord.COUNT])
    row = jnp.where(match, rows, FAR).min()
    return row != FAR, row


def block_at(heap: Heap, row: Number) -> jax.Array:
    """Return the facts of a block, int32 [len(HeapEntry)]; of the last row for a row past the table."""
    return get_row(heap.blocks.T, jnp.minimum(row, heap.blocks.shape[1] - 1))


def change(heap: Heap, row: Number, columns: Mapping[HeapEntry, Number], is_wanted: Number) -> Heap:
    """Return ``heap`` with some facts of one block changed, if that is wanted."""
    is_it = (jnp.arange(heap.blocks.shape[1]) == row) & is_wanted
    facts = [
        jnp.where(is_it, columns[column], heap.blocks[column]) if column in columns else heap.blocks[column]
        for column in HeapEntry
    ]
    return dataclasses.replace(heap, blocks=jnp.stack(facts))


def holds(heap: Heap, place: Range) -> jax.Array:
    """Return whether a range lies inside what was asked for with one live block."""
    blocks = heap.blocks
    ahead = place.pointer - blocks[HeapEntry.START]
    end, rest = place.end
    left = blocks[HeapEntry.ASKED] - ahead
    inside = (end < left) | ((end == left) & (rest <= blocks[HeapEntry.REST] & REST_MASK))
    live = jnp.arange(blocks.shape[1]) < heap.words[HeapWord.COUNT]
    return (live & (ahead >= 0) & inside).any() & (place.offset >= 0) & (place.whole >= 0)


def heap_of(host: Heap, hbm: Heap, pointer: Number) -> Heap:
    """Return the heap that an address belongs to."""
    on_host = is_host(jnp.asarray(pointer))
    return jax.tree.map(lambda one, other: jnp.where(on_host, one, other), host, hbm)
