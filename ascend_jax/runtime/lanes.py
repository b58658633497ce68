"""What a run of the exact engine reads and changes: arrays over streams and lanes, ``[S, B]``, and tables per lane."""

import enum
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime.clock import Instant, is_before
from ascend_jax.runtime.heads import Head
from ascend_jax.runtime.layout import NONE
from ascend_jax.runtime.rows import part

NOBODY = (1 << 30) - 1  # no turn: later than all, and with all bits of a slot
NEVER = 2**31 - 1  # no time: a wait of less than LIMB counts ns, from LIMB on it counts whole limbs


class Turn(enum.IntEnum):
    """What may happen to a head, in the order in which it does; a turn is one of these + the slot of the stream."""

    OVER = 0
    MARK = 1 << 16
    LATE = 2 << 16  # its deadline has passed


def slot_of(turn: jax.Array) -> jax.Array:
    """Return the slot of a turn; no slot's number for NOBODY."""
    return turn & (Turn.MARK - 1)


def is_late(turn: jax.Array) -> jax.Array:
    """Return whether a turn is that of a head whose deadline has passed."""
    return turn & ~(Turn.MARK - 1) == Turn.LATE


class Tables(NamedTuple):
    """What a run reads only. S streams, B lanes."""

    capacity: jax.Array  # int32 [R, B]
    stops: jax.Array  # bool [S, B]: the stream takes no more commands after a failure
    is_goal: jax.Array  # bool [S, B]: streams that must become empty
    has_goal: jax.Array  # bool [B]; without one the run goes on to its limit
    limit: Instant  # [B], time that must not be passed


class Lane(enum.IntEnum):
    """Numbers of a whole lane that a run changes: rows of one array, which XLA makes in one kernel if it has 8."""

    NOW_HI = 0
    NOW_LO = 1
    INSTANTS = 2  # moments at which something happened
    RETIRED = 3  # commands that have left their streams
    LOST = 4  # row of the command that took the device with it, N if none
    AWAIT_ROW = 5  # of a command that must finish, N if none or finished
    AWAIT_CELL = 6  # cell that must reach a count, NONE if none or reached
    STATE = 7


class State(enum.IntEnum):
    """What becomes of a lane."""

    OVER = 0
    LIVE = 1  # it goes on
    STUCK = 2  # the goal can never be reached


class Carry(NamedTuple):
    """What a run changes."""

    head: Head
    numbers: jax.Array  # int32 [len(Lane), B]
    await_count: jax.Array  # int32 [B], of the cell
    failed: jax.Array  # int32 [S, B]: row of the stream's first failed command, N if none
    times: jax.Array  # int32 [B, N + 1, len(Time)]
    cells: jax.Array  # int32 [B, C, 2]

    def number(self, which: Lane) -> jax.Array:
        """Return one number of all lanes, int32 [B]."""
        return part(self.numbers, which)

    @property
    def now(self) -> Instant:
        """The time in each lane, [B]."""
        return Instant(self.number(Lane.NOW_HI), self.number(Lane.NOW_LO))

    @property
    def is_live(self) -> jax.Array:
        """Which lanes go on, bool [B]."""
        return self.number(Lane.STATE) == State.LIVE

    @property
    def is_stuck(self) -> jax.Array:
        """In which lanes the goal can never be reached, bool [B]."""
        return self.number(Lane.STATE) == State.STUCK

    def with_live(self, is_live: jax.Array) -> "Carry":
        """Return the carry in which these lanes, bool [B], go on; what is stuck stays so."""
        state = jnp.where(self.is_stuck, State.STUCK, jnp.where(is_live, State.LIVE, State.OVER))
        return self.with_numbers({Lane.STATE: state})

    def with_numbers(self, changes: Mapping[Lane, jax.Array]) -> "Carry":
        """Return the carry with some numbers replaced, each int32 [B]."""
        rows = [
            lax.expand_dims(changes[which], (0,))
            if which in changes
            else lax.slice_in_dim(self.numbers, which, which + 1)
            for which in Lane
        ]
        return self._replace(numbers=lax.concatenate(rows, 0))


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
    return tables.has_goal & is_empty & (carry.number(Lane.AWAIT_ROW) == rows) & (carry.number(Lane.AWAIT_CELL) == NONE)


def goes_on(tables: Tables, carry: Carry, has_more: jax.Array) -> jax.Array:
    """Return which lanes have neither reached their goal nor run out of time, bool [B]."""
    in_time = is_before(carry.now, tables.limit) | has_more
    is_lost = carry.number(Lane.LOST) != carry.times.shape[-2] - 1
    return ~is_reached(tables, carry) & in_time & ~is_lost & ~carry.is_stuck
