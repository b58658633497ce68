"""Physical device memory: allocated and freed by handles, reached only where it is mapped (``aclrtMallocPhysical``)."""

import dataclasses

import jax

from ascend_jax.runtime import layout, status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import Site, packed, stage, verb
from ascend_jax.runtime.heap import block_at, change, remove, row_at
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import (
    GIANT_PAGE,
    GRANULE_BYTES,
    HUGE_PAGE,
    HeapEntry,
    HeapFlag,
    Virtual,
    VirtualKind,
)
from ascend_jax.runtime.memory.allocation import allocate
from ascend_jax.runtime.ranges import address, split_bytes
from ascend_jax.runtime.refusals import pointer_given, size_given
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.shortages import with_request
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code


def mem_allocation_granularity(*, giant: bool = False) -> int:
    """Return what sizes of physical memory and mappings are multiples of, in bytes: 2 MiB, or 1 GiB pages."""
    return (GIANT_PAGE if giant else HUGE_PAGE) * GRANULE_BYTES


def find_physical(card: CardState, handle: Number) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (whether a handle of physical memory can be used, its row, its facts)."""
    found, row = row_at(card.hbm, handle)
    entry = block_at(card.hbm, row)
    others = HeapFlag.CONDEMNED | HeapFlag.SEGMENT
    is_it = (entry[HeapEntry.FLAGS] & (HeapFlag.PHYSICAL | others)) == HeapFlag.PHYSICAL
    return found & is_it, row, entry


def is_mapped(card: CardState, handle: Number) -> jax.Array:
    """Return whether physical memory is mapped anywhere."""
    is_mapping = card.virtual[:, Virtual.KIND] == VirtualKind.MAPPING
    return (is_mapping & (card.virtual[:, Virtual.PHYSICAL] == handle)).any()


@stage(static=("page",), changes=("hbm", "clock", "status"))
def _malloc_physical(card: CardState, request: jax.Array, *, page: int) -> tuple:
    whole, rest, site = request
    is_odd = (whole >= 0) & (((whole & (page - 1)) != 0) | (rest != 0))
    wrong = first_code((is_odd, Code.RT_PARAM_INVALID))
    tries: list[tuple[jax.Array, Number]] = [(whole, page)]
    heap, handle, code = allocate(card, card.hbm, (whole, rest), tries, wrong, site, int(HeapFlag.PHYSICAL))
    card = spend(dataclasses.replace(card, hbm=heap), card.chip["host_malloc_ns"])
    return status.note(card, code, site, given=size_given(whole, rest)), handle


@stage(changes=("hbm", "clock", "status"), reads=("chip", "virtual"))
def _free_physical(card: CardState, request: jax.Array) -> CardState:
    handle, site = request
    found, row, entry = find_physical(card, handle)
    code = first_code((handle == layout.NULL, Code.INVALID_PARAM), (~found, Code.RT_PARAM_INVALID))
    ok, is_used = code == Code.SUCCESS, is_mapped(card, handle)
    hbm = change(card.hbm, row, {HeapEntry.FLAGS: entry[HeapEntry.FLAGS] | HeapFlag.CONDEMNED}, ok & is_used)
    hbm = remove(hbm, row, ok & ~is_used)
    card = spend(dataclasses.replace(card, hbm=hbm), card.chip["host_free_ns"])
    return status.note(card, code, site, given=pointer_given(handle))


@verb
def malloc_physical(
    card: CardState, nbytes: Number, *, giant: bool = False, site: Site = None
) -> tuple[CardState, jax.Array]:
    """Allocate device memory that has no address until it is mapped (``aclrtMallocPhysical``).

    Returns:
      The card and a handle, 0 on failure. Status as ``malloc``, but it needs no current context; and 107000 for a size
      that is no multiple of :func:`mem_allocation_granularity`.
    """
    page = GIANT_PAGE if giant else HUGE_PAGE
    card, handle = _malloc_physical(card, packed(*split_bytes(nbytes), site), page=page)
    return with_request(card, nbytes), handle


@verb
def free_physical(card: CardState, handle: Number, *, site: Site = None) -> CardState:
    """Give physical memory back, once it is mapped nowhere (``aclrtFreePhysical``); 107000 for an unknown handle."""
    return _free_physical(card, packed(address(handle), site))
