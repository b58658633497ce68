"""Decoding straight from pages: one query row against a cache, every byte of it read once.

The general path gathers the pages into ``[B, N, S, D]`` first, which for one query row costs several times the
attention itself. Here a loop takes a few pages of one batch row at a time and runs the online softmax on them while
they are in the processor's cache. It stops at the length of the row. Key heads that lie side by side
share one product, the queries of each with zeros in the columns of the others: with few query rows a product costs as
much as reading the keys, however many of its factors are 0. Not differentiable: inference only.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.online_softmax import RowState, absorb
from ascend_jax.runtime.loop import varying_together

__all__ = ["paged_decode"]

# rows of keys in one product, or those of a larger page: 128 KiB of float32, which stay in the cache of a core
_CHUNK_ROWS = (128, 256)
_CHUNK_ELEMENTS = 1 << 15
# that a single product has at a time while there are as many: they share the steps of the softmax, and of more than 8
# chunks XLA's executor gives some to another core
_STEP_CHUNKS = 16
_STEP_ROWS = 4096  # at most, of larger pages
_PRODUCT_ROWS = 8  # query rows that a product takes at no more than the cost of reading the keys


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
    joined = _joined(q.shape[1] // kv_heads, kv_heads) if k_pool.ndim == v_pool.ndim == 3 else 1
    given = (q, k_pool, v_pool, jnp.asarray(table, jnp.int32), jnp.asarray(lengths, jnp.int32).clip(0), scale)
    run = functools.partial(_decode, *given, block_size=block_size, kv_heads=kv_heads)
    out, lse = run(joined=joined)
    if joined == 1:
        return out, lse
    # 0 times a NaN or inf of another head is NaN: if there is any, every head multiplies by itself
    is_clean = ~(jnp.isnan(out).any() | jnp.isnan(lse).any())
    return lax.cond(is_clean, lambda: (out, lse), lambda: run(joined=1))


@functools.partial(jax.jit, static_argnames=("block_size", "kv_heads", "joined"))
def _decode(
    q: jax.Array,
    k_pool: jax.Array,
    v_pool: jax.Array,
    table: jax.Array,
    lengths: jax.Array,
    scale: Any,
    block_size: int,
    kv_heads: int,
    joined: int,
) -> tuple[jax.Array, jax.Array]:
    """Compute :func:`paged_decode` with so many key heads in a product."""
    batch, heads, _, dim = q.shape
    group, parts = heads // kv_heads, kv_heads // joined
    rows_of_chunk = min(max(_CHUNK_ELEMENTS // (joined * dim), _CHUNK_ROWS[0]), _CHUNK_ROWS[1])
    step = max(1, rows_of_chunk // block_size)  # pages of a chunk
    chunk_rows = step * block_size
    table = jnp.pad(table, ((0, 0), (0, -table.shape[1] % step)))
    # of several products in a step the keys would not stay in the cache
    most_chunks = min(_STEP_CHUNKS, _STEP_ROWS // chunk_rows, table.shape[1] // step)
    together = max(1, most_chunks) if parts == 1 else 1
    kind = jnp.promote_types(q.dtype, jnp.float32)
    queries = (q.astype(kind) * jnp.asarray(scale, kind)).reshape(batch, parts, joined, group, dim)
    queries = _apart(queries).reshape(batch, parts, joined * group, joined * dim)
    most = min(k_pool.shape[0], v_pool.shape[0])

    def one(operands: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        rows, pages, length = operands

        def chunks(first: Any, count: int, state: tuple[RowState, ...], is_last: bool) -> tuple[RowState, ...]:
            ids = lax.dynamic_slice_in_dim(pages, first * step, count * step).reshape(count, step)
            seen = jnp.arange(chunk_rows) < length - first * chunk_rows if is_last else None
            # XLA would take what is done to a whole pool out of the loop, and so copy it
            ids, *pools = lax.optimization_barrier((ids, k_pool, v_pool))
            new = []
            for part in range(parts):
                k, v = (
                    [_take(pool, of_chunk, part, joined / kv_heads, seen).astype(kind) for of_chunk in ids]
                    for pool in pools
                )
                new.append(_absorb(rows[part], k, v, state[part], seen))
            return tuple(new)

        size = joined * group
        value_dim = v_pool.shape[2] // kv_heads if v_pool.ndim == 3 else _width(v_pool)
        lowest = jnp.full(size, jnp.finfo(kind).min, kind)
        state = (RowState(lowest, jnp.zeros(size, kind), jnp.zeros((size, joined * value_dim), kind)),) * parts
        state = varying_together((rows, k_pool, v_pool, pages, length), state)[1]
        whole = length // (together * chunk_rows)
        state = lax.fori_loop(0, whole, lambda n, x: chunks(n * together, together, x, False), state)
        rest = whole * together, -(-length // chunk_rows)
        state = lax.fori_loop(*rest, lambda n, x: chunks(n, 1, x, True), state)
        row_max, row_sum, acc = (jnp.stack(x) for x in zip(*state, strict=True))
        is_lost = ((pages < 0) | (pages >= most)) & (jnp.arange(pages.size) * block_size < length)
        row_sum = jnp.where(is_lost.any(), jnp.nan, row_sum)  # there is no such page
        hidden = row_sum == 0
        divisor = jnp.where(hidden, 1, row_sum)
        own = jnp.arange(joined)
        acc = acc.reshape(parts, joined, group, joined, value_dim)[:, own, :, own].swapaxes(0, 1)
        out = acc / divisor.reshape(parts, joined, group, 1)
        return out, jnp.where(hidden, jnp.inf, row_max + jnp.log(divisor)).astype(jnp.float32)

    out, lse = lax.map(one, (queries, table, lengths))
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


def _take(pool: jax.Array, ids: jax.Array, part: int, share: float, is_seen: jax.Array | None) -> jax.Array:
    """Return the rows of some pages for one of the parts of the key heads, ``[rows, J D]``; 0 where not seen."""
    dtype = pool.dtype
    if dtype.itemsize == 2:  # XLA:CPU would widen the whole pool to slice 16-bit floats
        pool = lax.bitcast_convert_type(pool, jnp.uint16)
    width = round(pool.shape[2] * share)
    start: tuple[int, ...] = (0, part * width)
    size: tuple[int, ...] = (pool.shape[1], width)
    if pool.ndim > 3:
        start, size = (part, *(0,) * (pool.ndim - 2)), (1, *pool.shape[2:])
    pages = [lax.dynamic_slice(pool, (page, *start), (1, *size)) for page in ids]
    if pool.ndim == 5:  # [1, 1, D / c, bs, c]
        pages = [page.swapaxes(2, 3) for page in pages]
    rows = jnp.concatenate([page.reshape(-1, size[-1] if pool.ndim < 5 else _width(pool)) for page in pages])
    rows = rows if is_seen is None else jnp.where(is_seen[:, None], rows, 0)
    return lax.bitcast_convert_type(rows, dtype)


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
