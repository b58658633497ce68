"""Membership under the axis name: each card's group and rank, as tables that are looked up by card number."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.hccl.carrier import AXIS, is_destroyed
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.results import HcclError, HcclResult


def check_cards(comm: Communicator, cards: int) -> None:
    """Refuse a communicator that was made for another number of cards than there are, or was destroyed.

    Raises:
      HcclError: PARA, NOT_FOUND.
    """
    if comm.home is not None and is_destroyed(comm.home.number):
        raise HcclError(HcclResult.NOT_FOUND, f"communicator {comm.name} was destroyed; create another one")
    if comm.cards != cards:
        raise HcclError(HcclResult.PARA, f"communicator {comm.name} is for {comm.cards} cards: {cards} cards run")


def my_rank(comm: Communicator) -> jax.Array:
    """Return the rank of this card in its group, -1 for a card without one; int32."""
    check_cards(comm, lax.axis_size(AXIS))
    table = np.full(comm.cards, -1, np.int32)
    for group in comm.groups:
        table[list(group)] = np.arange(comm.size)
    return jnp.asarray(table)[lax.axis_index(AXIS)]


def gather_group(x: jax.Array, comm: Communicator) -> jax.Array:
    """Return what all ranks of this card's group hold, [size, ...] in order of rank.

    Under ``vmap`` the result is one array for all cards as long as there is one group.
    """
    check_cards(comm, lax.axis_size(AXIS))
    everything = lax.all_gather(x, AXIS)
    if len(comm.groups) == 1:
        group = comm.groups[0]
        is_all = group == tuple(range(comm.cards))
        return everything if is_all else everything[np.array(group)]
    members = np.zeros((comm.cards, comm.size), np.int32)
    for group in comm.groups:
        members[list(group)] = group
    return everything[jnp.asarray(members)[lax.axis_index(AXIS)]]


def if_member(comm: Communicator, new: Any, old: Any) -> Any:
    """Return ``new`` on cards that have a rank, ``old`` elsewhere."""
    if len(comm.groups) * comm.size == comm.cards:
        return new
    return jnp.where(my_rank(comm) >= 0, new, old)
