"""The two older inference operators on arrays: one for prompts, one for decoding; branches of the fused one."""

from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.ops.attention_inference import fused_infer_attention_score
from ascend_jax.ops.attention_layout import refuse

__all__ = ["incre_flash_attention", "prompt_flash_attention"]


def prompt_flash_attention(
    query: jax.Array, key: Any, value: Any, *, next_tokens: int = 0, **attributes: Any
) -> jax.Array:
    """Compute ``aclnnPromptFlashAttentionV3`` on arrays: the prompt branch, without log-sum-exp.

    Args:
      query: As :func:`fused_infer_attention_score`; so are ``key``, ``value`` and ``attributes``.
      key: Keys.
      value: Values.
      next_tokens: **0 unless given**: with a mask and sparse mode 0, blocks right of the diagonal are not visited.
      **attributes: num_heads, input_layout, scale_value, atten_mask, and so on. An atten_mask of float16, which only
        this operator takes, and only with float16 queries, hides nothing: -10000 times it is added to the scores.

    >>> q = jnp.zeros((1, 2, 4))
    >>> prompt_flash_attention(q, q, q).shape
    (1, 2, 4)
    """
    _without("prompt_flash_attention", attributes, ("softmax_lse_flag", "block_table"))
    mask = attributes.get("atten_mask")
    if mask is not None and mask.dtype == jnp.float16:
        attributes |= _additive(query, mask, attributes)
    return fused_infer_attention_score(query, key, value, next_tokens=next_tokens, **attributes).attention_out


def _additive(query: Any, mask: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that a float16 mask stands for: a position bias, and a mask that hides nothing."""
    if query.dtype != jnp.float16:
        raise refuse("atten_mask.dtype", mask.dtype, f"goes with float16 queries; query is {query.dtype}")
    if attributes.get("sparse_mode", 0) in (2, 3, 4) or mask.ndim not in (2, 3, 4):
        return {"atten_mask": jnp.zeros(mask.shape, bool)}  # a compressed mask holds no choice
    rows = mask.reshape((1,) * (4 - mask.ndim) + mask.shape) if mask.ndim != 3 else mask[:, None]
    bias = jnp.repeat(rows[:, :1], attributes.get("num_heads", 1), axis=1) * jnp.float16(-10000)
    pse = attributes.get("pse_shift")
    return {"atten_mask": jnp.zeros(mask.shape, bool), "pse_shift": bias if pse is None else pse + bias}


def incre_flash_attention(
    query: jax.Array, key: Any, value: Any, *, inner_precise: int = 1, **attributes: Any
) -> jax.Array:
    """Compute ``aclnnIncreFlashAttentionV4`` on arrays: one query row against a cache.

    Args:
      query: One row per batch row; see :func:`fused_infer_attention_score` for this and the others.
      key: Keys, plain or pages.
      value: Values.
      inner_precise: **1 unless given**.
      **attributes: num_heads, input_layout, actual_seq_lengths_kv, block_table, and so on.

    Raises:
      ParameterError: 161002 for more than one query row.

    >>> q = jnp.zeros((1, 1, 4))
    >>> incre_flash_attention(q, q, q).shape
    (1, 1, 4)
    """
    _without("incre_flash_attention", attributes, ("softmax_lse_flag", "pre_tokens", "next_tokens", "sparse_mode"))
    axis = {"BSH": 1, "BSND": 1, "BNSD": 2}.get(attributes.get("input_layout", "BSH"))
    if axis is None:
        raise refuse("input_layout", attributes["input_layout"], "must be BSH, BSND or BNSD")
    if query.ndim > axis and query.shape[axis] != 1:
        raise refuse("query.shape", list(query.shape), "must have one query row")
    return fused_infer_attention_score(query, key, value, inner_precise=inner_precise, **attributes).attention_out


def _without(operator: str, attributes: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if name in attributes:
            raise refuse(name, attributes[name], f"{operator} has no such parameter")
