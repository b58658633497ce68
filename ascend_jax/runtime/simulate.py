"""The exact engine over a ``Program``: when does every command of it start and end on a chip that runs nothing else?"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.coupling import Coupling
from ascend_jax.runtime.edge import QUICK_TO_COMPILE, QUICK_TO_RUN, compiled, concrete
from ascend_jax.runtime.engine import capacity_of, run, run_stacked
from ascend_jax.runtime.faults import result_codes
from ascend_jax.runtime.heads import WORK, Head, Orders, blocks_of, work_of
from ascend_jax.runtime.lanes import Carry, Lane, Tables, Turn
from ascend_jax.runtime.layout import FOREVER_HI, NONE, Field, Kind, Phase, Time
from ascend_jax.runtime.program import Program, nothing


class Schedule(NamedTuple):
    """What became of every command; batch axes come first."""

    ready: Instant  # int32 [..., N] limbs, ns: at the head of its stream
    start: Instant  # first block started
    end: Instant  # last block done
    phase: jax.Array  # int32 [..., N], Phase; times are valid from DONE on, padding is EMPTY
    code: jax.Array  # int32 [..., N], 0 or the code with which the command failed
    is_stuck: jax.Array  # bool [...]: some commands can never happen
    device_error: jax.Array  # int32 [...], 0 or the code with which the device was lost


def simulate(
    program: Program,
    chip: ChipSpec,
    *,
    block: Instant | None = None,
    cells: int = 64,
    stops: bool = False,
    coupling: Coupling | None = None,
) -> Schedule:
    """Return the schedule of a program whose commands are all issued at time 0 (blocks, priorities, shared rates).

    Usable under ``jit`` and ``vmap``; leading batch axes of program, chip and block are lanes, and must match or be
    absent.

    Args:
      program: What runs.
      chip: On what.
      block: Times of one block instead of the program's, int32 limbs [..., N] (see ``clock.Instant``). Lanes that
        differ in times only share everything else of the program.
      cells: How many cells (flags, notifies, values) the program's marks may use, all 0 at first.
      coupling: The innermost batch axis is the cards of a cluster, whose rendezvous wait for each other.
      stops: Whether a stream takes no more commands after one has failed (``aclrtSetStreamFailureMode`` 1).

    Raises:
      ValueError: A mark uses a cell that is not there (not seen while the program is traced), or the program has 65,536
        streams or more.
    """
    _check_cells(program, cells)
    if program.streams >= Turn.MARK:
        raise ValueError(f"program has {program.streams} streams: at most {Turn.MARK - 1}; put more into each")
    if coupling is not None:
        _check_coupling(program, coupling)
    is_short = coupling is not None and math.prod(program.fields.shape[:-1]) < SHORT
    run_all = _compiled_quickly if is_short else _compiled
    return run_all(program, chip, block, cells=cells, stops=stops, coupling=coupling)


def _simulate(
    program: Program, chip: ChipSpec, block: Instant | None, *, cells: int, stops: bool, coupling: Coupling | None
) -> Schedule:
    batch = program.fields.ndim - 2, chip.values.ndim - 1, 0 if block is None else block.lo.ndim - 1
    lane = functools.partial(_lane, cells=cells, stops=stops)
    if max(batch) == 0:
        return _schedule(program, run(*lane(program, chip, block)))
    axes = tuple(0 if depth == max(batch) else None for depth in batch)
    if max(batch) > 1:
        each = functools.partial(_simulate, cells=cells, stops=stops, coupling=coupling)
        return jax.vmap(each, in_axes=axes)(program, chip, block)
    # one layer of lanes, made without tracing the engine for a single one first
    shared = axes[0], 0 if 0 in axes[::2] else None  # orders of all lanes are one table if the program is one
    out_axes = Orders(*shared), 0, 0, 0  # type: ignore[arg-type]
    lanes = jax.vmap(lane, in_axes=axes, out_axes=out_axes)(program, chip, block)
    is_batched = ([axis == 0 for axis in shared], *jax.tree.map(lambda _: True, lanes[1:]))
    end = run_stacked(lanes[-1].shape[0], is_batched, *lanes, coupling=coupling)
    return jax.vmap(_schedule, in_axes=(axes[0], 0))(program, end)


def _lane(
    program: Program, chip: ChipSpec, block: Instant | None, *, cells: int, stops: bool
) -> tuple[Orders, Tables, Carry, jax.Array]:
    """Lay a program out as one lane of a run."""
    rows, streams = program.rows, program.streams
    fields = _with_trash(program)
    depends = jnp.where(fields[:, Field.DEPENDS] == NONE, rows, fields[:, Field.DEPENDS])
    is_command = fields[:, Field.KIND] != Kind.NOTHING
    number = jnp.where(is_command, jnp.arange(rows + 1, dtype=jnp.int32), rows)
    stream = jnp.where(is_command, fields[:, Field.STREAM], streams)
    first = jnp.full(streams + 1, rows, jnp.int32).at[stream].min(number)[:streams, None]
    zero, lane = jnp.zeros((streams, 1), jnp.int32), jnp.zeros(1, jnp.int32)
    if block is None:
        block = Instant(program.fields[:, Field.BLOCK_HI], program.fields[:, Field.BLOCK_LO])
    blocks = blocks_of(Instant(*(jnp.append(limb, 0) for limb in block)))
    orders = Orders(work_of(fields, depends)[None], blocks[None])
    tables = Tables(
        capacity=capacity_of(chip)[:, None],
        stops=jnp.full((streams, 1), stops),
        is_goal=zero == 0,
        has_goal=lane == 0,
        limit=Instant(lane + FOREVER_HI, lane),
    )
    phase = jnp.where(is_command, Phase.QUEUED, Phase.EMPTY).at[rows].set(Phase.DONE)
    times = jnp.zeros((rows + 1, len(Time)), jnp.int32).at[:, Time.PHASE].set(phase)
    carry = Carry(
        head=Head(first, jnp.zeros((WORK, streams, 1), jnp.int32), *[zero] * (len(Head._fields) - 2)),
        numbers=jnp.zeros((len(Lane), 1), jnp.int32),
        await_count=lane,
        failed=zero + rows,
        times=times[None],
        cells=jnp.zeros((1, cells + 1, 2), jnp.int32),
    )
    none = {Lane.LOST: lane + rows, Lane.AWAIT_ROW: lane + rows, Lane.AWAIT_CELL: lane + NONE}
    return orders, tables, carry.with_numbers(none), zero == 0


def _with_trash(program: Program) -> jax.Array:
    """Return the program's commands and the trash row, int32 [N + 1, FIELDS]."""
    return jnp.concatenate([program.fields, jnp.asarray(nothing(1, program.rows))])


_STATIC = ("cells", "stops", "coupling")
_compiled = compiled(_simulate, QUICK_TO_RUN, static_argnames=_STATIC)
_compiled_quickly = compiled(_simulate, QUICK_TO_COMPILE, static_argnames=_STATIC)
SHORT = 4096  # commands of all cards that run in less time than the compiler takes to make them run faster


def _schedule(program: Program, end: Carry) -> Schedule:
    rows, fields = program.rows, _with_trash(program)
    times = end.times[0, :rows]
    phase = times[:, Time.PHASE]
    code = result_codes(fields[:rows], phase)
    lost = jnp.append(code, 0)[end.number(Lane.LOST)[0]]
    is_dropped = (phase < Phase.DONE) & (phase != Phase.EMPTY)

    def instant(column: Time) -> Instant:
        return Instant(times[:, column], times[:, column + 1])

    return Schedule(
        instant(Time.READY_HI),
        instant(Time.START_HI),
        instant(Time.END_HI),
        phase=jnp.where(is_dropped, Phase.DROPPED, phase),
        code=code,
        is_stuck=end.is_stuck[0],
        device_error=lost,
    )


def _check_coupling(program: Program, coupling: Coupling) -> None:
    batch = program.fields.shape[:-2]
    if not batch or batch[-1] != coupling.cards:
        raise ValueError(f"coupling joins {coupling.cards} cards: the program has batch axes {list(batch)}")
    known = concrete(program.fields)
    if known is None:
        return
    is_meeting = known[..., Field.KIND] == Kind.RENDEZVOUS
    card = np.broadcast_to(np.arange(coupling.cards)[:, None], is_meeting.shape)[is_meeting]
    place = known[..., Field.VALUE_LO][is_meeting]
    channel, rank = place // coupling.width, place % coupling.width
    is_known = (channel < len(coupling.channels)) & (
        rank < coupling.sizes()[np.minimum(channel, len(coupling.channels) - 1)]
    )
    is_known &= coupling.members().reshape(-1)[np.where(is_known, place, 0)] == card
    if not is_known.all():
        wrong = np.argmin(is_known)
        raise ValueError(
            f"card {card[wrong]} has a rendezvous of rank {rank[wrong]} in channel {channel[wrong]}: not its own"
        )
    if (known[..., Field.DEPENDS][is_meeting] != NONE).any():
        raise ValueError("a rendezvous has DEPENDS: let an event wait before it depend on that command")


def _check_cells(program: Program, cells: int) -> None:
    known = concrete(program.fields)
    used = 0 if known is None else int(known[..., Field.CELL].max(initial=0))
    if used >= cells:
        raise ValueError(f"cells = {cells}: a mark of the program uses cell {used}; give cells={used + 1} or more")
