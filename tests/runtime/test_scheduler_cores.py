"""The scheduler against hand-computed cases: cores, copy engines and shared bandwidth."""

from tests.runtime.command_lists import copy, kernel, run, spans
from tests.runtime.scheduler import Command


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
