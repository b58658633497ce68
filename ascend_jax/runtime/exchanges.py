"""Collectives in the value plane: what cards give each other, in the order of simulated time.

All cards of a cluster walk through the same list of exchanges. Before each one, every card applies what its own memory
is due up to that instant; then those that take part read what they send. Results lie in the shadow bytes until the
collective ends, like those of any command.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime import bytes as hbm
from ascend_jax.runtime.coupling import AXIS, seats
from ascend_jax.runtime.kernels import KernelSpec
from ascend_jax.runtime.layout import NONE, Effect, Field, Kind, Phase, Time
from ascend_jax.runtime.rows import get_row
from ascend_jax.runtime.state import CHUNK_BYTES, CardState

RECEIVED = 2  # operand that a collective writes; it reads 0, what it sends, and 1, what was there
_LATE = 2**31 - 1


class Started(NamedTuple):
    """The collectives that cards have started and not exchanged, int32 [C, N + 1] each, equal on all cards."""

    is_due: jax.Array  # bool
    hi: jax.Array
    lo: jax.Array
    channel: jax.Array  # of the coupling: who takes part
    number: jax.Array  # in its communicator
    kernel: jax.Array


def started(card: CardState) -> Started:
    """Return what all cards have started; under the axis of cards."""
    fields, times = card.table.fields, card.table.times
    is_due = (fields[:, Field.KIND] == Kind.COLLECTIVE) & (fields[:, Field.FAULT] == 0)
    is_due &= jnp.isin(times[:, Time.PHASE], jnp.array([Phase.RUNNING, Phase.DONE]))
    is_due &= card.table.effects < Effect.COMPUTED
    mine = (
        is_due,
        times[:, Time.START_HI],
        times[:, Time.START_LO],
        _channels(card),
        fields[:, Field.VALUE_LO],
        fields[:, Field.KERNEL],
    )
    return Started(*lax.all_gather(mine, AXIS))


def _channels(card: CardState) -> jax.Array:
    """Return the channel of each collective of this card, int32 [N + 1]; NONE of other rows."""
    coupling, fields = card.coupling, card.table.fields
    assert coupling is not None
    seat = jnp.asarray(seats(coupling))[:, lax.axis_index(AXIS)]
    seat = seat[jnp.clip(fields[:, Field.OBJECT], 0, len(coupling.firsts) - 1)]
    is_it = (fields[:, Field.KIND] == Kind.COLLECTIVE) & (seat != NONE)
    return jnp.where(is_it, seat // (coupling.depth * coupling.width), NONE)


def exchange_in_order(
    card: CardState, due: Any, memories: Any, apply_until: Callable[..., tuple[jax.Array, Any]], all_started: Started
) -> tuple[jax.Array, Any]:
    """Apply everything due, with the collectives at their places; return (effects, memories).

    Args:
      card: As it was before its effects were marked.
      due: What is due on this card, see :mod:`ascend_jax.runtime.values`.
      memories: Its bytes.
      apply_until: ``(due, position, bound, memories) -> (bound, memories)`` applies the card's own effects.
      all_started: See :func:`started`.
    """
    fields, old = card.table.fields, card.table.effects
    channel = _channels(card)
    specs = [spec for spec in card.kernels if spec.meets]
    hi, lo = _times_of(due, card.table.times)

    def step(state: tuple) -> tuple:
        is_due, position, effects, memories, _ = state
        is_last, at = ~is_due.any(), _first(all_started._replace(is_due=is_due))
        key = [get_row(column.reshape(-1), at) for column in all_started[1:]]
        limit_hi, limit_lo = (jnp.where(is_last, _LATE, limb) for limb in (key[0], 2 * key[1] + 1))
        bound = ((hi < limit_hi) | ((hi == limit_hi) & (lo < limit_lo))).sum(dtype=jnp.int32)
        position, memories = apply_until(due, position, bound, memories)
        is_it = (all_started.channel == key[2]) & (all_started.number == key[3])
        own = (channel == key[2]) & (fields[:, Field.VALUE_LO] == key[3]) & (old < Effect.COMPUTED)
        row, takes = jnp.argmax(own), own.any() & ~is_last
        shadow = _exchanged(card.kernels, specs, jnp.where(is_last, NONE, key[4]), due, row, takes, memories)
        effects = effects.at[row].max(jnp.where(takes, int(Effect.COMPUTED), 0))
        return is_due & ~is_it, position, effects, memories._replace(shadow=shadow), is_last

    zero = card.clock[0] & 0  # from data: under shard_map it must vary as the results do
    start = all_started.is_due, zero, jnp.full_like(old, 0) + zero, memories, jnp.bool_(False)
    _, _, effects, memories, _ = lax.while_loop(lambda state: ~state[-1], step, start)
    return effects, memories


def _times_of(due: Any, times: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the time of each entry of ``due.order``: high limb, and twice the low limb, plus 1 where it reads."""
    rows = times.shape[0]
    is_end = due.order >= rows
    row = jnp.where(is_end, due.order - rows, due.order)
    is_task = due.fields[row, Field.KIND] != Kind.VALUE_WRITE
    hi = jnp.where(is_end, times[row, Time.END_HI], times[row, Time.START_HI])
    lo = jnp.where(is_end, 2 * times[row, Time.END_LO], 2 * times[row, Time.START_LO] + is_task)
    is_there = jnp.arange(due.order.shape[0]) < due.total
    return jnp.where(is_there, hi, _LATE), jnp.where(is_there, lo, 0)


def _first(all_started: Started) -> jax.Array:
    """Return which entry, counted over all cards, starts first; at one instant by channel and number."""
    mask = all_started.is_due.reshape(-1)
    for column in all_started[1:5]:
        values = jnp.where(mask, column.reshape(-1), _LATE)
        mask &= values == values.min()
    return jnp.argmax(mask)


def _exchanged(
    kernels: tuple[KernelSpec, ...],
    specs: list[KernelSpec],
    kernel: jax.Array,
    due: Any,
    row: jax.Array,
    takes: jax.Array,
    memories: Any,
) -> jax.Array:
    """Return the shadow bytes with what one collective gives this card; ``kernel`` is the same on all cards."""
    # what is longer than a card was refused when it was queued
    held = memories.memory.shape[0]
    specs = [one for one in specs if max(each.nbytes for each in (*one.inputs, *one.outputs)) <= held]
    size = max((spec.output_bytes for spec in specs), default=0) + CHUNK_BYTES
    index = get_row(due.first_byte, row)
    scalars = jnp.zeros(0, jnp.float32)

    def idle(memory: jax.Array) -> jax.Array:
        return jnp.full(size, memory[0] & 0)

    def run(spec: KernelSpec) -> Callable[[jax.Array], jax.Array]:
        return lambda memory: jnp.pad(spec.run(memory, index, scalars), (0, size - spec.output_bytes))

    is_it = kernel == jnp.array([NONE, *(kernels.index(spec) for spec in specs)])
    branch = jnp.argmax(is_it)  # idle for one that is not there
    result = lax.switch(branch, [idle, *(run(spec) for spec in specs)], memories.memory)
    nbytes = jnp.where(takes, get_row(due.nbytes, row)[RECEIVED], 0)
    return hbm.move(memories.shadow, index[RECEIVED], nbytes, hbm.read_chunk, (result, jnp.int32(0)))
