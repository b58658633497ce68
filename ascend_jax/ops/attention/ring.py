"""Ring attention: the sequence lies on the cards of a mapped axis, keys and values go round (arXiv 2310.01889).

In step s a card works on the keys of the card s places before it while they travel on. A causal rule uses the zig-zag
layout of :mod:`~ascend_jax.ops.attention.sharding`: with rows q1, q2 and keys k1, k2 of the two pieces, q2 always sees
all of k1; keys from an earlier card are also seen by q1 (k1 only), those from a later card by q2 (k2 too). So each step
is two products of one piece with another, whichever card it is, and nothing is masked after the first step.

Gradients of keys and values go round the other way. The backward pass keeps the keys and values of every step, so each
card needs memory linear in the whole sequence, but never scores.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.kernel import attend, scoring_of
from ascend_jax.ops.attention.rules import make_options
from ascend_jax.ops.attention.visibility import SparseMode, Visibility

__all__ = ["ring_attention"]

Stats = tuple[jax.Array, jax.Array, jax.Array]  # out, row_max, row_sum


def ring_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    axis_name: str = "card",
    tile: int | tuple[int, int] | None = None,
) -> jax.Array:
    """Return this card's rows of attention over the whole sequence, under the mapped axis ``axis_name``.

    Differentiable once in reverse mode in q, k and v. The result does not depend on the number of cards beyond the
    rounding of float32.

    Args:
      q: Queries of this card ``[B, T / C, N, D]``, as ``shard_sequence(q, C, causal=causal)`` gives them.
      k: Keys ``[B, T / C, K, D]``, likewise; K divides N.
      v: Values ``[B, T / C, K, Dv]``, likewise.
      causal: Row i sees column j if ``j <= i``, by their numbers in the whole sequence.
      scale: Factor of the scores, ``1 / sqrt(D)`` if not given.
      axis_name: The axis of cards.
      tile: Host tile.

    Returns:
      ``[B, T / C, N, Dv]`` in the dtype of q.

    Raises:
      ValueError: q, k and v differ in length, or a causal shard has an odd number of rows.

    >>> import functools
    >>> from ascend_jax.ops.attention.sharding import shard_sequence
    >>> q, v = jnp.zeros((1, 4, 1, 8)), jnp.arange(4.0).reshape(1, 4, 1, 1)
    >>> parts = [shard_sequence(x, 2, causal=True) for x in (q, q, v)]
    >>> two = jax.vmap(functools.partial(ring_attention, causal=True), axis_name="card")
    >>> two(*parts)[:, 0, :, 0, 0].tolist()
    [[0.0, 1.5], [0.5, 1.0]]
    """
    if q.ndim != 4 or not q.shape[1] == k.shape[1] == v.shape[1]:
        shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
        raise ValueError(f"{shapes}: must be [B, T / C, heads, D] with the same T / C")
    if causal and q.shape[1] % 2:
        raise ValueError(f"T / C = {q.shape[1]}: a causal shard holds two pieces of equal length")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    q_heads, k_heads, v_heads = (
        jnp.swapaxes(x, 1, 2).astype(jnp.promote_types(x.dtype, jnp.float32)) for x in (q, k, v)
    )
    out = _forward(q_heads, k_heads, v_heads, scale, bool(causal), axis_name, tile)[0]
    return jnp.swapaxes(out, 1, 2).astype(q.dtype)


def _visibility(rows: int, columns: int, causal: bool) -> Visibility:
    return Visibility(rows, columns, SparseMode.LEFT_UP_CAUSAL if causal else SparseMode.ALL_MASK)


def _part(q: jax.Array, k: jax.Array, v: jax.Array, scale: float, causal: bool, tile: Any) -> Stats:
    rows, columns = q.shape[2], k.shape[2]
    dim = max(q.shape[3], v.shape[3])
    options = make_options(tile, rows, columns, dim, None, None, jnp.float32, skips=causal)
    return attend(q, k, v, scoring_of(_visibility(rows, columns, causal)), options, scale=scale)


def _merge(a: Stats, b: Stats) -> Stats:
    """Return the result over the keys of both; every row has seen something."""
    # maxima only shift: the gradient of row_sum counts with them held fixed
    highs = [lax.stop_gradient(stats[1]) for stats in (a, b)]
    highest = jnp.maximum(*highs)
    parts = [stats[2] * jnp.exp(high - highest) for stats, high in zip((a, b), highs, strict=True)]
    total = parts[0] + parts[1]
    out = sum(stats[0] * (part / total)[..., None] for stats, part in zip((a, b), parts, strict=True))
    return jnp.asarray(out), highest, total


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    half = x.shape[2] // 2
    return x[:, :, :half], x[:, :, half:]


def _pass_on(tree: Any, axis_name: str) -> Any:
    cards = lax.axis_size(axis_name)
    return lax.ppermute(tree, axis_name, [(card, (card + 1) % cards) for card in range(cards)])


def _is_earlier(step: jax.Array, axis_name: str) -> jax.Array:
    """Return whether the keys of this step come from a card before this one."""
    return step <= lax.axis_index(axis_name)


def _forward(q: Any, k: Any, v: Any, scale: float, causal: bool, axis_name: str, tile: Any) -> Stats:
    stats = _part(q, k, v, scale, causal, tile)

    def step(carry: tuple[Any, Any, Stats], number: jax.Array) -> tuple[tuple[Any, Any, Stats], None]:
        k, v, stats = carry
        with jax.named_scope("ring_step"):
            k, v = _pass_on((k, v), axis_name)
            if not causal:
                return (k, v, _merge(stats, _part(q, k, v, scale, False, tile))), None
            is_earlier = _is_earlier(number, axis_name)
            (q1, q2), (k1, k2), (v1, v2) = (_halves(x) for x in (q, k, v))
            first, second = zip(*map(_halves, stats), strict=True)
            second = _merge(second, _part(q2, k1, v1, scale, False, tile))
            q_chosen, k_chosen, v_chosen = (jnp.where(is_earlier, *pair) for pair in ((q1, q2), (k1, k2), (v1, v2)))
            other = _part(q_chosen, k_chosen, v_chosen, scale, False, tile)
            first = _pick(is_earlier, _merge(first, other), first)
            second = _pick(is_earlier, second, _merge(second, other))
            out, row_max, row_sum = (jnp.concatenate(pair, axis=2) for pair in zip(first, second, strict=True))
        return (k, v, (out, row_max, row_sum)), None

    steps = jnp.arange(1, lax.axis_size(axis_name))
    return lax.scan(step, (k, v, stats), steps)[0][2]


def _pick(condition: jax.Array, yes: Stats, no: Stats) -> Stats:
    return tuple(jnp.where(condition, a, b) for a, b in zip(yes, no, strict=True))  # type: ignore[return-value]
