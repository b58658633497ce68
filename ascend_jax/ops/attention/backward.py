"""FlashAttention backward: recomputes the weights tile by tile from row_max and row_sum, in memory linear in length.

With p_ij = exp(s_ij - m_i) and o'_i = do_i / l_i, of every live tile:

    dv_j += p_ij o'_i,  ds_ij = p_ij (o'_i . v_j - o'_i . out_i + dl_i),
    dq_i += scale ds_ij k_j,  dk_j += scale ds_ij q_i

``dl`` is the cotangent of row_sum, with row_max held fixed. Dropout multiplies p in dv and o'.v in ds. Keys and values
of a group of query heads are shared, so their gradients add up over the group (Dao, arXiv 2307.08691).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.movement import (
    clipped,
    finite,
    kept_apart,
    key_tiles,
    moved,
    pad_rows,
    row_tiles,
    rows_first,
)
from ascend_jax.ops.attention.products import dot, dot_keys, operand, round_to, row_dtype, scaled, upcast
from ascend_jax.ops.attention.query_tile import Call, QueryTile, make_call, mask_scores
from ascend_jax.ops.attention.scoring import (
    Options,
    Scoring,
    Spot,
    bias_tile,
    compressed_index,
    flat_index,
    keep_weights,
)
from ascend_jax.runtime.loop import varying_together

__all__ = ["backward"]


Sums = tuple[jax.Array, ...]  # dk, dv of a key head in columns [kv tiles, D, cols], in which products are faster


class Gradients(NamedTuple):
    """Of what all heads share, or rows of their own."""

    q: jax.Array  # [B, Sq, N, D], dtype of q
    scale: jax.Array  # accumulator type, as the others
    bias: jax.Array | None
    sink: jax.Array | None


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
    kind, (q_tile, kv_tile) = row_dtype(q), options.tile
    q_rows, d_outs, outs = (
        moved(lambda y: pad_rows(y, q_tile, axis=1), kept_apart(rows_first(x))) for x in (q, cotangents[0], results[0])
    )
    lines = [pad_rows(x, q_tile, axis=2) for x in (*results[1:], cotangents[1])]
    keys, values = (operand(kept_apart(rows_first(x)), options) for x in (k, v))
    # an infinite key may have weight 0: its scores must stay huge
    keys, values = clipped(keys), finite(values)
    tiles = Keys(key_tiles(keys, options), key_tiles(values, options), row_tiles(keys, options))
    call = make_call(q, k, scoring, options, bias, sink, scale)

    def query_tile(at: QueryTile, state: tuple[Gradients, Sums]) -> tuple[Gradients, Sums]:
        grads, sums = state
        given = at.rows_of(q_rows)
        row_max, row_sum, d_sum = map(at.line_of, lines)
        rows = _rows(at, given, at.rows_of(d_outs), at.rows_of(outs), row_max, row_sum, d_sum)
        (d_k, d_v, d_bias), d_q = _walk_keys(at, (*sums, grads.bias), rows, tiles)
        grads = Gradients(
            at.put_rows(grads.q, d_q * scale),
            grads.scale + (d_q * upcast(finite(given))).sum(),  # a visible NaN is in d_q already
            d_bias,
            None if grads.sink is None else grads.sink.at[at.head].add(_of_sink(at, row_max, row_sum, rows.shift)),
        )
        return grads, (d_k, d_v)

    # sums of one key head: where the number of steps differs among lanes, JAX selects what a loop carries in every step
    def key_head(grads: Gradients, n: jax.Array) -> tuple[Gradients, Sums]:
        zeros = tuple(jnp.zeros((call.kv_tiles, x.shape[3], kv_tile), kind) for x in (k, v))
        return call.for_query_tiles(n, query_tile, (grads, varying_together(q, zeros)[1]))

    padded = q_tile * call.q_tiles, kv_tile * call.kv_tiles
    grads = Gradients(
        jnp.zeros(q_rows.shape, q.dtype),
        jnp.zeros((), kind),
        None if bias is None else _zero_bias(bias, options, padded, kind),
        None if sink is None else jnp.zeros(sink.shape, kind),
    )
    grads, sums = lax.scan(key_head, varying_together(q, grads)[1], jnp.arange(call.key_heads))
    d_bias, d_scale = grads.bias, grads.scale
    if bias is not None and d_bias is not None:
        d_bias = d_bias[tuple(slice(0, length) for length in bias.shape)]
        d_scale = d_scale + ((d_bias * bias.astype(kind)).sum() if options.bias_first else 0)
        d_bias = (d_bias * scale if options.bias_first else d_bias).astype(bias.dtype)
    d_q = rows_first(grads.q[:, : q.shape[2]])
    d_k, d_v = (
        jnp.swapaxes(x, 2, 3).reshape(*k.shape[:2], -1, x.shape[2])[:, :, : k.shape[2]].astype(q.dtype) for x in sums
    )
    return d_q, d_k, d_v, d_scale, d_bias, None if sink is None or grads.sink is None else grads.sink.astype(sink.dtype)


class Rows(NamedTuple):
    """What one query tile brings; each of ``R`` rows."""

    q: jax.Array  # [R, D], scaled
    d_out: jax.Array  # [R, Dv], o'
    row_max: jax.Array  # [R], accumulator type; inf where all weights are 0
    shift: jax.Array  # [R], accumulator type, what is added to o' . v


class Keys(NamedTuple):
    """Keys and values, cut in tiles ``[B, Nkv, tiles, ...]``, or one tile of them."""

    k: jax.Array  # of key_tiles
    v: jax.Array  # likewise
    k_rows: jax.Array  # of row_tiles


def _rows(
    at: QueryTile,
    q: jax.Array,
    d_out: jax.Array,
    out: jax.Array,
    row_max: jax.Array,
    row_sum: jax.Array,
    d_sum: jax.Array,
) -> Rows:
    """Makes the rows of a query tile from what was given and what the forward pass gave."""
    options, is_seen = at.call.options, row_sum != 0  # a sum that is NaN must reach the gradients
    inverse = jnp.where(is_seen, 1 / jnp.where(is_seen, row_sum, 1), 0)
    d_out = jnp.where(is_seen[:, None], upcast(d_out) * inverse[:, None], 0)  # a row that saw nothing takes no gradient
    shift = jnp.where(is_seen, d_sum - (d_out * upcast(out)).sum(axis=1), 0)
    # a visible NaN must reach every gradient it has a part in, through the weights of its row
    taint = (upcast(q) * 0).sum(axis=1) + (d_out * 0).sum(axis=1)
    # a padded row may meet any bias: its weights must be 0 before the cotangent is
    top = jnp.where(is_seen, row_max + taint, jnp.inf)
    scaled_q = scaled(operand(finite(q), options), at.call.scale)
    return Rows(scaled_q, finite(d_out.astype(scaled_q.dtype)), top, shift)


def _of_sink(at: QueryTile, row_max: jax.Array, row_sum: jax.Array, shift: jax.Array) -> jax.Array:
    """Returns what rows give to the sink of their head; of a row without a sum the maximum says nothing."""
    assert at.call.sink is not None
    sink = at.call.sink[at.head].astype(row_max.dtype)
    return jnp.where(row_sum == 0, 0, jnp.exp(sink - row_max) * shift).sum()


def _walk_keys(at: QueryTile, sums: tuple[Any, ...], rows: Rows, tiles: Keys) -> tuple[tuple[Any, ...], jax.Array]:
    """Adds what the rows give to dk and dv in columns, and to the bias; returns those, and dq without ``scale``."""
    options, lines = at.call.options, at.lines()
    q_columns, d_out_columns = rows.q.T, rows.d_out.T

    def step(kv_index: Any, state: Any, is_masked: bool) -> Any:
        (d_k, d_v, d_bias), d_q = state
        keys = Keys(*(at.keys_of(x, kv_index) for x in tiles))
        spot = at.spot(kv_index, lines)
        weights, d_scores = _tile(at, spot, rows, keys, is_masked)
        d_bias = d_bias if d_bias is None else _add_bias(d_bias, d_scores[0], spot, at.call)
        d_q = d_q + dot(d_scores[1], keys.k_rows, options)
        d_k = d_k.at[kv_index].add(dot(q_columns, d_scores[1], options))
        d_v = d_v.at[kv_index].add(dot(d_out_columns, weights, options))
        return (d_k, d_v, d_bias), d_q

    return at.walk(step, varying_together(rows.q, (sums, jnp.zeros(rows.q.shape, rows.shift.dtype)))[1])


def _tile(
    at: QueryTile, spot: Spot, rows: Rows, keys: Keys, is_masked: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Returns the weights that multiplied v, and the gradient of the scores (exact, and rounded as asked)."""
    call = at.call
    raw = at.scores(rows.q, keys.k, spot)
    scores, mask = mask_scores(raw, spot, call) if is_masked else (raw, None)
    weights = jnp.exp(scores - rows.row_max[:, None])
    weights = weights if mask is None else jnp.where(mask, weights, 0)
    d_weights = dot_keys(rows.d_out, keys.v, call.options)
    d_scores = weights * (keep_weights(d_weights, spot, call.scoring) + rows.shift[:, None])
    d_scores = d_scores if mask is None else jnp.where(mask, d_scores, 0)
    if call.options.softcap is not None:
        d_scores = d_scores * (1 - jnp.square(raw / call.options.softcap))
    weights = round_to(keep_weights(weights, spot, call.scoring), call.options.weight_dtype)
    return weights, (d_scores, round_to(d_scores, call.options.weight_dtype))


def _zero_bias(bias: jax.Array, options: Options, padded: tuple[int, int], dtype: Any) -> jax.Array:
    """Returns where the gradient of the bias adds up; a dense one is padded to whole tiles."""
    shape = bias.shape
    if options.bias_kind == "dense":
        shape = (*shape[:2], *(1 if n == 1 else full for n, full in zip(shape[2:], padded, strict=True)))
    return jnp.zeros(shape, dtype)


def _add_bias(d_bias: jax.Array, d_scores: jax.Array, spot: Spot, call: Call) -> jax.Array:
    """Adds a tile to the gradient of the bias, summed over what the bias was broadcast to."""
    kind, bias = call.options.bias_kind, call.bias
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
        return d_bias.at[flat_index(d_bias, spot, call.scoring)].add(d_scores)
    if kind == "compressed":
        return d_bias.at[compressed_index(d_bias, spot, call.scoring)].add(d_scores)
    _, pull = jax.vjp(lambda slopes: bias_tile(slopes, spot, call.scoring, call.options), bias.astype(d_bias.dtype))
    return d_bias + pull(d_scores)[0]
