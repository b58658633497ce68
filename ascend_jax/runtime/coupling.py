"""Coupling: which cards meet in a rendezvous. Plain data, static in a run; and what a card's own commands say of it.

In the command table of a card, rendezvous and collectives have ``Field.OBJECT`` = number of the communicator,
``VALUE_LO`` = running number in it (two for each call) and ``VALUE_HI`` = what all ranks must say alike, as a hash. A
rendezvous depends on itself, so that a card that is simulated alone does not pass it.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.layout import NONE, Field, Kind, Phase, Reach, Time
from ascend_jax.runtime.rows import with_entries

AXIS = "card"  # name of the mapped axis of the cards of a cluster


@dataclasses.dataclass(frozen=True)
class Coupling:
    """Which lanes meet: runs of ``cards`` lanes are clusters, ``channels[k]`` are the cards of channel k, by rank.

    A channel has ``depth`` places, so that rendezvous of a rank on several streams are told apart by their numbers. A
    rendezvous of rank r and number n in channel k has ``Field.VALUE_LO`` = (k * depth + n % depth) * width + r.
    """

    cards: int
    channels: tuple[tuple[int, ...], ...]
    depth: int = 1
    firsts: tuple[int, ...] = ()  # first channel of each communicator, whose groups follow one another

    @property
    def width(self) -> int:
        """Greatest number of ranks of a channel."""
        return max((len(channel) for channel in self.channels), default=1)

    def members(self) -> np.ndarray:
        """Return the cards of each place, int32 [K * depth, P]; unused ranks repeat the first one."""
        table = np.array([(*one, *one[:1] * (self.width - len(one))) for one in self.channels], np.int32)
        return np.repeat(table, self.depth, axis=0)

    def sizes(self) -> np.ndarray:
        """Return the number of ranks of each place, int32 [K * depth]."""
        return np.repeat(np.array([len(one) for one in self.channels], np.int32), self.depth)

    def with_communicator(self, groups: tuple[tuple[int, ...], ...]) -> "Coupling":
        """Return the coupling with one more communicator."""
        firsts, channels = (*self.firsts, len(self.channels)), (*self.channels, *groups)
        return dataclasses.replace(self, channels=channels, firsts=firsts)


@functools.lru_cache(maxsize=64)
def seats(coupling: Coupling) -> np.ndarray:
    """Return the place of number 0 of each card in each communicator, int32 [communicators, C]; -1 without a rank."""
    table = np.full((len(coupling.firsts), coupling.cards), -1, np.int32)
    ends = (*coupling.firsts[1:], len(coupling.channels))
    for communicator, (first, end) in enumerate(zip(coupling.firsts, ends, strict=True)):
        for channel in range(first, end):
            for rank, card in enumerate(coupling.channels[channel]):
                table[communicator, card] = channel * coupling.depth * coupling.width + rank
    return table


def places_of(coupling: Coupling, fields: jax.Array) -> jax.Array:
    """Return the place of each rendezvous of all cards, int32 [C, N + 1] of [C, N + 1, FIELDS]; NONE of other rows."""
    table = jnp.asarray(seats(coupling))
    known = jnp.clip(fields[..., Field.OBJECT], 0, len(coupling.firsts) - 1)
    seat = table[known, jnp.arange(coupling.cards)[:, None]]
    place = seat + fields[..., Field.VALUE_LO] % coupling.depth * coupling.width
    return jnp.where((fields[..., Field.KIND] == Kind.RENDEZVOUS) & (seat != NONE), place, NONE)


def seated(coupling: Coupling, fields: jax.Array) -> jax.Array:
    """Return the commands of all cards with the rendezvous as the engine sees them when they run together."""
    place = places_of(coupling, fields)
    met = with_entries(fields, {Field.VALUE_LO: place, Field.DEPENDS: NONE})
    return jnp.where((place != NONE)[..., None], met, fields)


def with_mismatches(coupling: Coupling, fields: jax.Array, times: jax.Array) -> jax.Array:
    """Return the commands of all cards with those rendezvous set to fail on which ranks that have come disagree."""
    place = places_of(coupling, fields)
    phase = times[..., Time.PHASE]
    waits = (place != NONE) & (phase >= Phase.QUEUED) & (phase < Phase.DONE)
    total = len(coupling.channels) * coupling.depth
    meeting = jnp.where(waits, place // coupling.width, total)
    said = fields[..., Field.VALUE_HI]
    least = jnp.full(total + 1, 2**31 - 1, jnp.int32).at[meeting].min(said)
    most = jnp.full(total + 1, -1, jnp.int32).at[meeting].max(said)
    is_wrong = waits & (least < most)[meeting]
    failing = with_entries(fields, {Field.FAULT: int(Code.RT_INTERNAL_ERROR), Field.REACH: int(Reach.STREAM)})
    return jnp.where(is_wrong[..., None], failing, fields)
