"""Callbacks: handed to a thread by a stream, run by ``process_report``, in simulated time."""

import dataclasses

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.commands import taken_rows
from ascend_jax.runtime.layout import NONE, Clock, Field, Kind, Phase, Time
from tests.runtime.cards import MARK_COSTS, SIZES, card_of, code, fill
from tests.runtime.refusals import refuse

WRONG = aj.Code.RT_PARAM_INVALID
WORKER = 1


@pytest.fixture(scope="module")
def card(two_streams):
    """Streams 1 and 2, both served by thread 0, and a second thread; both stand at 30."""
    card = two_streams
    for stream in (1, 2):
        card = aj.subscribe_report(card, 0, stream)
        assert code(card) == 0
    card, worker = aj.create_thread(card)
    assert (int(worker), aj.host_time_ns(card)) == (WORKER, 30)
    return card


def starts(card, kind):
    """Return when commands of a kind started, in the order of issue; None for those that have not."""
    count = int(card.clock[Clock.ENQUEUED])
    rows = np.arange(max(0, count - card.table.rows), count) % card.table.rows
    fields, times = np.asarray(card.table.fields)[rows], np.asarray(card.table.times)[rows]
    return [
        int(time[Time.START_LO]) if time[Time.PHASE] >= Phase.RUNNING else None
        for row, time in zip(fields, times, strict=True)
        if row[Field.KIND] == kind
    ]


def test_subscription_codes(card):
    assert code(aj.subscribe_report(card, 0, 1)) == aj.Code.RT_STREAM_SUBSCRIBE
    assert code(aj.subscribe_report(card, WORKER, 1)) == aj.Code.RT_STREAM_SUBSCRIBE
    assert code(aj.subscribe_report(card, 0, 3)) == aj.Code.RT_STREAM_CONTEXT
    for thread in (-1, 2, 3):  # number 2 is a slot without a thread
        assert code(aj.subscribe_report(card, thread, 0)) == WRONG
    assert code(aj.unsubscribe_report(card, 0, 0)) == aj.Code.RT_STREAM_SUBSCRIBE
    assert code(aj.unsubscribe_report(card, WORKER, 1)) == aj.Code.RT_THREAD_SUBSCRIBE
    assert code(aj.unsubscribe_report(card, 0, 3)) == aj.Code.RT_STREAM_CONTEXT
    card = aj.unsubscribe_report(card, 0, 1)
    assert code(card) == 0
    assert code(aj.launch_callback(card, 1, 7)) == aj.Code.RT_STREAM_NO_CB_REG
    card = aj.subscribe_report(card, WORKER, 1)
    assert code(card) == 0
    assert code(aj.subscribe_report(card, 0, 0)) == 0  # the default stream


def test_a_launch_without_subscriber_leaves_other_streams_alone(card):
    card, stream = aj.create_stream(card)
    refused = aj.launch_callback(card, stream, 7)
    assert code(refused) == aj.Code.RT_STREAM_NO_CB_REG
    assert int(refused.clock[Clock.ENQUEUED]) == 0
    assert code(aj.launch_callback(refused, 99, 7)) == aj.Code.RT_STREAM_CONTEXT
    card = aj.subscribe_report(refused, 0, stream)
    assert code(aj.launch_callback(card, stream, 7)) == 0
    assert code(aj.synchronize_stream(fill(card, 1, 500), 1)) == 0


def test_report_codes(card):
    for timeout in (0, -2, -100):
        after, number = aj.process_report(card, timeout)
        assert (code(after), int(number)) == (aj.Code.INVALID_PARAM, NONE)
    after, number = aj.process_report(aj.use_thread(card, WORKER), 1)
    assert (code(after), int(number)) == (aj.Code.RT_THREAD_SUBSCRIBE, NONE)
    after, number = aj.process_report(card, 3)
    assert (code(after), int(number)) == (aj.Code.RT_REPORT_TIMEOUT, NONE)
    assert aj.host_time_ns(after) == 30 + 20 + 3_000_000
    after, number = aj.process_report(card, -1)
    assert (code(after), int(number)) == (aj.Code.DEADLOCK, NONE)
    with pytest.raises(ValueError, match="callback_ns"):
        aj.process_report(card, -1, callback_ns=-1)


def test_a_blocking_callback_holds_its_stream(card):
    card = fill(card, 1, 1000)  # 40 to 1040
    card = aj.launch_callback(card, 1, 7)  # 50
    card = fill(card, 1, 300)  # 60
    assert code(aj.synchronize_stream(card, 1)) == aj.Code.DEADLOCK  # nobody runs the callback
    card, number = aj.process_report(card, -1, callback_ns=250)
    assert (int(number), code(card), aj.host_time_ns(card)) == (7, 0, 1290)
    card = aj.synchronize_stream(card, 1)
    assert code(card) == 0
    assert starts(card, Kind.MEMSET) == [40, 1290]
    assert aj.host_time_ns(card) == 1590


def test_a_callback_that_does_not_block(card):
    card = fill(card, 1, 1000)  # 40 to 1040
    card = aj.launch_callback(card, 1, 7, is_blocking=False)
    card = aj.synchronize_stream(fill(card, 1, 300), 1)
    assert code(card) == 0
    assert starts(card, Kind.MEMSET) == [40, 1040]
    before = aj.host_time_ns(card)
    card, number = aj.process_report(card, -1, callback_ns=50)
    assert (int(number), code(card), aj.host_time_ns(card)) == (7, 0, before + 70)


def test_a_timeout_that_is_long_enough(card):
    card = aj.launch_callback(fill(card, 1, 900_000), 1, 7)  # handed over at 900,040
    late, number = aj.process_report(fill(card, 1, 500), 1)
    assert (int(number), code(late), aj.host_time_ns(late)) == (7, 0, 900_040)
    early, none = aj.process_report(aj.launch_callback(fill(card, 2, 200_000), 2, 8), 1)
    assert int(none) == 7
    early, none = aj.process_report(aj.launch_callback(fill(early, 2, 1_040_000), 2, 9), 1)
    assert int(none) == 8
    start = aj.host_time_ns(early)
    early, none = aj.process_report(early, 1)
    assert (int(none), code(early)) == (NONE, aj.Code.RT_REPORT_TIMEOUT)
    assert aj.host_time_ns(early) == start + 20 + 1_000_000


def test_the_first_handed_over_is_the_first_run(card):
    card = fill(card, 1, 2000)  # 40 to 2040
    card = aj.launch_callback(card, 1, 11)  # 50
    card = aj.launch_callback(card, 2, 22, is_blocking=False)  # handed over at 60
    card = aj.launch_callback(card, 2, 23)  # at 70
    order, ends = [], []
    for _ in range(3):
        card, number = aj.process_report(card, -1, callback_ns=100)
        order.append(int(number))
        ends.append(aj.host_time_ns(card))
    assert order == [22, 23, 11]
    assert ends == [70 + 20 + 100, 190 + 20 + 100, 2040 + 100]
    assert code(aj.synchronize_device(card)) == 0


@pytest.mark.parametrize("late_ns", [0, 5000])
def test_what_one_instant_hands_over_goes_by_the_stream(card, late_ns):
    """Streams 2 and 1 get to their callbacks in one instant, in which the lower slot comes first."""
    card = aj.record_event(fill(aj.create_event(card)[0], 1, 1000), 0, 1)
    card = aj.launch_callback(aj.stream_wait_event(card, 2, 0), 2, 22, is_blocking=False)
    card = aj.launch_callback(card, 1, 11, is_blocking=False)
    card = aj.host_work(card, late_ns)
    for wanted in (11, 22):
        card, number = aj.process_report(card, -1)
        assert int(number) == wanted


def test_another_thread_serves_a_stream_while_the_first_one_works(card):
    card = aj.subscribe_report(aj.unsubscribe_report(card, 0, 1), WORKER, 1)
    card = aj.launch_callback(fill(card, 1, 1000), 1, 7)  # 40 to 1040
    card = aj.host_work(fill(card, 1, 300), 40)  # 60 + 40
    card, number = aj.process_report(aj.use_thread(card, WORKER), -1, callback_ns=500)
    assert (int(number), aj.host_time_ns(card)) == (7, 1540)
    card = aj.use_thread(card, 0)
    assert aj.host_time_ns(card) == 100
    card = aj.synchronize_stream(card, 1)
    assert (code(card), aj.host_time_ns(card)) == (0, 1840)


def test_destroying_a_stream_that_a_callback_holds(card):
    """A card hangs there if the thread that destroys holds what the callback needs; here it is a deadlock."""
    card = aj.launch_callback(card, 1, 7)
    assert code(aj.destroy_stream(card, 1)) == aj.Code.DEADLOCK
    card, number = aj.process_report(card, -1)
    assert int(number) == 7
    card = aj.synchronize_stream(card, 1)
    assert code(card) == 0
    assert code(aj.destroy_stream(card, 1)) == 0


def test_a_stream_in_a_slot_used_before_waits_for_its_own_callbacks(card):
    for number in (5, 6):
        card, _ = aj.process_report(aj.launch_callback(card, 1, number), -1)
    card = aj.destroy_stream(aj.synchronize_stream(card, 1), 1)
    card, stream = aj.create_stream(card)
    assert int(stream) == 1 + (1 << 18)
    assert code(aj.launch_callback(card, stream, 7)) == aj.Code.RT_STREAM_NO_CB_REG
    card = aj.launch_callback(aj.subscribe_report(card, 0, stream), stream, 7)
    assert code(aj.synchronize_stream(card, stream)) == aj.Code.DEADLOCK
    card, number = aj.process_report(card, -1)
    assert int(number) == 7
    assert code(aj.synchronize_stream(card, stream)) == 0


def test_numbers_below_0_stand_for_no_function(card):
    """CANN refuses a null function with 107000; ``process_report`` returns -1 for none."""
    alone = aj.unsubscribe_report(card, 0, 2)
    for number in (-1, -(2**31)):
        for after in (
            aj.launch_callback(card, 1, number),
            aj.launch_callback(card, 1, number, is_blocking=False),
            aj.launch_host_func(alone, 2, number),
        ):
            assert (code(after), int(after.clock[Clock.ENQUEUED])) == (WRONG, 0)
    assert code(aj.subscribe_report(aj.launch_host_func(alone, 2, -1), 0, 2)) == 0  # it is nobody's yet
    assert code(aj.launch_callback(card, 99, -1)) == aj.Code.RT_STREAM_CONTEXT


def test_a_callback_keeps_its_row_until_it_has_run(card):
    rows = card.table.rows
    card, event = aj.create_event(card)
    card = aj.launch_callback(card, 1, 7, is_blocking=False)
    for _ in range(rows - 1):
        card = aj.record_event(card, event, 2)
    card = aj.synchronize_device(card)
    refused = aj.record_event(card, event, 2)
    assert code(refused) == aj.Code.TABLE_FULL
    card, number = aj.process_report(refused, -1)
    assert int(number) == 7
    assert code(aj.record_event(card, event, 2)) == 0
    alone = aj.unsubscribe_report(refused, 0, 1)  # then nobody will run it
    assert code(aj.record_event(alone, event, 2)) == 0


@pytest.mark.parametrize("is_captured", [False, True])
def test_a_blocking_callback_takes_two_rows_or_none(card, is_captured):
    card = aj.capture_begin(card, 1) if is_captured else card
    for _ in range(card.table.rows - 1):  # captured, or to be run by a thread that does not come
        card = aj.launch_callback(card, 1, 7, is_blocking=False)
    assert code(card) == 0
    card = card if is_captured else aj.synchronize_device(card)
    refuse(card, lambda card: aj.launch_callback(card, 1, 8), aj.Code.TABLE_FULL)
    assert code(aj.launch_callback(card, 1, 8, is_blocking=False)) == 0


def test_the_host_waits_until_a_callback_and_what_waits_for_it_fit(card):
    card = dataclasses.replace(card, chip=card.chip.replace(queue_depth=3))
    card = fill(fill(card, 1, 1000), 1, 500)  # they end at 1040 and 1540
    card = aj.launch_callback(card, 1, 7)
    assert (code(card), aj.host_time_ns(card)) == (0, 1040 + 10)


def test_bringing_memory_up_to_date_runs_no_callback():
    card = card_of(MARK_COSTS, SIZES, hbm_backing_bytes=8192)
    card = aj.launch_callback(aj.subscribe_report(card, 0, 0), 0, 7, is_blocking=False)
    card, number = aj.process_report(aj.synchronize_device(card), -1)
    assert int(number) == 7


def test_what_an_earlier_subscriber_did_not_run_is_lost(card):
    card = aj.launch_callback(card, 1, 7, is_blocking=False)
    card = aj.synchronize_stream(card, 1)
    card = aj.subscribe_report(aj.unsubscribe_report(card, 0, 1), 0, 1)
    card = aj.launch_callback(card, 1, 8, is_blocking=False)
    card, number = aj.process_report(card, -1)
    assert int(number) == 8
    card, number = aj.process_report(card, 1)
    assert (int(number), code(card)) == (NONE, aj.Code.RT_REPORT_TIMEOUT)


def test_a_host_function_runs_by_itself_and_holds_its_stream(card):
    card, stream = aj.create_stream(card)  # host 40
    card = fill(card, stream, 1000)  # 50 to 1050
    card = aj.launch_host_func(card, stream, 5, duration_ns=250)  # 60
    card = fill(card, stream, 300)
    other = fill(card, 0, 200)  # the one engine for fills is free while the function runs
    card = aj.synchronize_device(other)
    assert code(card) == 0
    log = aj.insight.timeline(card)
    assert list(zip(log.kind.tolist(), log.start_ns.tolist(), log.end_ns.tolist(), strict=True)) == [
        ("memset", 50, 1050), ("host function", 1050, 1300), ("memset", 1300, 1600), ("memset", 1050, 1250),
    ]  # fmt: skip


def test_host_functions_that_are_refused(card):
    assert code(aj.launch_host_func(card, 1, 5)) == aj.Code.RT_STREAM_SUBSCRIBE  # thread 0 serves it
    assert code(aj.launch_host_func(card, 4, 5)) == aj.Code.RT_STREAM_CONTEXT
    alone = aj.unsubscribe_report(card, 0, 1)
    for wrong in (-1, float("nan"), float("inf"), 300 * 10**9):
        with pytest.raises(ValueError, match="duration_ns = "):
            aj.launch_host_func(alone, 1, 5, duration_ns=wrong)
    ran = aj.synchronize_stream(aj.launch_host_func(alone, 1, 5), 1)
    assert (code(ran), aj.host_time_ns(ran)) == (0, 60)  # issued at 40, synchronized from 60 on


def test_a_stream_with_host_functions_takes_no_callbacks(card):
    card = aj.launch_callback(card, 1, 7, is_blocking=False)
    card = aj.unsubscribe_report(aj.synchronize_stream(card, 1), 0, 1)  # nobody has run it
    card = aj.launch_host_func(aj.launch_host_func(card, 1, 5), 1, 6)
    assert code(card) == 0
    ran = aj.synchronize_stream(card, 1)
    for after in (card, ran):
        assert code(aj.subscribe_report(after, 0, 1)) == aj.Code.RT_STREAM_SUBSCRIBE
        for thread in (0, -1, -2):
            assert code(aj.unsubscribe_report(after, thread, 1)) == aj.Code.RT_STREAM_SUBSCRIBE
        assert code(aj.launch_callback(after, 1, 7)) == aj.Code.RT_STREAM_NO_CB_REG
    assert not np.asarray(taken_rows(ran))[: ran.table.rows].any()  # also the one that nobody has run
    again, stream = aj.create_stream(aj.destroy_stream(ran, 1))
    assert code(aj.subscribe_report(again, 0, stream)) == 0
