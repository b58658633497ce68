"""Data effects in simulated time order.

A command reads its inputs when it starts and publishes its outputs when it ends: what it computes lies in the shadow
bytes in between. So a host that reads too early sees old bytes and a kernel that misses a wait reads stale data,
whatever order the calls were made in. At one instant, publishing comes before reading.

Kernels only read memory and return their outputs; memory itself is written outside the ``switch`` over kernels,
because a branch that returns it would copy all of it.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime import bytes as hbm
from ascend_jax.runtime import layout
from ascend_jax.runtime.kernels import KernelSpec
from ascend_jax.runtime.layout import Effect, Field, Kind, Operand, Phase, Time
from ascend_jax.runtime.loop import settle_loop
from ascend_jax.runtime.rows import get_row, with_entries
from ascend_jax.runtime.state import CHUNK_BYTES, CardState

_LATE = 2**31 - 1


class _Tables(NamedTuple):
    order: jax.Array  # int32 [2 (N + 1)]: row, or N + 1 + row for its end
    due: jax.Array  # int32, how many of them
    fields: jax.Array
    first_byte: jax.Array  # int32 [N + 1, P]
    nbytes: jax.Array  # int32 [N + 1, P]


class _Carry(NamedTuple):
    done: jax.Array  # int32
    memory: jax.Array
    shadow: jax.Array


def apply_effects(card: CardState) -> CardState:
    """Bring memory up to the engine's time: apply every start and end that it has reached, in order."""
    if not card.has_values:
        return card
    tables = _effects_due(card)

    def is_unfinished(tables: _Tables, carry: _Carry) -> jax.Array:
        return carry.done < tables.due

    def step(tables: _Tables, carry: _Carry) -> _Carry:
        return _one_effect(card.kernels, tables, carry)

    with jax.named_scope("values"):
        end = settle_loop(is_unfinished, step, tables, _Carry(jnp.int32(0), card.memory, card.shadow))
    times = card.table.times
    phase = times[:, Time.PHASE]
    reached = jnp.where(phase == Phase.DONE, Effect.PUBLISHED, jnp.where(phase == Phase.RUNNING, Effect.COMPUTED, 0))
    times = with_entries(times, {Time.EFFECT: jnp.maximum(times[:, Time.EFFECT], reached)})
    table = dataclasses.replace(card.table, times=times)
    return dataclasses.replace(card, table=table, memory=end.memory, shadow=end.shadow)


def _effects_due(card: CardState) -> _Tables:
    """List the starts and ends not applied yet, by (time, ends first, sequence)."""
    fields, times = card.table.fields, card.table.times
    phase, effect = times[:, Time.PHASE], times[:, Time.EFFECT]
    starts = (phase >= Phase.RUNNING) & (effect < Effect.COMPUTED)
    ends = (phase == Phase.DONE) & (effect < Effect.PUBLISHED)
    is_due = jnp.concatenate([starts, ends])
    hi = jnp.concatenate([times[:, Time.START_HI], times[:, Time.END_HI]])
    lo = jnp.concatenate([times[:, Time.START_LO] * 2 + 1, times[:, Time.END_LO] * 2])
    sequence = jnp.tile(fields[:, Field.SEQUENCE], 2)
    order = jnp.lexsort((sequence, lo, jnp.where(is_due, hi, _LATE)))
    operands = card.table.operands
    index = hbm.first_byte(card, operands[..., Operand.POINTER], operands[..., Operand.OFFSET])
    return _Tables(order.astype(jnp.int32), is_due.sum(dtype=jnp.int32), fields, index, operands[..., Operand.BYTES])


def _one_effect(kernels: tuple[KernelSpec, ...], tables: _Tables, carry: _Carry) -> _Carry:
    rows = tables.fields.shape[0]
    is_live = carry.done < tables.due
    entry = get_row(tables.order, jnp.minimum(carry.done, tables.order.shape[0] - 1))
    is_end = entry >= rows
    row = jnp.where(is_end, entry - rows, entry)
    fields, index = get_row(tables.fields, row), get_row(tables.first_byte, row)
    slot = jnp.arange(layout.OPERANDS)
    is_written = ((fields[Field.WRITES] >> slot) & 1).astype(bool) & (slot != layout.WORKSPACE)
    written = jnp.where(is_written & is_live, get_row(tables.nbytes, row), 0)
    shadow = _compute(kernels, fields, index, jnp.where(is_end, 0, written), carry)
    memory = _publish(carry.memory, shadow, index, jnp.where(is_end, written, 0))
    return _Carry(carry.done + is_live.astype(jnp.int32), memory, shadow)


def _compute(
    kernels: tuple[KernelSpec, ...], fields: jax.Array, index: jax.Array, written: jax.Array, carry: _Carry
) -> jax.Array:
    """Return the shadow bytes with the command's outputs in place; ``written`` [P] is 0 where nothing is."""
    kind, shadow = fields[Field.KIND], carry.shadow
    counts = written
    outputs = _run_kernel(kernels, fields, index, (kind == Kind.KERNEL) & (counts.sum() > 0), carry.memory)
    begins = jnp.cumsum(counts) - counts  # outputs follow one another

    def one_output(slot: jax.Array, shadow: jax.Array) -> jax.Array:
        sources = (carry.memory, index[1], outputs, get_row(begins, slot), kind, fields[Field.FILL])
        return hbm.move(shadow, get_row(index, slot), get_row(counts, slot), _read_result, sources)

    return lax.fori_loop(0, layout.WORKSPACE, one_output, shadow)


def _read_result(sources: tuple, done: jax.Array) -> jax.Array:
    memory, copied_from, outputs, begin, kind, value = sources
    copied = hbm.read_chunk((memory, copied_from), done)
    filled = jnp.full(CHUNK_BYTES, value.astype(jnp.uint8))
    simple = jnp.where(kind == Kind.MEMSET, filled, copied)
    return simple if outputs is None else jnp.where(kind == Kind.KERNEL, hbm.read_chunk((outputs, begin), done), simple)


def _run_kernel(
    kernels: tuple[KernelSpec, ...],
    fields: jax.Array,
    index: jax.Array,
    is_wanted: jax.Array,
    memory: jax.Array,
) -> jax.Array | None:
    """Return the command's outputs one after another, with a chunk of slack; None on a card without kernels."""
    if not kernels:
        return None
    size = max(spec.output_bytes for spec in kernels) + CHUNK_BYTES

    def branch(spec: KernelSpec, memory: jax.Array, index: jax.Array) -> jax.Array:
        result = spec.run(memory, index)
        return jnp.pad(result, (0, size - result.shape[0]))

    branches = [lambda memory, index: jnp.zeros(size, jnp.uint8)]
    branches += [functools.partial(branch, spec) for spec in kernels]
    return lax.switch(jnp.where(is_wanted, fields[Field.KERNEL] + 1, 0), branches, memory, index)


def _publish(memory: jax.Array, shadow: jax.Array, index: jax.Array, written: jax.Array) -> jax.Array:
    def one_output(slot: jax.Array, memory: jax.Array) -> jax.Array:
        place = get_row(index, slot)
        return hbm.move(memory, place, get_row(written, slot), hbm.read_chunk, (shadow, place))

    return lax.fori_loop(0, layout.WORKSPACE, one_output, memory)
