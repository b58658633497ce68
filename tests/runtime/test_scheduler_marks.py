"""The scheduler against hand-computed cases: marks, cells and timeouts."""

import pytest

from tests.runtime.command_lists import kernel, mark, notify, run, spans, wait
from tests.runtime.scheduler import WORD, Command, is_met

HALF = WORD // 2


def test_marks_of_one_instant_happen_lowest_slot_first_and_from_the_start_again():
    a, b, c, d = wait(0), mark(1), notify(2), mark(3)
    happened = [command for what, command in run(d, c, b, a).trace if what == "end"]
    assert happened == [b, c, a, d]  # after c, slot 0 comes before slot 3
    assert [(x.ready, x.start, x.end) for x in (a, b, c, d)] == [(0, 0, 0)] * 4


def test_tasks_end_before_marks_happen():
    a, b, c = mark(0, issue=10), kernel(1, 10), kernel(2, 10)
    trace = run(a, b, c).trace
    assert trace[2:] == [("end", b), ("end", c), ("start", a), ("end", a)]


def test_an_event_wait_holds_its_stream_until_the_record():
    record = Command("event record", 1)
    a, b = kernel(1, 10), kernel(0, 5)
    run(a, record, Command("event wait", 0, depends=record), b)
    assert record.end == 10
    assert (b.ready, b.start, b.end) == (10, 10, 15)


def test_a_notify_wakes_one_wait():
    a, b, first, second = wait(0), wait(1), notify(2), notify(2, issue=7)
    scheduler = run(a, b, first, second)
    assert [x.end for x in (a, b)] == [0, 7]
    assert scheduler.cells[0] == 0


def test_two_records_before_a_wait_are_one():
    a, b = wait(0, issue=1), wait(0)
    run(notify(1), notify(1), a, b)
    assert (a.end, b.end) == (1, -1)


@pytest.mark.parametrize(
    "condition, cell, value, holds",
    [
        ("GE", 5, 5, True),
        ("GE", 4, 5, False),
        ("GE", 0, WORD - 1, True),  # 0 - (-1) = 1
        ("GE", HALF, 0, False),  # the smallest signed number
        ("GE", WORD - 1, HALF - 1, False),  # 2**63 wraps to the smallest signed number
        ("GE", HALF, HALF - 1, True),  # wraps to 1
        ("EQ", WORD - 1, -1, True),
        ("EQ", 1, 2, False),
        ("AND", 6, 3, True),
        ("AND", 4, 3, False),
        ("AND", HALF, -1, True),
        ("NOR", 0, 0, True),
        ("NOR", WORD - 1, 0, False),
        ("NOR", HALF, HALF - 1, False),
        ("NOR", 0, WORD - 2, True),
        ("NOR", 1, WORD - 2, False),
        ("", 0, 1, True),
    ],
)
def test_conditions(condition, cell, value, holds):
    assert is_met(Command("value wait", 0, condition=condition, value=value), cell) is holds


def test_effects_wrap():
    scheduler = run(
        mark(0, cell=0, effect="SET", value2=-1),
        mark(0, cell=1, effect="SET", value2=WORD - 1),
        mark(0, cell=1, effect="ADD", value2=2),
    )
    assert scheduler.cells == [WORD - 1, 1, 0, 0]


def test_a_value_wait_goes_on_at_the_write():
    a = Command("value wait", 0, cell=2, condition="AND", value=2)
    one, two = (mark(1, issue=t, cell=2, effect="ADD", value2=1) for t in (3, 8))
    run(a, one, two)
    assert a.end == 8


def test_starts_of_one_instant_are_told_in_order_of_enqueueing():
    a, b, c = kernel(2, 5, priority=7), kernel(0, 5), kernel(1, 5)
    assert [command for _, command in run(a, b, c, cube=3).trace[:3]] == [a, b, c]


# Timeouts.


def test_a_wait_fails_at_its_deadline_and_the_stream_goes_on():
    a, b, c = wait(0, timeout=9), kernel(0, 5), kernel(1, 20)
    scheduler = run(a, b, c)
    assert [(x.ready, x.start, x.end, x.result) for x in (a, b)] == [(0, 9, 9, 107019), (9, 9, 14, 0)]
    assert scheduler.stream_error == {0: 107019, 1: 0, 2: 0, 3: 0} and not scheduler.device_error


@pytest.mark.parametrize("before, issue, end", [(0, 0, 9), (7, 0, 16), (0, 5, 14), (7, 5, 16), (7, 8, 17)])
def test_a_wait_counts_from_when_it_is_at_the_head_and_issued(before, issue, end):
    a = wait(0, timeout=9, issue=issue)
    run(*[kernel(0, before)] * bool(before), a)
    assert a.end == end


def test_what_comes_at_the_deadline_is_in_time():
    a, b = wait(0, timeout=10), kernel(2, 30, timeout=30, timeout_code=507014)
    run(a, kernel(1, 10), notify(1), b)
    assert (a.end, a.result) == (10, 0)
    assert (b.end, b.result) == (30, 0)


def test_deadlines_of_one_instant_fall_lowest_slot_first_and_looking_again():
    a, b = wait(1, timeout=5), wait(2, cell=1, timeout=5)
    c = notify(1, cell=1)  # stands behind a: when a has failed it happens, and b is in time
    run(a, b, c)
    assert (a.result, c.end, b.end, b.result) == (107019, 5, 5, 0)


def test_a_task_over_its_time_ends_the_device():
    first, a = kernel(0, 10), kernel(0, 100, timeout=30, timeout_code=507014)
    other, later = kernel(1, 60), kernel(1, 1)
    scheduler = run(first, a, other, later)
    assert (a.start, a.end, a.result) == (10, 40, 507014)
    assert scheduler.device_error == 507014 and scheduler.now == 40
    assert other.dropped and later.dropped and spans(other, later) == [(0, -1), (-1, -1)]


def test_a_task_over_its_time_gives_its_cores_back():
    a = kernel(0, 100, blocks=3, timeout=30, timeout_code=507014, timeout_reach="stream")
    b = kernel(1, 5)
    scheduler = run(a, b)  # b waits behind the claim of a
    assert spans(a, b) == [(0, 30), (30, 35)]
    assert scheduler.stream_error[0] == 507014 and not scheduler.device_error


def test_waiting_for_cores_is_no_time_over():
    a, b = kernel(0, 50, blocks=2), kernel(1, 5, timeout=6, timeout_code=507014)
    run(a, b)
    assert (b.start, b.end, b.result) == (50, 55, 0)
