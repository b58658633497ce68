"""Who owns which bytes: device memory (HBM) and pinned host memory, as two heaps of one kind.

Placement rule: the lowest address at which a range of whole pages fits (first fit). A freed range is free at once and
joins its neighbours.
"""

import dataclasses
import enum

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import layout, status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import Site, packed, require_whole, stage, verb
from ascend_jax.runtime.freed import note_freed
from ascend_jax.runtime.handles import has_context
from ascend_jax.runtime.heap import (
    block_at,
    find_gap,
    insert,
    remove,
    row_at,
)
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import (
    GIANT_PAGE,
    GRANULE_BYTES,
    GRANULE_SHIFT,
    HUGE_PAGE,
    PAGE,
    Clock,
    HeapEntry,
    HeapFlag,
    HeapWord,
)
from ascend_jax.runtime.ranges import address, split_bytes
from ascend_jax.runtime.refusals import pointer_given, size_given
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.shortages import note_shortage, with_request
from ascend_jax.runtime.state import CardState, Heap

SMALL_LIMIT = (1 << 20) // GRANULE_BYTES


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


class PolicyFlag(enum.IntFlag):
    """Wishes that may be added to a policy; they change no placement here (``aclrtMemMallocPolicy``)."""

    LOW_BAND_WIDTH = 0x100
    HIGH_BAND_WIDTH = 0x1000
    USER_SPACE_READONLY = 0x100000


_FLAGS = int(PolicyFlag.LOW_BAND_WIDTH | PolicyFlag.HIGH_BAND_WIDTH | PolicyFlag.USER_SPACE_READONLY)


def new_entry(card: CardState, start: Number, size: Number, asked: tuple, site: Number, flags: Number = 0) -> jax.Array:
    """Return the facts of a block that is allocated now, int32 [len(HeapEntry)]; ``asked`` is (granules, bytes)."""
    facts = [start, size, *asked, site, card.clock[Clock.ENQUEUED], flags]
    return jnp.stack([jnp.asarray(fact, jnp.int32) for fact in facts])


def allocate(
    card: CardState,
    heap: Heap,
    asked: tuple[jax.Array, jax.Array],
    tries: list[tuple[jax.Array, Number]],
    wrong: jax.Array,
    site: Number,
    flags: Number = 0,
    *,
    is_wanted: Number = True,
    pool: tuple[Number, Number] = (0, 0),
) -> tuple[Heap, jax.Array, jax.Array]:
    """Try to place a block; return (heap, pointer, code).

    Args:
      card: The card.
      heap: Where.
      asked: Whole granules and bytes beyond them; a block with the flag IDLE is there to be used for none of them.
      tries: Sizes and pages in granules, in this order; a size of 0 is no try.
      wrong: A code that refuses the call before anything else, or 0.
      site: Call site.
      flags: :class:`HeapFlag` bits of the block.
      is_wanted: Whether there is a block to place at all; if not, the code is ``wrong``.
      pool: For the report: most granules that the pool asked may reserve, 0 = as many as there are; and what it has.
    """
    sizes, pages = (jnp.stack([jnp.asarray(one[i], jnp.int32) for one in tries]) for i in (0, 1))
    sizes = (sizes + pages - 1) & -pages
    found, row, first, taken = find_gap(heap, sizes, pages)
    whole, rest = asked
    is_full = heap.words[HeapWord.COUNT] >= heap.blocks.shape[1]
    code = status.first_code(
        (wrong != Code.SUCCESS, wrong),
        ((whole < 0) | (rest < 0) | (whole + rest <= 0), Code.INVALID_PARAM),
        (is_full, Code.HEAP_TABLE_FULL),
        (~found, Code.MEMORY_ALLOCATION),
    )
    code = jnp.where(is_wanted, code, wrong)
    ok = (code == Code.SUCCESS) & is_wanted
    heap = note_shortage(card, heap, asked, site, code == Code.MEMORY_ALLOCATION, pool)
    is_idle = (jnp.asarray(flags) & HeapFlag.IDLE) != 0
    held = tuple(jnp.where(is_idle, 0, number) for number in asked)
    heap = insert(heap, row, new_entry(card, first, taken, held, site, flags), ok)
    return heap, jnp.where(ok, first, layout.NULL), code


@stage(static=("is_padded", "flags"), reads=("chip", "device", "contexts"), changes=("hbm", "clock", "status"))
def _malloc(card: CardState, request: jax.Array, *, is_padded: bool, flags: int = 0) -> tuple:
    whole, rest, policy, site = request
    policy = policy & ~_FLAGS
    is_known = (policy >= 0) & (policy <= MallocPolicy.HUGE1G_ONLY_P2P)
    by_size = jnp.where(whole >= HUGE_PAGE, int(MallocPolicy.HUGE_ONLY), int(MallocPolicy.NORMAL_ONLY))
    policy = jnp.where(is_known, policy, by_size)
    is_giant = policy >= MallocPolicy.HUGE1G_ONLY
    kind = jnp.where(policy >= MallocPolicy.HUGE_FIRST_P2P, policy - MallocPolicy.HUGE_FIRST_P2P, policy)
    pad = jnp.where(is_giant, 0, card.chip["malloc_pad_bytes"].astype(jnp.int32)) if is_padded else 0
    size = whole + (((rest + 31) & ~31) + pad + GRANULE_BYTES - 1 >> GRANULE_SHIFT)
    is_big = (whole > SMALL_LIMIT) | ((whole == SMALL_LIMIT) & (rest > 0))
    is_huge = (kind == MallocPolicy.HUGE_ONLY) | ((kind == MallocPolicy.HUGE_FIRST) & is_big)
    page = jnp.where(is_giant, GIANT_PAGE, jnp.where(is_huge, HUGE_PAGE, PAGE))
    falls_back = ~is_giant & (kind == MallocPolicy.HUGE_FIRST) & is_big
    wrong = status.first_code((~has_context(card), Code.RT_CONTEXT_NULL))
    tries: list[tuple[jax.Array, Number]] = [(size, page), (jnp.where(falls_back, size, 0), PAGE)]
    heap, pointer, code = allocate(card, card.hbm, (whole, rest), tries, wrong, site, flags)
    card = spend(dataclasses.replace(card, hbm=heap), card.chip["host_malloc_ns"])
    return status.note(card, code, site, given=size_given(whole, rest)), pointer


@stage(changes=("host", "clock", "status"), reads=("chip", "device", "contexts"))
def _malloc_host(card: CardState, request: jax.Array) -> tuple:
    whole, rest, flags, site = request
    size = whole + (rest + GRANULE_BYTES - 1 >> GRANULE_SHIFT)
    tries: list[tuple[jax.Array, Number]] = [(size, 1)]
    needs_context = (flags & HeapFlag.PAGEABLE) == 0  # ordinary memory comes from the C library
    wrong = status.first_code((needs_context & ~has_context(card), Code.RT_CONTEXT_NULL))
    heap, pointer, code = allocate(card, card.host, (whole, rest), tries, wrong, site, flags)
    card = spend(dataclasses.replace(card, host=heap), card.chip["host_malloc_ns"])
    return status.note(card, code, site, given=size_given(whole, rest)), pointer


def release(card: CardState, heap: Heap, pointer: Number, refused: Number) -> tuple[Heap, jax.Array, jax.Array]:
    """Take out the block at ``pointer`` unless it has a flag of ``refused``; return (heap, its facts, code)."""
    found, row = row_at(heap, pointer)
    entry = block_at(heap, row)
    is_other = (entry[HeapEntry.FLAGS] & refused) != 0
    pointer = jnp.asarray(pointer, jnp.int32)
    code = status.first_code((pointer == layout.NULL, Code.INVALID_PARAM), (~found | is_other, Code.RT_PARAM_INVALID))
    return remove(heap, row, code == Code.SUCCESS), entry, code


_NOT_THE_PROGRAMS = int(HeapFlag.POOL | HeapFlag.IDLE | HeapFlag.PHYSICAL | HeapFlag.RUNTIME)


@stage(static=("refused",), changes=("hbm", "clock", "status", "freed"))
def _free(card: CardState, pointer: Number, site: Number, *, refused: int = _NOT_THE_PROGRAMS) -> CardState:
    pointer = jnp.asarray(pointer, jnp.int32)
    heap, entry, code = release(card, card.hbm, pointer, refused)
    card = note_freed(dataclasses.replace(card, hbm=heap), entry, site, code == Code.SUCCESS)
    return status.note(spend(card, card.chip["host_free_ns"]), code, site, given=pointer_given(pointer))


@stage(changes=("host", "clock", "status", "freed"))
def _free_host(card: CardState, request: jax.Array) -> CardState:
    pointer, site = request
    heap, entry, code = release(card, card.host, pointer, 0)
    card = note_freed(dataclasses.replace(card, host=heap), entry, site, code == Code.SUCCESS)
    return status.note(spend(card, card.chip["host_free_ns"]), code, site, given=pointer_given(pointer))


def _known(policy: Number) -> Number:
    """Return a policy as given; -1 for a number that int32 does not hold, which is outside the enum as well."""
    require_whole(policy=policy)
    is_far = isinstance(policy, int | np.integer) and not -(2**31) <= policy < 2**31
    return -1 if is_far else policy


@verb
def malloc(
    card: CardState,
    nbytes: int | jax.Array,
    policy: MallocPolicy | int | jax.Array = MallocPolicy.HUGE_FIRST,
    *,
    site: Site = None,
) -> tuple[CardState, jax.Array]:
    """Allocate device memory (``aclrtMalloc``).

    The size is rounded up to 32 bytes plus ``malloc_pad_bytes`` of the product (32, but 0 on 950), then to whole pages
    of the policy (CANN, aclrtMalloc; 8 MiB take 10 MiB, as measured on a 910C):

    - ``HUGE_FIRST``: 4 KiB pages up to 1 MiB; above, 2 MiB pages, or 4 KiB pages if those do not fit;
    - ``HUGE_ONLY``: 2 MiB pages; ``NORMAL_ONLY``: 4 KiB pages; ``HUGE1G_ONLY``: 1 GiB pages without the extra bytes.

    The P2P variants use the same pages. Of a policy, :class:`PolicyFlag` bits are accepted and ignored; any other value
    is no error, as documented: from 2 MiB on it means huge pages only, below that normal ones (CANN,
    aclrtMemMallocPolicy). A block begins at a multiple of its page, at the lowest address where it fits. Contents are
    whatever was there before.

    Args:
      card: The card.
      nbytes: Bytes wanted; a Python int up to the card's memory, or a traced int32.
      policy: Page policy.
      site: Call site, filled in by the runtime.

    Returns:
      The card and a pointer: an int32 that counts granules of 64 bytes (``ptr + 1`` is 64 bytes further), 0 on failure.
      Status 107002 without a current context, 100000 for a size of 0 or less, 207001 when no range is large
      enough (``aj.out_of_memory(card)`` says what there was), 900004 when the card's ``max_blocks`` are in use.

    >>> import ascend_jax as aj
    >>> card, ptr = aj.malloc(aj.init(aj.chip("Ascend910B2")), 8 << 20)
    >>> free, total = aj.mem_get_info(card)
    >>> (total - free) >> 20
    12
    """
    card, pointer = _malloc(card, packed(*split_bytes(nbytes), _known(policy), site), is_padded=True)
    return with_request(card, nbytes), pointer


@verb
def malloc_align32(
    card: CardState,
    nbytes: int | jax.Array,
    policy: MallocPolicy | int | jax.Array = MallocPolicy.HUGE_FIRST,
    *,
    site: Site = None,
) -> tuple[CardState, jax.Array]:
    """Allocate device memory without the extra bytes (``aclrtMallocAlign32``); otherwise as :func:`malloc`."""
    card, pointer = _malloc(card, packed(*split_bytes(nbytes), _known(policy), site), is_padded=False)
    return with_request(card, nbytes), pointer


@verb
def free(card: CardState, pointer: int | jax.Array, *, site: Site = None) -> CardState:
    """Give device memory back at once, without waiting for work that may still use it (``aclrtFree``).

    Needs no current context. The latest ``max_freed`` frees are remembered for :func:`freed_in_use`.

    Status 100000 for the null pointer, 107000 for a pointer that is not the start of a live block or that belongs to a
    pool or the runtime. (Freeing twice has been seen to return 0 on a real card; here it is an error, because it is
    always a mistake.)
    """
    return _free(card, address(pointer), site)  # not packed: the host need not wait for a pointer to be computed


def malloc_workspace(card: CardState, nbytes: int, site: Site) -> tuple[CardState, jax.Array]:
    """Allocate whole 2 MiB for the runtime itself; status and result as :func:`malloc`."""
    request = packed(*split_bytes(nbytes), int(MallocPolicy.HUGE_ONLY), site)
    return _malloc(card, request, is_padded=False, flags=int(HeapFlag.RUNTIME))


def free_workspace(card: CardState, pointer: int, site: Site) -> CardState:
    """Give back what :func:`malloc_workspace` allocated."""
    return _free(card, pointer, site, refused=_NOT_THE_PROGRAMS ^ int(HeapFlag.RUNTIME))


@verb
def malloc_host(card: CardState, nbytes: int | jax.Array, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Allocate pinned host memory (``aclrtMallocHost``); its pointers are negative. Freed with ``free_host``.

    Status 107002 without a current context; otherwise as :func:`malloc`.
    """
    card, pointer = _malloc_host(card, packed(*split_bytes(nbytes), 0, site))
    return with_request(card, nbytes, "host"), pointer


@verb
def malloc_pageable(card: CardState, nbytes: int | jax.Array, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Allocate ordinary, pageable host memory, as ``malloc`` of C does; its pointers are negative.

    It lies beside pinned memory, and :func:`host_register` pins it. An asynchronous copy from or to it is no
    asynchronous copy: see :func:`memcpy_async`. Freed with ``free_host``.
    """
    card, pointer = _malloc_host(card, packed(*split_bytes(nbytes), int(HeapFlag.PAGEABLE), site))
    return with_request(card, nbytes, "host"), pointer


@verb
def free_host(card: CardState, pointer: int | jax.Array, *, site: Site = None) -> CardState:
    """Give host memory back (``aclrtFreeHost``); needs no current context. Status as :func:`free`."""
    return _free_host(card, packed(address(pointer), site))
