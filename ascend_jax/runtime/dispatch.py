"""Dispatch: who can act now, how many blocks start, and what they start with."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ascend_jax.runtime.apart import sum_of_pairs
from ascend_jax.runtime.clock import is_before
from ascend_jax.runtime.heads import Bits, Head, Work, bit, groups_of
from ascend_jax.runtime.lanes import NOBODY, Carry, Lane, Tables, Turn, is_present, slots_of
from ascend_jax.runtime.layout import UNREADY, WORK_CHUNK, Resource
from ascend_jax.runtime.rows import Number

ALL = 255  # blocks of one command that can run at one time; more than a chip has cores


class Look(NamedTuple):
    """What the heads could do now, [S, B]."""

    turn: jax.Array  # a Turn + the slot, or NOBODY
    key: jax.Array
    claims: tuple[jax.Array, ...]  # units that waiting blocks ask for, packed (see _packed)
    held: tuple[jax.Array, ...]  # units that running blocks hold


def look(tables: Tables, carry: Carry) -> Look:
    """Return what the heads could do now; commands that are issued by now become ready."""
    head, now = carry.head, carry.now
    present, is_task = is_present(carry), head.is_task
    comes = present & (head.key == UNREADY) & ~is_before(now, head.ready)
    key = jnp.where(comes, (bit(head.word(Work.BITS), Bits.PRIORITY, 3) << 27) + carry.number(Lane.INSTANTS), head.key)
    waiting, first, second = groups_of(head.counts)
    may = present & ~is_task & (key != UNREADY) & (head.counts == 0)
    has_passed = present & ~is_before(now, head.deadline)
    turn = jnp.where(may, Turn.MARK, jnp.where(has_passed, Turn.LATE, NOBODY))
    turn = jnp.where(is_before(now, tables.limit), turn, NOBODY)
    turn = jnp.where(present & is_task & (head.counts == 0), Turn.OVER, turn)
    asks = present & is_task & (key != UNREADY) & (waiting > 0)
    asked, running = jnp.where(asks, waiting, 0), jnp.where(is_task, first + second, 0)
    return Look(
        turn=turn | slots_of(head),  # NOBODY stays as it is
        key=key,
        claims=_packed(head, asked),
        held=_packed(head, running),
    )


def _is_packed(head: Head) -> bool:
    """Whether sums over all streams fit the words ``Work.CORES`` and ``Work.ENGINE``."""
    return len(head.row) <= 128


def _packed(head: Head, blocks: jax.Array) -> tuple[jax.Array, ...]:
    """Return the units of so many blocks; more than the chip has of a resource count as ALL, or 1 copy engine."""
    units = jnp.minimum(blocks, ALL) * head.word(Work.CORES), jnp.minimum(blocks, 1) * head.word(Work.ENGINE)
    return units if _is_packed(head) else _unpacked(units)


def _unpacked(units: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Return (cube cores, vector cores, one number per copy engine)."""
    cores, engines = units
    return cores & 0xFFFF, (cores >> 16) & 0xFFFF, engines & 255, (engines >> 8) & 255, (engines >> 16) & 255


def _free_for(capacity: jax.Array, head: Head, taken: tuple[jax.Array, ...]) -> jax.Array:
    """Return how many blocks of each stream fit beside what is taken, int32 [S, B], at most ALL."""
    if _is_packed(head):
        cube, vector, engines = taken[0] & 0xFFFF, (taken[0] >> 16) & 0xFFFF, taken[1]
    else:
        cube, vector, *counts = taken
        h2d, d2h, d2d = (jnp.minimum(count, 1) for count in counts)
        engines = h2d | (d2h << 8) | (d2d << 16)
    needs, engine = head.word(Work.CORES), head.word(Work.ENGINE)
    fits = jnp.where((engines & (engine * 255)) != 0, 0, jnp.where(engine != 0, 1, ALL))
    for is_needed, left in (
        ((needs & 0xFFFF) > 0, capacity[Resource.CUBE] - cube),
        ((needs >> 16) > 0, (capacity[Resource.VECTOR] - vector) >> (needs >> 17)),  # a block needs 1 or 2
    ):
        fits = jnp.minimum(fits, jnp.where(is_needed, jnp.maximum(left, 0), ALL))
    return fits


def grant(capacity: jax.Array, head: Head, look: Look, held: tuple, is_idle: jax.Array) -> jax.Array:
    """Return how many blocks of each stream start now, int32 [S, B].

    In order of (priority, instant at which ready, slot); a command leaves free what those before it ask for, so nobody
    overtakes in a queue for a unit, and looking twice at one instant grants nothing new.
    """
    slots = slots_of(head)

    def ahead(slot: Number, key: jax.Array, claim: jax.Array) -> jax.Array:
        return jnp.where(key < look.key + (slot < slots), claim, 0)

    taken = [mine + sum_of_pairs(ahead, look.key, claim) for mine, claim in zip(held, look.claims, strict=True)]
    fits = _free_for(capacity, head, tuple(taken))
    waiting, first, second = groups_of(head.counts)
    some = jnp.minimum(fits, waiting)
    all_or_none = jnp.where(some >= waiting, waiting, 0)
    granted = jnp.where(bit(head.word(Work.BITS), Bits.MODE) == 1, all_or_none, some)
    has_room = (first == 0) | (second == 0)
    return jnp.where((look.key != UNREADY) & has_room & is_idle, granted, 0)  # a mark has no blocks waiting


def begin(carry: Carry, look: Look, granted: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """Let granted blocks start as a group; return what changes of the heads, and how many blocks of each run."""
    head, now = carry.head, carry.now
    begins, is_first = granted > 0, (granted > 0) & ~head.has_begun
    _, first, second = groups_of(head.counts)
    work = head.word(Work.FIRST) + jnp.where(is_first, head.word(Work.SECOND), 0)
    carries_over = work > WORK_CHUNK
    work -= carries_over * WORK_CHUNK
    chunks = head.word(Work.THIRD) + carries_over
    in_first, in_second = begins & (first == 0), begins & (first != 0)
    both = jnp.where(in_second, (head.chunks & 0xFFFF) | (chunks << 16), head.chunks)
    changed = {
        "key": look.key,
        "start_hi": jnp.where(is_first, now.hi, head.start_hi),
        "start_lo": jnp.where(is_first, now.lo, head.start_lo),
        "counts": head.counts - (granted << 16) + jnp.where(in_first, granted, granted << 8),
        "chunks": jnp.where(in_first, (head.chunks & ~0xFFFF) | chunks, both),
        "rest_first": jnp.where(in_first, work, head.rest_first),
        "rest_second": jnp.where(in_second, work, head.rest_second),
    }
    return changed, jnp.where(head.is_task, first + second + granted, 0)
