"""Expandable segments: where their addresses and their memory lie; bytes come through whatever lies between."""

import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import HeapWord
from ascend_jax.runtime.translation import segment_bytes
from tests.runtime.test_caching_allocator import MIB, Session

GIB = 1 << 30
OPTION = "expandable_segments:True"


@pytest.fixture(scope="module")
def small():
    """Return a card with 14 MiB, all of it real, whose free memory is every second 2 MiB; and what lies between."""
    chip = aj.chip("Ascend910B2").replace(hbm_bytes=16 * MIB)
    card = aj.init(chip, hbm_backing_bytes=14 * MIB, host_backing_bytes=0, max_commands=16, max_blocks=16,
                   max_streams=2, max_events=1, max_mappings=3)  # fmt: skip
    blocks = []
    for _ in range(7):
        card, pointer = aj.malloc_align32(card, 2 * MIB, aj.MallocPolicy.HUGE_ONLY)
        blocks.append(int(pointer))
    for pointer in blocks[::2]:
        card = aj.free(card, pointer)
    return card, blocks[1::2]


@pytest.fixture
def times():
    """Return a card of 102 MiB without real bytes."""
    return aj.init(aj.chip("Ascend910B2").replace(hbm_bytes=102 * MIB), hbm_backing_bytes=0, max_commands=16,
                   max_blocks=16)  # fmt: skip


def test_bytes_come_through_blocks_that_lie_in_pieces(small):
    card, between = small
    s = Session(card, OPTION, pad_bytes=0)
    pointers = [s.alloc(7 * MIB // 8) for _ in range(8)]
    assert pointers == [pointers[0] + number * 7 * MIB // 8 // 64 for number in range(8)], "the addresses are one run"
    assert s.mib("reserved_bytes") == 8 and aj.mem_get_info(s.card)[0] == 0
    assert [row["total_size"] for row in aj.memory_snapshot(s.cache)] == [8 * MIB]
    whole, rng = 7 * MIB, np.random.default_rng(0)
    pattern = rng.integers(0, 256, whole, np.uint8)
    s.card = aj.upload(s.card, pointers[0], pattern)
    s.card = aj.memset_async(s.card, between[1], 99, 2 * MIB, 0)
    s.card = aj.memcpy(s.card, pointers[2], pointers[5], 7 * MIB // 4)  # from and to pieces
    s.card = aj.memset(s.card, pointers[2] + 1, 7, 3)
    s.card, out = aj.download(s.card, pointers[0], (whole,), "uint8")
    aj.raise_if_error(s.card)
    step = 7 * MIB // 8
    pattern[2 * step : 4 * step] = pattern[5 * step : 7 * step]
    pattern[2 * step + 64 : 2 * step + 67] = 7
    np.testing.assert_array_equal(np.asarray(out), pattern)
    s.card, other = aj.download(s.card, between[1], (2 * MIB,), "uint8")
    assert (np.asarray(other) == 99).all(), "memory of others is not touched"


def test_an_operator_reads_and_writes_across_pages_that_lie_apart(small):
    card, between = small
    s = Session(card, OPTION, pad_bytes=0)
    first = s.alloc(MIB)
    for _ in range(7):
        s.alloc(MIB)
    rng, border = np.random.default_rng(1), 2 * MIB // 64
    a, b = (rng.integers(-4, 5, (16, 16)).astype(np.float16) for _ in range(2))  # 512 bytes, of exact sums
    places = [first + number * border - 4 for number in (1, 2, 3)]  # 256 bytes before a border
    x, y, out = (aj.tensor(place, (16, 16), "float16") for place in places)
    for index, pointer in enumerate(between):
        s.card = aj.memset_async(s.card, pointer, 11 + index, 2 * MIB, 0)
    s.card = aj.upload(aj.upload(s.card, x.pointer, a), y.pointer, b)
    s.card, _, executor = aj.ops.matmul_get_workspace_size(s.card, x, y, out=out)
    s.card = aj.synchronize_device(aj.launch(s.card, executor, 0, 0))
    s.card, product = aj.download(s.card, out.pointer, (16, 16), "float16")
    aj.raise_if_error(s.card)
    np.testing.assert_array_equal(np.asarray(product, np.float64), a.astype(np.float64) @ b.astype(np.float64))
    for index, pointer in enumerate(between):
        s.card, other = aj.download(s.card, pointer, (2 * MIB,), "uint8")
        assert (np.asarray(other) == 11 + index).all(), "what lies between the pages is not touched"
    past = aj.tensor(first + 4 * border - 4, (16, 16), "float16")
    card, _, executor = aj.ops.matmul_get_workspace_size(s.card, x, y, out=past)
    card = aj.launch(card, executor, 0, 0)
    assert int(aj.last_code(card)) == aj.Code.RT_PARAM_INVALID, "past what is mapped"


@pytest.mark.parametrize("is_enabled", [False, True])
def test_a_copy_between_cards_crosses_pages_that_lie_apart(small, is_enabled):
    card, between = small
    s = Session(card, OPTION, pad_bytes=0)
    here = [s.alloc(MIB) for _ in range(6)]
    peer = aj.free(card, between[0])
    peer, there = aj.malloc_align32(peer, 5 * MIB)
    data = np.random.default_rng(2).integers(0, 256, 5 * MIB, np.uint8)
    peer = aj.upload(peer, there, data)
    s.card = aj.enable_peer_access(s.card, 1) if is_enabled else s.card
    peer = aj.enable_peer_access(peer, 0) if is_enabled else peer
    for pointer in between:
        s.card = aj.memset_async(s.card, pointer, 13, 2 * MIB, 0)
    s.card, peer = aj.memcpy_peer(s.card, here[0] + 1, peer, there, 5 * MIB, src_device=1)
    s.card, read = aj.download(s.card, here[0], (6 * MIB,), "uint8")
    np.testing.assert_array_equal(np.asarray(read)[64 : 64 + 5 * MIB], data)
    peer, s.card = aj.memcpy_peer(peer, there, s.card, here[0] + 3, 4 * MIB, src_device=0, dst_device=1)
    peer, back = aj.download(peer, there, (4 * MIB,), "uint8")
    np.testing.assert_array_equal(np.asarray(back), data[128 : 128 + 4 * MIB])
    for pointer in between:
        s.card, other = aj.download(s.card, pointer, (2 * MIB,), "uint8")
        assert (np.asarray(other) == 13).all()
    aj.raise_if_error(s.card), aj.raise_if_error(peer)
    after, _ = aj.memcpy_peer(s.card, here[0], peer, there, 6 * MIB + 1, src_device=1)
    assert int(aj.last_code(after)) == aj.Code.RT_PARAM_INVALID


def test_out_of_memory_counts_bytes_and_not_runs(small):
    s = Session(small[0], OPTION, pad_bytes=0)
    kept = [s.alloc(MIB) for _ in range(7)]
    with pytest.raises(aj.CacheOutOfMemory) as caught:
        s.alloc(MIB), s.alloc(MIB)
    report = caught.value.report
    assert (report.free_bytes, report.reserved_unused_bytes, caught.value.code) == (0, 0, aj.Code.MEMORY_ALLOCATION)
    mine = [one.nbytes for one in report.owners if one.site != aj.memory_report(small[0]).owners[0].site]
    assert sum(mine) == 8 * MIB and sum(one.nbytes for one in report.owners) == 14 * MIB
    assert list(s.cache.spaces) == [kept[0] * 64]


def test_empty_cache_unmaps_the_middle_and_the_hole_is_filled_first(small):
    s = Session(small[0], OPTION, pad_bytes=0)
    p = [s.alloc(MIB) for _ in range(8)]
    for pointer in p[2:6]:
        s.free(pointer)
    s.empty()
    assert s.mib("reserved_bytes") == 4 and aj.mem_get_info(s.card)[0] == 4 * MIB
    assert [(row["address"] // 64, row["total_size"]) for row in aj.memory_snapshot(s.cache)] == [
        (p[0], 2 * MIB), (p[6], 2 * MIB)]  # fmt: skip
    for pointer in (p[2], p[5]):
        assert int(aj.last_code(aj.memset(s.card, pointer, 1, 64))) == aj.Code.RT_PARAM_INVALID
    assert int(aj.last_code(aj.memset(s.card, p[1], 1, MIB + 64))) == aj.Code.RT_PARAM_INVALID, "past the mapped part"
    other = aj.malloc_align32(s.card, 2 * MIB, aj.MallocPolicy.HUGE_ONLY)
    assert int(other[1]), "what was unmapped is anybody's"
    assert s.alloc(MIB) == p[2] and s.mib("reserved_bytes") == 6
    assert len(aj.memory_snapshot(s.cache)) == 2 and len(s.cache.spaces) == 1
    for pointer in (p[0], p[1], p[2], p[6], p[7]):
        s.free(pointer)
    s.empty()
    assert not s.cache.spaces and not s.cache.blocks and aj.mem_get_info(s.card)[0] == 8 * MIB
    assert not np.asarray(s.card.virtual).any()


def test_what_a_full_table_cannot_show_stays_mapped(small):
    s = Session(small[0], OPTION, pad_bytes=0)
    p = [s.alloc(MIB) for _ in range(8)]
    s.card, _ = aj.reserve_mem_address(s.card, 2 * MIB)
    s.card, _ = aj.reserve_mem_address(s.card, 2 * MIB)
    s.free(p[2]), s.free(p[3])
    s.empty()  # two ranges would need a fourth row
    assert s.mib("reserved_bytes") == 8 and s.alloc(2 * MIB - 1024 * 1024) == p[2]
    s.free(p[6]), s.free(p[7])
    s.empty()
    assert s.mib("reserved_bytes") == 6
    with pytest.raises(aj.CacheOutOfMemory, match="max_mappings") as caught:
        s.alloc(2 * MIB)  # a segment of large blocks, whose range would need a fourth row
    assert caught.value.code == aj.Code.OBJECT_TABLE_FULL


def test_two_runs_that_are_each_too_short_serve_one_request(times):
    s = Session(times, OPTION, pad_bytes=0)
    s.card, low = aj.malloc_align32(s.card, 40 * MIB)
    s.card, _ = aj.malloc_align32(s.card, 20 * MIB)
    s.card = aj.free(s.card, low)
    assert aj.memory_report(s.card).largest_free_bytes == 40 * MIB
    pointer = s.alloc(60 * MIB)
    assert pointer * 64 >= 102 * MIB and s.taken == 80 * MIB
    stats = aj.memory_stats(s.cache)
    assert (stats["segment.all.peak"], stats["inactive_split.all.peak"], stats["num_device_alloc"]) == (0, 0, 1)
    s.free(pointer)
    s.empty()
    assert s.taken == 20 * MIB and int(s.card.hbm.words[HeapWord.COUNT]) == 1


def test_pages_serve_another_stream_after_they_were_unmapped(times):
    card, side = aj.create_stream(times)
    s = Session(card, OPTION, pad_bytes=0)
    a, b = s.alloc(50 * MIB), s.alloc(20 * MIB)
    s.free(a)
    other = s.alloc(60 * MIB, side)  # runs out, unmaps 40 MiB of the first segment, and goes on
    assert s.mib("reserved_bytes") == 100 and aj.memory_stats(s.cache)["num_alloc_retries"] == 1
    assert len(s.cache.spaces) == 2 and s.cache.blocks[b * 64].is_used and s.cache.blocks[other * 64].stream == side
    assert s.alloc(8 * MIB) == a + 40 * MIB // 64, "what was left of the chunk that the other block begins in"


def test_where_segments_begin(times):
    card, side = aj.create_stream(times)
    card, third = aj.create_stream(card)
    s = Session(card, OPTION, pad_bytes=0)
    large, small = s.alloc(20 * MIB) * 64, s.alloc(MIB) * 64
    assert large == 102 * MIB and small == 128 * GIB - 2 * MIB - 2 * GIB
    middle = s.alloc(20 * MIB, side) * 64
    assert abs(middle - (large + small) // 2) < 32 * MIB
    assert small - s.alloc(MIB, side) * 64 == 2 * GIB
    assert s.alloc(20 * MIB, third) * 64 not in (large, middle)


def test_addresses_of_others_end_a_segment_and_another_begins(times):
    s = Session(times, OPTION, pad_bytes=0)
    a = s.alloc(20 * MIB)
    s.card, address = aj.reserve_mem_address(s.card, 2 * MIB)
    assert int(address) == a + 20 * MIB // 64
    b = s.alloc(20 * MIB)
    assert b > int(address) and len(s.cache.spaces) == 2
    s.card, beyond = aj.reserve_mem_address(s.card, 128 * GIB)
    assert int(beyond) == 0 and int(aj.last_code(s.card)) == aj.Code.MEMORY_ALLOCATION


def test_the_holes_of_a_segment_belong_to_it():
    """The longest run of free addresses is a hole of 40 GiB: no other segment may begin there."""
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, max_commands=16, max_blocks=16, max_streams=2)
    card, side = aj.create_stream(card)
    s = Session(card, OPTION, pad_bytes=0)
    front, middle, last = s.alloc(20 * MIB), s.alloc(40 * GIB), s.alloc(20 * MIB)
    s.free(middle)
    s.empty()
    other = s.alloc(GIB, side)  # 52 chunks of 20 MiB
    assert other > last and s.mib("reserved_bytes") == 20 + 20 + 1040
    s.free(last), s.free(front)
    s.empty()
    assert s.mib("reserved_bytes") == 1040 and s.taken == 1040 * MIB and list(s.cache.spaces) == [other * 64]


def test_the_bytes_of_two_allocators_lie_apart():
    """What is mapped of the first one's segment lies past its real bytes, which it gets back later."""
    chip = aj.chip("Ascend910B2").replace(hbm_bytes=16 * MIB)
    card = aj.init(chip, hbm_backing_bytes=4 * MIB, host_backing_bytes=0, max_commands=16, max_blocks=16)
    one = Session(card, OPTION, pad_bytes=0)
    pointers = [one.alloc(MIB) for _ in range(6)]
    for pointer in pointers[:4]:
        one.free(pointer)
    one.empty()
    other = Session(one.card, OPTION, pad_bytes=0)
    there = other.alloc(MIB)
    one.card = other.card
    assert one.alloc(MIB) == pointers[0]
    places, left = segment_bytes(one.card, jnp.array([pointers[0], pointers[4], there]))
    assert abs(int(places[0]) - int(places[2])) * 64 == 4 * MIB and (left * 64).tolist() == [4 * MIB, 0, 4 * MIB]


def test_pages_are_nobody_elses(times):
    s = Session(times, OPTION, pad_bytes=0)
    pointer = s.alloc(20 * MIB)
    page = 2 * MIB // 64
    codes = [int(aj.last_code(call)) for call in (
        aj.free(s.card, page), aj.free(s.card, pointer), aj.free_physical(s.card, page), aj.unmap_mem(s.card, pointer),
        aj.release_mem_address(s.card, pointer), aj.memset(s.card, page, 0, 64))]  # fmt: skip
    assert codes == [aj.Code.RT_PARAM_INVALID] * 6
    with pytest.raises(aj.AscendError, match="no part of a device block"):  # as in torch_npu
        aj.ipc_export(aj.IpcExports(), s.card, pointer, 64)


def test_a_giant_chunk_lies_on_a_giant_page():
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, max_commands=16, max_blocks=16)
    s = Session(card, f"{OPTION},page_size:1g", pad_bytes=0)
    a = s.alloc(GIB + 5 * MIB)
    assert a * 64 % GIB == 0 and s.mib("reserved_bytes") == 2048 and s.taken == 2 * GIB


@pytest.fixture(scope="module")
def full():
    """Return a card whose memory takes all addresses up to the last pointer."""
    return aj.init(aj.chip("Ascend950PR_9599"), hbm_backing_bytes=4 * MIB, host_backing_bytes=1 << 16,
                   max_commands=16, max_blocks=16, max_streams=2, max_events=1, max_mappings=6)  # fmt: skip


def test_a_memory_that_takes_all_addresses_leaves_those_before_the_null_pointer(full):
    s = Session(full, OPTION, pad_bytes=0)
    large, small = s.alloc(20 * MIB), s.alloc(MIB)
    assert large * 64 == -128 * GIB + 2 * GIB, "behind host memory, of which 2 GiB at most are real"
    assert small * 64 == -2 * GIB and s.mib("reserved_bytes") == 22 and s.taken == 22 * MIB
    assert [row["address"] for row in aj.memory_snapshot(s.cache)] == [large * 64, small * 64]
    s.free(large), s.free(small)
    s.empty()
    assert not np.asarray(s.card.virtual).any() and s.taken == 0
    card, address = aj.reserve_mem_address(full, 126 * GIB)
    assert int(address) == large
    aj.raise_if_error(card)
    for nbytes in (1, 126 * GIB + 1):
        refused, none = aj.reserve_mem_address(card if nbytes == 1 else full, nbytes)
        assert (int(aj.last_code(refused)), int(none)) == (aj.Code.MEMORY_ALLOCATION, 0)


def test_bytes_come_through_addresses_before_the_null_pointer(full):
    s = Session(full, OPTION, pad_bytes=0)
    a = s.alloc(MIB)
    b = s.alloc(MIB)
    s.card, pinned = aj.malloc_host(s.card, 1024)
    s.card, address = aj.reserve_mem_address(s.card, 2 * MIB)
    s.card, handle = aj.malloc_physical(s.card, 2 * MIB)
    s.card = aj.map_mem(s.card, address, 2 * MIB, handle)
    assert a < 0 and int(address) < 0 and int(pinned) < a
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-4, 5, (16, 16)).astype(np.float16) for _ in range(2))
    s.card = aj.host_write(s.card, pinned, np.concatenate([x, y]))
    s.card = aj.memcpy_async(s.card, a + 1, pinned, 512, 0)
    s.card = aj.memcpy_async(s.card, address, pinned, 512, 0, src_offset=512)
    left, right, out = (aj.tensor(place, (16, 16), "float16") for place in (a + 1, int(address), b))
    s.card, _, executor = aj.ops.matmul_get_workspace_size(s.card, left, right, out=out)
    s.card = aj.launch(s.card, executor, 0, 0)
    s.card = aj.memcpy(aj.synchronize_device(s.card), a + 100, b, 512)
    s.card, product = aj.download(s.card, a + 100, (16, 16), "float16")
    aj.raise_if_error(s.card)
    np.testing.assert_array_equal(np.asarray(product, np.float64), x.astype(np.float64) @ y.astype(np.float64))
    kinds = aj.insight.timeline(s.card)
    h2d, _, d2d = (kinds.end_ns[row] - kinds.start_ns[row] for row in (0, 1, 3))
    chip = s.card.chip
    assert h2d == np.ceil(np.float32(chip["copy_latency_ns"]) + np.float32(512e9) / chip["h2d_bytes_per_s"])
    assert d2d == np.ceil(np.float32(chip["copy_latency_ns"]) + np.float32(512e9) / chip["d2d_bytes_per_s"])
    for call in (aj.host_read(s.card, a, (1,), "uint8")[0], aj.memset(s.card, -1, 0, 64, dst_offset=128),
                 aj.memset(s.card, -1, 0, 1), aj.memset(s.card, a, 0, 2 * MIB + 1),
                 aj.map_mem(s.card, 1 << 30, 2 * MIB, handle)):  # fmt: skip
        assert int(aj.last_code(call)) == aj.Code.RT_PARAM_INVALID
