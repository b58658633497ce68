"""How operands are brought to tiles: what moves numbers and changes none of them, in as few passes as XLA:CPU allows.

Shapes: B batch rows, N heads of queries and Nkv of keys, Sq and Skv rows, D the head dimension.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.scoring import Options

__all__ = [
    "clipped",
    "finite",
    "is_finite",
    "kept_apart",
    "key_tiles",
    "moved",
    "pad_rows",
    "query_rows",
    "row_tiles",
    "rows_first",
]


def rows_first(x: jax.Array) -> jax.Array:
    """Swaps heads and rows, ``[B, N, S, D]`` and ``[B, S, N, D]``; of what a caller swapped nothing is left to do."""
    return jnp.swapaxes(x, 1, 2)


def pad_rows(x: jax.Array, tile: int, axis: int = 2) -> jax.Array:
    """Appends zeros along an axis up to a whole number of tiles, at least one."""
    length = x.shape[axis]
    missing = max(1, -(-length // tile)) * tile - length
    return jnp.pad(x, [(0, missing if n == axis else 0) for n in range(x.ndim)])


def query_rows(x: jax.Array, tile: int) -> jax.Array:
    """Brings ``[B, Sq, N, D]`` to ``[B, N, Sq, D]``, padded to whole tiles of rows."""
    return moved(lambda y: pad_rows(rows_first(y), tile), x)


def key_tiles(x: jax.Array, options: Options) -> jax.Array:
    """Cuts ``[B, Skv, Nkv, D]`` into ``[B, Nkv, tiles, cols, D]``, or ``[..., D, cols]`` if narrow.

    XLA:CPU takes a transposed float32 operand as it lies, but a 16-bit one at half speed.
    """
    return moved(lambda y: jnp.swapaxes(_cut(y, options), 3, 4), x) if options.is_narrow else row_tiles(x, options)


def row_tiles(x: jax.Array, options: Options) -> jax.Array:
    """Cuts ``[B, Skv, Nkv, D]`` into ``[B, Nkv, tiles, cols, D]``."""
    return moved(lambda y: _cut(y, options), x)


def _cut(x: jax.Array, options: Options) -> jax.Array:
    padded = pad_rows(rows_first(x), options.tile[1])
    return padded.reshape(*padded.shape[:2], -1, options.tile[1], padded.shape[3])


def moved(move: Callable[..., jax.Array], *arrays: Any) -> jax.Array:
    """Applies what moves numbers and changes none: 16-bit floats go as integers, as XLA:CPU would widen them all."""
    return _moved(move, *arrays) if any(map(_is_half, arrays)) else move(*arrays)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moved(move: Callable[..., jax.Array], *arrays: Any) -> jax.Array:
    dtype = next(x.dtype for x in arrays if _is_half(x))
    integers = (lax.bitcast_convert_type(x, jnp.uint16) if _is_half(x) else x for x in arrays)
    return lax.bitcast_convert_type(move(*integers), dtype)


@_moved.defjvp
def _moved_jvp(move: Any, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    pairs = zip(primals, tangents, strict=True)
    return _moved(move, *primals), move(*(tangent if _is_half(x) else x for x, tangent in pairs))


def kept_apart(x: jax.Array) -> jax.Array:
    """Keeps XLA from folding 16-bit floats that are constants: it gets those wrong that are moved as integers twice."""
    return lax.optimization_barrier(x) if _is_half(x) else x


def _is_half(x: Any) -> bool:
    return x.dtype.itemsize == 2 and jnp.issubdtype(x.dtype, jnp.floating)


def finite(x: jax.Array) -> jax.Array:
    """Puts 0 where a number is NaN or infinite."""
    return moved(lambda y, is_kept: jnp.where(is_kept, y, 0), x, is_finite(x))


def clipped(x: jax.Array) -> jax.Array:
    """Puts 0 where a number is NaN, and the largest finite one of its sign where it is infinite."""
    if not _is_half(x):
        return jnp.nan_to_num(x)
    bits = lax.bitcast_convert_type(x, jnp.uint16)
    largest = jnp.where((bits & 0x7FFF) == _exponent(x), bits - 1, 0)
    other = lax.bitcast_convert_type(largest, x.dtype)
    return moved(lambda y, is_kept, z: jnp.where(is_kept, y, z), x, is_finite(x), other)


def is_finite(x: jax.Array) -> jax.Array:
    """Returns where numbers are neither NaN nor infinite."""
    if not _is_half(x):
        return jnp.isfinite(x)
    return (lax.bitcast_convert_type(x, jnp.uint16) & _exponent(x)) != _exponent(x)


def _exponent(x: jax.Array) -> jax.Array:
    """Returns the bits of infinity: all of the exponent."""
    return lax.bitcast_convert_type(jnp.asarray(jnp.inf, x.dtype), jnp.uint16)
