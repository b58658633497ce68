"""Keys in pages, in chunks for products: some pages, or a part of a large one, side by side.

XLA:CPU multiplies nothing where it lies in a larger array, so every chunk is a copy, written over the one before and
small enough to stay in the processor's cache until it is used.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["Chunks", "chunks_of", "numbers_of"]

_NUMBERS, _ROWS = 65536, 512  # of a chunk of keys at most, if pages can be cut
_WIDTH = 1024  # numbers of a row of pages that are taken at most, in whole heads: more make a chunk of too few rows


class Chunks(NamedTuple):
    """How pages are brought together. All static."""

    page_rows: int
    heads: int  # key heads side by side
    cuts: int  # pieces of a page
    pieces: int  # of a chunk

    @property
    def piece_rows(self) -> int:
        """Rows of a piece."""
        return self.page_rows // self.cuts

    @property
    def rows(self) -> int:
        """Rows of a chunk."""
        return self.pieces * self.piece_rows

    def pieces_of(self, table: jax.Array) -> jax.Array:
        """Numbers the pieces of pages, ``[B, pages]`` to ``[B, pieces]``, a whole number of chunks, at least one."""
        numbers = table[:, :, None] * self.cuts + jnp.arange(self.cuts, dtype=table.dtype)[None, None]
        numbers = numbers.reshape(len(table), table.shape[1] * self.cuts)
        chunks = max(1, -(-numbers.shape[1] // self.pieces))
        return jnp.pad(numbers, ((0, 0), (0, chunks * self.pieces - numbers.shape[1])))

    def room(self, pool: jax.Array, dim: int) -> jax.Array:
        """Returns what the first chunk is written over."""
        return jnp.zeros((self.heads, self.rows, dim), _stored(pool).dtype)

    def take(self, pool: jax.Array, numbers: jax.Array, first: Any, room: jax.Array) -> jax.Array:
        """Copies the pieces of a chunk.

        Args:
            pool: ``[blocks, bs, H]``, ``[blocks, K, bs, D]`` or ``[blocks, K, D / c, bs, c]``.
            numbers: ``[pieces]``, of :meth:`pieces_of`.
            first: Number of the first of the key heads.
            room: ``[heads, rows, D]``, the chunk before, or that of :meth:`room`.

        Returns:
            ``[heads, rows, D]``, to be read by :func:`numbers_of`.
        """
        heads, _, dim = room.shape
        size: tuple[int, ...] = {
            3: (1, self.piece_rows, heads * dim), 4: (1, heads, self.piece_rows, dim),
            5: (1, heads, pool.shape[2], self.piece_rows, pool.shape[-1]),
        }[pool.ndim]  # fmt: skip
        for n, number in enumerate(numbers):
            page, row0 = (number, 0) if self.cuts == 1 else (number // self.cuts, number % self.cuts * self.piece_rows)
            start = {3: (page, row0, first * dim), 4: (page, first, row0, 0), 5: (page, first, 0, row0, 0)}[pool.ndim]
            at = [numbers.dtype.type(x) if isinstance(x, int) else x for x in start]  # x64 would widen integers
            rows = lax.dynamic_slice(_stored(pool), at, size)
            if pool.ndim == 3:
                rows = rows.reshape(self.piece_rows, heads, dim).swapaxes(0, 1)
            elif pool.ndim == 5:
                rows = rows.swapaxes(2, 3)
            rows = rows.reshape(heads, self.piece_rows, dim)
            room = lax.dynamic_update_slice(room, rows, (0, n * self.piece_rows, 0))
        return room


def chunks_of(page_rows: int, pages: int, kv_heads: int, dim: int) -> Chunks:
    """Returns the chunks of so many pages of keys.

    >>> [chunks_of(rows, 99, heads, 128) for rows, heads in ((16, 1), (128, 32))]
    [Chunks(page_rows=16, heads=1, cuts=1, pieces=32), Chunks(page_rows=128, heads=8, cuts=4, pieces=2)]
    """
    heads = max(n for n in range(1, kv_heads + 1) if kv_heads % n == 0 and (n == 1 or n * dim <= _WIDTH))
    rows = max(2, min(_ROWS, _NUMBERS // (heads * dim)))
    # of a chunk of one large piece XLA would make a step for several threads
    least = -(-page_rows // (rows // 2))
    cuts = next((n for n in range(least, 2 * least) if page_rows % n == 0), 1)
    pieces = max(2, rows // (page_rows // cuts))
    return Chunks(page_rows, heads, cuts, max(1, min(pieces, pages * cuts)))


def numbers_of(chunk: jax.Array, dtype: Any) -> jax.Array:
    """Returns what a chunk of a pool of this type holds."""
    return lax.bitcast_convert_type(chunk, dtype)


def _stored(pool: jax.Array) -> jax.Array:
    """16-bit floats as integers: XLA:CPU would widen the whole pool to slice them."""
    return lax.bitcast_convert_type(pool, jnp.uint16) if pool.dtype.itemsize == 2 else pool
