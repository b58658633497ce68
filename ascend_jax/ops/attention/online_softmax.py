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

from ascend_jax.ops.attention.centring import centred
from ascend_jax.ops.attention.exponential import exp_below
from ascend_jax.ops.attention.movement import (
    finite,
    is_finite,
    kept_apart,
    key_tiles,
    pad_rows,
    query_rows,
    row_tiles,
    rows_first,
)
from ascend_jax.ops.attention.products import dot, operand, round_to, row_dtype, scaled
from ascend_jax.ops.attention.query_tile import Call, QueryTile, make_call, mask_scores
from ascend_jax.ops.attention.scoring import (
    Lines,
    Options,
    Scoring,
    Spot,
    keep_weights,
    quantise_weights,
    tile_mask,
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
    # all heads at once: XLA:CPU is several times slower where it pads or weaves rows that it picks by a traced number
    queries, keys, values = (operand(kept_apart(rows_first(x)), options) for x in (q, k, v))
    is_clean = is_finite(values).all()
    strays = pad_rows(values, options.tile[1], axis=1)
    shifts = None
    if options.is_narrow or options.sees_score:
        queries = scaled(queries, scale)
    else:
        queries, keys, shifts = centred(queries, keys, scale, scoring.high - scoring.low)
    queries = query_rows(queries, options.tile[0])
    shifts = None if shifts is None else pad_rows(shifts, options.tile[0])
    # a hidden NaN would leak into the product as 0 * NaN
    keys, values = key_tiles(keys, options), row_tiles(finite(values), options)
    call = make_call(q, k, scoring, options, bias, sink, scale)

    # One 2-D product per tile: batched products are slower on XLA:CPU, and a tile stays in the cache of a core.
    def one(at: QueryTile, results: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        shift = None if shifts is None else at.line_of(shifts)
        lines = at.lines()
        state = _walk_keys(at, lines, at.queries_of(queries), shift, keys, values)
        out = state.acc / jnp.where(state.row_sum > 0, state.row_sum, 1)[:, None]
        out = lax.cond(is_clean, lambda x: x, lambda x: x + _strays(at, lines, strays), out)
        row_max = state.row_max if shift is None else state.row_max + shift
        return at.put_rows(results[0], out), *map(at.put_line, results[1:], (row_max, state.row_sum))

    lines = jnp.zeros(queries.shape[:3], row_dtype(q))
    out = jnp.zeros((q.shape[0], queries.shape[2], q.shape[1], v.shape[3]), q.dtype)
    results = varying_together(q, (out, lines, lines))[1]
    out, *lines = lax.fori_loop(0, call.key_heads, lambda n, x: call.for_query_tiles(n, one, x), results)
    return rows_first(out[:, : q.shape[2]]), *(x[:, :, : q.shape[2]] for x in lines)


def _walk_keys(
    at: QueryTile, lines: Lines, q: jax.Array, shift: jax.Array | None, keys: jax.Array, values: jax.Array
) -> RowState:
    """Runs the online softmax of one query tile ``[rows, D]`` over keys and values, padded to whole tiles."""
    options, sink, kind = at.call.options, at.call.sink, row_dtype(q)
    lowest = jnp.finfo(kind).min
    top, weight = jnp.asarray(lowest, kind), jnp.zeros((), kind)
    if sink is not None:
        score = sink[at.head].astype(kind) - (0 if shift is None else shift)
        top = jnp.maximum(score, lowest)
        weight = jnp.exp(score - top)
    top, weight = (jnp.broadcast_to(x, options.tile[:1]) for x in (top, weight))
    state = RowState(top, weight, jnp.zeros((options.tile[0], values.shape[4]), kind))

    def step(kv_index: Any, state: RowState, is_masked: bool) -> RowState:
        spot = at.spot(kv_index, lines)
        scores = at.scores(q, at.keys_of(keys, kv_index), spot)
        return _absorb(state, scores, at.keys_of(values, kv_index), spot, at.call, is_masked)

    return at.walk(step, varying_together(q, state)[1])


def _absorb(rows: RowState, scores: jax.Array, v: jax.Array, spot: Spot, call: Call, is_masked: bool) -> RowState:
    """Adds a tile of ``scores`` ``[R, C]`` and values ``[C, Dv]`` to ``rows``."""
    scores, mask = mask_scores(scores, spot, call) if is_masked else (scores, None)
    # a shorter chain of additions rounds less, which 16-bit weights would not notice
    chain = spot.cols if call.options.is_narrow else _CHAIN
    parts = [slice(start, min(start + chain, spot.cols)) for start in range(0, spot.cols, chain)]

    def product(weights: jax.Array, part: slice) -> jax.Array:
        here = spot._replace(col0=spot.col0 + part.start, cols=part.stop - part.start)
        weights = quantise_weights(keep_weights(weights, here, call.scoring), call.scoring)
        return dot(round_to(weights, call.options.weight_dtype), v[part], call.options)

    steps = [
        (scores[:, part], None if mask is None else mask[:, part], functools.partial(product, part=part))
        for part in parts
    ]
    return absorb(rows, scores.max(axis=1), steps)


def absorb(
    rows: RowState,
    top: jax.Array,
    steps: Sequence[tuple[jax.Array, jax.Array | None, Callable[[jax.Array], jax.Array]]],
) -> RowState:
    """Adds keys to ``rows``, by the formula at the top.

    Args:
        rows: The state of R rows; ``row_max`` finite, so that no row meets inf - inf.
        top: ``[R]``, greatest new score.
        steps: Of some of the keys each: their scores ``[R, C]``, which of them may have weight (None: all), and what
            multiplies their weights with the values, giving ``[R, Dv]``.
    """
    row_max = jnp.maximum(rows.row_max, top)
    decay = jnp.exp(rows.row_max - row_max)
    row_sum, acc = rows.row_sum * decay, rows.acc * decay[:, None]
    for scores, seen, product in steps:
        weights = exp_below(scores - row_max[:, None])
        if seen is not None:
            weights = jnp.where(seen, weights, 0)  # exact by itself, whatever exp makes of -inf
        row_sum = row_sum + weights.sum(axis=1)
        acc = acc + product(weights)
    return RowState(row_max, row_sum, acc)


def _strays(at: QueryTile, lines: Lines, values: jax.Array) -> jax.Array:
    """Returns what NaN and inf in values ``[B, Skv, Nkv, D]`` add to a query tile: only to rows that see them."""
    options, kind, (*_, dim) = at.call.options, row_dtype(values), values.shape
    size = (1, options.tile[1], 1, dim)

    def step(kv_index: Any, counts: tuple[jax.Array, jax.Array], is_masked: bool) -> tuple[jax.Array, ...]:
        seen = tile_mask(at.spot(kv_index, lines), at.call.scoring, options)[0].astype(kind)
        start = (at.batch, kv_index * size[1], at.kv_head, 0)
        v = lax.dynamic_slice(values, start, size)[0, :, 0]
        kinds = jnp.isnan(v) | jnp.isposinf(v), jnp.isnan(v) | jnp.isneginf(v)
        return tuple(x + dot(seen, y.astype(kind), options) for x, y in zip(counts, kinds, strict=True))

    none = jnp.zeros((options.tile[0], dim), kind)
    up, down = at.walk(step, varying_together(values, (none, none))[1])
    return jnp.where(up > 0, jnp.inf, 0).astype(kind) + jnp.where(down > 0, -jnp.inf, 0).astype(kind)
