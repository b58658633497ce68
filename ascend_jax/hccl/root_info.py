"""Root info: the 4108 bytes by which the ranks of a new communicator find each other."""

import dataclasses
import hashlib

from ascend_jax.hccl.communicator import CommConfig, Communicator
from ascend_jax.hccl.results import HcclError, HcclResult

ROOT_INFO_BYTES = 4108
CONNECT_EXTRA_S = 20  # what the library waits beyond HCCL_CONNECT_TIMEOUT


def get_root_info(seed: int = 0) -> bytes:
    """Return root info as rank 0 makes it (``HcclGetRootInfo``); other seeds are other communicators.

    >>> len(get_root_info())
    4108
    """
    return hashlib.shake_256(b"hccl root info %d" % seed).digest(ROOT_INFO_BYTES)


@dataclasses.dataclass(frozen=True)
class Gathering:
    """A communicator in the making: the ranks that have called ``HcclCommInitRootInfo`` so far."""

    cards: int  # of the cluster
    n_ranks: int
    root_info: bytes
    joined: tuple[tuple[int, int], ...] = ()  # (rank, card)
    config: CommConfig = dataclasses.field(default_factory=CommConfig)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not come."""
        here = {rank for rank, _ in self.joined}
        return tuple(rank for rank in range(self.n_ranks) if rank not in here)

    def join(self, n_ranks: int, root_info: bytes, rank: int, card: int) -> "Gathering":
        """Return the gathering with one more rank (``HcclCommInitRootInfo``).

        Raises:
          HcclError: PARA: a rank out of range or given twice, another number of ranks, another root info, a card that
            is out of range or taken.
        """
        if n_ranks != self.n_ranks:
            raise HcclError(HcclResult.PARA, f"nRanks = {n_ranks}, rank 0 said {self.n_ranks}", rank=rank)
        if len(root_info) != ROOT_INFO_BYTES or root_info != self.root_info:
            raise HcclError(HcclResult.PARA, f"rootInfo of {len(root_info)} bytes is not the one of rank 0", rank=rank)
        if not 0 <= rank < n_ranks:
            raise HcclError(HcclResult.PARA, f"rank must be 0 to {n_ranks - 1}", rank=rank)
        if not 0 <= card < self.cards:
            raise HcclError(HcclResult.PARA, f"card {card}: the cluster has cards 0 to {self.cards - 1}", rank=rank)
        for other, taken in self.joined:
            if other == rank or taken == card:
                raise HcclError(HcclResult.PARA, f"card {card}: rank {other} has joined on card {taken}", rank=rank)
        return dataclasses.replace(self, joined=(*self.joined, (rank, card)))

    def finish(self) -> Communicator:
        """Return the communicator once all ranks are there.

        Raises:
          HcclError: TIMEOUT, labelled EI0006, naming the ranks that did not come and how long the others wait.
        """
        if self.missing:
            wait = self.config.connect_timeout_s + CONNECT_EXTRA_S
            came = sorted(rank for rank, _ in self.joined)
            raise HcclError(
                HcclResult.TIMEOUT,
                f"rank(s) {list(self.missing)} did not call; rank(s) {came} wait {wait} s (HCCL_CONNECT_TIMEOUT "
                f"{self.config.connect_timeout_s} + {CONNECT_EXTRA_S}) and give up",
                rank=self.missing[0],
                label="EI0006",
            )
        by_rank = dict(self.joined)
        return Communicator(self.cards, (tuple(by_rank[rank] for rank in range(self.n_ranks)),), self.config)
