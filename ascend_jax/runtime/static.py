"""The static engine: ``end[i] = max(end[before i]) + duration[i]``, for programs that nothing holds up but themselves.

It takes every command as if it had the card to itself: what is before a command is known when it is enqueued (stream
order and event waits), and cores, copy engines and memory rates are shared with nobody. Where that is so it gives the
times of the exact engine, many times faster. The batch axes come *last*: one command of all lanes is one run of memory.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.runtime import clock
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.edge import concrete
from ascend_jax.runtime.layout import FULL_RATE, LIMB, SHARES, TASKS, Change, Condition, Field, Kind, Resource
from ascend_jax.runtime.loop import varying_together
from ascend_jax.runtime.program import Program, predecessors

WINDOW_NS = LIMB - 1  # int32 times stop here: at this moment or later
NEVER_HI = 1 << 20  # high limb (13 days) of a command for which the chip has too few cores
_HALF = 15  # a limb is two halves of 15 bits, whose products with 16 bits fit int32

Duration = jax.Array | Instant


def lower(program: Program) -> jax.Array:
    """Return the two predecessors of every command, int32 [N, 2], N for none; a batch must share them.

    Raises:
      ValueError: The order of some command is only known at run time: it looks at or changes a cell (flag events,
        notifies, values, callbacks), has a timeout, or carries a fault. The message names the row. While the program is
        traced this cannot be seen.
    """
    if program.fields.ndim != 2:
        batch = program.fields.shape[:-2]
        raise ValueError(f"program has batch axes {batch}: lower one lane, jax.tree.map(lambda x: x[0], program)")
    known = concrete(program.fields)
    if known is not None:
        _require_static(known)
    return predecessors(program.fields)


@jax.jit
def durations(program: Program, chip: ChipSpec) -> Instant:
    """Return how long each command takes on an idle card, [N, *batch]; batches of program and chip broadcast.

    Blocks run in waves as wide as the cores allow; a wave whose blocks ask for more than a memory pool has is slowed
    down, in the fixed-point steps of the exact engine. A command for which the cores never suffice lasts 13 days.
    """
    axes = chip.values.ndim - 1 - (program.fields.ndim - 2)
    fields = jnp.moveaxis(program.fields, (-2, -1), (0, 1))
    fields = fields.reshape(*fields.shape[:2], *(1,) * axes, *fields.shape[2:])
    cores = [jnp.asarray(chip[name], jnp.int32)[None] for name in ("cube_cores", "vector_cores")]
    cores = [one.reshape(1, *(1,) * -axes, *one.shape[1:]) for one in cores]
    blocks = jnp.maximum(fields[:, Field.BLOCKS], 1)
    fits = blocks
    for resource in Resource:
        need = fields[:, Field.NEED + resource]
        there = cores[resource] if resource < len(cores) else 1
        fits = jnp.where(need > 0, jnp.minimum(fits, there // jnp.maximum(need, 1)), fits)
    at_once = jnp.maximum(fits, 1)
    waves = -(-blocks // at_once)
    block = Instant(fields[:, Field.BLOCK_HI], fields[:, Field.BLOCK_LO])
    full, last = _rate(fields, at_once), _rate(fields, blocks - (waves - 1) * at_once)
    first = _slowed(clock.add(block, fields[:, Field.HEAD_NS]), full)
    middle = _times(_slowed(block, full), jnp.maximum(waves - 2, 0))
    total = clock.plus(first, middle)
    end = _slowed(block, last)
    whole = _where(waves > 1, clock.plus(total, end), total)
    is_never = (fits == 0) | ((fields[:, Field.MODE] == 1) & (fits < blocks))
    never = Instant(jnp.full_like(whole.hi, NEVER_HI), jnp.zeros_like(whole.lo))
    zero = Instant(jnp.zeros_like(whole.hi), jnp.zeros_like(whole.lo))
    is_task = jnp.isin(fields[:, Field.KIND], jnp.array(TASKS))
    return _where(is_task, _where(is_never, never, whole), zero)


def window_ns(time: Instant) -> jax.Array:
    """Return int32 ns, :data:`WINDOW_NS` for what is longer."""
    return jnp.where(time.hi > 0, WINDOW_NS, time.lo)


@jax.jit
def static_end_ns(pred: jax.Array, duration_ns: jax.Array) -> jax.Array:
    """Return when every command ends if nobody competes, [N, *batch]; the program is started at 0.

    int32 times stop at :data:`WINDOW_NS` (1.07 s): there they mean "then or later". float32 counts whole ns up to
    16.8 ms and is differentiable, as is float64: the gradient of the makespan is 1 on the critical path, 0 elsewhere,
    and a tie is shared. Values may change without a new compilation.

    Args:
      pred: int32 [N, 2] of :func:`lower`.
      duration_ns: int32 or float [N, *batch], at least 0.

    >>> import ascend_jax as aj
    >>> kernel = {Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCK_LO: 500, Field.HEAD_NS: 20}
    >>> program = aj.program_from_rows([kernel, kernel])
    >>> times = durations(program, aj.chip("Ascend910B2"))
    >>> static_end_ns(lower(program), window_ns(times)).tolist()
    [520, 1040]
    """
    if jnp.issubdtype(duration_ns.dtype, jnp.floating):
        return _float_ends(pred, duration_ns)
    if duration_ns.dtype == jnp.int32:
        return _ends(pred, duration_ns, lambda a, b, own: jnp.minimum(jnp.maximum(a, b) + own, WINDOW_NS))
    return _ends(pred, duration_ns, lambda a, b, own: jnp.maximum(a, b) + own)


@jax.jit
def static_end(pred: jax.Array, duration: Instant) -> Instant:
    """Return when every command ends, exact to 1 ns for any length of time; limbs int32 [N, *batch].

    Several times slower than :func:`static_end_ns`.
    """

    def step(a: jax.Array, b: jax.Array, own: jax.Array) -> jax.Array:
        return jnp.stack(clock.plus(clock.later(Instant(*a), Instant(*b)), Instant(*own)))

    ends = _ends(pred, jnp.stack(duration, 1), step)  # one table: two in a carry would be copied every step
    return Instant(ends[:, 0], ends[:, 1])


def makespan(end: Duration) -> Duration:
    """Return when the last command ends, [*batch], of either kind of times."""
    if not isinstance(end, Instant):
        return end.max(0)
    hi = end.hi.max(0)
    return Instant(hi, jnp.where(end.hi == hi, end.lo, 0).max(0))


def is_outside_window(end_ns: jax.Array) -> jax.Array:
    """Return whether some int32 time of a lane stopped at the end of the window, bool [*batch]."""
    return (end_ns >= WINDOW_NS).any(0)


def critical_path(pred: jax.Array, end: Duration) -> np.ndarray:
    """Return the rows that decide the makespan, in order, of one lane on the host; of equals the earlier row.

    >>> pred = jnp.array([[4, 4], [0, 4], [4, 4], [1, 2]])
    >>> critical_path(pred, static_end_ns(pred, jnp.array([5, 5, 9, 1]))).tolist()
    [0, 1, 3]
    """
    whole = clock.to_ns(*(np.asarray(limb) for limb in end)) if isinstance(end, Instant) else np.asarray(end)
    before = np.asarray(pred)
    rows, row = [], int(whole.argmax())
    while row < len(before):
        rows.append(row)
        row = min(before[row], key=lambda one: (-whole[one] if one < len(before) else 1, one))
    return np.array(rows[::-1])


def _ends(pred: jax.Array, duration: jax.Array, step: Callable[..., jax.Array]) -> jax.Array:
    """The loop itself: the table of ends is the trace, and its last row is the end of what has no predecessor."""
    rows = duration.shape[0]

    def body(row: jax.Array, ends: jax.Array) -> jax.Array:
        before = _row(pred, row)
        end = step(_row(ends, before[0]), _row(ends, before[1]), _row(duration, row))
        return lax.dynamic_update_index_in_dim(ends, end, row, 0, allow_negative_indices=False)

    unset = jnp.zeros((rows + 1, *duration.shape[1:]), duration.dtype)
    (pred, duration), unset = varying_together((pred, duration), unset)
    with jax.named_scope("static_end"):
        return lax.fori_loop(0, rows, body, unset)[:rows]


@jax.custom_vjp
def _float_ends(pred: jax.Array, duration_ns: jax.Array) -> jax.Array:
    return _ends(pred, duration_ns, lambda a, b, own: jnp.maximum(a, b) + own)


def _forward(pred: jax.Array, duration_ns: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    ends = _float_ends(pred, duration_ns)
    return ends, (pred, ends)


def _backward(kept: tuple[jax.Array, jax.Array], wanted: jax.Array) -> tuple[None, jax.Array]:
    """A share goes on to the later of its predecessors. JAX's own rule would copy the whole table for every row."""
    pred, ends = kept
    rows = ends.shape[0]
    ends = jnp.concatenate([ends, jnp.zeros_like(ends[:1])])

    def body(step: jax.Array, share: jax.Array) -> jax.Array:
        row, which = rows - 1 - step // 2, step % 2  # one write per step, which XLA does in place
        before = _row(pred, row)
        end, other = _row(ends, before[which]), _row(ends, before[1 - which])
        part = jnp.where(end == other, 0.5, end > other).astype(share.dtype)
        return share.at[before[which]].add(_row(share, row) * part, mode="promise_in_bounds")

    share = jnp.concatenate([wanted, jnp.zeros_like(wanted[:1])])
    return None, lax.fori_loop(0, 2 * rows, body, share)[:rows]


_float_ends.defvjp(_forward, _backward)


def _row(table: jax.Array, row: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(table, row, 0, keepdims=False, allow_negative_indices=False)


def _rate(fields: jax.Array, blocks: jax.Array) -> jax.Array:
    """Work that one of ``blocks`` equal blocks does in 1 ns, out of FULL_RATE."""
    demand = jnp.maximum(fields[:, Field.HBM_SHARE], fields[:, Field.L2_SHARE])
    shared = (FULL_RATE * SHARES) // jnp.maximum(demand, 1) // blocks
    return jnp.where(demand > 0, jnp.clip(shared, 1, FULL_RATE), FULL_RATE)


def _slowed(time: Instant, rate: jax.Array) -> Instant:
    """Return ``ceil(time * FULL_RATE / rate)``: long division, three digits of at most 15 bits and a rest."""
    hi, rest = time.hi // rate, time.hi % rate
    middle = (rest << _HALF) + (time.lo >> _HALF)
    low = (middle % rate << _HALF) + (time.lo & ((1 << _HALF) - 1))
    lo = (middle // rate << _HALF) + low // rate
    shift = FULL_RATE.bit_length() - 1
    scaled = Instant((hi << shift) + (lo >> (30 - shift)), (lo << shift) & (LIMB - 1))
    return clock.add(scaled, -(-(low % rate * FULL_RATE) // rate))


def _times(time: Instant, count: jax.Array) -> Instant:
    """Return ``time * count`` for a count below 2**16."""
    half = (1 << _HALF) - 1
    low = (time.lo & half) * count
    middle = (time.lo >> _HALF) * count + (low >> _HALF)
    return Instant(time.hi * count + (middle >> _HALF), ((middle & half) << _HALF) | (low & half))


def _where(is_it: jax.Array, yes: Instant, no: Instant) -> Instant:
    return Instant(jnp.where(is_it, yes.hi, no.hi), jnp.where(is_it, yes.lo, no.lo))


def _require_static(fields: np.ndarray) -> None:
    reasons = (
        (fields[:, Field.CONDITION] != Condition.NONE, "waits for a value that is known at run time"),
        (fields[:, Field.CHANGE] != Change.NONE, "changes a value that others may wait for"),
        (np.isin(fields[:, Field.KIND], (Kind.CALLBACK, Kind.CALLBACK_WAIT)), "belongs to a callback"),
        ((fields[:, Field.TIMEOUT_HI] != 0) | (fields[:, Field.TIMEOUT_LO] != 0), "has a timeout"),
        (fields[:, Field.FAULT] != 0, "carries a fault"),
    )
    for is_it, reason in reasons:
        if is_it.any():
            row = int(np.argmax(is_it))
            kind = Kind(int(fields[row, Field.KIND])).name
            raise ValueError(f"row {row} ({kind}) {reason}: run the program on a card, with the exact engine")
