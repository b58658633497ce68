"""Events of three kinds: what waits for what, what a program can ask, and every code."""

import dataclasses

import jax
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import NONE, Capture, Clock, Event, Field, Kind, Phase, Stream, Time
from tests.runtime.cards import HBM, MARK_COSTS, SIZES, asked, card_of, code, fill

SYNC, PROGRESS, TIME, DEVICE, EXTERNAL, IPC = (
    aj.EventFlag.SYNC, aj.EventFlag.CAPTURE_STREAM_PROGRESS, aj.EventFlag.TIME_LINE, aj.EventFlag.DEVICE_USE_ONLY,
    aj.EventFlag.EXTERNAL, aj.EventFlag.IPC,
)  # fmt: skip
FULL = SYNC | TIME
MAKE = {
    "plain": aj.create_event,
    "ex": lambda card: aj.create_event_ex_with_flag(card, FULL),
    "flag": lambda card: aj.create_event_with_flag(card, FULL),
}
WRONG, NO_SUPPORT = aj.Code.RT_PARAM_INVALID, aj.Code.FEATURE_NOT_SUPPORT


@pytest.fixture(scope="module")
def card():
    """Streams 1 and 2 beside the default one, and memory to fill; the host stands at 30."""
    card = card_of(MARK_COSTS, SIZES)
    card, pointer = aj.malloc(card, 1 << 23)
    assert int(pointer) == HBM
    for stream in (1, 2):
        card, handle = aj.create_stream(card)
        assert int(handle) == stream
    assert aj.host_time_ns(card) == 30
    return card


def spans(card, kind=None):
    """Return (stream, start, end) of the commands in the order of issue; None where one has not ended."""
    count = int(card.clock[Clock.ENQUEUED])
    fields, times = np.asarray(card.table.fields)[:count], np.asarray(card.table.times)[:count]
    wanted = [row for row in range(count) if kind is None or fields[row, Field.KIND] == kind]

    def instant(row, column):
        is_over = times[row, Time.PHASE] in {Phase.DONE, Phase.FAULTED, Phase.EXPIRED}
        return int(times[row, column]) * 2**30 + int(times[row, column + 1]) if is_over else None

    return [(int(fields[row, Field.STREAM]), instant(row, Time.START_HI), instant(row, Time.END_HI)) for row in wanted]


def test_flags_that_each_creator_takes(card):
    taken = {
        0: (WRONG, WRONG), 0x1: (0, 0), 0x2: (0, 0), 0x8: (0, 0), 0x9: (0, 0), 0xB: (0, 0), 0x10: (0, WRONG),
        0x20: (0, WRONG), 0x40: (WRONG, 0), 0x41: (WRONG, WRONG), 0x21: (WRONG, WRONG), 0x11: (WRONG, WRONG),
        0x4: (WRONG, WRONG), 0x80: (WRONG, WRONG), -1: (WRONG, WRONG),
    }  # fmt: skip
    for flag, wanted in taken.items():
        made = [create(card, flag) for create in (aj.create_event_with_flag, aj.create_event_ex_with_flag)]
        assert tuple(code(after) for after, _ in made) == wanted, hex(flag)
        assert [int(handle) for _, handle in made] == [NONE if refused else 0 for refused in wanted]


@pytest.mark.parametrize("kind", MAKE)
def test_events_run_out_and_come_back_with_new_handles(card, kind):
    assert asked(aj.event_available_count(card)) == (3, 0)
    for slot in range(3):
        card, event = MAKE[kind](card)
        assert (int(event), code(card)) == (slot, 0)
    assert asked(aj.event_available_count(card)) == (0, 0)
    refused, none = MAKE[kind](card)
    assert (int(none), code(refused)) == (NONE, aj.Code.NO_EVENT_RESOURCE)
    card = aj.destroy_event(card, 1)
    assert code(aj.destroy_event(card, 1)) == WRONG
    card, again = MAKE[kind](card)
    assert int(again) == 1 + (1 << 18)
    for call in (aj.record_event, aj.reset_event):
        assert code(call(card, 1, 1)) == WRONG
    assert code(aj.stream_wait_event(card, 1, 1)) == WRONG
    assert code(aj.record_event(card, again, 1)) == 0


def test_the_product_limits_events(card):
    few = dataclasses.replace(card, chip=card.chip.replace(max_events=1))
    assert asked(aj.event_available_count(few)) == (1, 0)
    few, _ = aj.create_event(few)
    few, none = aj.create_event(few)
    assert (int(none), code(few)) == (NONE, aj.Code.NO_EVENT_RESOURCE)


@pytest.mark.parametrize("kind", ["plain", "ex"])
def test_a_wait_is_bound_to_the_latest_record_of_its_call(card, kind):
    card, event = MAKE[kind](card)  # host 40
    card = fill(card, 1, 500)  # issued at 50, ends at 550
    card = aj.record_event(card, event, 1)
    card = aj.stream_wait_event(card, 2, event)
    card = fill(card, 1, 7000)  # the engine is free again at 550: ends at 7550
    card = aj.record_event(card, event, 1)
    card = fill(card, 2, 200)  # behind the wait from 550 on, but the engine is taken until 7550
    card = aj.synchronize_device(card)
    assert spans(card, Kind.EVENT_WAIT) == [(2, 550, 550)]
    assert spans(card, Kind.MEMSET) == [(1, 50, 550), (1, 550, 7550), (2, 7550, 7750)]


def test_an_ex_event_without_record_holds_nobody_up_and_a_plain_one_is_refused(card):
    card, plain = aj.create_event(card)
    assert code(aj.stream_wait_event(card, 2, plain)) == WRONG
    card, event = MAKE["ex"](aj.destroy_event(card, plain))
    card = fill(card, 1, 5000)
    card = aj.stream_wait_event(card, 2, event)  # issued at 70
    card = aj.record_event(card, event, 1)
    card = aj.synchronize_device(card)
    assert code(card) == 0
    assert spans(card, Kind.EVENT_WAIT) == [(2, 70, 70)]


def test_a_wait_for_a_flag_event_may_come_first(card):
    card, event = aj.create_event_with_flag(card, SYNC)
    card = aj.stream_wait_event(card, 2, event)
    card = aj.stream_wait_event(card, 0, event)
    card = fill(card, 1, 1000)  # issued at 70
    card = aj.record_event(card, event, 1)
    card = aj.stream_wait_event(card, 2, event)
    card = aj.synchronize_device(card)
    assert code(card) == 0
    assert spans(card, Kind.EVENT_WAIT) == [(2, 1070, 1070), (0, 1070, 1070), (2, 1070, 1070)]


def test_a_reset_takes_the_flag_from_those_who_come_later(card):
    card, event = aj.create_event_with_flag(card, SYNC)  # host 40
    card = aj.record_event(card, event, 1)  # 50
    card = aj.stream_wait_event(card, 2, event)  # 60
    card = aj.reset_event(card, event, 2)  # 70
    card = fill(card, 1, 1000)  # 80 to 1080
    card = aj.record_event(card, event, 1)  # 1080
    card = aj.host_work(card, 100)
    card = aj.stream_wait_event(card, 0, event)  # 200: the reset has passed
    card = aj.synchronize_device(card)
    assert code(card) == 0
    assert spans(card, Kind.EVENT_RESET) == [(2, 70, 70)]
    assert spans(card, Kind.EVENT_WAIT) == [(2, 60, 60), (0, 1080, 1080)]


def test_the_third_stream_hangs_if_the_second_resets_in_between(card):
    """The manual's picture of why a reset and several waiting streams do not go together."""
    card, event = aj.create_event_with_flag(card, SYNC)
    card = aj.record_event(card, event, 1)
    card = aj.stream_wait_event(card, 2, event)
    card = aj.reset_event(card, event, 2)
    card = aj.host_work(card, 100)
    card = aj.stream_wait_event(card, 0, event)
    assert code(aj.synchronize_stream(card, 2)) == 0
    assert code(aj.synchronize_stream(card, 0)) == aj.Code.DEADLOCK


@pytest.mark.parametrize("kind", ["plain", "ex"])
def test_a_wait_in_the_recording_stream_queues_nothing(card, kind):
    card, event = MAKE[kind](card)
    card = aj.record_event(card, event, 1)
    after = aj.stream_wait_event(card, 1, event)
    assert code(after) == 0
    assert int(after.clock[Clock.ENQUEUED]) == int(card.clock[Clock.ENQUEUED])
    assert aj.host_time_ns(after) == aj.host_time_ns(card)
    after = aj.synchronize_stream(fill(after, 1, 300), 1)
    assert spans(after) == [(1, 50, 50), (1, 60, 360)]


def test_a_flag_event_is_looked_at_in_its_own_stream_too(card):
    card, event = aj.create_event_with_flag(card, SYNC)
    card = aj.reset_event(aj.record_event(card, event, 1), event, 1)
    card = aj.stream_wait_event(card, 1, event)
    assert int(card.clock[Clock.ENQUEUED]) == 3
    assert code(aj.synchronize_stream(card, 1)) == aj.Code.DEADLOCK


def test_a_wait_that_lasts_too_long_fails_its_stream(card):
    second = 10**9
    card, event = aj.create_event_with_flag(card, SYNC)
    assert code(aj.stream_wait_event(card, 2, event, timeout_s=-1)) == WRONG
    card = fill(card, 2, 1000)  # 50 to 1050
    card = aj.stream_wait_event(card, 2, event, timeout_s=1)  # comes to the head at 1050
    card = aj.synchronize_stream(card, 2)
    assert code(card) == aj.Code.RT_WAIT_TIMEOUT
    assert aj.host_time_ns(card) == 1050 + second
    quick = aj.stream_wait_event(aj.record_event(card, event, 1), 0, event, timeout_s=1)
    assert code(aj.synchronize_stream(quick, 0)) == 0


def test_a_destroyed_event_still_holds_and_releases_what_is_queued(card):
    card, event = aj.create_event(card)
    card = fill(card, 1, 500)  # 50 to 550
    card = aj.record_event(card, event, 1)
    card = aj.stream_wait_event(card, 2, event)
    card, new = aj.create_event(aj.destroy_event(card, event))
    assert int(new) == 1 << 18  # its slot is taken again at once: the wait is bound to a record
    card = aj.synchronize_device(aj.record_event(card, new, 0))
    assert spans(card, Kind.EVENT_WAIT) == [(2, 550, 550)]


def test_a_flag_event_does_not_release_the_waits_of_its_predecessor(card):
    card, event = aj.create_event_with_flag(card, SYNC)  # 40
    card = aj.stream_wait_event(card, 2, event)  # 50
    card = fill(card, 1, 1000)  # 60 to 1060
    card = aj.record_event(card, event, 1)
    card, new = aj.create_event_with_flag(aj.destroy_event(card, event), SYNC)
    assert int(new) == 1  # slot 0 is still in use
    card = aj.record_event(card, new, 0)
    card = aj.synchronize_device(card)
    assert spans(card, Kind.EVENT_WAIT) == [(2, 1060, 1060)]
    card, third = aj.create_event_with_flag(card, SYNC)
    assert int(third) == 1 << 18
    card = aj.stream_wait_event(card, 0, third)
    assert code(aj.synchronize_stream(card, 0)) == aj.Code.DEADLOCK  # the new flag is not set


def test_what_each_kind_and_flag_cannot_do(card):
    def made(create, *flags):
        return create(card, *flags)

    calls = {
        "record": lambda card, event: aj.record_event(card, event, 1),
        "wait": lambda card, event: aj.stream_wait_event(card, 1, event),
        "reset": lambda card, event: aj.reset_event(card, event, 1),
        "query": lambda card, event: aj.query_event(card, event)[0],
        "status": lambda card, event: aj.query_event_status(card, event)[0],
        "waits": lambda card, event: aj.query_event_wait_status(card, event)[0],
        "elapsed": lambda card, event: aj.event_elapsed_time(card, event, event)[0],
    }
    never = aj.Code.RT_INTERNAL_ERROR
    events = {
        "plain": (made(aj.create_event), {"wait": WRONG, "reset": NO_SUPPORT, "elapsed": never}),
        "flag": (made(aj.create_event_with_flag, SYNC), {"elapsed": never}),
        "flag, no sync": (
            made(aj.create_event_with_flag, TIME),
            {"wait": NO_SUPPORT, "reset": NO_SUPPORT, "elapsed": never},
        ),
        "external": (
            made(aj.create_event_with_flag, EXTERNAL),
            dict.fromkeys(("query", "status", "waits", "elapsed"), NO_SUPPORT),
        ),
        "device only": (
            made(aj.create_event_with_flag, DEVICE),
            dict.fromkeys(("record", "wait", "reset"), WRONG) | {"elapsed": never},
        ),
        "ex": (made(aj.create_event_ex_with_flag, SYNC), dict.fromkeys(("reset", "query", "waits"), NO_SUPPORT)),
        "ex, no sync": (
            made(aj.create_event_ex_with_flag, PROGRESS),
            dict.fromkeys(("reset", "query", "waits", "wait"), NO_SUPPORT),
        ),
        "ipc": (
            made(aj.create_event_ex_with_flag, IPC),
            dict.fromkeys(("reset", "query", "waits", "elapsed"), NO_SUPPORT),
        ),
    }
    for name, ((start, event), refused) in events.items():
        if name.startswith("ex") and name != "external":
            refused = refused | {"elapsed": never}
        answers = {call: code(make(start, event)) for call, make in calls.items()}
        assert answers == dict.fromkeys(calls, 0) | refused, name


@pytest.mark.parametrize("event", [-1, 0, 3, 1 << 18, 2**31 - 1])
def test_events_that_do_not_exist(card, event):
    calls = (
        aj.destroy_event(card, event),
        aj.record_event(card, event, 1),
        aj.reset_event(card, event, 1),
        aj.stream_wait_event(card, 1, event),
        *(ask(card, event)[0] for ask in (aj.query_event, aj.query_event_status, aj.query_event_wait_status)),
        aj.event_elapsed_time(card, event, event)[0],
    )
    assert {code(after) for after in calls} == {WRONG}
    for ask in (lambda: aj.event_elapsed_ms(card, event, event), lambda: aj.event_timestamp_us(card, event)):
        with pytest.raises(aj.AscendError, match="does not exist"):
            ask()


def test_a_refused_call_queues_nothing(card):
    card, event = aj.create_event(card)
    for after in (
        aj.record_event(card, event, 3),
        aj.stream_wait_event(card, 3, event),
        aj.reset_event(card, event, 1),
        aj.stream_wait_event(card, 1, event + 1),
    ):
        assert code(after) != 0
        for new, old in ((after.table, card.table), (after.events, card.events), (after.streams, card.streams)):
            jax.tree.map(np.testing.assert_array_equal, new, old)


def test_a_stream_that_is_destroyed_leaves_its_event_complete(card):
    card, event = aj.create_event(card)
    card = aj.record_event(fill(card, 1, 10_000), event, 1)  # 50 to 10,050
    card = aj.destroy_stream(card, 1)
    assert aj.host_time_ns(card) >= 10_050
    card = aj.synchronize_event(card, event)
    assert code(card) == 0
    assert asked(aj.query_event_status(card, event)) == (1, 0)
    assert code(aj.record_event(card, event, 1)) == aj.Code.RT_STREAM_CONTEXT


@pytest.mark.parametrize("kind", ["plain", "flag"])
def test_a_capture_takes_ex_and_external_events_only(card, kind):
    card, event = MAKE[kind](card)
    begun = aj.capture_begin(aj.record_event(card, event, 0), 1)
    for call in (
        lambda card: aj.record_event(card, event, 1),
        lambda card: aj.stream_wait_event(card, 1, event),
    ):
        refused = call(begun)
        assert code(refused) == NO_SUPPORT
        np.testing.assert_array_equal(refused.table.fields, begun.table.fields)


def test_a_wait_takes_its_stream_into_the_capture(card):
    card, event = MAKE["ex"](card)
    card, outside = MAKE["ex"](card)
    card = aj.record_event(card, outside, 0)
    card = aj.capture_begin(card, 1, 1)
    card = aj.record_event(card, event, 1)
    assert int(card.events[int(event), Event.CAPTURED]) == 1
    assert asked(aj.query_event_status(card, event)) == (NONE, aj.Code.RT_EVENT_CAPTURED)
    assert code(aj.event_elapsed_time(card, outside, event)[0]) == aj.Code.RT_EVENT_CAPTURED
    assert code(aj.stream_wait_event(card, 1, outside)) == aj.Code.RT_CAPTURE_DEPENDENCY
    stray = aj.stream_wait_event(card, 0, event)
    assert code(stray) == aj.Code.RT_STREAM_CAPTURE_IMPLICIT
    np.testing.assert_array_equal(stray.streams, card.streams)
    joined = aj.stream_wait_event(card, 2, event)
    assert code(joined) == 0
    entry = joined.streams[2]
    assert [int(entry[column]) for column in (Stream.CAPTURE, Stream.CAPTURE_MODE, Stream.CAPTURE_THREAD)] == [
        Capture.JOINED, 1, 0
    ]  # fmt: skip
    assert int(joined.table.times[2, Time.PHASE]) == Phase.CAPTURED
    again = aj.record_event(joined, outside, 0)  # records outside the capture run as ever
    assert int(again.events[int(outside), Event.CAPTURED]) == 0


def test_an_external_event_joins_nothing(card):
    card, event = aj.create_event_with_flag(card, EXTERNAL)
    card = aj.capture_begin(card, 1)
    card = aj.record_event(card, event, 1)
    after = aj.stream_wait_event(card, 2, event)
    assert code(after) == 0
    np.testing.assert_array_equal(after.streams[2, Stream.CAPTURE], Capture.NONE)
    card = aj.record_event(card, event, 2)
    card = aj.stream_wait_event(card, 1, event)
    assert code(card) == 0
