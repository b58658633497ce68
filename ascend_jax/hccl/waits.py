"""Waits of all cards of a cluster for what they have queued: calls of the runtime that every card makes together."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ascend_jax.hccl.cluster import Cluster, on_cards
from ascend_jax.runtime import synchronize
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.state import CardState


@verb
def synchronize_stream(
    cluster: Cluster, stream: ArrayLike, *, timeout_ms: ArrayLike = -1, site: Site = None
) -> Cluster:
    """Block the host of every card until its stream is done; ``stream`` and ``timeout_ms`` may differ ([C]).

    Status of each card as :func:`ascend_jax.synchronize_stream`: a collective that some ranks did not come to is
    107019, one on which they disagree 507000; :func:`ascend_jax.hccl.explain_cluster` says who waits for whom.
    """
    return on_cards(cluster, _stream, *_each(cluster, stream, timeout_ms, site))[0]


@verb
def synchronize_event(cluster: Cluster, event: ArrayLike, *, timeout_ms: ArrayLike = -1, site: Site = None) -> Cluster:
    """Block the host of every card until its event has happened, as :func:`ascend_jax.synchronize_event`."""
    return on_cards(cluster, _event, *_each(cluster, event, timeout_ms, site))[0]


@verb
def synchronize_device(cluster: Cluster, *, timeout_ms: ArrayLike = -1, site: Site = None) -> Cluster:
    """Block the host of every card until all its streams are done, as :func:`ascend_jax.synchronize_device`."""
    return on_cards(cluster, _device, *_each(cluster, timeout_ms, site))[0]


def _each(cluster: Cluster, *numbers: Any) -> list[np.ndarray]:
    return [np.broadcast_to(np.asarray(number, np.int32), (cluster.size,)) for number in numbers]


def _stream(card: CardState, stream: jax.Array, timeout_ms: jax.Array, site: jax.Array) -> tuple[CardState, jax.Array]:
    return synchronize.synchronize_stream(card, stream, timeout_ms=timeout_ms, site=site), jnp.int32(0)


def _event(card: CardState, event: jax.Array, timeout_ms: jax.Array, site: jax.Array) -> tuple[CardState, jax.Array]:
    return synchronize.synchronize_event(card, event, timeout_ms=timeout_ms, site=site), jnp.int32(0)


def _device(card: CardState, timeout_ms: jax.Array, site: jax.Array) -> tuple[CardState, jax.Array]:
    return synchronize.synchronize_device(card, timeout_ms=timeout_ms, site=site), jnp.int32(0)
