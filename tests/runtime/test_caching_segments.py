"""The caching allocator and the device: what it gives back, where it grows, and how it goes on after it ran out."""

import pytest

import ascend_jax as aj
from tests.runtime.test_caching_allocator import MIB, Session


@pytest.fixture(scope="module")
def card():
    return aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 16, max_commands=64, max_streams=3, max_events=2,
                   max_blocks=64)  # fmt: skip


def test_a_donated_card_goes_on_after_it_ran_out():
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, max_commands=16, max_blocks=16, donate=True)
    s = Session(card, pad_bytes=0)
    with pytest.raises(aj.CacheOutOfMemory) as caught:
        s.alloc(70 << 30)
    s.cache, s.card = caught.value.cache, caught.value.card
    assert s.alloc(1 << 30) and aj.memory_stats(s.cache)["num_ooms"] == 1
    aj.raise_if_error(s.card)


def test_a_full_table_is_told_from_full_memory():
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, max_commands=16, max_blocks=2)
    s = Session(card, pad_bytes=0)
    s.alloc(20 * MIB), s.alloc(20 * MIB)
    with pytest.raises(aj.CacheOutOfMemory, match="max_blocks") as caught:
        s.alloc(20 * MIB)
    assert caught.value.code == aj.Code.HEAP_TABLE_FULL and caught.value.report.free_bytes > 60 << 30
    aj.raise_if_error(caught.value.card)


@pytest.mark.parametrize(("options", "first", "second"), [
    ("garbage_collection_threshold:0.3", 60 * MIB, 64 * MIB), ("max_split_size_mb:20", 60 * MIB, 40 * MIB),
    ("", 60 * MIB, 64 * MIB),
])  # fmt: skip
def test_nothing_is_given_back_to_the_device_under_running_work(options, first, second):
    chip = aj.chip("Ascend910B2").replace(hbm_bytes=100 * MIB)
    now = aj.init(chip, hbm_backing_bytes=98 * MIB, host_backing_bytes=0, max_commands=64, max_blocks=16)
    now, side = aj.create_stream(now)
    s = Session(now, options, pad_bytes=0)
    a = s.alloc(first)
    for _ in range(8):
        s.card = aj.memset_async(s.card, a, 1, first, 0)
    s.free(a)
    s.alloc(second, side)
    s.card = aj.synchronize_device(s.card)
    assert aj.freed_in_use(s.card) == []
    aj.raise_if_error(s.card)


def test_an_expandable_segment_grows_where_it_ends_and_not_in_a_lower_hole(card):
    s = Session(card, "expandable_segments:True", pad_bytes=0)
    s.card, plain = aj.malloc(s.card, 39 * MIB)
    a = s.alloc(20 * MIB)
    s.free(a)
    s.card = aj.free(s.card, plain)
    assert s.alloc(30 * MIB) == a and s.mib("reserved_bytes") == 40


def test_a_block_over_what_a_segment_grew_by_is_one_range():
    now = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=48 * MIB, max_commands=16, max_blocks=8)
    s = Session(now, "expandable_segments:True", pad_bytes=0)
    s.free(s.alloc(20 * MIB))
    a = s.alloc(30 * MIB)
    s.card, out = aj.download(aj.memset(s.card, a, 7, 30 * MIB), a, (30 * MIB,), "uint8")
    aj.raise_if_error(s.card)
    assert out.min() == out.max() == 7


def test_an_expandable_segment_gives_back_whole_chunks_around_what_is_used(card):
    s = Session(card, "expandable_segments:True", pad_bytes=0)
    a, b, c = s.alloc(30 * MIB), s.alloc(5 * MIB), s.alloc(25 * MIB)
    s.free(a), s.free(c)
    s.empty()
    assert [(one.size // MIB, one.is_small) for one in s.cache.segments.values()] == [(20, False)]
    assert s.mib("reserved_bytes") == 20 and s.taken == 20 * MIB
    stats = aj.memory_stats(s.cache)
    assert (stats["segment.all.peak"], stats["inactive_split.all.peak"], stats["num_device_free"]) == (0, 0, 2)
    codes = [int(aj.last_code(aj.memset(s.card, pointer, 1, 64))) for pointer in (a, b)]
    assert codes == [aj.Code.RT_PARAM_INVALID, aj.Code.NO_BYTES_BEHIND], "only the second is still allocated"


def test_an_expandable_segment_needs_one_free_run(card):
    chip = aj.chip("Ascend910B2").replace(hbm_bytes=102 * MIB)
    s = Session(aj.init(chip, hbm_backing_bytes=0, max_commands=16, max_blocks=16), "expandable_segments:True", 0)
    s.card, low = aj.malloc_align32(s.card, 40 * MIB)
    s.card, _ = aj.malloc_align32(s.card, 20 * MIB)
    s.card = aj.free(s.card, low)
    with pytest.raises(aj.CacheOutOfMemory) as caught:  # two runs of 40 MiB; on a card their pages would be mapped
        s.alloc(60 * MIB)
    assert (caught.value.report.free_bytes, caught.value.report.largest_free_bytes) == (80 * MIB, 40 * MIB)


def test_the_pointer_of_nothing_is_freed_without_effect(card):
    s = Session(card)
    before = s.cache
    s.free(s.alloc(0))
    assert s.cache == before


@pytest.mark.parametrize("nbytes", [1.5, True, "8", None])
def test_a_size_is_a_whole_number(card, nbytes):
    with pytest.raises(TypeError, match="whole number"):
        Session(card).alloc(nbytes)
