"""Virtual memory: reserve addresses, and map physical memory to them (``aclrtMapMem``).

These calls go to the driver and need no current context (CANN runtime, its VMM calls).
Virtual addresses lie behind the device memory, or before the null pointer if that leaves too few. A copy or an operand
must lie in one mapping: what spans two is refused, even if they touch.
"""

import dataclasses

import jax
import jax.numpy as jnp

from ascend_jax.runtime import layout, status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import Site, packed, stage, verb
from ascend_jax.runtime.freed import note_freed
from ascend_jax.runtime.heap import FAR, block_at, remove, row_at
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import (
    HUGE_PAGE,
    HeapEntry,
    HeapFlag,
    HeapWord,
    Virtual,
    VirtualKind,
)
from ascend_jax.runtime.memory.physical_memory import find_physical, is_mapped
from ascend_jax.runtime.ranges import Range, address, split_bytes
from ascend_jax.runtime.refusals import pointer_given, range_given, size_given
from ascend_jax.runtime.rows import Number, get_row, put_if
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code
from ascend_jax.runtime.translation import virtual_span


def _row(kind: VirtualKind, start: Number, size: Number, physical: Number = 0) -> jax.Array:
    return jnp.stack([jnp.asarray(number, jnp.int32) for number in (kind, start, size, physical)])


def _free_row(card: CardState) -> tuple[jax.Array, jax.Array]:
    kinds = card.virtual[:, Virtual.KIND]
    return (kinds == VirtualKind.NONE).any(), jnp.argmin(kinds)


def _row_at(card: CardState, kind: VirtualKind, pointer: Number) -> tuple[jax.Array, jax.Array]:
    """Return (whether a row of a kind starts at ``pointer``, its number)."""
    is_it = (card.virtual[:, Virtual.KIND] == kind) & (card.virtual[:, Virtual.START] == pointer)
    return is_it.any(), jnp.argmax(is_it)


def _overlaps(card: CardState, kinds: tuple[VirtualKind, ...], start: Number, size: Number) -> jax.Array:
    """Return whether a range of granules shares any with a row of some kinds."""
    begins, sizes = card.virtual[:, Virtual.START], card.virtual[:, Virtual.SIZE]
    is_met = (start < begins + sizes) & (begins < start + size)
    return (jnp.isin(card.virtual[:, Virtual.KIND], jnp.array(kinds)) & is_met).any()


@stage(changes=("virtual", "clock", "status"), reads=("chip", "hbm"))
def _reserve(card: CardState, request: jax.Array) -> tuple:
    whole, rest, site = request
    size = (whole + (rest > 0) + HUGE_PAGE - 1) & -HUGE_PAGE
    base, end = virtual_span(card.hbm.words[HeapWord.END])
    kinds = VirtualKind.RESERVATION, VirtualKind.SEGMENT
    is_reserved = jnp.isin(card.virtual[:, Virtual.KIND], jnp.array(kinds))
    ends = jnp.where(is_reserved, card.virtual[:, Virtual.START] + card.virtual[:, Virtual.SIZE], base)
    starts = jnp.append(ends, base)  # the lowest gap begins at the base or behind a reservation
    is_clear = jax.vmap(lambda start: ~_overlaps(card, kinds, start, size))(starts)
    fits = is_clear & (starts >= base) & (size <= end - starts)
    start = jnp.where(fits, starts, FAR).min()
    has_row, row = _free_row(card)
    code = first_code(
        ((whole < 0) | (size <= 0), Code.INVALID_PARAM),
        (~has_row, Code.OBJECT_TABLE_FULL),
        (~fits.any(), Code.MEMORY_ALLOCATION),
    )
    ok = code == Code.SUCCESS
    virtual = put_if(ok, card.virtual, row, _row(VirtualKind.RESERVATION, start, size))
    card = spend(dataclasses.replace(card, virtual=virtual), card.chip["host_malloc_ns"])
    return status.note(card, code, site, given=size_given(whole, rest)), jnp.where(ok, start, layout.NULL)


@stage(changes=("virtual", "clock", "status"))
def _release(card: CardState, request: jax.Array) -> CardState:
    pointer, site = request
    found, row = _row_at(card, VirtualKind.RESERVATION, pointer)
    size = get_row(card.virtual, row)[Virtual.SIZE]
    is_used = found & _overlaps(card, (VirtualKind.MAPPING,), pointer, size)
    code = first_code((pointer == layout.NULL, Code.INVALID_PARAM), (~found | is_used, Code.RT_PARAM_INVALID))
    virtual = put_if(code == Code.SUCCESS, card.virtual, row, jnp.zeros(len(Virtual), jnp.int32))
    card = spend(dataclasses.replace(card, virtual=virtual), card.chip["host_free_ns"])
    return status.note(card, code, site, given=pointer_given(pointer))


@stage(changes=("virtual", "clock", "status"), reads=("chip", "hbm"))
def _map(card: CardState, request: jax.Array) -> CardState:
    pointer, whole, rest, handle, site = request
    found, _, entry = find_physical(card, handle)
    begins, sizes = card.virtual[:, Virtual.START], card.virtual[:, Virtual.SIZE]
    ahead = pointer - begins  # below 0 as well where it passes int32
    is_inside = (begins <= pointer) & (ahead >= 0) & (whole <= sizes - ahead)
    is_reserved = ((card.virtual[:, Virtual.KIND] == VirtualKind.RESERVATION) & is_inside).any()
    is_odd = (whole != entry[HeapEntry.SIZE]) | (rest != 0) | ((pointer & (HUGE_PAGE - 1)) != 0)
    is_taken = _overlaps(card, (VirtualKind.MAPPING,), pointer, whole)
    has_row, row = _free_row(card)
    code = first_code(
        ((pointer == layout.NULL) | (handle == layout.NULL), Code.INVALID_PARAM),
        (~found | ~is_reserved | is_odd | is_taken, Code.RT_PARAM_INVALID),
        (~has_row, Code.OBJECT_TABLE_FULL),
    )
    virtual = put_if(code == Code.SUCCESS, card.virtual, row, _row(VirtualKind.MAPPING, pointer, whole, handle))
    card = spend(dataclasses.replace(card, virtual=virtual), card.chip["host_malloc_ns"])
    return status.note(card, code, site, given=range_given(Range(pointer, 0, whole, rest)))


@stage(changes=("virtual", "hbm", "clock", "status", "freed"))
def _unmap(card: CardState, request: jax.Array) -> CardState:
    pointer, site = request
    found, row = _row_at(card, VirtualKind.MAPPING, pointer)
    code = first_code((pointer == layout.NULL, Code.INVALID_PARAM), (~found, Code.RT_PARAM_INVALID))
    ok, handle = code == Code.SUCCESS, get_row(card.virtual, row)[Virtual.PHYSICAL]
    virtual = put_if(ok, card.virtual, row, jnp.zeros(len(Virtual), jnp.int32))
    card = dataclasses.replace(card, virtual=virtual)
    is_block, block = row_at(card.hbm, handle)
    entry, is_last = block_at(card.hbm, block), ok & is_block & ~is_mapped(card, handle)
    card = note_freed(card, entry, site, is_last)  # from here on no address leads to it
    is_condemned = (entry[HeapEntry.FLAGS] & HeapFlag.CONDEMNED) != 0
    hbm = remove(card.hbm, block, is_last & is_condemned)
    card = spend(dataclasses.replace(card, hbm=hbm), card.chip["host_free_ns"])
    return status.note(card, code, site, given=pointer_given(pointer))


@verb
def reserve_mem_address(card: CardState, nbytes: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Reserve virtual addresses, rounded up to 2 MiB; takes no memory (``aclrtReserveMemAddress``).

    Returns:
      The card and the first address, 0 on failure. Status 100000 for a size of 0 or less, 207001 if no run of
      addresses is long enough, 900005 if the card's ``max_mappings`` are.

    >>> import ascend_jax as aj
    >>> card, address = aj.reserve_mem_address(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 22), 8 << 20)
    >>> card, handle = aj.malloc_physical(card, 2 << 20)
    >>> card = aj.memset(aj.map_mem(card, address, 2 << 20, handle), address, 7, 100)
    >>> card, out = aj.download(card, address, (2,), "uint8")
    >>> out.tolist(), aj.status(card).code
    ([7, 7], 0)
    """
    return _reserve(card, packed(*split_bytes(nbytes), site))


@verb
def release_mem_address(card: CardState, pointer: Number, *, site: Site = None) -> CardState:
    """Give reserved addresses back (``aclrtReleaseMemAddress``).

    Status 100000 for the null pointer, 107000 for what is no start of a reservation or while anything is mapped there.
    """
    return _release(card, packed(address(pointer), site))


@verb
def map_mem(card: CardState, pointer: Number, nbytes: Number, handle: Number, *, site: Site = None) -> CardState:
    """Map physical memory to reserved addresses (``aclrtMapMem``).

    Status 100000 for a null pointer or handle; 107000 for an unknown handle, a size that is not that of the physical
    memory, an address that is no multiple of 2 MiB, not reserved or mapped already; 900005 if the table is full.
    """
    return _map(card, packed(address(pointer), *split_bytes(nbytes), address(handle), site))


@verb
def unmap_mem(card: CardState, pointer: Number, *, site: Site = None) -> CardState:
    """Undo a mapping (``aclrtUnmapMem``); 107000 if none starts at ``pointer``. Memory freed before goes now."""
    return _unmap(card, packed(address(pointer), site))
