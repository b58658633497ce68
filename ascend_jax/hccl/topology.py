"""Topology: which card sits in which server, and how two cards are joined."""

import dataclasses
from collections.abc import Sequence

from ascend_jax.chip import links
from ascend_jax.chip.spec import ChipSpec


@dataclasses.dataclass(frozen=True)
class Topology:
    """Cards in servers of equal size, numbered server by server.

    >>> Topology(cards=12, per_server=8).servers
    2
    """

    cards: int
    per_server: int

    def __post_init__(self) -> None:
        for name, value in (("cards", self.cards), ("per_server", self.per_server)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} = {value!r}: must be an integer of at least 1")

    @property
    def servers(self) -> int:
        """Number of servers; the last one may be partly filled."""
        return -(-self.cards // self.per_server)

    def server_of(self, card: int) -> int:
        """Return the server of a card.

        Raises:
          ValueError: There is no such card.
        """
        if not 0 <= card < self.cards:
            raise ValueError(f"card = {card}: the cluster has cards 0 to {self.cards - 1}")
        return card // self.per_server

    def split(self, cards: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return the given cards by server, servers in order.

        >>> Topology(16, 8).split([0, 9, 1])
        ((0, 1), (9,))
        """
        servers: dict[int, list[int]] = {}
        for card in cards:
            servers.setdefault(self.server_of(card), []).append(card)
        return tuple(tuple(servers[server]) for server in sorted(servers))

    def path(self, chip: ChipSpec, source: int, target: int) -> str:
        """Return how two cards are joined, one of ``chip.links.PATHS``.

        Raises:
          ValueError: There is no such card, or both are the same.
        """
        if self.server_of(source) != self.server_of(target):
            return "network"
        first = self.server_of(source) * self.per_server
        return links.path_between(chip, source - first, target - first)


def default_topology(chip: ChipSpec, cards: int) -> Topology:
    """Return servers as the product has them: 8 cards of A2 or the first generation, 16 dies of A3.

    >>> from ascend_jax.chip import chip
    >>> default_topology(chip("Ascend910B2"), 20)
    Topology(cards=20, per_server=8)
    """
    group = int(chip["server_devices"])
    # a server of the first generation holds two groups of four; a card without a fabric shares its host with others
    size = group if links.fabric(chip) in ("mesh", "clos") else max(8, group)
    return Topology(cards, size)
