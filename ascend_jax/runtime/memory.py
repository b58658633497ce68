"""Who owns which bytes: device memory (HBM) and pinned host memory, as two heaps of one kind.

Placement rule: the lowest address at which a range of whole pages fits (first fit).
"""

import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import layout, status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import GRANULE_BYTES, GRANULE_SHIFT, HeapEntry, HeapWord
from ascend_jax.runtime.rows import Number, get_row, with_entries
from ascend_jax.runtime.state import CardState, Heap, require_single

PAGE = 4096 // GRANULE_BYTES
HUGE_PAGE = (2 << 20) // GRANULE_BYTES
GIANT_PAGE = (1 << 30) // GRANULE_BYTES
SMALL_LIMIT = (1 << 20) // GRANULE_BYTES
FAR = 2**31 - 1


class MallocPolicy(enum.IntEnum):
    """Page policies of ``aclrtMalloc`` (``aclrtMemMallocPolicy``)."""

    HUGE_FIRST = 0
    HUGE_ONLY = 1
    NORMAL_ONLY = 2
    HUGE_FIRST_P2P = 3
    HUGE_ONLY_P2P = 4
    NORMAL_ONLY_P2P = 5
    HUGE1G_ONLY = 6
    HUGE1G_ONLY_P2P = 7


def find_gap(heap: Heap, size: jax.Array, align: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (found, row to insert at, first granule) of the lowest gap of ``size`` granules.

    ``align`` is a power of two.
    """
    starts, sizes = heap.blocks[:, HeapEntry.START], heap.blocks[:, HeapEntry.SIZE]
    count = heap.words[HeapWord.COUNT]
    rows = jnp.arange(starts.shape[0])
    opening = jnp.concatenate([heap.words[HeapWord.BASE][None], (starts + sizes)[:-1]])
    closing = jnp.where(rows < count, starts, heap.words[HeapWord.END])
    first = (opening + align - 1) & -align
    fits = (rows <= count) & (first >= opening) & (size <= closing - first)
    row = jnp.argmax(fits)
    return get_row(fits, row), row, get_row(first, row)


def insert(heap: Heap, row: jax.Array, entry: jax.Array) -> Heap:
    """Return ``heap`` with one more block before ``row``."""
    rows = jnp.arange(heap.blocks.shape[0])[:, None]
    shifted = jnp.roll(heap.blocks, 1, axis=0)
    blocks = jnp.where(rows < row, heap.blocks, jnp.where(rows == row, entry, shifted))
    used = heap.words[HeapWord.USED] + entry[HeapEntry.SIZE]
    peak = jnp.maximum(used, heap.words[HeapWord.PEAK])
    count = heap.words[HeapWord.COUNT] + 1
    words = {HeapWord.COUNT: count, HeapWord.USED: used, HeapWord.PEAK: peak}
    return Heap(blocks, with_entries(heap.words, words))


def remove(heap: Heap, row: jax.Array) -> Heap:
    """Return ``heap`` without the block at ``row``."""
    rows = jnp.arange(heap.blocks.shape[0])[:, None]
    gone = get_row(heap.blocks, row)[HeapEntry.SIZE]
    unused = with_entries(jnp.zeros((1, len(HeapEntry)), jnp.int32), {HeapEntry.START: FAR})
    shifted = jnp.concatenate([heap.blocks[1:], unused])
    words = {HeapWord.COUNT: heap.words[HeapWord.COUNT] - 1, HeapWord.USED: heap.words[HeapWord.USED] - gone}
    return Heap(jnp.where(rows < row, heap.blocks, shifted), with_entries(heap.words, words))


class Range(NamedTuple):
    """Bytes in memory. Numbers, or int32 arrays of one shape; a length may exceed what int32 can count in bytes."""

    pointer: Any  # granule
    offset: Any  # bytes from there to the first byte
    whole: Any  # length: whole granules ...
    rest: Any  # ... and bytes beyond them, 0..63
    skip: Any = 0  # granules from the pointer to where the offset counts from

    @property
    def end(self) -> tuple[Any, Any]:
        """(granules from the pointer, bytes beyond them) past the last byte."""
        low = (self.offset & (GRANULE_BYTES - 1)) + self.rest
        return (self.offset >> GRANULE_SHIFT) + self.whole + (low >> GRANULE_SHIFT), low & (GRANULE_BYTES - 1)

    def as_int32(self) -> "Range":
        """Return the same range as int32 arrays, in its one normal form: no skip, an offset below one granule.

        Null pointers and negative offsets stay as they are, to be refused; an address past the last one gets a
        negative length, for the same reason.
        """
        pointer, offset, whole, rest, skip = (jnp.asarray(number, jnp.int32) for number in self)
        is_odd = (pointer == layout.NULL) | (offset < 0)
        granules = jnp.where(is_odd, 0, offset >> GRANULE_SHIFT)
        first = pointer + granules
        moved = first + jnp.where(is_odd, 0, skip)
        is_past = (first < pointer) | (moved < first)
        whole = jnp.where(is_past, layout.NONE, whole)
        return Range(moved, offset - (granules << GRANULE_SHIFT), whole, rest, jnp.zeros_like(moved))


def byte_range(pointer: Number, offset: Number, nbytes: Number) -> Range:
    """Return a range; Python ints may have any size, what no card has becomes a length below 0, to be refused."""
    whole, rest = split_bytes(nbytes)
    if not isinstance(offset, int | np.integer):
        return Range(pointer, offset, whole, rest)
    skip, offset = divmod(max(int(offset), -1), GRANULE_BYTES) if offset >= 2**31 else (0, max(int(offset), -1))
    return Range(pointer, offset, whole, rest, skip) if skip < 2**31 else Range(pointer, 0, layout.NONE, 0)


def holds(heap: Heap, place: Range) -> jax.Array:
    """Return whether a range lies inside one live block."""
    blocks = heap.blocks
    ahead = place.pointer - blocks[:, HeapEntry.START]
    end, rest = place.end
    left = blocks[:, HeapEntry.ASKED] - ahead
    inside = (end < left) | ((end == left) & (rest <= blocks[:, HeapEntry.REST]))
    live = jnp.arange(blocks.shape[0]) < heap.words[HeapWord.COUNT]
    return (live & (ahead >= 0) & inside).any() & (place.offset >= 0) & (place.whole >= 0)


def is_live(card: CardState, place: Range) -> jax.Array:
    """Return whether a range lies inside one live block of device or pinned host memory."""
    on_host = place.pointer < layout.NULL
    heap = jax.tree.map(lambda host, hbm: jnp.where(on_host, host, hbm), card.host, card.hbm)
    return holds(heap, place)


def _allocate(
    heap: Heap, whole: jax.Array, rest: jax.Array, sizes: jax.Array, pages: jax.Array, site: jax.Array
) -> tuple[Heap, jax.Array, jax.Array]:
    """Try sizes and pages [T], in granules, in order; return (heap, pointer, code). A size of 0 is no try."""
    sizes = (sizes + pages - 1) & -pages
    fits, rows, starts = jax.vmap(find_gap, in_axes=(None, 0, 0))(heap, sizes, pages)
    fits &= sizes > 0
    best = jnp.argmax(fits)
    found, row, first, taken = (get_row(each, best) for each in (fits, rows, starts, sizes))
    is_full = heap.words[HeapWord.COUNT] >= heap.blocks.shape[0]
    code = status.first_code(
        ((whole < 0) | (rest < 0) | (whole + rest <= 0), Code.INVALID_PARAM),
        (is_full, Code.HEAP_TABLE_FULL),
        (~found, Code.MEMORY_ALLOCATION),
    )
    grown = insert(heap, row, jnp.stack([first, taken, whole, rest, site]).astype(jnp.int32))
    ok = code == Code.SUCCESS
    heap = jax.tree.map(lambda new, old: jnp.where(ok, new, old), grown, heap)
    return heap, jnp.where(ok, first, layout.NULL), code


@stage
def _malloc(card: CardState, whole: jax.Array, rest: jax.Array, policy: jax.Array, site: jax.Array) -> tuple:
    whole, rest = jnp.asarray(whole, jnp.int32), jnp.asarray(rest, jnp.int32)
    giant = (policy == MallocPolicy.HUGE1G_ONLY) | (policy == MallocPolicy.HUGE1G_ONLY_P2P)
    pad = jnp.where(giant, 0, card.chip["malloc_pad_bytes"].astype(jnp.int32))
    size = whole + (((rest + 31) & ~31) + pad + GRANULE_BYTES - 1 >> GRANULE_SHIFT)
    is_big = (whole > SMALL_LIMIT) | ((whole == SMALL_LIMIT) & (rest > 0))
    kind = jnp.where(policy >= MallocPolicy.HUGE_FIRST_P2P, policy - MallocPolicy.HUGE_FIRST_P2P, policy)
    huge_first = jnp.where(is_big, HUGE_PAGE, PAGE)
    page = jnp.select(
        [giant, kind == MallocPolicy.HUGE_ONLY, kind == MallocPolicy.NORMAL_ONLY],
        [GIANT_PAGE, HUGE_PAGE, PAGE],
        huge_first,
    )
    may_fall_back = ~giant & (kind == MallocPolicy.HUGE_FIRST)
    is_known = (policy >= 0) & (policy <= MallocPolicy.HUGE1G_ONLY_P2P)
    sizes, pages = jnp.stack([size, jnp.where(may_fall_back, size, 0)]), jnp.stack([page, jnp.int32(PAGE)])
    heap, pointer, code = _allocate(card.hbm, whole, rest, sizes, pages, site)
    code = jnp.where(is_known, code, Code.INVALID_PARAM)
    heap = jax.tree.map(lambda new, old: jnp.where(is_known, new, old), heap, card.hbm)
    card = spend(dataclasses.replace(card, hbm=heap), card.chip["host_malloc_ns"])
    return status.note(card, code, site), jnp.where(is_known, pointer, layout.NULL)


@stage
def _malloc_host(card: CardState, whole: jax.Array, rest: jax.Array, site: jax.Array) -> tuple:
    whole, rest = jnp.asarray(whole, jnp.int32), jnp.asarray(rest, jnp.int32)
    size = whole + (rest + GRANULE_BYTES - 1 >> GRANULE_SHIFT)
    heap, pointer, code = _allocate(card.host, whole, rest, size[None], jnp.ones(1, jnp.int32), site)
    card = spend(dataclasses.replace(card, host=heap), card.chip["host_malloc_ns"])
    return status.note(card, code, site), pointer


def _free_from(heap: Heap, pointer: jax.Array) -> tuple[Heap, jax.Array]:
    match = (heap.blocks[:, HeapEntry.START] == pointer) & (
        jnp.arange(heap.blocks.shape[0]) < heap.words[HeapWord.COUNT]
    )
    found = match.any()
    code = status.first_code((pointer == layout.NULL, Code.INVALID_PARAM), (~found, Code.RT_PARAM_INVALID))
    shrunk = remove(heap, jnp.argmax(match))
    return jax.tree.map(lambda new, old: jnp.where(found, new, old), shrunk, heap), code


@stage
def _free(card: CardState, pointer: jax.Array, site: jax.Array) -> CardState:
    heap, code = _free_from(card.hbm, pointer)
    return status.note(spend(dataclasses.replace(card, hbm=heap), card.chip["host_free_ns"]), code, site)


@stage
def _free_host(card: CardState, pointer: jax.Array, site: jax.Array) -> CardState:
    heap, code = _free_from(card.host, pointer)
    return status.note(spend(dataclasses.replace(card, host=heap), card.chip["host_free_ns"]), code, site)


def split_bytes(nbytes: Number) -> tuple[Number, Number]:
    """Split a byte count into whole granules and the rest, so that 128 GiB fits int32."""
    if isinstance(nbytes, float | bool | np.bool_ | np.floating):
        raise TypeError(f"nbytes = {nbytes!r}: must be a whole number of bytes")
    if isinstance(nbytes, int | np.integer) and nbytes < 0:
        return layout.NONE, 0
    whole, rest = nbytes >> GRANULE_SHIFT, nbytes & (GRANULE_BYTES - 1)
    return (min(whole, FAR - HUGE_PAGE), rest) if isinstance(nbytes, int | np.integer) else (whole, rest)


@verb
def malloc(
    card: CardState,
    nbytes: int | jax.Array,
    policy: MallocPolicy | int | jax.Array = MallocPolicy.HUGE_FIRST,
    *,
    site: Site = None,
) -> tuple[CardState, jax.Array]:
    """Allocate device memory (``aclrtMalloc``).

    The size is rounded up to 32 bytes plus 32 more, then to whole pages: 2 MiB pages where the policy or a size above
    1 MiB asks for them, else 4 KiB; huge-first falls back to 4 KiB pages (CANN, aclrtMalloc; 8 MiB take 10 MiB, as
    measured on a 910C). Contents are whatever was there before.

    Args:
      card: The card.
      nbytes: Bytes wanted; a Python int up to the card's memory, or a traced int32.
      policy: Page policy.
      site: Call site, filled in by the runtime.

    Returns:
      The card and a pointer: an int32 that counts granules of 64 bytes (``ptr + 1`` is 64 bytes further), 0 on failure.
      Status 100000 for a size of 0 or less or an unknown policy, 207001 when no range is large enough.

    >>> import ascend_jax as aj
    >>> card, ptr = aj.malloc(aj.init(aj.chip("Ascend910B2")), 8 << 20)
    >>> free, total = aj.mem_get_info(card)
    >>> (total - free) >> 20
    12
    """
    whole, rest = split_bytes(nbytes)
    return _malloc(card, whole, rest, policy, site)


@verb
def free(card: CardState, pointer: int | jax.Array, *, site: Site = None) -> CardState:
    """Give device memory back at once, without waiting for work that may still use it (``aclrtFree``).

    Status 100000 for the null pointer, 107000 for a pointer that is not the start of a live block. (Freeing twice has
    been seen to return 0 on a real card; here it is an error, because it is always a mistake.)
    """
    return _free(card, pointer, site)


@verb
def malloc_host(card: CardState, nbytes: int | jax.Array, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Allocate pinned host memory (``aclrtMallocHost``); its pointers are negative. Freed with ``free_host``."""
    whole, rest = split_bytes(nbytes)
    return _malloc_host(card, whole, rest, site)


@verb
def free_host(card: CardState, pointer: int | jax.Array, *, site: Site = None) -> CardState:
    """Give pinned host memory back (``aclrtFreeHost``)."""
    return _free_host(card, pointer, site)


def mem_get_info(card: CardState) -> tuple[int, int]:
    """Return (free, total) bytes of device memory (``aclrtGetMemInfo``); host-side, for one card."""
    require_single(card)
    words = np.asarray(card.hbm.words, np.int64)
    free_granules = words[HeapWord.END] - words[HeapWord.BASE] - words[HeapWord.USED]
    return int(free_granules) * GRANULE_BYTES, int(words[HeapWord.END]) * GRANULE_BYTES


def hbm_peak_bytes(card: CardState) -> int:
    """Return the most device memory that was ever allocated at once, in bytes."""
    require_single(card)
    return int(np.asarray(card.hbm.words)[HeapWord.PEAK]) * GRANULE_BYTES
