"""Merging partial attention results: ``RingAttentionUpdate`` and ``AttentionUpdate``.

Rows that saw nothing come in CANN's convention (-FLT_MAX, +FLT_MAX) and leave in it; in between their weight is 0, so
that two of them merge without overflow, and a third shard finds them as it should.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ascend_jax.ops.attention.kernel import FLT_MAX, hide_rows
from ascend_jax.ops.attention_layout import refuse, sequence_lengths
from ascend_jax.ops.attention_score import COPIES

__all__ = ["attention_update", "merge_rows", "ring_attention_update"]

MAX_PARTS, MAX_DIM, MAX_HEADS = 16, 768, 256


def merge_rows(
    row_max: tuple[jax.Array, jax.Array], row_sum: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """Return maximum, sum and the share of either part in the output; sums may be in CANN's convention or 0.

    >>> highs, sums = (jnp.zeros(1), jnp.log(jnp.full(1, 2.0))), (jnp.full(1, 2.0), jnp.full(1, 3.0))
    >>> row_max, row_sum, shares = merge_rows(highs, sums)
    >>> round(float(row_max[0]), 6), round(float(row_sum[0]), 5), [round(float(x[0]), 5) for x in shares]
    (0.693147, 4.0, [0.25, 0.75])
    """
    safe = tuple(jnp.where(x >= FLT_MAX, 0, x) for x in row_sum)
    # the maximum of a part without weight says nothing
    highs = [jnp.where(x == 0, -FLT_MAX, y) for x, y in zip(safe, row_max, strict=True)]
    highest = jnp.maximum(*highs)
    parts = [x * jnp.exp(y - highest) for x, y in zip(safe, highs, strict=True)]
    total = parts[0] + parts[1]
    divisor = jnp.where(total > 0, total, 1)
    highest, total = hide_rows(highest, total)
    return highest, total, (parts[0] / divisor, parts[1] / divisor)


def ring_attention_update(
    prev_attn_out: jax.Array,
    prev_softmax_max: jax.Array,
    prev_softmax_sum: jax.Array,
    cur_attn_out: jax.Array,
    cur_softmax_max: jax.Array,
    cur_softmax_sum: jax.Array,
    *,
    actual_seq_qlen: Sequence[int] | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Merge two partial results of one attention, as ``aclnnRingAttentionUpdate`` does, in float32.

    Args:
      prev_attn_out: [S, B, H], or [T, N, D] with layout "TND"; float16, bfloat16 or float32.
      prev_softmax_max: float32 [B, N, S, 8], or [T, N, 8].
      prev_softmax_sum: Likewise.
      cur_attn_out: The other part, shaped and typed like the first.
      cur_softmax_max: Likewise.
      cur_softmax_sum: Likewise.
      actual_seq_qlen: TND: cumulative ends; CANN's list starts with 0, one without is taken as well.
      input_layout: "SBH" or "TND".
      input_softmax_layout: TND: "TND" if the statistics are truly [T, N, 8], "" if each sequence holds [N, Sq_i, 8].

    Returns:
      attn_out, softmax_max, softmax_sum.

    Raises:
      ParameterError: 161002 for layouts and shapes, 561002 for a list that does not fit.
    """
    pairs = (
        ("cur_attn_out", cur_attn_out, prev_attn_out),
        ("cur_softmax_max", cur_softmax_max, prev_softmax_max),
        ("cur_softmax_sum", cur_softmax_sum, prev_softmax_max),
        ("prev_softmax_sum", prev_softmax_sum, prev_softmax_max),
    )
    for name, given, like in pairs:
        if given.shape != like.shape or given.dtype != like.dtype:
            raise refuse(name, f"{given.dtype}{list(given.shape)}", f"must be {like.dtype}{list(like.shape)}")
    if input_layout not in ("SBH", "TND"):
        raise refuse("input_layout", input_layout, "must be 'SBH' or 'TND'")
    rank = {"SBH": 4, "TND": 3}[input_layout]
    if prev_attn_out.ndim != 3 or prev_softmax_max.ndim != rank or prev_softmax_max.shape[-1] != COPIES:
        shapes = f"{list(prev_attn_out.shape)}, {list(prev_softmax_max.shape)}"
        raise refuse("prev_attn_out, prev_softmax_max", shapes, f"must have ranks 3 and {rank}, and {COPIES} copies")
    row_max, row_sum, shares = merge_rows(
        (prev_softmax_max[..., 0], cur_softmax_max[..., 0]), (prev_softmax_sum[..., 0], cur_softmax_sum[..., 0])
    )
    spread = [_as_output(x, prev_attn_out, actual_seq_qlen, input_layout, input_softmax_layout) for x in shares]
    parts = zip((prev_attn_out, cur_attn_out), spread, strict=True)
    # a part of no weight may hold anything
    out = sum(jnp.where(share > 0, x.astype(jnp.float32), 0) * share for x, share in parts)
    copies = (jnp.broadcast_to(x[..., None], prev_softmax_max.shape) for x in (row_max, row_sum))
    return (jnp.asarray(out).astype(prev_attn_out.dtype), *copies)  # type: ignore[return-value]


def _as_output(
    share: jax.Array, out: jax.Array, ends: Sequence[int] | None, layout: str, softmax_layout: str
) -> jax.Array:
    """Return the share of each row, ``[B, N, S]`` or ``[T, N]``, for each entry of the output."""
    if layout == "SBH":
        heads = share.shape[1]
        if out.shape[2] % heads or share.shape != (out.shape[1], heads, out.shape[0]):
            raise refuse("prev_softmax_max.shape", list(share.shape), f"does not fit attn_out {list(out.shape)}")
        return jnp.repeat(share.transpose(2, 0, 1), out.shape[2] // heads, axis=2)
    total, heads, dim = out.shape
    if heads > MAX_HEADS or dim > MAX_DIM or share.shape != (total, heads):
        raise refuse(
            "prev_attn_out.shape", list(out.shape), f"N <= {MAX_HEADS}, D <= {MAX_DIM}, and statistics [T, N, 8]"
        )
    if softmax_layout not in ("TND", "same_as_input"):
        if ends is None:
            raise refuse("actual_seq_qlen", None, "TND needs the cumulative ends")
        values = list(ends)[1:] if list(ends)[:1] == [0] else list(ends)
        lengths = sequence_lengths("actual_seq_qlen", values, total)
        flat, start, parts = share.reshape(-1), 0, []
        for length in [*lengths, total - sum(lengths)]:
            parts.append(flat[start : start + heads * length].reshape(heads, length).T)
            start += heads * length
        share = jnp.concatenate(parts)
    return share[..., None]


def attention_update(lse: Sequence[jax.Array], outs: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Merge up to 16 partial results by their log-sum-exp, as ``aclnnAttentionUpdate`` does, in float32.

    Args:
      lse: float32 [R] each; +inf or -inf marks a row that saw nothing.
      outs: [R, D] each, D from 8 to 512 and a multiple of 8.

    Returns:
      out [R, D] in the dtype of the parts, and lse [R], +inf for a row that saw nothing in any part.

    Raises:
      ParameterError: 161002.

    >>> out, lse = attention_update([jnp.zeros(1), jnp.zeros(1)], [jnp.ones((1, 8)), jnp.full((1, 8), 3.0)])
    >>> float(out[0, 0]), round(float(lse[0]), 6)
    (2.0, 0.693147)
    """
    if not 1 <= len(lse) <= MAX_PARTS or len(lse) != len(outs):
        raise refuse("lse, outs", f"{len(lse)}, {len(outs)}", f"must be equally many, 1 to {MAX_PARTS}")
    rows, dim = outs[0].shape if outs[0].ndim == 2 else (0, 0)
    if dim % 8 or not 8 <= dim <= 512:
        raise refuse("outs[0].shape", list(outs[0].shape), "must be [R, D] with D from 8 to 512, a multiple of 8")
    for index, (each, out) in enumerate(zip(lse, outs, strict=True)):
        if out.shape != (rows, dim) or each.shape != (rows,) or out.dtype != outs[0].dtype:
            raise refuse(
                f"lse[{index}], outs[{index}]", f"{list(each.shape)}, {list(out.shape)}", "must match the first"
            )
    weights = jnp.stack([jnp.where(jnp.isinf(x), -jnp.inf, x) for x in lse])
    highest = weights.max(axis=0)
    safe = jnp.where(jnp.isfinite(highest), highest, 0)
    weights = jnp.exp(weights - safe[None])
    total = weights.sum(axis=0)
    shares = weights / jnp.where(total > 0, total, 1)[None]
    stacked = jnp.stack([x.astype(jnp.float32) for x in outs])
    out = jnp.where(shares[..., None] > 0, stacked * shares[..., None], 0).sum(axis=0)
    merged = jnp.where(total > 0, safe + jnp.log(jnp.where(total > 0, total, 1)), jnp.inf)
    return out.astype(outs[0].dtype), merged
