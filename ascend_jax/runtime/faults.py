"""Failures: planned ones, and which code a command that failed answers with."""

import dataclasses

import jax
import jax.numpy as jnp

from ascend_jax.runtime import status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.handles import free_slot
from ascend_jax.runtime.layout import Clock, Fault, Field, Kind, Phase, Reach, Resource
from ascend_jax.runtime.rows import Number, put_if
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code

# a core or device that has trapped is lost; a copy or AI CPU task that failed takes only its stream (CANN, E-codes)
DEVICE_CODES = (
    Code.RT_TS_ERROR,
    Code.RT_AICORE_TIMEOUT,
    Code.RT_AICORE_EXCEPTION,
    Code.RT_VECTOR_CORE_TIMEOUT,
    Code.RT_VECTOR_CORE_EXCEPTION,
    Code.RT_DEVICE_MEM_ERROR,
    Code.RT_HBM_MULTI_BIT_ECC_ERROR,
)


def result_codes(fields: jax.Array, phase: jax.Array) -> jax.Array:
    """Return the code each command answers with, int32 [N + 1]: 0, its fault, or its timeout.

    A kernel past the operator timeout answers 507014 if it holds cube cores and 507034 if not, a wait 107019.
    """
    is_cube = fields[:, Field.NEED + Resource.CUBE] > 0
    core = jnp.where(is_cube, Code.RT_AICORE_TIMEOUT, Code.RT_VECTOR_CORE_TIMEOUT)
    late = jnp.where(fields[:, Field.KIND] == Kind.KERNEL, core, Code.RT_WAIT_TIMEOUT)
    failed = jnp.where(phase == Phase.FAULTED, fields[:, Field.FAULT], Code.SUCCESS)
    return jnp.where(phase == Phase.EXPIRED, late, failed)


@stage
def _plan(card: CardState, code: Number, reach: Number, skip: Number, site: Number) -> CardState:
    unused = card.faults[:, Fault.SEQUENCE] < card.clock[Clock.ENQUEUED]  # never filled, or long past
    is_free, slot = free_slot(1 - unused.astype(jnp.int32))
    code, reach, skip = (jnp.asarray(number, jnp.int32) for number in (code, reach, skip))
    is_known = (reach == Reach.STREAM) | (reach == Reach.DEVICE)
    answer = first_code(
        ((code <= 0) | ~is_known | (skip < 0), Code.RT_PARAM_INVALID), (~is_free, Code.OBJECT_TABLE_FULL)
    )
    entry = jnp.stack([card.clock[Clock.ENQUEUED] + skip, code, reach])
    faults = put_if(answer == Code.SUCCESS, card.faults, slot, entry)
    return status.note(dataclasses.replace(card, faults=faults), answer, site)


@verb
def inject_fault(
    card: CardState, code: Number, *, skip: Number = 0, reach: Number | None = None, site: Site = None
) -> CardState:
    """Plan a failure: the command enqueued next fails when it ends, or the one ``skip`` commands later.

    The launch still answers 0; the code shows at a later synchronize or query (CANN: errors of asynchronous work). What
    the command would have written is not written.

    Args:
      card: The card.
      code: Code with which it fails, for example ``Code.RT_AICORE_EXCEPTION``.
      skip: How many commands still succeed before it; kernels, copies, records and waits each count as one.
      reach: ``Reach.STREAM`` or ``Reach.DEVICE``; by default cores and memory take the device, all else its stream.
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status 107000 for a code or reach that is none, 900005 when ``max_faults`` are planned already.
    """
    if reach is None:
        is_core = jnp.isin(jnp.asarray(code, jnp.int32), jnp.array(DEVICE_CODES))
        reach = jnp.where(is_core, Reach.DEVICE, Reach.STREAM).astype(jnp.int32)
    return _plan(card, code, reach, skip, site)
