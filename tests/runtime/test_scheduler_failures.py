"""The scheduler against hand-computed cases: failures, drops, and how far a look goes."""

from tests.runtime.command_lists import card, kernel, mark, never, notify, run, spans, wait
from tests.runtime.scheduler import Command


def test_a_fault_comes_at_the_end_and_the_first_one_stays():
    a, b, c = kernel(0, 10, fault=507015), kernel(0, 10, fault=507016), kernel(0, 10)
    scheduler = run(a, b, c)
    assert [(x.end, x.result) for x in (a, b, c)] == [(10, 507015), (20, 507016), (30, 0)]
    assert scheduler.stream_error[0] == 507015


def test_a_stream_that_stops_drops_its_queue_only():
    a, b, c, d = kernel(0, 10, fault=507015), kernel(0, 10), kernel(1, 10, fault=507015), kernel(1, 10)
    scheduler = run(a, b, c, d, stop={0})
    assert b.dropped and (b.ready, b.start, b.end) == (-1, -1, -1)
    assert d.end == 20 and not d.dropped
    late, other = kernel(0, 1), kernel(1, 1)
    scheduler.enqueue(late)
    scheduler.enqueue(other)
    scheduler.run_until(never)
    assert late.dropped and late.end == -1
    assert other.end == 21


def test_a_device_fault_drops_everything_and_nothing_follows():
    a, b, c = kernel(0, 10, fault=507054, reach="device"), kernel(1, 20), kernel(2, 10)
    scheduler = run(c, a, b)
    assert scheduler.device_error == 507054 and scheduler.stream_error[0] == 0
    assert (a.end, a.dropped, b.end, b.dropped) == (10, False, -1, True)
    assert c.dropped and c.end == -1  # its end at the same instant would have come after that of slot 0
    late = mark(3)
    scheduler.enqueue(late)
    scheduler.advance_to(50)
    assert late.dropped and scheduler.now == 50


def test_a_failed_mark_leaves_its_cell():
    a = notify(0, fault=507018)
    scheduler = run(a)
    assert scheduler.cells[0] == 0 and (a.end, a.result) == (0, 507018)
    assert scheduler.trace == [("start", a), ("end", a)]


def test_what_depends_on_a_dropped_command_waits_for_ever():
    record = Command("event record", 0)
    a = Command("event wait", 1, depends=record)
    run(kernel(0, 10, fault=507015), record, a, stop={0})
    assert record.dropped and a.end == -1 and not a.dropped


def test_drop_gives_the_cores_to_others_and_sets_no_error():
    a, queued, b = kernel(0, 100, blocks=4), kernel(0, 1), kernel(1, 10)
    scheduler = card(a, queued, b)
    scheduler.advance_to(30)
    scheduler.drop_stream(0)
    assert scheduler.run_until(never) == "stuck"
    assert a.dropped and queued.dropped and a.end == -1
    assert spans(b) == [(30, 40)]
    assert not any(scheduler.stream_error.values()) and not scheduler.device_error


# How far a look goes.


def test_at_the_limit_itself_tasks_end_and_nothing_else_happens():
    a, b, c, late = kernel(0, 10), kernel(0, 5), mark(1, issue=10), wait(2, timeout=10)
    scheduler = card(a, b, c, late)
    scheduler.advance_to(10)
    assert (scheduler.now, a.end, b.start, c.end, late.end) == (10, 10, -1, -1, -1)
    scheduler.advance_to(10)
    scheduler.advance_to(3)
    assert scheduler.now == 10 and b.start == c.end == late.end == -1
    scheduler.advance_to(11)
    assert (b.ready, b.start, c.end, late.end, scheduler.now) == (10, 10, 10, 10, 11)


def test_a_run_reaches_its_goal_by_an_end_at_its_limit():
    a, b, after = kernel(0, 10), kernel(1, 10), mark(1)
    scheduler = card(a, b, after)
    assert scheduler.run_until(lambda: b.end >= 0, 10) == "reached"
    scheduler = card(kernel(0, 10), kernel(1, 10), after)
    assert scheduler.run_until(lambda: after.end >= 0, 10) == "limit"


def test_what_is_over_beside_a_goal_ends_in_the_next_look():
    a, b = kernel(0, 10), kernel(1, 10)
    scheduler = card(a, b)
    assert scheduler.run_until(lambda: a.end >= 0) == "reached" and b.end == -1
    scheduler.advance_to(10)
    assert b.end == 10


def test_the_goal_is_looked_at_before_and_after_each_thing():
    a, b = mark(0), mark(1)
    scheduler = card(a, b)
    assert scheduler.run_until(lambda: True, 0) == "reached" and a.end == -1
    assert scheduler.run_until(never, 0) == "limit" and a.end == -1
    assert scheduler.run_until(lambda: a.end >= 0) == "reached"
    assert (a.end, b.end) == (0, -1)
    assert scheduler.run_until(lambda: scheduler.now >= 7, 7) == "reached"
    assert (scheduler.now, b.end) == (7, 0)


def test_a_limit_stops_a_run_and_stuck_needs_none():
    a = wait(0)
    scheduler = card(a, kernel(1, 10))
    assert scheduler.run_until(never, 4) == "limit" and scheduler.now == 4
    assert scheduler.run_until(lambda: a.end >= 0) == "stuck" and scheduler.now == 10
    assert scheduler.run_until(lambda: a.end >= 0, 25) == "limit" and scheduler.now == 25
    scheduler.enqueue(notify(2))
    assert scheduler.run_until(lambda: a.end >= 0) == "reached" and a.end == 25


def test_a_dropped_head_does_not_hold_time():
    scheduler = card(mark(0, issue=100), wait(1, timeout=50), kernel(2, 200))
    scheduler.advance_to(10)
    for stream in range(3):
        scheduler.drop_stream(stream)
    assert scheduler.run_until(never) == "stuck" and scheduler.now == 10


def test_a_task_with_two_groups_still_claims():
    """So a look changes nothing: what it finds is what the instant before it left.

    The blocks of a start at 0, 5, 100, 105, 200, 205, 300, 305, 400. While more than one of them waits, the units left
    for b are claimed; at 305 one runs and two wait, so one of four is left.
    """
    for look in (0, 6):
        x, a, b = kernel(0, 5), kernel(1, 100, vector=1, blocks=9), kernel(2, 1, cube=0, vector=1)
        scheduler = card(x, a, b)
        scheduler.advance_to(look)
        scheduler.run_until(never)
        assert b.start == 305
