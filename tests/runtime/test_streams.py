"""Streams: how many there are, what a program can ask about one, and how one is emptied, stopped and destroyed."""

import dataclasses

import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Reach
from tests.runtime.cards import HOST_COSTS, SIZES, answer, card_of, code

FILL_NS = 1000
NO_STREAM, WRONG, FULL = aj.Code.RT_STREAM_CONTEXT, aj.Code.RT_PARAM_INVALID, aj.Code.RESOURCE_ALLOC_FAIL


@pytest.fixture(scope="module")
def card():
    return card_of(HOST_COSTS, SIZES)


@pytest.fixture(scope="module")
def kit(card):
    """The card at 30 ns with two streams beside the default one, and a device pointer."""
    card, device = aj.malloc(card, 8192)
    card, first = aj.create_stream(card)
    card, second = aj.create_stream(card)
    return card, device, first, second


def fill(card, device, stream):
    """Queue a fill of 3920 bytes: 20 ns and 3920 / 4 ns on the one engine for fills."""
    return aj.memset_async(card, device, 0, 3920, stream)


def ends(card):
    """Return when each command ended, in the order of enqueueing."""
    return aj.insight.timeline(card).end_ns.tolist()


def test_the_count_falls_by_one_and_agrees_with_what_can_be_made(card):
    free = answer(aj.stream_available_count(card))[1]
    assert free == SIZES["max_streams"] - 1
    made = []
    for left in range(free - 1, -1, -1):
        card, stream = aj.create_stream(card)
        assert code(card) == 0 and answer(aj.stream_available_count(card)) == (0, left)
        made.append(int(stream))
    assert len(set(made)) == free and 0 not in made
    assert answer(aj.create_stream(card)) == (FULL, -1)
    card = aj.destroy_stream(card, made[1])
    assert answer(aj.stream_available_count(card)) == (0, 1)
    card, again = aj.create_stream(card)
    assert code(card) == 0 and int(again) not in made
    assert answer(aj.stream_id(card, again)) == answer(aj.stream_id(aj.clear_error(card), again)) == (0, made[1])
    assert answer(aj.create_stream(card)) == (FULL, -1)


def test_the_limit_of_the_product_counts_too(card):
    card = dataclasses.replace(card, chip=card.chip.replace(max_streams=3))
    assert answer(aj.stream_available_count(card)) == (0, 2)
    for _ in range(2):
        card, _ = aj.create_stream(card)
    assert code(card) == 0 and answer(aj.create_stream(card)) == (FULL, -1)
    assert aj.device_info(card)["streams_free"] == 0


def test_a_full_queue_blocks_the_host_until_its_first_task_is_over(kit):
    """Not other streams, and nothing is lost or reordered (CANN: tasks per stream, 2013 on A2)."""
    card, device, first, second = kit
    card = dataclasses.replace(card, chip=card.chip.replace(queue_depth=4))
    for _ in range(6):  # the first four at 40, 50, 60 and 70
        card = fill(card, device, first)
        assert code(card) == 0
    card = fill(card, device, second)
    log = aj.insight.timeline(card)
    assert log.issue_ns.tolist() == [40, 50, 60, 70, 1040 + 10, 2040 + 10, 2060]
    card = aj.synchronize_device(card)
    assert (code(card), ends(card)) == (0, [1040, 2040, 3040, 5040, 6040, 7040, 4040])


def test_priorities_and_flags_are_kept(card):
    assert aj.stream_priority_range(card) == (7, 0)
    for priority, flags in [(7, 0), (3, 1), (0, 0x3F)]:
        card, stream = aj.create_stream(card, priority=priority, flags=flags)
        assert code(card) == 0
        assert answer(aj.stream_priority(card, stream)) == (0, priority)
        assert answer(aj.stream_flags(card, stream)) == (0, flags)
    assert answer(aj.stream_priority(card, 0)) == (0, 0)
    assert answer(aj.stream_flags(card, 0)) == (0, 0)


@pytest.mark.parametrize("options", [{"priority": 8}, {"priority": -1}, {"flags": 0x40}, {"flags": -1}])
def test_unknown_priorities_and_flags(card, options):
    after, stream = aj.create_stream(card, **options)
    assert (code(after), int(stream)) == (WRONG, -1)
    assert answer(aj.stream_available_count(after)) == (0, SIZES["max_streams"] - 1)


@pytest.mark.parametrize("stream", [-1, 3, 4, 5, 6, 99, 2**31 - 1, -(2**31), 1 << 18])
def test_unknown_streams(kit, stream):
    card = kit[0]
    for call in (aj.stream_query, aj.stream_priority, aj.stream_flags, aj.stream_id):
        assert answer(call(card, stream)) == (NO_STREAM, -1), call
    for call in (aj.destroy_stream, aj.destroy_stream_force, aj.stream_abort):
        assert code(call(card, stream)) == NO_STREAM, call
    assert code(aj.set_stream_failure_mode(card, stream, 1)) == NO_STREAM


def test_default_streams_cannot_be_destroyed(kit):
    card = kit[0]
    assert code(aj.destroy_stream(card, 0)) == NO_STREAM
    assert code(aj.destroy_stream_force(card, 0)) == NO_STREAM
    card, _ = aj.create_context(card)
    card, default = aj.current_default_stream(card)
    assert int(default) != 0 and code(aj.destroy_stream(card, default)) == NO_STREAM
    assert code(aj.synchronize_stream(card, default)) == 0


def test_a_destroyed_handle_stays_wrong(kit):
    card, device, first, _ = kit
    card = aj.destroy_stream(card, first)
    assert code(aj.destroy_stream(card, first)) == NO_STREAM
    card, again = aj.create_stream(card)
    assert code(fill(card, device, first)) == NO_STREAM
    assert code(fill(card, device, again)) == 0


def test_destroying_waits_and_forcing_does_not(kit):
    card, device, first, second = kit
    card = fill(card, device, first)  # 40 .. 1040
    card = fill(card, device, second)  # issued at 50
    waited = aj.destroy_stream(card, first)
    assert code(waited) == 0 and aj.host_time_ns(waited) == 40 + FILL_NS
    assert ends(aj.synchronize_device(waited)) == [1040, 2040]
    forced = aj.destroy_stream_force(card, first)  # at 50, so that the other fill starts there
    assert code(forced) == 0 and aj.host_time_ns(forced) == 50
    forced = aj.synchronize_stream(forced, second)
    assert code(forced) == 0 and aj.host_time_ns(forced) == 50 + FILL_NS


def test_callbacks_that_nobody_has_run_go_with_their_stream(kit):
    card, _, first, second = kit
    card = aj.subscribe_report(aj.subscribe_report(card, 0, first), 0, second)
    card = aj.launch_callback(card, first, 7, is_blocking=False)
    card = aj.destroy_stream(aj.launch_callback(card, second, 8, is_blocking=False), first)
    card, number = aj.process_report(card, -1)
    assert (code(card), int(number)) == (0, 8)
    card, again = aj.create_stream(card)
    card, number = aj.process_report(aj.subscribe_report(card, 0, again), 1)
    assert (code(card), int(number)) == (aj.Code.RT_REPORT_TIMEOUT, -1)


def test_a_query_sees_the_present_and_a_loop_of_queries_ends(kit):
    card, device, first, second = kit
    card = fill(card, device, first)  # 40 .. 1040
    assert answer(aj.stream_query(card, first)) == (0, 1)
    assert answer(aj.stream_query(card, second)) == (0, 0)
    almost = aj.stream_query(aj.host_work(card, 989), first)  # at 1039
    assert answer(almost) == (0, 1)
    assert answer(aj.stream_query(aj.host_work(card, 990), first)) == (0, 0)
    rounds, status = 0, 1
    while status == 1:
        card, status = aj.stream_query(card, first)
        rounds += 1
    assert rounds == 100 and aj.host_time_ns(card) == 1040


def test_a_query_after_synchronising_is_complete(kit):
    card, device, first, _ = kit
    for _ in range(5):
        card = fill(card, device, first)
    card = aj.synchronize_stream(card, first)
    assert answer(aj.stream_query(card, first)) == (0, 0)


def test_aborting_drops_what_is_queued_and_what_runs(kit):
    card, device, first, second = kit
    for _ in range(3):
        card = fill(card, device, first)  # issued at 40, 50, 60; the first one runs
    card = fill(card, device, second)  # issued at 70, waits for the engine
    card = aj.stream_abort(aj.host_work(card, 130), first)  # at 200
    assert code(card) == 0 and aj.host_time_ns(card) == 200
    assert answer(aj.stream_query(card, first)) == (0, 0)
    card = fill(card, device, first)  # issued at 210, behind the other stream's fill
    card = aj.synchronize_device(card)
    assert code(card) == 0 and aj.host_time_ns(card) == 200 + 2 * FILL_NS
    log = aj.insight.timeline(card)
    assert log.end_ns.tolist() == [-1, -1, -1, 1200, 2200]
    assert log.start_ns.tolist() == [40, -1, -1, 200, 1200]
    assert code(aj.destroy_stream(card, first)) == 0


def test_aborting_an_idle_stream_changes_nothing(kit):
    card, device, first, _ = kit
    card = aj.synchronize_stream(fill(card, device, first), first)
    before = aj.host_time_ns(card)
    card = aj.stream_abort(card, first)
    assert code(card) == 0 and aj.host_time_ns(card) == before
    assert ends(card) == [40 + FILL_NS]


def test_who_waits_for_what_was_aborted_waits_for_ever(kit):
    card, device, first, second = kit
    card, event = aj.create_event(card)
    card = aj.record_event(fill(card, device, first), event, first)
    card = aj.stream_abort(aj.stream_wait_event(card, second, event), first)
    assert code(aj.synchronize_stream(card, second)) == aj.Code.DEADLOCK
    after = aj.destroy_stream(card, second)
    assert code(after) == aj.Code.DEADLOCK and answer(aj.stream_query(after, second)) == (0, 1)
    assert code(aj.destroy_stream_force(after, second)) == 0
    assert code(aj.synchronize_stream(aj.stream_abort(card, second), second)) == 0


def failing(card, device, stream):
    """Queue three fills of which the first fails, and nothing else, when it ends."""
    card = aj.inject_fault(card, aj.Code.RT_SYS_DMA, reach=Reach.STREAM)
    for _ in range(3):
        card = fill(card, device, stream)
    return card


def test_by_default_a_stream_goes_on_after_a_failure(kit):
    card, device, first, _ = kit
    card = aj.synchronize_stream(failing(card, device, first), first)
    assert code(card) == aj.Code.RT_SYS_DMA and aj.host_time_ns(card) == 40 + 3 * FILL_NS
    assert answer(aj.stream_query(card, first)) == (aj.Code.RT_SYS_DMA, -1)
    assert code(fill(card, device, first)) == 0
    assert code(aj.destroy_stream(card, first)) == 0


def test_a_stopping_stream_drops_the_rest_and_takes_nothing_more(kit):
    card, device, first, second = kit
    card = aj.set_stream_failure_mode(card, first, 1)
    assert code(card) == 0
    card = aj.synchronize_stream(failing(card, device, first), first)
    assert code(card) == aj.Code.RT_SYS_DMA and aj.host_time_ns(card) == 40 + FILL_NS
    assert code(fill(card, device, first)) == aj.Code.RT_SYS_DMA
    assert code(fill(card, device, second)) == 0
    card = aj.destroy_stream(card, first)
    assert code(card) == 0
    card, again = aj.create_stream(card)  # in the same slot, without its predecessor's error
    assert code(fill(card, device, again)) == 0
    assert answer(aj.stream_query(card, again)) == (0, 0)


def test_stopping_holds_for_the_streams_of_that_context(kit):
    card, device, first, second = kit
    _, primary = aj.get_context(card)
    card, other = aj.create_context(card)
    card = aj.set_stream_failure_mode(aj.set_context(card, primary), second, 1)
    card, later = aj.create_stream(card)
    for stream in (0, first, second, later):
        after = aj.synchronize_stream(failing(card, device, stream), stream)
        assert code(fill(after, device, stream)) == aj.Code.RT_SYS_DMA, stream
    card = aj.set_context(card, other)
    after = aj.synchronize_stream(failing(card, device, 0), 0)
    assert code(after) == aj.Code.RT_SYS_DMA and code(fill(after, device, 0)) == 0


def test_failure_modes_that_are_refused(kit):
    card, _, first, second = kit
    for mode in (2, -1):
        assert code(aj.set_stream_failure_mode(card, first, mode)) == WRONG
    card = aj.set_stream_failure_mode(card, first, 0)
    assert code(card) == 0
    card = aj.set_stream_failure_mode(aj.set_stream_failure_mode(card, first, 1), first, 1)
    assert code(card) == 0
    for stream in (first, second, 0):
        assert code(aj.set_stream_failure_mode(card, stream, 0)) == aj.Code.FEATURE_NOT_SUPPORT


def test_priority_orders_the_queue_for_an_engine_and_stops_nobody(card):
    card, device = aj.malloc(card, 8192)
    card, low = aj.create_stream(card, priority=7)
    card, middle = aj.create_stream(card, priority=3)
    card, high = aj.create_stream(card, priority=0)
    for stream in (low, middle, high):
        card = fill(card, device, stream)  # issued at 50, 60, 70
    card = aj.synchronize_device(card)
    assert ends(card) == [50 + FILL_NS, 50 + 3 * FILL_NS, 50 + 2 * FILL_NS]


def test_priorities_have_no_effect_on_a2(card):
    assert aj.chip("Ascend910B2")["has_priorities"] == 0 < aj.chip("Ascend310P3")["has_priorities"]
    card, device = aj.malloc(dataclasses.replace(card, chip=card.chip.replace(has_priorities=0)), 8192)
    card, low = aj.create_stream(card, priority=7)
    card, high = aj.create_stream(card, priority=0)
    for stream in (low, low, high):
        card = fill(card, device, stream)  # issued at 40, 50, 60; the second is ready when the first is over
    card = aj.synchronize_device(card)
    assert ends(card) == [40 + FILL_NS, 40 + 3 * FILL_NS, 40 + 2 * FILL_NS]
    assert answer(aj.stream_priority(card, low)) == (0, 7)


def test_equal_priorities_go_in_the_order_of_submission(card):
    card, device = aj.malloc(card, 8192)
    card, one = aj.create_stream(card)
    card, two = aj.create_stream(card)
    card = aj.synchronize_device(fill(fill(card, device, two), device, one))
    assert ends(card) == [40 + FILL_NS, 40 + 2 * FILL_NS]
