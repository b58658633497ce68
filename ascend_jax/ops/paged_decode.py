"""Decoding straight from pages: one query row against a cache, every byte of it read once.

The general path gathers the pages into ``[B, N, S, D]`` first, which for one query row costs several times the
attention itself. Here a loop takes a few pages of one batch row at a time and runs the online softmax on them while
they are in the processor's cache. It stops at the length of the row. Not differentiable: inference only.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["paged_decode"]

_CHUNK_ROWS = 1024  # rows of keys taken at a time: keys and values of a few heads stay in the cache


@jax.named_scope("paged_decode")
def paged_decode(
    q: jax.Array,
    k_pool: jax.Array,
    v_pool: jax.Array,
    table: Any,
    lengths: Any,
    scale: Any,
    block_size: int,
    kv_heads: int,
) -> tuple[jax.Array, jax.Array]:
    """Compute attention of one row of queries over pages.

    Args:
      q: ``[B, N, 1, D]``.
      k_pool: Page pool of keys: [blocks, bs, H], [blocks, K, bs, D] or [blocks, K, D / c, bs, c].
      v_pool: Page pool of values, likewise.
      table: int ``[B, pages]``; entries past the length are ignored, others that do not exist give NaN.
      lengths: int ``[B]``.
      scale: Factor of the products.
      block_size: Rows of a page.
      kv_heads: Key heads K.

    Returns:
      out ``[B, N, 1, Dv]`` in the dtype of q, and the log-sum-exp float32 ``[B, N, 1, 1]``, +inf where there is no key.
    """
    batch, heads, _, dim = q.shape
    group = heads // kv_heads
    step = max(1, _CHUNK_ROWS // block_size)
    table = jnp.pad(jnp.asarray(table, jnp.int32), ((0, 0), (0, -table.shape[1] % step)))
    kind = jnp.promote_types(q.dtype, jnp.float32)
    queries = (q.astype(kind) * jnp.asarray(scale, kind)).reshape(batch, kv_heads, group, dim)

    def one(operands: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        rows, pages, length = operands

        def chunk(index: Any, state: Any, is_last: bool) -> Any:
            ids = lax.dynamic_slice_in_dim(pages, index * step, step)
            count = length - index * step * block_size  # rows in use from here on
            heads = zip(
                *(_take(pool, ids, count, block_size, kv_heads, is_last) for pool in (k_pool, v_pool)), strict=True
            )
            is_wrong = (ids < 0) | (ids >= min(k_pool.shape[0], v_pool.shape[0]))
            taint = jnp.repeat(jnp.where(is_wrong, jnp.nan, 0).astype(kind), block_size)
            at = jnp.arange(step * block_size)
            is_seen = at < count if is_last else None
            new = [
                _absorb(
                    rows[h], k.astype(kind), v.astype(kind), taint, (state[0][h], state[1][h], state[2][h]), is_seen
                )
                for h, (k, v) in enumerate(heads)
            ]
            return tuple(jnp.stack(x) for x in zip(*new, strict=True))

        shape = (kv_heads, group)
        value_dim = v_pool.shape[2] // kv_heads if v_pool.ndim == 3 else _width(v_pool)
        lowest = jnp.full(shape, jnp.finfo(kind).min, kind)
        state = (lowest, jnp.zeros(shape, kind), jnp.zeros((*shape, value_dim), kind))
        whole = length // (step * block_size)
        state = lax.fori_loop(0, whole, lambda n, x: chunk(n, x, False), state)
        row_max, row_sum, acc = lax.fori_loop(
            whole, -(-length // (step * block_size)), lambda n, x: chunk(n, x, True), state
        )
        hidden = row_sum == 0
        divisor = jnp.where(hidden, 1, row_sum)
        return acc / divisor[..., None], jnp.where(hidden, jnp.inf, row_max + jnp.log(divisor)).astype(jnp.float32)

    out, lse = lax.map(one, (queries, table, jnp.asarray(lengths, jnp.int32).clip(0)))
    return out.reshape(batch, heads, 1, -1).astype(q.dtype), lse.reshape(batch, heads, 1, 1)


def _width(pool: jax.Array) -> int:
    return pool.shape[3] if pool.ndim == 4 else pool.shape[2] * pool.shape[4]


def _take(pool: jax.Array, ids: jax.Array, count: Any, block_size: int, heads: int, is_last: bool) -> list[jax.Array]:
    """Return the rows of some pages, ``[rows, D]`` of each key head; in the last pages, 0 from ``count`` on."""
    rows = pool.at[ids].get(mode="clip")
    parts = []
    for head in range(heads):
        if rows.ndim == 3:
            dim = rows.shape[2] // heads
            part = rows[:, :, head * dim : (head + 1) * dim]
        else:
            part = rows[:, head]
            part = part if rows.ndim == 4 else part.swapaxes(1, 2)  # [pages, D / c, bs, c]
        part = part.reshape(ids.size * block_size, -1)
        parts.append(jnp.where((jnp.arange(part.shape[0]) < count)[:, None], part, 0) if is_last else part)
    return parts


def _absorb(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    taint: jax.Array,
    state: tuple[jax.Array, jax.Array, jax.Array],
    is_seen: jax.Array | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Add a chunk of one key head to the state of its group of query heads."""
    row_max, row_sum, acc = state
    # keys first: XLA:CPU streams them past the few queries, the other order reads them in strides
    scores = jnp.dot(k, q.T, precision=lax.Precision.HIGHEST).T + taint[None, :]
    if is_seen is not None:
        scores = jnp.where(is_seen[None, :], scores, -jnp.inf)
    highest = jnp.maximum(row_max, scores.max(axis=1))
    weights = jnp.exp(scores - highest[:, None])
    if is_seen is not None:
        weights = jnp.where(is_seen[None, :], weights, 0)
    decay = jnp.exp(row_max - highest)
    new = acc * decay[:, None] + jnp.dot(weights, v, precision=lax.Precision.HIGHEST)
    return highest, row_sum * decay + weights.sum(axis=1), new
