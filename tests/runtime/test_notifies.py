"""Notifies: one record releases one wait, in either order of issue."""

import dataclasses

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import NONE, Clock, Field, Kind, Phase, Time
from tests.runtime.cards import code, fill

WRONG = aj.Code.RT_PARAM_INVALID


@pytest.fixture(scope="module")
def card(two_streams):
    """Notify 0 on a card with streams 1 and 2; the host stands at 40."""
    card, notify = aj.create_notify(two_streams)
    assert (int(notify), aj.host_time_ns(card)) == (0, 40)
    return card


def waits(card):
    """Return (stream, when it is over) of the waits in the order of issue; None for one that is not over."""
    count = int(card.clock[Clock.ENQUEUED])
    fields, times = np.asarray(card.table.fields)[:count], np.asarray(card.table.times)[:count]
    return [
        (int(row[Field.STREAM]), int(time[Time.END_LO]) if time[Time.PHASE] >= Phase.DONE else None)
        for row, time in zip(fields, times, strict=True)
        if row[Field.KIND] == Kind.NOTIFY_WAIT
    ]


@pytest.mark.parametrize("wait_first", [True, False])
def test_a_wait_and_a_record_in_either_order_of_issue(card, wait_first):
    if wait_first:
        card = aj.wait_and_reset_notify(card, 0, 2)  # issued at 50
    card = aj.record_notify(fill(card, 1, 1000), 0, 1)
    if not wait_first:
        card = aj.wait_and_reset_notify(card, 0, 2)  # issued at 70
    card = aj.synchronize_device(card)
    assert code(card) == 0
    start = 60 if wait_first else 50
    assert waits(card) == [(2, start + 1000)]


def test_one_record_releases_one_wait(card):
    card = aj.wait_and_reset_notify(card, 0, 2)
    card = aj.wait_and_reset_notify(card, 0, 1)
    card = aj.record_notify(fill(card, 0, 1000), 0, 0)  # 70 to 1070
    card = aj.record_notify(fill(card, 0, 500), 0, 0)  # 1070 to 1570
    card = aj.synchronize_device(card)
    assert waits(card) == [(2, 1570), (1, 1070)]  # the lower stream first


def test_two_records_before_a_wait_count_once(card):
    card = aj.record_notify(aj.record_notify(card, 0, 1), 0, 1)
    card = aj.host_work(card, 100)
    card = aj.wait_and_reset_notify(card, 0, 2)
    card = aj.wait_and_reset_notify(card, 0, 2)
    assert code(aj.synchronize_stream(card, 2)) == aj.Code.DEADLOCK
    card = aj.synchronize_stream(aj.record_notify(card, 0, 1), 2)
    assert code(card) == 0


def test_a_timeout_fails_the_stream_and_clears_nothing(card):
    assert code(aj.wait_and_reset_notify(card, 0, 2, -1)) == WRONG
    card = aj.wait_and_reset_notify(card, 0, 2, 2)  # issued at 50
    card = aj.synchronize_stream(card, 2)
    assert code(card) == aj.Code.RT_WAIT_TIMEOUT
    assert aj.host_time_ns(card) == 50 + 2 * 10**9
    card = aj.wait_and_reset_notify(aj.record_notify(card, 0, 1), 0, 0)
    assert code(aj.synchronize_stream(card, 0)) == 0


def test_batch_reset(card):
    card, other = aj.create_notify(card)
    card = aj.record_notify(aj.record_notify(card, 0, 1), other, 1)
    card = aj.host_work(card, 100)
    for refused in (aj.notify_batch_reset(card, []), aj.notify_batch_reset(card, [0, other, 2])):
        assert code(refused) == WRONG
        kept = aj.wait_and_reset_notify(aj.wait_and_reset_notify(refused, 0, 2), other, 2)
        assert code(aj.synchronize_stream(kept, 2)) == 0
    cleared = aj.notify_batch_reset(card, iter([0]))
    assert code(cleared) == 0
    held = aj.wait_and_reset_notify(cleared, 0, 2)
    assert code(aj.synchronize_stream(held, 2)) == aj.Code.DEADLOCK
    passed = aj.wait_and_reset_notify(cleared, other, 2)
    assert code(aj.synchronize_stream(passed, 2)) == 0


def test_notifies_run_out_and_come_back_with_new_handles(card):
    card, second = aj.create_notify(card, 1)
    assert (int(second), code(card)) == (1, 0)
    full, none = aj.create_notify(card)
    assert (int(none), code(full)) == (NONE, aj.Code.NO_NOTIFY_RESOURCE)
    assert code(aj.create_notify(card, 2)[0]) == WRONG
    card = aj.destroy_notify(card, 0)
    assert code(card) == 0
    for call in (aj.destroy_notify, lambda c, n: aj.record_notify(c, n, 1), lambda c, n: aj.notify_id(c, n)[0]):
        assert code(call(card, 0)) == WRONG
    assert code(aj.wait_and_reset_notify(card, 0, 1)) == WRONG
    card, again = aj.create_notify(card)
    assert int(again) == 1 << 18
    card, number = aj.notify_id(card, again)
    assert (int(number), code(card)) == (0, 0)
    few = dataclasses.replace(card, chip=card.chip.replace(max_notifies=1))
    few = aj.destroy_notify(few, second)
    assert code(aj.create_notify(few)[0]) == aj.Code.NO_NOTIFY_RESOURCE


def test_a_notify_does_not_meet_its_predecessors_waits(card):
    card = aj.wait_and_reset_notify(card, 0, 2)
    card, new = aj.create_notify(aj.destroy_notify(card, 0))
    assert int(new) == 1
    card = aj.record_notify(card, new, 1)
    assert code(aj.synchronize_stream(card, 2)) == aj.Code.DEADLOCK
    full, none = aj.create_notify(card)
    assert (int(none), code(full)) == (NONE, aj.Code.NO_NOTIFY_RESOURCE)  # slot 0 is still in use


@pytest.mark.parametrize("stream", [-1, 3, 99])
def test_unknown_streams(card, stream):
    for after in (aj.record_notify(card, 0, stream), aj.wait_and_reset_notify(card, 0, stream)):
        assert code(after) == aj.Code.RT_STREAM_CONTEXT
        assert int(after.clock[Clock.ENQUEUED]) == int(card.clock[Clock.ENQUEUED])


def test_events_are_no_notifies(card):
    card, event = aj.create_event(card)
    card, event = aj.create_event(card)
    card, event = aj.create_event(card)
    assert code(aj.record_notify(card, event, 1)) == WRONG
    assert code(aj.record_event(aj.destroy_event(card, 0), 0, 1)) == WRONG
    assert code(aj.record_notify(aj.destroy_event(card, 0), 0, 1)) == 0


def test_a_full_queue_behind_a_wait_that_never_ends_refuses_the_call(card):
    card = aj.wait_and_reset_notify(dataclasses.replace(card, chip=card.chip.replace(queue_depth=4)), 0, 1)
    for _ in range(3):
        card = fill(card, 1, 200)
    before = aj.status(card)
    refused = fill(card, 1, 200)
    assert code(refused) == aj.Code.DEADLOCK
    now = aj.status(refused)
    assert (now.call, now.stream, now.calls) == (before.calls, 1, before.calls + 1)
    assert code(fill(refused, 2, 200)) == 0  # the others go on
    freed = aj.record_notify(refused, 0, 2)
    assert code(aj.synchronize_device(fill(freed, 1, 200))) == 0
