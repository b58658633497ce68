"""The device as a whole: how many use it, what a reset takes away, and how a program comes back from an abort."""

import numpy as np
import pytest

import ascend_jax as aj
from tests.runtime.cards import HOST_COSTS, SIZES, card_of, code

FILL_NS = 1000
NO_CONTEXT, NO_STREAM, WRONG = aj.Code.RT_CONTEXT_NULL, aj.Code.RT_STREAM_CONTEXT, aj.Code.RT_PARAM_INVALID
ABORTED = aj.Code.RT_DEVICE_TASK_ABORT


@pytest.fixture(scope="module")
def card():
    return card_of(HOST_COSTS, SIZES)


@pytest.fixture(scope="module")
def kit(card):
    """The card at 30 ns with a stream, a device pointer and a pinned host pointer."""
    card, device = aj.malloc(card, 8000)
    card, host = aj.malloc_host(card, 4096)
    card, stream = aj.create_stream(card)
    return card, stream, device, host


def fill(card, device, stream, value=0):
    """Queue a fill of 3920 bytes: 20 ns and 3920 / 4 ns on the one engine for fills."""
    return aj.memset_async(card, device, value, 3920, stream)


def test_users_are_counted(card):
    assert int(aj.primary_context_state(card)) == 1
    card = aj.set_device(aj.set_device(card))
    for state in (1, 1, 0):
        card = aj.reset_device(card)
        assert code(card) == 0 and int(aj.primary_context_state(card)) == state
    for call in (aj.reset_device, aj.reset_device_force):
        after = call(card)
        assert code(after) == NO_CONTEXT and int(aj.primary_context_state(after)) == 0
    card = aj.set_device(card)
    assert code(card) == 0 and int(aj.primary_context_state(card)) == 1
    assert code(aj.reset_device(card)) == 0


def test_forcing_ignores_the_count(card):
    card = aj.reset_device_force(aj.set_device(aj.set_device(card)))
    assert code(card) == 0 and int(aj.primary_context_state(card)) == 0
    assert code(aj.reset_device(card)) == NO_CONTEXT


def test_a_reset_takes_everything_but_pinned_memory(kit):
    card, stream, device, host = kit
    card, event = aj.create_event(card)
    _, primary = aj.get_context(card)
    card, context = aj.create_context(card)
    card = aj.reset_device(card)
    assert code(card) == 0
    free, total = aj.mem_get_info(card)
    assert total - free == 2 << 20  # the null page
    for name, call in {
        "get_context": lambda card: aj.get_context(card)[0],
        "create_stream": lambda card: aj.create_stream(card)[0],
        "create_event": lambda card: aj.create_event(card)[0],
        "count": lambda card: aj.stream_available_count(card)[0],
        "query": lambda card: aj.stream_query(card, stream)[0],
        "fill": lambda card: fill(card, device, 0),
        "record": lambda card: aj.record_event(card, event, 0),
        "synchronize": lambda card: aj.synchronize_stream(card, 0),
        "abort": lambda card: aj.device_task_abort(card),
    }.items():
        assert code(call(card)) == NO_CONTEXT, name
    for handle in (primary, context):
        assert code(aj.set_context(card, handle)) == WRONG
        assert code(aj.destroy_context(card, handle)) == NO_CONTEXT
    card = aj.set_device(card)
    _, new = aj.get_context(card)
    assert int(new) != int(primary)
    assert int(aj.stream_available_count(card)[1]) == SIZES["max_streams"] - 1
    assert code(fill(card, device, 0)) == WRONG  # the block is gone
    assert code(aj.synchronize_stream(card, stream)) == NO_STREAM
    assert code(aj.record_event(card, event, 0)) == WRONG
    assert code(aj.free(card, device)) == WRONG
    assert code(aj.free_host(card, host)) == 0
    card, again = aj.malloc(card, 8000)
    assert int(again) == int(device)
    assert code(aj.synchronize_stream(fill(card, again, 0), 0)) == 0


def test_a_reset_by_one_of_two_users_takes_nothing(kit):
    card, stream, device, _ = kit
    card = fill(aj.set_device(card), device, stream)
    card = aj.reset_device(card)
    assert code(card) == 0 and aj.host_time_ns(card) == 40
    assert code(aj.synchronize_stream(card, stream)) == 0


def test_a_reset_waits_and_a_forced_one_drops():
    card = card_of(HOST_COSTS, SIZES, hbm_backing_bytes=1 << 14)
    card, device = aj.malloc(card, 8000)
    card, host = aj.malloc_host(card, 4096)
    card = fill(card, device, 0, 7)  # 30 .. 1030
    card = aj.memcpy_async(card, host, device, 8, 0)  # 1030 .. 1058
    waited = aj.reset_device(card)
    assert code(waited) == 0 and aj.host_time_ns(waited) == 1058
    assert aj.host_read(waited, host, (8,), np.uint8)[1].tolist() == [7] * 8
    forced = aj.reset_device_force(card)
    assert code(forced) == 0 and aj.host_time_ns(forced) == 40
    later = aj.host_work(forced, 5000)
    assert aj.host_read(later, host, (8,), np.uint8)[1].tolist() == [0] * 8


def test_every_thread_loses_its_context(card):
    card, worker = aj.create_thread(card)
    card = aj.set_device(aj.use_thread(card, worker))
    card = aj.reset_device(aj.use_thread(card, 0))
    card = aj.reset_device(card)
    for thread in (0, worker):
        assert code(aj.get_context(aj.use_thread(card, thread))[0]) == NO_CONTEXT
    card = aj.set_device(card)
    assert code(aj.get_context(card)[0]) == 0
    assert code(aj.get_context(aj.use_thread(card, worker))[0]) == NO_CONTEXT


def test_a_context_can_be_made_without_setting_the_device(card):
    card = aj.reset_device(card)
    card, _ = aj.create_context(card)
    assert code(card) == 0
    # the device's own default stream keeps its place
    assert int(aj.stream_available_count(card)[1]) == SIZES["max_streams"] - 2
    card, stream = aj.create_stream(card)
    assert code(aj.synchronize_stream(card, stream)) == 0
    assert int(aj.primary_context_state(card)) == 0
    card = aj.set_device(card)
    assert code(card) == 0 and int(aj.stream_available_count(card)[1]) == SIZES["max_streams"] - 3


def test_an_abort_drops_everything_and_a_reset_recovers(kit):
    card, stream, device, _ = kit
    card = fill(fill(card, device, stream), device, 0)
    card = aj.device_task_abort(card)
    assert code(card) == 0 and aj.host_time_ns(card) == 50
    assert code(fill(card, device, stream)) == ABORTED
    assert code(aj.stream_query(card, stream)[0]) == ABORTED
    after = aj.synchronize_stream(card, stream)
    assert code(after) == ABORTED and aj.host_time_ns(after) == 60
    card = aj.set_device(aj.reset_device(card))
    assert code(card) == 0
    card, device = aj.malloc(card, 8000)  # until 60
    card = aj.synchronize_stream(fill(card, device, 0), 0)
    assert code(card) == 0 and aj.host_time_ns(card) == 70 + FILL_NS


def test_a_lost_device_comes_back(kit):
    card, stream, device, _ = kit
    card = aj.inject_fault(card, aj.Code.RT_AICORE_EXCEPTION)
    card = aj.synchronize_stream(fill(fill(card, device, stream), device, 0), stream)
    assert code(card) == aj.Code.RT_AICORE_EXCEPTION and aj.host_time_ns(card) == 40 + FILL_NS
    assert code(fill(card, device, 0)) == aj.Code.RT_AICORE_EXCEPTION
    after = aj.device_task_abort(card)
    assert code(after) == 0 and code(fill(after, device, 0)) == aj.Code.RT_AICORE_EXCEPTION
    card = aj.set_device(aj.reset_device(card))
    assert code(card) == 0
    card, device = aj.malloc(card, 8000)
    assert code(aj.synchronize_device(fill(card, device, 0))) == 0


def test_a_device_that_hangs_can_only_be_forced(kit):
    card, stream, device, _ = kit
    card, event = aj.create_event(card)
    card = aj.record_event(fill(card, device, stream), event, stream)
    card = aj.stream_abort(aj.stream_wait_event(card, 0, event), stream)
    after = aj.reset_device(card)
    assert code(after) == aj.Code.DEADLOCK and int(aj.primary_context_state(after)) == 1
    assert code(aj.stream_query(after, 0)[0]) == 0
    after = aj.reset_device_force(after)
    assert code(after) == 0 and int(aj.primary_context_state(after)) == 0


def test_what_a_device_says_about_itself(kit):
    info = aj.device_info(kit[0])
    assert info["streams_free"] == SIZES["max_streams"] - 2 == int(aj.stream_available_count(kit[0])[1])
    assert info["soc_name"] == "Ascend910B2"
