"""What lies in memory and what does not fit: read on the host, for one card."""

import dataclasses
import enum
import json
from collections.abc import Collection

import numpy as np

from ascend_jax.runtime import callsite
from ascend_jax.runtime.layout import (
    GIANT_PAGE,
    GRANULE_BYTES,
    HUGE_PAGE,
    HeapEntry,
    HeapFlag,
    HeapWord,
)
from ascend_jax.runtime.state import CardState, Heap, require_single

OWNERS = 5  # named in a text


class MemAttr(enum.IntEnum):
    """What ``mem_get_info`` can be asked for (``aclrtMemAttr``)."""

    DDR = 0
    HBM = 1
    DDR_HUGE = 2
    DDR_NORMAL = 3
    HBM_HUGE = 4
    HBM_NORMAL = 5
    DDR_P2P_HUGE = 6
    DDR_P2P_NORMAL = 7
    HBM_P2P_HUGE = 8
    HBM_P2P_NORMAL = 9
    HBM_HUGE1G = 10
    HBM_P2P_HUGE1G = 11
    NORMAL = 12  # from here on: whatever memory the chip has
    HUGE = 13
    HUGE1G = 14
    P2P_NORMAL = 15
    P2P_HUGE = 16
    P2P_HUGE1G = 17


_DDR_FAMILIES = frozenset({"310", "310B", "310P"})  # chips without HBM (CANN, aclrtGetMemInfo)


def _page_of(attr: MemAttr) -> int:
    name = attr.name
    return GIANT_PAGE if name.endswith("1G") else HUGE_PAGE if name.endswith("HUGE") else 1


@dataclasses.dataclass(frozen=True)
class Owner:
    """The call site that allocated some live blocks."""

    site: str
    nbytes: int  # taken, with rounding
    blocks: int


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """How one memory is used, in bytes."""

    total_bytes: int  # that can be allocated
    used_bytes: int
    free_bytes: int
    largest_free_bytes: int  # longest run of free bytes
    idle_bytes: int  # taken by pools and used by nobody
    peak_bytes: int
    pool_bytes: int  # taken by pools, in use or not
    runtime_bytes: int  # workspaces that the runtime keeps for operators; no pool and no allocation of the program
    blocks: int  # live ones
    owners: tuple[Owner, ...]  # most bytes first

    @property
    def fragmentation(self) -> float:
        """Share of the free bytes that lie outside the longest free run: 0 = all in one run."""
        return 1 - self.largest_free_bytes / self.free_bytes if self.free_bytes else 0.0

    def to_json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps(dataclasses.asdict(self) | {"fragmentation": self.fragmentation})


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
    """The latest allocation that did not fit, and what there was at that moment; the owners are those of now."""

    requested_bytes: int
    free_bytes: int
    largest_free_bytes: int
    reserved_unused_bytes: int  # taken by pools and used by nobody
    site: str
    shortages: int  # allocations that did not fit so far
    memory: str  # "device" or "host"
    owners: tuple[Owner, ...]
    limit_bytes: int | None = None  # most that the pool or the cache asked may reserve, if that was too little
    held_bytes: int | None = None  # what it had reserved then

    def __str__(self) -> str:
        limit = "" if self.limit_bytes is None else f"limit {self.limit_bytes}, {self.held_bytes} of it reserved, "
        numbers = (
            f"{self.requested_bytes} bytes of {self.memory} memory requested at {self.site or 'unknown site'}, "
            f"{limit}{self.free_bytes} free, {self.largest_free_bytes} in the largest free block, "
            f"{self.reserved_unused_bytes} reserved by pools but unused"
        )
        most = ", ".join(f"{one.site} {one.nbytes} in {one.blocks}" for one in self.owners[:OWNERS])
        return f"{numbers}; owners by bytes: {most or 'nobody'}"

    def to_json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps(dataclasses.asdict(self))


def _live(heap: Heap) -> np.ndarray:
    """Return the live blocks as int64 [blocks, len(HeapEntry)]."""
    count = int(np.asarray(heap.words)[HeapWord.COUNT])
    return np.asarray(heap.blocks, np.int64).T[:count]


def _gaps(heap: Heap) -> tuple[np.ndarray, np.ndarray]:
    """Return first granule and granule past the last of every free run, int64."""
    words, live = np.asarray(heap.words, np.int64), _live(heap)
    opening = np.append(words[HeapWord.BASE], live[:, HeapEntry.START] + live[:, HeapEntry.SIZE])
    return opening, np.append(live[:, HeapEntry.START], words[HeapWord.END])


def _free_in_pages(heap: Heap, page: int) -> int:
    """Return how many granules are free in whole aligned pages."""
    opening, closing = _gaps(heap)
    return int(np.maximum(closing // page - -(-opening // page), 0).sum()) * page


def owners_of(heap: Heap, *, but: Collection[int] = ()) -> tuple[Owner, ...]:
    """Return who allocated the live blocks, ``but`` those that begin at some granules; most bytes first."""
    live = _live(heap)
    live = live[~np.isin(live[:, HeapEntry.START], list(but))]
    sites, index = np.unique(live[:, HeapEntry.SITE], return_inverse=True)
    taken = np.bincount(index, live[:, HeapEntry.SIZE], len(sites)).astype(np.int64) * GRANULE_BYTES
    blocks = np.bincount(index, minlength=len(sites))
    rows = zip(sites.tolist(), taken.tolist(), blocks.tolist(), strict=True)
    owners = [Owner(callsite.text(site), nbytes, count) for site, nbytes, count in rows]
    return tuple(sorted(owners, key=lambda one: (-one.nbytes, one.site)))


def mem_get_info(card: CardState, attr: MemAttr | int = MemAttr.HBM) -> tuple[int, int]:
    """Return (free, total) bytes of device memory (``aclrtGetMemInfo``).

    Asked for huge pages, free are the bytes in whole free pages of 2 MiB or 1 GiB. A chip with HBM has no DDR to
    allocate from, so those attributes give zeros; on a chip without HBM its attributes mean the DDR (CANN,
    aclrtGetMemInfo).

    Raises:
      ValueError: The attribute is unknown, or the card has batch axes.

    >>> import ascend_jax as aj
    >>> card, _ = aj.malloc(aj.init(aj.chip("Ascend910B2")), 4096)
    >>> free, total = aj.mem_get_info(card)
    >>> free - aj.mem_get_info(card, aj.MemAttr.HBM_HUGE)[0]
    2088960
    """
    require_single(card)
    if attr not in MemAttr.__members__.values():
        raise ValueError(f"attr = {attr}: must be one of {', '.join(f'{one.name} {int(one)}' for one in MemAttr)}")
    attr = MemAttr(attr)
    if attr.name.startswith("DDR") and card.chip.family not in _DDR_FAMILIES:
        return 0, 0
    return _free_in_pages(card.hbm, _page_of(attr)) * GRANULE_BYTES, int(card.hbm.words[HeapWord.END]) * GRANULE_BYTES


def hbm_peak_bytes(card: CardState) -> int:
    """Return the most device memory that was ever allocated at once, in bytes."""
    require_single(card)
    return int(card.hbm.words[HeapWord.PEAK]) * GRANULE_BYTES


def memory_report(card: CardState, *, memory: str = "device") -> MemoryReport:
    """Return how device or host memory is used: totals, longest free run, fragmentation, owners by call site.

    Raises:
      ValueError: ``memory`` is neither "device" nor "host", or the card has batch axes.

    >>> import ascend_jax as aj
    >>> card, _ = aj.malloc(aj.init(aj.chip("Ascend910B2")), 4096)
    >>> aj.memory_report(card).used_bytes, aj.memory_report(card).fragmentation
    (8192, 0.0)
    """
    heap = _heap(card, memory)
    words, (opening, closing), live = np.asarray(heap.words, np.int64), _gaps(heap), _live(heap)
    sizes, flags = live[:, HeapEntry.SIZE], live[:, HeapEntry.FLAGS]
    total = words[HeapWord.END] - words[HeapWord.BASE]
    counts = {
        "total_bytes": total,
        "used_bytes": words[HeapWord.USED],
        "free_bytes": total - words[HeapWord.USED],
        "largest_free_bytes": (closing - opening).max(),
        "idle_bytes": words[HeapWord.IDLE],
        "peak_bytes": words[HeapWord.PEAK],
        "pool_bytes": sizes[(flags & HeapFlag.POOL) != 0].sum(),
        "runtime_bytes": sizes[(flags & HeapFlag.RUNTIME) != 0].sum(),
    }
    nbytes = {name: int(granules) * GRANULE_BYTES for name, granules in counts.items()}
    return MemoryReport(**nbytes, blocks=int(words[HeapWord.COUNT]), owners=owners_of(heap))


def out_of_memory(card: CardState, *, memory: str | None = None) -> OutOfMemory | None:
    """Return what the latest allocation that did not fit had asked for and found, or None if all have fitted.

    Args:
      card: One card.
      memory: "device" or "host"; by default the one where something did not fit last.

    Raises:
      ValueError: ``memory`` is neither "device" nor "host", or the card has batch axes.

    >>> import ascend_jax as aj
    >>> card, _ = aj.malloc(aj.init(aj.chip("Ascend910B2")), 100 << 30)
    >>> report = aj.out_of_memory(card)
    >>> report.requested_bytes >> 30, report.largest_free_bytes == report.free_bytes
    (100, True)
    """
    names = ("device", "host") if memory is None else (memory,)
    short = [name for name in names if _words(card, name)[HeapWord.SHORTAGES]]
    if not short:
        return None
    name = max(short, key=lambda name: _words(card, name)[[HeapWord.SHORT_HI, HeapWord.SHORT_LO]].tolist())
    words = _words(card, name)
    whole = (int(words[HeapWord.SHORT_HIGH]) << 31) + int(words[HeapWord.SHORT_WHOLE])
    limit = int(words[HeapWord.SHORT_LIMIT]) * GRANULE_BYTES
    return OutOfMemory(
        requested_bytes=whole * GRANULE_BYTES + int(words[HeapWord.SHORT_REST]),
        free_bytes=int(words[HeapWord.SHORT_FREE]) * GRANULE_BYTES,
        largest_free_bytes=int(words[HeapWord.SHORT_LARGEST]) * GRANULE_BYTES,
        reserved_unused_bytes=int(words[HeapWord.SHORT_IDLE]) * GRANULE_BYTES,
        site=callsite.text(int(words[HeapWord.SHORT_SITE])),
        shortages=int(words[HeapWord.SHORTAGES]),
        memory=name,
        owners=owners_of(_heap(card, name)),
        limit_bytes=limit or None,
        held_bytes=int(words[HeapWord.SHORT_HELD]) * GRANULE_BYTES if limit else None,
    )


def _words(card: CardState, memory: str) -> np.ndarray:
    return np.asarray(_heap(card, memory).words, np.int64)


def _heap(card: CardState, memory: str) -> Heap:
    require_single(card)
    if memory not in ("device", "host"):
        raise ValueError(f"memory = {memory!r}: must be 'device' or 'host'")
    return card.hbm if memory == "device" else card.host
