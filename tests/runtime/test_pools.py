"""Memory pools against their twin: best fit, stream order, events, trimming, and what is refused."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Clock, HeapEntry, HeapFlag, HeapWord
from tests.runtime.pool_twin import NOBODY, PoolTwin

MIB = 1 << 20
HBM_BYTES = 66 * MIB
STREAMS = 3
REUSE = [aj.PoolReuse(bits) for bits in range(8)]


@pytest.fixture(scope="module")
def small_card():
    chip = aj.chip("Ascend910B2").replace(hbm_bytes=HBM_BYTES)
    card = aj.init(chip, hbm_backing_bytes=0, host_backing_bytes=0, max_streams=STREAMS + 1, max_events=2,
                   max_commands=64, max_blocks=32, max_pools=2)  # fmt: skip
    streams = []
    for _ in range(STREAMS - 1):
        card, stream = aj.create_stream(card)
        streams.append(int(stream))
    card, event = aj.create_event(card)
    return card, [0, *streams], event


def pieces_of(card):
    """Return (start, size, asked, stream; -1 = nobody's) of every block, in bytes."""
    blocks = np.asarray(card.hbm.blocks, np.int64).T[: int(card.hbm.words[HeapWord.COUNT])]
    host = card.streams.shape[0] - 1
    rows = []
    for block in blocks:
        stream = int(block[HeapEntry.FLAGS]) >> 16
        idle = bool(block[HeapEntry.FLAGS] & HeapFlag.IDLE)
        asked = int(block[HeapEntry.ASKED] * 64 + block[HeapEntry.REST] % 64)
        sizes = int(block[HeapEntry.START]) * 64, int(block[HeapEntry.SIZE]) * 64
        rows.append((*sizes, asked, (NOBODY if stream == host else stream) if idle else None))
    return rows


def pieces_of_twin(twin):
    pieces = sorted(twin.pieces, key=lambda piece: piece.start)
    return [(p.start, p.size, p.asked, None if p.asked else p.stream) for p in pieces]


def random_program(card, streams, event, seed, calls=40):
    rng = random.Random(seed)
    reuse, threshold = rng.choice(REUSE), rng.choice([0, 0, 6 * MIB])
    reserved, most = rng.choice([0, 0, 8 * MIB, 3 * MIB]), rng.choice([24 * MIB, HBM_BYTES])
    card, pool = aj.mem_pool_create(card, reserved, max_bytes=most, release_threshold_bytes=threshold, reuse=reuse)
    twin = PoolTwin(2 * MIB, HBM_BYTES, reserved, most, threshold, int(reuse))
    live, waited = [], []
    for _ in range(calls):
        call = rng.choices(["alloc", "free", "work", "wait", "sync", "trim"], [10, 8, 4, 4, 1, 1])[0]
        stream = rng.choice(streams)
        code = 0
        if call == "alloc":
            nbytes = rng.choice([1, 2 * MIB, 3 * MIB, 5 * MIB, 9 * MIB, 40 * MIB, 0, -4])
            card, pointer = aj.mem_pool_alloc(card, pool, nbytes, stream)
            code, expected = twin.alloc(nbytes, stream, waited)
            assert int(pointer) == expected
            live += [expected] if expected else []
        elif call == "free":
            pointer = rng.choice(live) if live and rng.random() < 0.9 else rng.choice([0, 5, 32768])
            card = aj.mem_pool_free(card, pointer, stream)
            code = twin.free(pointer, stream)
            live = [one for one in live if one != pointer]
        elif call == "work":
            card = aj.record_event(card, event, stream)
            twin.enqueue(stream)
        elif call == "wait":
            other = rng.choice([one for one in streams if one != stream])
            card = aj.stream_wait_event(aj.record_event(card, event, other), stream, event)
            record = twin.enqueue(other)
            twin.enqueue(stream, record)
            waited.append((stream, record))
        elif call == "sync":
            card = aj.synchronize_device(card)
            twin.synchronize()
        else:
            keep = rng.choice([0, 4 * MIB])
            card = aj.mem_pool_trim(card, pool, keep)
            twin.trim(keep)
        assert int(aj.last_code(card)) == code, call
        assert pieces_of(card) == pieces_of_twin(twin), call
        stats = aj.mem_pool_stats(card, pool)
        assert (stats.reserved_bytes, stats.used_bytes) == (twin.reserved, twin.used)
        assert (stats.reserved_high_bytes, stats.used_high_bytes) == (twin.reserved_high, twin.used_high)
        assert HBM_BYTES - 2 * MIB - aj.mem_get_info(card)[0] == twin.reserved
        assert int(card.hbm.words[HeapWord.IDLE]) * 64 == twin.reserved - twin.used

    for pointer in live:
        card = aj.mem_pool_free(card, pointer, streams[0])
        twin.free(pointer, streams[0])
    card = aj.mem_pool_destroy(card, pool)
    assert int(aj.last_code(card)) == 0
    twin.destroy()
    assert HBM_BYTES - 2 * MIB - aj.mem_get_info(card)[0] == twin.reserved
    assert aj.mem_get_info(aj.synchronize_device(card))[0] == HBM_BYTES - 2 * MIB


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_equal_the_twin(small_card, seed):
    random_program(*small_card, seed)


def test_a_block_waits_for_the_stream_it_was_given_back_in(small_card):
    card, (_, s, t), event = small_card
    card, pool = aj.mem_pool_create(card, 2 * MIB, reuse=aj.PoolReuse.FOLLOW_EVENTS)
    card, a = aj.mem_pool_alloc(card, pool, 2 * MIB, s)
    card = aj.mem_pool_free(aj.value_write(card, a, 1, s), a, s)
    same, again = aj.mem_pool_alloc(card, pool, 2 * MIB, s)
    other, elsewhere = aj.mem_pool_alloc(card, pool, 2 * MIB, t)
    card = aj.stream_wait_event(aj.record_event(card, event, s), t, event)
    linked, after = aj.mem_pool_alloc(card, pool, 2 * MIB, t)
    assert int(again) == int(a) == int(after) != int(elsewhere)
    for each in (same, other, linked):
        aj.raise_if_error(each)


@pytest.mark.parametrize("is_traced", [False, True])
def test_an_internal_dependency_makes_the_stream_wait(small_card, is_traced):
    card, (_, s, t), event = small_card
    card, pool = aj.mem_pool_create(card, 2 * MIB, reuse=aj.PoolReuse.INTERNAL)
    card, a = aj.mem_pool_alloc(card, pool, 2 * MIB, s)
    for _ in range(3):
        card = aj.memset_async(card, a, 1, 2 * MIB - 64, s)
    card = aj.record_event(aj.mem_pool_free(card, a, s), event, s)
    alloc = jax.jit(aj.mem_pool_alloc, compiler_options=aj.QUICK_TO_COMPILE) if is_traced else aj.mem_pool_alloc
    card, b = alloc(card, pool, MIB, t)
    card = aj.synchronize_device(aj.memset_async(card, b, 2, MIB, t))
    assert int(a) == int(b) and aj.freed_in_use(card) == []
    log = aj.insight.timeline(card)
    tasks = log.of_kind("memset")
    assert tasks.start_ns[3] >= tasks.end_ns[2]
    aj.raise_if_error(card)
    taken, c = aj.mem_pool_alloc(
        aj.mem_pool_free(card, b, t), pool, MIB, s
    )  # nothing is under way: nothing to wait for
    assert int(c) == int(b) and int(taken.clock[Clock.ENQUEUED]) == int(card.clock[Clock.ENQUEUED])


def test_destroying_a_pool_keeps_what_running_work_uses(small_card):
    card, (_, s, _), _ = small_card
    card, pool = aj.mem_pool_create(card)
    card, a = aj.mem_pool_alloc(card, pool, 32 * MIB, s)
    card = aj.mem_pool_free(aj.memset_async(card, a, 1, 32 * MIB, s), a, s)
    card = aj.mem_pool_destroy(card, pool)
    aj.raise_if_error(card)
    assert int(aj.malloc(card, 33 * MIB)[1]) == 0, "the memset still writes there"
    card, other = aj.malloc(card, 16 * MIB)
    assert int(other) >= int(a) + 32 * MIB // 64
    card, new = aj.mem_pool_create(card, 0)  # takes the slot of the destroyed one
    assert aj.mem_pool_stats(card, new).reserved_bytes == 0
    card = aj.synchronize_stream(card, s)
    assert HBM_BYTES - 2 * MIB - aj.mem_get_info(card)[0] == 18 * MIB
    assert int(aj.malloc(card, 31 * MIB)[1]) == int(a) and aj.freed_in_use(card) == []
    aj.raise_if_error(card)


def test_a_block_that_another_stream_still_uses_is_reported(small_card):
    card, (_, s, t), event = small_card
    card, pool = aj.mem_pool_create(card)
    card, a = aj.mem_pool_alloc(card, pool, 32 * MIB, s)
    own = aj.synchronize_device(aj.mem_pool_free(aj.memset_async(card, a, 1, 32 * MIB, s), a, s))
    assert aj.freed_in_use(own) == []
    card = aj.memset_async(card, a, 1, 32 * MIB, t)
    foreign = aj.synchronize_device(aj.mem_pool_free(card, a, s))
    (found,) = aj.freed_in_use(foreign)
    assert found.pointer == int(a) and "test_pools.py" in found.site and found.end_ns > found.freed_ns
    card = aj.stream_wait_event(aj.record_event(card, event, t), s, event)
    assert aj.freed_in_use(aj.synchronize_device(aj.mem_pool_free(card, a, s))) == []


def test_memory_that_is_of_no_pool_is_freed_in_the_order_of_the_stream(small_card):
    card, (_, s, _), _ = small_card
    card, a = aj.malloc(card, 31 * MIB)
    card = aj.mem_pool_free(aj.memset_async(card, a, 1, 31 * MIB, s), a, s)
    aj.raise_if_error(card)
    assert int(aj.last_code(aj.memset(card, a, 1, 64))) == aj.Code.RT_PARAM_INVALID
    assert int(aj.last_code(aj.free(card, a))) == aj.Code.RT_PARAM_INVALID
    assert int(aj.malloc(card, 33 * MIB)[1]) == 0
    card = aj.synchronize_stream(card, s)
    assert aj.mem_get_info(card)[0] == HBM_BYTES - 2 * MIB and aj.freed_in_use(card) == []


def test_idle_memory_above_the_threshold_goes_even_from_a_joined_block(small_card):
    card, (_, s, _), _ = small_card
    card, pool = aj.mem_pool_create(card, release_threshold_bytes=2 * MIB)
    pointers = []
    for _ in range(4):
        card, pointer = aj.mem_pool_alloc(card, pool, 2 * MIB, s)
        pointers.append(pointer)
    for pointer in pointers:
        card = aj.mem_pool_free(card, pointer, s)
    card = aj.synchronize_stream(card, s)
    assert aj.mem_pool_stats(card, pool).reserved_bytes == 2 * MIB
    card, large = aj.mem_pool_create(card, 32 * MIB)
    card = aj.mem_pool_trim(card, large, 2 * MIB)
    assert aj.mem_pool_stats(card, large).reserved_bytes == 2 * MIB
    assert HBM_BYTES - 2 * MIB - aj.mem_get_info(card)[0] == 4 * MIB


def test_a_pool_that_is_full_says_so(small_card):
    card, (_, s, _), _ = small_card
    card, pool = aj.mem_pool_create(card, 8 * MIB, max_bytes=16 * MIB)
    card, _ = aj.mem_pool_alloc(card, pool, 8 * MIB, s)
    card, none = aj.mem_pool_alloc(card, pool, 12 * MIB, s)
    report = aj.out_of_memory(card)
    assert int(none) == 0 and (report.limit_bytes, report.held_bytes) == (16 * MIB, 8 * MIB)
    with pytest.raises(aj.AscendError, match=f"limit {16 * MIB}, {8 * MIB} of it reserved"):
        aj.raise_if_error(card)


def test_refusals_and_their_codes(small_card):
    card, (_, s, _), _ = small_card
    code = aj.Code
    card, pool = aj.mem_pool_create(card, 0, max_bytes=4 * MIB)
    card, a = aj.mem_pool_alloc(card, pool, 4 * MIB, s)
    before = pieces_of(card)
    refused = {
        "unknown pool": (aj.mem_pool_alloc(card, 77, 64, s)[0], code.RT_PARAM_INVALID),
        "unknown stream": (aj.mem_pool_alloc(card, pool, 64, 999)[0], code.RT_STREAM_CONTEXT),
        "zero": (aj.mem_pool_alloc(card, pool, 0, s)[0], code.INVALID_PARAM),
        "beyond the limit": (aj.mem_pool_alloc(card, pool, 64, s)[0], code.MEMORY_ALLOCATION),
        "null": (aj.mem_pool_free(card, 0, s), code.INVALID_PARAM),
        "inside a block": (aj.mem_pool_free(card, a + 1, s), code.RT_PARAM_INVALID),
        "plain free of a pool's block": (aj.free(card, a), code.RT_PARAM_INVALID),
        "destroy in use": (aj.mem_pool_destroy(card, pool), code.RT_PARAM_INVALID),
        "negative trim": (aj.mem_pool_trim(card, pool, -1), code.INVALID_PARAM),
        "reserve too much": (aj.mem_pool_create(card, 100 * MIB)[0], code.MEMORY_ALLOCATION),
        "more than allowed": (aj.mem_pool_create(card, 8 * MIB, max_bytes=4 * MIB)[0], code.INVALID_PARAM),
        "unknown reuse": (aj.mem_pool_create(card, 0, reuse=8)[0], code.INVALID_PARAM),
    }
    for name, (after, expected) in refused.items():
        assert (name, int(aj.last_code(after))) == (name, expected)
        assert pieces_of(after) == before, name
    report = aj.out_of_memory(refused["beyond the limit"][0])
    assert (report.requested_bytes, report.memory) == (64, "device") and "test_pools.py" in report.site
    done = aj.mem_pool_destroy(aj.mem_pool_free(card, a, s), pool)
    aj.raise_if_error(done)
    assert pieces_of(done) == []
    assert int(aj.last_code(aj.mem_pool_destroy(done, pool))) == code.RT_PARAM_INVALID
    assert int(aj.last_code(aj.mem_pool_free(aj.mem_pool_free(card, a, s), a, s))) == code.RT_PARAM_INVALID
    with pytest.raises(ValueError, match="no such pool"):
        aj.mem_pool_stats(done, pool)


def test_lanes_equal_a_loop(small_card):
    card, (_, s, _), _ = small_card

    def run(nbytes):
        now, pool = aj.mem_pool_create(card, 4 * MIB, site=1)
        now, a = aj.mem_pool_alloc(now, pool, nbytes, s, site=1)
        now = aj.mem_pool_free(now, a, s, site=1)
        now, b = aj.mem_pool_alloc(now, pool, 2 * nbytes, s, site=1)
        return now.hbm.blocks, now.hbm.words, now.pools, now.status, b

    sizes = jnp.array([1, 2 * MIB, 5 * MIB, 0, 9 * MIB], jnp.int32)
    together = jax.jit(jax.vmap(run), compiler_options=aj.QUICK_TO_COMPILE)(sizes)
    for lane, size in enumerate(sizes):
        for batched, alone in zip(together, run(size), strict=True):
            np.testing.assert_array_equal(batched[lane], alone)


def test_a_device_reset_takes_the_pools_with_it(small_card):
    card, pool = aj.mem_pool_create(small_card[0], 4 * MIB)
    card = aj.set_device(aj.reset_device(card))
    assert aj.mem_get_info(card) == (HBM_BYTES - 2 * MIB, HBM_BYTES)
    assert int(aj.last_code(aj.mem_pool_alloc(card, pool, 64, 0)[0])) == aj.Code.RT_PARAM_INVALID
