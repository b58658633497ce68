"""What a run of the exact engine reads and changes: arrays over streams and lanes, ``[S, B]``, and tables per lane."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ascend_jax.runtime.clock import Instant, is_before
from ascend_jax.runtime.heads import Head
from ascend_jax.runtime.layout import NONE

NOBODY = 1 << 30  # no slot
NEVER = 2**31 - 1  # no time: a wait of less than LIMB counts ns, from LIMB on it counts whole limbs


class Tables(NamedTuple):
    """What a run reads only. S streams, B lanes."""

    capacity: jax.Array  # int32 [R, B]
    stops: jax.Array  # bool [S, B]: the stream takes no more commands after a failure
    is_goal: jax.Array  # bool [S, B]: streams that must become empty
    has_goal: jax.Array  # bool [B]; without one the run goes on to its limit
    limit: Instant  # [B], time that must not be passed


class Carry(NamedTuple):
    """What a run changes."""

    head: Head
    now: Instant  # [B]
    instants: jax.Array  # int32 [B], moments at which something happened
    retired: jax.Array  # int32 [B], commands that have left their streams
    failed: jax.Array  # int32 [S, B]: row of the stream's first failed command, N if none
    lost: jax.Array  # int32 [B]: row of the command that took the device with it, N if none
    await_row: jax.Array  # int32 [B]: row of a command that must finish, N if none or finished
    await_cell: jax.Array  # int32 [B]: cell that must reach a count, NONE if none or reached
    await_count: jax.Array  # int32 [B]
    is_live: jax.Array  # bool [B]
    is_stuck: jax.Array  # bool [B]: the goal can never be reached
    times: jax.Array  # int32 [B, N + 1, len(Time)]
    cells: jax.Array  # int32 [B, C, 2]
    steps: jax.Array  # int32


def slots_of(head: Head) -> jax.Array:
    """Return the slot numbers as a column, int32 [S, 1]."""
    return jnp.arange(head.row.shape[0], dtype=jnp.int32)[:, None]


def is_present(carry: Carry) -> jax.Array:
    """Return which streams have a command, in lanes that go on, bool [S, B]."""
    return (carry.head.row != carry.times.shape[-2] - 1) & carry.is_live


def is_reached(tables: Tables, carry: Carry) -> jax.Array:
    """Return which lanes have what they are run for, bool [B]; never where there is no goal."""
    rows = carry.times.shape[-2] - 1
    is_empty = (~tables.is_goal | (carry.head.row == rows)).all(0)
    return tables.has_goal & is_empty & (carry.await_row == rows) & (carry.await_cell == NONE)


def goes_on(tables: Tables, carry: Carry, has_more: jax.Array) -> jax.Array:
    """Return which lanes have neither reached their goal nor run out of time, bool [B]."""
    in_time = is_before(carry.now, tables.limit) | has_more
    is_lost = carry.lost != carry.times.shape[-2] - 1
    return ~is_reached(tables, carry) & in_time & ~is_lost & ~carry.is_stuck
