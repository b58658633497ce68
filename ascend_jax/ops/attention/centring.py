"""Centred products: scores come out less a number per row, and each rounds as if it were a quarter of its size.

A product ``q_i . k_j`` in float32 is a chain of D additions, and each rounds in proportion to the sum so far. The
scores that matter are the large ones, a few standard deviations above 0, so their chains climb steadily, and their
rounding is most of the error of attention. A constant taken off every score of a row changes no softmax. So columns
of ones are woven into the keys, and into the queries what to take off there, in steps along the chain: the sums of a
large score swing around 0 instead of climbing. It costs four columns of D.
"""

import itertools

import jax
import jax.numpy as jnp

__all__ = ["centred_keys", "centred_queries", "spread_of"]

_STEPS = (0.6, 1.2, 1.2, 1.0)  # standard deviations taken off before each quarter of the chain
_FEWEST_KEYS = 256  # of fewer, the largest score is too small: what is taken off would round more than it does
_GROUP = 16  # keys whose size is judged together
_MOST = float(1 << 14)  # a greater shift could move the stand-ins for masked scores


def spread_of(k: jax.Array) -> jax.Array | None:
    """Returns the size of a typical entry of the keys ``[S, D]``, or None where centring does not pay.

    It is that of the smallest keys, 16 together: garbage in rows that nobody sees is large or not finite.
    """
    if k.shape[0] < _FEWEST_KEYS or k.shape[1] < len(_STEPS):
        return None
    groups = k[: k.shape[0] // _GROUP * _GROUP].reshape(-1, _GROUP * k.shape[1])
    size = jnp.square(groups).mean(axis=1)
    return jnp.sqrt(jnp.where(jnp.isfinite(size), size, jnp.inf).min())


def centred_keys(k: jax.Array) -> jax.Array:
    """Weaves the columns of ones into keys ``[S, D]``: ``[S, D + 4]``."""
    return _weave(k, [jnp.ones_like(k[:, :1])] * len(_STEPS))


def centred_queries(q: jax.Array, spread: jax.Array, visible: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weaves what is taken off into scaled queries ``[R, D]``; returns ``[R, D + 4]`` and its sum ``[R]``.

    From a row with few of the ``visible`` keys, int ``[R]``, nothing is taken off.
    """
    deviation = jnp.sqrt(jnp.square(q).sum(axis=1, keepdims=True)) * spread
    deviation = jnp.where(visible[:, None] < _FEWEST_KEYS, 0, deviation)
    deviation = jnp.where(deviation * sum(_STEPS) < _MOST, deviation, 0)  # neither where it is not finite
    return _weave(q, [-step * deviation for step in _STEPS]), sum(_STEPS) * deviation[:, 0]


def _weave(x: jax.Array, columns: list[jax.Array]) -> jax.Array:
    ends = [round(x.shape[1] * n / len(columns)) for n in range(len(columns) + 1)]
    parts = [x[:, start:end] for start, end in itertools.pairwise(ends)]
    return jnp.concatenate([piece for pair in zip(columns, parts, strict=True) for piece in pair], axis=1)
