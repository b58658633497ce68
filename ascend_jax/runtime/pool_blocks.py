"""Which blocks belong to which memory pool, who may take an idle one, and which may go. Tables and pure functions."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from ascend_jax.runtime import layout
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import row_of
from ascend_jax.runtime.edge import concrete, stage
from ascend_jax.runtime.handles import find
from ascend_jax.runtime.heap import FAR, join, remove_all, shorten, with_words
from ascend_jax.runtime.layout import (
    HUGE_PAGE,
    POOL_SHIFT,
    STREAM_SHIFT,
    Field,
    HeapEntry,
    HeapFlag,
    HeapWord,
    Kind,
    Phase,
    Pool,
    Stream,
    Time,
)
from ascend_jax.runtime.loop import varying_together
from ascend_jax.runtime.rows import Number, get_row, get_rows, put_if, with_entries
from ascend_jax.runtime.state import CardState, Heap
from ascend_jax.runtime.status import first_code

POOL_MASK = (1 << STREAM_SHIFT - POOL_SHIFT) - 1


def pool_of(flags: jax.Array) -> jax.Array:
    """Return the slot of the pool that the flags of a block name."""
    return (flags >> POOL_SHIFT) & POOL_MASK


def stream_of(flags: jax.Array) -> jax.Array:
    """Return the slot of the stream in whose order a block was given back, as its flags name it."""
    return flags >> STREAM_SHIFT


def idle_flags(flags: Number, stream: Number) -> jax.Array:
    """Return the flags of a block after it was given back in the order of a stream slot."""
    kept = jnp.asarray(flags, jnp.int32) & ((1 << STREAM_SHIFT) - 1)
    return kept | int(HeapFlag.IDLE) | (stream << STREAM_SHIFT)


def find_pool(card: CardState, handle: Number) -> tuple[jax.Array, jax.Array]:
    """Return (code, slot) of a pool; 107000 for one that is unknown or destroyed."""
    is_alive, slot = find(card.pools, handle, Pool)
    return first_code((~is_alive, Code.RT_PARAM_INVALID)), slot


def members(card: CardState, slot: Number) -> tuple[jax.Array, jax.Array]:
    """Return masks of the blocks of a pool that are (in use, idle), bool [M]."""
    flags = card.hbm.blocks[HeapEntry.FLAGS]
    live = jnp.arange(flags.shape[0]) < card.hbm.words[HeapWord.COUNT]
    is_ours = live & ((flags & (HeapFlag.POOL | HeapFlag.CONDEMNED)) == HeapFlag.POOL) & (pool_of(flags) == slot)
    is_idle = (flags & HeapFlag.IDLE) != 0
    return is_ours & ~is_idle, is_ours & is_idle


def is_done(card: CardState) -> jax.Array:
    """Return for every block whether the stream it was given back in is past that point, bool [M]."""
    stream = stream_of(card.hbm.blocks[HeapEntry.FLAGS])
    oldest = get_rows(card.table.fields[:, Field.SEQUENCE], card.streams[:, Stream.HEAD])
    oldest = jnp.where(card.streams[:, Stream.PENDING] == 0, FAR, oldest)
    return get_rows(oldest, stream) >= card.hbm.blocks[HeapEntry.BORN]


def is_followed(card: CardState, slot: jax.Array) -> jax.Array:
    """Return for every block whether ``slot`` waits for an event recorded after it was given back, bool [M]."""
    fields = card.table.fields
    depends = fields[:, Field.DEPENDS]
    is_wait = (fields[:, Field.KIND] == Kind.EVENT_WAIT) & (fields[:, Field.STREAM] == slot) & (depends >= 0)
    record = get_rows(fields, row_of(fields, jnp.maximum(depends, 0)))
    is_wait &= record[:, Field.SEQUENCE] == depends
    seen = jnp.full(card.streams.shape[0], layout.NONE).at[record[:, Field.STREAM]].max(jnp.where(is_wait, depends, -1))
    stream = stream_of(card.hbm.blocks[HeapEntry.FLAGS])
    return get_rows(seen, stream) >= card.hbm.blocks[HeapEntry.BORN]


def last_before(card: CardState, entry: jax.Array) -> jax.Array:
    """Return the last unfinished command of the stream an idle block was given back in that came before, or NONE."""
    fields, phase = card.table.fields, card.table.times[:, Time.PHASE]
    is_open = (phase >= Phase.QUEUED) & (phase < Phase.DONE)
    is_before = (fields[:, Field.STREAM] == stream_of(entry[HeapEntry.FLAGS])) & (
        fields[:, Field.SEQUENCE] < entry[HeapEntry.BORN]
    )
    return jnp.where(is_open & is_before, fields[:, Field.SEQUENCE], layout.NONE).max()


def counted(card: CardState, slot: Number, is_wanted: Number) -> CardState:
    """Return the card with the numbers of a pool as its blocks say."""
    used, idle = members(card, slot)
    sizes = card.hbm.blocks[HeapEntry.SIZE]
    taken = jnp.where(used, sizes, 0).sum(dtype=jnp.int32)
    reserved = taken + jnp.where(idle, sizes, 0).sum(dtype=jnp.int32)
    entry = get_row(card.pools, slot)
    numbers: dict[Pool, Number] = {
        Pool.RESERVED: reserved,
        Pool.RESERVED_HIGH: jnp.maximum(entry[Pool.RESERVED_HIGH], reserved),
        Pool.USED: taken,
        Pool.USED_HIGH: jnp.maximum(entry[Pool.USED_HIGH], taken),
    }
    is_idle = (card.hbm.blocks[HeapEntry.FLAGS] & (HeapFlag.IDLE | HeapFlag.CONDEMNED)) == HeapFlag.IDLE
    words = {HeapWord.IDLE: jnp.where(is_idle, sizes, 0).sum(dtype=jnp.int32)}
    hbm = Heap(card.hbm.blocks, with_words(card.hbm.words, words))
    return dataclasses.replace(
        card, hbm=hbm, pools=put_if(jnp.asarray(is_wanted), card.pools, slot, with_entries(entry, numbers))
    )


def in_pages(whole: jax.Array, rest: jax.Array) -> jax.Array:
    """Return a size in granules, rounded up to 2 MiB."""
    return (whole + (rest > 0) + HUGE_PAGE - 1) & -HUGE_PAGE


def settled(card: CardState, is_meant: jax.Array) -> CardState:
    """Return the card with idle blocks of a mask, bool [M], in nobody's order any more where their streams are past.

    What is in nobody's order has the host's own slot as its stream, and joins its neighbours.
    """
    flags = card.hbm.blocks[HeapEntry.FLAGS]
    is_idle = (flags & HeapFlag.IDLE) != 0
    nobodys = idle_flags(flags, card.streams.shape[0] - 1)
    blocks = with_entries(
        card.hbm.blocks.T, {HeapEntry.FLAGS: jnp.where(is_meant & is_idle & is_done(card), nobodys, flags)}
    ).T
    return dataclasses.replace(card, hbm=join(Heap(blocks, card.hbm.words), is_idle))


def without_surplus(card: CardState, slot: Number, keep: Number, is_wanted: Number) -> CardState:
    """Return the card with idle memory of a pool given back, highest first, until ``keep`` granules are reserved.

    Whole pages go, of blocks that no queued work can still use; at most one block is cut.
    """
    _, idle = members(card, slot)
    sizes = jnp.where(idle & is_done(card), card.hbm.blocks[HeapEntry.SIZE], 0)
    above = jnp.cumsum(sizes[::-1])[::-1] - sizes
    surplus = jnp.where(is_wanted, get_row(card.pools, slot)[Pool.RESERVED] - keep, 0) & -HUGE_PAGE
    gone = jnp.clip(surplus - above, 0, sizes)
    return counted(dataclasses.replace(card, hbm=shorten(card.hbm, gone)), slot, is_wanted)


def without_condemned(card: CardState) -> CardState:
    """Return the card with blocks given back that belong to no pool any more and that no queued work can still use."""
    is_condemned = (card.hbm.blocks[HeapEntry.FLAGS] & (HeapFlag.IDLE | HeapFlag.CONDEMNED)) == (
        HeapFlag.IDLE | HeapFlag.CONDEMNED
    )
    return dataclasses.replace(card, hbm=remove_all(card.hbm, is_condemned & is_done(card)))


@stage
def _release_idle(card: CardState) -> CardState:
    card = without_condemned(settled(card, jnp.ones(card.hbm.blocks.shape[1], bool)))

    def of_pool(slot: jax.Array, held: tuple) -> tuple:
        now, entry = dataclasses.replace(card, hbm=held[0], pools=held[1]), get_row(held[1], slot)
        now = without_surplus(now, slot, entry[Pool.THRESHOLD], entry[Pool.ALIVE] == 1)
        return now.hbm, now.pools

    hbm, pools = lax.fori_loop(0, card.pools.shape[0], of_pool, (card.hbm, card.pools))
    return dataclasses.replace(card, hbm=hbm, pools=pools)


def release_idle(card: CardState) -> CardState:
    """Return the card with what its pools hold idle above their thresholds given back, as after a synchronization."""
    if card.pools.shape[-2] == 0:
        return card
    is_pooled = (card.hbm.blocks[..., HeapEntry.FLAGS, :] & HeapFlag.POOL) != 0
    known = concrete(is_pooled)
    if known is not None:
        return _release_idle(card) if known.any() else card
    # a card that was whole until now may have work in it that varies with the devices of a `shard_map`
    return lax.cond(is_pooled.any(), _release_idle, lambda card: card, varying_together((), card)[1])


def require_pools(card: CardState) -> None:
    """Raise ValueError if the card was made without memory pools."""
    if card.pools.shape[-2] == 0:
        raise ValueError("max_pools = 0: this card has no memory pools; give init a larger max_pools")
