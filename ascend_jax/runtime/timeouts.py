"""How long the device waits: for kernels and for waits, from now on, on the whole card."""

import dataclasses

import jax
import jax.numpy as jnp

from ascend_jax.runtime import status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.handles import has_context
from ascend_jax.runtime.layout import Device
from ascend_jax.runtime.rows import Number, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code
from ascend_jax.runtime.synchronize import timeout_of

LONGEST_MS = 2_147_483  # the engine counts microseconds


@stage(static=("hi", "lo"))
def _set(card: CardState, timeout_ms: Number, site: Number, *, hi: Device, lo: Device) -> CardState:
    ms = jnp.asarray(timeout_ms, jnp.int32)
    is_wrong = (ms < 0) | (ms > LONGEST_MS)
    code = first_code((~has_context(card), Code.RT_CONTEXT_NULL), (is_wrong, Code.RT_PARAM_INVALID))
    limbs = timeout_of(jnp.clip(ms, 0, LONGEST_MS))
    device = with_entries(card.device, {hi: limbs[0], lo: limbs[1]})
    device = jnp.where(code == Code.SUCCESS, device, card.device)
    return status.note(dataclasses.replace(card, device=device), code, site)


@verb
def set_op_execute_timeout(card: CardState, timeout_ms: Number | jax.Array, *, site: Site = None) -> CardState:
    """Let kernels enqueued from now on fail when they run longer (``aclrtSetOpExecuteTimeOutWithMs``); 0: never.

    A kernel past the limit ends there with 507014, or 507034 if it holds vector cores only, and the device is lost
    until it is reset. CANN starts with about 1091 s on A2 and A3, 547 s on inference products and 68 s on 910; a card
    here starts with none.

    Status 107000 for a negative limit or one above 35 minutes, 107002 without a current context.
    """
    return _set(card, timeout_ms, site, hi=Device.OP_TIMEOUT_HI, lo=Device.OP_TIMEOUT_LO)


@verb
def set_op_wait_timeout(card: CardState, timeout_s: Number | jax.Array, *, site: Site = None) -> CardState:
    """Let event, notify and value waits enqueued from now on fail after this (``aclrtSetOpWaitTimeout``); 0: never.

    A wait past the limit, counted from when it came to the head of its stream, fails with 107019; its stream goes on.

    Status as :func:`set_op_execute_timeout`.
    """
    timeout_ms = jnp.clip(jnp.asarray(timeout_s), -1, LONGEST_MS // 1000 + 1) * 1000
    return _set(card, timeout_ms, site, hi=Device.WAIT_TIMEOUT_HI, lo=Device.WAIT_TIMEOUT_LO)
