"""Shared memory rates: how fast the running blocks go when they draw more from HBM or L2 than there is.

Max-min fair sharing: a block that draws less than its fair share goes at full speed, the others share the rest evenly.
Rates are whole 1/256, so that time stays exact to the ns.
"""

import jax
import jax.numpy as jnp

from ascend_jax.runtime.apart import apart, over_streams, sum_of_pairs
from ascend_jax.runtime.heads import Bits, Head, Work, bit
from ascend_jax.runtime.layout import FULL_RATE, LINK_SHARES, SHARES


def pace(flag: jax.Array, running: jax.Array, head: Head, *, has_links: bool = False) -> jax.Array:
    """Return the work units per ns of a block of each stream, int32 [S, B], 1..FULL_RATE.

    Args:
      flag: See :func:`apart`.
      running: int32 [S, B], running blocks.
      head: What runs; its words say what one block draws at full speed of HBM and L2, in 1/SHARES.
      has_links: Whether tasks may hold links between cards, which those that meet on one share in proportion to demand.
    """
    if has_links:
        links = apart(flag, _link_rates, running, head)
        shares = head.word(Work.FOURTH)
        of_memory = jnp.where(bit(head.word(Work.BITS), Bits.LINKS) == 1, shares & (SHARES - 1), shares)
        head = head._replace(words=head.words.at[Work.FOURTH].set(of_memory))
        return jnp.minimum(links, pace(flag, running, head))
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
        sum_of_pairs(lambda _, blocks, other, share=share: blocks * jnp.minimum(other, share), running, share)
        for share in _pools(head)
    ]


def _rates(head: Head, levels: list[jax.Array], drawn: list[jax.Array], takers: list[jax.Array]) -> jax.Array:
    rates = []
    for pool, share in enumerate(_pools(head)):
        left = jnp.broadcast_to((SHARES - drawn[pool]) * FULL_RATE, share.shape)
        fair = jnp.maximum(divide(left, jnp.maximum(takers[pool] * share, 1)), 1)
        rates.append(jnp.where(levels[pool] > SHARES, fair, FULL_RATE))
    return jnp.minimum(*rates)


def _link_rates(running: jax.Array, head: Head) -> jax.Array:
    """Return the rate that each stream's links leave it: 1 / what all ask of any of them, if that is too much."""
    is_it = (bit(head.word(Work.BITS), Bits.LINKS) == 1) & (running > 0)
    word = jnp.where(is_it, (head.word(Work.FOURTH) >> 16) & (SHARES - 1), 0)
    share, links = word & (LINK_SHARES - 1), word >> 8
    asked = sum_of_pairs(lambda _, other, theirs: jnp.where((theirs & links) != 0, other, 0), share, links)
    slowed = divide(jnp.full_like(asked, LINK_SHARES * FULL_RATE), jnp.maximum(asked, 1))
    return jnp.where(asked > LINK_SHARES, jnp.maximum(slowed, 1), FULL_RATE)
