"""The exact engine: runs steps until every lane has reached its goal or its limit.

Inside, lanes are an explicit axis, last where numbers are computed and first in tables that are looked up; ``vmap``
over anything that runs the engine becomes more lanes of one loop.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.commands import row_of
from ascend_jax.runtime.coupling import Coupling
from ascend_jax.runtime.heads import Bits, Orders, Work, bit, blocks_of, fetch, work_of
from ascend_jax.runtime.lanes import Carry, Tables, goes_on
from ascend_jax.runtime.layout import UNREADY, Field, Resource, Time
from ascend_jax.runtime.loop import varying_together
from ascend_jax.runtime.rendezvous import kept_live
from ascend_jax.runtime.rows import get_lane_rows, get_rows, part
from ascend_jax.runtime.step import step

LANES = 512  # lanes of one loop: more do not fit the caches
VECTOR = 32  # lanes of a vector loop of XLA on the CPU; what is left over is computed one by one
FEW = 16  # so many lanes are faster one by one


@functools.cache
def runner(coupling: Coupling | None) -> Callable[[Orders, Tables, Carry, jax.Array], Carry]:
    """Return :func:`run` for lanes that are cards of clusters, or for lanes that have nothing to do with each other."""

    @jax.custom_batching.custom_vmap
    def run(orders: Orders, tables: Tables, carry: Carry, is_fresh: jax.Array) -> Carry:
        (orders, tables), (carry, is_fresh) = varying_together((orders, tables), (carry, is_fresh))
        with jax.numpy_rank_promotion("allow"):  # numbers of a lane meet those of its streams
            was_live, carry = carry.is_live, _begin(orders, tables, carry, is_fresh)
            carry = carry if coupling is None else kept_live(coupling, carry, was_live)
            return lax.while_loop(lambda c: c.is_live.any(), lambda c: step(orders, tables, c, coupling), carry)

    @run.def_vmap
    def run_batched(
        axis_size: int, in_batched: list, orders: Orders, tables: Tables, carry: Carry, is_fresh: jax.Array
    ) -> tuple[Carry, Any]:
        done = run_stacked(axis_size, in_batched, orders, tables, carry, is_fresh, coupling)
        return done, jax.tree.map(lambda _: True, done)

    return run


def run(orders: Orders, tables: Tables, carry: Carry, is_fresh: jax.Array) -> Carry:
    """Step until every lane has reached its goal or its limit.

    What is looked up has the lanes first, everything else last.

    Args:
      orders: All commands, for one or more lanes.
      tables: What else is read.
      carry: Its ``head`` has the rows, and how far those that are not fresh have come; ``cells`` have a trash row.
      is_fresh: bool [S, B], heads that the engine has not seen yet.
    """
    return runner(None)(orders, tables, carry, is_fresh)


def run_stacked(
    axis_size: int,
    in_batched: Sequence,
    orders: Orders,
    tables: Tables,
    carry: Carry,
    is_fresh: jax.Array,
    coupling: Coupling | None = None,
) -> Carry:
    """Return :func:`run` of many lanes; those leaves that ``in_batched`` says have a leading axis of ``axis_size``."""
    inner = carry.numbers.shape[-1]
    lanes = axis_size * inner
    orders = Orders(*map(functools.partial(_spread, axis_size, inner), orders, in_batched[0]))
    own = [tables, carry, is_fresh]
    own = _each(lambda leaf, axis, batched: _join(leaf, axis, axis_size, batched), own, list(in_batched[1:]))
    unit = 1 if coupling is None else coupling.cards  # lanes that stay together
    blocks, more = _blocks_of(lanes, unit)
    if more:
        orders = Orders(*(leaf if leaf.shape[0] == 1 else _repeat(leaf, 0, unit, more) for leaf in orders))
        own = _each(lambda leaf, axis: _repeat(leaf, axis, unit, more), own)
    if blocks == 1:
        done = runner(coupling)(orders, *own)
    else:
        parts = [None if leaf.shape[0] == 1 else _split(leaf, 0, blocks) for leaf in orders]

        def block(each: tuple[list, list]) -> Carry:
            mine = (whole if part is None else part for whole, part in zip(orders, each[0], strict=True))
            return runner(coupling)(Orders(*mine), *each[1])

        done = lax.map(block, (parts, _each(lambda leaf, axis: _split(leaf, axis, blocks), own)))
        done = _each(_rejoin, done)
    if more:
        done = _each(lambda leaf, axis: lax.slice_in_dim(leaf, 0, lanes, axis=axis), done)
    return _each(lambda leaf, axis: _split(leaf, axis, axis_size), done)


def _blocks_of(lanes: int, unit: int) -> tuple[int, int]:
    """Return (how many loops run so many lanes one after the other, lanes to add so that each is whole vectors).

    >>> _blocks_of(1024, 1), _blocks_of(1021, 1), _blocks_of(17, 1), _blocks_of(8, 1), _blocks_of(24, 8)
    ((2, 0), (2, 3), (1, 15), (1, 0), (1, 8))
    """
    units = lanes // unit
    blocks = -(-units // max(LANES // unit, 1))
    step = VECTOR // math.gcd(VECTOR, unit) if lanes > FEW and unit <= VECTOR else 1
    each = -(-units // (blocks * step)) * step
    return blocks, blocks * each * unit - lanes


def _repeat(leaf: jax.Array, axis: int, unit: int, more: int) -> jax.Array:
    """Return ``leaf`` with ``more`` lanes, which do what the last unit of lanes does."""
    axis %= leaf.ndim
    last = lax.slice_in_dim(leaf, leaf.shape[axis] - unit, leaf.shape[axis], axis=axis)
    return lax.concatenate([leaf, *[last] * (more // unit)], axis)


def _spread(size: int, inner: int, leaf: jax.Array, is_batched: bool) -> jax.Array:
    """Return orders for all lanes of a batch; a table that serves all of them stays one."""
    if not is_batched and leaf.shape[0] == 1:
        return leaf
    leaf = leaf if is_batched else leaf[None]
    return jnp.broadcast_to(leaf, (size, inner, *leaf.shape[2:])).reshape(-1, *leaf.shape[2:])


def _each(function: Callable[..., jax.Array], tree: Any, *others: Any) -> Any:
    """Return ``function(leaf, axis of the lanes, ...)`` of every leaf of tables and carry."""
    names = {"times", "cells"}  # looked up row by row; where numbers are computed the lanes are last

    def one(path: tuple, leaf: jax.Array, *other: Any) -> jax.Array:
        return function(leaf, 0 if getattr(path[-1], "name", None) in names else -1, *other)

    return jax.tree_util.tree_map_with_path(one, tree, *others)


def _join(leaf: jax.Array, axis: int, size: int, is_batched: bool) -> jax.Array:
    """Turn a leading batch axis into lanes."""
    return _rejoin(leaf if is_batched else jnp.broadcast_to(leaf, (size, *leaf.shape)), axis)


def _rejoin(leaf: jax.Array, axis: int) -> jax.Array:
    axis %= leaf.ndim - 1
    leaf = jnp.moveaxis(leaf, 0, axis)
    return leaf.reshape(*leaf.shape[:axis], -1, *leaf.shape[axis + 2 :])


def _split(leaf: jax.Array, axis: int, size: int) -> jax.Array:
    """Turn lanes into a leading batch axis of ``size``."""
    axis %= leaf.ndim
    shape = (*leaf.shape[:axis], size, -1, *leaf.shape[axis + 1 :])
    return jnp.moveaxis(leaf.reshape(shape), axis, 0)


def capacity_of(chip: ChipSpec) -> jax.Array:
    """Return how many units of each resource a card has, int32 [R]."""
    cores = [chip["cube_cores"], chip["vector_cores"]]
    engines = [jnp.ones_like(cores[0])] * (len(Resource) - len(cores))
    return jnp.stack(cores + engines).astype(jnp.int32)


def row_to_await(fields: jax.Array, sequence: jax.Array) -> jax.Array:
    """Return the rows of commands to wait for; the trash row, which is done, for NONE and for forgotten ones."""
    rows = fields.shape[0] - 1
    row = jnp.where(sequence < 0, rows, row_of(fields, sequence))
    return jnp.where(get_rows(fields[:, Field.SEQUENCE], row) == sequence, row, rows)


def orders_of(fields: jax.Array) -> Orders:
    """Return the engine's own tables of a command table, for one lane."""
    block = Instant(fields[:, Field.BLOCK_HI], fields[:, Field.BLOCK_LO])
    return Orders(work_of(fields, row_to_await(fields, fields[:, Field.DEPENDS]))[None], blocks_of(block)[None])


def _begin(orders: Orders, tables: Tables, carry: Carry, is_fresh: jax.Array) -> Carry:
    """Look up the heads, and which lanes have anything to do."""
    head = carry.head
    words, counts = fetch(orders, carry.times, carry.cells, head.row, carry.now)
    seen = get_lane_rows(carry.times, head.row)
    columns = (Work.READY_HI, Time.READY_HI), (Work.READY_LO, Time.READY_LO)
    ready = [jnp.where(is_fresh, part(words, word), seen[..., column]) for word, column in columns]
    is_task = bit(part(words, Work.BITS), Bits.TASK) == 1
    head = head._replace(
        words=jnp.concatenate([words[: Work.READY_HI], jnp.stack(ready), words[Work.FIRST :]]),
        key=jnp.where(is_fresh, UNREADY, head.key),
        counts=jnp.where(is_fresh | ~is_task, counts, head.counts),
    )
    is_over = is_task & (head.counts == 0)  # beside the goal of the run before
    carry = carry._replace(head=head)
    return carry.with_live(goes_on(tables, carry, is_over.any(0)))
