"""Values that streams write to memory and wait for, with the memory behind them."""

import jax
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Clock, Field, Kind, Phase, Time
from ascend_jax.runtime.value_marks import words_of
from tests.runtime.cards import MARK_COSTS, SIZES, card_of, code

COSTS = MARK_COSTS | {"host_copy_sync_ns": 10, "h2d_bytes_per_s": 1e9, "d2h_bytes_per_s": 1e9}
GREATER, EQUAL, AND, NOR = range(4)
WRONG = aj.Code.RT_PARAM_INVALID


@pytest.fixture(scope="module")
def lab():
    """Streams 1 and 2, and 64 bytes of flags that are zero."""
    card = card_of(COSTS, SIZES, hbm_backing_bytes=8192)
    card, flag = aj.malloc(card, 64, aj.MallocPolicy.NORMAL_ONLY)
    for stream in (1, 2):
        card, handle = aj.create_stream(card)
        assert int(handle) == stream
    return aj.memset(card, flag, 0, 64), int(flag)


def memory(card, pointer, words=1, offset=0):
    card, back = aj.download(card, pointer, (words, 2), np.uint32, offset=offset)
    assert code(card) == 0
    return [int(low) + (int(high) << 32) for low, high in np.asarray(back)]


def over(card, kind):
    """Return when the marks of a kind were over, in the order of issue; None for those that are not."""
    count = int(card.clock[Clock.ENQUEUED])
    fields, times = np.asarray(card.table.fields)[:count], np.asarray(card.table.times)[:count]
    return [
        int(time[Time.END_LO]) if time[Time.PHASE] >= Phase.DONE else None
        for row, time in zip(fields, times, strict=True)
        if row[Field.KIND] == kind
    ]


@pytest.mark.parametrize("wait_first", [True, False])
def test_a_consumer_gets_the_new_value_in_either_order_of_issue(lab, wait_first):
    card, flag = lab
    card, block = aj.malloc(card, 192, aj.MallocPolicy.NORMAL_ONLY)
    data, out = int(block), int(block) + 2
    card = aj.memset(card, data, 0, 192)

    def consume(card):
        card = aj.value_wait(card, flag, 1, 1, flag=EQUAL)
        return aj.memcpy_async(card, out, data, 64, 1)

    def produce(card):
        return aj.value_write(aj.memset_async(card, data, 7, 64, 2), flag, 1, 2)

    card = produce(consume(card)) if wait_first else consume(produce(card))
    card = aj.synchronize_device(card)
    assert code(card) == 0
    assert memory(card, out) == [0x0707070707070707]
    assert memory(card, flag) == [1]


def test_an_event_does_not_do_what_a_value_does(lab):
    """A wait for an event that is not recorded yet holds nobody up: the consumer copies the old bytes."""
    card, _ = lab
    card, block = aj.malloc(card, 192, aj.MallocPolicy.NORMAL_ONLY)
    card, event = aj.create_event_ex_with_flag(aj.memset(card, block, 0, 192), aj.EventFlag.SYNC)
    card = aj.memcpy_async(aj.stream_wait_event(card, 1, event), block + 2, block, 64, 1)
    card = aj.record_event(aj.memset_async(card, block, 7, 64, 2), event, 2)
    card = aj.synchronize_device(card)
    assert memory(card, int(block)) == [0x0707070707070707]
    assert memory(card, int(block) + 2) == [0]


def test_a_write_is_visible_when_its_stream_gets_there(lab):
    card, flag = lab
    start = aj.host_time_ns(card)
    card = aj.memset_async(card, flag, 9, 48, 1)  # issued 10 later, lasts 148
    card = aj.value_write(card, flag, 0x0102030405060708, 1, offset=8)
    card = aj.value_wait(card, flag, 0x0102030405060708, 2, flag=EQUAL, offset=8)
    card = aj.synchronize_device(card)
    assert over(card, Kind.VALUE_WRITE) == over(card, Kind.VALUE_WAIT) == [start + 10 + 148]
    assert memory(card, flag, 3) == [0x0909090909090909, 0x0102030405060708, 0x0909090909090909]


TOP = 2**63
CASES = [  # memory, value, flag, whether the wait passes
    (5, 5, GREATER, True),
    (6, 5, GREATER, True),
    (4, 5, GREATER, False),
    (-1, 0, GREATER, False),
    (0, -1, GREATER, True),
    (2**32, 2**32 - 1, GREATER, True),
    (2**32 - 1, 2**32, GREATER, False),
    (2**32 + 1, 1, GREATER, True),
    (TOP, TOP - 1, GREATER, True),  # the difference is 1, whatever the signs
    (TOP - 1, -1, GREATER, False),  # the difference is 2**63, negative
    (2**64 - 1, -1, EQUAL, True),
    (2**32, 0, EQUAL, False),
    (1, 2**32 + 1, EQUAL, False),
    (0b1100, 0b0100, AND, True),
    (0b1100, 0b0011, AND, False),
    (2**40, 2**40, AND, True),
    (2**40, 2**8, AND, False),
    (2**64 - 1, 0, NOR, False),
    (2**63 - 1, TOP, NOR, False),
    (2**63 - 1, 0, NOR, True),
    (0, 2**64 - 2, NOR, True),
    (2**32 - 1, 2**64 - 2**32, NOR, False),
]


@pytest.mark.parametrize("held, value, flag, passes", CASES)
def test_conditions_on_64_bits(lab, held, value, flag, passes):
    card, pointer = lab
    card = aj.upload(card, pointer, np.array([held % 2**64], np.uint64), offset=16)
    card = aj.value_wait(card, pointer, value, 1, flag=flag, offset=16)
    assert code(card) == 0
    assert code(aj.synchronize_stream(card, 1)) == (0 if passes else aj.Code.DEADLOCK)


def test_what_memory_holds_counts_while_nothing_is_queued_on_the_address(lab):
    card, flag = lab
    card = aj.synchronize_device(aj.value_write(card, flag, 1, 1))
    card = aj.memset(card, flag, 0, 8)  # the flag is used again
    card = aj.value_wait(card, flag, 1, 2)
    assert code(aj.synchronize_stream(card, 2)) == aj.Code.DEADLOCK
    unseen = aj.upload(card, flag, np.array([1], np.uint64))
    unseen = aj.value_wait(unseen, flag, 1, 0)  # another call on it changes nothing while the first one waits
    assert code(aj.synchronize_stream(unseen, 2)) == aj.Code.DEADLOCK
    card = aj.synchronize_device(aj.value_write(card, flag, 3, 1))
    assert code(card) == 0


def test_a_later_copy_does_not_wait(lab):
    """A value that a copy will write is not there yet when the call is made."""
    card, flag = lab
    card = aj.memset_async(card, flag, 255, 8, 1)
    card = aj.value_wait(card, flag, -1, 2, flag=EQUAL)
    assert code(aj.synchronize_stream(card, 2)) == aj.Code.DEADLOCK


def test_codes_of_addresses(lab):
    card, flag = lab
    card, host = aj.malloc_host(card, 64)
    for call in (aj.value_write, aj.value_wait):
        for pointer, offset, wanted in (
            (0, 0, aj.Code.INVALID_PARAM),
            (host, 0, WRONG),
            (flag, 4, aj.Code.RT_ADDR_UNALIGNED),
            (flag, 1, aj.Code.RT_ADDR_UNALIGNED),
            (flag, 60, WRONG),
            (flag, 64, WRONG),
            (flag, -8, WRONG),
            (flag + 500, 0, WRONG),
        ):
            after = call(card, pointer, 1, 1, offset=offset)
            assert code(after) == wanted, (call, pointer, offset)
            np.testing.assert_array_equal(after.values, card.values)
            np.testing.assert_array_equal(after.cells, card.cells)
            assert int(after.clock[Clock.ENQUEUED]) == int(card.clock[Clock.ENQUEUED])
        assert code(call(card, flag, 1, 3)) == aj.Code.RT_STREAM_CONTEXT
        assert code(call(card, flag, 1, 1, offset=56)) == 0
    for wrong in (-1, 4, 2**31 - 1):
        assert code(aj.value_wait(card, flag, 1, 1, flag=wrong)) == WRONG


def test_an_address_beyond_the_real_bytes(lab):
    card, _ = lab
    card, far = aj.malloc(card, 8192, aj.MallocPolicy.NORMAL_ONLY)
    assert code(aj.value_write(card, far, 1, 1)) == 0
    assert code(aj.value_write(card, far, 1, 1, offset=4096)) == aj.Code.NO_BYTES_BEHIND


def test_slots_run_out(lab):
    card, flag = lab
    for offset in (0, 8, 0, 8):
        card = aj.value_wait(card, flag, 1, 1, offset=offset)
        assert code(card) == 0
    assert code(aj.value_write(card, flag, 1, 1, offset=16)) == aj.Code.OBJECT_TABLE_FULL
    assert code(aj.value_wait(card, flag, 1, 1, offset=16)) == aj.Code.OBJECT_TABLE_FULL


def test_one_address_by_two_names_is_one_slot(lab):
    card, block = aj.malloc(lab[0], 192, aj.MallocPolicy.NORMAL_ONLY)
    card = aj.value_wait(aj.memset(card, block, 0, 192), block, 1, 2, offset=128)
    card = aj.synchronize_device(aj.value_write(card, block + 2, 1, 1))
    assert code(card) == 0


def test_a_card_without_bytes_keeps_what_was_written():
    card = card_of(COSTS, SIZES)
    card, flag = aj.malloc(card, 64)
    card, stream = aj.create_stream(card)
    card = aj.synchronize_device(aj.value_write(card, flag, 6, 0))
    assert code(aj.synchronize_stream(aj.value_wait(card, flag, 6, stream, flag=EQUAL), stream)) == 0
    assert code(aj.synchronize_stream(aj.value_wait(card, flag, 7, stream), stream)) == aj.Code.DEADLOCK


def test_addresses_that_nobody_uses_give_their_slot_to_others(lab):
    card, flag = lab
    for number in range(5):  # of two slots
        card = aj.synchronize_device(aj.value_write(card, flag, number + 1, 1, offset=8 * number))
        assert code(card) == 0
    assert memory(card, flag, 5) == [1, 2, 3, 4, 5]
    card = aj.value_wait(card, flag, 1, 1, flag=EQUAL)  # memory has kept what the slot no longer has
    assert code(aj.synchronize_stream(card, 1)) == 0


def test_without_bytes_an_address_keeps_its_slot_until_its_block_is_gone():
    card = card_of(COSTS, SIZES)
    card, flag = aj.malloc(card, 64)
    card, other = aj.malloc(card, 64)
    for number in range(2):
        card = aj.synchronize_device(aj.value_write(card, flag, 5, 0, offset=8 * number))
    assert code(aj.value_write(card, flag, 5, 0, offset=16)) == aj.Code.OBJECT_TABLE_FULL
    card = aj.value_wait(aj.free(card, flag), other, 5, 0, flag=EQUAL)
    assert code(card) == 0
    assert code(aj.synchronize_device(card)) == aj.Code.DEADLOCK  # nothing is left of what was there


def test_words_of_values():
    wanted = {
        0: (0, 0), 1: (0, 1), -1: (-1, -1), 2**31: (0, -(2**31)), 2**32 - 1: (0, -1), 2**32: (1, 0),
        2**63: (-(2**31), 0), 2**64 - 1: (-1, -1), -(2**63): (-(2**31), 0), -(2**32): (-1, 0),
    }  # fmt: skip
    for value, words in wanted.items():
        assert words_of(value) == words, value
    assert words_of(np.array(-5)) == words_of(np.int8(-5)) == words_of(-5)
    arrays = {"int32": (-5, (-1, -5)), "uint32": (2**32 - 5, (0, -5)), "int8": (-1, (-1, -1)), "uint8": (255, (0, 255))}
    for dtype, (value, words) in arrays.items():
        assert tuple(int(x) for x in words_of(jax.numpy.array(value, dtype))) == words, dtype
    for wrong, error in ((2**64, ValueError), (-(2**63) - 1, ValueError), (1.0, TypeError), (True, TypeError)):
        with pytest.raises(error):
            words_of(wrong)
    with pytest.raises(TypeError):
        words_of(jax.numpy.float32(1))
