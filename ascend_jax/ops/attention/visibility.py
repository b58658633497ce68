"""Which key column each query row may attend to: the one definition that all other parts read.

A rule is an interval: row ``i`` sees the columns ``low[i] <= j < high[i]``. Causal masks, bands, prefixes, lengths
and packed sequences are all intervals, so masks, tile classes, the list of live tiles, hidden rows and pair counts
are derived from :func:`column_bounds`, in time and memory linear in the sequence lengths plus the number of tiles.
A mask array that the caller passes hides further pairs inside the interval.

Source of the rules: the ``sparseMode`` attribute of ``aclnnFlashAttentionScore``.
"""

import dataclasses
import enum
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

__all__ = ["ALL_TOKENS", "LiveTiles", "SparseMode", "TileClass", "Visibility", "column_bounds"]

Rows = TypeVar("Rows", np.ndarray, jax.Array)

ALL_TOKENS = 2**31 - 1  # ``preTokens`` and ``nextTokens`` of a call that sets no window


class SparseMode(enum.IntEnum):
    """The ``sparseMode`` values of the CANN attention operators, under the names their sources use."""

    NO_MASK = 0
    ALL_MASK = 1
    LEFT_UP_CAUSAL = 2
    RIGHT_DOWN_CAUSAL = 3
    BAND = 4
    PREFIX = 5
    PREFIX_COMPRESS = 6
    RIGHT_DOWN_CAUSAL_BAND = 7
    BAND_LEFT_UP_CAUSAL = 8


_PREFIX = (SparseMode.PREFIX, SparseMode.PREFIX_COMPRESS)
_BAND = (SparseMode.BAND, SparseMode.RIGHT_DOWN_CAUSAL_BAND, SparseMode.BAND_LEFT_UP_CAUSAL)


def column_bounds(
    rows: Rows,
    q_len: Any,
    kv_len: Any,
    mode: int = SparseMode.NO_MASK,
    *,
    pre_tokens: Any = ALL_TOKENS,
    next_tokens: Any = ALL_TOKENS,
    prefix: Any = 0,
) -> tuple[Rows, Rows]:
    """Returns the half-open interval of columns that each row sees. This is the definition.

    Everything but ``mode`` may be an array that broadcasts with ``rows``, traced or not.

    Args:
        rows: Row numbers, an integer NumPy or JAX array; rows outside ``[0, q_len)`` see nothing.
        q_len: Number of query rows.
        kv_len: Number of key columns.
        mode: The sparse mode. 7 and 8 mean the one sequence of the batch that has the band.
        pre_tokens: Columns to the left of the diagonal that stay visible; modes 0, 4, 7, 8.
        next_tokens: Columns to the right of it.
        prefix: Columns visible to every row; modes 5 and 6.

    Returns:
        ``(low, high)`` with ``0 <= low <= high <= kv_len``.

    >>> column_bounds(np.arange(3), 3, 5, SparseMode.PREFIX, prefix=4)
    (array([0, 0, 0]), array([4, 4, 5]))
    """
    xp: Any = np if isinstance(rows, np.ndarray) else jax.numpy
    zero = rows * 0
    shift = kv_len - q_len
    low, high = zero, zero + kv_len
    if mode == SparseMode.NO_MASK or mode in _BAND:
        anchor = rows + (0 if mode == SparseMode.NO_MASK else shift)
        # a token count past the far corner of the matrix means the same as one that reaches it: no overflow
        reach = q_len + kv_len
        low = anchor - xp.clip(pre_tokens, -reach, reach)
        high = anchor + xp.clip(next_tokens, -reach, reach) + 1
    elif mode == SparseMode.LEFT_UP_CAUSAL:
        high = rows + 1
    elif mode == SparseMode.RIGHT_DOWN_CAUSAL:
        high = rows + shift + 1
    elif mode in _PREFIX:
        high = xp.maximum(rows + shift + 1, prefix)
    high = xp.clip(high, 0, kv_len)
    low = xp.clip(low, 0, high)
    within = (rows >= 0) & (rows < q_len)
    return xp.where(within, low, 0).astype(rows.dtype), xp.where(within, high, 0).astype(rows.dtype)


class TileClass(enum.IntEnum):
    """How much of a tile of the score matrix is visible."""

    SKIP = 0
    PARTIAL = 1
    FULL = 2


class LiveTiles(NamedTuple):
    """Tiles with at least one visible pair, by query tile, then by key tile. Every array is ``[T]``."""

    q_index: np.ndarray  # int32, query tile
    kv_index: np.ndarray  # int32, key tile
    is_partial: np.ndarray  # bool, holds a hidden pair, so it needs its mask
    is_first: np.ndarray  # bool, first live tile of its query tile
    is_last: np.ndarray  # bool, last live tile of its query tile


@dataclasses.dataclass(frozen=True)
class Visibility:
    """May query row ``i`` of ``[0, q_len)`` see key column ``j`` of ``[0, kv_len)``?

    ======================  =================================================================
    mode                    row ``i`` sees, with ``d = kv_len - q_len``
    ======================  =================================================================
    NO_MASK                 ``i - pre_tokens <= j <= i + next_tokens``: every column by default
    ALL_MASK                every column
    LEFT_UP_CAUSAL          ``j <= i``
    RIGHT_DOWN_CAUSAL       ``j <= i + d``
    BAND (and 7, 8)         ``i + d - pre_tokens <= j <= i + d + next_tokens``
    PREFIX, ..._COMPRESS    ``j <= i + d`` or ``j < prefix``
    ======================  =================================================================

    An operator call without an attention mask ignores its sparse mode; the operator says so with ``NO_MASK``.
    Instances are hashable, so they may be static arguments of ``jax.jit``.

    Attributes:
        q_len: Number of query rows, at least 0.
        kv_len: Number of key columns, at least 0.
        mode: The rule; a plain integer is accepted.
        pre_tokens: Reach to the left, of modes 0, 4, 7, 8.
        next_tokens: Reach to the right.
        prefix: Columns that every row sees, of modes 5 and 6.

    Raises:
        ValueError: A length is negative, or the mode is unknown.

    >>> causal = Visibility(q_len=4, kv_len=6, mode=SparseMode.RIGHT_DOWN_CAUSAL)
    >>> causal.column_bounds(np.arange(4))
    (array([0, 0, 0, 0]), array([3, 4, 5, 6]))
    >>> causal.live_pairs()
    18
    """

    q_len: int
    kv_len: int
    mode: SparseMode = SparseMode.NO_MASK
    pre_tokens: int = ALL_TOKENS
    next_tokens: int = ALL_TOKENS
    prefix: int = 0

    def __post_init__(self) -> None:
        if self.q_len < 0 or self.kv_len < 0:
            raise ValueError(f"lengths must be at least 0, got q_len={self.q_len}, kv_len={self.kv_len}")
        object.__setattr__(self, "mode", SparseMode(self.mode))

    def column_bounds(self, rows: Rows) -> tuple[Rows, Rows]:
        """Returns the half-open interval of columns that each row sees; ``low == high`` for a hidden row.

        Args:
            rows: Row numbers, any shape, an integer NumPy or JAX array (traced values are fine).

        Returns:
            ``(low, high)``, shaped and typed as ``rows``, within ``[0, kv_len]``.
        """
        tokens = {"pre_tokens": self.pre_tokens, "next_tokens": self.next_tokens}
        return column_bounds(rows, self.q_len, self.kv_len, self.mode, prefix=self.prefix, **tokens)

    def visible(self, rows: Rows, columns: Rows) -> Rows:
        """Returns the boolean mask ``[R, C]``, True where row ``rows[r]`` sees column ``columns[c]``.

        >>> Visibility(2, 2, SparseMode.LEFT_UP_CAUSAL).visible(np.arange(2), np.arange(2)).tolist()
        [[True, False], [True, True]]
        """
        low, high = self.column_bounds(rows[:, None])
        return (low <= columns[None, :]) & (columns[None, :] < high)

    def live_pairs(self) -> int:
        """Returns the exact number of visible pairs; forward takes ``2 * (D + Dv)`` FLOPs for each."""
        low, high = self.column_bounds(np.arange(self.q_len))
        return int((high - low).clip(0).sum())

    def hidden_rows(self) -> int:
        """Returns the number of rows that see no column at all.

        >>> Visibility(6, 4, SparseMode.RIGHT_DOWN_CAUSAL).hidden_rows()
        2
        """
        low, high = self.column_bounds(np.arange(self.q_len))
        return int((high <= low).sum())

    def tile_class(self, row0: int, rows: int, col0: int, cols: int) -> TileClass:
        """Classifies the tile of ``rows`` by ``cols`` scores whose first entry is ``(row0, col0)``.

        Columns from ``kv_len`` on count as hidden, rows from ``q_len`` on do not count.

        >>> Visibility(8, 8, SparseMode.LEFT_UP_CAUSAL).tile_class(4, 4, 0, 4)
        <TileClass.FULL: 2>
        """
        table = self._classify(np.array([row0, row0 + rows]), np.array([col0, col0 + cols]))
        return TileClass(table[0, 0])

    def tile_classes(self, q_tile: int, kv_tile: int) -> np.ndarray:
        """Classifies every tile of a regular grid, the ragged last ones by the rule of :meth:`tile_class`.

        Args:
            q_tile: Rows of a tile, at least 1.
            kv_tile: Columns of a tile, at least 1.

        Returns:
            ``[ceil(q_len / q_tile), ceil(kv_len / kv_tile)]`` of int8 :class:`TileClass` values.

        >>> Visibility(4, 6, SparseMode.LEFT_UP_CAUSAL).tile_classes(2, 2).tolist()
        [[1, 0, 0], [2, 1, 0]]
        """
        return self._classify(_grid(self.q_len, q_tile), _grid(self.kv_len, kv_tile))

    def live_tiles(self, q_tile: int, kv_tile: int) -> LiveTiles:
        """Lists the tiles that have to be computed. Query tiles whose rows are all hidden do not occur in it.

        >>> [field.tolist() for field in Visibility(4, 4, SparseMode.LEFT_UP_CAUSAL).live_tiles(2, 2)[:3]]
        [[0, 1, 1], [0, 0, 1], [True, False, True]]
        """
        classes = self.tile_classes(q_tile, kv_tile)
        q_index, kv_index = (index.astype(np.int32) for index in np.nonzero(classes))
        changes = q_index[1:] != q_index[:-1]
        return LiveTiles(
            q_index=q_index,
            kv_index=kv_index,
            is_partial=classes[q_index, kv_index] == TileClass.PARTIAL,
            is_first=np.append(True, changes)[: q_index.size],
            is_last=np.append(changes, True)[: q_index.size],
        )

    def _classify(self, row_edges: np.ndarray, column_edges: np.ndarray) -> np.ndarray:
        """Classifies the tiles between consecutive edges: int8 ``[row tiles, column tiles]``."""
        rows = np.arange(row_edges[0], min(row_edges[-1], self.q_len))
        low, high = self.column_bounds(rows)
        line = np.searchsorted(row_edges, rows, "right") - 1
        shape = (row_edges.size - 1, column_edges.size - 1)
        # Of each row: the run of tiles that hold a visible column, and the run that holds no hidden one.
        met_from = np.searchsorted(column_edges, low, "right") - 1
        met_to = np.where(low < high, np.searchsorted(column_edges, high, "left"), met_from)
        filled_from = np.searchsorted(column_edges, low, "left")
        filled_to = np.searchsorted(column_edges, high, "right") - 1
        is_live = _count_runs(line, met_from, met_to, shape) > 0
        rows_in_tile = np.bincount(line, minlength=shape[0])[:, None]
        is_full = _count_runs(line, filled_from, filled_to, shape) == rows_in_tile
        classes = np.where(is_full, TileClass.FULL, TileClass.PARTIAL)
        return np.where(is_live, classes, TileClass.SKIP).astype(np.int8)


def _grid(length: int, tile: int) -> np.ndarray:
    """Returns the edges ``0, tile, 2 * tile, ...`` of the tiles that cover ``length``."""
    if tile < 1:
        raise ValueError(f"a tile needs at least 1 row and 1 column, got {tile}")
    return np.arange(-(-length // tile) + 1) * tile


def _count_runs(line: np.ndarray, start: np.ndarray, end: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Counts the runs ``[start, end)`` on ``line`` that hold each cell of ``shape``: differences, summed."""
    start = start.clip(0, shape[1])
    end = np.maximum(start, end.clip(0, shape[1]))
    steps = np.zeros((shape[0], shape[1] + 1), np.int64)
    np.add.at(steps, (line, start), 1)
    np.add.at(steps, (line, end), -1)
    return steps.cumsum(axis=1)[:, :-1]
