"""What the inference attention operators refuse in their first phase."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.ops.attention_geometry import COMPRESSED_MASK
from ascend_jax.ops.attention_layout import check_numbers, refuse
from ascend_jax.runtime.codes import Code, ParameterError

__all__ = [
    "INFERENCE_LAYOUTS",
    "check_dims",
    "check_head_dims",
    "check_latent",
    "check_mask",
    "check_operands",
    "lengths_of",
]

INFERENCE_LAYOUTS = {  # of the inputs, of the output
    "BSH": ("BSH", "BSH"),
    "BSND": ("BSND", "BSND"),
    "BNSD": ("BNSD", "BNSD"),
    "BNSD_BSND": ("BNSD", "BSND"),
    "TND": ("TND", "TND"),
    "NTD_TND": ("NTD", "TND"),
}
_RANKS = {"BSH": 3, "BSND": 4, "BNSD": 4, "TND": 3, "NTD": 3}
_DTYPES = ("float16", "bfloat16", "float32")
_PACKED_DIMS = ((64, 64), (128, 128), (192, 192), (192, 128))
MAX_HEADS, MAX_GROUP, MAX_DIM = 256, 64, 512
LATENT_DIM, LATENT_ROWS, LATENT_HEADS = 512, 16, tuple(1 << n for n in range(8))  # of absorbed latent attention


def check_operands(
    query: Any, key: Any, value: Any, heads: int, kv_heads: int, layout: str, mode: int, inner_precise: int
) -> None:
    """Check dtypes, ranks, heads and attributes.

    Raises:
      ParameterError: 161001 for a missing tensor, 161002 otherwise.
    """
    for name, given in (("query", query), ("key", key), ("value", value)):
        if given is None or isinstance(given, list | tuple):
            raise ParameterError(Code.PARAM_NULLPTR, name, type(given).__name__, "must be a tensor, or a list of one")
    if layout not in INFERENCE_LAYOUTS:
        raise refuse("input_layout", layout, f"must be one of {', '.join(INFERENCE_LAYOUTS)}")
    rank = _RANKS[INFERENCE_LAYOUTS[layout][0]]
    if query.ndim != rank:
        raise refuse("query.shape", list(query.shape), f"must have rank {rank}: {layout}")
    if str(query.dtype) not in (*_DTYPES, "int8"):
        raise refuse("query.dtype", query.dtype, f"must be one of {', '.join(_DTYPES)}, or int8 with its scales")
    for name, given in (("key", key), ("value", value)):
        if given.dtype != query.dtype and given.dtype != jnp.int8:
            raise refuse(f"{name}.dtype", given.dtype, f"must be {query.dtype}, that of query, or int8")
    kv_heads = kv_heads or heads
    most = MAX_GROUP if query.shape[-1] not in (LATENT_DIM, heads * LATENT_DIM) else max(LATENT_HEADS)
    if not 1 <= heads <= MAX_HEADS or kv_heads < 1 or heads % kv_heads or heads // kv_heads > most:
        rule = f"1 <= num_heads <= {MAX_HEADS}, a multiple of num_key_value_heads, at most {most} times it"
        raise refuse("num_heads, num_key_value_heads", f"{heads}, {kv_heads}", rule)
    if layout == "NTD_TND" and (query.shape[0] != heads):
        raise refuse("query.shape", list(query.shape), f"must have {heads} heads in axis 0: {layout}")
    if mode not in range(5):
        raise refuse("sparse_mode", mode, "must be 0 to 4 in inference")
    if inner_precise not in range(4):
        raise refuse("inner_precise", inner_precise, "must be 0 to 3")


def check_dims(q: Any, k: Any, v: Any, layout: str, has_rope: bool) -> None:
    """Check the head dimensions, ``[B, N, S, D]``.

    Raises:
      ParameterError: 161002; for packed sequences 561002.
    """
    dim, value_dim = q.shape[3], v.shape[3]
    check_head_dims(dim, k.shape[3], value_dim)
    if layout in ("TND", "NTD_TND") and not has_rope and (dim, value_dim) not in _PACKED_DIMS:
        known = ", ".join(f"{a}/{b}" for a, b in _PACKED_DIMS)
        raise refuse("D of query, value", f"{dim}, {value_dim}", f"{layout} takes {known}", Code.INNER_TILING)


def check_latent(q: Any, kv_heads: int, mode: int, longest: int) -> None:
    """Check a call with rotary parts whose head dimension is 512: latent attention with the projections absorbed.

    Raises:
      ParameterError: 561002: heads that are no power of two up to 128, several key heads, more than 16 query rows of a
        sequence, or a sparse mode other than 0, 3, 4.
    """
    heads, dim = q.shape[1], q.shape[3]
    if dim != LATENT_DIM:
        return
    if heads not in LATENT_HEADS or kv_heads != 1:
        rule = f"D = {dim} with rope needs num_heads of {LATENT_HEADS} and one key head"
        raise refuse("num_heads, num_key_value_heads", f"{heads}, {kv_heads}", rule, Code.INNER_TILING)
    if longest > LATENT_ROWS or mode not in (0, 3, 4):
        rule = f"D = {dim} with rope takes 1 to {LATENT_ROWS} query rows and sparse mode 0, 3 or 4"
        raise refuse("Sq, sparse_mode", f"{longest}, {mode}", rule, Code.INNER_TILING)


def check_head_dims(dim: int, key_dim: int, value_dim: int) -> None:
    """Check the head dimensions of query, key and value.

    Raises:
      ParameterError: 161002.
    """
    if key_dim != dim or not 1 <= dim <= MAX_DIM or not 1 <= value_dim <= MAX_DIM:
        raise refuse("D of query, key, value", f"{dim}, {key_dim}, {value_dim}", f"query's is key's, 1 to {MAX_DIM}")


def lengths_of(name: str, given: Any, batch: int, longest: int) -> Any:
    """Return the lengths ``[B]`` of a list that may hold one number for all; absent means all in use.

    Raises:
      ParameterError: 161002 for truth values; 561002 for a list of another length, for a length below 0 or past the
        tensor, and for numbers that are no integers. Of traced numbers only the type is known: they are cut to what
        the tensor has.
    """
    if given is None:
        return np.full(batch, longest, np.int32)
    check_numbers(name, given)
    is_traced = isinstance(given, jax.core.Tracer)
    lengths = given if is_traced else np.asarray(given)
    if lengths.ndim != 1 or lengths.shape[0] not in (1, batch):
        raise refuse(name, list(lengths.shape), f"must have 1 or {batch} entries, one per batch row", Code.INNER_TILING)
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise refuse(f"{name} of dtype", lengths.dtype, "must be integers", Code.INNER_TILING)
    if is_traced:
        return jnp.broadcast_to(lengths.astype(jnp.int32), (batch,)).clip(0, longest)
    lengths = np.broadcast_to(lengths, (batch,))
    if (lengths > longest).any() or (lengths < 0).any():
        raise refuse(name, lengths.tolist(), f"must not exceed {longest}, nor be below 0", Code.INNER_TILING)
    return lengths.astype(np.int32)


def check_mask(mask: Any, mode: int, batch: int, q_len: int, kv_len: int, is_packed: bool) -> Any:
    """Return a mask that the kernel reads as ``[B|1, 1, Sq, Skv]``; None without one, or for a compressed one.

    Raises:
      ParameterError: 161002, so for [B, 1, 1, Skv] with several query rows: the operators do not broadcast rows.
    """
    if mask is None:
        return None
    if str(mask.dtype) not in ("bool", "int8", "uint8"):
        raise refuse("atten_mask.dtype", mask.dtype, "must be bool, int8 or uint8, 1 = hidden")
    if mode in (2, 3, 4):
        if mask.shape != COMPRESSED_MASK and (q_len > 1 or is_packed):
            raise refuse("atten_mask.shape", list(mask.shape), f"mode {mode} needs exactly {list(COMPRESSED_MASK)}")
        return None
    if is_packed:
        raise refuse("atten_mask", list(mask.shape), "TND takes a mask only with sparse mode 3 or 4")
    rows = mask.shape[-2] if mask.ndim > 1 else 0
    lead = mask.shape[:-2]
    if q_len == 1 and mask.ndim == 2 and mask.shape[0] == batch and batch > 1:
        lead, rows = (batch,), 1  # [B, Skv]
    fits_lead = lead in ((), (1,), (batch,), (1, 1), (batch, 1))
    if not fits_lead or rows != q_len or mask.shape[-1] < kv_len:
        rule = f"must be [Sq, Skv], [B or 1, Sq, Skv] or [B or 1, 1, Sq, Skv] with Sq = {q_len}, Skv >= {kv_len}"
        raise refuse("atten_mask.shape", list(mask.shape), rule)
    return mask.reshape(lead[0] if lead else 1, 1, q_len, mask.shape[-1])[..., :kv_len]
