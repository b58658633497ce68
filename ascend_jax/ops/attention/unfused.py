"""Attention from whole score matrices: the same rules as the kernel, one tile that is as large as the matrix."""

import dataclasses

import jax
import jax.numpy as jnp

from ascend_jax.ops.attention.dropout import PHILOX_COLUMNS
from ascend_jax.ops.attention.products import round_to, upcast
from ascend_jax.ops.attention.scoring import Options, Scoring, Spot, keep_weights, lines_of, tile_mask, tile_scores

__all__ = ["unfused"]


def unfused(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    scale: float | jax.Array,
    bias: jax.Array | None,
    sink: jax.Array | None,
    scoring: Scoring,
    options: Options,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes what :func:`~ascend_jax.ops.attention.kernel.attend` computes, in memory of order B N Sq Skv."""
    batch, heads, q_len, _ = q.shape
    kv_heads, kv_len = k.shape[1:3]
    options = dataclasses.replace(options, tile=(q_len, kv_len))
    kind = jnp.promote_types(q.dtype, jnp.float32)
    lowest = jnp.finfo(kind).min
    sink = None if sink is None else jnp.asarray(sink, kind)  # a NumPy array takes no traced index

    def one(index: jax.Array) -> tuple[jax.Array, ...]:
        b, n = index // heads, index % heads
        keys, values = (upcast(x[b, n // (heads // kv_heads)]) for x in (k, v))
        spot = Spot(b, n, 0, 0, q_len, kv_len, lines_of(scoring, b, 0, q_len), kv_len % PHILOX_COLUMNS == 0)
        seen, visited = tile_mask(spot, scoring, options)
        seen, visited = (jnp.broadcast_to(x, (q_len, kv_len)) for x in (seen, visited))
        # what nobody sees is taken out before it can make a NaN, also in the gradient
        is_used = visited.any(axis=0)[:, None]
        keys, values = (jnp.where(is_used, x, 0) for x in (keys, values))
        queries = jnp.where(visited.any(axis=1)[:, None], upcast(q[b, n]), 0)
        factor = jnp.asarray(scale, kind)
        products = jnp.dot(queries * factor, keys.T, precision=options.precision)
        scores = tile_scores(products, spot, scoring, options, bias, factor)
        takes_part = seen
        if options.mask_value is not None:
            scores, takes_part = jnp.where(seen, scores, options.mask_value), visited
        row_max = jnp.where(takes_part, scores, lowest).max(axis=1, initial=lowest)
        if sink is not None:
            row_max = jnp.maximum(row_max, sink[n])
        row_max = jax.lax.stop_gradient(row_max)
        weights = jnp.where(takes_part, jnp.exp(jnp.where(takes_part, scores - row_max[:, None], 0)), 0)
        row_sum = weights.sum(axis=1)
        if sink is not None:
            row_sum = row_sum + jnp.exp(sink[n] - row_max)
        weights = round_to(keep_weights(weights, spot, scoring), options.weight_dtype)
        out = jnp.dot(weights, values, precision=options.precision) / jnp.where(row_sum > 0, row_sum, 1)[:, None]
        return out.astype(q.dtype), row_max, row_sum

    out, row_max, row_sum = jax.vmap(one)(jnp.arange(batch * heads))
    rows = (batch, heads, q_len)
    return out.reshape(*rows, v.shape[3]), row_max.reshape(rows), row_sum.reshape(rows)
