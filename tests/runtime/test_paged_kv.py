"""Pages of a key-value cache against a plain list of free pages."""

import dataclasses
import random

import chex
import jax
import numpy as np
import pytest

import ascend_jax as aj

PAGES, SIZE, SEQUENCES, WIDTH = 12, 128, 4, 6


class Pages:
    """The lowest free page first; one list of pages per sequence."""

    def __init__(self):
        self.free, self.tables, self.lengths = list(range(PAGES)), [[] for _ in range(SEQUENCES)], [0] * SEQUENCES

    def extend(self, sequence, positions):
        if not 0 <= sequence < SEQUENCES:
            return 107000
        if positions < 0:
            return 100000
        need = -(-(self.lengths[sequence] + positions) // SIZE) - len(self.tables[sequence])
        if need > len(self.free) or len(self.tables[sequence]) + need > WIDTH:
            return 207001
        self.tables[sequence] += [self.free.pop(0) for _ in range(need)]
        self.lengths[sequence] += positions
        return 0

    def end(self, sequence):
        if not 0 <= sequence < SEQUENCES:
            return 107000
        self.free = sorted(self.free + self.tables[sequence])
        self.tables[sequence], self.lengths[sequence] = [], 0
        return 0


def fresh():
    return aj.paged_cache(PAGES, SIZE, SEQUENCES, pages_per_sequence=WIDTH)


def run(cache, program):
    def step(cache, row):
        sequence, positions = row
        calls = [lambda cache: aj.kv_extend(cache, sequence, positions), lambda cache: aj.kv_free(cache, sequence)]
        cache, code = jax.lax.cond(positions == -99, calls[1], calls[0], cache)
        return cache, (cache, code, aj.kv_is_consistent(cache))

    return jax.lax.scan(step, cache, program)


def draw(seed, length=1000):
    rng = random.Random(seed)
    rows = []
    for _ in range(length):
        positions = rng.choice([1, 1, 5, 127, 128, 129, 300, 0, -1, -99, -99])
        rows.append((rng.choice([*range(SEQUENCES), rng.choice([-1, 4, 0])]), positions))
    return np.array(rows, np.int32)


@pytest.fixture(scope="module")
def jitted():
    return jax.jit(run)


@pytest.mark.parametrize("seed", range(4))
def test_random_sequences_equal_the_twin(jitted, seed):
    program = draw(seed)
    _, (caches, codes, consistent) = jax.device_get(jitted(fresh(), program))
    twin = Pages()
    assert consistent.all()
    for row, (sequence, positions) in enumerate(program.tolist()):
        code = twin.end(sequence) if positions == -99 else twin.extend(sequence, positions)
        assert codes[row] == code
        assert caches.lengths[row].tolist() == twin.lengths
        assert [[p for p in table if p >= 0] for table in caches.tables[row].tolist()] == twin.tables
        used = set(np.flatnonzero(caches.owners[row] >= 0))
        assert used | set(twin.free) == set(range(PAGES)) and not used & set(twin.free)


def test_lanes_equal_a_loop(jitted):
    programs = np.stack([draw(seed, 1000) for seed in range(3)])
    together = jax.jit(jax.vmap(run, in_axes=(None, 0)))(fresh(), programs)
    apart = [jitted(fresh(), program) for program in programs]
    chex.assert_trees_all_equal(together, jax.tree.map(lambda *leaves: np.stack(leaves), *apart))


def changed(cache, page, *place):
    tables = np.array(cache.tables)
    tables[place] = page
    return tables


@pytest.fixture(scope="module")
def verbs():
    return tuple(jax.jit(call) for call in (aj.kv_extend, aj.kv_slots, aj.kv_is_consistent))


def test_slots_follow_the_table_and_ignore_its_tail(verbs):
    extend, slots_of, consistent = verbs
    cache, _ = extend(fresh(), 1, 130)
    cache, _ = extend(cache, 0, 128)
    cache, _ = extend(cache, 1, 200)  # its pages are 0, 1, 3
    slots, code = slots_of(cache, 1, np.array([0, 127, 128, 255, 256, 329]))
    assert slots.tolist() == [0, 127, 128, 255, 384, 457] and int(code) == 0
    stale = dataclasses.replace(cache, tables=changed(cache, 999, 1, slice(3, None)))
    np.testing.assert_array_equal(slots_of(stale, 1, np.arange(330))[0], slots_of(cache, 1, np.arange(330))[0])
    for wrong in (-1, PAGES):
        needed = dataclasses.replace(cache, tables=changed(cache, wrong, 1, 1))
        slots, code = slots_of(needed, 1, np.array([0, 128]))
        assert int(code) == aj.Code.RT_PARAM_INVALID and slots.tolist() == [0, -1]
        assert not consistent(needed)
    slots, code = slots_of(cache, 1, np.array([330, -1]))
    assert int(code) == aj.Code.RT_PARAM_INVALID and slots.tolist() == [-1, -1]


def test_an_inconsistent_cache_is_noticed(verbs):
    extend, _, consistent = verbs
    cache, _ = extend(fresh(), 0, 300)
    assert consistent(cache)
    for page, owner in ((1, -1), (5, 2)):
        owners = np.array(cache.owners)
        owners[page] = owner
        assert not consistent(dataclasses.replace(cache, owners=owners))
    assert not consistent(dataclasses.replace(cache, tables=changed(cache, 0, 0, 1)))


@pytest.mark.parametrize("counts", [(0, 128, 1), (4, 0, 1), (4, 128, 0), (4, 100, 1)])
def test_refused_shapes(counts):
    with pytest.raises(ValueError, match="= "):
        aj.paged_cache(*counts)


@pytest.mark.parametrize("count", [1.5, True, np.float32(2), "3"])
def test_counts_are_whole_numbers(count):
    cache = aj.paged_cache(pages=4, page_size=16, sequences=2)
    for call in (lambda: aj.kv_extend(cache, 0, count), lambda: aj.kv_free(cache, count),
                 lambda: aj.kv_slots(cache, 0, count), lambda: aj.paged_cache(4, 16, count)):  # fmt: skip
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("count", [2**31, 2**40])
def test_counts_beyond_int32_are_refused(count):
    cache = aj.paged_cache(pages=4, page_size=16, sequences=2)
    assert int(aj.kv_extend(cache, 0, count)[1]) == aj.Code.MEMORY_ALLOCATION
    assert int(aj.kv_extend(cache, count, 1)[1]) == int(aj.kv_free(cache, count)[1]) == aj.Code.RT_PARAM_INVALID
    assert int(aj.kv_extend(cache, 0, -count)[1]) == aj.Code.INVALID_PARAM
