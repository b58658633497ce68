"""Products of tiles and their operands: types, padding, and the layouts that XLA multiplies fast."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.ops.attention.scoring import Options

__all__ = ["dot", "narrowed", "operand", "pad_rows", "round_to", "row_dtype", "rows_first", "scaled", "upcast"]


def round_to(x: jax.Array, dtype: str | None) -> jax.Array:
    """Rounds values to a narrower type, as the device stores them."""
    return x if dtype is None else x.astype(dtype).astype(x.dtype)


def dot(a: jax.Array, b: jax.Array, options: Options) -> jax.Array:
    """Multiplies in the narrower type of the two and adds up in the accumulator type.

    A transposed right side costs XLA:CPU nothing, a transposed left side up to three times as long.
    """
    narrow = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
    total = jnp.promote_types(narrow, jnp.float32)
    a, b = narrowed(a, narrow), narrowed(b, narrow)
    return jnp.dot(a, b, precision=options.precision, preferred_element_type=total)


def narrowed(x: jax.Array, dtype: Any) -> jax.Array:
    """Rounds to the nearest value of a narrower type, to even between two; differentiable like a conversion."""
    return _to_bfloat16(x) if x.dtype == jnp.float32 and dtype == jnp.bfloat16 else x.astype(dtype)


@jax.custom_jvp
def _to_bfloat16(x: jax.Array) -> jax.Array:
    """Rounds float32 by integers: XLA:CPU takes half the time for them that it takes for the conversion."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    bits = jnp.where(jnp.isnan(x), 0x7FC0, bits)
    return lax.bitcast_convert_type(bits.astype(jnp.uint16), jnp.bfloat16)


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
    return (x * scale).astype(x.dtype)


def rows_first(x: jax.Array) -> jax.Array:
    """Swaps heads and rows, ``[B, N, S, D]`` and ``[B, S, N, D]``; of what a caller swapped nothing is left to do."""
    return jnp.swapaxes(x, 1, 2)


def pad_rows(x: jax.Array, tile: int, axis: int = 2) -> jax.Array:
    """Appends zeros along an axis up to a whole number of tiles, at least one."""
    length = x.shape[axis]
    missing = max(1, -(-length // tile)) * tile - length
    return jnp.pad(x, [(0, missing if n == axis else 0) for n in range(x.ndim)])
