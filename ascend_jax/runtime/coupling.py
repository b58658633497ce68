"""Coupling: which cards meet in a rendezvous. Plain data, static in a run."""

import dataclasses
import functools

import numpy as np

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
    """Return the place of number 0 of each card in each communicator, int32 [communicators, cards]; -1 without a rank."""
    table = np.full((len(coupling.firsts), coupling.cards), -1, np.int32)
    ends = (*coupling.firsts[1:], len(coupling.channels))
    for communicator, (first, end) in enumerate(zip(coupling.firsts, ends, strict=True)):
        for channel in range(first, end):
            for rank, card in enumerate(coupling.channels[channel]):
                table[communicator, card] = channel * coupling.depth * coupling.width + rank
    return table
