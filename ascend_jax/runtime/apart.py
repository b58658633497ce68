"""Making XLA's CPU compiler do a thing once and in vector loops: walls between stages, sums over pairs of streams."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.runtime.rows import part

T = TypeVar("T")


def apart(flag: jax.Array, function: Callable[..., T], *args: object) -> T:
    """Return ``function(*args)``, with its results in memory before anything reads them.

    XLA on the CPU fuses a value into each of its readers and computes it anew there, once per slice that is read; over
    the stages of a scheduler that multiplies up to a hundredfold. ``lax.optimization_barrier`` is removed before
    fusion; a conditional stays.

    Args:
      flag: Boolean scalar that is true, and that the compiler cannot know to be.
      function: Pure function of arrays.
      *args: Its arguments.
    """
    function = jax.jit(function, inline=True)  # so that it is traced once and not for its shapes and its values
    shapes = jax.eval_shape(function, *args)

    def never(*args: object) -> T:
        # made of what is there: it costs no kernel, and under shard_map it must vary as the results do
        known = [leaf for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.Array)]
        like = {(leaf.shape, leaf.dtype): leaf for leaf in known}
        zero = part(known[0].reshape(-1), 0)

        def some(one: jax.ShapeDtypeStruct) -> jax.Array:
            found = like.get((one.shape, one.dtype))
            return jnp.broadcast_to(zero.astype(one.dtype), one.shape) if found is None else found

        return jax.tree.map(some, shapes)

    return lax.cond(flag, function, never, *args)


def over_streams(*rows: jax.Array, least: int = 0) -> list[jax.Array]:
    """Return each of ``rows`` [S, B] as [B], in one pass: the minimum of the first ``least``, the sum of the others."""

    def both(left: tuple, right: tuple) -> tuple:
        pairs = enumerate(zip(left, right, strict=True))
        return tuple(jnp.minimum(a, b) if number < least else a + b for number, (a, b) in pairs)

    none = tuple(jnp.int32(2**31 - 1 if number < least else 0) for number in range(len(rows)))
    return list(lax.reduce(rows, none, both, (0,)))


UNROLLED = 16  # streams up to which a pass per stream compiles quickly


def sum_of_pairs(term: Callable[..., jax.Array], *rows: jax.Array) -> jax.Array:
    """Return the sum over streams j of ``term(j, rows[0][j], rows[1][j], ...)``; the rows [B] or [1, B].

    Unrolled, each pass is one vector loop over streams and lanes; a reduction would be a scalar loop for each of them.
    """
    slots = rows[0].shape[0]
    if slots > UNROLLED:
        return jax.vmap(term)(jnp.arange(slots, dtype=jnp.int32), *rows).sum(0)
    term = jax.jit(term, inline=True)  # traced once and not per stream
    return sum(term(np.int32(j), *(lax.slice_in_dim(row, j, j + 1) for row in rows)) for j in range(slots))
