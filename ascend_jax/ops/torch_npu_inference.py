"""The inference attention calls of torch_npu on arrays, with its defaults.

Traps included: scale is 1.0 everywhere, ``next_tokens`` 0 in the prompt call, ``inner_precise`` 1 in the incremental.
Source: op-plugin, its yaml and the torch_npu documents.
"""

from typing import Any

import jax
import jax.numpy as jnp  # noqa: F401, the examples use it

from ascend_jax.ops.attention.visibility import ALL_TOKENS
from ascend_jax.ops.attention_branches import incre_flash_attention, prompt_flash_attention
from ascend_jax.ops.attention_inference import fused_infer_attention_score
from ascend_jax.ops.attention_layout import refuse

__all__ = [
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2",
    "npu_incre_flash_attention",
    "npu_prompt_flash_attention",
]

Array = jax.Array


def npu_prompt_flash_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    num_heads: int = 1,
    scale_value: float = 1.0,
    pre_tokens: int = ALL_TOKENS,
    next_tokens: int = 0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    **attributes: Any,
) -> Array:
    """Compute ``torch_npu.npu_prompt_flash_attention``; sparse modes 10 to 14 mean 0 to 4 with inner_precise 0.

    >>> q = jnp.ones((1, 2, 8))
    >>> npu_prompt_flash_attention(q, q, q).shape
    (1, 2, 8)
    """
    if 10 <= sparse_mode <= 14:
        sparse_mode, attributes = sparse_mode - 10, {**attributes, "inner_precise": 0}
    return prompt_flash_attention(
        query, key, value, num_heads=num_heads, scale_value=scale_value, pre_tokens=pre_tokens, next_tokens=next_tokens,
        input_layout=input_layout, num_key_value_heads=num_key_value_heads, sparse_mode=sparse_mode, **attributes,
    )  # fmt: skip


def npu_incre_flash_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    inner_precise: int = 1,
    **attributes: Any,
) -> Array:
    """Compute ``torch_npu.npu_incre_flash_attention``.

    >>> q = jnp.ones((1, 1, 8))
    >>> npu_incre_flash_attention(q, q, q).shape
    (1, 1, 8)
    """
    return incre_flash_attention(
        query, key, value, num_heads=num_heads, scale_value=scale_value, input_layout=input_layout,
        num_key_value_heads=num_key_value_heads, inner_precise=inner_precise, **attributes,
    )  # fmt: skip


def npu_fused_infer_attention_score(
    query: Array, key: Array, value: Array, *, num_heads: int = 1, scale: float = 1.0, **attributes: Any
) -> tuple[Array, Array]:
    """Compute ``torch_npu.npu_fused_infer_attention_score``: (out, lse).

    Args:
      query: See :func:`~ascend_jax.ops.fused_infer_attention_score`; so are the others.
      key: Keys, plain or pages.
      value: Values.
      num_heads: Heads of query.
      scale: 1.0 unless given.
      **attributes: The rest, by the operator's names.

    >>> q = jnp.ones((1, 2, 8))
    >>> npu_fused_infer_attention_score(q, q, q, softmax_lse_flag=True)[1].shape
    (1, 1, 2, 1)
    """
    return fused_infer_attention_score(query, key, value, num_heads=num_heads, scale_value=scale, **attributes)


_V2_NAMES = {
    "num_query_heads": "num_heads",
    "softmax_scale": "scale_value",
    "actual_seq_qlen": "actual_seq_lengths",
    "actual_seq_kvlen": "actual_seq_lengths_kv",
    "return_softmax_lse": "softmax_lse_flag",
    "dequant_scale_key": "key_antiquant_scale",
    "dequant_offset_key": "key_antiquant_offset",
    "key_quant_mode": "key_antiquant_mode",
    "dequant_scale_value": "value_antiquant_scale",
    "dequant_offset_value": "value_antiquant_offset",
    "value_quant_mode": "value_antiquant_mode",
}


def npu_fused_infer_attention_score_v2(
    query: Array, key: Array, value: Array, **attributes: Any
) -> tuple[Array, Array]:
    """Compute ``torch_npu.npu_fused_infer_attention_score_v2``: the same under its newer names.

    Args:
      query: See :func:`~ascend_jax.ops.fused_infer_attention_score`; so are the others.
      key: Keys, plain or pages.
      value: Values.
      **attributes: num_query_heads, softmax_scale, actual_seq_qlen, actual_seq_kvlen, return_softmax_lse,
        dequant_scale_key, and so on; learnable_sink.

    >>> q = jnp.ones((1, 2, 8))
    >>> npu_fused_infer_attention_score_v2(q, q, q, num_query_heads=2)[0].shape
    (1, 2, 8)
    """
    for old in _V2_NAMES.values():
        if old in attributes:
            raise refuse(old, attributes[old], "is a name of the first version; see the second one's names")
    return fused_infer_attention_score(query, key, value, **{_V2_NAMES.get(n, n): x for n, x in attributes.items()})
