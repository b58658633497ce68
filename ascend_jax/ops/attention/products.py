"""Products of tiles and their operands: types, padding, and the layouts that XLA multiplies fast."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.scoring import Options

__all__ = ["dot", "dot_keys", "narrowed", "operand", "round_to", "row_dtype", "scaled", "upcast"]


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
