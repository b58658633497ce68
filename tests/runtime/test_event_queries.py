"""What a program can ask about events: states, numbers and times, with the codes of those that cannot be asked."""

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import NONE
from tests.runtime.cards import MARK_COSTS, SIZES, asked, card_of, code, fill

SYNC, TIME = aj.EventFlag.SYNC, aj.EventFlag.TIME_LINE
WRONG, NO_SUPPORT = aj.Code.RT_PARAM_INVALID, aj.Code.FEATURE_NOT_SUPPORT


@pytest.fixture(scope="module")
def card():
    """Streams 1 and 2 beside the default one, and memory to fill; the host stands at 30."""
    card, _ = aj.malloc(card_of(MARK_COSTS, SIZES), 1 << 23)
    for _ in range(2):
        card, _ = aj.create_stream(card)
    return card


def test_the_queries_have_opposite_numbers(card):
    card, event = aj.create_event(card)
    assert asked(aj.query_event(card, event)) == (0, 0)  # complete before any record
    assert asked(aj.query_event_status(card, event)) == (0, 0)  # not ready before any record
    card = fill(card, 1, 1000)  # 50 to 1050
    card = aj.record_event(card, event, 1)  # 60
    assert asked(aj.query_event(card, event)) == (1, 0)
    assert asked(aj.query_event_status(card, event)) == (0, 0)
    before = aj.host_work(card, 1049 - 60 - 20)
    assert asked(aj.query_event_status(before, event)) == (0, 0)
    done = aj.host_work(card, 2000)
    assert asked(aj.query_event(done, event)) == (0, 0)
    assert asked(aj.query_event_status(done, event)) == (1, 0)
    assert aj.host_time_ns(aj.query_event(done, event)[0]) == aj.host_time_ns(done) + 20
    again = aj.record_event(fill(done, 1, 1000), event, 1)
    assert asked(aj.query_event_status(again, event)) == (0, 0)


def test_an_ex_event_is_complete_before_its_first_record(card):
    card, event = aj.create_event_ex_with_flag(card, SYNC)
    assert asked(aj.query_event_status(card, event)) == (1, 0)
    card = aj.record_event(fill(card, 1, 1000), event, 1)
    assert asked(aj.query_event_status(card, event)) == (0, 0)
    for call in (aj.query_event, aj.query_event_wait_status):
        assert asked(call(card, event)) == (NONE, NO_SUPPORT)


def test_a_loop_of_queries_comes_to_an_end(card):
    card, event = aj.create_event(card)
    card = aj.record_event(fill(card, 1, 1000), event, 1)  # happens at 1050; the host stands at 60
    queries, status = 0, 0
    while status == 0:
        card, status = aj.query_event_status(card, event)
        queries += 1
    assert (queries, aj.host_time_ns(card)) == (50, 1060)


def test_every_wait_must_be_over(card):
    card, event = aj.create_event_with_flag(card, SYNC)
    assert asked(aj.query_event_wait_status(card, event)) == (0, 0)
    card = aj.stream_wait_event(card, 2, event)
    card = aj.record_event(fill(card, 1, 1000), event, 1)  # 60 to 1060
    card = aj.stream_wait_event(fill(card, 0, 1000), 0, event)  # 1060 to 2060
    assert asked(aj.query_event_wait_status(card, event)) == (1, 0)
    assert asked(aj.query_event_wait_status(aj.host_work(card, 1500), event)) == (1, 0)
    assert asked(aj.query_event_wait_status(aj.host_work(card, 2500), event)) == (0, 0)


def test_elapsed_time_and_why_there_is_none(card):
    for _ in range(3):
        card, _ = aj.create_event(card)  # host 60
    card = aj.record_event(card, 0, 1)  # 70
    card = fill(card, 1, 5_000_000)  # 80 to 5,000,080
    card = aj.record_event(card, 1, 1)
    late, none = aj.event_elapsed_time(card, 0, 1)
    assert (code(late), float(none)) == (aj.Code.RT_EVENT_TIMESTAMP_INVALID, 0.0)
    assert code(aj.event_elapsed_time(card, 1, 2)[0]) == aj.Code.RT_INTERNAL_ERROR
    assert code(aj.event_elapsed_time(card, 2, 1)[0]) == aj.Code.RT_INTERNAL_ERROR
    for pair, wanted in (((0, 1), aj.Code.RT_EVENT_TIMESTAMP_INVALID), ((0, 2), aj.Code.RT_INTERNAL_ERROR)):
        with pytest.raises(aj.AscendError) as error:
            aj.event_elapsed_ms(card, *pair)
        assert error.value.code == wanted
    card = aj.synchronize_event(card, 1)
    for start, end, ns in ((0, 1, 5_000_010), (1, 0, -5_000_010), (1, 1, 0)):
        after, ms = aj.event_elapsed_time(card, start, end)
        assert code(after) == 0
        assert np.float32(ms) == np.float32(ns / 1e6)
        assert aj.event_elapsed_ms(card, start, end) == ns / 1e6
    assert aj.event_timestamp_us(card, 1) == 5_000
    assert aj.event_timestamp_us(card, 0) == 0


@pytest.mark.parametrize("start, length", [(2**30 - 5, 40), (3 * 2**30 + 7, 2 * 2**30 - 8), (100, 5 * 2**30 + 100)])
def test_elapsed_time_across_limbs(card, start, length):
    card, first = aj.create_event(card)
    card, last = aj.create_event(card)
    card = aj.record_event(aj.host_work(card, start - aj.host_time_ns(card) - 10), first, 1)
    card = aj.record_event(aj.host_work(card, length - 10), last, 2)
    card = aj.synchronize_device(card)
    assert aj.event_elapsed_ms(card, first, last) == length / 1e6
    for pair, sign in (((first, last), 1), ((last, first), -1)):
        ms = float(aj.event_elapsed_time(card, *pair)[1])
        assert abs(ms - sign * length / 1e6) <= 2**-23 * length / 1e6


def test_events_without_time_line_have_no_time(card):
    card, timed = aj.create_event_ex_with_flag(card, TIME)
    card, untimed = aj.create_event_ex_with_flag(card, SYNC)
    card = aj.synchronize_device(aj.record_event(aj.record_event(card, timed, 1), untimed, 1))
    assert code(aj.event_elapsed_time(card, timed, timed)[0]) == 0
    for pair in ((timed, untimed), (untimed, timed)):
        assert code(aj.event_elapsed_time(card, *pair)[0]) == aj.Code.RT_EVENT_TIMESTAMP_INVALID
    with pytest.raises(aj.AscendError, match="without TIME_LINE"):
        aj.event_timestamp_us(card, untimed)


def test_a_record_that_the_table_has_forgotten_is_done_but_has_no_time(card):
    card, event = aj.create_event(card)
    card, other = aj.create_event(card)
    card = aj.record_event(card, event, 1)
    for _ in range(33):
        card = aj.record_event(card, other, 1)
    card = aj.synchronize_device(card)
    assert asked(aj.query_event_status(card, event)) == (1, 0)
    assert code(aj.event_elapsed_time(card, event, other)[0]) == aj.Code.RT_EVENT_TIMESTAMP_INVALID
    card = aj.synchronize_stream(aj.stream_wait_event(card, 2, event), 2)
    assert code(card) == 0


def test_the_number_of_an_event_is_its_slot(card):
    card, first = aj.create_event(card)
    card, event = aj.create_event(card)
    assert asked(aj.event_id(card, event)) == (1, 0)
    card, again = aj.create_event_ex_with_flag(aj.destroy_event(card, first), SYNC)
    assert asked(aj.event_id(card, again)) == (0, 0)
    assert asked(aj.event_id(card, first)) == (NONE, WRONG)
