"""Keys in pages, in chunks for products: some pages, or a part of a large one, side by side.

XLA:CPU multiplies nothing where it lies in a larger array, so every chunk is a copy, small enough to stay in the
processor's cache until it is used.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["Chunks", "chunks_of", "numbers_of"]

_ROWS, _LEAST_ROWS = 256, 128  # of a chunk, twice as many on one core; fewer than _ROWS if wider than 128 numbers


class Chunks(NamedTuple):
    """How pages are brought together. All static."""

    page_rows: int
    cuts: int  # pieces of a page
    pieces: int  # of a chunk
    is_kept: bool  # whether every chunk is written over the one before

    @property
    def piece_rows(self) -> int:
        """Rows of a piece."""
        return self.page_rows // self.cuts

    @property
    def rows(self) -> int:
        """Rows of a chunk."""
        return self.pieces * self.piece_rows

    def pieces_of(self, table: jax.Array) -> jax.Array:
        """Numbers the pieces of pages, ``[B, pages]`` to ``[B, pieces]``, a whole number of chunks."""
        numbers = table[:, :, None] * self.cuts + jnp.arange(self.cuts, dtype=table.dtype)[None, None]
        numbers = numbers.reshape(len(table), -1)
        return jnp.pad(numbers, ((0, 0), (0, -numbers.shape[1] % self.pieces)))

    def room(self, pool: jax.Array, width: int) -> jax.Array | None:
        """Returns what the first chunk is written over."""
        return jnp.zeros((self.rows, width), _stored(pool).dtype) if self.is_kept else None

    def take(self, pool: jax.Array, numbers: jax.Array, part: int, width: int, room: jax.Array | None) -> jax.Array:
        """Copies the pieces of a chunk.

        Args:
            pool: ``[blocks, bs, H]``, ``[blocks, K, bs, D]`` or ``[blocks, K, D / c, bs, c]``.
            numbers: ``[pieces]``, of :meth:`pieces_of`.
            part: Number of the columns, ``width`` at a time, or of the key head.
            width: Columns of a row.
            room: The chunk before, or that of :meth:`room`.

        Returns:
            ``[rows, width]``, to be read by :func:`numbers_of`.
        """
        size: tuple[int, ...] = {
            3: (1, self.piece_rows, width), 4: (1, 1, self.piece_rows, width),
            5: (1, 1, pool.shape[2], self.piece_rows, pool.shape[-1]),
        }[pool.ndim]  # fmt: skip
        taken = []
        for number in numbers:
            page, row0 = (number, 0) if self.cuts == 1 else (number // self.cuts, number % self.cuts * self.piece_rows)
            start = {3: (page, row0, part * width), 4: (page, part, row0, 0), 5: (page, part, 0, row0, 0)}[pool.ndim]
            at = [numbers.dtype.type(x) if isinstance(x, int) else x for x in start]  # x64 would widen integers
            rows = lax.dynamic_slice(_stored(pool), at, size)
            rows = rows.swapaxes(2, 3) if pool.ndim == 5 else rows
            taken.append(rows.reshape(-1, width))
        if room is None:
            return jnp.concatenate(taken)
        for n, rows in enumerate(taken):
            room = lax.dynamic_update_slice(room, rows, (n * self.piece_rows, 0))
        return room


def chunks_of(page_rows: int, pages: int, width: int, *, is_kept: bool) -> Chunks:
    """Returns the chunks of so many pages, of whose rows ``width`` columns are taken.

    ``is_kept`` suits one core with one product: every chunk in the same place, and more at a time. Several cores share
    chunks that have places of their own.

    >>> [chunks_of(rows, 99, 128, is_kept=True)[:3] for rows in (16, 128, 1024)]
    [(16, 1, 32), (128, 1, 4), (1024, 4, 2)]
    """
    rows = max(min(_ROWS, _ROWS * 128 // width), _LEAST_ROWS)
    least = -(-page_rows // rows)
    cuts = next((n for n in range(least, 2 * least) if page_rows % n == 0), 1)
    piece_rows = page_rows // cuts
    # of a chunk of one large piece XLA would make a step for several threads
    pieces = max(2, 2 * rows // piece_rows) if is_kept else max(1, rows // piece_rows)
    return Chunks(page_rows, cuts, max(1, min(pieces, pages * cuts)), is_kept)


def numbers_of(chunk: jax.Array, dtype: Any) -> jax.Array:
    """Returns what a chunk of a pool of this type holds."""
    return lax.bitcast_convert_type(chunk, dtype)


def _stored(pool: jax.Array) -> jax.Array:
    """16-bit floats as integers: XLA:CPU would widen the whole pool to slice them."""
    return lax.bitcast_convert_type(pool, jnp.uint16) if pool.dtype.itemsize == 2 else pool
