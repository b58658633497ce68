"""FlashAttention forward: exact attention in one pass over score tiles, in memory linear in the length.

Each query row carries a running maximum ``m``, a sum ``l`` and an unnormalised output ``acc``. A tile of
scores ``s`` updates them by

    m' = max(m, max_j s_j),  p_j = exp(s_j - m'),  l' = l exp(m - m') + sum_j p_j,
    acc' = acc exp(m - m') + sum_j p_j v_j

and ``out = acc / l`` at the end (Milakov and Gimelshein, arXiv 1805.02867; Dao, arXiv 2307.08691). Tiles whose pairs
are all hidden are not visited; tiles whose pairs are all visible need no mask.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.centring import centred_keys, centred_queries, spread_of
from ascend_jax.ops.attention.dropout import PHILOX_COLUMNS
from ascend_jax.ops.attention.products import dot, operand, pad_rows, round_to, tile_columns, upcast
from ascend_jax.ops.attention.scoring import (
    Lines,
    Options,
    Scoring,
    Spot,
    TileRuns,
    keep_weights,
    lines_of,
    quantise_weights,
    tile_mask,
    tile_runs,
    tile_scores,
)
from ascend_jax.runtime.loop import varying_together

__all__ = ["RowState", "absorb", "forward"]

_CHAIN = 256  # columns of weights that one product adds up, a multiple of PHILOX_COLUMNS


class RowState(NamedTuple):
    """What ``R`` rows know after some tiles. Safe to merge: a row that saw nothing is (lowest, 0, 0)."""

    row_max: jax.Array  # [R], accumulator dtype, greatest score so far
    row_sum: jax.Array  # [R], sum of exp(score - row_max)
    acc: jax.Array  # [R, Dv], sum of exp(score - row_max) * v


@jax.named_scope("flash_forward")
def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    scale: jax.Array,
    bias: jax.Array | None,
    sink: jax.Array | None,
    scoring: Scoring,
    options: Options,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes attention; operands are checked already.

    Args:
        q: ``[B, N, Sq, D]``.
        k: ``[B, Nkv, Skv, D]``.
        v: ``[B, Nkv, Skv, Dv]``.
        scale: Factor of the products.
        bias: As ``options.bias_kind`` says.
        sink: ``[N]``, a score that takes part in the softmax without a value.
        scoring: What else makes the scores.
        options: Static choices.

    Returns:
        out ``[B, N, Sq, Dv]`` in the dtype of q, row_max and row_sum ``[B, N, Sq]`` in the accumulator dtype. A row
        that saw nothing has out 0, row_max lowest and row_sum 0.
    """
    batch, heads, q_len, dim = q.shape
    kv_heads, kv_len, value_dim = v.shape[1:]
    group = heads // kv_heads
    runs = tile_runs(scoring, options)

    def kv_head(operands: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        index, q_group, k_rows, v_rows = operands
        is_clean = jnp.isfinite(v_rows).all()
        k_padded, v_padded = (pad_rows(operand(x, options), options.tile[1]) for x in (k_rows, v_rows))
        spread = None if options.is_narrow or options.sees_score else spread_of(upcast(k_rows))
        k_columns = tile_columns(k_padded, options.tile[1])
        k_columns = k_columns if spread is None else centred_keys(k_columns)

        def q_head(operands: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
            offset, q_rows = operands
            q_padded = pad_rows(operand(q_rows, options), options.tile[0])
            head = index % kv_heads * group + offset
            at = Head(index // kv_heads, head, scoring, options, bias, sink, scale, runs, k_columns.shape[0])
            out, row_max, row_sum = _q_tiles(at, q_padded, k_columns, v_padded, is_clean, spread)
            return out[:q_len].astype(q.dtype), row_max[:q_len], row_sum[:q_len]

        return lax.map(q_head, (jnp.arange(group), q_group))

    # One 2-D product per head: batched products are slower on XLA:CPU, and a head's tiles stay in cache.
    operands = (
        jnp.arange(batch * kv_heads),
        q.reshape(batch * kv_heads, group, q_len, dim),
        k.reshape(batch * kv_heads, kv_len, dim),
        v.reshape(batch * kv_heads, kv_len, value_dim),
    )
    out, row_max, row_sum = lax.map(kv_head, operands)
    rows = (batch, heads, q_len)
    return out.reshape(*rows, value_dim), row_max.reshape(rows), row_sum.reshape(rows)


class Head(NamedTuple):
    """One query head of one batch row, and what makes its scores."""

    batch: jax.Array
    head: jax.Array
    scoring: Scoring
    options: Options
    bias: jax.Array | None
    sink: jax.Array | None
    scale: jax.Array
    runs: TileRuns
    kv_tiles: int  # static

    def lines(self, q_index: Any) -> Lines:
        """Returns what the scoring says of the rows of a query tile."""
        rows = self.options.tile[0]
        return lines_of(self.scoring, self.batch, q_index * rows, rows)

    def spot(self, q_index: Any, kv_index: Any, lines: Lines) -> Spot:
        """Returns a tile by its place in the grid."""
        rows, cols = self.options.tile
        is_aligned = cols % PHILOX_COLUMNS == 0
        return Spot(self.batch, self.head, q_index * rows, kv_index * cols, rows, cols, lines, is_aligned)

    def scores(self, q: jax.Array, k_columns: jax.Array, spot: Spot) -> jax.Array:
        """Returns the scores of a tile of queries ``[rows, D]``, scaled already, and keys ``[D, cols]``."""
        products = dot(q, k_columns, self.options)
        return tile_scores(products, spot, self.scoring, self.options, self.bias, self.scale)

    def walk(self, q_index: jax.Array, step: Callable[[Any, Any, bool], Any], state: Any) -> Any:
        """Runs ``step(kv tile, state, is_masked)`` over the live key tiles of a query tile."""
        if self.kv_tiles == 1:
            return step(0, state, True)  # no loops: a small call compiles in a fraction of the time
        if self.runs.live is not None:
            order, counts = self.runs.live
            of = tuple(index if n > 1 else 0 for n, index in zip(order.shape, (self.batch, self.head), strict=False))
            return lax.fori_loop(0, counts[*of, q_index], lambda n, x: step(order[*of, q_index, n], x, True), state)
        at = self.batch if self.runs.start.shape[0] > 1 else 0
        start, full, part, end = (x[at, q_index] for x in self.runs[:4])
        state = lax.fori_loop(full, part, lambda j, x: step(j, x, False), state)
        before = full - start  # masked tiles lie on both sides of the full ones
        return lax.fori_loop(
            0,
            before + end - part,
            lambda n, x: step(jnp.where(n < before, start + n, part + n - before), x, True),
            state,
        )


def _q_tiles(
    at: Head, q: jax.Array, k_columns: jax.Array, v: jax.Array, is_clean: jax.Array, spread: jax.Array | None
) -> tuple[jax.Array, ...]:
    """Runs one head, one query tile after the other; operands are padded to whole tiles, keys centred by spread."""
    q_tile, kv_tile = at.options.tile
    kind = jnp.promote_types(q.dtype, jnp.float32)
    lowest = jnp.finfo(kind).min
    v_clean = jnp.where(jnp.isfinite(v), v, 0)  # a hidden NaN would leak into the product as 0 * NaN

    q_scaled, shifts = (q * at.scale).astype(q.dtype), None
    if spread is not None:
        every = lines_of(at.scoring, at.batch, 0, q.shape[0])
        q_scaled, shifts = centred_queries(q_scaled, spread, every.high - every.low)

    def one(q_index: jax.Array) -> tuple[jax.Array, ...]:
        q_rows = lax.dynamic_slice_in_dim(q_scaled, q_index * q_tile, q_tile)
        lines = at.lines(q_index)
        shift = jnp.zeros((), kind)
        if shifts is not None:
            shift = lax.dynamic_slice_in_dim(shifts, q_index * q_tile, q_tile)
        sink = None if at.sink is None else at.sink[at.head].astype(kind) - shift
        top = jnp.asarray(lowest, kind) if sink is None else jnp.maximum(sink, lowest)
        weight = jnp.zeros((), kind) if sink is None else jnp.exp(sink - top)
        top, weight = (jnp.broadcast_to(x, (q_tile,)) for x in (top, weight))
        state = varying_together(q_rows, RowState(top, weight, jnp.zeros((q_tile, v.shape[1]), kind)))[1]

        def step(kv_index: Any, state: RowState, is_masked: bool) -> RowState:
            v_rows = lax.dynamic_slice_in_dim(v_clean, kv_index * kv_tile, kv_tile)
            spot = at.spot(q_index, kv_index, lines)
            scores = at.scores(q_rows, k_columns[kv_index], spot)
            return _absorb(state, scores, v_rows, spot, at, is_masked)

        state = at.walk(q_index, step, state)
        out = state.acc / jnp.where(state.row_sum > 0, state.row_sum, 1)[:, None]
        strays = lax.cond(is_clean, jnp.zeros_like, lambda _: _strays(at, q_index, v), out)
        return out + strays, state.row_max + shift, state.row_sum

    out, row_max, row_sum = lax.map(one, jnp.arange(q.shape[0] // q_tile))
    return out.reshape(q.shape[0], -1), row_max.reshape(-1), row_sum.reshape(-1)


def _absorb(rows: RowState, scores: jax.Array, v: jax.Array, spot: Spot, at: Head, is_masked: bool) -> RowState:
    """Adds a tile of ``scores`` ``[R, C]`` and values ``[C, Dv]`` to ``rows``."""
    scores, mask = mask_scores(scores, spot, at) if is_masked else (scores, None)
    # a shorter chain of additions rounds less
    parts = [slice(start, min(start + _CHAIN, spot.cols)) for start in range(0, spot.cols, _CHAIN)]

    def product(weights: jax.Array, part: slice) -> jax.Array:
        here = spot._replace(col0=spot.col0 + part.start, cols=part.stop - part.start)
        weights = quantise_weights(keep_weights(weights, here, at.scoring), at.scoring)
        return dot(round_to(weights, at.options.weight_dtype), v[part], at.options)

    steps = [
        (scores[:, part], None if mask is None else mask[:, part], functools.partial(product, part=part))
        for part in parts
    ]
    return absorb(rows, scores.max(axis=1), steps)


def absorb(
    rows: RowState,
    top: jax.Array,
    steps: Sequence[tuple[jax.Array, jax.Array | None, Callable[[jax.Array], jax.Array]]],
    keys_axis: int = 1,
) -> RowState:
    """Adds keys to ``rows``, by the formula at the top.

    Args:
        rows: The state of R rows; ``row_max`` finite, so that no row meets inf - inf.
        top: ``[R]``, greatest new score.
        steps: Of some of the keys each: their scores ``[R, C]``, which of them may have weight (None: all), and what
            multiplies their weights with the values, giving ``[R, Dv]``.
        keys_axis: Axis of the keys; 0 for scores ``[C, R]``.
    """
    row_max = jnp.maximum(rows.row_max, top)
    decay = jnp.exp(rows.row_max - row_max)
    row_sum, acc = rows.row_sum * decay, rows.acc * decay[:, None]
    for scores, seen, product in steps:
        weights = jnp.exp(scores - jnp.expand_dims(row_max, keys_axis))
        if seen is not None:
            weights = jnp.where(seen, weights, 0)  # exact by itself, whatever exp makes of -inf
        row_sum = row_sum + weights.sum(axis=keys_axis)
        acc = acc + product(weights)
    return RowState(row_max, row_sum, acc)


def mask_scores(scores: jax.Array, spot: Spot, at: Head) -> tuple[jax.Array, jax.Array]:
    """Returns the scores with hidden ones replaced, and which of them may have weight at all."""
    seen, visited = tile_mask(spot, at.scoring, at.options)
    if at.options.mask_value is None:
        return jnp.where(seen, scores, -jnp.inf), seen
    return jnp.where(visited, jnp.where(seen, scores, at.options.mask_value), -jnp.inf), visited


def _strays(at: Head, q_index: jax.Array, v: jax.Array) -> jax.Array:
    """Returns what NaN and inf in ``v`` add to the output of a query tile: only to rows that see them."""
    kv_tile = at.options.tile[1]
    lines = at.lines(q_index)
    v = upcast(v)
    plus, minus = jnp.isnan(v) | jnp.isposinf(v), jnp.isnan(v) | jnp.isneginf(v)

    def step(kv_index: Any, counts: tuple[jax.Array, jax.Array], is_masked: bool) -> tuple[jax.Array, ...]:
        seen = tile_mask(at.spot(q_index, kv_index, lines), at.scoring, at.options)[0].astype(v.dtype)
        rows = (lax.dynamic_slice_in_dim(x, kv_index * kv_tile, kv_tile) for x in (plus, minus))
        return tuple(x + dot(seen, y.astype(v.dtype), at.options) for x, y in zip(counts, rows, strict=True))

    none = jnp.zeros((at.options.tile[0], v.shape[1]), v.dtype)
    up, down = at.walk(q_index, step, varying_together(v, (none, none))[1])
    return jnp.where(up > 0, jnp.inf, 0).astype(v.dtype) + jnp.where(down > 0, -jnp.inf, 0).astype(v.dtype)
