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


def _is_packed(head: Head) -> bool:
    """Whether the sums over all streams fit packed words: cube cores + vector cores << 16, and a byte per engine."""
    return len(head.row) <= 128


def _byte(engine: jax.Array) -> jax.Array:
    return jnp.maximum(engine - 1, 0) * 8


def _packed(head: Head, blocks: jax.Array) -> tuple[jax.Array, ...]:
    """Return the units of so many blocks; more than the chip has of a resource count as ALL, or 1 copy engine."""
    engine, cores, one = bit(head.bits, Bits.ENGINE, 2), jnp.minimum(blocks, ALL), jnp.minimum(blocks, 1)
    vector = bit(head.bits, Bits.VECTOR, 2)  # 0, 1 or 2, so that a shift multiplies
    cube_units = jnp.where(bit(head.bits, Bits.CUBE) > 0, cores, 0)
    vector_units = jnp.where(vector > 0, cores << (vector >> 1), 0)
    if _is_packed(head):
        return cube_units + (vector_units << 16), jnp.where(engine > 0, one << _byte(engine), 0)
    return cube_units, vector_units, *(one * (engine == number) for number in (1, 2, 3))


def _taken_of(head: Head, words: list[jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (cube cores, vector cores, units of the stream's own copy engine) in packed or separate words."""
    engine = bit(head.bits, Bits.ENGINE, 2)
    if _is_packed(head):
        return words[0] & 0xFFFF, (words[0] >> 16) & 0xFFFF, (words[1] >> _byte(engine)) & 255
    return words[0], words[1], jnp.where(engine == 1, words[2], jnp.where(engine == 2, words[3], words[4]))


def grant(capacity: jax.Array, head: Head, look: Look, held: tuple, is_idle: jax.Array) -> jax.Array:
    """Return how many blocks of each stream start now, int32 [S, B].

    In order of (priority, instant at which ready, slot); a command leaves free what those before it ask for, so nobody
    overtakes in a queue for a unit, and looking twice at one instant grants nothing new.
    """
    slots = slots_of(head)

    def ahead(key: jax.Array, slot: jax.Array, claim: jax.Array) -> jax.Array:
        return jnp.where(key < look.key + (slot < slots), claim, 0)

    taken = [mine + sum_of_pairs(ahead, look.key, slots, claim) for mine, claim in zip(held, look.claims, strict=True)]
    cube_taken, vector_taken, engine_taken = _taken_of(head, taken)
    vector = bit(head.bits, Bits.VECTOR, 2)
    limits = (
        (bit(head.bits, Bits.CUBE) > 0, capacity[Resource.CUBE] - cube_taken),
        (vector > 0, (capacity[Resource.VECTOR] - vector_taken) >> (vector >> 1)),
        (bit(head.bits, Bits.ENGINE, 2) > 0, 1 - engine_taken),
    )
    fits = jnp.full_like(head.row, ALL)
    for is_needed, left in limits:
        fits = jnp.minimum(fits, jnp.where(is_needed, jnp.maximum(left, 0), ALL))
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
