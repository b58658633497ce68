"""Memory that more than one party uses: peers, processes, and work that outlives a free."""

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


def test_a_block_like_the_exported_one_is_not_the_exported_one(fresh):
    card, pointers = fresh, []
    for _ in range(2):  # the same line, the same size, nothing queued in between
        card, pointer = aj.malloc(aj.free(card, pointers[0]) if pointers else card, SIZE)
        pointers.append(int(pointer))
        if len(pointers) == 1:
            shared, key = aj.ipc_export(aj.IpcExports(), card, pointers[0], SIZE, checks_pid=False)
            assert aj.ipc_import(shared, card, key, 1)[1] == pointers[0]
    assert pointers[0] == pointers[1]
    with pytest.raises(aj.AscendError, match="freed after it was exported"):
        aj.ipc_import(shared, card, key, 1)


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
