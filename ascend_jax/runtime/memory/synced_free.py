"""Frees that wait for the device first."""

from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import Site, concrete, verb
from ascend_jax.runtime.memory.allocation import free, free_host
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import last_code
from ascend_jax.runtime.synchronize import synchronize_device


@verb
def free_with_dev_sync(card: CardState, pointer: Number, *, site: Site = None) -> CardState:
    """Give device memory back after all work of the device is done (``aclrtFreeWithDevSync``).

    Status as :func:`synchronize_device`, and nothing is freed if that fails; else as :func:`free`.
    """
    card, is_synced = synced(card, site)
    return free(card, pointer, site=site) if is_synced else card


@verb
def free_host_with_dev_sync(card: CardState, pointer: Number, *, site: Site = None) -> CardState:
    """Give host memory back after all work of the device is done (``aclrtFreeHostWithDevSync``); status likewise."""
    card, is_synced = synced(card, site)
    return free_host(card, pointer, site=site) if is_synced else card


def synced(card: CardState, site: Site) -> tuple[CardState, bool]:
    """Synchronize the device; return the card and whether that succeeded, as far as Python knows."""
    card = synchronize_device(card, site=site)
    code = concrete(last_code(card))
    return card, code is None or int(code) == Code.SUCCESS
