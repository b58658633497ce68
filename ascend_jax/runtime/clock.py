"""Time as two int32 limbs: exact to 1 ns for 36,000 years, without 64-bit integers.

A time is ``(hi, lo)`` with ``0 <= lo < 2**30`` and stands for ``hi * 2**30 + lo`` nanoseconds. float32 would be
exact for 17 ms only and int32 for 2 s; the second limb costs one add where a time is moved.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime.layout import LIMB


class Instant(NamedTuple):
    """A time or a duration in ns; both limbs int32 and of one shape."""

    hi: jax.Array
    lo: jax.Array


def add(time: Instant, delta_ns: jax.Array) -> Instant:
    """Return ``time`` moved by ``delta_ns`` (int32, 0..LIMB)."""
    low = time.lo + delta_ns
    return Instant(time.hi + (low >> 30), low & (LIMB - 1))


def plus(time: Instant, delta: Instant) -> Instant:
    """Return the sum of a time and a duration."""
    low = time.lo + delta.lo
    return Instant(time.hi + delta.hi + (low >> 30), low & (LIMB - 1))


def is_before(a: Instant, b: Instant) -> jax.Array:
    """Return whether ``a < b``."""
    return (a.hi < b.hi) | ((a.hi == b.hi) & (a.lo < b.lo))


def later(a: Instant, b: Instant) -> Instant:
    """Return the later of two times."""
    take = is_before(a, b)
    return Instant(jnp.where(take, b.hi, a.hi), jnp.where(take, b.lo, a.lo))


def until(now: Instant, then: Instant) -> jax.Array:
    """Return ``then - now`` in ns, at least 0 and capped at LIMB (a step may be shorter than the wait)."""
    borrow = (then.lo < now.lo).astype(jnp.int32)
    limbs = then.hi - now.hi - borrow
    low = then.lo - now.lo + borrow * LIMB
    return jnp.where(limbs < 0, 0, jnp.where(limbs > 0, LIMB, low))


def of_ms(ms: jax.Array) -> Instant:
    """Return whole milliseconds, int32 >= 0, as a duration."""
    high = (ms >> 15) * 15_625  # a million ns is 15625 << 6, so this counts 2**21 ns
    low = (ms & (2**15 - 1)) * 15_625  # and this 2**6 ns
    hi, lo = (high >> 9) + (low >> 24), ((high & 511) << 21) + ((low & (2**24 - 1)) << 6)
    return Instant(hi + (lo >> 30), lo & (LIMB - 1))


def minus(left: Instant, delta_ns: jax.Array) -> Instant:
    """Return a duration shortened by ``delta_ns`` (int32, 0..LIMB, not more than the duration)."""
    low = left.lo - delta_ns
    return Instant(left.hi + (low >> 30), low & (LIMB - 1))


def from_ns(duration_ns: jax.Array) -> Instant:
    """Round a float32 duration up to whole ns, once, and split it."""
    whole = jnp.ceil(jnp.asarray(duration_ns, jnp.float32))
    hi = jnp.floor(whole / LIMB)
    return Instant(hi.astype(jnp.int32), (whole - hi * LIMB).astype(jnp.int32))


def to_ns(hi: np.ndarray, lo: np.ndarray) -> np.ndarray:
    """Return absolute ns as host-side int64.

    >>> int(to_ns(1, 5))
    1073741829
    """
    return np.asarray(hi, np.int64) * LIMB + np.asarray(lo, np.int64)
