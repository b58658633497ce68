"""Dispatch: who can act now, how many blocks start, and what they start with."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ascend_jax.runtime.apart import sum_of_pairs
from ascend_jax.runtime.clock import Instant, is_before
from ascend_jax.runtime.heads import Bits, Head, bit
from ascend_jax.runtime.lanes import NOBODY, Carry, Tables, groups_of, is_present, slots_of
from ascend_jax.runtime.layout import FOREVER_HI, LIMB, NONE, UNREADY, WORK_CHUNK, Resource

ALL = 255  # blocks of one command that can run at one time; more than a chip has cores


class Look(NamedTuple):
    """What the heads could do now, [S, B]."""

    turn: jax.Array  # slot if it is over, S + slot for a mark, 2 S + slot past a deadline, else NOBODY
    key: jax.Array
    wake_hi: jax.Array
    wake_lo: jax.Array
    claims: tuple[jax.Array, ...]  # units that waiting blocks ask for, packed (see _packing)
    held: tuple[jax.Array, ...]  # units that running blocks hold


def look(tables: Tables, carry: Carry) -> Look:
    """Return what the heads could do now; commands that are issued by now become ready."""
    head, now, slots = carry.head, carry.now, len(carry.head.row)
    is_task = bit(head.bits, Bits.TASK) == 1
    present = is_present(carry)
    is_due = present & ~is_before(now, Instant(head.wake_hi, head.wake_lo))
    comes, is_late = is_due & (head.key == UNREADY), is_due & (head.key != UNREADY)
    key = jnp.where(comes, (bit(head.bits, Bits.PRIORITY, 3) << 27) + carry.instants, head.key)
    deadline = _after(now, head.timeout_us)
    has_deadline = ~is_task & (head.timeout_us > 0)  # a task's deadline counts from its start
    waiting, first, second = groups_of(head.counts)
    is_over = present & is_task & (head.start_hi >= 0) & (head.counts == 0)
    may = present & ~is_task & (key != UNREADY) & (head.counts == 0)
    turn = jnp.where(may, slots, jnp.where(is_late, 2 * slots, NOBODY))
    turn = jnp.where(is_before(now, tables.limit), turn, NOBODY)
    asks = present & is_task & (key != UNREADY) & (waiting > 0)
    asked, running = jnp.where(asks, waiting, 0), jnp.where(is_task, first + second, 0)
    return Look(
        turn=jnp.where(is_over, slots_of(head), jnp.where(turn == NOBODY, NOBODY, turn + slots_of(head))),
        key=key,
        wake_hi=jnp.where(comes, jnp.where(has_deadline, deadline.hi, FOREVER_HI), head.wake_hi),
        wake_lo=jnp.where(comes, jnp.where(has_deadline, deadline.lo, 0), head.wake_lo),
        claims=_packed(head, asked),
        held=_packed(head, running),
    )


def _packing(slots: int) -> tuple[dict[Resource, int], ...]:
    """Return which resources share a word, and at which bit each begins: few words if the sums over streams fit."""
    if slots > 128:
        return tuple({resource: 0} for resource in Resource)
    return {Resource.CUBE: 0, Resource.VECTOR: 16}, {Resource.H2D: 0, Resource.D2H: 8, Resource.D2D: 16}


def _needs(head: Head) -> list[jax.Array]:
    """Return the units of each resource that a block of each stream needs."""
    engine = bit(head.bits, Bits.ENGINE, 2)
    engines = [(engine == number).astype(jnp.int32) for number in (1, 2, 3)]
    return [bit(head.bits, Bits.CUBE), bit(head.bits, Bits.VECTOR, 2), *engines]


def _packed(head: Head, blocks: jax.Array) -> tuple[jax.Array, ...]:
    """Return the units of so many blocks; more than the chip has of a resource count as ALL, or 1 copy engine."""
    needs = _needs(head)
    counts = [jnp.minimum(blocks, ALL if resource <= Resource.VECTOR else 1) for resource in Resource]
    words = _packing(len(head.row))
    return tuple(sum((counts[one] * needs[one] << shift for one, shift in word.items()), 0 * blocks) for word in words)


def grant(capacity: jax.Array, head: Head, look: Look, held: tuple, is_idle: jax.Array) -> jax.Array:
    """Return how many blocks of each stream start now, int32 [S, B].

    In order of (priority, instant at which ready, slot); a command leaves free what those before it ask for, so nobody
    overtakes in a queue for a unit, and looking twice at one instant grants nothing new.
    """
    slots = slots_of(head)

    def ahead(key: jax.Array, slot: jax.Array, claim: jax.Array) -> jax.Array:
        return jnp.where(key < look.key + (slot < slots), claim, 0)

    taken = [mine + sum_of_pairs(ahead, look.key, slots, claim) for mine, claim in zip(held, look.claims, strict=True)]
    needs, fits = _needs(head), jnp.full_like(head.row, ALL)
    for word, packing in zip(taken, _packing(len(slots)), strict=True):
        for resource, shift in packing.items():
            width = (16 if resource <= Resource.VECTOR else 8) if len(packing) > 1 else 32
            left = capacity[resource] - (word if width == 32 else (word >> shift) & ((1 << width) - 1))
            need = needs[resource]  # 0, 1 or 2, so that a shift divides
            fits = jnp.minimum(fits, jnp.where(need > 0, jnp.maximum(left, 0) >> (need >> 1), ALL))
    waiting, first, second = groups_of(head.counts)
    some = jnp.minimum(fits, waiting)
    all_or_none = jnp.where(some >= waiting, waiting, 0)
    granted = jnp.where(bit(head.bits, Bits.MODE) == 1, all_or_none, some)
    has_room = (first == 0) | (second == 0)
    return jnp.where((look.key != UNREADY) & has_room & is_idle, granted, 0)  # a mark has no blocks waiting


def begin(carry: Carry, look: Look, granted: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """Let granted blocks start as a group; return what changes of the heads, and how many blocks of each run."""
    head, now = carry.head, carry.now
    begins, is_task = granted > 0, bit(head.bits, Bits.TASK) == 1
    is_first = begins & (head.start_hi == NONE)
    _, first, second = groups_of(head.counts)
    work = head.first + jnp.where(is_first, head.second, 0)
    carries_over = work > WORK_CHUNK
    work -= carries_over * WORK_CHUNK
    chunks = head.third + carries_over
    in_first, in_second = begins & (first == 0), begins & (first != 0)
    deadline = _after(now, head.timeout_us)
    has_deadline = is_first & (head.timeout_us > 0)
    counts = head.counts - (granted << 16) + jnp.where(in_first, granted, granted << 8)
    changed = {
        "wake_hi": jnp.where(has_deadline, deadline.hi, look.wake_hi),
        "wake_lo": jnp.where(has_deadline, deadline.lo, look.wake_lo),
        "start_hi": jnp.where(is_first, now.hi, head.start_hi),
        "start_lo": jnp.where(is_first, now.lo, head.start_lo),
        "counts": counts,
        "chunks": jnp.where(
            in_first,
            (head.chunks & ~0xFFFF) | chunks,
            jnp.where(in_second, (head.chunks & 0xFFFF) | (chunks << 16), head.chunks),
        ),
        "rest_first": jnp.where(in_first, work, head.rest_first),
        "rest_second": jnp.where(in_second, work, head.rest_second),
    }
    return changed, jnp.where(is_task, first + second + granted, 0)


def _after(now: Instant, wait_us: jax.Array) -> Instant:
    """Return ``now`` plus microseconds."""
    thousands = (wait_us >> 15) * 1000  # of 2**15 us, so that nothing overflows
    low = ((thousands & (2**15 - 1)) << 15) + (wait_us & (2**15 - 1)) * 1000
    hi, low = now.hi + (thousands >> 15) + (low >> 30), (low & (LIMB - 1)) + now.lo
    return Instant(hi + (low >> 30), low & (LIMB - 1))
