"""Shared memory rates: how fast the running blocks go when they draw more from HBM or L2 than there is.

Max-min fair sharing: a block that draws less than its fair share goes at full speed, the others share the rest evenly.
Rates are whole 1/256, so that time stays exact to the ns.
"""

import jax
import jax.numpy as jnp

from ascend_jax.runtime.apart import apart, sum_of_pairs
from ascend_jax.runtime.layout import FULL_RATE, SHARES


def pace(flag: jax.Array, running: jax.Array, shares: jax.Array) -> jax.Array:
    """Return the work units per ns of a block of each stream, int32 [S, B], 1..FULL_RATE.

    Args:
      flag: See :func:`apart`.
      running: int32 [S, B], running blocks.
      shares: int32 [S, B], what one block draws at full speed of HBM + of L2 << 16, in 1/SHARES.
    """
    drawn = apart(flag, _drawn, running, shares)
    totals = [part.sum(0) for part in drawn]
    return apart(flag, _rates, shares, drawn, totals)


def divide(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a // b`` for ``0 <= a <= 2**30``, ``b >= 1`` and a quotient of at most 2**22.

    One float32 division is off by at most 1 then; integer division has no vector instruction.
    """
    quotient = (a.astype(jnp.float32) / b.astype(jnp.float32)).astype(jnp.int32)
    quotient -= quotient * b > a
    return quotient + ((quotient + 1) * b <= a)


def _pools(shares: jax.Array) -> tuple[jax.Array, jax.Array]:
    return shares & (SHARES - 1), (shares >> 16) & (SHARES - 1)


def _drawn(running: jax.Array, shares: jax.Array) -> list[jax.Array]:
    """Return for each pool what satisfied blocks draw, and how many blocks are not satisfied."""
    parts = []
    for share in _pools(shares):
        # blocks that draw no more than this one, and the part that this one would draw, of the others
        level = sum_of_pairs(lambda blocks, other, share=share: blocks * jnp.minimum(other, share), running, share)
        is_satisfied = (level <= SHARES) | (share == 0)
        parts += [jnp.where(is_satisfied, running * share, 0), jnp.where(is_satisfied, 0, running)]
    return parts


def _rates(shares: jax.Array, drawn: list[jax.Array], totals: list[jax.Array]) -> jax.Array:
    rates = []
    for pool, share in enumerate(_pools(shares)):
        left, takers = SHARES - totals[2 * pool], totals[2 * pool + 1]
        fair = divide(jnp.broadcast_to(left * FULL_RATE, share.shape), jnp.maximum(takers * share, 1))
        rates.append(jnp.where(drawn[2 * pool + 1] > 0, jnp.maximum(fair, 1), FULL_RATE))
    return jnp.minimum(*rates)
