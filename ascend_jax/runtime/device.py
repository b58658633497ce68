"""The device as a whole: who uses it, what resetting it takes away, and what a program can ask about it."""

import dataclasses

import jax
import jax.numpy as jnp

from ascend_jax.runtime import layout
from ascend_jax.runtime.advance import ALL_STREAMS, Goal
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import answer
from ascend_jax.runtime.contexts import PRIMARY, make_current, open_context, remove_contexts
from ascend_jax.runtime.drops import drop, vacate
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.handles import has_context
from ascend_jax.runtime.heap import emptied
from ascend_jax.runtime.layout import Context, Device, Pool, Stream
from ascend_jax.runtime.memory_info import mem_get_info
from ascend_jax.runtime.rows import Number, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code
from ascend_jax.runtime.streams import GREATEST_PRIORITY, LEAST_PRIORITY, drain, streams_free
from ascend_jax.runtime.synchronize import look


@stage
def _set(card: CardState, site: Number) -> CardState:
    is_closed = card.contexts[PRIMARY, Context.ALIVE] == 0
    card = make_current(open_context(card, PRIMARY, PRIMARY, is_closed), PRIMARY, jnp.bool_(True))
    device = with_entries(card.device, {Device.USERS: card.device[Device.USERS] + 1})
    return answer(dataclasses.replace(card, device=device), jnp.int32(Code.SUCCESS), site, layout.NONE)[0]


@stage(static=("is_forced",))
def _plan_reset(card: CardState, site: Number, *, is_forced: bool) -> tuple:
    """Count one user less; return the card and the users that are left, or NONE if the call is refused."""
    users = card.device[Device.USERS]
    code = first_code((users == 0, Code.RT_CONTEXT_NULL))
    left = jnp.where(code == Code.SUCCESS, 0 if is_forced else users - 1, layout.NONE)
    return answer(card, code, site, layout.NONE)[0], left


@stage
def _finish_reset(card: CardState, left: jax.Array) -> CardState:
    is_last = left == 0
    card = remove_contexts(card, jnp.broadcast_to(is_last, card.contexts.shape[:1]))
    users = jnp.where(left == layout.NONE, card.device[Device.USERS], left)
    error = jnp.where(is_last, Code.SUCCESS, card.device[Device.ERROR])
    peers = jnp.where(is_last, 0, card.device[Device.PEERS])
    failures = jnp.where(is_last, Code.SUCCESS, card.streams[:, Stream.ERROR])  # the host's own stream stays
    return dataclasses.replace(
        card,
        hbm=jax.tree.map(lambda empty, old: jnp.where(is_last, empty, old), emptied(card.hbm), card.hbm),
        streams=with_entries(card.streams, {Stream.ERROR: failures}),
        values=jnp.where(is_last, 0, card.values),
        pools=vacate(card.pools, jnp.broadcast_to(is_last, card.pools.shape[:1]), {}, Pool),
        virtual=jnp.where(is_last, 0, card.virtual),
        device=with_entries(card.device, {Device.USERS: users, Device.ERROR: error, Device.PEERS: peers}),
    )


@stage
def _abort(card: CardState, site: Number) -> CardState:
    code = first_code((~has_context(card), Code.RT_CONTEXT_NULL))
    ok = code == Code.SUCCESS
    card = drop(card, jnp.broadcast_to(ok, card.streams.shape[:1]))
    error = card.device[Device.ERROR]
    aborted = jnp.where(ok & (error == Code.SUCCESS), Code.RT_DEVICE_TASK_ABORT, error)
    card = dataclasses.replace(card, device=with_entries(card.device, {Device.ERROR: aborted}))
    return answer(card, code, site, layout.NONE)[0]


@verb
def set_device(card: CardState, *, site: Site = None) -> CardState:
    """Use the device from the calling thread (``aclrtSetDevice``): count one user, make the primary context current.

    A primary context that ``reset_device`` has taken away is made again, with its default stream. ``init`` has already
    set the device once, for thread 0.
    """
    return _set(card, site)


@verb
def reset_device(card: CardState, *, site: Site = None) -> CardState:
    """Count one user of the device less; after the last one, release what is on it (``aclrtResetDevice``).

    Releasing waits for all streams, then takes away every context, stream, event, notify and block of device memory,
    and forgets the error with which the device was lost; pinned host memory stays. No thread has a current context
    then, so calls that need one answer 107002 until ``set_device``.

    Status 107002 if the device has no user: the manual calls that an error without naming a code. 900003 if a stream
    can never finish, and then nothing is released.
    """
    card, left = _plan_reset(card, site, is_forced=False)
    streams = jnp.where(left == 0, ALL_STREAMS, layout.NONE)
    return _finish_reset(*drain(card, Goal(stream=streams), left, site))


@verb
def reset_device_force(card: CardState, *, site: Site = None) -> CardState:
    """Release what is on the device whatever the number of its users (``aclrtResetDeviceForce``); see `reset_device`.

    Does not wait: what is unfinished is dropped, so that a device that hangs can be released too (the manual has it
    wait like ``aclrtResetDevice``). Status 107002 if the device has no user.
    """
    return _finish_reset(*_plan_reset(look(card, site), site, is_forced=True))


@verb
def device_task_abort(card: CardState, *, site: Site = None) -> CardState:
    """Drop everything unfinished on the device, what is running too (``aclrtDeviceTaskAbort``).

    The device counts as lost with 107022, unless an earlier error has lost it: it takes no more commands, and
    synchronisations answer that code, until ``reset_device``. Status 107002 without a current context.
    """
    return _abort(look(card, site), site)


def primary_context_state(card: CardState) -> jax.Array:
    """Return 1 if the primary context is active, else 0 (``aclrtGetPrimaryCtxState``); batch axes of ``card``."""
    return (card.device[..., Device.USERS] > 0).astype(jnp.int32)


def stream_priority_range(card: CardState) -> tuple[int, int]:
    """Return (least, greatest) priority of a stream (``aclrtDeviceGetStreamPriorityRange``; measured on a 910C).

    >>> import ascend_jax as aj
    >>> aj.stream_priority_range(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0))
    (7, 0)
    """
    del card  # every product has the same
    return LEAST_PRIORITY, GREATEST_PRIORITY


def device_info(card: CardState) -> dict[str, int | str]:
    """Return the card's identity and sizes; host-side, for one card.

    Keys follow ``aclrtGetDeviceInfo`` and ``aclrtGetSocName`` in plain words: soc_name, cube_cores, vector_cores,
    clock_hz, hbm_bytes, hbm_free_bytes, l2_bytes, l1_bytes, l0a_bytes, l0b_bytes, l0c_bytes, ub_bytes, streams_free and
    calibration ("calibrated" where published measurements back the times of this chip).

    >>> import ascend_jax as aj
    >>> info = aj.device_info(aj.init(aj.chip("Ascend910B4"), hbm_backing_bytes=0))
    >>> info["soc_name"], info["cube_cores"], info["hbm_bytes"] >> 30
    ('Ascend910B4', 20, 32)
    """
    free_bytes, _ = mem_get_info(card)
    memories = ("hbm", "l2", "l1", "l0a", "l0b", "l0c", "ub")
    sizes = ("cube_cores", "vector_cores", "clock_hz", *(f"{memory}_bytes" for memory in memories))
    return {
        "soc_name": card.chip.name,
        "calibration": card.chip.calibration,
        **{name: int(card.chip[name]) for name in sizes},
        "hbm_free_bytes": free_bytes,
        "streams_free": int(streams_free(card)),
    }
