"""A core's memories as allocators: alignment, turns, what does not fit, and sequences against marked bytes."""

import random

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.chip import LEVELS, OnChipError

SIZES = {"L1": 512 << 10, "L0A": 64 << 10, "L0B": 64 << 10, "L0C": 128 << 10, "UB": 192 << 10, "L2": 192 << 20}
ALIGN = {"L1": 32, "UB": 32, "L0A": 512, "L0B": 512, "L0C": 512, "L2": 512}


@pytest.fixture
def memory():
    return aj.core_memory(aj.chip("Ascend910B2"))


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_holds_what_the_chip_has_and_not_a_byte_more(memory, level):
    full, buffer = aj.alloc_local(memory, level, (SIZES[level],), np.uint8, name="all")
    assert full.free_bytes(level) == 0 and buffer.turn(0).offset_bytes == 0
    with pytest.raises(OnChipError) as caught:
        aj.alloc_local(memory, level, (SIZES[level] + 1,), np.uint8, name="more")
    text = str(caught.value)
    assert level in text and f"{SIZES[level] + ALIGN[level]} bytes" in text and f"{SIZES[level]} are free" in text
    assert aj.free_local(full, buffer) == memory


def test_two_tensors_take_turns(memory):
    memory, buffer = aj.alloc_local(memory, "UB", (100, 3), np.float16, name="x", copies=2)
    assert [buffer.turn(step).offset_bytes for step in range(4)] == [0, 608, 0, 608]
    memory, other = aj.alloc_local(memory, "UB", (1,), np.int8)
    assert other.turn(7).offset_bytes == 1216
    with pytest.raises(OnChipError, match=r"big\[1\]"):
        aj.alloc_local(memory, "UB", (100 << 10,), np.uint8, name="big", copies=2)


def test_rows_of_tensors(memory):
    _, buffer = aj.alloc_local(memory, "L1", (64, 16), np.float16)
    part = buffer.turn(0).rows(8, 4)
    assert (part.offset_bytes, part.nbytes, part.shape) == (256, 128, (4, 16))
    whole = aj.GlobalTensor(32768, (64, 16), np.dtype(np.float16), offset_bytes=2)
    assert (whole.rows(8, 4).offset_bytes, whole.rows(8, 4).nbytes, whole.nbytes) == (258, 128, 2048)
    for start, count in [(-1, 2), (63, 2), (0, -1)]:
        for tensor in (whole, buffer.turn(0)):
            with pytest.raises(IndexError, match="first axis"):
                tensor.rows(start, count)


@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_equals_bytes_marked_one_by_one(memory, seed):
    rng, marks, live = random.Random(seed), np.zeros(SIZES["L0A"] // 512, bool), []
    for _ in range(200):
        if live and rng.random() < 0.45:
            buffer, first, units = live.pop(rng.randrange(len(live)))
            memory = aj.free_local(memory, buffer)
            marks[first : first + units] = False
        else:
            nbytes = rng.randrange(0, 12_000)
            units = max(1, -(-nbytes // 512))
            places = [at for at in range(len(marks) - units + 1) if not marks[at : at + units].any()]
            if not places:
                with pytest.raises(OnChipError):
                    aj.alloc_local(memory, "L0A", (nbytes,), np.uint8)
                continue
            memory, buffer = aj.alloc_local(memory, "L0A", (nbytes,), np.uint8)
            assert buffer.turn(0).offset_bytes == places[0] * 512
            marks[places[0] : places[0] + units] = True
            live.append((buffer, places[0], units))
        assert memory.free_bytes("L0A") == (~marks).sum() * 512


def test_mistakes(memory):
    taken, buffer = aj.alloc_local(memory, "UB", (4,), np.uint8)
    with pytest.raises(ValueError, match="not allocated"):
        aj.free_local(aj.free_local(taken, buffer), buffer)
    for level, shape, copies in [("L3", (1,), 1), ("UB", (-1,), 1), ("UB", (1,), 0)]:
        with pytest.raises(ValueError, match="must be"):
            aj.alloc_local(memory, level, shape, np.uint8, copies=copies)


def test_a_handle_that_was_given_back_frees_nothing_newer(memory):
    memory, old = aj.alloc_local(memory, "UB", (8,), np.float32, name="x")
    memory = aj.free_local(memory, old)
    for extent in (8, 100):
        newer, _ = aj.alloc_local(memory, "UB", (extent,), np.float32, name="x")
        with pytest.raises(ValueError, match="not allocated"):
            aj.free_local(newer, old)
