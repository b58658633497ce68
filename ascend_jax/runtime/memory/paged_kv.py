"""Pages of a key-value cache: which sequence owns which page, as tables that pass through ``jit`` and ``vmap``.

Position ``i`` of a sequence lies in slot ``table[i // page_size] * page_size + i % page_size``. Entries of a table
beyond the pages of its sequence are ignored, whatever they hold.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import require_whole
from ascend_jax.runtime.rows import Number, get_row, put_row
from ascend_jax.runtime.status import first_code, first_failing

NO_PAGE = -1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PagedCache:
    """Pages of at most B sequences. Every page is free, or in exactly one table."""

    tables: jax.Array  # int32 [B, W], pages of each sequence in order, NO_PAGE beyond
    lengths: jax.Array  # int32 [B], positions of each sequence
    owners: jax.Array  # int32 [pages], sequence that owns each page, NO_PAGE if free
    page_size: int = dataclasses.field(metadata={"static": True})  # positions of a page


def paged_cache(pages: int, page_size: int, sequences: int, *, pages_per_sequence: int | None = None) -> PagedCache:
    """Return a cache of which every page is free.

    Raises:
      ValueError: A count is below 1, or the page size is no multiple of 16 (the unit in which the attention operators
        read pages; 128 suits all of them).

    >>> cache = paged_cache(8, 128, 2)
    >>> cache, code = kv_extend(cache, 0, 300)
    >>> cache.tables[0].tolist()[:4], int(code), int(free_pages(cache))
    ([0, 1, 2, -1], 0, 5)
    """
    width = pages if pages_per_sequence is None else pages_per_sequence
    counts = {"pages": pages, "page_size": page_size, "sequences": sequences, "pages_per_sequence": width}
    require_whole(**counts)
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} = {count}: must be 1 or more")
    if page_size % 16:
        raise ValueError(f"page_size = {page_size}: must be a multiple of 16; 128 suits every attention operator")
    return PagedCache(
        tables=jnp.full((sequences, width), NO_PAGE, jnp.int32),
        lengths=jnp.zeros(sequences, jnp.int32),
        owners=jnp.full(pages, NO_PAGE, jnp.int32),
        page_size=page_size,
    )


def free_pages(cache: PagedCache) -> jax.Array:
    """Return how many pages are free, int32."""
    return (cache.owners == NO_PAGE).sum(dtype=jnp.int32)


def _check(cache: PagedCache, sequence: Number, positions: Number) -> jax.Array:
    is_unknown = (jnp.asarray(sequence) < 0) | (jnp.asarray(sequence) >= cache.tables.shape[0])
    return first_code((is_unknown, Code.RT_PARAM_INVALID), (jnp.asarray(positions) < 0, Code.INVALID_PARAM))


def _within_int32(number: Number) -> Number:
    """Return a number as given, a Python int at the nearest one that int32 holds: no cache is that large."""
    return max(-(2**31), min(int(number), 2**31 - 1)) if isinstance(number, int | np.integer) else number


def kv_extend(cache: PagedCache, sequence: Number, positions: Number) -> tuple[PagedCache, jax.Array]:
    """Make a sequence longer by some positions; it gets the lowest free pages that it needs.

    Returns:
      The cache and a code: 107000 for an unknown sequence, 100000 for a negative count, 207001 if there are too few
      free pages or its table is too short. On failure nothing has changed.
    """
    require_whole(sequence=sequence, positions=positions)
    sequence, positions = _within_int32(sequence), _within_int32(positions)
    code = _check(cache, sequence, positions)
    row = jnp.clip(jnp.asarray(sequence, jnp.int32), 0, cache.tables.shape[0] - 1)
    length, table = get_row(cache.lengths, row), get_row(cache.tables, row)
    longer = length + jnp.maximum(positions, 0)
    size, width = cache.page_size, cache.tables.shape[1]
    held, wanted = -(-length // size), -(-longer // size)
    is_free = cache.owners == NO_PAGE
    rank = jnp.cumsum(is_free) - 1  # of a free page among the free ones
    is_taken = is_free & (rank < wanted - held)
    is_short = (wanted > width) | (is_free.sum() < wanted - held) | (longer < length)
    code = first_failing(code, first_code((is_short, Code.MEMORY_ALLOCATION)))
    ok = code == Code.SUCCESS
    place = jnp.where(is_taken, held + rank, width)
    extended = jnp.append(table, NO_PAGE).at[jnp.minimum(place, width)].set(jnp.arange(is_free.shape[0]))[:width]
    owners = jnp.where(is_taken & ok, row, cache.owners)
    tables = put_row(cache.tables, row, jnp.where(ok, extended, table))
    lengths = put_row(cache.lengths, row, jnp.where(ok, longer, length))
    return dataclasses.replace(cache, tables=tables, lengths=lengths, owners=owners), code


def kv_free(cache: PagedCache, sequence: Number) -> tuple[PagedCache, jax.Array]:
    """End a sequence and free its pages; freeing an empty one changes nothing. Code 107000 for an unknown sequence."""
    require_whole(sequence=sequence)
    sequence = _within_int32(sequence)
    code = _check(cache, sequence, 0)
    ok = code == Code.SUCCESS
    row = jnp.clip(jnp.asarray(sequence, jnp.int32), 0, cache.tables.shape[0] - 1)
    owners = jnp.where((cache.owners == row) & ok, NO_PAGE, cache.owners)
    tables = put_row(cache.tables, row, jnp.where(ok, NO_PAGE, get_row(cache.tables, row)))
    lengths = put_row(cache.lengths, row, jnp.where(ok, 0, get_row(cache.lengths, row)))
    return dataclasses.replace(cache, tables=tables, lengths=lengths, owners=owners), code


def kv_slots(cache: PagedCache, sequence: Number, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the slots of some positions of a sequence, int32 like ``positions``, and a code.

    A slot is -1 where the position is not in the sequence. Code 107000 for an unknown sequence or any such position, or
    a page number outside the cache in an entry that is needed.
    """
    require_whole(sequence=sequence, positions=positions)
    sequence = _within_int32(sequence)
    code = _check(cache, sequence, 0)
    row = jnp.clip(jnp.asarray(sequence, jnp.int32), 0, cache.tables.shape[0] - 1)
    table, length = get_row(cache.tables, row), get_row(cache.lengths, row)
    is_inside = (positions >= 0) & (positions < length)
    page = table[jnp.clip(positions // cache.page_size, 0, table.shape[0] - 1)]
    is_known = is_inside & (page >= 0) & (page < cache.owners.shape[0]) & (code == Code.SUCCESS)
    slots = jnp.where(is_known, page * cache.page_size + positions % cache.page_size, NO_PAGE)
    return slots, first_failing(code, first_code((~is_known.all(), Code.RT_PARAM_INVALID)))


def kv_is_consistent(cache: PagedCache) -> jax.Array:
    """Return whether free and used pages are disjoint and complete, and every table holds what its length needs."""
    pages, width = cache.owners.shape[0], cache.tables.shape[1]
    held = -(-cache.lengths // cache.page_size)
    is_held = jnp.arange(width)[None] < held[:, None]
    page = jnp.where(is_held, cache.tables, pages)
    is_page = (page >= 0) & (page < pages)
    counts = jnp.zeros(pages + 1, jnp.int32).at[jnp.where(is_page, page, pages)].add(1)[:pages]
    rows = jnp.arange(cache.tables.shape[0])[:, None]
    owner = jnp.append(cache.owners, NO_PAGE)[jnp.clip(page, 0, pages)]
    is_owned = (owner == rows) | ~is_held
    is_once = counts == (cache.owners != NO_PAGE)
    return is_once.all() & is_owned.all() & (is_page | ~is_held).all()
