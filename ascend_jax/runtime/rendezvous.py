"""Rendezvous: lanes of a run that are cards of one cluster, and meet.

A rendezvous is a mark that happens at the instant at which all cards of its channel have it at the head of a stream.
Each lane has its own time, so a lane that waits must not run past an instant at which the others may still come:

- nothing new can happen anywhere before the earliest next event E of all cards, and
- a rendezvous cannot happen before L, the latest of the arrivals so far and of the times up to which the cards that
  have not arrived are simulated.

So a waiting lane goes on if its next event is not after max(E, L). A lane that waits for nobody is never held. The lane
whose next event is E may always go on, so there is always progress; if there is no next event, all that wait are stuck.

A lane that has what it is run for is parked: it goes on only when another lane waits for it in a rendezvous, and then
only while its next event is E. So its card is not simulated past its host's present without need.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime.clock import Instant, is_before
from ascend_jax.runtime.coupling import Coupling
from ascend_jax.runtime.heads import Bits, Work, bit
from ascend_jax.runtime.lanes import NEVER, NOBODY, Carry, Lane, Tables, goes_on, is_late, is_present
from ascend_jax.runtime.layout import FOREVER_HI, LIMB
from ascend_jax.runtime.motion import away


class Meeting(NamedTuple):
    """Where the lanes stand with their rendezvous."""

    is_meeting: jax.Array  # bool [S, B], heads that are one
    is_complete: jax.Array  # bool [S, B], all ranks have arrived
    latest: Instant  # [S, B], the last of them; valid where it is complete
    is_open: jax.Array  # bool [S, B], it may happen now
    waits: jax.Array  # bool [B], the lane has arrived at one that is not open
    least: Instant  # [B], none can happen before this; for ever if there is none
    wake: Instant  # [B], when the next one happens to which all have come; for ever if there is none
    is_awaited: jax.Array  # bool [B], others have come to one of its channels and it has not


def meet(coupling: Coupling, carry: Carry) -> Meeting:
    """Look which rendezvous are complete, and when the others can be at the earliest."""
    head, now = carry.head, carry.now
    members, sizes = coupling.members(), coupling.sizes()
    channels, width = members.shape
    worlds = now.lo.shape[0] // coupling.cards
    world = jnp.arange(now.lo.shape[0], dtype=jnp.int32) // coupling.cards
    is_meeting = is_present(carry) & (bit(head.word(Work.BITS), Bits.RENDEZVOUS) == 1)
    was_complete = is_meeting & (bit(head.word(Work.BITS), Bits.COMPLETE) == 1)
    has_arrived = is_meeting & ~is_before(now, head.ready)
    place = world * (channels * width) + head.word(Work.SECOND)
    joins = has_arrived & ~was_complete  # what is complete already stands for an earlier meeting
    place = jnp.where(joins, place, worlds * channels * width)

    def lay(values: jax.Array) -> jax.Array:
        table = jnp.zeros(worlds * channels * width + 1, jnp.int32).at[place.reshape(-1)].set(values.reshape(-1))
        return table[:-1].reshape(worlds, channels, width)

    is_rank = np.arange(width) < sizes[:, None]
    is_here = lay(joins.astype(jnp.int32)) == 1
    stands = [limb.reshape(worlds, coupling.cards)[:, members] for limb in now]
    hi, lo = (jnp.where(is_here, lay(came), here) for came, here in zip(head.ready, stands, strict=True))
    hi, lo = (jnp.where(is_rank, limb, 0) for limb in (hi, lo))
    latest_hi = hi.max(-1)
    latest_lo = jnp.where(hi == latest_hi[..., None], lo, 0).max(-1)
    all_here = (is_here | ~is_rank).all(-1)
    # a card that came early may still fail or give up before the last one comes
    stand = Instant(*stands)
    reaches = ~is_before(stand, Instant(latest_hi[..., None], latest_lo[..., None])) | ~is_rank
    is_complete = all_here & reaches.all(-1)
    channel = jnp.where(joins, place // width, 0)
    complete = was_complete | (joins & is_complete.reshape(-1)[channel])
    latest = Instant(
        jnp.where(was_complete, head.word(Work.FIRST), latest_hi.reshape(-1)[channel]),
        jnp.where(was_complete, head.word(Work.BLOCKS), latest_lo.reshape(-1)[channel]),
    )
    is_missed = is_here.any(-1, keepdims=True) & ~is_here & is_rank
    awaited = jnp.zeros((worlds, coupling.cards), bool).at[:, members.reshape(-1)].max(is_missed.reshape(worlds, -1))
    is_open = has_arrived & complete & ~is_before(now, latest)
    is_closed = has_arrived & ~is_open
    is_foreseen = (was_complete | all_here.reshape(-1)[channel]) & is_before(now, latest)
    return Meeting(
        is_meeting,
        complete,
        latest,
        is_open,
        is_closed.any(0),
        least=_earliest(latest, is_closed),
        wake=_earliest(latest, is_closed & is_foreseen),
        is_awaited=awaited.reshape(-1),
    )


def is_parked(tables: Tables, carry: Carry) -> jax.Array:
    """Return which live lanes have what they are run for, bool [B]."""
    is_over = is_present(carry) & carry.head.is_task & (carry.head.counts == 0)
    return carry.is_live & ~goes_on(tables, carry, is_over.any(0))


def unlimited(tables: Tables, parked: jax.Array) -> Tables:
    """Return the tables with no limit for parked lanes, which go on for others only."""
    hi, lo = tables.limit
    return tables._replace(limit=Instant(jnp.where(parked, FOREVER_HI, hi), jnp.where(parked, 0, lo)))


def kept_live(coupling: Coupling, carry: Carry, was_live: jax.Array) -> Carry:
    """Return the carry with all lanes live that can act, as long as one of their cluster has not reached its goal."""
    can_act = was_live & ~carry.is_stuck & (carry.number(Lane.LOST) == carry.times.shape[-2] - 1)
    is_wanted = carry.is_live.reshape(-1, coupling.cards).any(1, keepdims=True)
    is_wanted = jnp.broadcast_to(is_wanted, (is_wanted.shape[0], coupling.cards)).reshape(-1)
    return carry.with_live(carry.is_live | (can_act & is_wanted))


def with_doors(carry: Carry, meeting: Meeting) -> Carry:
    """Return the carry with every rendezvous closed that may not happen now (bit 2 of ``Head.counts``).

    A complete one remembers when, in words that it does not need: each lane passes it at its own step of the loop.
    """
    head, counts = carry.head, carry.head.counts
    closed = (counts & ~4) | jnp.where(meeting.is_open, 0, 4)
    words = head.words
    for word, value in (
        (Work.BITS, words[Work.BITS] | (1 << Bits.COMPLETE)),
        (Work.FIRST, meeting.latest.hi),
        (Work.BLOCKS, meeting.latest.lo),
    ):
        words = words.at[word].set(jnp.where(meeting.is_complete, value, words[word]))
    return carry._replace(head=head._replace(words=words, counts=jnp.where(meeting.is_meeting, closed, counts)))


def hold(
    coupling: Coupling,
    carry: Carry,
    meeting: Meeting,
    parked: jax.Array,
    first: jax.Array,
    is_idle: jax.Array,
    wait_ns: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (first, is_idle, wait_ns) of a step with those lanes held back that must wait for others.

    Args:
      coupling: Which lanes meet.
      carry: All lanes.
      meeting: Of them.
      parked: bool [B], see :func:`is_parked`.
      first: int32 [B], what each lane wants to do, as ``Look.turn``.
      is_idle: bool [B], it wants to let time move.
      wait_ns: int32 [B], to its own next event, as :func:`ascend_jax.runtime.motion.wait_ns`.
    """
    now = carry.now
    wake = jnp.where(meeting.wake.hi < FOREVER_HI, away(now, meeting.wake), NEVER)
    wait_ns = jnp.minimum(wait_ns, wake)
    event = _after(now, wait_ns)
    late = is_late(first)
    # at one instant, what is late comes after everything that can happen: odd numbers after even ones
    event_hi = jnp.where(is_idle, event.hi, now.hi)
    event_lo = jnp.where(is_idle, event.lo, now.lo) * 2 + late
    may_act = ~parked | meeting.is_awaited
    is_acting = carry.is_live & (is_idle | (first != NOBODY)) & may_act
    earliest = _over_cards(coupling, Instant(jnp.where(is_acting, event_hi, FOREVER_HI), event_lo))
    comes_first = ~is_before(earliest, Instant(event_hi, event_lo))
    # of what is late at one instant in several cards, all fails before anything that follows from it
    before_others = ~is_before(meeting.least, event) & (wait_ns != NEVER)
    idle_goes = ~meeting.waits | comes_first | before_others
    late_goes = comes_first | (meeting.waits & is_before(now, meeting.least))
    goes = jnp.where(is_idle, idle_goes, late_goes)
    helps = meeting.is_awaited & comes_first & (wait_ns != NEVER)
    first = jnp.where((late & ~goes) | (parked & ~(meeting.is_awaited & comes_first)), NOBODY, first)
    return first, is_idle & jnp.where(parked, helps, goes), wait_ns


def _after(now: Instant, wait_ns: jax.Array) -> Instant:
    """Return the next moment, rounded down to whole limbs where it is far."""
    low = now.lo + jnp.where(wait_ns < LIMB, wait_ns, 0)
    far = jnp.where(wait_ns >= LIMB, wait_ns - LIMB, 0)
    is_never = wait_ns == NEVER
    return Instant(
        jnp.where(is_never, FOREVER_HI, now.hi + far + (low >> 30)), jnp.where(is_never, 0, low & (LIMB - 1))
    )


def _earliest(times: Instant, where: jax.Array) -> Instant:
    hi = jnp.where(where, times.hi, FOREVER_HI)
    least = hi.min(0)
    return Instant(least, jnp.where(where & (hi == least), times.lo, 2 * LIMB - 1).min(0) * (least < FOREVER_HI))


def _over_cards(coupling: Coupling, times: Instant) -> Instant:
    """Return the earliest of each cluster, for each of its lanes."""
    hi, lo = (limb.reshape(-1, coupling.cards) for limb in times)
    least = hi.min(1, keepdims=True)
    low = jnp.where(hi == least, lo, 2**31 - 1).min(1, keepdims=True)
    return Instant(*(jnp.broadcast_to(limb, hi.shape).reshape(-1) for limb in (least, low)))
