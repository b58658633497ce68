"""Limits on the device and on the host: which code, at which simulated time, and what goes on afterwards."""

import pytest

import ascend_jax as aj
from tests.runtime.cards import code

MS = 1_000_000


def start_of(card):
    """When the latest command began, in ns."""
    return int(aj.insight.timeline(card).start_ns[-1])


@pytest.mark.parametrize(
    ("cores", "wanted"),
    [({"cube": 1, "vector": 0}, 507014), ({"cube": 0, "vector": 1}, 507034), ({"cube": 1, "vector": 2}, 507014)],
)
def test_a_kernel_past_its_limit_takes_the_device(kit, programs, cores, wanted):
    card = aj.set_op_execute_timeout(kit.card, 2)
    card = programs.launch(kit, card, 1, 5 * MS, **cores)
    assert code(card) == 0  # errors of asynchronous work show later
    late = aj.synchronize_stream(card, 1)
    assert code(late) == wanted
    assert aj.host_time_ns(late) == start_of(late) + 2 * MS
    assert code(aj.synchronize_device(late)) == wanted  # of the device, not of the stream
    fresh = aj.set_device(aj.reset_device_force(late))
    fresh, stream = aj.create_stream(fresh)
    assert (code(fresh), code(aj.synchronize_stream(fresh, stream))) == (0, 0)


def test_a_kernel_within_its_limit(kit, programs):
    card = programs.launch(kit, aj.set_op_execute_timeout(kit.card, 5), 1, 5 * MS, cube=1)
    assert code(aj.synchronize_stream(card, 1)) == 0


def test_the_limit_is_that_of_the_launch(kit, programs):
    card = aj.set_op_execute_timeout(programs.launch(kit, kit.card, 1, 5 * MS, cube=1), 2)
    assert code(aj.synchronize_stream(card, 1)) == 0
    card = aj.set_op_execute_timeout(card, 0)  # the longest there is
    assert code(aj.synchronize_stream(programs.launch(kit, card, 1, 5 * MS, cube=1), 1)) == 0


def test_waiting_for_cores_does_not_count(kit, programs):
    card = aj.set_op_execute_timeout(kit.card, 6)
    for stream in (0, 1):
        card = programs.launch(kit, card, stream, 5 * MS, cube=1, blocks=24)
    assert code(aj.synchronize_device(card)) == 0
    assert start_of(aj.synchronize_device(card)) >= 5 * MS


def test_the_host_stops_waiting_and_the_task_goes_on(kit, programs):
    card = programs.launch(kit, kit.card, 1, 5 * MS, cube=1)
    before = aj.host_time_ns(card)
    card = aj.synchronize_stream(card, 1, timeout_ms=1)
    assert (code(card), aj.host_time_ns(card)) == (aj.Code.RT_STREAM_SYNC_TIMEOUT, before + 10 + MS)
    card = aj.synchronize_device(card, timeout_ms=1)
    assert code(card) == aj.Code.RT_STREAM_SYNC_TIMEOUT
    card = aj.synchronize_stream(card, 1)
    assert (code(card), aj.host_time_ns(card)) == (0, start_of(card) + 5 * MS)


@pytest.mark.parametrize("timeout_ms", [0, -2, -100])
def test_times_that_are_none(kit, timeout_ms):
    wrong = aj.Code.RT_PARAM_INVALID
    assert code(aj.synchronize_stream(kit.card, 1, timeout_ms=timeout_ms)) == wrong
    assert code(aj.synchronize_event(kit.card, 0, timeout_ms=timeout_ms)) == wrong
    assert code(aj.synchronize_device(kit.card, timeout_ms=timeout_ms)) == wrong
    for set_timeout in (aj.set_op_execute_timeout, aj.set_op_wait_timeout):
        assert code(set_timeout(kit.card, timeout_ms)) == (wrong if timeout_ms < 0 else 0)


def test_an_idle_stream_needs_no_time(kit):
    assert code(aj.synchronize_stream(kit.card, 1, timeout_ms=1)) == 0
