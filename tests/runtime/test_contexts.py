"""Contexts: who owns what, what the calling thread uses, and what goes with a destroyed context."""

import pytest

import ascend_jax as aj
from tests.runtime.cards import HOST_COSTS, SIZES, answer, card_of, code

FILL_NS, COPY_NS = 1000, 500  # of the two calls below
NO_CONTEXT, NO_STREAM, WRONG = aj.Code.RT_CONTEXT_NULL, aj.Code.RT_STREAM_CONTEXT, aj.Code.RT_PARAM_INVALID


@pytest.fixture(scope="module")
def card():
    return card_of(HOST_COSTS, SIZES)


@pytest.fixture(scope="module")
def loaded(card):
    """The card, a device pointer and a pinned host pointer."""
    card, device = aj.malloc(card, 8192)
    card, host = aj.malloc_host(card, 4096)
    return card, device, host


def fill(card, device, stream):
    """Queue a fill of 3920 bytes: 20 ns and 3920 / 4 ns on the one engine for fills."""
    return aj.memset_async(card, device, 0, 3920, stream)


def copy(card, device, host, stream):
    """Queue a copy of 480 bytes to the device: 20 ns and 480 ns on an engine of its own."""
    return aj.memcpy_async(card, device, host, 480, stream)


def test_a_fresh_card_has_its_primary_context_current(card):
    card, context = aj.get_context(card)
    assert code(card) == 0 and int(context) != -1
    assert answer(aj.current_default_stream(card)) == (0, 0)
    assert answer(aj.stream_available_count(card)) == (0, SIZES["max_streams"] - 1)


def test_a_new_context_is_current_and_counts_a_stream(card):
    _, primary = aj.get_context(card)
    card, context = aj.create_context(card)
    assert code(card) == 0 and aj.host_time_ns(card) == 10
    assert int(aj.get_context(card)[1]) == int(context) != int(primary)
    assert answer(aj.stream_available_count(card)) == (0, SIZES["max_streams"] - 2)
    _, default = aj.current_default_stream(card)
    assert int(default) != 0
    card = aj.set_context(card, primary)
    assert code(card) == 0 and int(aj.get_context(card)[1]) == int(primary)
    assert answer(aj.current_default_stream(card)) == (0, 0)


def test_streams_belong_to_one_context(loaded):
    card, device, host = loaded
    _, primary = aj.get_context(card)
    card, mine = aj.create_stream(card)
    card, event = aj.create_event_ex_with_flag(card, aj.EventFlag.SYNC)  # may be waited for before its first record
    card, other = aj.create_context(card)
    calls = {
        "destroy": lambda card: aj.destroy_stream(card, mine),
        "force": lambda card: aj.destroy_stream_force(card, mine),
        "record": lambda card: aj.record_event(card, event, mine),
        "wait": lambda card: aj.stream_wait_event(card, mine, event),
        "synchronize": lambda card: aj.synchronize_stream(card, mine),
        "fill": lambda card: fill(card, device, mine),
        "copy": lambda card: copy(card, device, host, mine),
        "abort": lambda card: aj.stream_abort(card, mine),
        "mode": lambda card: aj.set_stream_failure_mode(card, mine, 1),
        "query": lambda card: aj.stream_query(card, mine)[0],
        "priority": lambda card: aj.stream_priority(card, mine)[0],
        "flags": lambda card: aj.stream_flags(card, mine)[0],
        "id": lambda card: aj.stream_id(card, mine)[0],
    }
    for name, call in calls.items():
        assert code(call(card)) == NO_STREAM, name
        assert code(call(aj.set_context(card, primary))) == 0, name
    card, its = aj.create_stream(card)
    assert code(fill(aj.set_context(card, primary), device, its)) == NO_STREAM
    assert code(fill(aj.set_context(card, other), device, its)) == 0


def test_handle_0_is_the_default_stream_of_the_current_context(loaded):
    card, device, host = loaded
    _, primary = aj.get_context(card)
    card = fill(card, device, 0)  # 30 .. 1030, whatever the other context's default stream does
    card, _ = aj.create_context(card)
    card = copy(card, device, host, 0)
    assert aj.host_time_ns(card) == 50 and answer(aj.stream_id(card, 0))[1] != 0
    there = aj.synchronize_stream(card, 0)
    assert aj.host_time_ns(there) == 50 + COPY_NS
    back = aj.synchronize_stream(aj.set_context(card, primary), 0)
    assert aj.host_time_ns(back) == 30 + FILL_NS
    assert code(there) == code(back) == 0


def test_what_cannot_be_destroyed_or_set(card):
    _, primary = aj.get_context(card)
    card, context = aj.create_context(card)
    assert code(aj.destroy_context(card, primary)) == NO_CONTEXT
    card = aj.set_context(card, primary)
    card = aj.destroy_context(card, context)
    assert code(card) == 0
    assert code(aj.destroy_context(card, context)) == NO_CONTEXT
    for handle in (int(context), -1, 1, 2, 3, 99, 2**31 - 1, -(2**31)):
        after = aj.set_context(card, handle)
        assert code(after) == WRONG
        assert int(aj.get_context(after)[1]) == int(primary)
        assert code(aj.destroy_context(card, handle)) == NO_CONTEXT


def test_a_destroyed_handle_stays_wrong_in_a_slot_that_is_used_again(card):
    _, primary = aj.get_context(card)
    card, first = aj.create_context(card)
    card = aj.destroy_context(card, first)
    card, second = aj.create_context(card)
    assert int(first) != int(second)
    assert code(aj.set_context(card, first)) == WRONG
    assert code(aj.set_context(card, second)) == 0
    assert int(primary) == int(aj.get_context(aj.set_context(card, primary))[1])


def test_destroying_the_current_context_leaves_none(loaded):
    card, device, _ = loaded
    card, event = aj.create_event(card)
    card, context = aj.create_context(card)
    card = aj.destroy_context(card, context)
    assert code(card) == 0
    assert answer(aj.get_context(card)) == (NO_CONTEXT, -1)
    assert answer(aj.current_default_stream(card)) == (NO_CONTEXT, -1)
    assert answer(aj.create_stream(card)) == (NO_CONTEXT, -1)
    assert answer(aj.stream_available_count(card)) == (NO_CONTEXT, 0)
    assert answer(aj.stream_query(card, 0)) == (NO_CONTEXT, -1)
    assert code(fill(card, device, 0)) == NO_CONTEXT
    assert code(aj.record_event(card, event, 0)) == NO_CONTEXT
    assert code(aj.synchronize_stream(card, 0)) == NO_CONTEXT
    assert code(aj.destroy_stream(card, 0)) == NO_CONTEXT
    card = aj.set_device(card)
    assert code(card) == 0 and code(fill(card, device, 0)) == 0


def test_a_thread_whose_context_is_destroyed_by_another_has_none(card):
    _, primary = aj.get_context(card)
    card, context = aj.create_context(card)
    card, worker = aj.create_thread(card)
    card = aj.set_context(aj.use_thread(card, worker), context)
    card, stream = aj.create_stream(card)
    assert code(card) == 0
    card = aj.use_thread(card, 0)
    card = aj.destroy_context(aj.set_context(card, primary), context)
    card, again = aj.create_context(card)  # takes the same slot
    card = aj.use_thread(card, worker)
    assert answer(aj.get_context(card)) == (NO_CONTEXT, -1)
    assert code(aj.stream_query(card, stream)[0]) == NO_CONTEXT
    assert code(aj.set_context(card, again)) == 0
    assert code(aj.stream_query(aj.set_context(card, again), stream)[0]) == NO_STREAM


def test_destroying_waits_for_the_streams_of_that_context_only(loaded):
    card, device, host = loaded
    _, primary = aj.get_context(card)
    card = fill(card, device, 0)  # 30 .. 1030
    card, context = aj.create_context(card)
    card, stream = aj.create_stream(card)
    card = copy(card, device, host, 0)  # 60 .. 560
    card = copy(card, device, host, stream)  # 560 .. 1060
    card = aj.set_context(card, primary)
    card, more = aj.create_stream(card)
    card = fill(card, device, more)  # 1030 .. 2030
    assert aj.host_time_ns(card) == 90
    card = aj.destroy_context(card, context)
    assert code(card) == 0 and aj.host_time_ns(card) == 560 + COPY_NS
    assert code(aj.synchronize_stream(card, stream)) == NO_STREAM
    assert answer(aj.stream_available_count(card)) == (0, SIZES["max_streams"] - 2)
    assert answer(aj.stream_query(card, more)) == (0, 1)
    card = aj.synchronize_device(card)
    assert aj.host_time_ns(card) == 1030 + FILL_NS
    log = aj.insight.timeline(card)
    assert sorted(log.end_ns.tolist()) == [560, 1030, 1060, 2030]


def test_events_go_with_their_context(card):
    _, primary = aj.get_context(card)
    card, kept = aj.create_event(card)
    card, context = aj.create_context(card)
    card, gone = aj.create_event(card)
    card = aj.record_event(card, gone, 0)
    card = aj.destroy_context(aj.set_context(card, primary), context)
    assert code(aj.record_event(card, gone, 0)) == WRONG
    assert code(aj.record_event(card, kept, 0)) == 0
    for _ in range(SIZES["max_events"] - 1):
        card, event = aj.create_event(card)
        assert code(card) == 0 and int(event) != int(gone)


def stuck(card, device):
    """Let stream b wait for an event whose record, in stream a, was dropped; both are of the current context."""
    card, a = aj.create_stream(card)
    card, b = aj.create_stream(card)
    card, event = aj.create_event(card)
    card = aj.stream_wait_event(aj.record_event(fill(card, device, a), event, a), b, event)
    return aj.stream_abort(card, a), b


def test_a_context_that_can_never_finish_stays(loaded):
    card, device, _ = loaded
    card, context = aj.create_context(card)
    card, stream = stuck(card, device)
    assert code(card) == 0
    after = aj.destroy_context(card, context)
    assert code(after) == aj.Code.DEADLOCK
    assert answer(aj.get_context(after)) == (0, int(context))
    assert answer(aj.stream_query(after, stream)) == (0, 1)
    after = aj.destroy_context(aj.stream_abort(after, stream), context)
    assert code(after) == 0 and code(aj.set_context(after, context)) == WRONG


def test_tables_are_finite_and_slots_come_back(card):
    made = []
    for _ in range(SIZES["max_contexts"] - 1):
        card, context = aj.create_context(card)
        made.append(int(context))
        assert code(card) == 0
    assert answer(aj.create_context(card)) == (aj.Code.OBJECT_TABLE_FULL, -1)
    assert int(aj.get_context(aj.create_context(card)[0])[1]) == made[-1]
    card = aj.destroy_context(card, made[0])
    card, _ = aj.create_context(card)
    assert code(card) == 0
    for _ in range(SIZES["max_streams"] - SIZES["max_contexts"]):
        card, _ = aj.create_stream(card)
    assert answer(aj.create_stream(card)) == (aj.Code.RESOURCE_ALLOC_FAIL, -1)
    card = aj.destroy_context(card, made[1])
    assert code(aj.create_context(card)[0]) == 0
    card, _ = aj.create_stream(aj.set_device(card))
    assert code(card) == 0
    assert answer(aj.create_context(card)) == (aj.Code.RESOURCE_ALLOC_FAIL, -1)
