"""Inference with int8 queries, keys and values, and int8 outputs: the scales around the two products.

    scores = (q . k) dequant_scale1 scale_value + pse, weights = round(exp(scores - max) quant_scale1),
    out = (weights . v) dequant_scale2 / sum, and for an int8 output round(out quant_scale2 + quant_offset2)

Latent attention takes int8 another way: a scale for each row and head of query, one for the cache, and rotary parts of
16 bits. There the products are those of the dequantised numbers, and the weights keep float32 (the device rounds them
to int8, by its own tile).

Weights and outputs saturate at -128 and 127. The sum does not see the rounding. Rounding follows the running maximum,
hence the tile; the device rounds by its own. Source: aclnnPromptFlashAttentionV3, aclnnFusedInferAttentionScore.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.ops.attention_inference_keys import CacheFields
from ascend_jax.ops.attention_layout import refuse
from ascend_jax.runtime.codes import Code

__all__ = ["check_scales", "dequantised_query", "number", "quantise"]

_NAMES = ("dequant_scale1", "quant_scale1", "dequant_scale2")


def check_scales(query: Any, key: Any, value: Any, fields: CacheFields) -> None:
    """Check which scales a call has.

    Raises:
      ParameterError: 161001 for a scale that int8 queries need and that is missing; 161002 for one that a call without
        them may not have, and for keys or values of another type.
    """
    given = {name: getattr(fields, name) for name in _NAMES}
    if fields.quant_offset2 is not None and fields.quant_scale2 is None:
        raise refuse("quant_offset2", "given", "needs quant_scale2")
    if query.dtype != jnp.int8:
        for name, scale in given.items():
            if scale is not None:
                raise refuse(name, "given", f"is for int8 queries; query is {query.dtype}")
        return
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype != jnp.int8:
            raise refuse(f"{name}.dtype", tensor.dtype, "must be int8, that of query")
    for name, scale in given.items():
        if scale is None:
            raise refuse(name, None, "int8 queries need it", Code.PARAM_NULLPTR)
    for name in ("query_rope", "key_antiquant_scale", "value_antiquant_scale"):
        if getattr(fields, name) is not None:
            raise refuse(name, "given", "does not go with int8 queries")


def dequantised_query(query: Any, key: Any, value: Any, layout: str, heads: int, fields: CacheFields) -> Any:
    """Return float32 queries where ``dequant_scale_query`` has a scale of each row and head, else the query itself.

    Raises:
      ParameterError: 161001 without rotary parts or a scale of the cache, 161002 for types and shapes.
    """
    scale = fields.dequant_scale_query
    if scale is None:
        return query
    for name, given in (("query", query), ("key", key), ("value", value)):
        if given.dtype != jnp.int8:
            raise refuse(f"{name}.dtype", given.dtype, "must be int8 with dequant_scale_query")
    for name in ("query_rope", "key_rope", "key_antiquant_scale", "value_antiquant_scale"):
        if getattr(fields, name) is None:
            raise refuse(name, None, "dequant_scale_query needs it", Code.PARAM_NULLPTR)
    if str(fields.query_rope.dtype) not in ("bfloat16", "float16"):
        raise refuse("query_rope.dtype", fields.query_rope.dtype, "must be bfloat16 or float16")
    shape = (*query.shape[:2], heads, query.shape[2] // heads) if layout == "BSH" else query.shape
    if str(scale.dtype) != "float32" or scale.shape != shape[:-1]:
        rule = f"must be float32 {list(shape[:-1])}, one for each row and head of query"
        raise refuse("dequant_scale_query", f"{scale.dtype}{list(scale.shape)}", rule)
    return (query.reshape(shape).astype(jnp.float32) * scale[..., None]).reshape(query.shape)


def number(name: str, scale: Any) -> jax.Array:
    """Return a scale as a float32 scalar; uint64 numbers carry the bits of one, as the cube core takes them.

    >>> float(number("dequant_scale1", np.array([0x3F000000], np.uint64)))
    0.5
    """
    scale = scale.astype(np.uint32).view(np.float32) if getattr(scale, "dtype", None) == np.uint64 else scale
    scale = jnp.asarray(scale)
    if scale.size != 1:
        raise refuse(f"{name}.shape", list(scale.shape), "must be one number")
    return scale.reshape(()).astype(jnp.float32)


def quantise(out: jax.Array, fields: CacheFields) -> jax.Array:
    """Return an int8 output where ``quant_scale2`` is given: one number, or one for each of [N, 1, D] or [N, D]."""
    if fields.quant_scale2 is None:
        return out
    _, heads, _, dim = out.shape
    pair = []
    for name, x in (("quant_scale2", fields.quant_scale2), ("quant_offset2", fields.quant_offset2)):
        if x is None:
            pair.append(jnp.zeros((1, 1, 1, 1)))
            continue
        x = jnp.asarray(x).astype(jnp.float32)
        if x.size not in (1, heads * dim):
            raise refuse(f"{name}.shape", list(x.shape), f"must be one number, or [{heads}, {dim}]")
        pair.append(x.reshape((1, 1, 1, 1) if x.size == 1 else (1, heads, 1, dim)))
    return jnp.clip(jnp.round(out.astype(jnp.float32) * pair[0] + pair[1]), -128, 127).astype(jnp.int8)
