"""One checked call of the training attention operators: what forward and gradient share.

Everything that CANN refuses in its first phase is refused here, from shapes, dtypes and host integers alone.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.ops.attention.dropout import PackedDropout, element_order, philox_dropout
from ascend_jax.ops.attention.host_tile import host_tiles
from ascend_jax.ops.attention.kernel import FLT_MAX
from ascend_jax.ops.attention.scoring import ALIBI_ROWS, Options, Scoring
from ascend_jax.ops.attention.visibility import ALL_TOKENS
from ascend_jax.ops.attention_geometry import (
    COMPRESSED_MASK,
    PREFIX_MASK,
    Geometry,
    fixed_geometry,
    packed_geometry,
)
from ascend_jax.ops.attention_layout import LAYOUTS, one_integer, refuse, sequence_lengths, to_heads_first
from ascend_jax.runtime.codes import Code, ParameterError

__all__ = ["AttentionCall", "prepare_call"]

DTYPES = ("float16", "bfloat16", "float32")
MAX_DIM, MAX_HEADS = 768, 256
_BIAS_KINDS = {2: "distance", 3: "root"}


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """Checked operands with heads first, and what the kernel needs besides."""

    q: Any
    k: Any
    v: Any
    bias: Any
    sink: Any
    scale: Any
    scoring: Scoring
    options: Options
    geometry: Geometry
    layout: str


def prepare_call(
    query: Any,
    key: Any,
    value: Any,
    *,
    head_num: int,
    input_layout: str,
    pse: Any = None,
    drop_mask: Any = None,
    padding_mask: Any = None,
    atten_mask: Any = None,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    q_start_idx: int = 0,
    kv_start_idx: int = 0,
    scale_value: Any = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = ALL_TOKENS,
    next_tokens: int = ALL_TOKENS,
    inner_precise: int = 0,
    sparse_mode: int = 0,
    pse_type: int = 1,
    sink: Any = None,
    query_rope: Any = None,
    key_rope: Any = None,
    seed: int | None = None,
    offset: int = 0,
    emulate: bool = False,
) -> AttentionCall:
    """Check a call of ``aclnnFlashAttentionScore`` or its varlen form and return it ready for the kernel.

    Raises:
      ParameterError: 161001, 161002 or 561002, with the parameter, the value and the rule.
    """
    for name, given in (("query", query), ("key", key), ("value", value)):
        if given is None:
            raise ParameterError(Code.PARAM_NULLPTR, name, None, "must be a tensor")
    if padding_mask is not None:
        raise refuse("padding_mask", "given", "is reserved: must be None")
    if inner_precise not in (0, 1, 2):
        raise refuse("inner_precise", inner_precise, "must be 0, 1 or 2")
    q, k, v = _operands(query, key, value, head_num, input_layout)
    batch, heads, q_len, _ = q.shape
    kv_len = k.shape[2]
    window = {"sparse_mode": sparse_mode, "pre_tokens": pre_tokens, "next_tokens": next_tokens, "prefix": prefix}
    if input_layout == "TND":
        if actual_seq_qlen is None or actual_seq_kvlen is None:
            raise refuse("actual_seq_qlen, actual_seq_kvlen", None, "TND needs both lists of cumulative ends")
        q_lens = sequence_lengths("actual_seq_qlen", actual_seq_qlen, q_len)
        kv_lens = sequence_lengths("actual_seq_kvlen", actual_seq_kvlen, kv_len)
        geometry = packed_geometry(q_lens, kv_lens, q_len, has_mask=atten_mask is not None, **window)  # type: ignore[arg-type]
    else:
        geometry = fixed_geometry(batch, q_len, kv_len, has_mask=atten_mask is not None, **window)  # type: ignore[arg-type]
    mask_fields, is_local = _mask(atten_mask, geometry, sparse_mode, (batch, heads, q_len, kv_len))
    q, k = _with_rope(q, k, query_rope, key_rope, input_layout, head_num, (pse, drop_mask, keep_prob, atten_mask))
    bias, kind = _bias(pse, pse_type, q, geometry, sparse_mode, (batch, heads, q_len, kv_len))
    drop_fields = _dropout(drop_mask, keep_prob, seed, offset, heads, geometry)
    if kind == "flat":
        drop_fields.setdefault("order", element_order(heads, geometry.lengths(), unit=8))
    if sink is not None and (sink.shape != (heads,) or str(sink.dtype) != "float32"):
        raise refuse("sink", f"{sink.dtype}{list(sink.shape)}", f"must be float32 [{heads}]")
    zero_rows = inner_precise == 2 or geometry.has_invalid_rows
    replaces = not zero_rows and (geometry.reads_mask or emulate)
    options = Options(
        tile=host_tiles(q_len, kv_len, max(q.shape[3], v.shape[3]), skips=atten_mask is not None or geometry.is_packed),
        mask_hides=True,
        mask_is_local=is_local,
        mask_value=-FLT_MAX if replaces else None,
        bias_kind=kind,
        bias_first=pse_type == 1,
        bias_start=one_integer("kv_start_idx", kv_start_idx) - one_integer("q_start_idx", q_start_idx),
        weight_dtype=str(q.dtype) if emulate and q.dtype.itemsize == 2 else None,
    )
    scoring = dataclasses.replace(geometry.scoring(), **mask_fields, **drop_fields)
    return AttentionCall(q, k, v, bias, sink, scale_value, scoring, options, geometry, input_layout)


def _operands(query: Any, key: Any, value: Any, head_num: int, layout: str) -> tuple[Any, Any, Any]:
    for name, given in (("query", query), ("key", key), ("value", value)):
        if str(given.dtype) not in DTYPES or given.dtype != query.dtype:
            raise refuse(f"{name}.dtype", given.dtype, "query, key and value share float16, bfloat16 or float32")
    if not 1 <= head_num <= MAX_HEADS:
        raise refuse("head_num", head_num, f"must be 1 to {MAX_HEADS}")
    q = to_heads_first("query", query, layout, head_num)
    if key.ndim != LAYOUTS[layout] or value.ndim != LAYOUTS[layout]:
        ranks = f"{list(key.shape)}, {list(value.shape)}"
        raise refuse("key.shape, value.shape", ranks, f"must have rank {LAYOUTS[layout]}: {layout}")
    dim = q.shape[3]
    if layout in ("BSH", "SBH"):
        if dim == 0 or key.shape[2] % dim:
            raise refuse("key.shape", list(key.shape), f"H must be a multiple of the head dimension {dim} of query")
        kv_heads = key.shape[2] // dim
    else:
        kv_heads = key.shape[{"BNSD": 1, "BSND": 2, "TND": 1}[layout]]
    if kv_heads < 1 or head_num % kv_heads:
        raise refuse("head_num", head_num, f"must be a multiple of the {kv_heads} heads of key")
    k, v = (to_heads_first(name, x, layout, kv_heads) for name, x in (("key", key), ("value", value)))
    if k.shape[0] != q.shape[0] or k.shape[3] != dim:
        raise refuse("key.shape", list(key.shape), "must have the batch and head dimension of query")
    if v.shape[:3] != k.shape[:3]:
        raise refuse("value.shape", list(value.shape), "must have the batch, heads and length of key")
    if not 1 <= v.shape[3] <= dim <= MAX_DIM:
        raise refuse("D, Dv", f"{dim}, {v.shape[3]}", f"1 <= Dv <= D <= {MAX_DIM}")
    return q, k, v


def _mask(mask: Any, geometry: Geometry, mode: int, shapes: tuple[int, int, int, int]) -> tuple[dict[str, Any], bool]:
    """Check a mask; return what the scoring reads of it, and whether packed sequences share it."""
    if mask is None:
        return {}, False
    if str(mask.dtype) not in ("bool", "uint8"):
        raise refuse("atten_mask.dtype", mask.dtype, "must be bool or uint8, 1 = hidden")
    if not geometry.reads_mask:
        needed = PREFIX_MASK if mode == 6 else COMPRESSED_MASK
        if mask.shape != needed:
            raise refuse("atten_mask.shape", list(mask.shape), f"sparse mode {mode} needs exactly {list(needed)}")
        return {}, False
    if mask.ndim not in (2, 4):
        raise refuse("atten_mask.shape", list(mask.shape), "must have rank 2 or 4")
    batch, _, q_len, kv_len = shapes
    if geometry.is_packed:
        longest = tuple(max(x, default=0) for x in zip(*geometry.lengths()[0], strict=True)) or (0, 0)
        if mask.shape == longest or mask.shape == (q_len, kv_len):
            return {"mask": mask[None, None]}, mask.shape == longest
        raise refuse("atten_mask.shape", list(mask.shape), f"TND needs {list(longest)} (longest) or {[q_len, kv_len]}")
    allowed = {(q_len, kv_len), (1, 1, q_len, kv_len), (batch, 1, q_len, kv_len), shapes}
    if mode == 5:
        allowed -= {(q_len, kv_len)}
    if mask.shape not in allowed:
        flat = "" if mode == 5 else "[Sq, Skv], "
        text = f"must be {flat}[1, 1, ..], [B, 1, ..] or [B, N, Sq, Skv] with Sq, Skv = {q_len}, {kv_len}"
        raise refuse("atten_mask.shape", list(mask.shape), text)
    return {"mask": mask if mask.ndim == 4 else mask[None, None]}, False


def _bias(
    pse: Any, pse_type: int, q: Any, geometry: Geometry, mode: int, shapes: tuple[int, int, int, int]
) -> tuple[Any, str]:
    """Check the position bias; return it as the kernel takes it, and its kind."""
    if pse_type not in (0, 1, 2, 3):
        raise refuse("pse_type", pse_type, "must be 0, 1, 2 or 3")
    if pse is None:
        if pse_type != 1:
            raise refuse("pse", None, f"pse_type {pse_type} needs one")
        return None, "dense"
    batch, heads, q_len, kv_len = shapes
    count = len(geometry.sequences)
    if geometry.is_packed and any(not each.q_len for each in geometry.sequences):
        raise refuse("pse", "given", "is not supported with a sequence of length 0", Code.INNER_TILING)
    if mode == 7 and geometry.is_packed:
        raise refuse("pse", "given", "is not supported with sparse mode 7", Code.INNER_TILING)
    if pse_type in _BIAS_KINDS:
        if str(pse.dtype) != "float32" or pse.shape not in ((heads,), (1, heads), (count, heads)):
            found = f"{pse.dtype}{list(pse.shape)}"
            raise refuse("pse", found, f"pse_type {pse_type} needs float32 [{heads}] or [{count}, {heads}]")
        return pse if pse.ndim == 2 else pse[None], _BIAS_KINDS[pse_type]
    if pse.dtype != q.dtype:
        raise refuse("pse.dtype", pse.dtype, f"must be {q.dtype}, that of query, with pse_type 0 and 1")
    if geometry.is_packed:
        total = sum(heads * a * b for a, b in geometry.lengths()[0])
        if pse.ndim == 1 and pse.shape[0] >= total:
            return pse, "flat"
    if pse.ndim != 4 or pse.shape[0] not in (1, batch) or pse.shape[1] != heads:
        raise refuse("pse.shape", list(pse.shape), f"must have rank 4: [B or 1, N = {heads}, ...]")
    longest = max((each.kv_len for each in geometry.sequences), default=0)
    if pse.shape[2:] == (ALIBI_ROWS, longest) and (geometry.is_packed or q_len > ALIBI_ROWS):
        if mode not in (0, 2, 3) or any(each.q_len != each.kv_len for each in geometry.sequences):
            raise refuse("pse.shape", list(pse.shape), "1024 rows need Sq = Skv and sparse mode 0, 2 or 3")
        if longest < ALIBI_ROWS:
            raise refuse("pse.shape", list(pse.shape), "1024 rows need a sequence of at least 1024")
        return pse, "compressed"
    if geometry.is_packed or pse.shape[2] not in (1, q_len) or pse.shape[3] != kv_len:
        wanted = "flat, or [.., 1024, longest Skv]" if geometry.is_packed else f"[.., {q_len} or 1, {kv_len}]"
        raise refuse("pse.shape", list(pse.shape), f"must be {wanted}")
    return pse, "dense"


def _dropout(
    bits: Any, keep_prob: float, seed: int | None, offset: int, heads: int, geometry: Geometry
) -> dict[str, Any]:
    if not 0 < keep_prob <= 1:
        raise refuse("keep_prob", keep_prob, "must be above 0 and at most 1")
    if keep_prob == 1:
        return {}  # no mask is read
    if bits is None:
        if seed is None:
            raise refuse("drop_mask", None, f"keep_prob {keep_prob} needs a mask, or a seed for drawing in the kernel")
        order = element_order(heads, geometry.lengths(), unit=16, align=16)
        return {"dropout": philox_dropout(keep_prob, seed=seed, offset=offset), "order": order}
    needed = -(-sum(heads * a * b for row in geometry.lengths() for a, b in row) // 8)
    if str(bits.dtype) != "uint8" or bits.size < needed:
        found = f"{bits.dtype}[{bits.size}]"
        raise refuse("drop_mask", found, f"must be uint8 with at least {needed} bytes: one bit per score")
    order = element_order(heads, geometry.lengths(), unit=8)
    return {"dropout": PackedDropout(jnp.ravel(bits), keep_prob), "order": order}


def _with_rope(
    q: Any, k: Any, query_rope: Any, key_rope: Any, layout: str, head_num: int, others: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    """Append the rotary parts along D: their products add up."""
    if query_rope is None and key_rope is None:
        return q, k
    if query_rope is None or key_rope is None:
        raise ParameterError(Code.PARAM_NULLPTR, "query_rope, key_rope", "one of them", "give both or none")
    pse, drop_mask, keep_prob, atten_mask = others
    if pse is not None or drop_mask is not None or keep_prob != 1 or atten_mask is None:
        raise refuse("query_rope", "given", "needs an atten_mask, and neither pse nor dropout", Code.INNER_TILING)
    parts = (
        (to_heads_first("query_rope", query_rope, layout, head_num), q),
        (
            to_heads_first("key_rope", key_rope, layout, k.shape[1]),
            k,
        ),
    )
    for name, (rope, whole) in zip(("query_rope", "key_rope"), parts, strict=True):
        if rope.shape[:3] != whole.shape[:3] or not 0 < rope.shape[3] <= whole.shape[3] or rope.dtype != whole.dtype:
            raise refuse(f"{name}.shape", list(rope.shape), "must be shaped like its partner, with Drope <= D")
    (q_rope, _), (k_rope, _) = parts
    return jnp.concatenate([q, q_rope], axis=3), jnp.concatenate([k, k_rope], axis=3)
