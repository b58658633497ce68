"""Centred products: scores come out less a number per row, so that the large ones round less.

A product ``q_i . k_j`` in float32 is a chain of D additions, and each rounds in proportion to the sum so far. The
scores that matter are the large ones, a few standard deviations above 0, so their chains climb steadily, and their
rounding is most of the error of attention. A constant taken off every score of a row changes no softmax. So columns
of ones are woven into the keys, and into the queries what to take off there, in steps along the chain: the sums of a
large score swing around 0 instead of climbing. It costs two columns of D.
"""

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.movement import rows_first
from ascend_jax.ops.attention.products import scaled

__all__ = ["centred"]

_STEPS = (1.2, 2.0)  # standard deviations taken off before each half of the chain
_FEWEST_KEYS = 256  # of fewer, the largest score is too small: what is taken off would round more than it does
_GROUP = 16  # keys whose size is judged together
_SAMPLED = 4  # of so many groups one is looked at
_MOST = float(1 << 14)  # a greater shift could move the stand-ins for masked scores


def centred(
    q: jax.Array, k: jax.Array, scale: jax.Array, visible: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Weaves the columns of ones into the keys, and into the queries what is taken off.

    Args:
        q: Queries ``[B, Sq, N, D]``.
        k: Keys ``[B, Skv, Nkv, D]``.
        scale: Factor of the products; the queries are multiplied by it.
        visible: int ``[B|1, Sq]``, how many keys a row may see; from a row with few of them nothing is taken off.

    Returns:
        Queries and keys with two more columns, and what is taken off every score of a row ``[B, N, Sq]``; or without
        more columns, and None, where it does not pay.
    """
    (batch, _, heads, dim), (kv_len, kv_heads) = q.shape, k.shape[1:3]
    if kv_len < _FEWEST_KEYS or dim < len(_STEPS):
        return scaled(q, scale), k, None
    spread = jnp.repeat(_spread(k), heads // kv_heads, axis=1)[:, None, :]
    deviation = jnp.abs(scale) * jnp.sqrt(jnp.square(q).sum(axis=3)) * spread
    deviation = jnp.where(visible[:, :, None] < _FEWEST_KEYS, 0, deviation)
    deviation = jnp.where(deviation * sum(_STEPS) < _MOST, deviation, 0)  # neither where it is not finite
    deviation = lax.stop_gradient(deviation)  # the result does not depend on what is taken off
    queries = _woven(scaled(q, scale), [-deviation[..., None] * step for step in _STEPS])
    keys = _woven(k, [jnp.ones((batch, kv_len, kv_heads, 1), k.dtype)] * len(_STEPS))
    return queries, keys, rows_first(sum(_STEPS) * deviation)


def _spread(k: jax.Array) -> jax.Array:
    """Returns how far entries of the keys ``[B, S, Nkv, D]`` lie from their mean, of every head.

    It is that of the closest keys of a sample, 16 together: garbage in rows that nobody sees is large or not finite.
    """
    rows = k[:, : k.shape[1] // _GROUP * _GROUP].reshape(k.shape[0], -1, _GROUP, *k.shape[2:])[:, ::_SAMPLED]
    size = rows.var(axis=2, ddof=1).mean(axis=3)  # a mean of all keys is in every score of a row
    return jnp.sqrt(jnp.where(jnp.isfinite(size), size, jnp.inf).min(axis=1))


def _woven(x: jax.Array, columns: list[jax.Array]) -> jax.Array:
    """Puts one of two columns before each half of the last axis."""
    first, second = jnp.split(x, [(x.shape[3] + 1) // 2], axis=3)
    return jnp.concatenate([columns[0], first, columns[1], second], axis=3)
