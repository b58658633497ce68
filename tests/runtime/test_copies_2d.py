"""Copies of rows against plain Python: sizes that pass int32, rows between rows, and pageable memory at an offset."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Time
from ascend_jax.runtime.ranges import Range, product, rows_meet, rows_range

MIB = 1 << 20


@pytest.fixture(scope="module")
def kit():
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=8 * MIB, host_backing_bytes=1 << 17, max_commands=16,
                   max_streams=2, max_events=1, max_blocks=8)  # fmt: skip
    pointers = []
    for _ in range(3):
        card, pointer = aj.malloc(card, MIB)
        card = aj.upload(card, pointer, np.random.default_rng(len(pointers)).integers(0, 255, MIB).astype(np.uint8))
        pointers.append(pointer)
    aj.raise_if_error(card)
    return card, pointers


# (pitches, width, height) whose span passes 2**31 bytes; some wrap to a length that would fit a block
HUGE = [(1 << 20, 64, 4097), (1 << 20, 64, 4096), (1 << 30, 64, 5), (1 << 20, 1 << 20, 4096), (2**31 - 1, 1, 2**31 - 1),
        (65536, 65536, 65537)]  # fmt: skip


@pytest.mark.parametrize("kind", [int, np.int32, jnp.int32])
def test_a_span_past_int32_is_refused_and_changes_nothing(kit, kind):
    card, (a, b, _) = kit
    memory = np.asarray(card.memory)
    for pitch, width, height in HUGE:
        after = aj.memcpy2d(card, a, kind(pitch), b, kind(pitch), kind(width), kind(height))
        assert (pitch, int(aj.last_code(after))) == (pitch, aj.Code.RT_PARAM_INVALID)
        np.testing.assert_array_equal(after.memory, memory)


def test_shapes_that_are_none_are_refused(kit):
    card, (a, b, c) = kit
    wrong = {(-64, -64, 0, 1): 100000, (64, -64, 0, 0): 100000, (64, 64, 65, 1): 100000, (64, 64, -1, 1): 100000,
             (64, 64, 1, -1): 100000, (0, 0, 0, 5): 0, (64, 64, 0, 2**20): 0, (MIB, MIB, 1, 2): 107000,
             (MIB, MIB, 1, 1): 0}  # fmt: skip
    for (dst_pitch, src_pitch, width, height), code in wrong.items():
        after = aj.memcpy2d(card, a, dst_pitch, b, src_pitch, width, height)
        assert (dst_pitch, width, height, int(aj.last_code(after))) == (dst_pitch, width, height, code)
    gone = aj.free(card, c)
    for dst, src in ((c, b), (a, c), (0, b), (a, 0)):
        assert int(aj.last_code(aj.memcpy2d(gone, dst, 64, src, 64, 1, 1))) == (107000 if c in (dst, src) else 100000)
    with pytest.raises(TypeError, match=r"width = 1.5"):
        aj.memcpy2d(card, a, 64, b, 64, 1.5, 1)


def test_a_span_past_int32_is_refused_under_jit(kit):
    card, (a, b, _) = kit

    def status(pitch, width, height):
        return aj.memcpy2d(card, a, pitch, b, pitch, width, height, site=1).status

    copy = jax.jit(status, compiler_options=aj.QUICK_TO_COMPILE)
    for shape in HUGE:
        traced = copy(*(jnp.int32(number) for number in shape))
        eager = aj.memcpy2d(card, a, shape[0], b, *shape, site=1).status
        np.testing.assert_array_equal(traced, eager)


def test_products_and_spans_are_those_of_python():
    numbers = [0, 1, 2, 63, 64, 65, 4097, 65537, (1 << 20) + 3, 5_242_880, 2**30 + 1, 2**31 - 1]
    pairs = list(itertools.product(numbers, numbers))
    ones, others = (jnp.array(column, jnp.int32) for column in zip(*pairs, strict=True))
    whole, rest = product(ones, others)
    span = rows_range(1, others, jnp.minimum(others, 77), ones)
    for row, (one, other) in enumerate(pairs):
        if int(whole[row]) >= 0:
            assert int(whole[row]) * 64 + int(rest[row]) == one * other
        else:
            assert one * other > 120 << 30
        width = min(other, 77)
        expected = (one - 1) * other + width if one and width else 0
        if expected < 120 << 30:
            assert int(span.whole[row]) * 64 + int(span.rest[row]) == expected
        else:
            assert int(span.whole[row]) < 0 or int(span.whole[row]) * 64 + int(span.rest[row]) == expected


def test_rows_meet_as_sets_of_bytes_do():
    rng = np.random.default_rng(0)
    cases = []
    for _ in range(4000):
        pitch = int(rng.integers(1, 200))
        cases.append((int(rng.integers(0, 900)), int(rng.integers(0, 900)), pitch, int(rng.integers(0, pitch + 1)),
                      int(rng.integers(0, 6))))  # fmt: skip
    one, other, pitch, width, height = (jnp.array(column, jnp.int32) for column in zip(*cases, strict=True))

    def at(address):
        span = rows_range(jnp.int32(100), pitch, width, height)
        return Range(100 + address // 64, address % 64, span.whole, span.rest).as_int32()

    got = np.asarray(rows_meet(at(one), at(other), pitch, width, height))
    for row, (first, second, step, wide, count) in enumerate(cases):
        sets = [{start + i * step + j for i in range(count) for j in range(wide)} for start in (first, second)]
        assert bool(got[row]) == bool(sets[0] & sets[1]), cases[row]


def test_rows_between_rows_and_rows_on_themselves(kit):
    card, (a, _, _) = kit
    memory = np.asarray(card.memory)
    between = aj.memcpy2d(card, a + 1, 128, a, 128, 64, 50)
    aj.raise_if_error(between)
    _, out = aj.download(between, a, (6400,), np.uint8)
    rows = np.asarray(out).reshape(50, 2, 64)
    np.testing.assert_array_equal(rows[:, 0], rows[:, 1])
    for call, code in [
        ((a, 16, a, 8, 8, 4), aj.Code.RT_PARAM_INVALID),  # the second row lands on the third
        ((a, 16, a, 8, 8, 1), aj.Code.SUCCESS),
        ((a, 16, a, 16, 8, 4), aj.Code.SUCCESS),
        ((a + 1, 128, a, 128, 65, 4), aj.Code.RT_PARAM_INVALID),
    ]:
        after = aj.memcpy2d(card, *call)
        assert int(aj.last_code(after)) == code, call
        np.testing.assert_array_equal(after.memory, memory)


def test_rows_inside_the_device_need_a_product_that_copies_them():
    card = aj.init(aj.chip("Ascend910A"), hbm_backing_bytes=0, host_backing_bytes=1 << 12, max_commands=4)
    card, a = aj.malloc(card, 4096)
    assert int(aj.last_code(aj.memcpy2d(card, a, 64, a + 8, 64, 64, 2))) == aj.Code.FEATURE_NOT_SUPPORT
    timing = aj.init(aj.chip("Ascend910A"), hbm_backing_bytes=0, host_backing_bytes=0, max_commands=4)
    timing, b = aj.malloc(timing, 4096)
    assert int(aj.last_code(aj.memcpy2d(timing, b, 64, b + 8, 64, 64, 2))) == aj.Code.FEATURE_NOT_SUPPORT


@pytest.mark.parametrize("value", [2**31 + 5, 5 - 256, 2**64 + 5, 5])
def test_of_a_fill_value_the_low_byte_counts(kit, value):
    card, (a, _, _) = kit
    _, out = aj.download(aj.memset(card, a, value, 4), a, (4,), np.uint8)
    assert np.asarray(out).tolist() == [5] * 4


def test_pageable_memory_at_an_offset_waits(kit):
    card, (a, _, _) = kit
    card, pinned = aj.malloc_host(card, 4096)
    card, pageable = aj.malloc_pageable(card, 4096)
    card, stream = aj.create_stream(card)
    distance = (int(pageable) - int(pinned)) * 64
    assert distance > 0
    for after in (
        aj.memcpy_async(card, a, pinned, 64, stream, src_offset=distance),
        aj.memcpy_async(card, pinned, a, 64, stream, dst_offset=distance),
        aj.memcpy2d_async(card, a, 64, pageable, 64, 64, 4, stream),
    ):
        aj.raise_if_error(after)
        end = np.asarray(after.table.times)[(int(after.clock[4]) - 1) % 16]
        assert aj.host_time_ns(after) >= int(end[Time.END_LO]) > 0
