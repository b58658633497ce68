"""Workspaces of operators: one for each stream, kept beside the segments of the caching allocator."""

import dataclasses
from types import MappingProxyType

import numpy as np

from ascend_jax.runtime import callsite
from ascend_jax.runtime.codes import AscendError
from ascend_jax.runtime.edge import Site, require_whole, verb
from ascend_jax.runtime.handles import find_stream
from ascend_jax.runtime.layout import GRANULE_BYTES
from ascend_jax.runtime.memory.allocation import free_workspace, malloc_workspace
from ascend_jax.runtime.memory.caching_reports import CacheOutOfMemory, shortage
from ascend_jax.runtime.memory.caching_state import ROUND_LARGE, CachingAllocator, Workspace, up
from ascend_jax.runtime.memory.synced_free import synced
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import forgiven

PAD_BYTES = 32  # added to what an operator asks for (torch_npu, NPUWorkspaceAllocator)


@verb
def cache_workspace(
    cache: CachingAllocator, card: CardState, nbytes: int, stream: int = 0, *, site: Site = None
) -> tuple[CachingAllocator, CardState, int]:
    """Return the workspace of a stream for the next operator there, at least ``nbytes``: the same while it is enough.

    A larger one takes its place after the device has been synchronized. Workspaces are memory of the runtime: not in
    ``memory_stats``, but in ``memory_report(card).runtime_bytes``, until ``empty_cache`` (torch_npu,
    NPUWorkspaceAllocator).

    Returns:
      The allocator, the card and a pointer; 0 for 0 bytes, or if the device cannot be synchronized: the status says
      why, and the old workspace stays.

    Raises:
      ValueError: ``nbytes`` is negative.
      TypeError: ``nbytes`` is no whole number.
      AscendError: 107003 for an unknown stream.
      CacheOutOfMemory: 207001; go on with ``cache`` and ``card`` of the exception.

    >>> import ascend_jax as aj
    >>> card = aj.init(aj.chip("Ascend910B2"))
    >>> cache, card, ptr = aj.cache_workspace(aj.caching_allocator(card), card, 3 << 20)
    >>> aj.memory_report(card).runtime_bytes >> 20, aj.memory_stats(cache)["reserved_bytes.all.current"]
    (4, 0)
    """
    require_whole(nbytes=nbytes)
    if nbytes < 0:
        raise ValueError(f"nbytes = {nbytes}: must be 0 or more")
    code, slot = find_stream(card, stream)
    if int(code):
        raise AscendError(int(code), f"stream {stream}")
    if nbytes == 0:
        return cache, card, 0
    held = cache.workspaces.get(int(slot))
    if held is not None and nbytes + PAD_BYTES <= held.size:
        return cache, card, held.address // GRANULE_BYTES
    if held is not None:
        card, is_synced = synced(card, site)
        if not is_synced:
            return cache, card, 0
        card = free_workspace(card, held.address // GRANULE_BYTES, site)
    others = {stream: one for stream, one in cache.workspaces.items() if stream != int(slot)}
    size, before = up(nbytes + PAD_BYTES, ROUND_LARGE), np.asarray(card.status)
    card, pointer = malloc_workspace(card, size, site)
    if not int(pointer):
        card = forgiven(card, before)
        stats = cache.stats.counted("num_ooms")
        cache = dataclasses.replace(cache, workspaces=MappingProxyType(others), stats=stats)
        raise CacheOutOfMemory(shortage(cache, card, nbytes, callsite.text(int(site or 0))), cache, card)
    workspaces = MappingProxyType({**others, int(slot): Workspace(int(pointer) * GRANULE_BYTES, size)})
    return dataclasses.replace(cache, workspaces=workspaces), card, int(pointer)
