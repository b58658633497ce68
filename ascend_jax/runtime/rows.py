"""Reading and changing small integer tables: no scatter where a slice will do, as XLA's CPU scatter is slow."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Number = int | jax.Array


def get_row(table: jax.Array, row: Number) -> jax.Array:
    """Return ``table[row]`` for a row number in range."""
    return lax.dynamic_index_in_dim(table, row, 0, keepdims=False, allow_negative_indices=False)


def put_row(table: jax.Array, row: Number, value: jax.Array) -> jax.Array:
    """Return ``table`` with ``value`` at ``row``, which must be in range."""
    return lax.dynamic_update_index_in_dim(table, value, row, 0, allow_negative_indices=False)


def get_rows(table: jax.Array, rows: jax.Array) -> jax.Array:
    """Return ``table[rows]`` for row numbers in range, without the checks that indexing adds."""
    return table.at[rows].get(mode="promise_in_bounds")


def put_rows(table: jax.Array, rows: jax.Array, values: jax.Array) -> jax.Array:
    """Return ``table`` with ``values`` at ``rows``, which must be in range."""
    return table.at[rows].set(values, mode="promise_in_bounds")


def put_if(is_wanted: jax.Array, table: jax.Array, row: Number, value: jax.Array) -> jax.Array:
    """Return ``table`` with ``value`` at ``row`` if it is wanted."""
    return put_row(table, row, jnp.where(is_wanted, value, get_row(table, row)))


def remembered(table: jax.Array, row: jax.Array, is_wanted: jax.Array) -> jax.Array:
    """Return a table of the latest rows with one more, if wanted: its last row counts them, oldest ones go."""
    rows, index = table.shape[0] - 1, jnp.arange(table.shape[0])[:, None]
    total = table[rows, 0]
    header = jnp.where(jnp.arange(table.shape[1]) == 0, total + jnp.where(is_wanted, 1, 0), 0)
    return jnp.where(index == rows, header, jnp.where((index == total % rows) & is_wanted, row, table))


def latest(table: np.ndarray) -> np.ndarray:
    """Return what :func:`remembered` has kept, oldest first."""
    rows, total = len(table) - 1, int(table[-1, 0])
    return table[np.arange(max(0, total - rows), total) % rows]


def with_entries(table: jax.Array, entries: Mapping[Any, Number]) -> jax.Array:
    """Return ``table`` with some entries of its last axis replaced; keys are static, values broadcast."""
    columns = [
        jnp.broadcast_to(jnp.asarray(entries[i], table.dtype), table.shape[:-1]) if i in entries else table[..., i]
        for i in range(table.shape[-1])
    ]
    return jnp.stack(columns, axis=-1)


def get_lane_rows(tables: jax.Array, rows: jax.Array) -> jax.Array:
    """Return ``tables[b, rows[..., b]]`` for every lane b, [..., B, columns] of [B, N, columns]; one serves all."""
    flat = tables.reshape(-1, tables.shape[-1])
    return _get(flat, _flat(tables, rows))


def get_lane_entries(tables: jax.Array, rows: jax.Array, column: int) -> jax.Array:
    """Return ``tables[b, rows[..., b], column]`` for every lane b, [..., B] of [B, N, columns]."""
    return _get(tables.reshape(-1), _flat(tables, rows) * tables.shape[-1] + column)


def put_lane_rows(tables: jax.Array, rows: jax.Array, values: jax.Array) -> jax.Array:
    """Return ``tables`` with ``tables[b, rows[b]] = values[b]`` for every lane b, [B, N, columns]."""
    flat = tables.reshape(-1, tables.shape[-1])
    changed = flat.at[_flat(tables, rows)].set(values, mode="promise_in_bounds", wrap_negative_indices=False)
    return changed.reshape(tables.shape)


def _get(table: jax.Array, rows: jax.Array) -> jax.Array:
    """Return ``table[rows]`` for row numbers that are never negative."""
    return table.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _flat(tables: jax.Array, rows: jax.Array) -> jax.Array:
    """Return row numbers in all tables one after the other; one number is looked up faster than two."""
    lanes, length, _ = tables.shape
    return rows if lanes == 1 else rows + jnp.arange(lanes, dtype=jnp.int32) * length


def part(packed: jax.Array, index: int) -> jax.Array:
    """Return ``packed[index]``; indexing takes five times as long to trace."""
    return lax.index_in_dim(packed, int(index), 0, keepdims=False)
