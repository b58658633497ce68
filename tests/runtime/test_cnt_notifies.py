"""Counting notifies: what a record makes of the number, which waits it lets go, and every code."""

import dataclasses

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import NONE, Clock
from tests.runtime.cards import HBM, code

WRONG, NO_SUPPORT = aj.Code.RT_PARAM_INVALID, aj.Code.FEATURE_NOT_SUPPORT
SET, ADD = aj.CntRecordMode.SET_VALUE, aj.CntRecordMode.ADD
EQUAL, BIGGER, LEAST = aj.CntWaitMode.EQUAL, aj.CntWaitMode.BIGGER, aj.CntWaitMode.BIGGER_OR_EQUAL
MOST = 2**32 - 1


@pytest.fixture(scope="module")
def card(two_streams):
    """Counting notify 0 on a card with streams 1 and 2; the host stands at 40."""
    card, notify = aj.create_cnt_notify(two_streams)
    assert (int(notify), aj.host_time_ns(card)) == (0, 40)
    return card


def ends(card):
    """Return (kind, when it was over) of the marks; -1 for one that waits."""
    log = aj.insight.timeline(card)
    return [(kind.split()[1], int(end)) for kind, end in zip(log.kind, log.end_ns, strict=True) if "notify" in kind]


def test_a_wait_goes_on_when_enough_has_been_added(card):
    card = aj.wait_cnt_notify(card, 0, 2, 2, mode=LEAST)  # issued at 50
    card = aj.record_cnt_notify(card, 0, 1, 1, mode=ADD)  # 60
    card = aj.memset_async(card, HBM, 0, 900, 1)  # 70 to 1070
    card = aj.record_cnt_notify(card, 0, 1, 1, mode=ADD)
    card = aj.synchronize_device(card)
    assert code(card) == 0
    assert ends(card) == [("wait", 1070), ("record", 60), ("record", 1070)]


@pytest.mark.parametrize(
    "held, mode, value, passes",
    [
        (5, EQUAL, 5, True), (6, EQUAL, 5, False), (5, LEAST, 5, True), (4, LEAST, 5, False), (5, BIGGER, 5, False),
        (6, BIGGER, 5, True), (MOST, EQUAL, MOST, True), (MOST, LEAST, 2**31, True), (2**31 - 1, LEAST, 2**31, False),
        (2**31, BIGGER, 2**31 - 1, True), (MOST, BIGGER, MOST, False), (MOST - 1, EQUAL, MOST, False),
    ],
)  # fmt: skip
def test_conditions_on_32_bits_without_sign(card, held, mode, value, passes):
    card = aj.record_cnt_notify(card, 0, held, 1)
    card = aj.wait_cnt_notify(aj.host_work(card, 100), 0, value, 2, mode=mode)
    assert code(aj.synchronize_stream(card, 2)) == (0 if passes else aj.Code.DEADLOCK)


def test_a_record_sets_or_adds_and_a_wait_may_clear(card):
    card = aj.record_cnt_notify(aj.record_cnt_notify(card, 0, 7, 1), 0, 3, 1)  # set twice: 3
    card = aj.record_cnt_notify(card, 0, 4, 1, mode=ADD)
    card = aj.synchronize_device(aj.wait_cnt_notify(card, 0, 7, 1))
    kept = aj.wait_cnt_notify(card, 0, 7, 2, clears=True)
    card = aj.synchronize_device(kept)
    assert code(card) == 0
    assert code(aj.synchronize_device(aj.wait_cnt_notify(card, 0, 1, 2, mode=LEAST))) == aj.Code.DEADLOCK
    unsigned = aj.record_cnt_notify(card, 0, np.uint32(MOST), 1)
    assert code(aj.synchronize_device(aj.wait_cnt_notify(unsigned, 0, MOST, 2))) == 0


def test_a_reset_comes_in_the_order_of_its_stream(card):
    card = aj.reset_cnt_notify(aj.record_cnt_notify(card, 0, 2, 1), 0, 1)
    card = aj.record_cnt_notify(card, 0, 2, 1, mode=ADD)
    card = aj.wait_cnt_notify(card, 0, 2, 1)
    assert code(aj.synchronize_stream(card, 1)) == 0


def test_a_timeout_fails_the_stream_and_clears_nothing(card):
    card = aj.record_cnt_notify(card, 0, 1, 1)
    card = aj.wait_cnt_notify(card, 0, 2, 2, clears=True, timeout_s=2)  # issued at 60
    card = aj.synchronize_stream(card, 2)
    assert code(card) == aj.Code.RT_WAIT_TIMEOUT
    assert aj.host_time_ns(card) == 60 + 2 * 10**9
    assert code(aj.synchronize_stream(aj.wait_cnt_notify(card, 0, 1, 1), 1)) == 0


def test_bad_input_queues_nothing(card):
    calls = {
        WRONG: [
            *(aj.record_cnt_notify(card, 0, value, 1) for value in (0, 2**32, -1)),
            *(aj.record_cnt_notify(card, 0, 1, 1, mode=mode) for mode in (3, 5, -1)),
            *(aj.wait_cnt_notify(card, 0, value, 1) for value in (0, 2**32, -1)),
            *(aj.wait_cnt_notify(card, 0, 1, 1, mode=mode) for mode in (5, -1)),
            aj.wait_cnt_notify(card, 0, 1, 1, timeout_s=-1),
            aj.record_cnt_notify(card, 1, 1, 1),
            aj.wait_cnt_notify(card, 1, 1, 1),
            aj.reset_cnt_notify(card, 1, 1),
        ],
        NO_SUPPORT: [
            *(aj.record_cnt_notify(card, 0, 1, 1, mode=mode) for mode in (2, 4)),
            *(aj.wait_cnt_notify(card, 0, 1, 1, mode=mode) for mode in (0, 4)),
        ],
        aj.Code.RT_STREAM_CONTEXT: [
            aj.record_cnt_notify(card, 0, 1, 4),
            aj.wait_cnt_notify(card, 0, 1, 4),
            aj.reset_cnt_notify(card, 0, 4),
        ],
    }
    for wanted, afters in calls.items():
        assert {code(after) for after in afters} == {wanted}
        assert {int(after.clock[Clock.ENQUEUED]) for after in afters} == {0}
    with pytest.raises(TypeError, match="whole number"):
        aj.record_cnt_notify(card, 0, 1.5, 1)


def test_only_the_950_has_them(card):
    """CANN's manual lists them as supported on the 950 and as not supported on every other product."""
    products = ("Ascend950PR_9599", "Ascend950DT_9581", "Ascend910B2", "Ascend910_9392", "Ascend310P3", "Ascend910A",
                "Ascend310B1")  # fmt: skip
    assert [int(aj.chip(product)["has_counting_notifies"]) for product in products] == [1, 1, 0, 0, 0, 0, 0]
    without = dataclasses.replace(card, chip=card.chip.replace(has_counting_notifies=0))
    created, none = aj.create_cnt_notify(without)
    assert (code(created), int(none)) == (NO_SUPPORT, NONE)
    assert code(aj.create_cnt_notify(without, 7)[0]) == NO_SUPPORT  # whatever else is wrong
    refused = [
        *(aj.record_cnt_notify(without, notify, 0, stream) for notify, stream in ((0, 1), (9, 9))),
        *(aj.wait_cnt_notify(without, notify, 1, stream, mode=0) for notify, stream in ((0, 1), (9, 9))),
        *(aj.reset_cnt_notify(without, notify, stream) for notify, stream in ((0, 1), (9, 9))),
        aj.destroy_cnt_notify(without, 0),
        aj.cnt_notify_id(without, 0)[0],
    ]
    assert {code(after) for after in refused} == {NO_SUPPORT}
    assert {int(after.clock[Clock.ENQUEUED]) for after in refused} == {0}
    np.testing.assert_array_equal(refused[-2].events, card.events)
    assert int(aj.create_notify(without)[1]) == 1  # plain ones are there


def test_they_share_the_slots_of_notifies_and_nothing_else(card):
    card, plain = aj.create_notify(card)
    assert int(plain) == 1
    for create in (aj.create_cnt_notify, aj.create_notify):
        full, none = create(card)
        assert (int(none), code(full)) == (NONE, aj.Code.NO_NOTIFY_RESOURCE)
    assert {code(aj.create_cnt_notify(card, flag)[0]) for flag in (1, 2)} == {WRONG}
    for after in (
        aj.record_notify(card, 0, 1),
        aj.wait_and_reset_notify(card, 0, 1),
        aj.notify_batch_reset(card, [0]),
        aj.destroy_notify(card, 0),
        aj.record_cnt_notify(card, plain, 1, 1),
        aj.destroy_cnt_notify(card, plain),
        aj.cnt_notify_id(card, plain)[0],
    ):
        assert code(after) == WRONG
    number = aj.cnt_notify_id(card, 0)
    assert (code(number[0]), int(number[1])) == (0, 0)
    card, again = aj.create_cnt_notify(aj.destroy_cnt_notify(card, 0))
    assert int(again) == 1 << 18
    assert code(aj.record_cnt_notify(card, 0, 1, 1)) == WRONG
