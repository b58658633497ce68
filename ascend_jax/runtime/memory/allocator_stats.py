"""Statistics of the caching allocator, under the names of ``torch_npu.npu.memory_stats``."""

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType

COUNTERS = (
    "num_alloc_retries",
    "num_ooms",
    "num_oom_rejections",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
)
BY_POOL = (
    "allocation",
    "allocated_bytes",
    "segment",
    "reserved_bytes",
    "active",
    "active_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "requested_bytes",
)
POOLS = ("all", "large_pool", "small_pool")
OVERSIZE = ("oversize_allocations", "oversize_segments")
NAMES = tuple(f"{name}.{pool}" for name in BY_POOL for pool in POOLS) + OVERSIZE


@dataclasses.dataclass(frozen=True)
class Held:
    """One block or segment, as far as the statistics look at it."""

    kind: str  # "used", "waiting" (freed, other streams still use it), "cached", "segment", "mapped" (expandable one)
    size: int
    is_small: bool
    requested: int = 0
    is_split: bool = False  # part of a segment
    is_oversize: bool = False


@dataclasses.dataclass(frozen=True)
class AllocatorStats:
    """Numbers so far: ``name.{current,peak,allocated,freed}`` and counters."""

    numbers: Mapping[str, int] = dataclasses.field(default_factory=lambda: MappingProxyType({}))

    def counted(self, counter: str, by: int = 1) -> "AllocatorStats":
        """Return the statistics with one counter raised."""
        return AllocatorStats(MappingProxyType({**self.numbers, counter: self.numbers.get(counter, 0) + by}))

    def seen(self, held: Iterable[Held]) -> "AllocatorStats":
        """Return the statistics after the allocator has come to hold this, by a step that only adds or only removes."""
        numbers, now = dict(self.numbers), _current(held)
        for name in NAMES:
            current = now.get(name, 0)
            change = current - numbers.get(f"{name}.current", 0)
            numbers[f"{name}.current"] = current
            numbers[f"{name}.peak"] = max(current, numbers.get(f"{name}.peak", 0))
            numbers[f"{name}.allocated"] = numbers.get(f"{name}.allocated", 0) + max(change, 0)
            numbers[f"{name}.freed"] = numbers.get(f"{name}.freed", 0) + max(-change, 0)
        return AllocatorStats(MappingProxyType(numbers))

    def fresh_peaks(self) -> "AllocatorStats":
        """Return the statistics with every peak at what is current."""
        numbers = dict(self.numbers)
        numbers |= {f"{name}.peak": numbers.get(f"{name}.current", 0) for name in NAMES}
        return AllocatorStats(MappingProxyType(numbers))

    def as_dict(self) -> dict[str, int]:
        """Return all numbers, sorted by name; what never happened is 0."""
        ends = ("current", "peak", "allocated", "freed")
        names = [f"{name}.{end}" for name in NAMES for end in ends] + list(COUNTERS)
        return {name: self.numbers.get(name, 0) for name in sorted(names)}


def _current(held: Iterable[Held]) -> dict[str, int]:
    now: dict[str, int] = {}

    def add(name: str, one: Held, count: int) -> None:
        for pool in ("all", "small_pool" if one.is_small else "large_pool"):
            now[f"{name}.{pool}"] = now.get(f"{name}.{pool}", 0) + count

    for one in held:
        if one.kind in ("segment", "mapped"):
            add("reserved_bytes", one, one.size)
        if one.kind == "segment":
            add("segment", one, 1)
            now["oversize_segments"] = now.get("oversize_segments", 0) + one.is_oversize
        if one.kind == "used":
            add("allocation", one, 1)
            add("allocated_bytes", one, one.size)
            now["oversize_allocations"] = now.get("oversize_allocations", 0) + one.is_oversize
        if one.kind in ("used", "waiting"):
            add("active", one, 1)
            add("active_bytes", one, one.size)
            add("requested_bytes", one, one.requested)
        if one.kind == "cached" and one.is_split:
            add("inactive_split", one, 1)
            add("inactive_split_bytes", one, one.size)
    return now
