"""Motion: how far time can move, and what running blocks get done until then."""

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime.clock import Instant, is_before, until
from ascend_jax.runtime.heads import Head, groups_of
from ascend_jax.runtime.lanes import NEVER, NOBODY, Carry, Tables, is_present, slots_of
from ascend_jax.runtime.layout import CHUNK_NS, FOREVER_HI, LIMB, UNREADY, WORK_CHUNK
from ascend_jax.runtime.share import divide


def wait_ns(carry: Carry, head: Head, running: jax.Array, rate: jax.Array) -> jax.Array:
    """Return how long until something changes in each stream: ns, LIMB + whole limbs, or NEVER."""
    _, first, second = groups_of(head.counts)
    is_unready, ready, deadline = head.key == UNREADY, head.ready, head.deadline
    wake = Instant(*(jnp.where(is_unready, a, b) for a, b in zip(ready, deadline, strict=True)))
    soonest = jnp.where(is_present(carry) & (wake.hi < FOREVER_HI), away(carry.now, wake), NEVER)
    for blocks, chunks, rest in zip((first, second), _chunks(head.chunks), _rests(head), strict=True):
        work = jnp.minimum(rest, rate << 22)
        left = divide(work, rate)
        left = jnp.where(chunks > 0, CHUNK_NS, left + (left * rate < work))
        soonest = jnp.where((running > 0) & (blocks > 0), jnp.minimum(soonest, left), soonest)
    return soonest


def away(now: Instant, then: Instant) -> jax.Array:
    """Return how far a moment is: ns, or LIMB + whole limbs."""
    limbs = then.hi - now.hi - (then.lo < now.lo)
    return jnp.where(limbs > 0, LIMB + jnp.minimum(limbs, LIMB - 1), until(now, then))


def is_stuck(tables: Tables, wait_ns: jax.Array, is_idle: jax.Array) -> jax.Array:
    """Return in which lanes no next moment will ever come, bool [B]."""
    return is_idle & (wait_ns == NEVER) & (tables.limit.hi == FOREVER_HI)


def move(tables: Tables, carry: Carry, wait_ns: jax.Array, is_idle: jax.Array) -> tuple[jax.Array, Instant]:
    """Return (ns that running blocks get, the next moment), all [B]."""
    now, limit = carry.now, tables.limit
    is_far = wait_ns >= LIMB  # nothing runs
    delta_ns = jnp.where(is_idle & ~is_far, jnp.minimum(wait_ns, until(now, limit)), 0)
    low = now.lo + delta_ns
    far = jnp.where(
        is_idle & is_far & ~is_stuck(tables, wait_ns, is_idle), jnp.minimum(wait_ns - LIMB, limit.hi - now.hi + 1), 0
    )
    then = Instant(now.hi + far + (low >> 30), low & (LIMB - 1))
    beyond = (far > 0) & is_before(limit, then)
    return delta_ns, Instant(jnp.where(beyond, limit.hi, then.hi), jnp.where(beyond, limit.lo, then.lo))


def work(carry: Carry, head: Head, rate: jax.Array, delta_ns: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """Let running blocks work for ``delta_ns``; return what changes of the heads, and the slots of those over."""
    done = delta_ns * rate
    counts, rests, chunks = head.counts, [], []
    is_task = head.is_task
    groups = zip(groups_of(counts)[1:], _chunks(head.chunks), _rests(head), (0, 8), strict=True)
    for blocks, whole, rest, shift in groups:
        rest = rest - done
        borrows = (rest <= 0) & (whole > 0)
        rest += borrows * WORK_CHUNK
        counts -= jnp.where((rest <= 0) & is_task, blocks << shift, 0)
        rests.append(rest)
        chunks.append(whole - borrows)
    is_over = is_present(carry) & is_task & (counts == 0)
    changed = {"counts": counts, "chunks": chunks[0] | (chunks[1] << 16)}
    changed |= {"rest_first": rests[0], "rest_second": rests[1]}
    return changed, jnp.where(is_over, slots_of(head), NOBODY)


def _chunks(chunks: jax.Array) -> tuple[jax.Array, jax.Array]:
    return chunks & 0xFFFF, lax.shift_right_logical(chunks, jnp.full_like(chunks, 16))


def _rests(head: Head) -> tuple[jax.Array, jax.Array]:
    return head.rest_first, head.rest_second
