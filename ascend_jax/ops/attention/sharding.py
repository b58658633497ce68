"""Sharding of attention over cards: by batch, by heads, or by sequence, where causal rows are dealt out in zig-zag.

With a causal rule the last rows see most. So the sequence is cut in 2 C pieces and card r gets pieces r and
2 C - 1 - r: every card has the same work, in every step of a ring.
"""

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["join_axis", "join_sequence", "shard_axis", "shard_sequence", "zigzag_pieces"]


def zigzag_pieces(cards: int) -> list[tuple[int, int]]:
    """Return which of 2 C pieces of the sequence each card holds.

    >>> zigzag_pieces(3)
    [(0, 5), (1, 4), (2, 3)]
    """
    return [(card, 2 * cards - 1 - card) for card in range(cards)]


def shard_axis(x: jax.Array, cards: int, axis: int, name: str) -> jax.Array:
    """Return [C, ...]: equal runs of one axis, in order.

    Raises:
      ValueError: The axis does not divide; the message names it by ``name``.

    >>> shard_axis(jnp.arange(4), 2, 0, "heads").tolist()
    [[0, 1], [2, 3]]
    """
    length = x.shape[axis]
    if cards < 1 or length % cards:
        raise ValueError(f"{name} = {length}: does not divide by {cards} cards; give a multiple of {cards}")
    axis %= x.ndim
    parts = x.reshape(*x.shape[:axis], cards, length // cards, *x.shape[axis + 1 :])
    return jnp.moveaxis(parts, axis, 0)


def join_axis(shards: jax.Array, axis: int) -> jax.Array:
    """Undo :func:`shard_axis`; ``axis`` is that of one shard.

    >>> join_axis(shard_axis(jnp.arange(4), 2, 0, "heads"), 0).tolist()
    [0, 1, 2, 3]
    """
    axis %= shards.ndim - 1
    parts = jnp.moveaxis(shards, 0, axis)
    return parts.reshape(*parts.shape[:axis], -1, *parts.shape[axis + 2 :])


def shard_sequence(x: jax.Array, cards: int, *, causal: bool, axis: int = 1) -> jax.Array:
    """Return [C, ...]: each card's part of the sequence, in zig-zag if ``causal``.

    Raises:
      ValueError: The sequence does not divide by C, or by 2 C if ``causal``.

    >>> shard_sequence(jnp.arange(8)[None], 2, causal=True).tolist()
    [[[0, 1, 6, 7]], [[2, 3, 4, 5]]]
    """
    if not causal:
        return shard_axis(x, cards, axis, "sequence length")
    length = x.shape[axis]
    if cards < 1 or length % (2 * cards):
        raise ValueError(
            f"sequence length = {length}: a causal sequence on {cards} cards is cut in {2 * cards} pieces; "
            f"give a multiple of {2 * cards}"
        )
    return shard_axis(jnp.take(x, _zigzag_rows(length, cards), axis=axis), cards, axis, "sequence length")


def join_sequence(shards: jax.Array, *, causal: bool, axis: int = 1) -> jax.Array:
    """Undo :func:`shard_sequence`; ``axis`` is that of one shard.

    >>> parts = shard_sequence(jnp.arange(8)[None], 2, causal=True)
    >>> join_sequence(parts, causal=True).tolist()
    [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    joined = join_axis(shards, axis)
    if not causal:
        return joined
    return jnp.take(joined, np.argsort(_zigzag_rows(joined.shape[axis], shards.shape[0])), axis=axis)


def _zigzag_rows(length: int, cards: int) -> np.ndarray:
    piece = length // (2 * cards)
    return np.concatenate([np.arange(piece) + number * piece for pair in zigzag_pieces(cards) for number in pair])
