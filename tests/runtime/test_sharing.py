"""Memory that more than one party uses: peers, processes, and work that outlives a free."""

import jax
import numpy as np
import pytest

import ascend_jax as aj

SIZE = 1 << 16


@pytest.fixture(scope="module")
def fresh():
    sheet = {
        "fabric_link_bytes_per_s": 2e9, "fabric_copy_efficiency": 1, "fabric_latency_ns": 100,
        "d2h_bytes_per_s": 5e8, "h2d_bytes_per_s": 1e9, "copy_latency_ns": 100,
    }  # fmt: skip
    chip = aj.chip("Ascend910B2").replace(**sheet)
    return aj.init(chip, hbm_backing_bytes=1 << 18, host_backing_bytes=1 << 12, max_commands=16, max_streams=2,
                   max_events=1, max_blocks=4, max_freed=2)  # fmt: skip


@pytest.fixture(scope="module")
def pair(fresh):
    one, a = aj.malloc(fresh, SIZE)
    other, _ = aj.malloc(fresh, 5000)
    other, b = aj.malloc(other, SIZE)
    data = np.random.default_rng(0).integers(0, 255, SIZE).astype(np.uint8)
    return one, a, aj.host_work(aj.upload(other, b, data), 5_000), b, data


@pytest.mark.parametrize("is_enabled", [False, True])
def test_copy_between_cards(pair, is_enabled):
    one, a, other, b, data = pair
    one = aj.enable_peer_access(one, 3) if is_enabled else one
    began = max(aj.host_time_ns(one), aj.host_time_ns(other))
    one, other = aj.memcpy_peer(one, a, other, b, SIZE, src_device=3)
    aj.raise_if_error(one), aj.raise_if_error(other)
    taken = aj.host_time_ns(one) - began
    sync_ns = int(one.chip["host_copy_sync_ns"])
    link = SIZE // 2 + 100 + sync_ns
    through_host = 2 * SIZE + 100 + SIZE + 100 + 2 * sync_ns
    assert taken == (link if is_enabled else through_host)
    assert aj.host_time_ns(one) == aj.host_time_ns(other)
    np.testing.assert_array_equal(aj.download(one, a, (SIZE,), np.uint8)[1], data)


@pytest.mark.parametrize("is_enabled", [False, True])
def test_refused_copies_between_cards_move_nothing(pair, is_enabled):
    one, a, other, b, _ = pair
    one = aj.enable_peer_access(one, 3) if is_enabled else one
    for dst, src, codes in [(a, b + 1, (0, 107000)), (a + 1, b, (107000, 0)), (a, 0, (0, 100000)), (0, b, (100000, 0))]:
        after, source = aj.memcpy_peer(one, dst, other, src, SIZE, src_device=3)
        assert (int(aj.first_failure(after)), int(aj.first_failure(source))) == codes
        np.testing.assert_array_equal(after.memory, one.memory)


@pytest.mark.parametrize("is_enabled", [False, True])
def test_lengths_and_numbers_that_no_card_has_are_refused(pair, is_enabled):
    one, a, other, b, _ = pair
    one = aj.enable_peer_access(one, 3) if is_enabled else one
    for nbytes, source, code in [(-1, 3, 107000), (2**45, 3, 107000), (64, -1, 107001), (64, 40, 107001)]:
        after, left = aj.memcpy_peer(one, a, other, b, nbytes, src_device=source)
        assert (int(aj.last_code(after)), int(aj.last_code(left))) == (code, code)
        np.testing.assert_array_equal(after.memory, one.memory)
        assert int(left.clock[4]) == int(other.clock[4]), "a command was queued"
    with pytest.raises(ValueError, match="two cards"):
        aj.memcpy_peer(one, a, other, b, 64, src_device=2, dst_device=2)
    bad, left = aj.memcpy_peer(one, 0, other, b, SIZE, src_device=3)
    assert int(aj.last_code(bad)) == 100000 and int(left.clock[4]) == int(other.clock[4])


def test_cards_of_times_only_move_no_bytes():
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, host_backing_bytes=0, max_commands=16)
    card, a = aj.malloc(card, 20 << 30)
    one, _ = aj.memcpy_peer(card, a, card, a, 20 << 30, src_device=3)  # 20 GiB of zeros would not come back in time
    aj.raise_if_error(one)
    assert aj.host_time_ns(one) > 10**9
    with pytest.raises(ValueError, match="the card has"):
        aj.download(card, a, (2**45,), np.uint8)


def test_access_is_enabled_once_and_between_relatives(pair):
    one, _, other, *_ = pair
    assert int(aj.peer_access_status(one, 3)) == 0
    on = aj.enable_peer_access(one, 3)
    assert int(aj.peer_access_status(on, 3)) == 1 and int(aj.peer_access_status(on, 4)) == 0
    codes = [aj.enable_peer_access(on, 3), aj.disable_peer_access(one, 3), aj.enable_peer_access(one, 31)]
    assert [int(aj.last_code(card)) for card in codes] == [107000, 107000, 107001]
    assert int(aj.peer_access_status(aj.disable_peer_access(on, 3), 3)) == 0
    assert int(aj.peer_access_status(aj.reset_device(on), 3)) == 0
    stranger = aj.init(aj.chip("Ascend910A"), hbm_backing_bytes=0)
    assert not aj.can_access_peer(one, stranger) and aj.can_access_peer(one, other)


def test_memory_shared_between_processes(pair):
    one, a, *_ = pair
    shared, key = aj.ipc_export(aj.IpcExports(), one, int(a), SIZE)
    assert len(key) == 64
    with pytest.raises(aj.AscendError, match="207006"):
        aj.ipc_import(shared, one, key, 7)
    shared = aj.ipc_allow(shared, key, [7, 8])
    shared, pointer = aj.ipc_import(shared, one, key, 7)
    assert pointer == int(a)
    for wrong in (
        lambda: aj.ipc_import(shared, one, key, 7),
        lambda: aj.ipc_close(shared, key),
        lambda: aj.ipc_close(shared, key, 8),
        lambda: aj.ipc_import(shared, one, "0" * 64, 7),
        lambda: aj.ipc_export(shared, one, int(a) + 1, 64),
        lambda: aj.ipc_export(shared, one, int(a), SIZE + 1),
        lambda: aj.ipc_export(shared, one, int(a), 2**40),
        lambda: aj.ipc_export(shared, one, 2**40, 64),
        lambda: aj.ipc_import(shared, aj.free(one, a), key, 8),
        lambda: aj.ipc_import(shared, aj.malloc(aj.free(one, a), SIZE - 64)[0], key, 8),
    ):
        with pytest.raises(aj.AscendError, match="107000"):
            wrong()
    with pytest.raises(aj.AscendError, match="100000"):
        aj.ipc_export(shared, one, 0, 64)
    shared = aj.ipc_close(aj.ipc_close(shared, key, 7), key)
    assert not shared.exports
    open_to_all, key = aj.ipc_export(shared, one, int(a), 64, checks_pid=False)
    assert aj.ipc_import(open_to_all, one, key, 99)[1] == int(a)
    both, other_key = aj.ipc_export(open_to_all, one, int(a), SIZE)
    assert key != other_key and len(both.exports) == 2, "each export is closed on its own"


@pytest.mark.parametrize("way", ["free", "many frees", "reset"])
def test_a_block_like_the_exported_one_is_not_the_exported_one(fresh, way):
    """The same line, the same size, nothing queued in between, and more frees later than the card remembers."""
    card, keys = fresh, []
    for _ in range(2):
        card, pointer = aj.malloc(card, SIZE)
        shared, key = aj.ipc_export(aj.IpcExports(), card, int(pointer), SIZE, checks_pid=False)
        keys.append((shared, key, int(pointer)))
        for _ in range(7 if way == "many frees" else 0):  # max_freed is 2
            card, other = aj.malloc(card, 64)
            card = aj.free(card, other)
        assert aj.ipc_import(shared, card, key, 1)[1] == int(pointer), "it is there yet"
        last, card = card, aj.set_device(aj.reset_device(card)) if way == "reset" else aj.free(card, pointer)
    (first, first_key, one), (second, second_key, two) = keys
    assert one == two and aj.ipc_import(second, last, second_key, 1)[1] == two
    for gone in (last, card):
        with pytest.raises(aj.AscendError, match="freed after it was exported: 107000"):
            aj.ipc_import(first, gone, first_key, 1)


def test_a_block_that_a_pool_hands_out_again_is_another(fresh):
    card, pool = aj.mem_pool_create(fresh, 4 << 20)
    keys = []
    for nbytes in (2 << 20, 2 << 20, 4 << 20):  # cut from the pool's block, again, and all of it
        card, pointer = aj.mem_pool_alloc(card, pool, nbytes, 0)
        shared, key = aj.ipc_export(aj.IpcExports(), card, int(pointer), 64, checks_pid=False)
        assert aj.ipc_import(shared, card, key, 1)[1] == int(pointer)
        for old in keys:
            with pytest.raises(aj.AscendError, match="freed after it was exported"):
                aj.ipc_import(old[0], card, old[1], 1)
        keys.append((shared, key))
        card = aj.mem_pool_free(card, pointer, 0)
        with pytest.raises(aj.AscendError, match="freed after it was exported"):
            aj.ipc_import(shared, card, key, 1)
    aj.raise_if_error(card)


def test_which_calls_need_a_current_context(pair):
    """The runtime's calls do; those that only the driver serves, frees, and the C library's memory do not (CANN)."""
    one, a, other, b, _ = pair
    card, pinned = aj.malloc_host(one, 64)
    card, plain = aj.malloc_pageable(card, 64)
    card, pool = aj.mem_pool_create(card)
    card, address = aj.reserve_mem_address(card, 2 << 20)
    card, handle = aj.malloc_physical(card, 2 << 20)
    shared, key = aj.ipc_export(aj.IpcExports(), card, int(a), 64, checks_pid=False)
    aj.raise_if_error(card)
    bare = aj.use_thread(*aj.create_thread(card))
    refused = {
        "malloc": aj.malloc(bare, 64)[0],
        "malloc_align32": aj.malloc_align32(bare, 64)[0],
        "malloc_host": aj.malloc_host(bare, 64)[0],
        "host_register": aj.host_register(bare, plain)[0],
        "host_unregister": aj.host_unregister(bare, plain),
        "mem_pool_create": aj.mem_pool_create(bare)[0],
        "mem_pool_alloc": aj.mem_pool_alloc(bare, pool, 64, 0)[0],
        "mem_pool_free": aj.mem_pool_free(bare, a, 0),
        "memcpy": aj.memcpy(bare, a, a + 1, 64),
        "memcpy_async": aj.memcpy_async(bare, a, a + 1, 64, 0),
        "memcpy2d": aj.memcpy2d(bare, a, 8, pinned, 8, 8, 2),
        "memset": aj.memset(bare, a, 1, 64),
        "memset_async": aj.memset_async(bare, a, 1, 64, 0),
        "upload": aj.upload(bare, a, np.zeros(4, np.uint8)),
        "enable_peer_access": aj.enable_peer_access(bare, 3),
        "disable_peer_access": aj.disable_peer_access(bare, 3),
        "memcpy_peer": aj.memcpy_peer(bare, a, other, b, 64, src_device=3)[0],
        "free_with_dev_sync": aj.free_with_dev_sync(bare, a),
        "free_host_with_dev_sync": aj.free_host_with_dev_sync(bare, pinned),
    }  # fmt: skip
    tables = jax.tree.map(np.asarray, (bare.hbm.blocks, bare.host.blocks, bare.virtual, bare.pools, bare.memory))
    for name, after in refused.items():
        assert (name, int(aj.last_code(after))) == (name, 107002)
        left = after.hbm.blocks, after.host.blocks, after.virtual, after.pools, after.memory
        jax.tree.map(np.testing.assert_array_equal, left, tables)
    for call in (lambda: aj.ipc_export(shared, bare, int(a), 64), lambda: aj.ipc_import(shared, bare, key, 1)):
        with pytest.raises(aj.AscendError, match="107002"):
            call()
    bare = aj.map_mem(bare, address, 2 << 20, handle)
    bare = aj.release_mem_address(aj.unmap_mem(bare, address), address)
    bare = aj.free_physical(bare, handle)
    bare, again = aj.reserve_mem_address(bare, 2 << 20)
    bare, handle = aj.malloc_physical(bare, 2 << 20)
    bare, more = aj.malloc_pageable(bare, 64)
    bare = aj.host_write(bare, pinned, np.full(4, 7, np.uint8))
    bare, read = aj.host_read(bare, pinned, (4,), np.uint8)
    bare = aj.free_host(aj.free_host(aj.free_host(bare, more), pinned), plain)
    bare = aj.mem_pool_destroy(aj.mem_pool_trim(aj.mem_pool_set_release_threshold(bare, pool, 64), pool), pool)
    bare = aj.free(bare, a)
    aj.raise_if_error(bare)
    assert read.tolist() == [7] * 4 and int(again) == int(address)


def test_a_cache_gives_nothing_back_to_a_device_that_it_cannot_wait_for(fresh):
    cache, card, pointer = aj.cache_alloc(aj.caching_allocator(fresh), fresh, 20 << 20)
    cache, card = aj.cache_free(cache, card, pointer)
    cache, card, _ = aj.cache_workspace(cache, card, 2 << 20)
    bare = aj.use_thread(*aj.create_thread(card))
    after, bare = aj.empty_cache(cache, bare)
    assert int(aj.last_code(bare)) == 107002 and after == cache
    np.testing.assert_array_equal(bare.hbm.blocks, card.hbm.blocks)
    for call in (aj.cache_alloc, aj.cache_workspace):
        with pytest.raises(aj.AscendError, match="107002"):
            call(cache, bare, 64)
    after, card = aj.empty_cache(cache, card)
    aj.raise_if_error(card)
    assert (after.reserved_bytes, after.workspace_bytes, aj.memory_report(card).used_bytes) == (0, 0, 0)


def test_a_free_that_waits_for_the_device_is_never_too_early(fresh):
    card, a = aj.malloc(fresh, 4096)
    card, pinned = aj.malloc_host(card, 4096)
    card = aj.memcpy_async(card, pinned, a, 4096, 0)
    for early, pointer in [(aj.free(card, a), a), (aj.free_host(card, pinned), pinned)]:
        assert [one.pointer for one in aj.freed_in_use(aj.synchronize_device(early))] == [int(pointer)]
    late = aj.free_host_with_dev_sync(aj.free_with_dev_sync(card, a), pinned)
    aj.raise_if_error(late)
    assert aj.freed_in_use(aj.synchronize_device(late)) == []
    assert aj.mem_get_info(late) == aj.mem_get_info(fresh)
    assert int(aj.last_code(aj.free_with_dev_sync(late, a))) == 107000


def test_work_that_outlives_a_free_is_named(fresh):
    card, a = aj.malloc(fresh, 4096)
    card, b = aj.malloc(card, 4096)
    card = aj.memset_async(card, b, 1, 4096, 0)
    card = aj.memset_async(card, a, 1, 64, 0, dst_offset=64)
    card = aj.free(card, a)
    card, again = aj.malloc(card, 4096)
    assert int(again) == int(a)
    card = aj.memset_async(card, again, 2, 4096, 0)
    card = aj.free(aj.synchronize_device(card), again)
    (found,) = aj.freed_in_use(card)
    assert (found.command, found.pointer) == (1, int(a)) and found.end_ns > found.freed_ns
    assert len({found.site, found.malloc_site, found.free_site}) == 3
    assert all("test_sharing.py" in site for site in (found.site, found.malloc_site, found.free_site))
    early = aj.free(aj.memset_async(aj.malloc(fresh, 64)[0], a, 1, 64, 0), a)
    (found,) = aj.freed_in_use(early)
    assert found.end_ns is None
    clean = aj.free(aj.synchronize_device(aj.memset_async(aj.malloc(fresh, 64)[0], a, 1, 64, 0)), a)
    assert aj.freed_in_use(clean) == []


def test_only_the_latest_frees_are_remembered(fresh):
    card, a = aj.malloc(fresh, 64)
    card = aj.free(aj.memset_async(card, a, 1, 64, 0), a)
    for _ in range(2):
        card, b = aj.malloc(card, 64)
        card = aj.free(card, b)
    assert aj.freed_in_use(card) == []
