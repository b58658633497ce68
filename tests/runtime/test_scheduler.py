"""The scheduler against hand-computed cases, and what must hold in random lists."""

import random

import pytest

from tests.runtime.random_tasks import CAPACITY, describe, random_commands
from tests.runtime.scheduler import FULL_RATE, POOL, WORD, Command, Scheduler, is_met

HALF = WORD // 2


def kernel(stream, block, **given):
    return Command("kernel", stream, **{"cube": 1, "block": block} | given)


def copy(stream, block, engine, **given):
    return Command("copy", stream, block=block, engine=engine, **given)


def notify(stream, cell=0, **given):
    return Command("notify record", stream, cell=cell, effect="SET", value2=1, **given)


def wait(stream, cell=0, **given):
    options = {"timeout_code": 107019, "timeout_reach": "stream"} | given
    return Command("notify wait", stream, cell=cell, condition="GE", value=1, effect="SET", **options)


def mark(stream, **given):
    return Command("callback", stream, **given)


def card(*commands, cube=2, vector=4, stop=(), **engines):
    """A scheduler with its commands enqueued and a trace of what happens."""
    capacity = {"cube": cube, "vector": vector, "h2d": 1, "d2h": 1, "d2d": 1} | engines
    scheduler = Scheduler(capacity, 4, 4, stop)
    scheduler.trace = []
    scheduler.on_start = lambda command: scheduler.trace.append(("start", command))
    scheduler.on_end = lambda command: scheduler.trace.append(("end", command))
    for command in commands:
        scheduler.enqueue(command)
    return scheduler


def never():
    return False


def run(*commands, **options):
    scheduler = card(*commands, **options)
    assert scheduler.run_until(never) == "stuck"
    return scheduler


def spans(*commands):
    return [(command.start, command.end) for command in commands]


# Cores.


def test_blocks_run_in_waves_and_the_head_is_paid_once():
    a = kernel(0, 10, blocks=5, head=3)
    run(a)  # 2 blocks 0..13, 2 blocks 13..23, 1 block 23..33
    assert (a.ready, a.start, a.end) == (0, 0, 33)


def test_mode_0_takes_the_cores_that_are_left():
    a, b = kernel(0, 10, blocks=3), kernel(1, 4, blocks=2)
    run(a, b, cube=4)  # b gets 4 - 3 = 1 core: 0..4, then 4..8
    assert spans(a, b) == [(0, 10), (0, 8)]


def test_mode_1_waits_for_all_its_cores_and_nobody_overtakes():
    a, b, c = kernel(0, 10, blocks=3), kernel(1, 4, blocks=2, mode=1), kernel(2, 1)
    run(a, b, c, cube=4)  # one core is free, b needs two; for c: 4 - 3 - 2 < 0
    assert spans(a, b, c) == [(0, 10), (10, 14), (10, 11)]


def test_mode_1_of_more_blocks_than_cores_never_starts():
    a, b = kernel(0, 4, blocks=3, mode=1), kernel(1, 4)
    run(a, b)
    assert spans(a, b) == [(-1, -1), (-1, -1)]
    assert a.ready == b.ready == 0


def test_smaller_priority_goes_first_then_the_slot():
    a, b, c = kernel(0, 5, priority=3), kernel(1, 5, priority=1), kernel(2, 5, priority=3)
    run(c, a, b, cube=1)
    assert spans(b, a, c) == [(0, 5), (5, 10), (10, 15)]


def test_at_one_priority_who_was_ready_first_goes_first():
    a, b, c = kernel(2, 5), kernel(1, 5, issue=1), kernel(0, 5, issue=2)
    run(a, b, c, cube=1)
    assert spans(a, b, c) == [(0, 5), (5, 10), (10, 15)]
    assert (b.ready, c.ready) == (1, 2)


def test_an_urgent_task_goes_between_two_waves():
    a, b = kernel(0, 5, blocks=3, priority=1), kernel(1, 5, issue=1)
    run(a, b, cube=1)  # a 0..5, b 5..10, a 10..15 and 15..20
    assert spans(a, b) == [(0, 20), (5, 10)]


def test_a_task_has_at_most_two_groups_under_way():
    x, y, a = kernel(0, 4), kernel(1, 6), kernel(2, 10, blocks=6)
    run(x, y, a, cube=3)
    # a: 1 block 0..10, 1 block 4..14, none at 6 though a core is free, 2 blocks 10..20, 1 block 14..24, 1 block 20..30
    assert spans(x, y, a) == [(0, 4), (0, 6), (0, 30)]


def test_a_block_of_both_kinds_needs_both():
    a = kernel(0, 5, vector=2, blocks=2)  # one of its blocks fits in 3 vector cores
    b = kernel(1, 5, cube=0, vector=1)  # at 0: 3 - 2 * 2 < 1; at 5: 3 - 2
    c = kernel(2, 5)  # at 0: 2 - 2 < 1; at 5: 2 - 1
    run(a, b, c, cube=2, vector=3)
    assert spans(a, b, c) == [(0, 10), (5, 10), (5, 10)]


def test_a_task_that_needs_no_core_starts_whole():
    a, b = kernel(0, 10, blocks=9), Command("memset", 1, blocks=50, block=3, head=1)
    run(a, b)
    assert b.end == 4


def test_copies_hold_an_engine_and_no_core():
    up, more, down = copy(0, 10, "h2d", blocks=3), copy(1, 7, "h2d"), copy(2, 10, "d2h")
    inside, core = copy(3, 4, "d2d", blocks=2, head=1), kernel(2, 5, blocks=2)
    run(up, more, down, inside, core)
    assert spans(up, more, down, inside, core) == [(0, 30), (30, 37), (0, 10), (0, 9), (10, 15)]


def test_two_units_of_an_engine_take_two_blocks():
    up, more = copy(0, 10, "h2d", blocks=3), copy(1, 7, "h2d")
    run(up, more, h2d=2)  # two blocks 0..10, one 10..20 beside `more`
    assert spans(up, more) == [(0, 20), (10, 17)]


def test_a_stream_is_a_queue_and_issue_times_hold_it_up():
    a, b, c = kernel(0, 3, issue=5), kernel(0, 4), kernel(1, 20)
    run(a, b, c)
    assert [(x.ready, x.start, x.end) for x in (a, b, c)] == [(5, 5, 8), (8, 8, 12), (0, 0, 20)]


# Bandwidth. 256 * 65536 = 16777216; a block of 100 ns is 25600 of work.


def test_two_that_ask_for_too_much_share_evenly():
    a, b, c = kernel(0, 100, hbm=40_000), kernel(1, 100, hbm=40_000), kernel(2, 100)
    run(a, b, c, cube=3)  # 16777216 / (2 * 40000) = 209.7; 25600 / 209 = 122.5; c asks for nothing
    assert spans(a, b, c) == [(0, 123), (0, 123), (0, 100)]


def test_who_asks_for_little_is_satisfied_and_the_rest_is_shared():
    a, b, c = (kernel(slot, 100, l2=share) for slot, share in enumerate((10_000, 40_000, 60_000)))
    run(a, b, c, cube=3)
    # 0: a full (3 * 10000 fits); rest 55536: 256 * 55536 = 14217216; b / 80000 = 177.7, c / 120000 = 118.5
    # 100: a over; b has 25600 - 17700 = 7900 left at 16777216 / 80000 = 209.7, 38 ns; c has 13800 left at 139.8
    # 138: b over; c has 13800 - 38 * 139 = 8518 left at the full rate, 33.3 ns
    assert spans(a, b, c) == [(0, 100), (0, 138), (0, 172)]


def test_the_scarcer_pool_decides():
    a = kernel(0, 100, hbm=40_000)  # 209, as above
    b = kernel(1, 100, hbm=40_000, l2=60_000)  # 209 and 16777216 / 120000 = 139.8
    c = kernel(2, 100, l2=60_000)  # 139
    run(a, b, c, cube=3)  # 25600 / 139 = 184.2; that b has all of HBM after 123 does not help it
    assert spans(a, b, c) == [(0, 123), (0, 185), (0, 185)]


def test_what_fits_exactly_is_not_slowed():
    a = kernel(0, 100, hbm=16_384, blocks=4)
    run(a, cube=4)
    assert a.end == 100


def test_every_running_block_counts():
    a = kernel(0, 100, hbm=30_000, blocks=3)
    run(a, cube=3)  # 16777216 / (3 * 30000) = 186.4; 25600 / 186 = 137.6
    assert a.end == 138


def test_a_wave_of_fewer_blocks_runs_faster():
    a = kernel(0, 100, hbm=40_000, blocks=3)
    run(a)  # two blocks at 209: 0..123; one at the full rate: 123..223
    assert a.end == 223


def test_two_groups_of_one_task_have_one_rate():
    x, a = kernel(0, 10), kernel(1, 100, hbm=40_000, blocks=2)
    run(x, a)
    # a: one block from 0 at 256, a second from 10; then both at 209
    # first: 25600 - 2560 = 23040, 110.2 ns, over at 121; second: 25600 - 111 * 209 = 2401 left, 9.4 ns at 256
    assert a.end == 131


def test_the_rate_is_never_less_than_one():
    a = kernel(0, 2, hbm=65_535, blocks=300)
    run(a, cube=300)  # 16777216 / (300 * 65535) < 1
    assert a.end == 512


def test_copies_share_the_same_pool():
    a, b = copy(0, 100, "h2d", hbm=40_000), kernel(1, 100, hbm=40_000)
    run(a, b)
    assert spans(a, b) == [(0, 123), (0, 123)]


# Marks.


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


# Failure.


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


# Random lists.


class Watched(Scheduler):
    """Looks at what runs whenever time is about to move, and does the work of each group step by step."""

    def __init__(self, *args):
        super().__init__(*args)
        self.left = {}

    def _move_time(self, limit):
        used, asked = dict.fromkeys(self.capacity, 0), {"hbm": 0, "l2": 0}
        for task in self._tasks.values():
            assert len(task.groups) <= 2
            for group in task.groups:
                self.left.setdefault(group, group.work)
                for unit, count in task.command.needs.items():
                    used[unit] += count * group.blocks
                for pool in asked:
                    asked[pool] += getattr(task.command, pool) * group.blocks * group.rate
        assert used == self.in_use
        assert all(used[unit] <= self.capacity[unit] for unit in used)
        assert all(work <= POOL * FULL_RATE for work in asked.values())
        assert all(0 <= cell < WORD for cell in self.cells)
        self.watch(used)
        before = self.now
        rates = {group: group.rate for task in self._tasks.values() for group in task.groups}
        moved = super()._move_time(limit)
        assert not moved or self.now > before
        for group, rate in rates.items():
            self.left[group] -= rate * (self.now - before)
            assert group.over == (self.left[group] <= 0)
        return moved

    def watch(self, used):
        """More to hold in a subclass."""


class Busy(Watched):
    """No unit idles that a waiting task could take, unless one with two groups under way asks for it."""

    def watch(self, used):
        waiting = [task for task in self._tasks.values() if task.waiting]
        for unit in self.capacity:
            asking = [task for task in waiting if unit in task.command.needs]
            if asking and all(len(task.groups) < 2 for task in asking):
                assert self.capacity[unit] - used[unit] < max(task.command.needs[unit] for task in asking)


def random_run(seed, kind=Watched, change=lambda command: None, looks=0):
    rng = random.Random(seed)
    commands = random_commands(rng, 40, ties=seed % 3 > 0)
    scheduler = kind(CAPACITY, 4, 4, {0} if seed % 2 else ())
    for command in commands:
        change(command)
        scheduler.enqueue(command)
    if looks:
        for limit in range(0, looks, 1 + seed % 3):
            scheduler.advance_to(limit)
    assert scheduler.run_until(never) == "stuck"
    return commands, scheduler


def times(commands):
    return [(command.ready, command.start, command.end, command.result, command.dropped) for command in commands]


@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, 300, 50)], ids=str)
def test_random_lists_keep_order(seeds):
    for seed in seeds:
        commands, scheduler = random_run(seed)
        for slot in range(3):
            queue = [command for command in commands if command.stream == slot]
            fates = ["end" if x.end >= 0 else "dropped" if x.dropped else "waits" for x in queue]
            assert fates == sorted(fates, key=["end", "dropped", "waits"].index), seed
            earlier = 0
            for x in (x for x in queue if x.end >= 0):
                text = f"{seed}: {describe(x)}"
                assert max(earlier, x.issue) <= x.ready <= x.start <= x.end, text
                assert x.end >= (x.depends.end if x.depends and not x.result else 0), text
                if x.is_task and x.result in (0, x.fault):
                    assert x.end - x.start >= x.head + x.block, text
                if not x.is_task:
                    assert x.ready <= x.start == x.end, text
                earlier = x.end
        failed = [x for x in commands if x.result]
        assert bool(failed) == bool(scheduler.device_error or any(scheduler.stream_error.values()))
        assert all(x.dropped or x.end >= 0 for x in commands) or not scheduler.device_error


def test_random_lists_leave_no_unit_idle():
    def simplify(command):
        command.mode = 0
        command.vector *= not command.cube

    for seed in range(300):
        random_run(seed, Busy, simplify)


def test_looks_change_nothing():
    for seed in range(300):
        whole, _ = random_run(seed)
        looked, _ = random_run(seed, looks=60)
        assert times(whole) == times(looked), seed


def test_random_lists_cover_what_they_should():
    """The generator reaches every kind, both ends of a list, and every way to fail."""
    seen = set()
    for seed in range(300):
        commands, _ = random_run(seed)
        for x in commands:
            fate = "failed" if x.result else "done" if x.end >= 0 else "dropped" if x.dropped else "waits"
            seen |= {x.kind, x.condition, x.effect, x.engine, fate, ("mode", x.mode, x.end >= 0)}
            seen |= {("fault", x.reach)} if x.result == x.fault != 0 else set()
            seen |= {("late", x.is_task)} if x.result and x.result == x.timeout_code else set()
        seen.add(("all done", all(x.end >= 0 for x in commands)))
    kinds = {"event record", "event wait", "event reset", "notify record", "notify wait", "value write", "value wait"}
    assert seen >= kinds | {
        "callback",
        "callback wait",
        "kernel",
        "copy",
        "memset",
        "GE",
        "EQ",
        "AND",
        "NOR",
        "SET",
        "ADD",
    }
    assert seen >= {"h2d", "d2h", "d2d", "failed", "done", "dropped", "waits", ("all done", True), ("all done", False)}
    assert seen >= {("mode", mode, done) for mode in (0, 1) for done in (True, False)}
    assert seen >= {("fault", "stream"), ("fault", "device")}
    assert seen >= {("late", False), ("late", True)}
