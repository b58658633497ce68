"""FlashAttention forward: exact attention in one pass over score tiles, in memory linear in the length.

Each query row carries a running maximum ``m``, a sum ``l`` and an unnormalised output ``acc``. A tile of
scores ``s`` updates them by

    m' = max(m, max_j s_j),  p_j = exp(s_j - m'),  l' = l exp(m - m') + sum_j p_j,
    acc' = acc exp(m - m') + sum_j p_j v_j

and ``out = acc / l`` at the end (Milakov and Gimelshein, arXiv 1805.02867; Dao, arXiv 2307.08691). Tiles
whose pairs are all hidden are not visited.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.ops.attention.visibility import LiveTiles, Visibility

__all__ = ["FLT_MAX", "RowState", "flash_forward", "host_tiles"]

FLT_MAX = float(np.finfo(np.float32).max)

_HOST_TILE = 512  # fastest for long causal rows on XLA:CPU with 2 cores; the Ascend tile is another knob
_TILE_ALIGNMENT = 16
_DTYPES = ("float16", "bfloat16", "float32", "float64")


class RowState(NamedTuple):
    """What ``R`` rows know after some tiles. Safe to merge: a row that saw nothing is (lowest, 0, 0)."""

    row_max: jax.Array  # [R], accumulator dtype, greatest scaled score so far
    row_sum: jax.Array  # [R], sum of exp(score - row_max)
    acc: jax.Array  # [R, Dv], sum of exp(score - row_max) * v


def host_tiles(q_len: int, kv_len: int) -> tuple[int, int]:
    """Returns the (query, key) tile that suits XLA on a CPU: equal tiles of at most 512, little padding.

    >>> host_tiles(4096, 513)
    (512, 272)
    """

    def split(length: int) -> int:
        even = -(-length // max(1, -(-length // _HOST_TILE)))
        return max(1, -(-even // _TILE_ALIGNMENT)) * _TILE_ALIGNMENT

    return split(q_len), split(kv_len)


@jax.named_scope("flash_forward")
def flash_forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    visibility: Visibility,
    *,
    scale: float | jax.Array,
    q_tile: int | None = None,
    kv_tile: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes ``softmax(scale * q k^T) v`` over the visible pairs, and the row statistics for backward.

    Scores, statistics and accumulators are float32 (float64 for float64 inputs), whatever the input type.
    What a row does not see never reaches it, not even as NaN; a non-finite value that it sees makes it
    non-finite.

    Args:
        q: Queries ``[B, N, Sq, D]``; float16, bfloat16, float32 or float64.
        k: Keys ``[B, Nkv, Skv, D]``, dtype of ``q``; query head ``h`` uses key head ``h // (N // Nkv)``.
        v: Values ``[B, Nkv, Skv, Dv]``, dtype of ``q``.
        visibility: Which columns each row sees; static, its lengths are those of ``q`` and ``k``.
        scale: Factor of the scores, may be traced. CANN defaults to 1, never to ``1 / sqrt(D)``.
        q_tile: Query rows of a host tile, by default those of :func:`host_tiles`. Any size gives the same
            result up to rounding.
        kv_tile: Key columns of a host tile, likewise.

    Returns:
        ``out`` ``[B, N, Sq, Dv]`` in the dtype of ``q``; ``row_max`` and ``row_sum`` ``[B, N, Sq]`` in the
        accumulator dtype: greatest scaled score, and sum of exp(score - row_max). A row that sees no column
        has ``out = 0``, ``row_max = -FLT_MAX`` and ``row_sum = FLT_MAX``, as aclnnFlashAttentionScore has it.

    Raises:
        TypeError: A dtype is not supported, or the three differ.
        ValueError: Shapes do not fit each other or ``visibility``, or a tile is smaller than 1.

    >>> q, k, v = jnp.zeros((1, 1, 2, 8)), jnp.ones((1, 1, 2, 8)), jnp.arange(2.0).reshape(1, 1, 2, 1)
    >>> out, row_max, row_sum = flash_forward(q, k, v, Visibility(2, 2, 2), scale=1.0)
    >>> out.ravel().tolist(), row_max.ravel().tolist(), row_sum.ravel().tolist()
    ([0.0, 0.5], [0.0, 0.0], [1.0, 2.0])
    """
    _check_operands(q, k, v, visibility)
    batch, heads, q_len, dim = q.shape
    kv_heads, kv_len, value_dim = v.shape[1:]
    auto = host_tiles(q_len, kv_len)
    tile = (auto[0] if q_tile is None else q_tile, auto[1] if kv_tile is None else kv_tile)
    tiles = visibility.live_tiles(*tile)

    def kv_head(operands: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        q_group, k_rows, v_rows = operands
        v_finite, strays = _split_strays(_upcast(v_rows), visibility)
        k_padded, v_padded = _pad_rows(_upcast(k_rows), tile[1]), _pad_rows(v_finite, tile[1])

        def q_head(q_rows: jax.Array) -> tuple[jax.Array, ...]:
            q_padded = _pad_rows(_upcast(q_rows), tile[0])
            factor = jnp.asarray(scale, q_padded.dtype)
            state = _scan_tiles(q_padded, k_padded, v_padded, factor, visibility, tiles, tile)
            out, row_max, row_sum = _finish(RowState(*(x[:q_len] for x in state)), visibility)
            return (out + strays).astype(q.dtype), row_max, row_sum

        return lax.map(q_head, q_group)

    # One 2-D product per head: batched products are slower on XLA:CPU, and a head's tiles stay in cache.
    out, row_max, row_sum = lax.map(
        kv_head,
        (
            q.reshape(batch * kv_heads, heads // kv_heads, q_len, dim),
            k.reshape(batch * kv_heads, kv_len, dim),
            v.reshape(batch * kv_heads, kv_len, value_dim),
        ),
    )
    rows = (batch, heads, q_len)
    return out.reshape(*rows, value_dim), row_max.reshape(rows), row_sum.reshape(rows)


def _scan_tiles(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    scale: jax.Array,
    visibility: Visibility,
    tiles: LiveTiles,
    tile: tuple[int, int],
) -> RowState:
    """Runs one head over its live tiles; all operands are upcast and padded to whole tiles."""
    q_tile, kv_tile = tile
    state = RowState(
        row_max=jnp.full(q.shape[:1], jnp.finfo(q.dtype).min, q.dtype),
        row_sum=jnp.zeros(q.shape[:1], q.dtype),
        acc=jnp.zeros((q.shape[0], v.shape[1]), q.dtype),
    )
    # A choice per tile is no faster (lax.cond, or two scans): the mask fuses into the exponentials.
    masked = bool(tiles.is_partial.any())

    def step(state: RowState, index: tuple[jax.Array, jax.Array]) -> tuple[RowState, None]:
        row0, col0 = index[0] * q_tile, index[1] * kv_tile
        q_rows, *rows = (lax.dynamic_slice_in_dim(x, row0, q_tile) for x in (q, *state))
        k_rows, v_rows = (lax.dynamic_slice_in_dim(x, col0, kv_tile) for x in (k, v))
        mask = visibility.visible(row0 + jnp.arange(q_tile), col0 + jnp.arange(kv_tile)) if masked else None
        new_rows = _absorb(RowState(*rows), _dot(q_rows, k_rows.T) * scale, v_rows, mask)
        state = jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, row0, 0), state, new_rows)
        return state, None

    if tiles.q_index.size:
        state, _ = lax.scan(step, state, (jnp.asarray(tiles.q_index), jnp.asarray(tiles.kv_index)))
    return state


def _absorb(rows: RowState, scores: jax.Array, v: jax.Array, mask: jax.Array | None) -> RowState:
    """Adds a tile of ``scores`` ``[R, C]`` and values ``[C, Dv]`` to ``rows``, by the formula at the top."""
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    # rows.row_max is finite, so a row without a visible score yet never meets inf - inf.
    row_max = jnp.maximum(rows.row_max, scores.max(axis=1))
    weights = jnp.exp(scores - row_max[:, None])
    if mask is not None:
        weights = jnp.where(mask, weights, 0)  # exact by itself, whatever exp makes of -inf
    decay = jnp.exp(rows.row_max - row_max)
    return RowState(
        row_max=row_max,
        row_sum=rows.row_sum * decay + weights.sum(axis=1),
        acc=rows.acc * decay[:, None] + _dot(weights, v),
    )


def _finish(state: RowState, visibility: Visibility) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalises and applies CANN's convention for rows that see nothing."""
    low, high = visibility.column_bounds(jnp.arange(state.row_max.shape[0]))
    hidden = high <= low
    row_sum = jnp.where(hidden, FLT_MAX, state.row_sum)
    return state.acc / row_sum[:, None], jnp.where(hidden, -FLT_MAX, state.row_max), row_sum


def _split_strays(v: jax.Array, visibility: Visibility) -> tuple[jax.Array, jax.Array]:
    """Splits NaN and inf off ``v`` ``[Skv, Dv]``: a hidden one would leak into the product as ``0 * NaN``.

    Returns ``v`` with zeros in their place, and ``[Sq, Dv]`` to add to the output: 0, or the sum of the
    strays that the row sees. As rows see intervals, running counts suffice.
    """
    finite = jnp.isfinite(v)

    def visible_strays() -> jax.Array:
        low, high = visibility.column_bounds(jnp.arange(visibility.q_len))

        def sees(stray: jax.Array) -> jax.Array:
            count = jnp.pad(jnp.cumsum(stray, axis=0, dtype=jnp.int32), ((1, 0), (0, 0)))
            return count[high] > count[low]

        infinity = jnp.asarray(jnp.inf, v.dtype)
        plus, minus = sees(jnp.isnan(v) | jnp.isposinf(v)), sees(jnp.isnan(v) | jnp.isneginf(v))
        return jnp.where(plus, infinity, 0) + jnp.where(minus, -infinity, 0)

    none = jnp.zeros((visibility.q_len, v.shape[1]), v.dtype)
    return jnp.where(finite, v, 0), lax.cond(finite.all(), lambda: none, visible_strays)


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, precision=lax.Precision.HIGHEST)


def _upcast(x: jax.Array) -> jax.Array:
    """Casts once per head, not per tile: 16-bit products are slower than float32 ones on XLA:CPU."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _pad_rows(x: jax.Array, tile: int) -> jax.Array:
    """Appends zero rows up to a whole number of tiles, at least one."""
    rows = max(1, -(-x.shape[0] // tile)) * tile
    return jnp.pad(x, ((0, rows - x.shape[0]), (0, 0)))


def _check_operands(q: jax.Array, k: jax.Array, v: jax.Array, visibility: Visibility) -> None:
    if str(q.dtype) not in _DTYPES or not q.dtype == k.dtype == v.dtype:
        dtypes = f"{q.dtype}, {k.dtype}, {v.dtype}"
        raise TypeError(f"q, k, v need one and the same dtype of {', '.join(_DTYPES)}, got {dtypes}")
    shapes = f"got q {q.shape}, k {k.shape}, v {v.shape}"
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"q, k, v must be [batch, heads, length, dim], {shapes}")
    if (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]) or k.shape[:3] != v.shape[:3]:
        raise ValueError(f"q, k must share batch and dim, and k, v batch, heads and length, {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"the number of query heads must be a multiple of that of key heads, {shapes}")
    if (q.shape[2], k.shape[2]) != (visibility.q_len, visibility.kv_len):
        lengths = f"q_len={visibility.q_len} and kv_len={visibility.kv_len}"
        raise ValueError(f"visibility is for {lengths}, {shapes}")
