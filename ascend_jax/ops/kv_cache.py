"""Keys and values of the inference operators: pages, int8 caches, shared prefixes, padding on the left.

Each function turns what the operator is given into plain [B, N, S, D], the layout that the kernel takes.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.ops.attention_layout import refuse
from ascend_jax.runtime.codes import Code

__all__ = ["check_pages", "dequantise", "gather_pages", "gather_scales", "left_aligned", "page_layout"]

MAX_BLOCK = 512
_NZ_ROW_BYTES = 32


def page_layout(name: str, cache: Any, block_size: int, heads: int, dim: int) -> str:
    """Check a page pool and return its layout: "BSH" [blocks, bs, H], "BNSD" [blocks, N, bs, D] or "NZ" (five axes).

    Raises:
      ParameterError: 561002 for a block size or a shape that the operator refuses.
    """
    step = 32 if cache.dtype == jnp.int8 else 16
    if not step <= block_size <= MAX_BLOCK or block_size % step:
        rule = f"must be a multiple of {step} for {cache.dtype}, at most {MAX_BLOCK}; 128 is the usual size"
        raise refuse("block_size", block_size, rule, Code.INNER_TILING)
    column = _NZ_ROW_BYTES // cache.dtype.itemsize
    shapes = {
        "BSH": (block_size, heads * dim),
        "BNSD": (heads, block_size, dim),
        "NZ": (heads, dim // column, block_size, column),
    }
    for layout, shape in shapes.items():
        if cache.shape[0] and cache.shape[1:] == shape:
            return layout
    known = ", ".join(f"[blocks, {', '.join(map(str, shape))}]" for shape in shapes.values())
    rule = f"a page pool must be one of {known}, with at least one block"
    raise refuse(f"{name}.shape", list(cache.shape), rule, Code.INNER_TILING)


def gather_pages(name: str, cache: jax.Array, table: Any, lengths: Any, block_size: int, heads: int) -> jax.Array:
    """Return the rows that the block table names: ``[B, N, pages * block_size, D]``.

    Entries past ``ceil(length / block_size)`` are ignored, whatever they hold; their rows are 0. A page number that is
    needed and does not exist is refused; where the table is traced, its rows are NaN (0 for int8), never another page.

    Args:
      name: Of the parameter, for the refusal.
      cache: Page pool, any layout of :func:`page_layout`.
      table: int32 ``[B, pages]``.
      lengths: ``[B]``, keys of each batch row.
      block_size: Rows of a page.
      heads: Key heads.

    Raises:
      ParameterError: 561002: too few pages for a length, or a page number that does not exist.
    """
    blocks, pages = cache.shape[0], table.shape[1]
    check_pages(table, lengths, blocks, block_size)
    counts = -(-jnp.asarray(lengths) // block_size)
    is_needed = jnp.arange(pages)[None, :] < counts[:, None]
    rows = cache.at[jnp.where(is_needed, table, 0)].get(mode="clip")  # [B, pages, ...]
    axes = (1,) * (rows.ndim - 2)
    if not jnp.issubdtype(cache.dtype, jnp.integer):
        exists = ((table >= 0) & (table < blocks)).reshape(*table.shape, *axes)
        rows = jnp.where(exists, rows, jnp.nan) if isinstance(table, jax.core.Tracer) else rows
    rows = jnp.where(is_needed.reshape(*table.shape, *axes), rows, 0)
    batch = table.shape[0]
    if rows.ndim == 4:  # [B, pages, bs, H]
        return rows.reshape(batch, pages * block_size, heads, -1).swapaxes(1, 2)
    if rows.ndim == 6:  # NZ [B, pages, N, D / c, bs, c]
        rows = rows.transpose(0, 1, 2, 4, 3, 5).reshape(batch, pages, heads, block_size, -1)
    return rows.swapaxes(1, 2).reshape(batch, heads, pages * block_size, -1)


def gather_scales(scales: jax.Array, table: Any, lengths: Any, block_size: int) -> jax.Array:
    """Return quantisation numbers that lie in pages, ``[blocks, (N,) bs]``, as ``[B, N or 1, S, 1]``."""
    heads = 1 if scales.ndim == 2 else scales.shape[1]
    pool = scales.reshape(scales.shape[0], heads, block_size, 1)
    return gather_pages("antiquant_scale", pool, table, lengths, block_size, heads)


def check_pages(table: Any, lengths: Any, blocks: int, block_size: int) -> None:
    """Check the pages that are needed; of traced numbers nothing is known, so nothing is refused.

    Raises:
      ParameterError: 561002: too few pages for a length, or a page number that does not exist.
    """
    if isinstance(table, jax.core.Tracer) or isinstance(lengths, jax.core.Tracer):
        return
    table, counts = np.asarray(table), -(-np.asarray(lengths) // block_size)
    is_needed = np.arange(table.shape[1])[None, :] < counts[:, None]
    if (counts > table.shape[1]).any():
        row = int(np.argmax(counts))
        rule = f"batch row {row} needs {counts[row]} pages"
        raise refuse("block_table.shape", list(table.shape), rule, Code.INNER_TILING)
    wrong = is_needed & ((table < 0) | (table >= blocks))
    if wrong.any():
        row, page = (int(x) for x in np.argwhere(wrong)[0])
        rule = f"there are pages 0 to {blocks - 1}; this one is within the length of its row"
        raise refuse(f"block_table[{row}, {page}]", int(table[row, page]), rule, Code.INNER_TILING)


def dequantise(name: str, x: jax.Array, scale: Any, offset: Any, mode: int, dtype: Any) -> jax.Array:
    """Return ``(x + offset) * scale`` of an int8 ``[B, N, S, D]``: the offset is added first.

    Args:
      name: "key" or "value", for the refusal.
      x: int8 keys or values.
      scale: One number (mode 0), [N, D], [1, N, D] or [N * D] (mode 0, per channel), [B, S] (mode 1, per token), [N]
        (mode 2, per head), [B, N, S] (mode 3, per token and head); 4 and 5 are 1 and 3 from pages, gathered before.
      offset: Shaped like scale, or None for 0.
      mode: Antiquantisation mode.
      dtype: Of the result; the arithmetic is float32.

    Raises:
      ParameterError: 161001 without a scale, 161002 for a mode or shape that does not fit.
    """
    if scale is None:
        raise refuse(f"{name}_antiquant_scale", None, "int8 keys and values need one", Code.PARAM_NULLPTR)
    if mode not in range(6):
        raise refuse(f"{name}_antiquant_mode", mode, "must be 0 to 5")
    batch, heads, length, dim = x.shape
    by_mode: dict[int, dict[tuple[int, ...], tuple[int, ...]]] = {
        0: {(1,): (1, 1, 1, 1), (heads, dim): (1, heads, 1, dim), (1, heads, dim): (1, heads, 1, dim),
            (heads * dim,): (1, heads, 1, dim), (heads, 1, dim): (1, heads, 1, dim)},
        1: {(batch, length): (batch, 1, length, 1), (1, batch, length): (batch, 1, length, 1)},
        2: {(heads,): (1, heads, 1, 1), (1, heads): (1, heads, 1, 1)},
        3: {(batch, heads, length): (batch, heads, length, 1), (1, batch, heads, length): (batch, heads, length, 1)},
        4: {(batch, 1, length, 1): (batch, 1, length, 1)},
        5: {(batch, heads, length, 1): (batch, heads, length, 1)},
    }  # fmt: skip
    shapes = by_mode[mode]
    if scale.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise refuse(f"{name}_antiquant_scale.shape", list(scale.shape), f"must be {wanted} in mode {mode}")
    if offset is not None and offset.shape != scale.shape:
        rule = f"must be {list(scale.shape)}, that of the scale"
        raise refuse(f"{name}_antiquant_offset.shape", list(offset.shape), rule)
    factor = scale.astype(jnp.float32).reshape(shapes[scale.shape])
    shift = 0 if offset is None else offset.astype(jnp.float32).reshape(shapes[scale.shape])
    return ((x.astype(jnp.float32) + shift) * factor).astype(dtype)


def left_aligned(x: jax.Array, padding: Any, lengths: Any) -> jax.Array:
    """Return ``[B, N, S, D]`` whose rows sit against the right edge, less ``padding``, moved to the left edge.

    Row i of the result is row ``S - padding - length + i``; what lies past the length is unspecified.
    """
    total = x.shape[2]
    start = total - jnp.asarray(padding).reshape(-1) - jnp.asarray(lengths)
    at = (start[:, None] + jnp.arange(total)[None, :]).clip(0, total - 1)
    return jnp.take_along_axis(x, at[:, None, :, None], axis=2)
