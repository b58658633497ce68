"""Random programs of malloc and free on device and pinned memory, for the card and for the allocator twin."""

import random

import jax
import jax.numpy as jnp
import numpy as np

import ascend_jax as aj
from ascend_jax.runtime.layout import HeapEntry, HeapWord
from tests.runtime.pages import HOST_FIRST, Pages

MIB = 1 << 20
HBM_BYTES, PINNED_BYTES, MAX_BLOCKS = 64 * MIB, 1 << 16, 6
SLOTS = 8  # pointers that a program remembers
MALLOC, FREE, MALLOC_HOST, FREE_HOST = range(4)
LENGTH = 40
POLICY_BITS = [0, 0, 0, 0x100, 0x1000, 0x100000, 0x101100]


def small_card():
    chip = aj.chip("Ascend910B2").replace(hbm_bytes=HBM_BYTES)
    return aj.init(chip, hbm_backing_bytes=0, host_backing_bytes=PINNED_BYTES, max_streams=1, max_events=1,
                   max_commands=2, max_blocks=MAX_BLOCKS)  # fmt: skip


def run(card, program):
    """Run rows of (call, slot, bytes, policy); return the card and (pointer, code, words, blocks) after each."""

    def malloc(card, pointer, nbytes, policy):
        return aj.malloc(card, nbytes, policy, site=1)

    def free(card, pointer, nbytes, policy):
        return aj.free(card, pointer, site=2), jnp.int32(0)

    def malloc_host(card, pointer, nbytes, policy):
        return aj.malloc_host(card, nbytes, site=3)

    def free_host(card, pointer, nbytes, policy):
        return aj.free_host(card, pointer, site=4), jnp.int32(0)

    def step(state, row):
        card, pointers = state
        call, slot, nbytes, policy = row
        verbs = [malloc, free, malloc_host, free_host]
        card, pointer = jax.lax.switch(call, verbs, card, pointers[slot], nbytes, policy)
        keeps = (call == MALLOC) | (call == MALLOC_HOST)
        pointers = pointers.at[slot].set(jnp.where(keeps, pointer, pointers[slot]))
        return (card, pointers), (pointer, aj.last_code(card), card.hbm.words, card.hbm.blocks)

    (card, _), seen = jax.lax.scan(step, (card, jnp.zeros(SLOTS, jnp.int32)), program)
    return card, seen


def draw(seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(LENGTH):
        call = rng.choices([MALLOC, FREE, MALLOC_HOST, FREE_HOST], [6, 5, 2, 2])[0]
        edges = [4064, 4065, MIB - 1, MIB, MIB + 1, 64, 0, -7]
        size = rng.choice([rng.randrange(1, 9000), rng.randrange(1, 40 * MIB), *edges])
        if call == MALLOC_HOST:
            size = rng.choice([1, 64, 65, 20_000, 40_000, 70_000, 0, -1])
        policy = rng.choice([0, 0, 1, 2, 3, 4, 5]) if rng.random() < 0.9 else rng.choice([-1, 6, 7, 8])
        rows.append((call, rng.randrange(SLOTS), size, policy | rng.choice(POLICY_BITS)))
    return np.array(rows, np.int32)


def twin_run(program):
    """Return what the twin answers after each row: int64 [LENGTH, 5 + 3 * MAX_BLOCKS].

    Columns: pointer, code, live blocks, granules used, most granules used; then start, bytes taken and bytes asked of
    every device block in address order, 0 beyond.
    """
    hbm = Pages(2 * MIB, HBM_BYTES, MAX_BLOCKS, pad=32)
    pinned = Pages(HOST_FIRST, HOST_FIRST + PINNED_BYTES, MAX_BLOCKS, paged=False)
    pointers, seen = [0] * SLOTS, np.zeros((len(program), 5 + 3 * MAX_BLOCKS), np.int64)
    for row, (call, slot, nbytes, policy) in enumerate(program.tolist()):
        pointer = 0
        if call in (MALLOC, MALLOC_HOST):
            code, pointer = hbm.malloc(nbytes, policy) if call == MALLOC else pinned.malloc(nbytes)
            pointers[slot] = pointer
        else:
            code = (hbm if call == FREE else pinned).free(pointers[slot])
        live = sorted((start, taken, asked) for start, (taken, asked) in hbm.blocks.items())
        numbers = [pointer, code, len(live), hbm.used // 64, hbm.peak // 64, *(n for block in live for n in block)]
        seen[row, : len(numbers)] = numbers
    return seen


def card_answers(seen):
    """Return the same columns of what :func:`run` has seen, int64 [..., LENGTH, 5 + 3 * MAX_BLOCKS]."""
    pointers, codes, words, blocks = (np.asarray(each, np.int64) for each in seen)
    counts = words[..., [HeapWord.COUNT, HeapWord.USED, HeapWord.PEAK]]
    asked = blocks[..., HeapEntry.ASKED, :] * 64 + blocks[..., HeapEntry.REST, :] % 64
    facts = [blocks[..., HeapEntry.START, :] * 64, blocks[..., HeapEntry.SIZE, :] * 64, asked]
    live = np.arange(MAX_BLOCKS) < words[..., HeapWord.COUNT, None]
    facts = np.where(live[..., None], np.stack(facts, -1), 0).reshape(*live.shape[:-1], 3 * MAX_BLOCKS)
    return np.concatenate([pointers[..., None], codes[..., None], counts, facts], -1)
