"""Device and pinned memory against the allocator twin: random sequences, eagerly, jitted, in lanes."""

import random

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import HeapEntry, HeapWord
from tests.runtime.pages import HOST_FIRST, Pages

MIB = 1 << 20
HBM_BYTES, PINNED_BYTES, MAX_BLOCKS = 64 * MIB, 1 << 16, 6
SLOTS = 8  # pointers that a program remembers
MALLOC, FREE, MALLOC_HOST, FREE_HOST = range(4)
LENGTH = 40


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def jitted():
    return jax.jit(run)


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
        rows.append((call, rng.randrange(SLOTS), size, policy))
    return np.array(rows, np.int32)


def twin_run(program):
    """The same on the twin, with the checks that any allocator must pass."""
    hbm = Pages(2 * MIB, HBM_BYTES, MAX_BLOCKS, pad=32)
    pinned = Pages(HOST_FIRST, HOST_FIRST + PINNED_BYTES, MAX_BLOCKS, paged=False)
    pointers, seen = [0] * SLOTS, []
    for call, slot, nbytes, policy in program.tolist():
        pointer = 0
        if call in (MALLOC, MALLOC_HOST):
            code, pointer = hbm.malloc(nbytes, policy) if call == MALLOC else pinned.malloc(nbytes)
            pointers[slot] = pointer
        else:
            code = (hbm if call == FREE else pinned).free(pointers[slot])
        seen.append((pointer, code, hbm.used // 64, hbm.peak // 64, sorted(hbm.blocks.items())))
    return seen


@pytest.mark.parametrize("seed", range(40))
def test_random_sequences_equal_the_twin(small_card, jitted, seed):
    program = draw(seed)
    _, (pointers, codes, words, blocks) = jax.device_get(jitted(small_card, program))
    for row, (pointer, code, used, peak, live) in enumerate(twin_run(program)):
        assert (pointers[row], codes[row]) == (pointer, code), (row, program[row])
        assert words[row][[HeapWord.COUNT, HeapWord.USED, HeapWord.PEAK]].tolist() == [len(live), used, peak]
        mine = blocks[row].T[: len(live)]
        taken = mine[:, [HeapEntry.START, HeapEntry.SIZE]] * 64
        asked = mine[:, HeapEntry.ASKED] * 64 + mine[:, HeapEntry.REST]
        assert [(s, (t, a)) for (s, t), a in zip(taken.tolist(), asked.tolist(), strict=True)] == live
        assert (taken[:-1].sum(1) <= taken[1:, 0]).all(), "blocks overlap or are out of order"
        assert taken[:, 1].sum() == used * 64


def test_lanes_equal_a_loop_and_eager_equals_jit(small_card, jitted):
    lanes = np.stack([draw(seed) for seed in range(8)])
    together = jax.jit(jax.vmap(run, in_axes=(None, 0)))(small_card, lanes)
    apart = [jitted(small_card, lane) for lane in lanes]
    chex.assert_trees_all_equal(together, jax.tree.map(lambda *leaves: np.stack(leaves), *apart))
    card, pointers = small_card, [0] * SLOTS
    for call, slot, nbytes, policy in lanes[0].tolist():
        if call == MALLOC:
            card, pointers[slot] = aj.malloc(card, nbytes, policy, site=1)
        elif call == MALLOC_HOST:
            card, pointers[slot] = aj.malloc_host(card, nbytes, site=3)
        else:
            card = (aj.free if call == FREE else aj.free_host)(card, pointers[slot], site=2 if call == FREE else 4)
    chex.assert_trees_all_equal(card, apart[0][0])


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 1, 3)])
def test_when_all_is_freed_one_gap_is_left(small_card, order):
    card, pointers = small_card, []
    for nbytes in (100, 3 * MIB, 5000, 9 * MIB, MIB):
        card, pointer = aj.malloc(card, nbytes)
        pointers.append(pointer)
    peak = aj.hbm_peak_bytes(card)
    for index in order:
        card = aj.free(card, pointers[index])
    free, total = aj.mem_get_info(card)
    assert (free, total) == (HBM_BYTES - 2 * MIB, HBM_BYTES)
    card, everything = aj.malloc(card, free - 32)
    aj.raise_if_error(card)
    assert int(everything) * 64 == 2 * MIB and aj.mem_get_info(card)[0] == 0
    assert aj.hbm_peak_bytes(card) == free > peak
    assert aj.status(aj.malloc(card, 1)[0]).code == aj.Code.MEMORY_ALLOCATION


def test_documented_sizes():
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, host_backing_bytes=PINNED_BYTES, max_streams=1,
                   max_events=1, max_commands=2, max_blocks=MAX_BLOCKS)  # fmt: skip
    total = aj.mem_get_info(card)[0]

    def taken(nbytes, policy=aj.MallocPolicy.HUGE_FIRST):
        return total - aj.mem_get_info(aj.malloc(card, nbytes, policy)[0])[0]

    policy = aj.MallocPolicy
    assert taken(1) == 4096 and taken(4064) == 4096 and taken(4065) == 8192
    assert taken(MIB) == MIB + 4096 and taken(MIB + 1) == 2 * MIB and taken(8 * MIB) == 10 * MIB
    assert taken(1, policy.HUGE_ONLY) == 2 * MIB and taken(5 * MIB, policy.NORMAL_ONLY) == 5 * MIB + 4096
    assert taken(1 << 30, policy.HUGE1G_ONLY) == 1 << 30 and taken(1, policy.HUGE1G_ONLY_P2P) == 1 << 30
    assert taken(40 << 30) == (40 << 30) + 2 * MIB
    assert int(aj.malloc(card, 1, policy.HUGE1G_ONLY)[1]) * 64 == 1 << 30


def test_huge_first_falls_back_to_small_pages(small_card):
    card, _ = aj.malloc(small_card, 61 * MIB, aj.MallocPolicy.NORMAL_ONLY)  # leaves less than one huge page
    card, pointer = aj.malloc(card, MIB - 8192 + 1 - MIB % 4096)
    aj.raise_if_error(card)
    card = aj.free(card, pointer)
    refused, _ = aj.malloc(card, 100, aj.MallocPolicy.HUGE_ONLY)
    assert aj.status(refused).code == aj.Code.MEMORY_ALLOCATION


@pytest.mark.parametrize("nbytes", [2**31, 2**37, 2**40, 2**63, 2**100])
def test_sizes_beyond_int32_are_refused_or_served_but_never_wrapped(small_card, nbytes):
    card, pointer = aj.malloc(small_card, nbytes)
    assert aj.status(card).code == aj.Code.MEMORY_ALLOCATION and int(pointer) == 0
    card, pointer = aj.malloc_host(small_card, nbytes)
    assert aj.status(card).code == aj.Code.MEMORY_ALLOCATION and int(pointer) == 0


@pytest.mark.parametrize("nbytes", [1.0, 4096.5, True, np.float64(8)])
def test_a_size_is_a_whole_number(small_card, nbytes):
    with pytest.raises(TypeError, match="nbytes"):
        aj.malloc(small_card, nbytes)


def test_equal_calls_share_one_trace(small_card):
    @chex.assert_max_traces(n=1)
    def traced(card, nbytes, policy, pointer):
        card, new = aj.malloc(card, nbytes, policy, site=1)
        return aj.free(card, pointer, site=1), new

    traced = jax.jit(traced)
    for nbytes, policy, pointer in [(5, 0, 3), (5000, 2, 32768), (-1, 99, 0)]:
        traced(small_card, jnp.int32(nbytes), jnp.int32(policy), jnp.int32(pointer))
