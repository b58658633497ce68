"""What is remembered of an allocation that did not fit, for the report of ``out_of_memory``."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.runtime import status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import packed, stage
from ascend_jax.runtime.heap import largest_gap, with_words
from ascend_jax.runtime.host import host_now
from ascend_jax.runtime.layout import GRANULE_SHIFT, HeapWord
from ascend_jax.runtime.ranges import MOST_GRANULES
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState, Heap


def note_shortage(
    card: CardState,
    heap: Heap,
    asked: tuple[jax.Array, jax.Array],
    site: Number,
    is_out: jax.Array,
    pool: tuple[Number, Number] = (0, 0),
) -> Heap:
    """Remember what an allocation found that did not fit, for the report; ``is_out`` says whether there is one.

    Args:
      card: The card, for the time.
      heap: Where it did not fit.
      asked: Whole granules and bytes beyond them.
      site: Call site.
      is_out: Whether it did not fit.
      pool: Most granules that the pool asked may reserve, 0 = as many as there are, and what it has reserved.
    """

    def noted(heap: Heap) -> jax.Array:
        words, now = heap.words, host_now(card)
        return with_words(
            words,
            {
                HeapWord.SHORT_WHOLE: asked[0],
                HeapWord.SHORT_REST: asked[1],
                HeapWord.SHORT_FREE: words[HeapWord.END] - words[HeapWord.BASE] - words[HeapWord.USED],
                HeapWord.SHORT_LARGEST: largest_gap(heap),
                HeapWord.SHORT_IDLE: words[HeapWord.IDLE],
                HeapWord.SHORT_SITE: site,
                HeapWord.SHORTAGES: words[HeapWord.SHORTAGES] + 1,
                HeapWord.SHORT_HIGH: 0,
                HeapWord.SHORT_LIMIT: pool[0],
                HeapWord.SHORT_HELD: pool[1],
                HeapWord.SHORT_HI: now.hi,
                HeapWord.SHORT_LO: now.lo,
            },
        )

    return Heap(heap.blocks, lax.cond(is_out, noted, lambda heap: heap.words, heap))


@stage(static=("memory",), reads=("status",), changes=("hbm", "host"))
def _note_request(card: CardState, request: jax.Array, *, memory: str) -> CardState:
    high, whole = request
    heap = card.host if memory == "host" else card.hbm
    words = with_words(heap.words, {HeapWord.SHORT_HIGH: high, HeapWord.SHORT_WHOLE: whole})
    words = jnp.where(status.last_code(card) == Code.MEMORY_ALLOCATION, words, heap.words)
    noted = Heap(heap.blocks, words)
    return dataclasses.replace(card, host=noted) if memory == "host" else dataclasses.replace(card, hbm=noted)


def with_request(card: CardState, nbytes: Number, memory: str = "hbm") -> CardState:
    """Return the card after a call that asked for ``nbytes``, with the report saying so even past 128 GiB."""
    if not isinstance(nbytes, int | np.integer) or nbytes >> GRANULE_SHIFT <= MOST_GRANULES:
        return card
    high, whole = divmod(min(int(nbytes) >> GRANULE_SHIFT, 2**61), 1 << 31)
    return _note_request(card, packed(high, whole), memory=memory)
