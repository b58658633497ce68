"""The host's side of the clock: what a call costs the program that makes it."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import clock, layout
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.edge import stage
from ascend_jax.runtime.layout import Clock
from ascend_jax.runtime.rows import with_entries
from ascend_jax.runtime.state import CardState, require_single

LONGEST_NS = 2**60


def host_now(card: CardState) -> Instant:
    """Return where the host program stands."""
    return Instant(card.clock[Clock.HOST_HI], card.clock[Clock.HOST_LO])


def set_host(card: CardState, now: Instant) -> CardState:
    """Return ``card`` with the host at ``now``."""
    words = with_entries(card.clock, {Clock.HOST_HI: now.hi, Clock.HOST_LO: now.lo})
    return dataclasses.replace(card, clock=words)


def spend(card: CardState, duration_ns: jax.Array) -> CardState:
    """Return ``card`` with the host busy for ``duration_ns`` (float32, rounded up to whole ns)."""
    return set_host(card, clock.plus(host_now(card), clock.from_ns(duration_ns)))


@stage
def _work(card: CardState, duration: tuple[Any, Any]) -> CardState:
    return set_host(card, clock.plus(host_now(card), Instant(*(jnp.asarray(limb, jnp.int32) for limb in duration))))


def duration_limbs(duration_ns: int | float | jax.Array, name: str, most_ns: int) -> tuple[Any, Any]:
    """Return how long the host program does something as (hi, lo) limbs of ns.

    Python ints and integer arrays are exact; a float is rounded up to whole ns.

    Raises:
      ValueError: The duration is negative, longer than ``most_ns`` or no number (in arrays, values below 0 and NaN
        count as 0, and longer ones as the longest).
    """
    if not isinstance(duration_ns, jax.Array):
        if not 0 <= duration_ns <= most_ns:
            raise ValueError(f"{name} = {str(duration_ns)[:24]}: must be from 0 to {most_ns}")
        return divmod(math.ceil(duration_ns), layout.LIMB)
    if jnp.issubdtype(duration_ns.dtype, jnp.integer):
        least = jnp.maximum(duration_ns, 0)
        if most_ns <= jnp.iinfo(duration_ns.dtype).max:
            least = jnp.minimum(least, most_ns)
        return (least >> 30).astype(jnp.int32), (least & (layout.LIMB - 1)).astype(jnp.int32)
    most = np.nextafter(np.float32(most_ns), np.float32(0))
    instant = clock.from_ns(jnp.clip(jnp.nan_to_num(duration_ns), 0.0, most))
    return instant.hi, instant.lo


def host_work(card: CardState, duration_ns: int | float | jax.Array) -> CardState:
    """Return ``card`` after the host program has computed for ``duration_ns`` (at most 36 years) on its own.

    What it takes and refuses is what :func:`duration_limbs` says.
    """
    return _work(card, duration_limbs(duration_ns, "duration_ns", LONGEST_NS))


def host_time_ns(card: CardState) -> int:
    """Return the host's simulated time in ns.

    >>> import ascend_jax as aj
    >>> aj.host_time_ns(aj.host_work(aj.init(aj.chip("Ascend910B2")), 1500))
    1500
    """
    require_single(card)
    hi, lo = np.asarray(card.clock)[[Clock.HOST_HI, Clock.HOST_LO]]
    return int(clock.to_ns(hi, lo))
