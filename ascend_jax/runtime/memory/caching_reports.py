"""What the caching allocator says about itself: out of memory, statistics, snapshot."""

import dataclasses

from ascend_jax.runtime.codes import AscendError, Code
from ascend_jax.runtime.layout import GRANULE_BYTES, HeapWord, Virtual
from ascend_jax.runtime.memory.allocator_options import UNLIMITED
from ascend_jax.runtime.memory.caching_state import CachingAllocator
from ascend_jax.runtime.memory_info import OutOfMemory, Owner, memory_report, owners_of
from ascend_jax.runtime.state import CardState


class CacheOutOfMemory(AscendError):
    """An allocation that did not fit even after everything cached was given back.

    ``report`` has the numbers; ``cache`` and ``card`` are the allocator and the card to go on with. The code is 207001,
    or 900004 if the card has no row for one more block and 900005 for one more mapped range, however much is free.
    """

    def __init__(self, report: OutOfMemory, cache: CachingAllocator, card: CardState) -> None:
        is_full = int(card.hbm.words[HeapWord.COUNT]) >= card.hbm.blocks.shape[-1]
        is_unmappable = cache.options.expandable_segments and bool((card.virtual[:, Virtual.KIND] != 0).all())
        code = Code.OBJECT_TABLE_FULL if is_unmappable else Code.MEMORY_ALLOCATION
        super().__init__(Code.HEAP_TABLE_FULL if is_full else code, str(report))
        self.report, self.cache, self.card = report, cache, card


def shortage(cache: CachingAllocator, card: CardState, nbytes: int, site: str) -> OutOfMemory:
    """Return the report of an allocation that has just failed, for the allocator and the card as they are now."""
    device = memory_report(card)
    allowed = max(cache.allowed_bytes - cache.reserved_bytes, 0)  # a limit may be lowered below what is reserved
    is_limited = allowed < device.free_bytes
    cached = sum(block.size for block in cache.blocks.values() if not block.is_used)
    return OutOfMemory(
        requested_bytes=nbytes,
        free_bytes=min(device.free_bytes, allowed),
        largest_free_bytes=min(device.largest_free_bytes, allowed),
        reserved_unused_bytes=cached + device.idle_bytes,
        site=site,
        shortages=cache.stats.numbers.get("num_ooms", 0),
        memory="device",
        owners=_owners(cache, card),
        limit_bytes=cache.allowed_bytes if is_limited else None,
        held_bytes=cache.reserved_bytes if is_limited else None,
    )


def _owners(cache: CachingAllocator, card: CardState) -> tuple[Owner, ...]:
    """Return who has used parts of the allocator, and who has device memory beside it; most bytes first."""
    sites: dict[str, list[int]] = {}
    for block in cache.blocks.values():
        if block.is_used:
            sites.setdefault(block.site, []).append(block.size)
    pieces = [piece.physical for space in cache.spaces.values() for piece in space.pieces]
    beside = owners_of(card.hbm, but=[*pieces, *(at // GRANULE_BYTES for at in cache.segments)])
    owners = [*beside, *(Owner(name, sum(sizes), len(sizes)) for name, sizes in sites.items())]
    return tuple(sorted(owners, key=lambda one: (-one.nbytes, one.site)))


def memory_stats(cache: CachingAllocator) -> dict[str, int]:
    """Return the statistics under the names of ``torch_npu.npu.memory_stats``, and ``max_split_size``."""
    limit = cache.options.max_split_bytes
    return cache.stats.as_dict() | {"max_split_size": -1 if limit == UNLIMITED else limit}


def reset_peak_memory_stats(cache: CachingAllocator) -> CachingAllocator:
    """Return the allocator with every peak at what is current."""
    return dataclasses.replace(cache, stats=cache.stats.fresh_peaks())


def memory_snapshot(cache: CachingAllocator) -> list[dict[str, object]]:
    """Return every segment with its blocks, as ``torch_npu.npu.memory_snapshot`` does; plain data, fit for JSON.

    What an expandable segment has given back in its middle leaves two of them.
    """
    rows: list[dict[str, object]] = []
    for address, segment in cache.segments.items():
        inside = [one for at, one in cache.blocks.items() if address <= at < address + segment.size]
        states = ["inactive" if one.is_cached else "active_pending_free" if one.waits else "active_allocated"
                  for one in inside]  # fmt: skip
        rows.append(
            {
                "address": address,
                "total_size": segment.size,
                "allocated_size": sum(one.size for one in inside if one.is_used),
                "active_size": sum(one.size for one in inside if not one.is_cached),
                "segment_type": "small" if segment.is_small else "large",
                "stream": inside[0].stream if inside else None,
                "blocks": [
                    {
                        "address": one.address,
                        "size": one.size,
                        "requested_size": one.requested,
                        "state": state,
                        "site": one.site,
                        "used_by_streams": list(one.streams or [slot for slot, _ in one.waits]),
                    }
                    for one, state in zip(inside, states, strict=True)
                ],
            }
        )
    return rows
