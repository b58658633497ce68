"""Decoding straight from pages: one query row against a cache, every byte of it read once.

The general path gathers the pages into ``[B, N, S, D]`` first, which for one query row costs several times the
attention itself. Here a loop takes a chunk of pages of one batch row at a time and runs the online softmax on it
while it is in the processor's cache. It stops at the length of the row. Key heads that lie side by side share one
product, the queries of each with zeros in the columns of the others: with few query rows a product costs as much as
reading the keys, however many of its factors are 0. Not differentiable: inference only.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.host_cores import device_cores
from ascend_jax.ops.attention.online_softmax import RowState, absorb
from ascend_jax.ops.page_chunks import chunks_of, numbers_of
from ascend_jax.runtime.loop import varying_together

__all__ = ["paged_decode"]

_STEP_CHUNKS = 16  # of a product that shares them out: of more than 8 XLA's executor gives some to another core
_PRODUCT_ROWS = 8  # query rows that a product takes at no more than the cost of reading the keys


class _Part(NamedTuple):
    """What the loop knows of a product, and where it writes its keys and its values."""

    state: RowState
    rooms: tuple[jax.Array | None, ...]


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
    joined = _joined(q.shape[1] // kv_heads, kv_heads) if k_pool.ndim == v_pool.ndim == 3 else 1
    given = (q, k_pool, v_pool, jnp.asarray(table, jnp.int32), jnp.asarray(lengths, jnp.int32).clip(0), scale)
    return _decode(*given, block_size=block_size, kv_heads=kv_heads, cores=device_cores(), joined=joined)


@functools.partial(jax.jit, static_argnames=("block_size", "kv_heads", "cores", "joined"))
def _decode(*given: Any, joined: int, **sizes: Any) -> tuple[jax.Array, jax.Array]:
    """Compute :func:`paged_decode` with so many key heads in a product, or, where one spoils the others, with one."""
    out, lse = _joined_decode(*given, **sizes, joined=joined)
    if joined == 1:
        return out, lse
    # 0 times a NaN or inf of another head is NaN: if there is any, every head multiplies by itself
    is_clean = ~(jnp.isnan(out).any() | jnp.isnan(lse).any())
    return lax.cond(is_clean, lambda: (out, lse), lambda: _joined_decode(*given, **sizes, joined=1))


def _joined_decode(
    q: jax.Array,
    k_pool: jax.Array,
    v_pool: jax.Array,
    table: jax.Array,
    lengths: jax.Array,
    scale: Any,
    *,
    block_size: int,
    kv_heads: int,
    cores: int,
    joined: int,
) -> tuple[jax.Array, jax.Array]:
    """Compute :func:`paged_decode` with so many key heads in a product."""
    batch, heads, _, dim = q.shape
    group, parts = heads // kv_heads, kv_heads // joined
    widths = joined * dim, joined * (v_pool.shape[2] // kv_heads if v_pool.ndim == 3 else _width(v_pool))
    most = min(k_pool.shape[0], v_pool.shape[0])
    is_lost = ((table < 0) | (table >= most)) & (jnp.arange(table.shape[1])[None] * block_size < lengths[:, None])
    chunks = chunks_of(block_size, table.shape[1], widths[0], is_kept=cores == 1 and parts == 1)
    table = chunks.pieces_of(table.clip(0, most - 1))
    # of several products in a step, or on one core, the keys of several chunks would not stay in the cache
    together = max(1, min(_STEP_CHUNKS, table.shape[1] // chunks.pieces)) if parts == 1 and cores > 1 else 1
    kind = jnp.promote_types(q.dtype, jnp.float32)
    queries = (q.astype(kind) * jnp.asarray(scale, kind)).reshape(batch, parts, joined, group, dim)
    queries = _apart(queries).reshape(batch, parts, joined * group, joined * dim)

    def one(operands: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        rows, pieces, length, is_lost = operands

        def absorb_chunks(first: Any, count: int, loop: tuple[_Part, ...], is_last: bool) -> tuple[_Part, ...]:
            some = lax.dynamic_slice_in_dim(pieces, first * chunks.pieces, count * chunks.pieces).reshape(count, -1)
            seen = jnp.arange(chunks.rows) < length - first * chunks.rows if is_last else None
            # XLA would take what is done to a whole pool out of the loop, and so copy it
            some, *pools = lax.optimization_barrier((some, k_pool, v_pool))
            new = []
            for n, (state, rooms) in enumerate(loop):
                taken = [
                    [chunks.take(pool, numbers, n, width, room) for numbers in some]
                    for pool, width, room in zip(pools, widths, rooms, strict=True)
                ]
                k, v = ([_keys(x, pool.dtype, kind, seen) for x in of] for of, pool in zip(taken, pools, strict=True))
                kept = tuple(None if room is None else of[0] for of, room in zip(taken, rooms, strict=True))
                new.append(_Part(_absorb(rows[n], k, v, state, seen), kept))
            return tuple(new)

        size = joined * group
        lowest, zeros = jnp.full(size, jnp.finfo(kind).min, kind), jnp.zeros((size, widths[1]), kind)
        rooms = chunks.room(k_pool, widths[0]), chunks.room(v_pool, widths[1])
        loop = (_Part(RowState(lowest, jnp.zeros(size, kind), zeros), rooms),) * parts
        loop = varying_together((rows, k_pool, v_pool, pieces, length), loop)[1]
        whole = length // (together * chunks.rows)
        loop = lax.fori_loop(0, whole, lambda n, x: absorb_chunks(n * together, together, x, False), loop)
        rest = whole * together, -(-length // chunks.rows)
        loop = lax.fori_loop(*rest, lambda n, x: absorb_chunks(n, 1, x, True), loop)
        row_max, row_sum, acc = (jnp.stack(x) for x in zip(*(part.state for part in loop), strict=True))
        row_sum = jnp.where(is_lost, jnp.nan, row_sum)  # there is no such page
        hidden = row_sum == 0
        divisor = jnp.where(hidden, 1, row_sum)
        own = jnp.arange(joined)
        acc = acc.reshape(parts, joined, group, joined, -1)[:, own, :, own].swapaxes(0, 1)
        out = acc / divisor.reshape(parts, joined, group, 1)
        return out, jnp.where(hidden, jnp.inf, row_max + jnp.log(divisor)).astype(jnp.float32)

    out, lse = lax.map(one, (queries, table, lengths, is_lost.any(axis=1)))
    return out.reshape(batch, heads, 1, -1).astype(q.dtype), lse.reshape(batch, heads, 1, 1)


def _joined(group: int, kv_heads: int) -> int:
    """Return how many key heads share a product."""
    return max(n for n in range(1, kv_heads + 1) if kv_heads % n == 0 and (n == 1 or n * group <= _PRODUCT_ROWS))


def _apart(queries: jax.Array) -> jax.Array:
    """Give each key head its own columns: ``[B, parts, J, G, D]`` to ``[B, parts, J, G, J, D]``, 0 elsewhere."""
    joined = queries.shape[2]
    is_own = jnp.eye(joined, dtype=bool)[:, None, :, None]
    return jnp.where(is_own, queries[:, :, :, :, None, :], 0)


def _width(pool: jax.Array) -> int:
    return pool.shape[3] if pool.ndim == 4 else pool.shape[2] * pool.shape[4]


def _keys(chunk: jax.Array, dtype: Any, kind: Any, is_seen: jax.Array | None) -> jax.Array:
    """Return the rows of a chunk in the accumulator type; 0 where not seen."""
    rows = chunk if is_seen is None else jnp.where(is_seen[:, None], chunk, 0)
    return numbers_of(rows, dtype).astype(kind)


def _absorb(
    q: jax.Array, k: list[jax.Array], v: list[jax.Array], state: RowState, is_seen: jax.Array | None
) -> RowState:
    """Add chunks of keys to the state of the query rows of one product; ``is_seen`` is that of a single chunk."""
    scores = jnp.concatenate([jnp.dot(chunk, q.T, precision=lax.Precision.HIGHEST) for chunk in k])
    seen = None
    if is_seen is not None:
        seen = is_seen[:, None]
        scores = jnp.where(seen, scores, -jnp.inf)

    def product(weights: jax.Array) -> jax.Array:
        parts = zip(jnp.split(weights, len(v)), v, strict=True)
        products = [jnp.dot(w.T, chunk, precision=lax.Precision.HIGHEST) for w, chunk in parts]
        return functools.reduce(jnp.add, products)

    return absorb(state, scores.max(axis=0), [(scores, seen, product)], keys_axis=0)
