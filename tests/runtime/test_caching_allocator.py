"""The caching allocator: reported cases with their numbers, options, streams, and what any sequence must keep."""

import itertools
import random

import numpy as np
import pytest

import ascend_jax as aj

MIB = 1 << 20


@pytest.fixture(scope="module")
def card():
    return aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 16, max_commands=64, max_streams=3, max_events=2,
                   max_blocks=64)  # fmt: skip


class Session:
    """An allocator and its card, called one after the other."""

    def __init__(self, card, options="", pad_bytes=None):
        self.card, self.cache = card, aj.caching_allocator(card, options, pad_bytes=pad_bytes)

    def alloc(self, nbytes, stream=0):
        self.cache, self.card, pointer = aj.cache_alloc(self.cache, self.card, nbytes, stream)
        return pointer

    def free(self, pointer):
        self.cache, self.card = aj.cache_free(self.cache, self.card, pointer)

    def record(self, pointer, stream):
        self.cache = aj.record_stream(self.cache, self.card, pointer, stream)

    def empty(self):
        self.cache, self.card = aj.empty_cache(self.cache, self.card)

    def mib(self, name):
        return aj.memory_stats(self.cache)[f"{name}.all.current"] / MIB

    @property
    def taken(self):
        free, total = aj.mem_get_info(self.card)
        return total - 2 * MIB - free


CONFIGS = [("", 1060, 260), ("max_split_size_mb:20", 800, 0), ("expandable_segments:True", 800, 0)]


@pytest.mark.parametrize(("options", "reserved", "inactive"), CONFIGS)
def test_alternating_sizes(card, options, reserved, inactive):
    s = Session(card, options, pad_bytes=0)
    s.free(s.alloc(530 * MIB))
    s.alloc(270 * MIB)
    s.alloc(530 * MIB)
    assert (s.mib("reserved_bytes"), s.mib("inactive_split_bytes")) == (reserved, inactive)
    assert s.taken == reserved * MIB


@pytest.mark.parametrize(("rounding", "growth"), [(20, 76), (30, 0)])
def test_a_block_too_large_to_cut_is_reused_if_little_is_wasted(card, rounding, growth):
    s = Session(card, f"max_split_size_mb:50,max_non_split_rounding_mb:{rounding}", pad_bytes=0)
    s.free(s.alloc(100 * MIB))
    s.alloc(75 * MIB)
    assert s.mib("reserved_bytes") - 100 == growth


@pytest.mark.parametrize(("nbytes", "pad", "counted"), [
    (4096, None, 4608), (160 * MIB, None, 160 * MIB + 512), (4096, 0, 4096), (160 * MIB, 0, 160 * MIB), (1, 0, 512),
])  # fmt: skip
def test_counted_bytes(card, nbytes, pad, counted):
    s = Session(card, pad_bytes=pad)
    s.alloc(nbytes)
    stats = aj.memory_stats(s.cache)
    assert (stats["allocated_bytes.all.current"], stats["requested_bytes.all.current"]) == (counted, nbytes)


@pytest.mark.parametrize(("nbytes", "options", "segment"), [
    (MIB, "", 2), (MIB + 1, "", 20), (10 * MIB - 512, "", 20), (10 * MIB, "", 10), (11 * MIB + 1, "", 12),
    (2 * MIB, "large_segment_size_mb:40", 40), (3 * MIB, "page_size:1g", 1024),
])  # fmt: skip
def test_segments(card, nbytes, options, segment):
    s = Session(card, options, pad_bytes=0)
    s.alloc(nbytes)
    assert s.mib("reserved_bytes") == segment and s.taken == segment * MIB


@pytest.mark.parametrize(("nbytes", "rounded"), [(1200, 1280), (1024, 1024), (2048, 2048), (3000, 3072), (9000, 10240)])
def test_rounding_to_parts_of_a_power_of_two(card, nbytes, rounded):
    s = Session(card, "roundup_power2_divisions:4", pad_bytes=0)
    s.alloc(nbytes)
    expected = rounded if nbytes > 512 * 4 else -(-nbytes // 512) * 512
    assert aj.memory_stats(s.cache)["allocated_bytes.all.current"] == expected


@pytest.mark.parametrize(("text", "words"), [
    ("expandable_segments:True,max_split_size_mb:64", ["expandable_segments", "max_split_size_mb"]),
    ("garbage_collection_threshold:0.5,expandable_segments:True",
     ["expandable_segments", "garbage_collection_threshold"]),
    ("max_split_size_mb:19", ["max_split_size_mb:19", "20"]), ("max_split_size_mb:x", ["max_split_size_mb:x"]),
    ("max_split_size", ["key:value"]), ("max_split:64", ["max_split", "max_split_size_mb"]),
    ("garbage_collection_threshold:1.5", ["1.5"]), ("garbage_collection_threshold:0.0", ["between"]),
    ("expandable_segments:yes", ["True or False"]), ("roundup_power2_divisions:3", ["power of two"]),
    ("roundup_power2_divisions:[3:1]", ["power of two"]), ("roundup_power2_divisions:[4:1,8:3]", ["power of two"]),
    ("roundup_power2_divisions:[4:1", ["MiB:number"]), ("roundup_power2_divisions:[4]", ["MiB:number"]),
    ("segment_size_mb:513", ["20 to 512"]), ("page_size:2m", ["1g"]), ("per_process_memory_fraction:2", ["0.0 to 1.0"]),
    ("max_split_size_mb:64,max_split_size_mb:64", ["twice"]),
    ("pinned_max_cached_size_mb:banana", ["pinned_max_cached_size_mb:banana", "whole number"]),
    ("pinned_mem_register:1", ["True or False"]), ("base_addr_aligned_kb:17", ["base_addr_aligned_kb:17", "0 to 16"]),
    ("segment_size_mb:40,large_segment_size_mb:40", ["large_segment_size_mb:40", "other name"]),
])  # fmt: skip
def test_options_that_are_refused(card, text, words):
    with pytest.raises(ValueError) as caught:
        aj.caching_allocator(card, text)
    assert all(word in str(caught.value) for word in words)


def test_options_are_a_text(card):
    with pytest.raises(TypeError, match="options = 64: must be a text"):
        aj.caching_allocator(card, 64)


def test_options_that_are_read():
    options = aj.parse_allocator_options(
        " max_split_size_mb:64 , garbage_collection_threshold:0.8, pinned_mem_register:True,base_addr_aligned_kb:16,"
    )
    assert (options.max_split_bytes, options.garbage_collection_threshold) == (64 * MIB, 0.8)
    assert aj.parse_allocator_options("page_size:1g,expandable_segments:True").expandable_segments
    assert aj.parse_allocator_options("") == aj.AllocatorOptions()
    parsed = aj.parse_allocator_options("roundup_power2_divisions:[256:1,512:2,1024:4,>:8],max_split_size_mb:20")
    assert parsed.roundup_power2_divisions == (1,) * 9 + (2, 4) + (8,) * 5 and parsed.max_split_bytes == 20 * MIB
    few = aj.parse_allocator_options("roundup_power2_divisions:[4:2,8:16]").roundup_power2_divisions
    assert few == (2, 2, 2, 16) + (0,) * 12


def test_without_record_stream_a_block_is_reused_under_a_running_reader(card):
    now, side = aj.create_stream(card)
    s = Session(now)
    a = s.alloc(400)
    s.card, host = aj.malloc_host(s.card, 400)
    s.card = aj.memcpy_async(s.card, host, a, 400, side)
    s.free(a)
    assert s.alloc(400) == a


def test_with_record_stream_it_waits_for_the_reader(card):
    now, side = aj.create_stream(card)
    s = Session(now)
    a = s.alloc(400)
    s.record(a, side)
    s.card, host = aj.malloc_host(s.card, 400)
    s.card = aj.memcpy_async(s.card, host, a, 400, side)
    s.free(a)
    stats = aj.memory_stats(s.cache)
    assert (stats["allocation.all.current"], stats["active.all.current"]) == (0, 1)
    assert aj.memory_snapshot(s.cache)[0]["blocks"][0]["state"] == "active_pending_free"
    assert s.alloc(400) != a
    s.card = aj.synchronize_stream(s.card, side)
    assert s.alloc(400) == a


def test_streams_do_not_share_blocks(card):
    now, side = aj.create_stream(card)
    s = Session(now)
    a = s.alloc(400)
    s.free(a)
    assert s.alloc(400, side) != a and s.alloc(400) == a


def test_empty_cache_gives_whole_segments_back(card):
    s = Session(card)
    a, b, c = s.alloc(100), s.alloc(3 * MIB), s.alloc(100 * MIB)
    s.free(b), s.free(c)
    assert s.mib("reserved_bytes") == 2 + 20 + 102
    s.empty()
    assert s.mib("reserved_bytes") == 2 and s.taken == 2 * MIB
    s.free(a)
    s.empty()
    stats = aj.memory_stats(s.cache)
    assert s.taken == 0 and stats["segment.all.current"] == 0 and stats["segment.all.peak"] == 3
    assert (stats["num_device_alloc"], stats["num_device_free"], stats["num_sync_all_streams"]) == (3, 3, 2)
    aj.raise_if_error(s.card)


def test_cached_segments_are_given_back_before_it_runs_out(card):
    s = Session(card, pad_bytes=0)
    s.free(s.alloc(40 << 30))
    s.alloc(50 << 30)
    stats = aj.memory_stats(s.cache)
    assert stats["num_alloc_retries"] == 1 and stats["reserved_bytes.all.current"] == 50 << 30
    aj.raise_if_error(s.card)


def test_running_out_tells_the_truth(card):
    s = Session(card, "per_process_memory_fraction:0.5", pad_bytes=0)
    kept = s.alloc(30 << 30)
    s.free(s.alloc(1 << 30))
    before = s.cache, s.taken
    with pytest.raises(aj.CacheOutOfMemory, match="207001") as caught:
        s.alloc(3 << 30)
    report = caught.value.report
    assert (report.requested_bytes, report.free_bytes, report.reserved_unused_bytes) == (3 << 30, 2 << 30, 0)
    assert (report.largest_free_bytes, report.limit_bytes, report.held_bytes) == (2 << 30, 32 << 30, 30 << 30)
    assert [(one.nbytes, one.blocks) for one in report.owners] == [(30 << 30, 1)]
    assert "test_caching_allocator.py" in report.owners[0].site and '"requested_bytes": 3221225472' in report.to_json()
    assert (s.cache, s.taken) == before, "what was passed in is as it was"
    s.cache, s.card = caught.value.cache, caught.value.card
    stats = aj.memory_stats(s.cache)
    assert (stats["num_ooms"], stats["num_alloc_retries"], report.shortages) == (1, 1, 1)
    assert s.mib("reserved_bytes") == 30 << 10 and s.taken == 30 << 30
    s.cache = aj.set_per_process_memory_fraction(s.cache, s.card, 0.25)  # below what is in use
    with pytest.raises(aj.CacheOutOfMemory) as caught:
        s.alloc(1 << 30)
    report = caught.value.report
    assert (report.free_bytes, report.largest_free_bytes, report.limit_bytes) == (0, 0, 16 << 30)
    s.free(kept)
    assert s.alloc(3 << 30)


def test_garbage_collection_frees_the_oldest_segments(card):
    s = Session(card, "garbage_collection_threshold:0.55", pad_bytes=0)
    s.cache = aj.set_per_process_memory_fraction(s.cache, s.card, 1.0)  # from 35.2 GiB on
    s.card, side = aj.create_stream(s.card)
    old, young = s.alloc(20 << 30), s.alloc(15 << 30)
    s.free(old)
    s.free(s.alloc(2 * MIB, side))
    s.alloc(2 * MIB, side)  # the old one ages by two searches, one of which finds a block
    assert [block.age for block in s.cache.blocks.values() if block.size == 20 << 30] == [2]
    s.free(young)
    s.alloc(100 * MIB, side), s.alloc(200 * MIB, side)
    s.alloc(21 << 30)
    assert sorted(segment.size >> 30 for segment in s.cache.segments.values()) == [0, 0, 0, 15, 21]


def test_without_a_fraction_nothing_is_collected(card):
    s = Session(card, "garbage_collection_threshold:0.1", pad_bytes=0)
    s.card, side = aj.create_stream(s.card)
    s.free(s.alloc(20 << 30))
    s.alloc(21 << 30)
    assert sorted(segment.size >> 30 for segment in s.cache.segments.values()) == [20, 21]
    with pytest.raises(TypeError, match="fraction = 1: must be a float"):
        aj.set_per_process_memory_fraction(s.cache, s.card, 1)
    with pytest.raises(ValueError, match=r"fraction = 1.5"):
        aj.set_per_process_memory_fraction(s.cache, s.card, 1.5)
    s.cache = aj.set_per_process_memory_fraction(s.cache, s.card, 0.65)  # 41.6 GiB; above 4.16 a whole old one goes
    s.alloc(2 << 30, side)
    assert sorted(segment.size >> 30 for segment in s.cache.segments.values()) == [2, 21]


@pytest.mark.parametrize("call", ["free twice", "free foreign", "record freed", "stream", "negative"])
def test_mistakes_are_refused(card, call):
    s = Session(card)
    a = s.alloc(100)
    if call in ("free twice", "record freed"):
        s.free(a)
    calls = {"free twice": lambda: s.free(a), "free foreign": lambda: s.free(a + 1), "stream": lambda: s.alloc(1, 99)}
    calls |= {"record freed": lambda: s.record(a, 0), "negative": lambda: s.alloc(-1)}
    with pytest.raises((aj.AscendError, ValueError), match=r"107000|107003|nbytes = -1"):
        calls[call]()


OPTIONS = ["", "max_split_size_mb:20", "expandable_segments:True",
           "garbage_collection_threshold:0.001,per_process_memory_fraction:1.0"]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_keeps_the_books(card, seed):
    rng = random.Random(seed)
    now, side = aj.create_stream(card)
    s = Session(now, OPTIONS[seed % len(OPTIONS)])
    live, asked = {}, {}
    for _ in range(50):
        if live and rng.random() < 0.45:
            pointer = rng.choice(sorted(live))
            if rng.random() < 0.3:
                s.record(pointer, side)
            s.free(pointer)
            del live[pointer], asked[pointer]
        else:
            nbytes = rng.choice([rng.randrange(1, 5000), rng.randrange(1, 3 * MIB), rng.randrange(1, 60 * MIB)])
            pointer = s.alloc(nbytes, rng.choice([0, side]))
            live[pointer], asked[pointer] = s.cache.blocks[pointer * 64].size, nbytes
        check_books(s, live, asked)
        if rng.random() < 0.05:
            s.empty()
    for pointer in live:
        s.free(pointer)
    s.empty()
    check_books(s, {}, {})
    assert s.taken == 0 and s.cache.blocks == {}


def check_books(s, live, asked):
    """Live blocks lie inside segments and apart from one another; blocks fill segments; statistics are sums."""
    spans = sorted((pointer * 64, pointer * 64 + size) for pointer, size in live.items())
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    bytes_of = [(at, at + block.size) for at, block in s.cache.blocks.items()]
    parts = [(at, at + segment.size) for at, segment in s.cache.segments.items()]
    assert merged(bytes_of) == merged(parts)
    assert sum(end - at for at, end in bytes_of) == sum(end - at for at, end in parts) == s.taken
    stats = aj.memory_stats(s.cache)
    assert stats["allocated_bytes.all.current"] == sum(live.values())
    waiting = [block.requested for block in s.cache.blocks.values() if block.waits]
    assert stats["requested_bytes.all.current"] == sum(asked.values()) + sum(waiting)
    assert (
        stats["allocation.all.current"]
        == len(live)
        == stats["allocation.all.allocated"] - stats["allocation.all.freed"]
    )
    for name in ("allocated_bytes", "reserved_bytes", "inactive_split_bytes"):
        pools = [stats[f"{name}.{pool}.current"] for pool in ("small_pool", "large_pool", "all")]
        assert pools[0] + pools[1] == pools[2] <= stats[f"{name}.all.peak"]


def merged(spans):
    """Return touching spans as one."""
    out = []
    for begin, end in sorted(spans):
        if out and out[-1][1] == begin:
            out[-1][1] = end
        else:
            out.append([begin, end])
    return out


def test_values_written_through_the_cache_come_back(card):
    s = Session(card)
    a = s.alloc(1000)
    data = np.arange(250, dtype=np.float32)
    s.card, out = aj.download(aj.upload(s.card, a, data), a, (250,), np.float32)
    np.testing.assert_array_equal(out, data)
