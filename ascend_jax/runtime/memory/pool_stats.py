"""What a memory pool holds, read on the host."""

import dataclasses

import numpy as np

from ascend_jax.runtime.layout import GRANULE_BYTES, HeapEntry, Pool
from ascend_jax.runtime.pool_blocks import find_pool, members
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState, require_single


@dataclasses.dataclass(frozen=True)
class PoolStats:
    """What a pool holds, in bytes (``aclrtMemPoolAttr`` 5 to 8)."""

    reserved_bytes: int
    reserved_high_bytes: int
    used_bytes: int
    used_high_bytes: int
    blocks_used: int
    blocks_idle: int
    largest_idle_bytes: int


def mem_pool_stats(card: CardState, pool: Number) -> PoolStats:
    """Return what a pool holds (``aclrtMemPoolGetAttr``); host-side, for one card.

    Raises:
      ValueError: The pool is unknown or destroyed, or the card has batch axes.
    """
    require_single(card)
    code, slot = find_pool(card, pool)
    if int(code):
        raise ValueError(f"pool = {int(pool)}: no such pool, or destroyed; pass what mem_pool_create returned")
    entry = np.asarray(card.pools, np.int64)[int(slot)] * GRANULE_BYTES
    used, idle = (np.asarray(mask) for mask in members(card, slot))
    sizes = np.asarray(card.hbm.blocks, np.int64)[HeapEntry.SIZE] * GRANULE_BYTES
    return PoolStats(
        reserved_bytes=int(entry[Pool.RESERVED]),
        reserved_high_bytes=int(entry[Pool.RESERVED_HIGH]),
        used_bytes=int(entry[Pool.USED]),
        used_high_bytes=int(entry[Pool.USED_HIGH]),
        blocks_used=int(used.sum()),
        blocks_idle=int(idle.sum()),
        largest_idle_bytes=int(sizes[idle].max(initial=0)),
    )
