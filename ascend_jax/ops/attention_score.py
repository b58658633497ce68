"""``flash_attention_score`` and its gradient on arrays, with CANN's conventions for everything they return.

The same kernel as :func:`ascend_jax.flash_attention`; what differs is where things lie and what hidden rows hold.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.ops.attention.kernel import FLT_MAX, attend, compiled_backward, fit_planes, hide_rows
from ascend_jax.ops.attention.products import row_dtype
from ascend_jax.ops.attention_call import AttentionCall, prepare_call
from ascend_jax.ops.attention_geometry import Geometry
from ascend_jax.ops.attention_layout import from_heads_first, refuse, to_heads_first

__all__ = ["AttentionGrads", "AttentionScore", "flash_attention_score", "flash_attention_score_grad"]

COPIES = 8  # one statistic of a row fills a 32-byte block


class AttentionScore(NamedTuple):
    """Results in the operator's order."""

    softmax_max: jax.Array  # float32 [B, N, Sq, 8], or [T, N, 8] for TND
    softmax_sum: jax.Array  # likewise
    softmax_out: jax.Array  # reserved, empty
    attention_out: jax.Array  # in the layout of query, with the head dimension of value


class AttentionGrads(NamedTuple):
    """Gradients in the layout of their inputs; None for what was not given."""

    dq: jax.Array
    dk: jax.Array
    dv: jax.Array
    dpse: jax.Array | None
    dsink: jax.Array | None


def flash_attention_score(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    head_num: int,
    input_layout: str,
    softmax_layout: str = "",
    **attributes: Any,
) -> AttentionScore:
    """Compute ``aclnnFlashAttentionScore``, or with TND ``aclnnFlashAttentionVarLenScore``, on arrays.

    Scores are ``(q k^T + pse) scale_value`` (pse_type 1), or ``q k^T scale_value + pse`` (0, and the slopes of 2, 3).
    **An atten_mask hides where it is 1. Without one, sparse_mode, tokens and prefix are ignored: full attention.** A
    row that sees nothing gives 0, softmax_max -FLT_MAX and softmax_sum +FLT_MAX with ``inner_precise=2`` or where the
    lengths prove that there are such rows; otherwise a mask that hides a whole row leaves the mean of v over the
    visited columns, softmax_max -FLT_MAX and their number as softmax_sum. Differentiable in query, key, value, pse and
    sink. Sources: ops-transformer, flash_attention_score; Ascend documents of aclnnFlashAttentionScoreV1 to V4.

    Args:
      query: float16, bfloat16 or float32, in ``input_layout``.
      key: The dtype of query; its heads divide those of query.
      value: Head dimension at most that of query.
      head_num: Heads N of query, 1 to 256.
      input_layout: "BSH", "SBH", "BNSD", "BSND" or "TND".
      softmax_layout: TND only: "TND" for statistics that are truly [T, N, 8]; else each sequence holds [N, Sq_i, 8].
      **attributes: By CANN's names, with its defaults (:func:`~ascend_jax.ops.attention_call.prepare_call`): pse,
        drop_mask (packed bits), padding_mask (reserved), atten_mask, prefix, actual_seq_qlen and actual_seq_kvlen
        (cumulative ends, TND), q_start_idx, kv_start_idx, scale_value = 1.0, keep_prob = 1.0, pre_tokens and
        next_tokens = 2147483647, inner_precise = 0, sparse_mode = 0, pse_type = 1, sink, query_rope, key_rope; seed and
        offset, to draw dropout in the kernel; emulate, to round the weights to the type of query before the second
        product and to replace masked scores by -FLT_MAX, as the device does.

    Returns:
      softmax_max, softmax_sum (8 equal copies a row, natural units of the scaled scores), an empty softmax_out, and
      attention_out.

    Raises:
      ParameterError: 161001, 161002 or 561002, as the operator's first phase refuses.

    >>> q, v = jnp.zeros((1, 4, 1, 1)), jnp.arange(6.0).reshape(1, 6, 1, 1)
    >>> mask = jnp.triu(jnp.ones((2048, 2048), jnp.uint8), 1)
    >>> done = flash_attention_score(q, v * 0, v, head_num=1, input_layout="BSND", atten_mask=mask, sparse_mode=3)
    >>> done.softmax_sum[0, 0, :, 0].tolist(), done.attention_out.ravel().tolist()
    ([3.0, 4.0, 5.0, 6.0], [1.0, 1.5, 2.0, 2.5])
    """
    _check_softmax_layout(softmax_layout, input_layout)
    call = prepare_call(query, key, value, head_num=head_num, input_layout=input_layout, **attributes)
    out, row_max, row_sum = attend(
        call.q, call.k, call.v, call.scoring, call.options, scale=call.scale, bias=call.bias, sink=call.sink
    )
    row_max, row_sum = (jax.lax.stop_gradient(x).astype(jnp.float32) for x in hide_rows(row_max, row_sum))
    highest, total = (_copies(x, call, softmax_layout) for x in (row_max, row_sum))
    return AttentionScore(highest, total, jnp.zeros(0, jnp.float32), from_heads_first(out, input_layout))


def flash_attention_score_grad(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dy: jax.Array,
    *,
    softmax_max: jax.Array,
    softmax_sum: jax.Array,
    attention_in: jax.Array,
    head_num: int,
    input_layout: str,
    softmax_layout: str = "",
    **attributes: Any,
) -> AttentionGrads:
    """Compute ``aclnnFlashAttentionScoreGrad`` from the saved results of the forward call.

    The weights are ``exp(score - softmax_max) / softmax_sum``, so a row of the FLT_MAX convention takes no gradient.
    Gradients of key and value are summed over the query heads that share them. dpse, a dummy on the device, is real.

    Args:
      query: As in the forward call; so are ``key``, ``value``, ``head_num``, ``input_layout``, ``softmax_layout`` and
        ``attributes``.
      key: Keys.
      value: Values.
      dy: Gradient of attention_out, shaped and typed like it.
      softmax_max: From the forward call.
      softmax_sum: From the forward call.
      attention_in: attention_out of the forward call.
      head_num: Heads of query.
      input_layout: Layout.
      softmax_layout: Layout of the statistics.
      **attributes: The rest.

    Raises:
      ParameterError: As the forward call, and for dy, attention_in and statistics of the wrong shape.

    >>> x = jnp.ones((1, 2, 1, 4))
    >>> done = flash_attention_score(x, x, x, head_num=1, input_layout="BSND")
    >>> grads = flash_attention_score_grad(x, x, x, x, softmax_max=done.softmax_max, softmax_sum=done.softmax_sum,
    ...     attention_in=done.attention_out, head_num=1, input_layout="BSND")
    >>> grads.dv.ravel().tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    _check_softmax_layout(softmax_layout, input_layout)
    call = prepare_call(query, key, value, head_num=head_num, input_layout=input_layout, **attributes)
    expected = (*query.shape[:-1], -1)
    for name, given in (("dy", dy), ("attention_in", attention_in)):
        if given.ndim != query.ndim or given.shape[:-1] != expected[:-1] or given.dtype != query.dtype:
            raise refuse(name, f"{given.dtype}{list(given.shape)}", "must be shaped and typed like attention_out")
    d_out, out = (
        to_heads_first(name, x, input_layout, head_num) for name, x in (("dy", dy), ("attention_in", attention_in))
    )
    if d_out.shape != out.shape or out.shape[3] != call.v.shape[3]:
        raise refuse("dy", list(dy.shape), f"the head dimension must be {call.v.shape[3]}, that of value")
    saved = (("softmax_max", softmax_max), ("softmax_sum", softmax_sum))
    row_max, row_sum = (_rows(name, x, call, softmax_layout).astype(row_dtype(call.q)) for name, x in saved)
    row_sum = jnp.where(row_sum >= FLT_MAX, 0, row_sum)
    scale = jnp.asarray(call.scale, row_dtype(call.q))
    operands = (call.q, call.k, call.v, call.bias, call.sink)
    grads: Any
    if min(call.q.size, call.k.size) == 0:
        grads = tuple(None if x is None else jnp.zeros_like(x) for x in operands)
    else:
        bias, scoring = fit_planes(call.bias, call.scoring, call.options)
        saved_rows, cotangents = (out, row_max, row_sum), (d_out, jnp.zeros_like(row_sum))
        grads = compiled_backward(
            call.q, call.k, call.v, scale, bias, call.sink, scoring, call.options, saved_rows, cotangents
        )
        grads = (*grads[:3], *grads[4:])
    dq, dk, dv, dpse, dsink = grads
    dim = to_heads_first("query", query, input_layout, head_num).shape[3]
    if dpse is not None:
        dpse = dpse[tuple(slice(0, length) for length in call.bias.shape)].reshape(attributes["pse"].shape)
    dq, dk, dv = (from_heads_first(x, input_layout) for x in (dq[..., :dim], dk[..., :dim], dv))
    return AttentionGrads(dq, dk, dv, dpse, dsink)


def _check_softmax_layout(softmax_layout: str, input_layout: str) -> None:
    known = ("", "TND", "same_as_input") if input_layout == "TND" else ("", "same_as_input")
    if softmax_layout not in known:
        raise refuse("softmax_layout", softmax_layout, f"must be one of {known} with input_layout {input_layout}")


def _copies(rows: jax.Array, call: AttentionCall, softmax_layout: str) -> jax.Array:
    """Lay out the statistics ``[B, N, Sq]``; rows of no sequence, and of one without keys, hold 0."""
    if call.layout == "TND":
        rows = jnp.where(jnp.asarray(_is_written(call.geometry))[None], rows[0], 0)
        order = None if softmax_layout else _sequence_order(call.geometry, rows.shape[0])
        flat = rows.T.reshape(-1) if order is None else rows.reshape(-1)[order]
        rows = flat.reshape(rows.shape[1], rows.shape[0])
    return jnp.broadcast_to(rows[..., None], (*rows.shape, COPIES))


def _rows(name: str, statistic: jax.Array, call: AttentionCall, softmax_layout: str) -> jax.Array:
    """Undo ``_copies``."""
    batch, heads, q_len, _ = call.q.shape
    expected = (q_len, heads, COPIES) if call.layout == "TND" else (batch, heads, q_len, COPIES)
    if statistic.shape != expected:
        raise refuse(f"{name}.shape", list(statistic.shape), f"must be {list(expected)}")
    rows = statistic[..., 0]
    if call.layout != "TND":
        return rows
    if softmax_layout:
        return rows.T[None]
    order = _sequence_order(call.geometry, heads)
    return jnp.zeros(heads * q_len, rows.dtype).at[order].set(rows.reshape(-1)).reshape(1, heads, q_len)


def _is_written(geometry: Geometry) -> np.ndarray:
    counts = np.array([each.q_len for each in geometry.sequences], int)
    written = np.repeat(np.array([each.kv_len > 0 for each in geometry.sequences], bool), counts)
    return np.pad(written, (0, geometry.rows - written.size))


def _sequence_order(geometry: Geometry, heads: int) -> np.ndarray:
    """Return where each entry of [N, Sq_0], [N, Sq_1], ... and the slack comes from in [N, T]."""
    grid = np.arange(heads * geometry.rows, dtype=np.int32).reshape(heads, geometry.rows)
    ends = np.cumsum([each.q_len for each in geometry.sequences])
    return np.concatenate([part.ravel() for part in np.split(grid, ends, axis=1)])
