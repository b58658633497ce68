"""Blocks that were given back while queued work still used them: allowed, as on a card, and found here."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import callsite, clock
from ascend_jax.runtime.heap import REST_MASK
from ascend_jax.runtime.host import host_now
from ascend_jax.runtime.layout import NONE, Clock, Field, Freed, HeapEntry, Operand, Phase, Time
from ascend_jax.runtime.ranges import Range, overlaps
from ascend_jax.runtime.rows import Number, latest, remembered
from ascend_jax.runtime.state import CardState, require_single


@dataclasses.dataclass(frozen=True)
class FreedInUse:
    """A command that uses memory after it was given back."""

    command: int  # running number of the command
    site: str  # call site of the command
    pointer: int  # of the block
    malloc_site: str
    free_site: str
    freed_ns: int  # host time of the free
    end_ns: int | None  # when the command ended; None if it has not, or was dropped while it ran


def note_freed(
    card: CardState, entry: jax.Array, site: Number, is_freed: jax.Array, stream: Number = NONE
) -> CardState:
    """Remember a block that was given back, at once or in the order of a stream slot; ``entry`` are its facts."""
    now = host_now(card)
    facts: dict[Freed, Number] = {
        Freed.START: entry[HeapEntry.START],
        Freed.ASKED: entry[HeapEntry.ASKED],
        Freed.REST: entry[HeapEntry.REST] & REST_MASK,
        Freed.SITE: entry[HeapEntry.SITE],
        Freed.FREE_SITE: site,
        Freed.BORN: entry[HeapEntry.BORN],
        Freed.SEQUENCE: card.clock[Clock.ENQUEUED],
        Freed.HOST_HI: now.hi,
        Freed.HOST_LO: now.lo,
        Freed.STREAM: stream,
    }
    row = jnp.stack([jnp.asarray(facts[column], jnp.int32) for column in Freed])
    return dataclasses.replace(card, freed=remembered(card.freed, row, is_freed))


def freed_blocks(card: CardState) -> np.ndarray:
    """Return the blocks that are remembered as given back, oldest first, int32 [frees, len(Freed)]."""
    require_single(card)
    return latest(np.asarray(card.freed))


def freed_in_use(card: CardState) -> list[FreedInUse]:
    """Return the commands that were queued before a block was given back and end after it; host-side, for one card.

    It looks at the latest ``max_freed`` frees and at the commands in the table, as far as the device is simulated: call
    it after synchronizing. A command belongs to a block if it was queued between its ``malloc`` and its ``free``.
    Memory counts as given back by ``free`` and ``free_host``, by the ``unmap_mem`` after which it is mapped nowhere,
    and by ``mem_pool_free`` once its stream is past what was queued there before.

    >>> import ascend_jax as aj
    >>> card, ptr = aj.malloc(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 20), 4096)
    >>> card = aj.free(aj.memset_async(card, ptr, 0, 4096, 0), ptr)
    >>> [one.command for one in aj.freed_in_use(aj.synchronize_device(card))]
    [0]
    """
    fields, operands, times = (
        np.asarray(each)[:-1] for each in (card.table.fields, card.table.operands, card.table.times)
    )
    ends = clock.to_ns(times[:, Time.END_HI], times[:, Time.END_LO])
    is_open = (times[:, Time.PHASE] >= Phase.QUEUED) & (times[:, Time.PHASE] < Phase.DONE)
    is_cut_off = (times[:, Time.PHASE] == Phase.DROPPED) & (times[:, Time.START_HI] != NONE)
    has_run = is_open | is_cut_off | ((times[:, Time.PHASE] >= Phase.DONE) & (times[:, Time.PHASE] < Phase.DROPPED))
    used = ((fields[:, Field.READS] | fields[:, Field.WRITES])[:, None] >> np.arange(operands.shape[1])) & 1
    places = Range(*(operands[..., column] for column in Operand))
    found: list[FreedInUse] = []
    for block in freed_blocks(card):
        sequence = fields[:, Field.SEQUENCE]
        freed_ns = int(clock.to_ns(block[Freed.HOST_HI], block[Freed.HOST_LO]))
        is_ordered = has_run & (fields[:, Field.STREAM] == block[Freed.STREAM]) & (sequence < block[Freed.SEQUENCE])
        if (is_ordered & is_open).any():
            continue  # the stream has not come to where the block was given back
        gone_ns = max(freed_ns, int(ends[is_ordered].max(initial=0)))
        is_late = has_run & (is_open | (ends > gone_ns))
        is_its = (sequence >= block[Freed.BORN]) & (sequence < block[Freed.SEQUENCE])
        whole = Range(block[Freed.START], np.int32(0), block[Freed.ASKED], block[Freed.REST])
        touches = (np.asarray(overlaps(places, whole)) & (used == 1)).any(1)
        found += [
            FreedInUse(
                command=int(sequence[row]),
                site=callsite.text(int(fields[row, Field.SITE])),
                pointer=int(block[Freed.START]),
                malloc_site=callsite.text(int(block[Freed.SITE])),
                free_site=callsite.text(int(block[Freed.FREE_SITE])),
                freed_ns=freed_ns,
                end_ns=None if is_open[row] or is_cut_off[row] else int(ends[row]),
            )
            for row in np.flatnonzero(is_late & is_its & touches)
        ]
    return sorted(found, key=lambda one: (one.command, one.freed_ns))
