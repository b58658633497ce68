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
import numpy as np
from jax import lax

from ascend_jax.runtime import bytes as hbm
from ascend_jax.runtime import layout
from ascend_jax.runtime.edge import concrete, stage
from ascend_jax.runtime.exchanges import exchange_in_order, started
from ascend_jax.runtime.kernels import KernelSpec, to_bytes
from ascend_jax.runtime.layout import Effect, Field, Kind, Operand, Phase, Pitch, Time
from ascend_jax.runtime.loop import settle_loop
from ascend_jax.runtime.ranges import Range
from ascend_jax.runtime.rows import get_row
from ascend_jax.runtime.state import CHUNK_BYTES, CardState

_LATE = 2**31 - 1


class Due(NamedTuple):
    """Effects not applied yet, in order, and where they read and write."""

    order: jax.Array  # int32 [2 (N + 1)]: row of a start, or N + 1 + row of an end
    total: jax.Array  # int32, how many of them
    kernel: jax.Array  # int32 [2 (N + 1)], in order: kernel that starts, or NONE
    fields: jax.Array  # int32 [N + 1, FIELDS]
    first_byte: jax.Array  # int32 [N + 1, P]
    nbytes: jax.Array  # int32 [N + 1, P]


class Memories(NamedTuple):
    """The two byte arrays of a card."""

    memory: jax.Array
    shadow: jax.Array


def apply_effects(card: CardState) -> CardState:
    """Bring memory up to the engine's time: apply every start and end that it has reached, in order.

    Outside ``jit`` each kernel is compiled once, on its own; under ``jit`` all kernels of the card become one switch.
    """
    if not card.has_values:
        return card
    if card.coupling is not None and any(spec.meets for spec in card.kernels):
        return _apply_with_exchanges(card)
    card, due = list_due(card)
    memories = Memories(card.memory, card.shadow)
    count = concrete(due.total)
    if count is None:
        memories = _apply_until(card.kernels, due, jnp.int32(0), due.total, memories)[1]
    else:
        for position, kernel in enumerate(np.asarray(due.kernel)[:count].tolist()):
            apply = _apply_in_place if card.donate or position > 0 else _apply_to_copies
            kernels = () if kernel == layout.NONE else (card.kernels[kernel],)
            memories = apply(kernels, np.int32(kernel), due, np.int32(position), memories)
    return dataclasses.replace(card, memory=memories.memory, shadow=memories.shadow)


@stage
def list_due(card: CardState) -> tuple[CardState, Due]:
    """List the starts and ends that the engine has passed, and mark them applied.

    They come by time, at one instant first what ended, in that order, then what started, by sequence number.
    """
    fields, times = card.table.fields, card.table.times
    phase, effect = times[:, Time.PHASE], card.table.effects
    # what is going to fail computes nothing, or its results would show depending on when somebody looks
    writes = (fields[:, Field.WRITES] != 0) & (fields[:, Field.FAULT] == 0)
    is_done, has_begun = phase == Phase.DONE, (phase >= Phase.RUNNING) & (phase <= Phase.DROPPED)
    starts = writes & has_begun & (effect < Effect.COMPUTED)
    ends = writes & is_done & (effect < Effect.PUBLISHED)
    is_due = jnp.concatenate([starts, ends])
    hi = jnp.concatenate([times[:, Time.START_HI], times[:, Time.END_HI]])
    is_task = fields[:, Field.KIND] != Kind.VALUE_WRITE  # which starts and ends at once, and reads nothing
    lo = jnp.concatenate([times[:, Time.START_LO] * 2 + is_task, times[:, Time.END_LO] * 2])
    ended = times[:, Time.ORDER]
    rank = jnp.concatenate([jnp.where(is_task, fields[:, Field.SEQUENCE], ended), ended])
    order = jnp.lexsort((rank, lo, jnp.where(is_due, hi, _LATE))).astype(jnp.int32)
    kernel = jnp.concatenate([fields[:, Field.KERNEL], jnp.full_like(phase, layout.NONE)])[order]
    places = Range(*(card.table.operands[..., column] for column in Operand))
    index = hbm.first_byte(card, places.pointer, places.offset)
    nbytes = (places.whole << layout.GRANULE_SHIFT) + places.rest
    reached = jnp.where(ends, Effect.PUBLISHED, jnp.where(starts, Effect.COMPUTED, Effect.NONE))
    marked = jnp.maximum(effect, reached)
    card = dataclasses.replace(card, table=dataclasses.replace(card.table, effects=marked))
    return card, Due(order, is_due.sum(dtype=jnp.int32), kernel, fields, index, nbytes)


def _apply_with_exchanges(card: CardState) -> CardState:
    """As :func:`apply_effects` for a card among those that it exchanges data with."""
    all_started = started(card)
    marked, due = list_due(card)
    apply_own = functools.partial(_apply_until, card.kernels)
    effects, memories = exchange_in_order(card, due, Memories(card.memory, card.shadow), apply_own, all_started)
    table = dataclasses.replace(marked.table, effects=jnp.maximum(marked.table.effects, effects))
    return dataclasses.replace(marked, table=table, memory=memories.memory, shadow=memories.shadow)


def _apply_until(
    kernels: tuple[KernelSpec, ...], due: Due, position: jax.Array, bound: jax.Array, memories: Memories
) -> tuple[jax.Array, Memories]:
    """Apply the effects from ``position`` on, up to ``bound``; return where that ends, and the bytes."""

    def has_more(tables: tuple, carry: tuple) -> jax.Array:
        return carry[0] < tables[1]

    def step(tables: tuple, carry: tuple) -> tuple:
        position, memories = carry
        memories = _apply(kernels, jnp.int32(0), tables[0]._replace(total=tables[1]), position, memories)
        return position + has_more(tables, carry), memories

    with jax.named_scope("values"):
        return settle_loop(has_more, step, (due, bound), (position, memories))


def _apply(
    kernels: tuple[KernelSpec, ...], first_kernel: jax.Array, due: Due, position: jax.Array, memories: Memories
) -> Memories:
    """Apply the effect at ``position``; ``kernels`` are those of the card from ``first_kernel`` on."""
    rows = due.fields.shape[0]
    entry = get_row(due.order, jnp.minimum(position, due.order.shape[0] - 1))
    is_end = entry >= rows
    row = jnp.where(is_end, entry - rows, entry)
    fields, index = get_row(due.fields, row), get_row(due.first_byte, row)
    slot = jnp.arange(layout.OPERANDS)
    is_written = ((fields[Field.WRITES] >> slot) & 1).astype(bool) & (slot != layout.WORKSPACE)
    written = jnp.where(is_written & (position < due.total), get_row(due.nbytes, row), 0)
    pitch = lax.dynamic_slice(fields, (Field.SCALARS,), (len(Pitch),))
    is_rows = (fields[Field.KIND] == Kind.COPY) & (pitch[Pitch.ROWS] > 0)
    rows_due = jnp.where(is_rows & (written[0] > 0), pitch[Pitch.ROWS], 0)
    is_exchanged = (fields[Field.KIND] == Kind.COLLECTIVE) & ~is_end  # what it computes comes from other cards too
    written = jnp.where(is_rows | is_exchanged, 0, written)
    shadow = _compute(kernels, first_kernel, fields, index, jnp.where(is_end, 0, written), memories)
    there = hbm.Rows(index[0], pitch[Pitch.DST], pitch[Pitch.WIDTH], jnp.where(is_end, 0, rows_due))
    shadow = hbm.move_rows(shadow, there, memories.memory, there._replace(first=index[1], pitch=pitch[Pitch.SRC]))
    memory = _publish(memories.memory, shadow, index, jnp.where(is_end, written, 0))
    there = there._replace(rows=jnp.where(is_end, rows_due, 0))
    return Memories(hbm.move_rows(memory, there, shadow, there), shadow)


_apply_to_copies = jax.jit(_apply, static_argnums=0)
_apply_in_place = jax.jit(_apply, static_argnums=0, donate_argnums=4)


def _compute(
    kernels: tuple[KernelSpec, ...],
    first_kernel: jax.Array,
    fields: jax.Array,
    index: jax.Array,
    written: jax.Array,
    memories: Memories,
) -> jax.Array:
    """Return the shadow bytes with the command's outputs in place; ``written`` [P] is 0 where nothing is."""
    kind = fields[Field.KIND]
    is_kernel = (kind == Kind.KERNEL) & (written.sum() > 0)
    branch = jnp.where(is_kernel, fields[Field.KERNEL] - first_kernel + 1, 0)
    outputs = _run_kernel(kernels, branch, fields, index, memories.memory)
    begins = jnp.cumsum(written) - written  # outputs follow one another

    def one_output(slot: jax.Array, shadow: jax.Array) -> jax.Array:
        sources = (memories.memory, index[1], outputs, get_row(begins, slot), fields)
        return hbm.move(shadow, get_row(index, slot), get_row(written, slot), _read_result, sources)

    return lax.fori_loop(0, layout.WORKSPACE, one_output, memories.shadow)


def _read_result(sources: tuple, done: jax.Array) -> jax.Array:
    memory, copied_from, outputs, begin, fields = sources
    kind = fields[Field.KIND]
    copied = hbm.read_chunk((memory, copied_from), done)
    word = to_bytes(fields[jnp.array([Field.VALUE_LO, Field.VALUE_HI])])  # 8 bytes, little endian
    filled = jnp.full(CHUNK_BYTES, fields[Field.FILL].astype(jnp.uint8))
    simple = jnp.where(kind == Kind.MEMSET, filled, copied)
    simple = jnp.where(kind == Kind.VALUE_WRITE, jnp.pad(word, (0, CHUNK_BYTES - word.shape[0])), simple)
    return simple if outputs is None else jnp.where(kind == Kind.KERNEL, hbm.read_chunk((outputs, begin), done), simple)


def _run_kernel(
    kernels: tuple[KernelSpec, ...], branch: jax.Array, fields: jax.Array, index: jax.Array, memory: jax.Array
) -> jax.Array | None:
    """Return a kernel's outputs one after another, with a chunk of slack; branch 0 runs none."""
    if not kernels:
        return None

    def fits(spec: KernelSpec) -> bool:
        # what is longer than the bytes there are was refused at launch; its branch is never taken, like a collective's
        return not spec.meets and all(each.nbytes <= memory.shape[0] for each in (*spec.inputs, *spec.outputs))

    size = max((spec.output_bytes for spec in kernels if fits(spec)), default=0) + CHUNK_BYTES
    scalars = lax.bitcast_convert_type(fields[Field.SCALARS : Field.SCALARS + layout.SCALARS], jnp.float32)

    def run(spec: KernelSpec, memory: jax.Array, index: jax.Array, scalars: jax.Array) -> jax.Array:
        result = spec.run(memory, index, scalars)
        return jnp.pad(result, (0, size - result.shape[0]))

    def idle(memory: jax.Array, index: jax.Array, scalars: jax.Array) -> jax.Array:
        return jnp.full(size, memory[0] & 0)  # from data: under shard_map it must vary as the results do

    branches = [functools.partial(run, spec) if fits(spec) else idle for spec in kernels]
    return lax.switch(branch, [idle, *branches], memory, index, scalars)


def _publish(memory: jax.Array, shadow: jax.Array, index: jax.Array, written: jax.Array) -> jax.Array:
    def one_output(slot: jax.Array, memory: jax.Array) -> jax.Array:
        place = get_row(index, slot)
        return hbm.move(memory, place, get_row(written, slot), hbm.read_chunk, (shadow, place))

    return lax.fori_loop(0, layout.WORKSPACE, one_output, memory)
