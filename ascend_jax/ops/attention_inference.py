"""``fused_infer_attention_score`` on arrays: attention of prompts and of decoding.

``FusedInferAttentionScore`` sends a call with one query row to the incremental branch, which ignores tokens and the
compressed modes, and all others to the prompt branch. Sources: ops-transformer, fused_infer_attention_score,
prompt_flash_attention, incre_flash_attention, and their aclnn documents.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.ops import kv_cache
from ascend_jax.ops.attention.host_tile import host_tiles
from ascend_jax.ops.attention.kernel import FLT_MAX, attend
from ascend_jax.ops.attention.scoring import Options, Scoring
from ascend_jax.ops.attention.visibility import ALL_TOKENS, SparseMode, column_bounds
from ascend_jax.ops.attention_geometry import check_tokens, packed_geometry
from ascend_jax.ops.attention_inference_checks import (
    INFERENCE_LAYOUTS,
    check_dims,
    check_latent,
    check_mask,
    check_operands,
    lengths_of,
)
from ascend_jax.ops.attention_inference_keys import CacheFields, keys_of, pool_lengths, with_rope
from ascend_jax.ops.attention_int8 import check_scales, dequantised_query, number, quantise
from ascend_jax.ops.attention_layout import from_heads_first, refuse, sequence_lengths, to_heads_first
from ascend_jax.ops.paged_decode import paged_decode

__all__ = ["InferAttention", "fused_infer_attention_score"]


class InferAttention(NamedTuple):
    """Results in the operator's order."""

    attention_out: jax.Array
    softmax_lse: jax.Array  # float32 [B, N, Sq, 1], [T, N, 1] for TND; empty unless asked for


def fused_infer_attention_score(
    query: jax.Array,
    key: Any,
    value: Any,
    *,
    num_heads: int = 1,
    input_layout: str = "BSH",
    scale_value: float | jax.Array = 1.0,
    num_key_value_heads: int = 0,
    pse_shift: jax.Array | None = None,
    atten_mask: jax.Array | None = None,
    actual_seq_lengths: Any = None,
    actual_seq_lengths_kv: Any = None,
    pre_tokens: int = ALL_TOKENS,
    next_tokens: int = ALL_TOKENS,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_table: Any = None,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
    learnable_sink: jax.Array | None = None,
    emulate: bool = False,
    **cache: Any,
) -> InferAttention:
    """Compute ``aclnnFusedInferAttentionScore`` on arrays.

    Scores are ``q k^T scale_value + pse_shift``, in this order. A row that sees nothing is 0 if there are several query
    rows, or with sparse mode 3, or with bit 1 of ``inner_precise``; its log-sum-exp is +inf, as is that of padding.

    Args:
      query: float16, bfloat16, float32 or int8, in ``input_layout``: "BSH", "BSND", "BNSD", "BNSD_BSND", "TND",
        "NTD_TND".
      key: As query or int8; with ``block_table`` a page pool [blocks, bs, H], [blocks, N, bs, D] or NZ. A list of one
        array is taken as that array.
      value: Likewise.
      num_heads: Heads N of query.
      input_layout: Layout; the second half of a double name is that of the output.
      scale_value: Factor of the products: 1.0 unless given.
      num_key_value_heads: Heads of key, 0 for as many as query.
      pse_shift: [B or 1, N, Sq, Skv], dtype of query.
      atten_mask: bool, int8 or uint8, 1 = hidden. Modes 2, 3, 4: the compressed 2048 x 2048.
      actual_seq_lengths: Query rows in use of each batch row, one number for all; cumulative ends for TND.
      actual_seq_lengths_kv: Keys in use likewise; with pages per batch row, also for TND.
      pre_tokens: Of modes 0 and 4; ignored without a mask and for one query row.
      next_tokens: Likewise.
      sparse_mode: 0 to 4.
      inner_precise: Bit 0: high performance, bit 1: correct invalid rows.
      block_table: int32 [B, pages], with it ``actual_seq_lengths_kv`` is required.
      block_size: Rows of a page.
      softmax_lse_flag: Also return the log-sum-exp.
      learnable_sink: float32 [N].
      emulate: Round as the device does: weights to the type of query; scores to float16 with high performance.
      **cache: key_antiquant_scale, _offset, _mode, and for value (int8: ``(x + offset) * scale``);
        key_shared_prefix, value_shared_prefix, actual_shared_prefix_len; query_padding_size, kv_padding_size;
        query_rope, key_rope; dequant_scale1, quant_scale1, dequant_scale2 for int8 queries, and quant_scale2,
        quant_offset2 for an int8 output (:mod:`~ascend_jax.ops.attention_int8`); dequant_scale_query, float32, shaped
        like query without D, for int8 queries with rotary parts (the cache has its antiquant scales).

    Raises:
      ParameterError: 161001, 161002 or 561002, as the first phase refuses.

    >>> q, kv = jnp.zeros((1, 1, 4)), jnp.arange(12.0).reshape(1, 3, 4)
    >>> fused_infer_attention_score(q, kv, kv, actual_seq_lengths_kv=[2]).attention_out.ravel().tolist()
    [2.0, 3.0, 4.0, 5.0]
    """
    unknown = sorted(set(cache) - set(CacheFields._fields))
    if unknown:
        raise TypeError(f"fused_infer_attention_score() got an unexpected keyword argument {unknown[0]!r}")
    fields = CacheFields(**cache)
    key, value = (x[0] if isinstance(x, list | tuple) and len(x) == 1 else x for x in (key, value))
    check_operands(query, key, value, num_heads, num_key_value_heads, input_layout, sparse_mode, inner_precise)
    query = dequantised_query(query, key, value, input_layout, num_heads, fields)
    check_scales(query, key, value, fields)
    source, target = INFERENCE_LAYOUTS[input_layout]
    kv_heads = num_key_value_heads or num_heads
    q = query[None] if source == "NTD" else to_heads_first("query", query, source, num_heads)
    is_packed = source in ("TND", "NTD")
    takes_pages = block_table is not None and not is_packed and q.shape[2] == 1 and key.dtype == query.dtype
    if (
        takes_pages
        and query.dtype != jnp.int8
        and _all_absent(*(x for x in fields if not isinstance(x, int)))
        and not emulate
        and _all_absent(pse_shift, atten_mask, learnable_sink, actual_seq_lengths)
    ):
        lengths = pool_lengths(key, value, q, kv_heads, source, block_table, block_size, actual_seq_lengths_kv)
        kv_cache.check_pages(block_table, lengths, min(key.shape[0], value.shape[0]), block_size)
        out, lse = paged_decode(q, key, value, block_table, lengths, scale_value, block_size, kv_heads)
        return InferAttention(from_heads_first(out, target), lse if softmax_lse_flag else jnp.zeros(0, jnp.float32))
    k, v, kv_lengths = keys_of(key, value, q, kv_heads, source, block_table, block_size, actual_seq_lengths_kv, fields)
    has_rope = fields.query_rope is not None
    check_dims(q, k, v, input_layout, has_rope)
    if has_rope:
        longest = (
            max(sequence_lengths("actual_seq_lengths", actual_seq_lengths, q.shape[2])) if is_packed else q.shape[2]
        )
        check_latent(q, kv_heads, sparse_mode, longest)
    where = {"table": block_table, "block_size": block_size, "lengths": kv_lengths}
    q, k = with_rope(q, k, fields, source, num_heads, kv_heads, **where)
    has_one_row = q.shape[2] == 1 and not is_packed
    mode = SparseMode.NO_MASK if has_one_row or atten_mask is None else SparseMode(sparse_mode)
    tokens = (ALL_TOKENS, ALL_TOKENS) if has_one_row or atten_mask is None else (pre_tokens, next_tokens)
    check_tokens(*tokens)
    if is_packed:
        scoring, k, v = _packed_rows(q, k, v, actual_seq_lengths, kv_lengths, mode, tokens, block_table is not None)
    else:
        q_lengths = lengths_of("actual_seq_lengths", actual_seq_lengths, q.shape[0], q.shape[2])
        if fields.query_padding_size is not None:
            q = kv_cache.left_aligned(q, fields.query_padding_size, q_lengths)
        rows = jnp.arange(q.shape[2])[None, :]
        used, seen = (jnp.asarray(x, jnp.int32).clip(0)[:, None] for x in (q_lengths, kv_lengths))
        scoring = Scoring(*column_bounds(rows, used, seen, mode, pre_tokens=tokens[0], next_tokens=tokens[1]))
    mask = check_mask(atten_mask, sparse_mode, q.shape[0], q.shape[2], k.shape[2], is_packed)
    scoring = dataclasses.replace(scoring, mask=mask)
    zero_rows = inner_precise & 2 or sparse_mode == 3 or not has_one_row
    options = Options(
        tile=(1, 1),
        mask_hides=True,
        mask_value=None if zero_rows else -1e12 if emulate else -FLT_MAX,
        weight_dtype=str(q.dtype) if emulate and q.dtype.itemsize == 2 else None,
        score_dtype="float16" if emulate and inner_precise & 1 and q.dtype == jnp.float16 else None,
    )
    if q.dtype == jnp.int8:
        scale_value = scale_value * number("dequant_scale1", fields.dequant_scale1)
        scoring = dataclasses.replace(scoring, weight_scale=number("quant_scale1", fields.quant_scale1))
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))  # products of int8 are exact
    out, lse = _compute(
        q, k, v, scoring, options, scale_value, _pse(pse_shift, query.dtype, q, k), _sink(learnable_sink, num_heads)
    )
    if fields.dequant_scale_query is not None:
        out = out.astype(fields.query_rope.dtype)
    if query.dtype == jnp.int8:
        out = (out * number("dequant_scale2", fields.dequant_scale2)).astype(jnp.float16)
    if fields.query_padding_size is not None:
        out, lse = (_right_aligned(x, fields.query_padding_size, q_lengths) for x in (out, lse))
        lse = jnp.where(_in_use(lse, fields.query_padding_size, q_lengths), lse, jnp.inf)
        out = jnp.where(_in_use(out, fields.query_padding_size, q_lengths), out, 0)
    if not softmax_lse_flag:
        lse = jnp.zeros(0, jnp.float32)
    elif is_packed:
        lse = jnp.swapaxes(lse[0], 0, 1)
    return InferAttention(from_heads_first(quantise(out, fields), target), lse)


def _all_absent(*tensors: Any) -> bool:
    return all(x is None for x in tensors)


def _packed_rows(
    q: Any, k: Any, v: Any, ends: Any, kv_given: Any, mode: int, tokens: tuple[int, int], is_paged: bool
) -> tuple[Scoring, Any, Any]:
    """Return the scoring of packed queries, and keys as one row: pages of all sequences one after the other."""
    if ends is None or kv_given is None:
        raise refuse("actual_seq_lengths, actual_seq_lengths_kv", None, "TND needs both lists")
    if isinstance(ends, jax.core.Tracer) or isinstance(kv_given, jax.core.Tracer):
        raise refuse("actual_seq_lengths, actual_seq_lengths_kv", "traced", "TND needs host integers: they choose rows")
    q_lens = sequence_lengths("actual_seq_lengths", ends, q.shape[2], is_exact=True)
    if is_paged:
        kv_lens, stride = [int(n) for n in np.asarray(kv_given)], k.shape[2]
        k, v = (x.swapaxes(0, 1).reshape(1, x.shape[1], -1, x.shape[3]) for x in (k, v))
    else:
        kv_lens, stride = sequence_lengths("actual_seq_lengths_kv", kv_given, k.shape[2], is_exact=True), 0
    geometry = packed_geometry(
        q_lens,
        kv_lens,
        q.shape[2],
        has_mask=mode != 0,
        sparse_mode=int(mode),
        pre_tokens=tokens[0],
        next_tokens=tokens[1],
    )
    scoring = geometry.scoring()
    if is_paged:  # sequences lie a whole number of pages apart
        packed_start = np.repeat(np.cumsum([0, *kv_lens[:-1]]), q_lens)
        shift = jnp.asarray(np.repeat(np.arange(len(q_lens)) * stride, q_lens) - packed_start, jnp.int32)[None]
        scoring = dataclasses.replace(scoring, low=scoring.low + shift, high=scoring.high + shift)
    return scoring, k, v


def _pse(pse: Any, dtype: Any, q: Any, k: Any) -> Any:
    if pse is None:
        return None
    batch, heads, q_len, _ = q.shape
    wanted = "float16" if dtype == jnp.int8 else str(dtype)
    if str(pse.dtype) != wanted or pse.ndim != 4 or pse.shape[0] not in (1, batch) or pse.shape[1] != heads:
        raise refuse("pse_shift", f"{pse.dtype}{list(pse.shape)}", f"must be {wanted} [B or 1, {heads}, Sq, Skv]")
    if pse.shape[2] < q_len or pse.shape[3] < k.shape[2]:
        raise refuse("pse_shift.shape", list(pse.shape), f"must cover Sq = {q_len} and Skv = {k.shape[2]}")
    return pse[:, :, :q_len, : k.shape[2]]


def _sink(sink: Any, heads: int) -> Any:
    if sink is not None and sink.shape != (heads,):
        raise refuse("learnable_sink.shape", list(sink.shape), f"must be [{heads}]")
    return sink


def _compute(
    q: Any, k: Any, v: Any, scoring: Scoring, options: Options, scale: Any, bias: Any, sink: Any
) -> tuple[jax.Array, jax.Array]:
    """Run the kernel; with one query row, all heads of a group are the rows of one product."""
    batch, heads, q_len, dim = q.shape
    kv_heads = k.shape[1]
    folds = q_len == 1 and scoring.row is None and bias is None and sink is None and heads > kv_heads
    if folds:
        q = q.reshape(batch, kv_heads, heads // kv_heads, dim)
        low, high = (jnp.broadcast_to(x, (x.shape[0], q.shape[2])) for x in (scoring.low, scoring.high))
        scoring = Scoring(low, high, mask=scoring.mask)
    tile = host_tiles(q.shape[2], k.shape[2], max(dim, v.shape[3]), skips=q_len > 1)
    out, row_max, row_sum = attend(
        q, k, v, scoring, dataclasses.replace(options, tile=tile), scale=scale, bias=bias, sink=sink
    )
    hidden = (row_sum == 0) | (row_max == (-FLT_MAX if options.mask_value is None else options.mask_value))
    lse = jnp.where(hidden, jnp.inf, row_max + jnp.log(jnp.where(hidden, 1, row_sum))).astype(jnp.float32)
    return out.reshape(batch, heads, q_len, -1), lse.reshape(batch, heads, q_len, 1)


def _right_aligned(x: jax.Array, padding: Any, lengths: Any) -> jax.Array:
    """Undo ``left_aligned``."""
    total = x.shape[2]
    start = total - jnp.asarray(padding).reshape(-1) - jnp.asarray(lengths)
    at = (jnp.arange(total)[None, :] - start[:, None]).clip(0, total - 1)
    return jnp.take_along_axis(x, at[:, None, :, None], axis=2)


def _in_use(x: jax.Array, padding: Any, lengths: Any) -> jax.Array:
    """Return which rows of ``[B, N, S, D]`` hold queries when they sit on the right: ``[B, 1, S, 1]``."""
    end = x.shape[2] - jnp.asarray(padding).reshape(-1, 1)
    at = jnp.arange(x.shape[2])[None, :]
    start = end - jnp.asarray(lengths)[:, None]
    return ((at >= start) & (at < end) & (start >= 0))[:, None, :, None]
