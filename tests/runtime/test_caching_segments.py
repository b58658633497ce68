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


def test_a_full_table_is_told_from_full_memory(card):
    s = Session(card, pad_bytes=0)
    for _ in range(62):
        s.card, _ = aj.malloc(s.card, 64)
    s.alloc(20 * MIB), s.alloc(20 * MIB)
    with pytest.raises(aj.CacheOutOfMemory, match="max_blocks") as caught:
        s.alloc(20 * MIB)
    assert caught.value.code == aj.Code.HEAP_TABLE_FULL and caught.value.report.free_bytes > 60 << 30
    aj.raise_if_error(caught.value.card)


@pytest.mark.parametrize(("options", "first", "second"), [
    ("garbage_collection_threshold:0.3,per_process_memory_fraction:1.0", 60 * MIB, 64 * MIB),
    ("max_split_size_mb:20", 60 * MIB, 40 * MIB),
    ("", 60 * MIB, 64 * MIB),
])  # fmt: skip
def test_nothing_is_given_back_to_the_device_under_running_work(options, first, second):
    chip = aj.chip("Ascend910B2").replace(hbm_bytes=100 * MIB)
    now = aj.init(chip, hbm_backing_bytes=0, max_commands=16, max_streams=2, max_events=1, max_blocks=16)
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


def test_the_pointer_of_nothing_is_freed_without_effect(card):
    s = Session(card)
    before = s.cache
    s.free(s.alloc(0))
    assert s.cache == before


@pytest.mark.parametrize("nbytes", [1.5, True, "8", None])
def test_a_size_is_a_whole_number(card, nbytes):
    with pytest.raises(TypeError, match="whole number"):
        Session(card).alloc(nbytes)
