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


def centred_keys(k: jax.Array) -> jax.Array:
    """Weaves columns of ones into keys ``[S, D]``: ``[S, D + 2]``."""
    return _woven(k, [jnp.ones((k.shape[0], 1), k.dtype)] * len(_STEPS))


def centred_queries(q: jax.Array, spread: jax.Array, visible: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weaves what is taken off into scaled queries ``[R, D]``; returns ``[R, D + 2]`` and its sum ``[R]``.

    From a row with few of the ``visible`` keys, int ``[R]``, nothing is taken off.
    """
    fixed, spread = lax.stop_gradient((q, spread))  # the result does not depend on what is taken off
    deviation = jnp.sqrt(jnp.square(fixed).sum(axis=1)) * spread
    deviation = jnp.where(visible < _FEWEST_KEYS, 0, deviation)
    deviation = jnp.where(deviation * sum(_STEPS) < _MOST, deviation, 0)  # neither where it is not finite
    return _woven(q, [-deviation[:, None] * step for step in _STEPS]), sum(_STEPS) * deviation


def _woven(x: jax.Array, columns: list[jax.Array]) -> jax.Array:
    """Puts one of two columns before each half of the last axis."""
    first, second = jnp.split(x, [(x.shape[1] + 1) // 2], axis=1)
    return jnp.concatenate([columns[0], first, columns[1], second], axis=1)
