"""How long the device waits: for kernels and for waits, from now on, on the whole card."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ascend_jax.runtime import status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.handles import has_context
from ascend_jax.runtime.layout import Device, Field
from ascend_jax.runtime.rows import Number, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code
from ascend_jax.runtime.synchronize import timeout_of

MOST_S = (2**31 - 1) // 1000  # longer ones, beyond 24 days, end then


def milliseconds(timeout_s: Number | jax.Array) -> jax.Array:
    """Return whole seconds as ms; negative ones stay negative."""
    return jnp.clip(jnp.asarray(timeout_s), -1, MOST_S).astype(jnp.int32) * 1000


def is_wrong_timeout(timeout_s: Number | None) -> jax.Array:
    """Return whether a wait's own timeout in whole seconds is refused: below 0."""
    return jnp.asarray(0 if timeout_s is None else timeout_s, jnp.int32) < 0


def timeout_fields(timeout_s: Number | None) -> dict[Any, Number]:
    """Return the columns of a wait's own timeout, 0 = never; none: the card's wait timeout holds."""
    if timeout_s is None:
        return {}
    hi, lo = timeout_of(jnp.maximum(milliseconds(timeout_s), 0))
    return {Field.TIMEOUT_HI: hi, Field.TIMEOUT_LO: lo}


@stage(static=("hi", "lo"))
def _set(card: CardState, timeout_ms: Number, site: Number, *, hi: Device, lo: Device) -> CardState:
    ms = jnp.asarray(timeout_ms, jnp.int32)
    code = first_code((~has_context(card), Code.RT_CONTEXT_NULL), (ms < 0, Code.RT_PARAM_INVALID))
    limbs = timeout_of(jnp.maximum(ms, 0))
    device = with_entries(card.device, {hi: limbs[0], lo: limbs[1]})
    device = jnp.where(code == Code.SUCCESS, device, card.device)
    return status.note(dataclasses.replace(card, device=device), code, site)


@verb
def set_op_execute_timeout(card: CardState, timeout_ms: Number | jax.Array, *, site: Site = None) -> CardState:
    """Let kernels enqueued from now on fail when they run longer (``aclrtSetOpExecuteTimeOutWithMs``); 0: never.

    A kernel past the limit ends there with 507014, or 507034 if it holds vector cores only, and the device is lost
    until it is reset. A card starts with what its chip says (``op_timeout_s``: about 1091 s on A2 and A3, 547 s on
    inference products, 68 s on 910). CANN rounds limits up to its own steps; here they are exact.

    Status 107000 for a negative limit, 107002 without a current context.
    """
    return _set(card, timeout_ms, site, hi=Device.OP_TIMEOUT_HI, lo=Device.OP_TIMEOUT_LO)


@verb
def set_op_wait_timeout(card: CardState, timeout_s: Number | jax.Array, *, site: Site = None) -> CardState:
    """Let waits for events and values enqueued from now on fail after this (``aclrtSetOpWaitTimeout``); 0: never.

    A wait that has a timeout of its own keeps it; a wait for a notify always has. A wait past the limit, counted from
    when it came to the head of its stream, fails with 107019; its stream goes on.

    Status as :func:`set_op_execute_timeout`.
    """
    return _set(card, milliseconds(timeout_s), site, hi=Device.WAIT_TIMEOUT_HI, lo=Device.WAIT_TIMEOUT_LO)
