"""Task groups: which commands of a capture may be replaced later by the same calls with other arguments.

A capture notes where a group lies in its program; :func:`update_task_group` returns the program with the tasks of the
group replaced by those of another capture. What was executed before stays as it was: programs are values.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime.capture import origins_of, unsupported
from ascend_jax.runtime.codes import AscendError, Code
from ascend_jax.runtime.commands import answer
from ascend_jax.runtime.edge import Site, concrete, stage, verb
from ascend_jax.runtime.handles import find_stream
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import NONE, TASKS, Capture, Field, Phase, Stream, Time
from ascend_jax.runtime.program import Program
from ascend_jax.runtime.rows import Number, get_row, get_rows, put_if, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing

PLACE = [Field.STREAM, Field.SEQUENCE, Field.NEXT, Field.DEPENDS, Field.POSITION]  # what a replaced task keeps


def _captured_so_far(card: CardState, slot: jax.Array) -> jax.Array:
    """Return how many commands the capture that a stream is in has recorded."""
    fields, rows = card.table.fields[:-1], card.table.rows
    is_captured = card.table.times[:rows, Time.PHASE] == Phase.CAPTURED
    origins = origins_of(card, fields, is_captured)
    return (is_captured & (get_rows(origins, fields[:, Field.STREAM]) == get_row(origins, slot))).sum(dtype=jnp.int32)


@stage
def _mark(card: CardState, stream: Number, is_end: Number, site: Number) -> tuple:
    code, slot = find_stream(card, stream)
    entry, is_end = get_row(card.streams, slot), jnp.asarray(is_end, jnp.int32) == 1
    is_open = entry[Stream.CAPTURE_GROUP] != 0
    rules = first_code(
        (entry[Stream.CAPTURE] == Capture.NONE, Code.RT_STREAM_NOT_CAPTURED),
        (is_open != is_end, Code.STREAM_TASK_GROUP_STATUS),
    )
    code = first_failing(unsupported(card), code, rules)
    now = _captured_so_far(card, slot)
    noted = with_entries(entry, {Stream.CAPTURE_GROUP: jnp.where(is_end, 0, now + 1)})
    streams = put_if(code == Code.SUCCESS, card.streams, slot, noted)
    card = spend(dataclasses.replace(card, streams=streams), card.chip["host_event_ns"])
    card, code = answer(card, code, site, stream)
    return card, jnp.where(code == Code.SUCCESS, jnp.stack([entry[Stream.CAPTURE_GROUP] - 1, now]), NONE)


@verb
def capture_task_group_begin(card: CardState, stream: Number, *, site: Site = None) -> CardState:
    """Begin a group of tasks in a stream that is being captured (``aclmdlRICaptureTaskGrpBegin``).

    Status 107002 and 107003 as every stream call, 107029 if the stream is not captured, 107033 if a group is
    open there.
    """
    return _mark(card, stream, 0, site)[0]


@verb
def capture_task_group_end(card: CardState, stream: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """End the group that was begun in ``stream`` (``aclmdlRICaptureTaskGrpEnd``).

    Returns:
      The card and the group: the rows of the program from the first up to the second number, int32 [2]; -1 on failure.
      Status as :func:`capture_task_group_begin`, 107033 if no group is open. A capture that ends with an open group
      answers 107034.
    """
    return _mark(card, stream, 1, site)


def update_task_group(program: Program, group: jax.Array, replacement: Program) -> Program:
    """Return ``program`` with the tasks of a group replaced (``aclmdlRICaptureTaskUpdateBegin`` and ``...End``).

    Args:
      program: A captured program.
      group: What :func:`capture_task_group_end` returned for it.
      replacement: A capture of the same calls with other arguments, in one stream; its marks do not count.

    Raises:
      AscendError: 207019 if the replacement has other kinds of tasks, or another number of them.
      ValueError: The group is not one of this program, or is traced.

    >>> import ascend_jax as aj
    >>> card, stream = aj.create_stream(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 20))
    >>> card, pointer = aj.malloc(card, 64)
    >>> card = aj.capture_task_group_begin(aj.capture_begin(card, stream), stream)
    >>> card, group = aj.capture_task_group_end(aj.memset_async(card, pointer, 7, 64, stream), stream)
    >>> card, program = aj.capture_end(card, stream)
    >>> card, other = aj.capture_end(aj.memset_async(aj.capture_begin(card, stream), pointer, 9, 64, stream), stream)
    >>> program = aj.update_task_group(program, group, other)
    >>> card = aj.synchronize_device(aj.execute_program(card, program, stream))
    >>> card, out = aj.download(card, pointer, (2,), "uint8")
    >>> out.tolist()
    [9, 9]
    """
    ends = concrete(group)
    if ends is None or program.fields.ndim != 2 or replacement.fields.ndim != 2:
        raise ValueError("a task group is updated outside jit, in one program")
    first, last = (int(end) for end in ends)
    if not 0 <= first <= last <= program.rows:
        raise ValueError(
            f"group = [{first}, {last}]: the program has rows 0 to {program.rows}; capture the group again"
        )
    fields, operands = np.array(program.fields), np.array(program.operands)
    given = np.asarray(replacement.fields)
    rows = first + np.flatnonzero(np.isin(fields[first:last, Field.KIND], TASKS))
    new = np.flatnonzero(np.isin(given[:, Field.KIND], TASKS))
    if fields[rows, Field.KIND].tolist() != given[new, Field.KIND].tolist():
        raise AscendError(
            Code.RT_FEATURE_NOT_SUPPORT_UPDATE_OP,
            f"the group has {len(rows)} tasks of kinds {fields[rows, Field.KIND].tolist()}, "
            f"the replacement {len(new)} of kinds {given[new, Field.KIND].tolist()}",
        )
    place = fields[rows[:, None], PLACE]
    fields[rows], operands[rows] = given[new], np.asarray(replacement.operands)[new]
    fields[rows[:, None], PLACE] = place
    kernels = (*program.kernels, *(one for one in replacement.kernels if one not in program.kernels))
    for row in rows[fields[rows, Field.KERNEL] != NONE]:
        fields[row, Field.KERNEL] = kernels.index(replacement.kernels[fields[row, Field.KERNEL]])
    return Program(jnp.array(fields), jnp.array(operands), program.streams, kernels)
