"""Products of tiles and their operands: types, padding, and the layouts that XLA multiplies fast."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.scoring import Options

__all__ = [
    "dot",
    "dot_keys",
    "finite",
    "is_finite",
    "kept_apart",
    "key_tiles",
    "moved",
    "narrowed",
    "operand",
    "pad_rows",
    "query_rows",
    "round_to",
    "row_dtype",
    "row_tiles",
    "rows_first",
    "scaled",
    "upcast",
]


def round_to(x: jax.Array, dtype: str | None) -> jax.Array:
    """Rounds values to a narrower type, as the device stores them."""
    return x if dtype is None else x.astype(dtype).astype(x.dtype)


def dot(a: jax.Array, b: jax.Array, options: Options) -> jax.Array:
    """Multiplies in the narrower type of the two and adds up in the accumulator type.

    A transposed left side takes XLA:CPU up to three times as long; for a right side see :func:`dot_keys`.
    """
    narrow = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
    total = jnp.promote_types(narrow, jnp.float32)
    a, b = narrowed(a, narrow), narrowed(b, narrow)
    return jnp.dot(a, b, precision=options.precision, preferred_element_type=total)


def dot_keys(a: jax.Array, keys: jax.Array, options: Options) -> jax.Array:
    """Multiplies ``[R, D]`` with the transpose of a tile of :func:`key_tiles`: ``[R, cols]``."""
    return dot(a, keys if options.is_narrow else keys.T, options)


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


def is_finite(x: jax.Array) -> jax.Array:
    """Returns where numbers are neither NaN nor infinite."""
    if not _is_half(x):
        return jnp.isfinite(x)
    exponent = lax.bitcast_convert_type(jnp.asarray(jnp.inf, x.dtype), jnp.uint16)
    return (lax.bitcast_convert_type(x, jnp.uint16) & exponent) != exponent


def narrowed(x: jax.Array, dtype: Any) -> jax.Array:
    """Rounds to the nearest value of a narrower type, to even between two; differentiable like a conversion."""
    return _to_bfloat16(x) if x.dtype == jnp.float32 and dtype == jnp.bfloat16 else x.astype(dtype)


@jax.custom_jvp
def _to_bfloat16(x: jax.Array) -> jax.Array:
    """Rounds float32 by integers: XLA:CPU takes half the time for them that it takes for the conversion."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # looked up in the bits, not in x: what made x is computed in the same pass only if it is used once
    rounded = jnp.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded)
    return lax.bitcast_convert_type(rounded.astype(jnp.uint16), jnp.bfloat16)


@_to_bfloat16.defjvp
def _to_bfloat16_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return _to_bfloat16(*primals), tangents[0].astype(jnp.bfloat16)


def operand(x: jax.Array, options: Options) -> jax.Array:
    """Casts once per call, not per tile, unless 16-bit products are wanted."""
    return x if options.is_narrow else upcast(x)


def upcast(x: jax.Array) -> jax.Array:
    """Casts to the accumulator type."""
    return x.astype(row_dtype(x))


def row_dtype(x: jax.Array) -> Any:
    """Returns the accumulator type."""
    return jnp.promote_types(x.dtype, jnp.float32)


def scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Multiplies by a factor in the accumulator type and keeps the type of ``x``."""
    return narrowed(x * scale, x.dtype)


def rows_first(x: jax.Array) -> jax.Array:
    """Swaps heads and rows, ``[B, N, S, D]`` and ``[B, S, N, D]``; of what a caller swapped nothing is left to do."""
    return jnp.swapaxes(x, 1, 2)


def pad_rows(x: jax.Array, tile: int, axis: int = 2) -> jax.Array:
    """Appends zeros along an axis up to a whole number of tiles, at least one."""
    length = x.shape[axis]
    missing = max(1, -(-length // tile)) * tile - length
    return jnp.pad(x, [(0, missing if n == axis else 0) for n in range(x.ndim)])
