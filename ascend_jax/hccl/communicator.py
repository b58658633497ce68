"""Communicators: which cards talk to each other, as which ranks."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.hccl.results import HcclError, HcclResult
from ascend_jax.hccl.topology import Topology

DEFAULT_BUFFER_MB = 200  # HCCL_BUFFSIZE; a communicator takes twice as much HBM
MAX_NAME_BYTES = 128
CONNECT_TIMEOUT_S = 120  # HCCL_CONNECT_TIMEOUT, 120 to 7200; the library adds 20 s
EXEC_TIMEOUT_S = 1836  # HCCL_EXEC_TIMEOUT; 0 = for ever on A2 and newer


@dataclasses.dataclass(frozen=True)
class CommConfig:
    """``HcclCommConfig``: what a communicator is created with."""

    buffer_mb: int = DEFAULT_BUFFER_MB
    deterministic: bool = False  # True: one order of additions, whatever the algorithm
    name: str = ""
    exec_timeout_s: int = EXEC_TIMEOUT_S
    connect_timeout_s: int = CONNECT_TIMEOUT_S

    def __post_init__(self) -> None:
        for field in ("buffer_mb", "exec_timeout_s", "connect_timeout_s"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise HcclError(HcclResult.PARA, f"{field} = {value!r}: must be an integer")
        if self.buffer_mb < 1:
            raise HcclError(HcclResult.PARA, f"buffer_mb = {self.buffer_mb}: must be at least 1")
        if len(self.name.encode()) > MAX_NAME_BYTES:
            raise HcclError(HcclResult.PARA, f"name = {self.name[:32]!r}...: at most {MAX_NAME_BYTES} bytes")
        if self.exec_timeout_s < 0:
            raise HcclError(HcclResult.PARA, f"exec_timeout_s = {self.exec_timeout_s}: must be at least 0")
        if not 120 <= self.connect_timeout_s <= 7200:
            raise HcclError(HcclResult.PARA, f"connect_timeout_s = {self.connect_timeout_s}: must be 120 to 7200")


@dataclasses.dataclass(frozen=True)
class Home:
    """The cluster on which a communicator was created. Plain data, so that it can be compared and hashed."""

    number: int  # of the communicator there; each has its own, also after others were destroyed
    topology: Topology
    sheets: tuple[tuple[str, str, str, bytes], ...]  # its different chips: name, family, calibration, float32 values
    parent: int | None = None  # number of the communicator whose pairs of ranks it joins
    pair: tuple[int, ...] = ()  # their ranks there

    @property
    def chips(self) -> tuple[ChipSpec, ...]:
        """Its different chips."""
        return tuple(ChipSpec(np.frombuffer(values, np.float32), *names) for *names, values in self.sheets)


@dataclasses.dataclass(frozen=True)
class Communicator:
    """One communicator, or several of one size whose cards do not overlap: ``groups[g][rank]`` is a card.

    A function that runs on every card sees its own group. Cards in no group keep their data.

    >>> Communicator(cards=4, groups=((0, 1), (2, 3))).rank_of(3)
    1
    """

    cards: int  # of the cluster
    groups: tuple[tuple[int, ...], ...]
    config: CommConfig = dataclasses.field(default_factory=CommConfig)
    home: Home | None = None  # None: only described; arrays and plans need no more, streams of cards do

    def __post_init__(self) -> None:
        check_groups(self.cards, self.groups)

    @property
    def size(self) -> int:
        """Number of ranks of a group (``HcclGetRankSize``)."""
        return len(self.groups[0])

    @property
    def name(self) -> str:
        """Its name (``HcclGetCommName``)."""
        return self.config.name or "hccl_world_group"

    @property
    def memory_bytes(self) -> int:
        """HBM that each rank gives to it: a buffer for sending and one for receiving."""
        return 2 * self.config.buffer_mb << 20

    def rank_of(self, card: int) -> int:
        """Return the rank of a card (``HcclGetRankId``).

        Raises:
          HcclError: NOT_FOUND: the card has no rank.
        """
        for group in self.groups:
            if card in group:
                return group.index(card)
        raise HcclError(HcclResult.NOT_FOUND, f"card {card} has no rank in communicator {self.name}")

    def check_rank(self, rank: object, name: str = "rank") -> None:
        """Refuse what is no rank of it.

        Raises:
          HcclError: PARA.
        """
        rule = f"the communicator has ranks 0 to {self.size - 1}"
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer):
            raise HcclError(HcclResult.PARA, f"{name} = {rank!r}: {rule}")
        if not 0 <= rank < self.size:
            number = int(rank) if name == "rank" else None
            raise HcclError(HcclResult.PARA, rule if name == "rank" else f"{name} = {rank}: {rule}", rank=number)

    def sub(self, ranks: Sequence[int], *, name: str = "") -> "Communicator":
        """Return a communicator of some of the ranks (``HcclCreateSubCommConfig``).

        Raises:
          HcclError: PARA: a rank is missing, out of range or given twice.
        """
        for rank in ranks:
            self.check_rank(rank)
        groups = tuple(tuple(group[rank] for rank in ranks) for group in self.groups)
        return Communicator(self.cards, groups, dataclasses.replace(self.config, name=name))

    def split(self, colors: Sequence[int], *, name: str = "") -> "Communicator":
        """Return the ranks in groups of one color each, in order of rank: tensor and data parallel groups.

        Raises:
          HcclError: PARA: not one color for each rank, or groups of different sizes.

        >>> comm_world(4).split([0, 1, 0, 1]).groups
        ((0, 2), (1, 3))
        """
        if len(colors) != self.size:
            raise HcclError(HcclResult.PARA, f"{len(colors)} colors: one is needed for each of {self.size} ranks")
        by_color = [[rank for rank in range(self.size) if colors[rank] == color] for color in sorted(set(colors))]
        groups = tuple(tuple(group[rank] for rank in ranks) for group in self.groups for ranks in by_color)
        return Communicator(self.cards, groups, dataclasses.replace(self.config, name=name))


def check_groups(cards: int, groups: Sequence[Sequence[int]]) -> None:
    """Refuse ranks that cannot be, naming the first one.

    Raises:
      HcclError: PARA: no ranks, a card out of range, a card with two ranks, or groups of different sizes.
    """
    if not groups or not groups[0]:
        raise HcclError(HcclResult.PARA, "a communicator needs at least one rank")
    seen: dict[int, int] = {}
    for group in groups:
        if len(group) != len(groups[0]):
            raise HcclError(HcclResult.PARA, f"groups of {len(groups[0])} and {len(group)} ranks: must be of one size")
        for rank, card in enumerate(group):
            if isinstance(card, bool) or not isinstance(card, int | np.integer):
                raise HcclError(HcclResult.PARA, f"card {card!r}: must be an integer", rank=rank)
            if not 0 <= card < cards:
                raise HcclError(HcclResult.PARA, f"card {card}: the cluster has cards 0 to {cards - 1}", rank=rank)
            if card in seen:
                raise HcclError(HcclResult.PARA, f"card {card} already is rank {seen[card]}", rank=rank)
            seen[card] = rank


def comm_world(cards: int, config: CommConfig | None = None) -> Communicator:
    """Return the communicator of all cards, rank = card."""
    return Communicator(cards, (tuple(range(cards)),), config or CommConfig())
