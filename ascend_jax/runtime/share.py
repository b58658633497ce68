"""Shared memory rates: how fast the running blocks go when they draw more from HBM or L2 than there is.

Max-min fair sharing: a block that draws less than its fair share goes at full speed, the others share the rest evenly.
Rates are whole 1/256, so that time stays exact to the ns.
"""

import jax
import jax.numpy as jnp

from ascend_jax.runtime.apart import apart, over_streams, sum_of_pairs
from ascend_jax.runtime.heads import Head, Work
from ascend_jax.runtime.layout import FULL_RATE, SHARES


def pace(flag: jax.Array, running: jax.Array, head: Head) -> jax.Array:
    """Return the work units per ns of a block of each stream, int32 [S, B], 1..FULL_RATE.

    Args:
      flag: See :func:`apart`.
      running: int32 [S, B], running blocks.
      head: What runs; its words say what one block draws at full speed of HBM and L2, in 1/SHARES.
    """
    levels = apart(flag, _levels, running, head)
    pools = tuple(zip(levels, _pools(head), strict=True))
    drawn = (jnp.where(level <= SHARES, running * share, 0) for level, share in pools)
    takers = (jnp.where(level <= SHARES, 0, running) for level in levels)
    totals = over_streams(*drawn, *takers)
    return apart(flag, _rates, head, levels, totals[:2], totals[2:])


def divide(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a // b`` for ``0 <= a <= 2**30``, ``b >= 1`` and a quotient of at most 2**22.

    One float32 division is off by at most 1 then; integer division has no vector instruction.
    """
    quotient = (a.astype(jnp.float32) / b.astype(jnp.float32)).astype(jnp.int32)
    quotient -= quotient * b > a
    return quotient + ((quotient + 1) * b <= a)


def _pools(head: Head) -> tuple[jax.Array, jax.Array]:
    shares = head.word(Work.FOURTH)
    return shares & (SHARES - 1), (shares >> 16) & (SHARES - 1)


def _levels(running: jax.Array, head: Head) -> list[jax.Array]:
    """Return for each pool what all would draw if nobody drew more than a block of this stream: too much, or not."""
    return [
        sum_of_pairs(lambda blocks, other, share=share: blocks * jnp.minimum(other, share), running, share)
        for share in _pools(head)
    ]


def _rates(head: Head, levels: list[jax.Array], drawn: list[jax.Array], takers: list[jax.Array]) -> jax.Array:
    rates = []
    for pool, share in enumerate(_pools(head)):
        left = jnp.broadcast_to((SHARES - drawn[pool]) * FULL_RATE, share.shape)
        fair = jnp.maximum(divide(left, jnp.maximum(takers[pool] * share, 1)), 1)
        rates.append(jnp.where(levels[pool] > SHARES, fair, FULL_RATE))
    return jnp.minimum(*rates)
