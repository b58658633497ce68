"""Ulysses attention: two all-to-alls turn sequence shards into head shards and back (arXiv 2309.14509)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.flash import flash_attention

__all__ = ["ulysses_attention"]


def ulysses_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    axis_name: str = "card",
    **options: Any,
) -> jax.Array:
    """Return this card's rows of attention over the whole sequence, under the mapped axis ``axis_name``.

    Every card takes N / C heads of the whole sequence, so no row is split. Fewer key heads than cards are repeated.

    Args:
      q: Queries of this card ``[B, T / C, N, D]``, runs of the sequence in order; C divides N.
      k: Keys ``[B, T / C, K, D]``; C divides K or K divides C.
      v: Values ``[B, T / C, K, Dv]``.
      causal: Row i sees column j if ``j <= i``.
      axis_name: The axis of cards.
      **options: Of :func:`~ascend_jax.ops.attention.flash.flash_attention`: ``window``, ``scale``, ``softcap``, ...

    Returns:
      ``[B, T / C, N, Dv]``.

    Raises:
      ValueError: The heads do not divide.

    >>> q, v = jnp.zeros((2, 1, 2, 2, 8)), jnp.arange(8.0).reshape(2, 1, 2, 2, 1)
    >>> out = jax.vmap(lambda *x: ulysses_attention(*x, causal=True), axis_name="card")(q, q, v)
    >>> out[:, 0, :, 0, 0].tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    cards = lax.axis_size(axis_name)
    heads, kv_heads = q.shape[2], k.shape[2]
    if heads % cards:
        raise ValueError(f"heads = {heads}: does not divide by {cards} cards; use the ring, or a divisor of {heads}")
    if kv_heads % cards:
        if cards % kv_heads:
            raise ValueError(f"key heads = {kv_heads}: neither divides {cards} cards nor is a multiple of them")
        k, v = (jnp.repeat(x, cards // kv_heads, axis=2) for x in (k, v))
    whole = [lax.all_to_all(x, axis_name, split_axis=2, concat_axis=1, tiled=True) for x in (q, k, v)]
    out = flash_attention(*whole, causal=causal, **options)
    return lax.all_to_all(out, axis_name, split_axis=1, concat_axis=2, tiled=True)
