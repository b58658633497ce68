"""What stands between the products ``q k^T`` and the softmax: visibility, masks, position bias, dropout; by tile.

Forward, backward and the unfused form all call :func:`tile_scores` and :func:`tile_mask`, so that they cannot differ.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.dropout import Dropout, Elements, keep_tile

__all__ = [
    "LiveTiles",
    "Options",
    "Scoring",
    "Spot",
    "TileRuns",
    "fit_to_tile",
    "keep_weights",
    "quantise_weights",
    "tile_mask",
    "tile_runs",
    "tile_scores",
]

ALIBI_ROWS = 1024  # rows of the compressed position bias


@dataclasses.dataclass(frozen=True)
class Options:
    """The static side of an attention call: hashable.

    ``bias_kind`` is "dense" (array ``[B|1, N|1, Sq|1, Skv|1]``), "compressed" (``[B|1, N, 1024, Skv]``, the last 1024
    rows of a Toeplitz matrix), "flat" (packed sequences one after the other), or "distance" / "root" (slopes
    ``[B|1, N]`` times minus the distance to the diagonal, or minus its square root).
    """

    tile: tuple[int, int]  # host tile: query rows, key columns
    mask_hides: bool = False  # a True of the mask hides (CANN) rather than keeps (JAX)
    mask_is_local: bool = False  # the mask [maxSq, maxSkv] serves every packed sequence
    mask_value: float | None = None  # None: hidden is exactly zero; else masked scores are replaced by it
    bias_kind: str = "dense"
    bias_first: bool = False  # (q k^T + bias) scale rather than q k^T scale + bias
    bias_start: int = 0  # kv start less q start of "distance" and "root"
    softcap: float | None = None  # cap * tanh(score / cap), after the bias
    weight_dtype: str | None = None  # weights are rounded to it before the second product, as the device does
    score_dtype: str | None = None  # scores are rounded to it: softmax in float16
    precision: Any = lax.Precision.HIGHEST
    is_narrow: bool = False  # 16-bit operands, and weights with them, are multiplied as such; sums stay float32

    @property
    def sees_score(self) -> bool:
        """Whether a number added to all scores of a row would change its softmax."""
        return self.softcap is not None or self.score_dtype is not None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Scoring:
    """The array side of an attention call, without what has a gradient. ``Bx`` is B or 1."""

    low: jax.Array  # int32 [Bx, Sq], first column that a row may see
    high: jax.Array  # int32 [Bx, Sq], and the end
    row: jax.Array | None = None  # int32 [1, Sq], number of a row in its own packed sequence; None: its number
    origin: jax.Array | None = None  # int32 [1, Sq], first column of that sequence; None: 0
    q_segment: jax.Array | None = None  # int32 [Bx, Sq]; with kv_segment, only pairs of equal segments are visible
    kv_segment: jax.Array | None = None  # int32 [Bx, Skv]
    is_whole: jax.Array | None = None  # bool [Bx, 1], every segment is one run of columns: the interval says it all
    mask: jax.Array | None = None  # bool or uint8 [B|1, N|1, Sq|1, Skv|1]
    dropout: Dropout | None = None
    weight_scale: jax.Array | None = None  # float32 []: weights times it are rounded to int8, and stay multiplied
    order: Elements | None = None  # numbers of the elements, for dropout and flat bias; None: [B, N, Sq, Skv]


class Lines(NamedTuple):
    """What the scoring says of the rows of a query tile, fetched once for all of its key tiles. int32 ``[rows]``."""

    low: jax.Array
    high: jax.Array
    row: jax.Array
    origin: jax.Array | None
    segment: jax.Array | None


class Spot(NamedTuple):
    """A tile: where it starts (int32 scalars), its rows, and its size (static)."""

    batch: Any
    head: Any
    row0: Any
    col0: Any
    rows: int
    cols: int
    lines: Lines
    is_aligned: bool  # static: col0 and cols are multiples of PHILOX_COLUMNS

    @property
    def columns(self) -> jax.Array:
        """Column numbers in the sequence of each row: ``[rows|1, cols]``."""
        columns = self.col0 + jnp.arange(self.cols)[None, :]
        return columns if self.lines.origin is None else columns - self.lines.origin[:, None]


def lines_of(scoring: Scoring, batch: Any, row0: Any, rows: int) -> Lines:
    """Fetches the lines of a query tile; rows past the last one see nothing."""
    at = row0 + jnp.arange(rows)
    last = scoring.low.shape[1] - 1

    def fetch(x: jax.Array | None) -> jax.Array | None:
        return None if x is None else x[_of_batch(x, batch), jnp.minimum(at, last)]

    low, high = (jnp.where(at <= last, x, 0) for x in (fetch(scoring.low), fetch(scoring.high)))  # type: ignore[arg-type]
    row = fetch(scoring.row)
    return Lines(low, high, at if row is None else row, fetch(scoring.origin), fetch(scoring.q_segment))


class LiveTiles(NamedTuple):
    """The key tiles of which a mask array shows a pair, within the run of their query tile."""

    order: jax.Array  # int32 [B|1, N|1, q tiles, kv tiles], their numbers, rising, and then all others
    counts: jax.Array  # int32 [B|1, N|1, q tiles]


class TileRuns(NamedTuple):
    """Of each query tile ``[Bx, q tiles]``: live key tiles ``[start, end)``, and ``[full, part)`` without mask."""

    start: jax.Array
    full: jax.Array
    part: jax.Array
    end: jax.Array
    live: LiveTiles | None = None  # with a mask array


def tile_runs(scoring: Scoring, options: Options) -> TileRuns:
    """Classifies the key tiles of every query tile: the hull of what its rows see, and what all of them see."""
    q_tile, kv_tile = options.tile
    q_len = scoring.low.shape[1]
    pad = -q_len % q_tile
    low, high = (jnp.pad(x, ((0, 0), (0, pad))).reshape(x.shape[0], -1, q_tile) for x in (scoring.low, scoring.high))
    is_live = low < high
    is_row = (jnp.arange(q_len + pad) < q_len).reshape(1, -1, q_tile)
    most = jnp.iinfo(jnp.int32).max // 2
    end = _up(jnp.where(is_live, high, 0).max(axis=2), kv_tile)
    start = jnp.minimum(jnp.where(is_live, low, most).min(axis=2) // kv_tile, end)
    full = _up(jnp.where(is_row, low, 0).max(axis=2), kv_tile).clip(start, end)
    part = jnp.where(is_row, jnp.where(is_live, high, 0), most).min(axis=2) // kv_tile
    if scoring.mask is not None:
        part = jnp.zeros_like(part)
    if scoring.is_whole is not None:
        part = jnp.where(scoring.is_whole, part, 0)
    return TileRuns(start, full, part.clip(full, end), end, _live_tiles(scoring, options, start, end))


def _live_tiles(scoring: Scoring, options: Options, start: jax.Array, end: jax.Array) -> LiveTiles | None:
    """Summarises a mask array by tiles, once per call; None where it is not laid out by tiles."""
    mask = scoring.mask
    if mask is None or options.mask_is_local or mask.shape[3] == 1:
        return None
    q_tile, kv_tile = options.tile
    seen = (mask == 0) if options.mask_hides else (mask != 0)
    q_len = scoring.low.shape[1]
    seen = seen[:, :, :q_len]  # a mask smaller than a tile is padded
    rows = 1 if mask.shape[2] == 1 else q_tile
    pads = [(0, 0), (0, 0), (0, -seen.shape[2] % rows), (0, -seen.shape[3] % kv_tile)]
    tiles = jnp.pad(seen, pads).reshape(*seen.shape[:2], -(-seen.shape[2] // rows), rows, -1, kv_tile)
    is_live = tiles.any(axis=(3, 5))
    at = jnp.arange(is_live.shape[3])[None, None, :]
    is_met = (start[..., None] <= at) & (at < end[..., None])
    if options.mask_value is not None:  # a row whose pairs are all masked averages over them: visit all
        columns = jnp.arange(seen.shape[3])[None, None, :]
        within = (scoring.low[..., None] <= columns) & (columns < scoring.high[..., None])
        is_blind = (scoring.low < scoring.high)[:, None] & ~(seen & within[:, None]).any(axis=3)
        is_blind = jnp.pad(is_blind, ((0, 0), (0, 0), (0, -q_len % q_tile)))
        is_live = is_live | is_blind.reshape(*is_blind.shape[:2], -1, q_tile).any(axis=3)[..., None]
    is_live = is_live & is_met[:, None]
    return LiveTiles(jnp.argsort(~is_live, axis=3, stable=True).astype(jnp.int32), is_live.sum(axis=3))


def _up(x: jax.Array, step: int) -> jax.Array:
    return -(-x // step)


def tile_scores(
    products: jax.Array, spot: Spot, scoring: Scoring, options: Options, bias: jax.Array | None, scale: jax.Array
) -> jax.Array:
    """Makes scores of a tile of products ``[rows, cols]`` that are scaled already."""
    scores = products
    if bias is not None:
        term = bias_tile(bias, spot, scoring, options).astype(scores.dtype)
        scores = scores + (term * scale if options.bias_first else term)
    if options.softcap is not None:
        scores = options.softcap * jnp.tanh(scores / options.softcap)
    if options.score_dtype is not None:
        scores = scores.astype(options.score_dtype).astype(scores.dtype)
    return scores


def bias_tile(bias: jax.Array, spot: Spot, scoring: Scoring, options: Options) -> jax.Array:
    """Returns the bias of a tile, ``[rows|1, cols|1]``."""
    if options.bias_kind == "dense":
        return slice_tile(bias, spot)
    if options.bias_kind == "flat":
        return bias[flat_index(bias, spot, scoring)]
    if options.bias_kind == "compressed":
        return bias[compressed_index(bias, spot, scoring)]
    is_packed = bias.shape[0] > 1 and scoring.row is not None  # a slope per packed sequence, hence per row
    slope = bias[spot.lines.segment, spot.head][:, None] if is_packed else bias[_of_batch(bias, spot.batch), spot.head]
    far = jnp.abs(spot.columns + options.bias_start - spot.lines.row[:, None])
    far = far.astype(bias.dtype)
    return -slope * (far if options.bias_kind == "distance" else jnp.sqrt(far))


def flat_index(bias: jax.Array, spot: Spot, scoring: Scoring) -> tuple[jax.Array]:
    """Returns the index of a tile's elements in the flat bias; hidden ones get some valid index."""
    assert scoring.order is not None  # whoever gives a flat bias numbers its elements
    high, low = scoring.order.row(spot.batch, spot.head, spot.row0, spot.rows)
    return ((high[:, None] * 8 + low[:, None] + spot.columns).clip(0, bias.size - 1),)


def compressed_index(bias: jax.Array, spot: Spot, scoring: Scoring) -> tuple[Any, ...]:
    """Returns where a tile's elements lie in the last 1024 rows: moved down the diagonal in whole steps of 1024."""
    q_len = scoring.low.shape[1] if scoring.row is None else bias.shape[3]
    rows = spot.lines.row
    steps = (q_len - 1 - rows) // ALIBI_ROWS * ALIBI_ROWS
    row = (rows + steps - (q_len - ALIBI_ROWS)).clip(0, ALIBI_ROWS - 1)
    column = (spot.columns + steps[:, None]).clip(0, bias.shape[3] - 1)
    return _of_batch(bias, spot.batch), spot.head if bias.shape[1] > 1 else 0, row[:, None], column


def tile_mask(spot: Spot, scoring: Scoring, options: Options) -> tuple[jax.Array, jax.Array]:
    """Returns the boolean tiles (visible, visited): with ``mask_value`` a masked pair counts as visited."""
    columns = spot.col0 + jnp.arange(spot.cols)[None, :]
    visited = (spot.lines.low[:, None] <= columns) & (columns < spot.lines.high[:, None])
    seen = visited
    if spot.lines.segment is not None and scoring.kv_segment is not None:
        at = _of_batch(scoring.kv_segment, spot.batch)
        theirs = scoring.kv_segment[at, jnp.minimum(columns[0], scoring.kv_segment.shape[1] - 1)]
        visited = seen = seen & (spot.lines.segment[:, None] == theirs[None, :])
    if scoring.mask is not None:
        if options.mask_is_local:
            rows = spot.lines.row[:, None].clip(0, scoring.mask.shape[2] - 1)
            columns = spot.columns.clip(0, scoring.mask.shape[3] - 1)
            given = scoring.mask[0, 0, rows, columns]
        else:
            given = slice_tile(scoring.mask, spot)
        seen = seen & ((given == 0) if options.mask_hides else (given != 0))
    return seen, visited


def quantise_weights(weights: jax.Array, scoring: Scoring) -> jax.Array:
    """Multiplies a tile of weights by the scale and rounds it to int8, as integers in the type of the weights."""
    if scoring.weight_scale is None:
        return weights
    return jnp.clip(jnp.round(weights * scoring.weight_scale.astype(weights.dtype)), -128, 127)


def keep_weights(weights: jax.Array, spot: Spot, scoring: Scoring) -> jax.Array:
    """Applies dropout to a tile of weights."""
    dropout = scoring.dropout
    if dropout is None:
        return weights
    assert scoring.order is not None  # whoever asks for dropout numbers the elements
    columns = spot.columns
    aligned = scoring.origin is None and spot.is_aligned
    keep = keep_tile(dropout, scoring.order, spot.batch, spot.head, spot.row0, columns, spot.rows, aligned)
    return jnp.where(keep, weights / jnp.asarray(dropout.keep_prob, weights.dtype), 0)


def _of_batch(x: Any, batch: Any) -> Any:
    return batch if x.shape[0] > 1 else 0


def fit_to_tile(x: jax.Array, tile: tuple[int, int]) -> jax.Array:
    """Pads ``[B|1, N|1, Sq|1, Skv|1]`` up to one tile where it is smaller, so that tiles can be sliced."""
    pads = [0 if length == 1 else max(0, size - length) for length, size in zip(x.shape[2:], tile, strict=True)]
    return jnp.pad(x, ((0, 0), (0, 0), (0, pads[0]), (0, pads[1]))) if any(pads) else x


def slice_tile(x: jax.Array, spot: Spot) -> jax.Array:
    """Returns a tile ``[rows|1, cols|1]`` of ``[B|1, N|1, Sq|1, Skv|1]``; past the edge it holds something."""
    starts, sizes, rolls = [_of_batch(x, spot.batch), spot.head if x.shape[1] > 1 else 0], [1, 1], []
    for axis, start, size in ((2, spot.row0, spot.rows), (3, spot.col0, spot.cols)):
        length = x.shape[axis]
        # a slice that would stick out is moved in; rolling puts its entries where they belong
        first = 0 if length == 1 else start if length % size == 0 else jnp.minimum(start, length - size)
        starts.append(first)
        sizes.append(min(length, size))
        rolls.append(None if length == 1 or length % size == 0 else first - start)
    tile = lax.dynamic_slice(x, starts, sizes)[0, 0]
    for axis, roll in enumerate(rolls):
        tile = tile if roll is None else jnp.roll(tile, roll, axis)
    return tile
