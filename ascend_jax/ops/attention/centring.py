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

__all__ = ["centred_keys", "centred_queries", "spread_of"]

_STEPS = (1.2, 2.0)  # standard deviations taken off before each half of the chain
_FEWEST_KEYS = 256  # of fewer, the largest score is too small: what is taken off would round more than it does
_GROUP = 16  # keys whose size is judged together
_SAMPLED = 4  # of so many groups one is looked at
_MOST = float(1 << 14)  # a greater shift could move the stand-ins for masked scores


def spread_of(k: jax.Array) -> jax.Array | None:
    """Returns how far entries of the keys ``[S, D]`` lie from their mean, or None where centring does not pay.

    It is that of the closest keys of a sample, 16 together: garbage in rows that nobody sees is large or not finite.
    """
    if k.shape[0] < _FEWEST_KEYS or k.shape[1] < len(_STEPS):
        return None
    groups = k[: k.shape[0] // _GROUP * _GROUP].reshape(-1, _GROUP, k.shape[1])[::_SAMPLED]
    size = groups.var(axis=1, ddof=1).mean(axis=1)  # a mean of all keys is in every score of a row
    return jnp.sqrt(jnp.where(jnp.isfinite(size), size, jnp.inf).min())


def centred_keys(columns: jax.Array) -> jax.Array:
    """Weaves the columns of ones into keys in columns ``[tiles, D, C]``: ``[tiles, D + 2, C]``, D up to even."""
    tiles, dim, width = columns.shape
    halves = jnp.pad(columns, ((0, 0), (0, -dim % len(_STEPS)), (0, 0))).reshape(tiles, len(_STEPS), -1, width)
    return jnp.pad(halves, ((0, 0), (0, 0), (1, 0), (0, 0)), constant_values=1).reshape(tiles, -1, width)


def centred_queries(q: jax.Array, spread: jax.Array, visible: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weaves what is taken off into scaled queries ``[R, D]``; returns ``[R, D + 2]`` and its sum ``[R]``.

    From a row with few of the ``visible`` keys, int ``[R]``, nothing is taken off.
    """
    rows, dim = q.shape
    fixed, spread = lax.stop_gradient((q, spread))  # the result does not depend on what is taken off
    deviation = jnp.sqrt(jnp.square(fixed).sum(axis=1)) * spread
    deviation = jnp.where(visible < _FEWEST_KEYS, 0, deviation)
    deviation = jnp.where(deviation * sum(_STEPS) < _MOST, deviation, 0)  # neither where it is not finite
    halves = jnp.pad(q, ((0, 0), (0, -dim % len(_STEPS)))).reshape(rows, len(_STEPS), -1)
    off = -deviation[:, None] * jnp.asarray(_STEPS, q.dtype)[None, :]
    # not a concatenation, of which XLA:CPU moves one number at a time
    woven = jnp.zeros((rows, len(_STEPS), halves.shape[2] + 1), q.dtype).at[:, :, 0].set(off).at[:, :, 1:].set(halves)
    return woven.reshape(rows, -1), sum(_STEPS) * deviation
