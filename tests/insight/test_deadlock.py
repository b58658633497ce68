"""Deadlocks made on purpose: who stops where, why, and in which circle."""

import dataclasses
import textwrap

import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Field, Kind, Resource
from tests.runtime.cards import SIZES, card_of

HBM = (2 << 20) // 64


@pytest.fixture(scope="module")
def card():
    """Streams 1 to 3 beside the default one, memory, events 0 and 1 of the flag kind and notifies 0 and 1."""
    card = card_of({}, SIZES)
    card, _ = aj.malloc(card, 4096)
    for _ in range(3):
        card, _ = aj.create_stream(card)
    for _ in range(2):
        card, _ = aj.create_event_with_flag(card, aj.EventFlag.SYNC)
        card, _ = aj.create_notify(card)
    return card


def stuck(card, stream=None):
    """Wait for what never comes; return the report."""
    card = aj.synchronize_device(card) if stream is None else aj.synchronize_stream(card, stream)
    assert int(aj.last_code(card)) == aj.Code.DEADLOCK
    return aj.insight.deadlock_report(card)


def brief(report):
    return [(stop.stream, stop.name, [(each.name, each.stream) for each in stop.releases]) for stop in report.stops]


def test_two_streams_that_wait_for_each_other_with_flag_events(card):
    card = aj.stream_wait_event(card, 1, 0)
    card = aj.record_event(card, 1, 1)
    card = aj.stream_wait_event(card, 2, 1)
    card = aj.record_event(card, 0, 2)
    report = stuck(card)
    assert brief(report) == [
        (1, "event wait 0", [("event record 0", 2)]),
        (2, "event wait 1", [("event record 1", 1)]),
    ]
    assert report.cycles == ((1, 2),)
    assert report.stops[0].waits_for == "event 0 to be recorded"
    behind = report.stops[0].releases[0].obstacle
    assert behind.startswith("is behind event wait 1 (") and behind.endswith("), where that stream stops")
    assert "test_deadlock.py:" in report.stops[0].site and "test_deadlock.py:" in report.call


def test_a_circle_of_three_with_a_fourth_stream_behind_it(card):
    for stream, (waits, records) in {1: (0, 1), 2: (1, 0)}.items():
        card = aj.wait_and_reset_notify(card, waits, stream)
        card = aj.stream_wait_event(card, stream, 0)
        card = aj.record_notify(card, records, stream)
    card = aj.stream_wait_event(card, 3, 1)
    card = aj.record_event(card, 1, 1)
    report = stuck(card)
    assert [stop.stream for stop in report.stops] == [1, 2, 3]
    assert report.cycles == ((1, 2),)
    assert brief(report)[2] == (3, "event wait 1", [("event record 1", 1)])


def test_a_wait_in_front_of_its_own_record(card):
    card = aj.wait_and_reset_notify(card, 1, 3)
    report = stuck(aj.record_notify(card, 1, 3), stream=3)
    assert report.cycles == ((3,),)
    assert report.stops[0].releases[0].obstacle == "is behind this wait itself"


def test_a_notify_that_nobody_records(card):
    card = aj.host_work(card, 1_000_000)
    report = stuck(aj.wait_and_reset_notify(card, 0, 2), stream=2)
    (stop,) = report.stops
    assert (stop.releases, report.cycles) == ((), ())
    assert stop.waits_for == "notify 0 to be recorded; nothing that is queued would do that"
    assert stop.since_ns > 1_000_000


def test_a_notify_whose_record_another_wait_has_taken(card):
    card = aj.record_notify(card, 0, 3)
    card = aj.wait_and_reset_notify(card, 0, 1)
    card = aj.wait_and_reset_notify(card, 0, 2)
    (stop,) = stuck(card).stops
    assert stop.stream == 2
    assert "the last to change it was notify wait 0 in stream 1 (" in stop.waits_for


def test_an_event_that_was_reset_again(card):
    card = aj.record_event(card, 0, 1)
    card = aj.reset_event(card, 0, 1)
    (stop,) = stuck(aj.stream_wait_event(card, 2, 0)).stops
    assert "the last to change it was event reset 0 in stream 1 (" in stop.waits_for


def test_a_value_that_is_never_written(card):
    card = aj.value_write(card, HBM, 3, 1)
    card = aj.value_wait(card, HBM, 5, 2)
    report = stuck(aj.value_write(card, HBM, 4, 3))  # not enough
    (stop,) = report.stops
    assert stop.name == f"value wait at {HBM}"
    assert stop.waits_for.startswith(
        f"the value at {HBM} to be at least 5; it is 4; the last to change it was value write"
    )
    assert stop.waits_for.endswith("; nothing that is queued would do that")


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        (1, -7, "to be -7; it is 0"),
        (2, 6, "to share a bit with 6; it is 0"),
        (3, -1, "to have, like -1, a bit that is 0; it is 0"),
    ],
)
def test_conditions_in_words(card, flag, value, words):
    card = aj.value_wait(card, HBM, value, 1, flag=flag, offset=16)
    assert words in stuck(card).stops[0].waits_for


def test_a_write_that_would_fit_is_named_and_others_are_not(card):
    card = aj.value_wait(card, HBM, 5, 2, flag=1)
    for value in (4, 5):
        card = aj.value_write(card, HBM, value, 2)
    (stop,) = stuck(card).stops
    assert [each.command for each in stop.releases] == [stop.command + 2]


def test_a_wait_for_a_record_that_was_dropped(card):
    card, event = aj.create_event(card)
    card = aj.wait_and_reset_notify(card, 0, 1)
    card = aj.record_event(card, event, 1)
    card = aj.stream_wait_event(card, 2, event)
    report = stuck(aj.stream_abort(card, 1))
    assert brief(report) == [(2, f"event wait {int(event)}", [(f"event record {int(event)}", 1)])]
    assert report.stops[0].releases[0].obstacle == "was dropped"
    assert report.cycles == ()


def test_a_wait_for_a_stream_that_has_stopped_on_a_failure(card):
    card, event = aj.create_event(card)
    card = aj.set_stream_failure_mode(card, 1, 1)
    card = aj.inject_fault(card, aj.Code.RT_AICPU_EXCEPTION)
    card = aj.memset_async(card, HBM, 0, 4096, 1)
    card = aj.record_event(card, event, 1)
    card = aj.stream_wait_event(card, 2, event)
    report = stuck(card, stream=2)
    assert [stop.stream for stop in report.stops] == [2]
    assert report.stops[0].releases[0].obstacle == "was dropped"
    assert aj.insight.timeline(card).state().tolist() == ["queued"] * 3  # the old card is as it was


def test_a_callback_that_its_thread_does_not_run(card):
    card = aj.launch_callback(aj.subscribe_report(card, 0, 2), 2, 7)
    (stop,) = stuck(card, stream=2).stops
    assert stop.waits_for.startswith("callback 7 to be run by host thread 0, in process_report")


def test_a_kernel_larger_than_the_chip(card):
    kernel = {Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCKS: 25, Field.MODE: 1, Field.BLOCK_LO: 50}
    program = aj.program_from_rows([kernel | {Field.KERNEL: -1, Field.NEED + Resource.CUBE: 1}])
    (stop,) = stuck(aj.execute_program(card, program, 1)).stops
    assert stop.waits_for.startswith("more cores than the chip has")


def test_nothing_stops_a_card_that_goes_on(card):
    card = aj.wait_and_reset_notify(card, 0, 1)
    card = aj.memset_async(card, HBM, 0, 4096, 2)
    card = aj.record_notify(card, 0, 2)
    report = aj.insight.deadlock_report(card)
    assert (report.stops, report.cycles, str(report)) == ((), (), "No stream is stopped for ever.")


def test_a_host_that_waits_for_nothing_queued(card):
    card, _ = aj.process_report(aj.subscribe_report(card, 0, 1), -1)  # no callback was launched
    assert int(aj.last_code(card)) == aj.Code.DEADLOCK
    text = str(aj.insight.deadlock_report(card))
    assert text.startswith("The call at ") and text.endswith("can never return.\nNo stream is stopped for ever.")


def test_a_wait_with_a_timeout_stops_nobody(card):
    card = aj.wait_and_reset_notify(card, 0, 1, 5)
    assert aj.insight.deadlock_report(card).stops == ()


def test_a_deadlock_is_foreseen(card):
    card = aj.memset_async(card, HBM, 0, 4096, 1)
    card = aj.wait_and_reset_notify(card, 0, 1)
    (stop,) = aj.insight.deadlock_report(card).stops
    assert (stop.stream, stop.since_ns) == (1, None)
    assert aj.insight.deadlock_report(aj.record_notify(card, 0, 2)).stops == ()


def test_it_reads_well(card):
    card = aj.stream_wait_event(card, 1, 0)
    card = aj.record_notify(card, 0, 1)
    card = aj.wait_and_reset_notify(card, 0, 2)
    card = aj.record_event(card, 0, 2)
    report = stuck(card)
    sites = iter(["a.py:1", "b.py:2"])
    stops = tuple(
        dataclasses.replace(
            stop,
            site=next(sites),
            since_ns=1500,
            releases=tuple(dataclasses.replace(each, site="c.py:3", obstacle="was dropped") for each in stop.releases),
        )
        for stop in report.stops
    )
    text = str(dataclasses.replace(report, stops=stops, call="main.py:9"))
    assert text == textwrap.dedent(
        """\
        The call at main.py:9 can never return.
        2 streams can never go on
        stream 1 stops at event wait 0 (a.py:1), since 1.500 us
          waits for event 0 to be recorded
          event record 0 in stream 2 (c.py:3) would release it, but was dropped
        stream 2 stops at notify wait 0 (b.py:2), since 1.500 us
          waits for notify 0 to be recorded
          notify record 0 in stream 1 (c.py:3) would release it, but was dropped
        cycle: stream 1 -> stream 2 -> stream 1"""
    )
