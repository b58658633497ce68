"""FlashAttention backward: recomputes the weights tile by tile from row_max and row_sum, in memory linear in length.

With p_ij = exp(s_ij - m_i) and o'_i = do_i / l_i, of every live tile:

    dv_j += p_ij o'_i,  ds_ij = p_ij (o'_i . v_j - o'_i . out_i + dl_i),
    dq_i += scale ds_ij k_j,  dk_j += scale ds_ij q_i

``dl`` is the cotangent of row_sum, with row_max held fixed. Dropout multiplies p in dv and o'.v in ds. Keys and values
of a group of query heads are shared, so their gradients add up over the group (Dao, arXiv 2307.08691).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.online_softmax import Head, mask_scores
from ascend_jax.ops.attention.products import dot, operand, pad_rows, round_to, tile_columns, upcast
from ascend_jax.ops.attention.scoring import (
    Options,
    Scoring,
    Spot,
    bias_tile,
    compressed_index,
    flat_index,
    keep_weights,
    tile_runs,
)
from ascend_jax.runtime.loop import varying_together

__all__ = ["backward"]

Carry = tuple[jax.Array, jax.Array, jax.Array | None]  # dk, dv of a key head in columns; the gradient of the bias


@jax.named_scope("flash_backward")
def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    scale: jax.Array,
    bias: jax.Array | None,
    sink: jax.Array | None,
    scoring: Scoring,
    options: Options,
    results: tuple[jax.Array, jax.Array, jax.Array],
    cotangents: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None, jax.Array | None]:
    """Returns the gradients of q, k, v, scale, bias and sink.

    Args:
        q: And the others: the arguments of :func:`~ascend_jax.ops.attention.online_softmax.forward`.
        k: Keys.
        v: Values.
        scale: Factor of the products.
        bias: Position bias.
        sink: Sinks.
        scoring: What else makes the scores.
        options: Static choices.
        results: out, row_max and row_sum of the forward pass.
        cotangents: Of out ``[B, N, Sq, Dv]`` and of row_sum ``[B, N, Sq]``.
    """
    batch, heads, q_len, _ = q.shape
    kv_heads, kv_len, _ = v.shape[1:]
    group = heads // kv_heads
    runs = tile_runs(scoring, options)
    q_pad, kv_pad = (-length % tile for length, tile in zip((q_len, kv_len), options.tile, strict=True))

    def kv_head(d_bias: Any, operands: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        index, k_rows, v_rows, of_queries = operands
        k_padded, v_padded = (pad_rows(operand(x, options), options.tile[1]) for x in (k_rows, v_rows))
        columns = tuple(tile_columns(x, options.tile[1]) for x in (k_padded, _finite(v_padded)))
        keys = (*columns, _finite(k_padded))

        def q_head(carry: Any, operands: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
            offset, q_rows, d_out, d_sum, out, row_max, row_sum = operands
            head = index % kv_heads * group + offset
            at = Head(index // kv_heads, head, scoring, options, bias, sink, scale, runs, columns[0].shape[0])
            inverse = jnp.where(row_sum > 0, 1 / jnp.where(row_sum > 0, row_sum, 1), 0)
            d_out = upcast(d_out) * inverse[:, None]
            d_out = jnp.where((row_sum > 0)[:, None], d_out, 0)  # a row that saw nothing takes no gradient
            shift = d_sum - (d_out * upcast(out)).sum(axis=1)
            shift = jnp.where(row_sum > 0, shift, 0)
            # a visible NaN must reach every gradient it has a part in, through the weights of its row
            taint = (q_rows * 0).sum(axis=1).astype(shift.dtype) + (d_out * 0).sum(axis=1)
            top = jnp.where(row_sum > 0, row_max + taint, row_max)
            rows = tuple(jnp.pad(x, (0, q_pad)) for x in (top, shift))
            kind = q_rows.dtype if options.is_narrow else d_out.dtype
            padded = tuple(pad_rows(_finite(x.astype(kind)), options.tile[0]) for x in (q_rows, d_out))
            carry, d_q = _q_tiles(at, carry, padded, rows, keys)
            d_sink = None
            if sink is not None:  # of a row without a sum the maximum says nothing
                d_sink = jnp.where(row_sum == 0, 0, jnp.exp(sink[at.head] - row_max) * shift).sum()
            return carry, (d_q[:q_len], d_sink)

        zeros = varying_together(q, tuple(jnp.zeros(x.shape, row_dtype(q)) for x in columns))[1]
        (*sums, d_bias), (d_q, d_sink) = lax.scan(q_head, (*zeros, d_bias), (jnp.arange(group), *of_queries))
        d_k, d_v = (jnp.swapaxes(x, 1, 2).reshape(-1, x.shape[1])[:kv_len] for x in sums)
        return d_bias, (d_q, d_k, d_v, d_sink)

    heads_first = (batch * kv_heads, group, q_len)
    of_queries = tuple(x.reshape(*heads_first, *x.shape[3:]) for x in (q, *cotangents, *results))
    keys = tuple(x.reshape(batch * kv_heads, *x.shape[2:]) for x in (k, v))
    d_bias: Any = None if bias is None else _zero_bias(bias, options, (q_len + q_pad, kv_len + kv_pad), row_dtype(q))
    d_bias = varying_together(q, d_bias)[1]
    d_bias, (d_q, d_k, d_v, d_sink) = lax.scan(kv_head, d_bias, (jnp.arange(batch * kv_heads), *keys, of_queries))
    d_q = d_q.reshape(q.shape)
    d_scale = (d_q * q.astype(d_q.dtype)).sum()
    if bias is not None:
        d_bias = d_bias[tuple(slice(0, length) for length in bias.shape)]
        d_scale = d_scale + ((d_bias * bias.astype(d_bias.dtype)).sum() if options.bias_first else 0)
        d_bias = (d_bias * scale if options.bias_first else d_bias).astype(bias.dtype)
    return (
        (d_q * scale).astype(q.dtype),
        d_k.reshape(k.shape).astype(k.dtype),
        d_v.reshape(v.shape).astype(v.dtype),
        d_scale,
        d_bias,
        None if sink is None else d_sink.reshape(batch, heads).sum(axis=0).astype(sink.dtype),
    )


def row_dtype(q: jax.Array) -> Any:
    """Returns the accumulator type."""
    return jnp.promote_types(q.dtype, jnp.float32)


def _finite(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(x), x, 0)


def _q_tiles(
    at: Head,
    carry: Carry,
    queries: tuple[jax.Array, ...],
    rows: tuple[jax.Array, ...],
    keys: tuple[jax.Array, ...],
) -> tuple[Carry, jax.Array]:
    """Runs one query head; returns the carry and dq without its factor ``scale``."""
    q_tile, kv_tile = at.options.tile

    def one(carry: Carry, q_index: jax.Array) -> tuple[Carry, jax.Array]:
        q, d_out, row_max, shift = (lax.dynamic_slice_in_dim(x, q_index * q_tile, q_tile) for x in (*queries, *rows))
        q = (q * at.scale).astype(q.dtype)
        q_columns, d_out_columns = q.T, d_out.T
        lines = at.lines(q_index)

        def step(kv_index: Any, state: Any, is_masked: bool) -> Any:
            (d_k, d_v, d_bias), d_q = state
            columns = tuple(x[kv_index] for x in keys[:2])
            k_rows = lax.dynamic_slice_in_dim(keys[2], kv_index * kv_tile, kv_tile)
            spot = at.spot(q_index, kv_index, lines)
            weights, d_scores = _tile(at, spot, (q, d_out, row_max, shift), columns, is_masked)
            d_bias = d_bias if d_bias is None else _add_bias(d_bias, d_scores[0], spot, at)
            d_q = d_q + dot(d_scores[1], k_rows, at.options)
            d_k = d_k.at[kv_index].add(dot(q_columns, d_scores[1], at.options))
            d_v = d_v.at[kv_index].add(dot(d_out_columns, weights, at.options))
            return (d_k, d_v, d_bias), d_q

        return at.walk(q_index, step, varying_together(q, (carry, jnp.zeros(q.shape, row_max.dtype)))[1])

    carry, d_q = lax.scan(one, carry, jnp.arange(queries[0].shape[0] // q_tile))
    return carry, d_q.reshape(queries[0].shape)


def _tile(
    at: Head, spot: Spot, queries: tuple[jax.Array, ...], keys: tuple[jax.Array, ...], is_masked: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Returns the weights that multiplied v, and the gradient of the scores (exact, and rounded as asked)."""
    q, d_out, row_max, shift = queries
    k, v = keys  # in columns
    raw = at.scores(q, k, spot)
    scores, mask = mask_scores(raw, spot, at) if is_masked else (raw, None)
    weights = jnp.exp(scores - row_max[:, None])
    d_weights = dot(d_out, v, at.options)
    d_scores = weights * (keep_weights(d_weights, spot, at.scoring) + shift[:, None])
    if mask is not None:
        weights, d_scores = (jnp.where(mask, x, 0) for x in (weights, d_scores))
    if at.options.softcap is not None:
        d_scores = d_scores * (1 - jnp.square(raw / at.options.softcap))
    weights = round_to(keep_weights(weights, spot, at.scoring), at.options.weight_dtype)
    return weights, (d_scores, round_to(d_scores, at.options.weight_dtype))


def _zero_bias(bias: jax.Array, options: Options, padded: tuple[int, int], dtype: Any) -> jax.Array:
    """Returns where the gradient of the bias adds up; a dense one is padded to whole tiles."""
    shape = bias.shape
    if options.bias_kind == "dense":
        shape = (*shape[:2], *(1 if n == 1 else full for n, full in zip(shape[2:], padded, strict=True)))
    return jnp.zeros(shape, dtype)


def _add_bias(d_bias: jax.Array, d_scores: jax.Array, spot: Spot, at: Head) -> jax.Array:
    """Adds a tile to the gradient of the bias, summed over what the bias was broadcast to."""
    kind, bias = at.options.bias_kind, at.bias
    assert bias is not None
    if kind == "dense":
        axes = tuple(axis for axis in (0, 1) if d_bias.shape[2 + axis] == 1)
        tile = d_scores.sum(axis=axes, keepdims=True)[None, None] if axes else d_scores[None, None]
        start = [
            at_batch if d_bias.shape[axis] > 1 else 0
            for axis, at_batch in enumerate((spot.batch, spot.head, spot.row0, spot.col0))
        ]
        return lax.dynamic_update_slice(d_bias, lax.dynamic_slice(d_bias, start, tile.shape) + tile, start)
    if kind == "flat":
        return d_bias.at[flat_index(d_bias, spot, at.scoring)].add(d_scores)
    if kind == "compressed":
        return d_bias.at[compressed_index(d_bias, spot, at.scoring)].add(d_scores)
    _, pull = jax.vjp(lambda slopes: bias_tile(slopes, spot, at.scoring, at.options), bias.astype(d_bias.dtype))
    return d_bias + pull(d_scores)[0]
