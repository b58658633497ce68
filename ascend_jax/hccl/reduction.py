"""Reduction of what all ranks hold, in an order that does not depend on the carrier.

Additions of floats depend on their order, and a real ring adds in another order than a mesh. So the order is an
argument: ``rank`` (0, 1, 2, ...), ``ring`` (piece c of the data starts at rank c + 1 and goes round) or ``halving``
(neighbours first, then pairs of pairs). Every step rounds to the data type, as reducing copies do on a card.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.hccl.datatypes import DataType, ReduceOp, check_reduction, data_type

Combine = Callable[[jax.Array, jax.Array], jax.Array]
ORDERS = ("rank", "ring", "halving")


def reduce_ranks(values: jax.Array, op: ReduceOp, order: str = "rank") -> jax.Array:
    """Return the reduction over the leading axis.

    Args:
      values: [ranks, ...].
      op: Operation.
      order: One of ORDERS.

    Raises:
      ValueError: No such order.
    """
    if order not in ORDERS:
        raise ValueError(f"order = {order!r}: must be one of {', '.join(ORDERS)}")
    return _fold(values, order, lambda a, b: _combine(a, b, op))


def _combine(a: jax.Array, b: jax.Array, op: ReduceOp) -> jax.Array:
    match op:
        case ReduceOp.SUM:
            return a + b
        case ReduceOp.PROD:
            return a * b
        case ReduceOp.MAX:
            return jnp.maximum(a, b)
    return jnp.minimum(a, b)


def _fold(values: jax.Array, order: str, combine: Combine) -> jax.Array:
    ranks = values.shape[0]
    if order == "halving":
        return _halve(values, combine)
    if order == "ring" and ranks > 1:
        flat = values.reshape(ranks, -1)
        size = flat.shape[1]
        piece = -(-size // ranks)  # elements of one piece; the last one may be shorter
        at = np.minimum(np.arange(size) // max(piece, 1), ranks - 1)
        turn = (np.arange(ranks)[:, None] + 1 + at) % ranks
        values = jnp.take_along_axis(flat, jnp.asarray(turn), axis=0).reshape(values.shape)
    # the loop stores every partial result in the data type; fused additions would keep more digits
    return lax.fori_loop(1, ranks, lambda rank, total: combine(total, values[rank]), values[0])


def _halve(values: jax.Array, combine: Combine) -> jax.Array:
    while values.shape[0] > 1:
        pairs = values.shape[0] // 2
        merged = lax.map(
            lambda pair: combine(pair[0], pair[1]), values[: 2 * pairs].reshape(pairs, 2, *values.shape[1:])
        )
        values = jnp.concatenate([merged, values[2 * pairs :]])
    return values[0]


def reduce_bytes(buffers: jax.Array, dtype: DataType, op: ReduceOp, order: str = "rank") -> jax.Array:
    """Return the reduction of raw bytes, uint8 [ranks, nbytes] to uint8 [nbytes].

    64-bit integers are computed as two words, so that they are exact without JAX's 64-bit mode.

    Raises:
      HcclError: As :func:`ascend_jax.hccl.datatypes.check_reduction`.
    """
    dtype = data_type(int(dtype))
    check_reduction(dtype, op)
    if dtype == DataType.INT64:
        words = lax.bitcast_convert_type(buffers.reshape(buffers.shape[0], -1, 2, 4), jnp.uint32)
        total = _fold(jnp.moveaxis(words, -1, 1), "rank" if order == "ring" else order, _WIDE[op])
        return lax.bitcast_convert_type(jnp.moveaxis(total, 0, -1), jnp.uint8).reshape(-1)
    kind = _DTYPES[dtype]
    size = jnp.dtype(kind).itemsize
    cells = buffers.reshape(buffers.shape[0], -1, size) if size > 1 else buffers
    total = reduce_ranks(lax.bitcast_convert_type(cells, kind), op, order)
    return lax.bitcast_convert_type(total, jnp.uint8).reshape(-1)


_DTYPES = {
    DataType.INT8: "int8",
    DataType.INT16: "int16",
    DataType.INT32: "int32",
    DataType.FP16: "float16",
    DataType.FP32: "float32",
    DataType.BFP16: "bfloat16",
}


def _wide_sum(a: jax.Array, b: jax.Array) -> jax.Array:
    low = a[0] + b[0]
    return jnp.stack([low, a[1] + b[1] + (low < a[0]).astype(jnp.uint32)])


def _wide_product(a: jax.Array, b: jax.Array) -> jax.Array:
    half = 0xFFFF
    a0, a1, b0, b1 = a[0] & half, a[0] >> 16, b[0] & half, b[0] >> 16
    middle = (a0 * b0 >> 16) + (a1 * b0 & half) + (a0 * b1 & half)
    carry = (a1 * b0 >> 16) + (a0 * b1 >> 16) + (middle >> 16)
    return jnp.stack([a[0] * b[0], a1 * b1 + carry + a[0] * b[1] + a[1] * b[0]])


def _wide_pick(a: jax.Array, b: jax.Array, is_greatest: bool) -> jax.Array:
    high_a, high_b = (lax.bitcast_convert_type(x[1], jnp.int32) for x in (a, b))
    is_less = (high_a < high_b) | ((high_a == high_b) & (a[0] < b[0]))
    return jnp.where(is_less[None] == is_greatest, b, a)


_WIDE = {
    ReduceOp.SUM: _wide_sum,
    ReduceOp.PROD: _wide_product,
    ReduceOp.MAX: lambda a, b: _wide_pick(a, b, True),
    ReduceOp.MIN: lambda a, b: _wide_pick(a, b, False),
}
