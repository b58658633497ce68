"""What the inference operators attend to: keys and values, from wherever and however they are stored."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ascend_jax.ops import kv_cache
from ascend_jax.ops.attention_inference_checks import check_head_dims, lengths_of
from ascend_jax.ops.attention_layout import one_integer, refuse, to_heads_first

__all__ = ["CacheFields", "keys_of", "pool_lengths", "with_rope"]


class CacheFields(NamedTuple):
    """The arguments that describe the cache."""

    key_antiquant_scale: Any = None
    key_antiquant_offset: Any = None
    key_antiquant_mode: int = 0
    value_antiquant_scale: Any = None
    value_antiquant_offset: Any = None
    value_antiquant_mode: int = 0
    key_shared_prefix: Any = None
    value_shared_prefix: Any = None
    actual_shared_prefix_len: Any = None
    query_padding_size: Any = None
    kv_padding_size: Any = None
    query_rope: Any = None
    key_rope: Any = None
    dequant_scale1: Any = None
    quant_scale1: Any = None
    dequant_scale2: Any = None
    quant_scale2: Any = None
    quant_offset2: Any = None
    dequant_scale_query: Any = None


def keys_of(
    key: Any,
    value: Any,
    q: Any,
    heads: int,
    source: str,
    table: Any,
    block_size: int,
    lengths: Any,
    fields: CacheFields,
) -> tuple[Any, Any, Any]:
    """Return keys, values ``[B, N, S, D]`` and their lengths, whatever they were stored as."""
    batch = q.shape[0]
    if table is None:
        pair = [_heads_first(name, x, source, heads) for name, x in (("key", key), ("value", value))]
        if pair[0].shape[:3] != pair[1].shape[:3]:
            raise refuse("value.shape", list(value.shape), "must have the batch, heads and length of key")
        kv_lengths = (
            lengths
            if source in ("TND", "NTD")
            else lengths_of("actual_seq_lengths_kv", lengths, batch, pair[0].shape[2])
        )
    else:
        kv_lengths = pool_lengths(key, value, q, heads, source, table, block_size, lengths)
        pair = [
            kv_cache.gather_pages(name, pool, table, kv_lengths, block_size, heads)
            for name, pool in (("key", key), ("value", value))
        ]
    if fields.kv_padding_size is not None:
        pair = [kv_cache.left_aligned(x, fields.kv_padding_size, kv_lengths) for x in pair]
    for index, name in enumerate(("key", "value")):
        if pair[index].dtype == jnp.int8 and q.dtype != jnp.int8:
            scale, offset, mode = (getattr(fields, f"{name}_antiquant_{part}") for part in ("scale", "offset", "mode"))
            if mode in (4, 5) and table is not None and scale is not None:
                scale, offset = (
                    None if x is None else kv_cache.gather_scales(x, table, kv_lengths, block_size)
                    for x in (scale, offset)
                )
            pair[index] = kv_cache.dequantise(name, pair[index], scale, offset, mode, q.dtype)
    return _with_prefix(pair[0], pair[1], kv_lengths, fields, heads, source)


def _heads_first(name: str, x: Any, source: str, heads: int) -> Any:
    if source != "NTD":
        return to_heads_first(name, x, source, heads)
    if x.ndim != 3 or x.shape[0] != heads:
        raise refuse(f"{name}.shape", list(x.shape), f"must be [N, T, D] with {heads} heads in axis 0")
    return x[None]


def pool_lengths(
    key: Any, value: Any, q: Any, heads: int, source: str, table: Any, block_size: int, lengths: Any
) -> Any:
    """Check page pools and return the lengths ``[B]``."""
    if lengths is None:
        raise refuse("actual_seq_lengths_kv", None, "is required with a block_table")
    if table.ndim != 2 or (source not in ("TND", "NTD") and table.shape[0] != q.shape[0]):
        raise refuse("block_table.shape", list(table.shape), f"must be [{q.shape[0]}, pages]")
    if not table.shape[1]:
        raise refuse("block_table.shape", list(table.shape), "must name at least one page of each batch row")
    if not jnp.issubdtype(table.dtype, jnp.integer):
        raise refuse("block_table.dtype", table.dtype, "must be integers, int32 as a rule")
    dims = []
    for name, pool in (("key", key), ("value", value)):
        dim = pool.shape[2] // heads if pool.ndim == 3 else pool.shape[-1] if pool.ndim == 4 else q.shape[3]
        kv_cache.page_layout(name, pool, block_size, heads, dim)
        dims.append(dim)
    check_head_dims(q.shape[3], dims[0], dims[1])
    return lengths_of("actual_seq_lengths_kv", lengths, table.shape[0], table.shape[1] * block_size)


def _with_prefix(k: Any, v: Any, lengths: Any, fields: CacheFields, heads: int, source: str) -> tuple[Any, Any, Any]:
    """Put the shared prefix in front of every batch row."""
    prefix = (fields.key_shared_prefix, fields.value_shared_prefix)
    if prefix[0] is None and prefix[1] is None:
        return k, v, lengths
    if prefix[0] is None or prefix[1] is None or source in ("TND", "NTD"):
        raise refuse("key_shared_prefix", "given", "needs value_shared_prefix too, and no TND")
    names = ("key_shared_prefix", "value_shared_prefix")
    pair = [to_heads_first(name, x, source, heads) for name, x in zip(names, prefix, strict=True)]
    given = fields.actual_shared_prefix_len
    count = pair[0].shape[2] if given is None else one_integer("actual_shared_prefix_len", given)
    if not 0 <= count <= pair[0].shape[2] or pair[0].shape[0] != 1 or pair[0].shape[:3] != pair[1].shape[:3]:
        shapes = f"{[list(x.shape) for x in pair]}, {count}"
        raise refuse("key_shared_prefix, actual_shared_prefix_len", shapes, "must be [1, N, Sp, D], at most Sp in use")
    joined = (
        jnp.concatenate([jnp.broadcast_to(x[:, :, :count], (rest.shape[0], heads, count, x.shape[3])), rest], axis=2)
        for x, rest in zip(pair, (k, v), strict=True)
    )
    return (*joined, jnp.asarray(lengths) + count)  # type: ignore[return-value]


def with_rope(
    q: Any,
    k: Any,
    fields: CacheFields,
    source: str,
    heads: int,
    kv_heads: int,
    *,
    table: Any = None,
    block_size: int = 0,
    lengths: Any = None,
) -> tuple[Any, Any]:
    """Append the rotary parts along D: their products add up. That of paged keys lies in pages of the same table."""
    if fields.query_rope is None and fields.key_rope is None:
        return q, k
    if fields.query_rope is None or fields.key_rope is None:
        raise refuse("query_rope, key_rope", "one of them", "give both or none")
    parts = [_heads_first("query_rope", fields.query_rope, source, heads)]
    if table is None:
        parts.append(_heads_first("key_rope", fields.key_rope, source, kv_heads))
    else:
        kv_cache.page_layout("key_rope", fields.key_rope, block_size, kv_heads, parts[0].shape[3])
        parts.append(kv_cache.gather_pages("key_rope", fields.key_rope, table, lengths, block_size, kv_heads))
    joined = []
    for name, whole, part in zip(("query_rope", "key_rope"), (q, k), parts, strict=True):
        wanted = whole.dtype if fields.dequant_scale_query is None else fields.query_rope.dtype
        if part.shape[:3] != whole.shape[:3] or part.dtype != wanted:
            raise refuse(f"{name}.shape", list(part.shape), "must match its partner in all but D")
        joined.append(jnp.concatenate([whole, part.astype(whole.dtype)], axis=3))
    return joined[0], joined[1]
