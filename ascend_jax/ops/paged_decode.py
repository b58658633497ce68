"""Decoding straight from pages: one query row against a cache, every byte of it read once.

The general path gathers the pages into ``[B, N, S, D]`` first, which for one query row costs several times the
attention itself. Here a loop takes a chunk of the pages of one batch row at a time, of some key heads, and runs the
online softmax on it while it is in the processor's cache. It stops at the length of the row. Not differentiable:
inference only.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.online_softmax import RowState, absorb
from ascend_jax.ops.page_chunks import chunks_of, numbers_of
from ascend_jax.runtime.loop import varying_together

__all__ = ["paged_decode"]

Loop = tuple[RowState, tuple[jax.Array, ...]]  # the rows, and where the chunks of keys and of values are written


@functools.partial(jax.jit, static_argnames=("block_size", "kv_heads"))
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
      lengths: int ``[B]``, none past the pages of its row.
      scale: Factor of the products.
      block_size: Rows of a page.
      kv_heads: Key heads K.

    Returns:
      out ``[B, N, 1, Dv]`` in the dtype of q, and the log-sum-exp float32 ``[B, N, 1, 1]``, +inf where there is no key.
    """
    batch, heads, _, dim = q.shape
    group = heads // kv_heads
    widths = dim, v_pool.shape[2] // kv_heads if v_pool.ndim == 3 else _width(v_pool)
    table, lengths = jnp.asarray(table, jnp.int32), jnp.asarray(lengths, jnp.int32).clip(0)
    pages = min(k_pool.shape[0], v_pool.shape[0])
    is_lost = ((table < 0) | (table >= pages)) & (jnp.arange(table.shape[1])[None] * block_size < lengths[:, None])
    chunks = chunks_of(block_size, table.shape[1], kv_heads, dim)
    joined, parts = chunks.heads, kv_heads // chunks.heads
    pieces = chunks.pieces_of(table.clip(0, pages - 1))
    kind = jnp.promote_types(q.dtype, jnp.float32)
    queries = (q.astype(kind) * jnp.asarray(scale, kind)).reshape(batch * parts, joined, group, dim)

    def one(operands: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rows, number = operands
        row, head = number // parts, number % parts * joined
        length = lengths[row]

        def absorb_chunk(n: Any, loop: Loop, is_last: bool) -> Loop:
            state, rooms = loop
            seen = jnp.arange(chunks.rows) < length - n * chunks.rows if is_last else None
            numbers = lax.dynamic_slice(pieces, (row, n * chunks.pieces), (1, chunks.pieces))[0]
            # XLA would take what is done to a whole pool out of the loop, and so copy it
            numbers, *pools = lax.optimization_barrier((numbers, k_pool, v_pool))
            rooms = tuple(chunks.take(pool, numbers, head, room) for pool, room in zip(pools, rooms, strict=True))
            k, v = (_keys(room, pool.dtype, kind, seen) for room, pool in zip(rooms, pools, strict=True))
            return jax.vmap(_absorb, in_axes=(0, 0, 0, 0, None))(rows, k, v, state, seen), rooms

        lowest = jnp.full((joined, group), jnp.finfo(kind).min, kind)
        state = RowState(lowest, jnp.zeros_like(lowest), jnp.zeros((joined, group, widths[1]), kind))
        rooms = tuple(chunks.room(pool, width) for pool, width in zip((k_pool, v_pool), widths, strict=True))
        loop: Loop = state, rooms
        loop = varying_together((queries, k_pool, v_pool, table, lengths), loop)[1]
        whole = length // chunks.rows
        loop = lax.fori_loop(0, whole, lambda n, x: absorb_chunk(n, x, False), loop)
        loop = lax.fori_loop(whole, -(-length // chunks.rows), lambda n, x: absorb_chunk(n, x, True), loop)
        row_max, row_sum, acc = loop[0]
        row_sum = jnp.where(is_lost[row].any(), jnp.nan, row_sum)  # there is no such page
        hidden = row_sum == 0
        divisor = jnp.where(hidden, 1, row_sum)
        lse = jnp.where(hidden, jnp.inf, row_max + jnp.log(divisor))
        return acc / divisor[..., None], lse.astype(jnp.float32)

    out, lse = lax.map(one, (queries, jnp.arange(batch * parts, dtype=jnp.int32)))
    return out.reshape(batch, heads, 1, -1).astype(q.dtype), lse.reshape(batch, heads, 1, 1)


def _width(pool: jax.Array) -> int:
    return pool.shape[3] if pool.ndim == 4 else pool.shape[2] * pool.shape[4]


def _keys(chunk: jax.Array, dtype: Any, kind: Any, is_seen: jax.Array | None) -> jax.Array:
    """Return the rows ``[heads, rows, D]`` of a chunk in the accumulator type; 0 where not seen."""
    rows = chunk if is_seen is None else jnp.where(is_seen[:, None], chunk, 0)
    return numbers_of(rows, dtype).astype(kind)


def _absorb(q: jax.Array, k: jax.Array, v: jax.Array, state: RowState, is_seen: jax.Array | None) -> RowState:
    """Add a chunk of keys to the state of the query rows ``[G, D]`` of a key head."""
    # turned at once: of a product with turned weights XLA:CPU takes several times as long
    scores = lax.dot_general(k, q, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST).T
    if is_seen is not None:
        scores = jnp.where(is_seen, scores, -jnp.inf)

    def product(weights: jax.Array) -> jax.Array:
        return jnp.dot(weights, v, precision=lax.Precision.HIGHEST)

    return absorb(state, scores.max(axis=1), [(scores, is_seen, product)])
