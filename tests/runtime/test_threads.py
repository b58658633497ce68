"""Host threads: several clocks, one current context each, calls in the order in which they are made."""

import pytest

import ascend_jax as aj
from tests.runtime.cards import HOST_COSTS, SIZES, card_of, code

FILL_NS = 1000
NO_CONTEXT, WRONG, FULL = aj.Code.RT_CONTEXT_NULL, aj.Code.RT_PARAM_INVALID, aj.Code.OBJECT_TABLE_FULL


@pytest.fixture(scope="module")
def card():
    return card_of(HOST_COSTS, SIZES)


def fill(card, device, stream):
    """Queue a fill of 3920 bytes: 20 ns and 3920 / 4 ns on the one engine for fills."""
    return aj.memset_async(card, device, 0, 3920, stream)


def times(card, *threads):
    return [aj.thread_time_ns(card, thread) for thread in threads]


def test_a_thread_starts_where_its_creator_stands(card):
    card = aj.host_work(card, 700)
    card, worker = aj.create_thread(card)
    assert code(card) == 0 and int(worker) == 1
    assert times(card, 0, worker) == [700, 700]
    card = aj.host_work(card, 5)
    card = aj.use_thread(card, worker)
    assert code(card) == 0 and aj.host_time_ns(card) == 700
    card = aj.host_work(card, 2)
    assert times(card, 0, worker) == [705, 702]
    card = aj.use_thread(card, 0)
    assert aj.host_time_ns(card) == 705
    assert times(card, 0, worker) == [705, 702]


def test_clocks_beyond_one_limb(card):
    card, worker = aj.create_thread(card)
    card = aj.host_work(card, 3 * 2**30 + 7)
    card = aj.host_work(aj.use_thread(card, worker), 3 * 2**30 + 6)
    assert times(card, 0, worker) == [3 * 2**30 + 7, 3 * 2**30 + 6]
    assert int(aj.earliest_thread(card)) == 1
    assert int(aj.earliest_thread(aj.host_work(card, 2))) == 0
    assert aj.host_time_ns(aj.join_thread(card, 0)) == 3 * 2**30 + 7


def test_a_thread_has_no_context_until_it_sets_one(card):
    card, primary = aj.get_context(card)
    card, worker = aj.create_thread(card)
    card = aj.use_thread(card, worker)
    after, none = aj.get_context(card)
    assert (code(after), int(none)) == (NO_CONTEXT, -1)
    assert code(aj.create_stream(card)[0]) == NO_CONTEXT
    card = aj.set_device(card)
    after, mine = aj.get_context(card)
    assert (code(after), int(mine)) == (0, int(primary))


def test_each_thread_keeps_its_context(card):
    card, primary = aj.get_context(card)
    card, worker = aj.create_thread(card)
    card, context = aj.create_context(aj.use_thread(card, worker))
    assert int(aj.get_context(aj.use_thread(card, 0))[1]) == int(primary)
    assert int(aj.get_context(aj.use_thread(aj.use_thread(card, 0), worker))[1]) == int(context)


def test_only_the_thread_that_blocks_moves(card):
    card, device = aj.malloc(card, 4096)  # until 10
    card, worker = aj.create_thread(card)
    card = fill(aj.host_work(card, 490), device, 0)  # 510 .. 1510
    card = aj.set_device(aj.use_thread(card, worker))
    card = aj.synchronize_stream(card, 0)  # called at 10
    assert code(card) == 0 and times(card, 0, worker) == [510, 510 + FILL_NS]
    card = fill(aj.use_thread(card, 0), device, 0)  # issued at 520, when the device has come to 1510
    assert aj.host_time_ns(card) == 520
    card = aj.synchronize_stream(card, 0)
    assert times(card, 0, worker) == [1510 + FILL_NS, 1510]
    log = aj.insight.timeline(card)
    assert log.issue_ns.tolist() == [510, 520] and log.end_ns.tolist() == [1510, 2510]


def test_threads_driven_in_the_order_of_their_clocks(card):
    card, worker = aj.create_thread(card)
    work = {0: [30, 30, 30], int(worker): [20, 50, 5]}
    order = []
    while any(work.values()):
        thread = int(aj.earliest_thread(card))
        if not work[thread]:
            card = aj.end_thread(aj.use_thread(card, 1 - thread), thread)
            continue
        order.append((thread, times(card, thread)[0]))
        card = aj.host_work(aj.use_thread(card, thread), work[thread].pop(0))
    # 0 ends at 30, 60, 90; 1 at 20, 70, 75; a tie goes to the lower number
    assert order == [(0, 0), (1, 0), (1, 20), (0, 30), (0, 60), (1, 70)]


def test_joining_waits_and_never_goes_back(card):
    card, worker = aj.create_thread(card)
    card = aj.host_work(aj.use_thread(card, worker), 400)
    card = aj.join_thread(aj.use_thread(card, 0), worker)
    assert code(card) == 0 and times(card, 0, worker) == [400, 400]
    card = aj.join_thread(aj.host_work(card, 1), worker)
    assert times(card, 0, worker) == [401, 400]
    assert times(aj.join_thread(card, 0), 0) == [401]


def test_numbers_come_back_and_run_out(card):
    card, first = aj.create_thread(card)
    card, second = aj.create_thread(card)
    assert (int(first), int(second)) == (1, 2)
    full, none = aj.create_thread(card)
    assert (code(full), int(none)) == (FULL, -1)
    card = aj.end_thread(card, first)
    assert code(card) == 0
    assert code(aj.use_thread(card, first)) == WRONG
    card, again = aj.create_thread(aj.host_work(card, 9))
    assert int(again) == int(first) and times(card, again) == [9]
    assert int(aj.earliest_thread(card)) == int(second)


@pytest.mark.parametrize("thread", [-1, 1, 2, 3, 99, 2**31 - 1, -(2**31)])
def test_unknown_threads(card, thread):
    card = aj.host_work(card, 3)
    for call in (aj.use_thread, aj.join_thread, aj.end_thread):
        after = call(card, thread)
        assert code(after) == WRONG, call
        assert aj.host_time_ns(after) == 3 and code(aj.create_stream(after)[0]) == 0
    with pytest.raises(aj.AscendError) as error:
        aj.thread_time_ns(card, thread)
    assert error.value.code == WRONG


def test_the_current_thread_cannot_end(card):
    assert code(aj.end_thread(card, 0)) == WRONG
    card, worker = aj.create_thread(card)
    card = aj.use_thread(card, worker)
    assert code(aj.end_thread(card, worker)) == WRONG
    assert code(aj.end_thread(card, 0)) == 0


def test_a_thread_that_serves_a_stream_cannot_end(card):
    card, worker = aj.create_thread(card)
    card = aj.subscribe_report(card, worker, 0)
    assert code(aj.end_thread(card, worker)) == aj.Code.RT_STREAM_SUBSCRIBE
    assert code(aj.end_thread(aj.unsubscribe_report(card, worker, 0), worker)) == 0
