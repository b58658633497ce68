"""Copies: rows, pinned and pageable host memory, what is refused, and how much memory a data operation touches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime import values
from ascend_jax.runtime.kernels import Argument
from ascend_jax.runtime.layout import Field, HeapWord, Time
from ascend_jax.runtime.memory import transfers
from ascend_jax.runtime.ranges import byte_range

SIZE = 20_000


@pytest.fixture(scope="module")
def kit():
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 17, host_backing_bytes=1 << 17, max_commands=16,
                   max_streams=2, max_events=1, max_blocks=8)  # fmt: skip
    card, a = aj.malloc(card, SIZE)
    card, b = aj.malloc(card, SIZE)
    card, pinned = aj.malloc_host(card, SIZE)
    card, pageable = aj.malloc_pageable(card, SIZE)
    card, stream = aj.create_stream(card)
    data = np.random.default_rng(0).integers(0, 255, SIZE).astype(np.uint8)
    card = aj.host_write(aj.upload(card, a, data), pinned, data[::-1].copy())
    aj.raise_if_error(card)
    return card, {"a": a, "b": b, "pinned": pinned, "pageable": pageable}, stream, data


def read(card, pointer):
    call = aj.host_read if int(pointer) < 0 else aj.download
    return np.asarray(call(card, pointer, (SIZE,), np.uint8)[1])


SHAPES = [(100, 80, 64, 7), (64, 64, 64, 1), (5000, 4097, 4097, 3), (1, 3, 1, 500), (9, 8, 8, 0), (9, 8, 0, 4)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_async", [False, True])
def test_rows_arrive_and_what_lies_between_stays(kit, shape, is_async):
    card, at, stream, _ = kit
    dst_pitch, src_pitch, width, height = shape
    for dst, src in [("b", "a"), ("b", "pinned"), ("pinned", "a")]:
        expected, source = read(card, at[dst]).copy(), read(card, at[src])
        for row in range(height):
            expected[row * dst_pitch : row * dst_pitch + width] = source[row * src_pitch : row * src_pitch + width]
        call = (at[dst], dst_pitch, at[src], src_pitch, width, height)
        if is_async:
            after = aj.synchronize_stream(aj.memcpy2d_async(card, *call, stream), stream)
        else:
            after = aj.memcpy2d(card, *call)
        aj.raise_if_error(after)
        np.testing.assert_array_equal(read(after, at[dst]), expected)


def test_rows_take_as_long_as_their_bytes(kit):
    card, at, _, _ = kit
    rows = aj.memcpy2d(card, at["b"], 100, at["a"], 100, 50, 20)
    plain = aj.memcpy(card, at["b"], at["a"], 1000)
    assert aj.host_time_ns(rows) == aj.host_time_ns(plain)


def test_a_write_between_the_rows_while_they_are_copied_is_kept(kit):
    card, at, stream, data = kit
    card = aj.memcpy2d_async(card, at["b"], 128, at["pinned"], 64, 64, 100, stream)  # host to device
    card = aj.memcpy(card, at["b"], at["a"], 64, dst_offset=64)  # inside the device, at the same time
    card = aj.synchronize_stream(card, stream)
    aj.raise_if_error(card)
    out = read(card, at["b"])
    np.testing.assert_array_equal(out[64:128], data[:64])
    np.testing.assert_array_equal(out[:64], data[::-1][:64])
    np.testing.assert_array_equal(out[128:192], data[::-1][64:128])


def test_refused_copies(kit):
    card, at, stream, _ = kit
    a, b, pinned, code = at["a"], at["b"], at["pinned"], aj.Code
    calls = {
        "null": (lambda: aj.memcpy(card, 0, a, 4), code.INVALID_PARAM),
        "past the end": (lambda: aj.memcpy(card, b, a, SIZE + 1), code.RT_PARAM_INVALID),
        "past the other end": (lambda: aj.memcpy(card, b, a, SIZE, src_offset=1), code.RT_PARAM_INVALID),
        "before the start": (lambda: aj.memcpy(card, b, a, 4, dst_offset=-1), code.RT_PARAM_INVALID),
        "negative": (lambda: aj.memcpy(card, b, a, -1), code.RT_PARAM_INVALID),
        "unknown pointer": (lambda: aj.memcpy(card, 3, a, 4), code.RT_PARAM_INVALID),
        "onto itself, later": (lambda: aj.memcpy(card, a, a, 100, dst_offset=99), code.RT_PARAM_INVALID),
        "onto itself, earlier": (lambda: aj.memcpy(card, a, a, 100, src_offset=99), code.RT_PARAM_INVALID),
        "width above a pitch": (lambda: aj.memcpy2d(card, b, 63, a, 64, 64, 2), code.INVALID_PARAM),
        "negative height": (lambda: aj.memcpy2d(card, b, 64, a, 64, 64, -2), code.INVALID_PARAM),
        "rows past the end": (lambda: aj.memcpy2d(card, b, 4000, a, 64, 64, 6), code.RT_PARAM_INVALID),
        "width of an async copy": (
            lambda: aj.memcpy2d_async(card, b, 6_000_000, a, 6_000_000, 5_000_001, 1, stream),
            code.RT_PARAM_INVALID,
        ),
        "nothing, from nowhere": (lambda: aj.memcpy(card, b, 1 << 20, 0), code.RT_PARAM_INVALID),
        "host to host": (lambda: aj.memcpy_async(card, pinned, at["pageable"], 4, stream), code.FEATURE_NOT_SUPPORT),
    }
    memory = np.asarray(card.memory)
    for name, (call, expected) in calls.items():
        after = call()
        assert (name, int(aj.last_code(after))) == (name, expected)
        np.testing.assert_array_equal(after.memory, memory)
        assert int(after.clock[4]) == int(card.clock[4]), f"{name}: a command was queued"
    same = aj.memcpy(aj.memcpy(aj.memcpy(card, a, a, 50), b, a, 0), a, a, 100, dst_offset=100)
    aj.raise_if_error(same)


def test_pageable_memory_makes_an_asynchronous_copy_wait(kit):
    card, at, stream, data = kit
    queued = aj.memcpy_async(card, at["pinned"], at["a"], SIZE, stream)
    waited = aj.memcpy_async(card, at["pageable"], at["a"], SIZE, stream)
    assert (read(queued, at["pinned"]) != data).any(), "a pinned copy must still be under way"
    np.testing.assert_array_equal(read(waited, at["pageable"]), data)
    end = np.asarray(waited.table.times)[(int(waited.clock[4]) - 1) % 16, [Time.END_HI, Time.END_LO]]
    assert aj.host_time_ns(waited) >= int(end[0]) * 2**30 + int(end[1]) > aj.host_time_ns(queued)
    captured = aj.memcpy_async(aj.capture_begin(card, stream), at["pageable"], at["a"], 64, stream)
    assert int(aj.last_code(captured)) == aj.Code.RT_CAPTURE_MODE_BLOCK_ASYNC
    traced = jax.jit(lambda card: aj.memcpy_async(card, at["pageable"], at["a"], 64, stream, site=1))(card)
    assert int(aj.last_code(traced)) == aj.Code.FEATURE_NOT_SUPPORT


def test_registered_memory_is_pinned(kit):
    card, at, stream, data = kit
    registered, device_pointer = aj.host_register(card, at["pageable"])
    assert int(device_pointer) == int(at["pageable"])
    queued = aj.memcpy_async(registered, at["pageable"], at["a"], SIZE, stream)
    assert (read(queued, at["pageable"]) != data).any()
    code = aj.Code
    for after, expected in [
        (aj.host_register(registered, at["pageable"])[0], code.HOST_MEMORY_ALREADY_REGISTERED),
        (aj.host_register(card, at["pinned"])[0], code.HOST_MEMORY_ALREADY_REGISTERED),
        (aj.host_register(card, at["a"])[0], code.RT_PARAM_INVALID),
        (aj.host_register(card, 0)[0], code.INVALID_PARAM),
        (aj.host_unregister(card, at["pageable"]), code.HOST_MEMORY_NOT_REGISTERED),
        (aj.host_unregister(card, at["pageable"] + 1), code.HOST_MEMORY_NOT_REGISTERED),
        (aj.host_unregister(aj.host_unregister(registered, at["pageable"]), at["pageable"]),
         code.HOST_MEMORY_NOT_REGISTERED),
    ]:  # fmt: skip
        assert int(aj.last_code(after)) == expected
    aj.raise_if_error(aj.host_unregister(registered, at["pageable"]))
    aj.raise_if_error(aj.free_host(registered, at["pageable"]))


SIZES = [16 << 20, 64 << 20, 256 << 20, 1 << 30]


def scratch_bytes(hbm_bytes, due, rows):
    """Return what one data effect needs beyond its donated buffers, and what full copies its program has."""
    total = hbm_bytes + (1 << 16)
    memories = values.Memories(*(jax.ShapeDtypeStruct((total,), jnp.uint8),) * 2)
    compiled = values._apply_in_place.lower((), np.int32(-1), due, np.int32(0), memories).compile()
    analysis = compiled.memory_analysis()
    copies = [line for line in compiled.as_text().splitlines() if f"u8[{total}]" in line and " copy(" in line]
    assert analysis.alias_size_in_bytes >= 2 * total, "the card's bytes must be changed in place"
    return analysis.temp_size_in_bytes, copies


def test_a_data_operation_touches_what_it_moves_and_not_the_device_memory(kit):
    card, at, stream, _ = kit
    card = aj.memcpy_async(card, at["b"], at["a"], SIZE, stream)
    _, due = values.list_due(card)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), due)
    scratch = [scratch_bytes(nbytes, shapes, 16) for nbytes in SIZES]
    assert all(not copies for _, copies in scratch), scratch
    assert len({nbytes for nbytes, _ in scratch}) == 1 and scratch[0][0] < 1 << 20


def test_arrays_touch_what_they_move_and_not_the_device_memory(kit):
    card, at, *_ = kit
    place, array = byte_range(at["a"], 0, SIZE).as_int32(), np.zeros(SIZE, np.uint8)
    argument = Argument((SIZE,), np.dtype(np.uint8))

    def scratch(nbytes):
        total = nbytes + (1 << 16)
        empty = dict.fromkeys(("shadow", "chip"), None) | {"kernels": ()}
        shapes = dataclasses.replace(card, memory=jax.ShapeDtypeStruct((total,), jnp.uint8), **empty)
        store = jax.jit(transfers._store.__wrapped__, donate_argnums=0).lower(shapes, place, array, jnp.int32(0))
        load = jax.jit(lambda *args: transfers._load.__wrapped__(*args, argument=argument)[1])
        programs = store.compile(), load.lower(shapes, place, jnp.int32(0)).compile()
        assert programs[0].memory_analysis().alias_size_in_bytes >= total, "the card's bytes must be changed in place"
        lines = [line for program in programs for line in program.as_text().splitlines()]
        assert not [line for line in lines if f"u8[{total}]" in line and " copy(" in line]
        return [program.memory_analysis().temp_size_in_bytes for program in programs]

    found = [scratch(nbytes) for nbytes in SIZES]
    assert all(each == found[0] for each in found) and max(found[0]) < 1 << 20


@pytest.mark.parametrize("nbytes", SIZES[:2])
def test_a_donated_card_keeps_its_buffers(nbytes):
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=nbytes, max_commands=16, donate=True)
    card, a = aj.malloc(card, SIZE)
    card, b = aj.malloc(card, SIZE)
    card, pinned = aj.malloc_host(card, SIZE)
    buffers = [array.unsafe_buffer_pointer() for array in (card.memory, card.shadow)]
    card = aj.host_write(aj.upload(card, a, np.ones(SIZE, np.uint8)), pinned, np.ones(SIZE, np.uint8))
    card, _ = aj.host_read(card, pinned, (SIZE,), np.uint8)
    card = aj.memcpy(aj.memset(card, a, 7, SIZE), b, a, SIZE)
    card = aj.memcpy2d(card, b, 100, a, 100, 50, 20)
    card, out = aj.download(card, b, (SIZE,), np.uint8)
    aj.raise_if_error(card)
    assert (np.asarray(out) == 7).all()
    assert [array.unsafe_buffer_pointer() for array in (card.memory, card.shadow)] == buffers


def test_commands_of_rows_name_their_bytes(kit):
    card, at, stream, _ = kit
    card = aj.memcpy2d_async(card, at["b"], 100, at["a"], 80, 64, 7, stream)
    row = (int(card.clock[4]) - 1) % 16
    fields, operands = np.asarray(card.table.fields)[row], np.asarray(card.table.operands)[row]
    spans = operands[:2, 2] * 64 + operands[:2, 3]
    assert spans.tolist() == [6 * 100 + 64, 6 * 80 + 64]
    assert fields[Field.MOVED] == 7 and int(card.host.words[HeapWord.COUNT]) == 2
