"""The training attention calls of torch_npu on arrays: its names, its argument order, its defaults, its results.

Every default is the one that torch_npu documents, traps included: scale is 1.0 everywhere. Where dropout is asked for
without a mask, it is drawn in the kernel (Philox, see :mod:`ascend_jax.ops.attention.dropout`). Source: op-plugin, its
yaml and the torch_npu documents.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.ops.attention.visibility import ALL_TOKENS
from ascend_jax.ops.attention_layout import refuse
from ascend_jax.ops.attention_merge import attention_update, ring_attention_update
from ascend_jax.ops.attention_score import flash_attention_score, flash_attention_score_grad

__all__ = [
    "npu_attention_update",
    "npu_fusion_attention",
    "npu_fusion_attention_grad",
    "npu_fusion_attention_v2",
    "npu_fusion_attention_v3",
    "npu_ring_attention_update",
]

Array = jax.Array


def npu_fusion_attention(
    query: Array,
    key: Array,
    value: Array,
    head_num: int,
    input_layout: str,
    *,
    pse: Array | None = None,
    padding_mask: Array | None = None,
    atten_mask: Array | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = ALL_TOKENS,
    next_tockens: int = ALL_TOKENS,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Array | None = None,
    dropout_mask: Array | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Array, Array, Array, Array, int, int, int]:
    """Compute ``torch_npu.npu_fusion_attention``; see :func:`~ascend_jax.ops.flash_attention_score` for the meaning.

    Args:
      query: In ``input_layout``; so are ``key`` and ``value``.
      key: Keys.
      value: Values.
      head_num: Heads of query.
      input_layout: "BSH", "SBH", "BNSD", "BSND" or "TND".
      pse: Position bias, added before the scale (type 1).
      padding_mask: Reserved.
      atten_mask: 1 = hidden.
      scale: 1.0 unless given, never ``1 / sqrt(D)``.
      keep_prob: In (0, 1].
      pre_tockens: Spelt as torch_npu spells it.
      next_tockens: Likewise.
      inner_precise: 2 corrects rows that see nothing.
      prefix: Of modes 5 and 6.
      actual_seq_qlen: Cumulative ends, TND.
      actual_seq_kvlen: Likewise.
      sparse_mode: 0 to 8.
      gen_mask_parallel: Changes the schedule on a card, no value.
      sync: Likewise.
      softmax_layout: "TND" for statistics that are truly [T, N, 8].
      sink: float32 [N].
      dropout_mask: Packed keep-bits.
      seed: Of dropout that is drawn.
      offset: Likewise.

    Returns:
      (attention_out, softmax_max, softmax_sum, softmax_out, seed, offset, numels).

    >>> q = jnp.ones((1, 2, 8))
    >>> out, row_max, row_sum, *rest = npu_fusion_attention(q, q, q, 2, "BSH")
    >>> float(row_max[0, 0, 0, 0]), float(row_sum[0, 0, 0, 0]), rest[1:]
    (4.0, 2.0, [0, 0, 0])
    """
    return _fusion(
        query, key, value, head_num, input_layout, pse=pse, padding_mask=padding_mask, atten_mask=atten_mask,
        scale_value=scale, keep_prob=keep_prob, pre_tokens=pre_tockens, next_tokens=next_tockens,
        inner_precise=inner_precise, prefix=prefix, actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode, softmax_layout=softmax_layout, sink=sink,
        drop_mask=dropout_mask, seed=seed, offset=offset,
    )  # fmt: skip


def npu_fusion_attention_v2(
    query: Array,
    key: Array,
    value: Array,
    head_num: int,
    input_layout: str,
    *,
    scale: float = 1.0,
    pse_type: int = 1,
    q_start_idx: Sequence[int] | int | None = None,
    kv_start_idx: Sequence[int] | int | None = None,
    dropout_mask: Array | None = None,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    seed: int = 0,
    offset: int = 0,
    **attributes: Any,
) -> tuple[Array, Array, Array, Array, int, int, int]:
    """Compute ``torch_npu.npu_fusion_attention_v2``: with pse types, start indices, rope, and tokens spelt right.

    Args:
      query: As :func:`npu_fusion_attention`; so are the others.
      key: Keys.
      value: Values.
      head_num: Heads of query.
      input_layout: Layout.
      scale: 1.0 unless given.
      pse_type: 0 to 3.
      q_start_idx: Start of the queries, types 2 and 3; a number or a list of one.
      kv_start_idx: Start of the keys.
      dropout_mask: Packed keep-bits.
      gen_mask_parallel: Changes no value.
      sync: Likewise.
      seed: Of dropout that is drawn.
      offset: Likewise.
      **attributes: pse, padding_mask, atten_mask, query_rope, key_rope, keep_prob, pre_tokens, next_tokens,
        inner_precise, prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode, softmax_layout, sink.

    >>> q = jnp.ones((1, 2, 8))
    >>> npu_fusion_attention_v2(q, q, q, 2, "BSH", pse=jnp.ones(2), pse_type=2)[2][0, 0, 0, 0] < 2
    Array(True, dtype=bool)
    """
    first, second = (0 if x is None else x for x in (q_start_idx, kv_start_idx))
    return _fusion(
        query, key, value, head_num, input_layout, scale_value=scale, pse_type=pse_type, q_start_idx=first,
        kv_start_idx=second, drop_mask=dropout_mask, seed=seed, offset=offset, **attributes,
    )  # fmt: skip


def npu_fusion_attention_v3(
    query: Array, key: Array, value: Array, head_num: int, input_layout: str, **attributes: Any
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Compute ``torch_npu.npu_fusion_attention_v3``: lengths are tensors, and seed and offset come back as tensors.

    The lengths choose shapes, so they must be concrete here.

    >>> q = jnp.ones((1, 2, 8))
    >>> len(npu_fusion_attention_v3(q, q, q, 2, "BSH"))
    6
    """
    lists = {
        name: np.asarray(attributes[name]).tolist()
        for name in ("actual_seq_qlen", "actual_seq_kvlen")
        if attributes.get(name) is not None
    }
    results = npu_fusion_attention_v2(query, key, value, head_num, input_layout, **{**attributes, **lists})
    return (*results[:4], jnp.asarray(results[4]), jnp.asarray(results[5]))


def _fusion(
    query: Array, key: Array, value: Array, head_num: int, input_layout: str, **attributes: Any
) -> tuple[Array, Array, Array, Array, int, int, int]:
    done = flash_attention_score(query, key, value, head_num=head_num, input_layout=input_layout, **attributes)
    numels = 0
    if attributes.get("keep_prob", 1.0) < 1:
        numels = _count_scores(query, key, head_num, input_layout, attributes)
    return (
        done.attention_out, done.softmax_max, done.softmax_sum, done.softmax_out,
        attributes["seed"], attributes["offset"], numels,
    )  # fmt: skip


def _count_scores(query: Array, key: Array, heads: int, layout: str, attributes: dict[str, Any]) -> int:
    if layout == "TND":
        ends = [np.diff([0, *attributes[name]]) for name in ("actual_seq_qlen", "actual_seq_kvlen")]
        return heads * int((ends[0].clip(0) * ends[1].clip(0)).sum())
    batch, length = {"BSH": (0, 1), "SBH": (1, 0), "BNSD": (0, 2), "BSND": (0, 1)}[layout]
    return query.shape[batch] * heads * query.shape[length] * key.shape[length]


def npu_fusion_attention_grad(
    query: Array,
    key: Array,
    value: Array,
    dy: Array,
    head_num: int,
    input_layout: str,
    *,
    softmax_max: Array,
    softmax_sum: Array,
    attention_in: Array,
    scale_value: float = 1.0,
    pre_tockens: int = ALL_TOKENS,
    next_tockens: int = ALL_TOKENS,
    softmax_in: Array | None = None,
    numels: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    dropout_mask: Array | None = None,
    **attributes: Any,
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Compute ``torch_npu.npu_fusion_attention_grad``: (dq, dk, dv, dpse, dsink).

    Args:
      query: As in the forward call; so are the others.
      key: Keys.
      value: Values.
      dy: Gradient of the output.
      head_num: Heads of query.
      input_layout: Layout.
      softmax_max: From the forward call.
      softmax_sum: From the forward call.
      attention_in: Output of the forward call.
      scale_value: 1.0 unless given.
      pre_tockens: Spelt as torch_npu spells it.
      next_tockens: Likewise.
      softmax_in: Reserved.
      numels: From the forward call; follows from the shapes here.
      gen_mask_parallel: Changes no value.
      sync: Likewise.
      dropout_mask: Packed keep-bits.
      **attributes: pse, padding_mask, atten_mask, keep_prob, inner_precise, prefix, actual_seq_qlen, actual_seq_kvlen,
        sparse_mode, softmax_layout, sink, seed, offset, pse_type and so on.

    >>> q = jnp.ones((1, 2, 8))
    >>> out, row_max, row_sum, *_ = npu_fusion_attention(q, q, q, 2, "BSH")
    >>> saved = {"softmax_max": row_max, "softmax_sum": row_sum, "attention_in": out}
    >>> npu_fusion_attention_grad(q, q, q, q, 2, "BSH", **saved)[0].shape
    (1, 2, 8)
    """
    return flash_attention_score_grad(
        query, key, value, dy, softmax_max=softmax_max, softmax_sum=softmax_sum, attention_in=attention_in,
        head_num=head_num, input_layout=input_layout, scale_value=scale_value, pre_tokens=pre_tockens,
        next_tokens=next_tockens, drop_mask=dropout_mask, **attributes,
    )  # fmt: skip


def npu_ring_attention_update(
    prev_attn_out: Array,
    prev_softmax_max: Array,
    prev_softmax_sum: Array,
    cur_attn_out: Array,
    cur_softmax_max: Array,
    cur_softmax_sum: Array,
    *,
    actual_seq_qlen: Sequence[int] | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[Array, Array, Array]:
    """Compute ``torch_npu.npu_ring_attention_update``: (out, max, sum).

    >>> out, stat = jnp.ones((1, 1, 4)), jnp.ones((1, 1, 1, 8))
    >>> float(npu_ring_attention_update(out, stat, stat, out, stat, stat)[2][0, 0, 0, 0])
    2.0
    """
    return ring_attention_update(
        prev_attn_out, prev_softmax_max, prev_softmax_sum, cur_attn_out, cur_softmax_max, cur_softmax_sum,
        actual_seq_qlen=actual_seq_qlen, input_layout=input_layout, input_softmax_layout=input_softmax_layout,
    )  # fmt: skip


def npu_attention_update(
    lse: Sequence[Array], local_out: Sequence[Array], update_type: int
) -> tuple[Array, Array | None]:
    """Compute ``torch_npu.npu_attention_update``: (out, lse), the latter with update_type 1 only.

    >>> float(npu_attention_update([jnp.zeros(1)], [jnp.ones((1, 8))], 1)[1][0])
    0.0
    """
    if update_type not in (0, 1):
        raise refuse("update_type", update_type, "must be 0 (out) or 1 (out and lse)")
    out, merged = attention_update(lse, local_out)
    return out, merged if update_type else None
