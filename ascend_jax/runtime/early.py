"""Host accesses that came before a command had ended: a read of what a copy still brings, a write into its source."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import callsite, clock
from ascend_jax.runtime.host import host_now
from ascend_jax.runtime.layout import Early, Field, Operand, Phase, Time
from ascend_jax.runtime.ranges import Range, overlaps
from ascend_jax.runtime.rows import Number, get_row, latest, remembered
from ascend_jax.runtime.state import CardState, require_single


@dataclasses.dataclass(frozen=True)
class EarlyAccess:
    """The host read or wrote pinned memory that a queued command was still to write or to read."""

    command: int  # running number of the command
    command_site: str
    pointer: int  # where the access begins
    site: str  # call site of the access
    is_write: bool
    at_ns: int  # host time of the access


def note_access(card: CardState, place: Range, site: Number, is_write: bool, is_done: jax.Array) -> CardState:
    """Remember a host access to a range in normal form if a command that it meets has not ended: the first such one.

    A read meets commands that write the range, a write also those that read it.
    """
    fields, times = card.table.fields, card.table.times
    phase = times[:, Time.PHASE]
    is_open = (phase >= Phase.QUEUED) & (phase < Phase.DONE)
    bits = fields[:, Field.WRITES] | (fields[:, Field.READS] if is_write else 0)
    is_used = ((bits[:, None] >> jnp.arange(card.table.operands.shape[1])[None]) & 1) == 1
    places = Range(*(card.table.operands[..., column] for column in Operand))
    is_met = is_open & (overlaps(places, place) & is_used).any(1)
    row = jnp.argmin(jnp.where(is_met, fields[:, Field.SEQUENCE], 2**31 - 1))
    command, now = get_row(fields, row), host_now(card)
    facts: dict[Early, Number] = {
        Early.COMMAND: command[Field.SEQUENCE],
        Early.COMMAND_SITE: command[Field.SITE],
        Early.POINTER: place.pointer,
        Early.SITE: site,
        Early.IS_WRITE: is_write,
        Early.HOST_HI: now.hi,
        Early.HOST_LO: now.lo,
    }
    entry = jnp.stack([jnp.asarray(facts[column], jnp.int32) for column in Early])
    return dataclasses.replace(card, early=remembered(card.early, entry, is_met.any() & is_done))


def early_accesses(card: CardState) -> list[EarlyAccess]:
    """Return the latest ``max_freed`` host accesses that came too early, oldest first; host-side, for one card.

    ``host_read`` is too early for a copy to pinned memory that has not ended: it sees the bytes of before.
    ``host_write`` is too early for a command that is still to read or write there.

    >>> import ascend_jax as aj
    >>> card, ptr = aj.malloc(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 20), 64)
    >>> card, pinned = aj.malloc_host(card, 64)
    >>> card = aj.memcpy_async(card, pinned, ptr, 64, 0)
    >>> card, _ = aj.host_read(card, pinned, (64,), "uint8")
    >>> [(one.command, one.is_write) for one in aj.early_accesses(card)]
    [(0, False)]
    """
    require_single(card)
    return [
        EarlyAccess(
            command=int(row[Early.COMMAND]),
            command_site=callsite.text(int(row[Early.COMMAND_SITE])),
            pointer=int(row[Early.POINTER]),
            site=callsite.text(int(row[Early.SITE])),
            is_write=bool(row[Early.IS_WRITE]),
            at_ns=int(clock.to_ns(row[Early.HOST_HI], row[Early.HOST_LO])),
        )
        for row in latest(np.asarray(card.early))
    ]
