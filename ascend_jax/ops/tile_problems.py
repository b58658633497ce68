"""What a caller asks a tile for: operator, shape and dtype, checked and turned into the shape of its time model."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ascend_jax.ops.attention.tiling import AttentionShape
from ascend_jax.ops.timing import attention
from ascend_jax.ops.timing.matmul import MatmulShape
from ascend_jax.ops.timing.targets import DTYPE_BYTES, INT32_MAX
from ascend_jax.ops.timing.vector import OPERATORS, VectorShape


def whole_numbers(what: str, sizes: Any) -> tuple[int, ...]:
    """The sizes as ints.

    Raises:
        ValueError: No sequence, or one with an element that is no whole number or above int32.
    """
    if not isinstance(sizes, Sequence | np.ndarray) or isinstance(sizes, str):
        raise ValueError(f"{what}: a sequence of whole numbers")
    for size in sizes:
        is_number = isinstance(size, int | float | np.integer | np.floating) and not isinstance(size, bool)
        if not is_number or not np.isfinite(size) or size != int(size) or abs(size) > INT32_MAX:
            raise ValueError(f"{what}: {size!r} is no whole number up to {INT32_MAX}")
    return tuple(int(size) for size in sizes)


def input_shapes(operator: str, full: Any) -> list[tuple[int, ...]]:
    """Shapes of the operator's inputs, as a profile lists them."""
    if isinstance(full, MatmulShape):
        batch = (full.batch,) if full.batch > 1 else ()
        return [(*batch, full.m, full.k), (*batch, full.k, full.n)]
    if isinstance(full, AttentionShape):
        keys = (full.batch, full.kv_heads, full.kv_len)
        return [(full.batch, full.heads, full.q_len, full.dim), (*keys, full.dim), (*keys, full.value_dim)]
    return [(full.rows, full.columns)] * max(full.rule.reads, 1)


def operators() -> tuple[str, ...]:
    """Names that `choose` takes."""
    return ("matmul", "flash_attention", "flash_attention_backward", *OPERATORS)


def problem(operator: str, shape: Any, dtype: str) -> Any:
    """The shape as the model of its operator takes it.

    Raises:
        ValueError: Unknown operator or dtype, or a shape that is not one of the operator.
    """
    if operator not in operators():
        raise ValueError(f"operator {operator!r} has no tile model; known: {', '.join(operators())}")
    size = dtype_bytes(dtype)
    if isinstance(shape, MatmulShape | AttentionShape | VectorShape):
        return _matching(operator, shape, dtype, size)
    names = {"matmul": "m, n, k[, batch]"}.get(operator, "batch, heads, q_len, kv_len, dim")
    names = names if operator not in OPERATORS else "rows, columns"
    sizes = whole_numbers(f"shape {shape}", shape)
    lengths = {"matmul": (3, 4)}.get(operator, (2,) if operator in OPERATORS else (5,))
    if len(sizes) not in lengths:
        raise ValueError(f"shape {sizes}: {operator} takes ({names})")
    if operator == "matmul":
        m, n, k, *batch = sizes
        return MatmulShape(m, n, k, size, *batch[:1])
    if operator in OPERATORS:
        return VectorShape(operator, sizes[0], sizes[1], size)
    b, heads, q_len, kv_len, dim = sizes
    return AttentionShape(b, heads, heads, q_len, kv_len, dim, dim, size)


def _matching(operator: str, shape: Any, dtype: str, size: int) -> Any:
    """A shape object, if it is one of the operator and the dtype."""
    wanted = MatmulShape if operator == "matmul" else VectorShape if operator in OPERATORS else AttentionShape
    if not isinstance(shape, wanted) or getattr(shape, "operator", operator) != operator:
        raise ValueError(f"shape {shape}: {operator} takes a {wanted.__name__} of its own")
    if shape.dtype_bytes != size:
        raise ValueError(f"shape has dtype_bytes={shape.dtype_bytes}, dtype {dtype} has {size}; give both alike")
    return shape


def compulsory_bytes(operator: str, shape: Any, dtype: str) -> float:
    """Bytes of all inputs and outputs, each once."""
    full, size = problem(operator, shape, dtype), dtype_bytes(dtype)
    if isinstance(full, MatmulShape):
        return float(full.batch) * (size * (full.m * full.k + full.k * full.n) + full.output_bytes * full.m * full.n)
    if isinstance(full, VectorShape):
        return float(full.read_bytes + full.written_bytes)
    queries = full.batch * full.heads * full.q_len * (full.dim + full.value_dim)
    keys = full.batch * full.kv_heads * full.kv_len * (full.dim + full.value_dim)
    return float(size * (queries + keys)) * (2.0 if operator == "flash_attention_backward" else 1.0)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element.

    Raises:
        ValueError: An unknown dtype.
    """
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype {dtype!r}: one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


def spelled(full: Any) -> str:
    """A shape in words, for messages."""
    return " ".join(f"{field.name}={getattr(full, field.name)}" for field in dataclasses.fields(full))


def operations(operator: str, full: Any) -> float:
    """Floating-point operations of a launch."""
    if operator == "flash_attention":
        return attention.forward_flop(full)
    if operator == "flash_attention_backward":
        return 2.5 * attention.forward_flop(full)
    return float(full.flop)
