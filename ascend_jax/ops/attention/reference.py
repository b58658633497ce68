"""Attention written straight from its definition: what the fast path is judged by.

Nothing here is shared with the fast path except the names of the modes. :func:`attention_reference` is
float64 NumPy, a few rows at a time; :func:`naive_attention` is the unfused textbook version in the type of
its inputs, whose error is the yardstick for 16-bit results.
"""

import concurrent.futures
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ascend_jax.ops.attention.visibility import SparseMode

__all__ = ["attention_reference", "naive_attention"]

_FLT_MAX = 3.4028234663852886e38
_WORKERS = min(4, os.cpu_count() or 1)  # exp runs on one thread per head, products on all
_CHUNK_BYTES = 8 << 20  # scores held by one worker at a time; larger falls out of cache


def attention_reference(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, mode: int = SparseMode.NO_MASK, scale: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes attention in float64 from the definition, in bounded memory beyond inputs and outputs.

    Args:
        q: Queries ``[B, N, Sq, D]``, any floating type.
        k: Keys ``[B, Nkv, Skv, D]`` with ``Nkv`` dividing ``N``; query heads share key heads block by block.
        v: Values ``[B, Nkv, Skv, Dv]``.
        mode: 0 for no mask, 2 for ``j <= i``, 3 for ``j <= i + Skv - Sq``.
        scale: Factor of the scores.

    Returns:
        float64 ``out`` ``[B, N, Sq, Dv]``, and ``row_max`` and ``row_sum`` ``[B, N, Sq]``. Rows that see
        nothing hold 0, and -FLT_MAX and FLT_MAX of float32 (CANN's convention for them).

    Raises:
        ValueError: The mode is another one, or the result is not finite: nothing can be compared with it.

    >>> q, k, v = np.zeros((1, 1, 2, 1)), np.zeros((1, 1, 4, 1)), np.arange(4.0).reshape(1, 1, 4, 1)
    >>> out, row_max, row_sum = attention_reference(q, k, v, mode=3, scale=1.0)
    >>> out.ravel().tolist(), row_sum.ravel().tolist()
    ([1.0, 1.5], [3.0, 4.0])
    """
    q, k, v = np.asarray(q), np.asarray(k), np.asarray(v)
    batch, heads, q_len, _ = q.shape
    group = heads // k.shape[1]
    out = np.zeros((batch, heads, q_len, v.shape[3]))
    row_max, row_sum = np.full(q.shape[:3], -_FLT_MAX), np.full(q.shape[:3], _FLT_MAX)

    def one_head(index: int) -> None:
        b, h = divmod(index, heads)
        keys, values = k[b, h // group].astype(np.float64), v[b, h // group].astype(np.float64)
        chunk = max(1, _CHUNK_BYTES // (8 * max(1, len(keys))))
        for start in range(0, q_len, chunk):
            rows = np.arange(start, min(start + chunk, q_len))
            allowed = _allowed(rows, q_len, len(keys), mode)
            live = rows[allowed.any(axis=1)]
            if live.size:
                scores = q[b, h, live].astype(np.float64) @ keys.T
                scores *= scale
                np.copyto(scores, -np.inf, where=~allowed[live - start])
                peak = scores.max(axis=1)
                scores -= peak[:, None]
                np.exp(scores, out=scores)
                total = scores.sum(axis=1)
                out[b, h, live] = scores @ values / total[:, None]
                row_max[b, h, live], row_sum[b, h, live] = peak, total

    with concurrent.futures.ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(one_head, range(batch * heads)))
    if not (np.isfinite(out).all() and np.isfinite(row_max).all() and np.isfinite(row_sum).all()):
        raise ValueError("the reference is not finite: look for NaN, inf or overflow in q, k, v and scale")
    return out, row_max, row_sum


def naive_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, mode: int = SparseMode.NO_MASK, scale: float
) -> jax.Array:
    """Computes unfused attention in the type of the inputs: product, softmax, product, each rounded to it.

    Shapes and modes as for :func:`attention_reference`; holds all scores. Rows that see nothing are 0.

    Returns:
        ``[B, N, Sq, Dv]``, dtype of ``q``.

    >>> q, k, v = jnp.zeros((1, 1, 1, 4)), jnp.zeros((1, 1, 2, 4)), jnp.ones((1, 1, 2, 3))
    >>> naive_attention(q, k, v, scale=1.0).tolist()
    [[[[1.0, 1.0, 1.0]]]]
    """
    group = q.shape[1] // k.shape[1]
    k, v = (jnp.repeat(x, group, axis=1) for x in (k, v))
    allowed = _allowed(np.arange(q.shape[2]), q.shape[2], k.shape[2], mode)[None, None]
    scores = jnp.einsum("bhid,bhjd->bhij", q, k, precision="highest") * jnp.asarray(scale, q.dtype)
    scores = jnp.where(allowed, scores, jnp.finfo(q.dtype).min)
    weights = jnp.where(allowed, jax.nn.softmax(scores, axis=-1), 0)
    return jnp.einsum("bhij,bhjd->bhid", weights, v, precision="highest")


def _allowed(rows: np.ndarray, q_len: int, kv_len: int, mode: int) -> np.ndarray:
    """Returns the boolean ``[rows, kv_len]`` table of the specification's inequality for ``mode``."""
    i, j = rows[:, None], np.arange(kv_len)[None, :]
    if mode == 0:
        return np.ones((len(rows), kv_len), bool)
    if mode == 2:
        return j <= i
    if mode == 3:
        return j - i <= kv_len - q_len
    raise ValueError(f"the reference knows modes 0, 2 and 3, got {mode}")
