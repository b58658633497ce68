"""Reported cases of device memory: what the runtime keeps, reads before a copy has ended, frees that are mistakes."""

import jax
import numpy as np
import pytest

import ascend_jax as aj
from tests.runtime.test_caching_allocator import MIB, Session


@pytest.fixture(scope="module")
def card():
    chip = aj.chip("Ascend910B2").replace(d2h_bytes_per_s=1000.0, h2d_bytes_per_s=1000.0)  # a copy takes seconds
    return aj.init(chip, hbm_backing_bytes=1 << 16, host_backing_bytes=1 << 12, max_commands=16, max_streams=3,
                   max_events=2, max_blocks=16, max_freed=3)  # fmt: skip


def test_what_the_runtime_keeps_is_itemised_and_goes_with_empty_cache(card):
    now, side = aj.create_stream(card)
    s = Session(now, pad_bytes=0)
    idle = aj.mem_get_info(s.card)[0]
    s.free(s.alloc(20 * MIB))
    s.cache, s.card, one = aj.cache_workspace(s.cache, s.card, 64 * MIB)
    s.cache, s.card, again = aj.cache_workspace(s.cache, s.card, 10 * MIB)
    s.cache, s.card, other = aj.cache_workspace(s.cache, s.card, MIB, side)
    assert one == again != other and s.cache.workspace_bytes == (66 + 2) * MIB
    report, stats = aj.memory_report(s.card), aj.memory_stats(s.cache)
    assert (report.runtime_bytes, report.used_bytes) == (
        68 * MIB,
        88 * MIB,
    ) and '"runtime_bytes": 71303168' in report.to_json()
    assert stats["reserved_bytes.all.current"] == 20 * MIB
    assert sorted(one.nbytes // MIB for one in report.owners) == [2, 20, 66]
    assert int(aj.last_code(aj.free(s.card, one))) == int(aj.last_code(aj.mem_pool_free(s.card, one, 0))) == 107000
    s.empty()
    report = aj.memory_report(s.card)
    assert (report.runtime_bytes, s.mib("reserved_bytes"), s.cache.workspace_bytes) == (0, 0, 0)
    assert aj.mem_get_info(s.card)[0] == idle
    aj.raise_if_error(s.card)


def test_a_larger_workspace_takes_the_place_of_a_smaller_one_after_its_work(card):
    s = Session(card, pad_bytes=0)
    s.cache, s.card, small = aj.cache_workspace(s.cache, s.card, 1000)
    s.card = aj.memset_async(s.card, small, 1, 1000, 0)
    s.cache, s.card, large = aj.cache_workspace(s.cache, s.card, 2 * MIB - 31)
    assert large == small and aj.memory_report(s.card).runtime_bytes == 4 * MIB
    assert aj.freed_in_use(aj.synchronize_device(s.card)) == []
    with pytest.raises(aj.CacheOutOfMemory) as caught:
        aj.cache_workspace(s.cache, s.card, 70 << 30)
    s.cache, s.card = caught.value.cache, caught.value.card
    assert s.cache.workspaces == {} and aj.memory_stats(s.cache)["num_ooms"] == 1
    aj.raise_if_error(s.card)
    for wrong in (-1, 0):
        if wrong == 0:
            assert aj.cache_workspace(s.cache, s.card, wrong)[2] == 0
        else:
            with pytest.raises(ValueError, match="-1"):
                aj.cache_workspace(s.cache, s.card, wrong)
    with pytest.raises(aj.AscendError, match="107003"):
        aj.cache_workspace(s.cache, s.card, 1, 99)


def test_pools_are_itemised(card):
    now, pool = aj.mem_pool_create(card, 6 * MIB)
    now, _ = aj.mem_pool_alloc(now, pool, MIB, 0)
    report = aj.memory_report(now)
    assert (report.pool_bytes, report.idle_bytes, report.runtime_bytes) == (6 * MIB, 4 * MIB, 0)


def copying(card):
    """Return a card with a copy of sevens to pinned memory under way, and both pointers."""
    card, device = aj.malloc(card, 1000)
    card, pinned = aj.malloc_host(card, 1000)
    card = aj.synchronize_device(aj.memset_async(card, device, 7, 1000, 0))
    return aj.memcpy_async(card, pinned, device, 500, 0), device, pinned


def test_a_read_before_the_copy_has_ended_sees_old_bytes_and_is_recorded(card):
    now, _, pinned = copying(card)
    now, old = aj.host_read(now, pinned, (4,), np.uint8, offset=496)
    now, _ = aj.host_read(now, pinned, (4,), np.uint8, offset=500)  # beside what the copy writes
    (found,) = aj.early_accesses(now)
    assert old.tolist() == [0, 0, 0, 0]
    assert (found.command, found.pointer, found.is_write) == (1, int(pinned) + 496 // 64, False)
    assert found.site != found.command_site and all("cases.py" in one for one in (found.site, found.command_site))
    done = aj.synchronize_device(now)
    assert 0 < found.at_ns < aj.host_time_ns(done)
    done, new = aj.host_read(done, pinned, (4,), np.uint8, offset=496)
    assert new.tolist() == [7, 7, 7, 7] and aj.early_accesses(done) == [found]
    aj.raise_if_error(done)


def test_a_write_into_the_source_of_a_copy_is_recorded(card):
    now, device = aj.malloc(card, 500)
    now, pinned = aj.malloc_host(now, 500)
    now = aj.memcpy_async(now, device, pinned, 500, 0)
    read, _ = aj.host_read(now, pinned, (500,), np.uint8)
    assert aj.early_accesses(read) == []
    for _ in range(4):
        now = aj.host_write(now, pinned, np.ones(1, np.uint8), offset=3)
    assert [(one.command, one.is_write) for one in aj.early_accesses(now)] == [(0, True)] * 3, "max_freed = 3"
    assert aj.early_accesses(aj.host_write(aj.synchronize_device(read), pinned, np.ones(1, np.uint8))) == []


def test_early_reads_are_recorded_under_jit_and_vmap(card):
    now, _, pinned = copying(card)
    both = jax.tree.map(lambda one, two: np.stack([one, two]), now, aj.synchronize_device(now))
    batched = jax.vmap(lambda each: aj.host_read(each, pinned, (4,), np.uint8))
    read = jax.jit(batched, compiler_options=aj.QUICK_TO_COMPILE)
    after, values = read(both)
    assert values.tolist() == [[0] * 4, [7] * 4]
    found = [aj.early_accesses(jax.tree.map(lambda leaf, lane=lane: leaf[lane], after)) for lane in (0, 1)]
    assert [len(each) for each in found] == [1, 0] and "test_memory_cases.py" in found[0][0].site


@pytest.mark.parametrize("reset", [aj.reset_device, aj.reset_device_force])
def test_a_copy_into_freed_host_memory_is_reported_after_a_reset_too(card, reset):
    now, _, pinned = copying(card)
    now = reset(aj.free_host(now, pinned))
    (found,) = aj.freed_in_use(now)
    assert (found.command, found.pointer) == (1, int(pinned))
    aj.raise_if_error(now)


def test_frees(card):
    """Null is 100000; twice is never 0; no context is needed; a free under work is allowed and reported."""
    now, a = aj.malloc(card, 1000)
    assert int(aj.last_code(aj.free(now, 0))) == int(aj.last_code(aj.free_host(now, 0))) == 100000
    assert int(aj.last_code(aj.free(aj.free(now, a), a))) == 107000
    there = aj.use_thread(*aj.create_thread(now))
    assert int(aj.last_code(aj.malloc(there, 1)[0])) == 107002
    assert int(aj.last_code(aj.free(there, a))) == 0
    busy = aj.memset_async(now, a, 1, 1000, 0)
    early, late = aj.free(busy, a), aj.free_with_dev_sync(busy, a)
    for done, count in ((aj.synchronize_device(early), 1), (late, 0)):
        aj.raise_if_error(done)
        assert len(aj.freed_in_use(done)) == count and aj.mem_get_info(done) == aj.mem_get_info(card)
    assert aj.host_time_ns(late) > aj.host_time_ns(early)
