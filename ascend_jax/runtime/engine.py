"""The exact engine: runs steps until every lane has reached its goal or its limit.

Inside, lanes are an explicit axis, last where numbers are computed and first in tables that are looked up; ``vmap``
over anything that runs the engine becomes more lanes of one loop.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.commands import row_of
from ascend_jax.runtime.heads import ORDERS, Bits, Head, bit, fetch, head_of, work_of
from ascend_jax.runtime.lanes import Carry, Tables, goes_on
from ascend_jax.runtime.layout import Field, Resource, Time
from ascend_jax.runtime.loop import varying_together
from ascend_jax.runtime.rows import get_rows, put_lane_rows
from ascend_jax.runtime.step import step

LANES = 512  # lanes of one loop: more do not fit the caches


@jax.custom_batching.custom_vmap
def run(tables: Tables, carry: Carry) -> Carry:
    """Step until no lane is live. Leaves with three axes have the lanes first, the others last."""
    tables, carry = varying_together(tables, carry)
    with jax.numpy_rank_promotion("allow"):  # numbers of a lane meet those of its streams
        return lax.while_loop(lambda c: c.is_live.any(), lambda c: step(tables, c), carry)


@run.def_vmap
def _run_batched(axis_size: int, in_batched: list, tables: Tables, carry: Carry) -> tuple[Carry, Any]:
    arguments = jax.tree.map(lambda x, batched: _join(x, axis_size, batched), [tables, carry], list(in_batched))
    lanes = arguments[1].is_live.shape[0]
    blocks = next(n for n in range(-(-lanes // LANES), lanes + 1) if lanes % n == 0)
    if blocks == 1:
        done = run(*arguments)
    else:
        split = jax.tree.map(lambda x: _split(x, blocks), arguments)
        done = jax.tree.map(_rejoin, lax.map(lambda each: run(*each), split))
    done = jax.tree.map(lambda x: _split(x, axis_size), done)
    return done, jax.tree.map(lambda _: True, done)


def _lane_axis(ndim: int) -> int:
    return 0 if ndim == 3 else ndim - 1


def _join(leaf: jax.Array, size: int, is_batched: bool) -> jax.Array:
    """Turn a leading batch axis into lanes."""
    if not is_batched:
        leaf = jnp.broadcast_to(leaf, (size, *leaf.shape))
    return leaf.max() if leaf.ndim == 1 else _rejoin(leaf)  # the count of steps is one for all


def _rejoin(leaf: jax.Array) -> jax.Array:
    if leaf.ndim == 1:
        return leaf.max()
    axis = _lane_axis(leaf.ndim - 1)
    leaf = jnp.moveaxis(leaf, 0, axis)
    return leaf.reshape(*leaf.shape[:axis], -1, *leaf.shape[axis + 2 :])


def _split(leaf: jax.Array, size: int) -> jax.Array:
    """Turn lanes into a leading batch axis of ``size``."""
    if leaf.ndim == 0:
        return jnp.broadcast_to(leaf, (size,))
    axis = _lane_axis(leaf.ndim)
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


def table_of(fields: jax.Array) -> jax.Array:
    """Return the engine's own table of a command table, int32 [N + 1, WORK]."""
    return work_of(fields, row_to_await(fields, fields[:, Field.DEPENDS]))


def begin(tables: Tables, carry: Carry, is_fresh: jax.Array) -> Carry:
    """Look up the heads of streams that the engine has not seen yet, and which lanes have anything to do.

    Args:
      tables: One or more lanes.
      carry: Its ``head`` has the rows, and how far the others have come; ``cells`` have a trash row.
      is_fresh: bool [S, B].
    """
    fresh = head_of(carry.head.row, *fetch(tables.work, carry.times, carry.cells, carry.head.row))
    head = Head(
        *fresh[:ORDERS],
        *(jnp.where(is_fresh, new, old) for new, old in zip(fresh[ORDERS:], carry.head[ORDERS:], strict=True)),
    )
    is_mark = bit(head.bits, Bits.TASK) == 0
    head = head._replace(counts=jnp.where(is_mark, fresh.counts, head.counts))
    carry = carry._replace(head=head, times=_stamp_ready(carry.times, carry.now, head, is_fresh))
    is_over = ~is_mark & (head.start_hi >= 0) & (head.counts == 0)  # beside the goal of the run before
    return carry._replace(is_live=goes_on(tables, carry, is_over.any(0)))


def _stamp_ready(times: jax.Array, now: Instant, head: Head, is_fresh: jax.Array) -> jax.Array:
    """Write when the new heads become ready: now, or when they are issued."""
    rows, now = times.shape[-2] - 1, Instant(now.hi[None], now.lo[None])
    is_later = (head.wake_hi > now.hi) | ((head.wake_hi == now.hi) & (head.wake_lo > now.lo))
    ready = [jnp.where(is_later, wake, here) for wake, here in zip((head.wake_hi, head.wake_lo), now, strict=True)]
    row = jnp.where(is_fresh, head.row, rows)
    limbs = jnp.stack([limb * (row != rows) for limb in ready], -1)
    return put_lane_rows(times, row, limbs, slice(Time.READY_HI, Time.READY_LO + 1))
