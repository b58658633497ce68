"""Unknown handles and full tables are refused with their codes, and a refused call changes nothing else."""

import dataclasses

import pytest

import ascend_jax as aj
from tests.runtime.refusals import FAR, refuse

BAD_STREAMS = (-1, -2, 2, 3, 4, 5, 99, FAR, -FAR)
BAD_EVENTS = (-1, 1, 2, 3, 99, FAR)


@pytest.mark.parametrize("stream", BAD_STREAMS)
def test_unknown_streams(kit, programs, stream):
    k = kit
    calls = {
        "launch": lambda card: programs.launch(k, card, stream, 10),
        "memcpy_async": lambda card: aj.memcpy_async(card, k.device, k.device + 1, 64, stream),
        "memset_async": lambda card: aj.memset_async(card, k.device, 0, 64, stream),
        "record_event": lambda card: aj.record_event(card, 0, stream),
        "stream_wait_event": lambda card: aj.stream_wait_event(card, stream, 0),
        "synchronize_stream": lambda card: aj.synchronize_stream(card, stream),
        "destroy_stream": lambda card: aj.destroy_stream(card, stream),
    }
    for call in calls.values():
        refuse(k.card, call, aj.Code.RT_STREAM_CONTEXT)


@pytest.mark.parametrize("event", BAD_EVENTS)
def test_unknown_events(kit, event):
    calls = {
        "record_event": lambda card: aj.record_event(card, event, 0),
        "stream_wait_event": lambda card: aj.stream_wait_event(card, 0, event),
        "synchronize_event": lambda card: aj.synchronize_event(card, event),
        "destroy_event": lambda card: aj.destroy_event(card, event),
    }
    for call in calls.values():
        refuse(kit.card, call, aj.Code.RT_PARAM_INVALID)
    with pytest.raises(aj.AscendError):
        aj.event_elapsed_ms(kit.card, event, event)


def test_an_event_has_no_time_before_it_is_recorded_and_done(kit, programs):
    with pytest.raises(aj.AscendError) as error:
        aj.event_elapsed_ms(kit.card, 0, 0)
    assert error.value.code == aj.Code.RT_INTERNAL_ERROR
    card = aj.record_event(programs.launch(kit, kit.card, 0, 1000), 0, 0)
    with pytest.raises(aj.AscendError) as error:
        aj.event_elapsed_ms(card, 0, 0)
    assert error.value.code == aj.Code.RT_EVENT_TIMESTAMP_INVALID


# where the pointer points, offset, bytes, code
def test_streams_run_out_and_come_back(kit):
    card = kit.card
    for handle in (2, 3):
        card, stream = aj.create_stream(card)
        assert int(stream) == handle
    _, none = refuse(card, aj.create_stream, aj.Code.RESOURCE_ALLOC_FAIL)
    assert int(none) == -1
    card = aj.destroy_stream(card, 2)
    refuse(card, lambda card: aj.synchronize_stream(card, 2), aj.Code.RT_STREAM_CONTEXT)
    refuse(card, lambda card: aj.destroy_stream(card, 2), aj.Code.RT_STREAM_CONTEXT)
    card, stream = aj.create_stream(card)
    assert int(stream) not in (0, 1, 2, 3)  # the slot is used again, the handle is not
    refuse(card, lambda card: aj.synchronize_stream(card, 2), aj.Code.RT_STREAM_CONTEXT)


def test_the_product_limits_streams_and_events(kit):
    few = dataclasses.replace(kit.card, chip=kit.card.chip.replace(max_streams=2, max_events=1))
    refuse(few, aj.create_stream, aj.Code.RESOURCE_ALLOC_FAIL)
    refuse(few, aj.create_event, aj.Code.NO_EVENT_RESOURCE)


def test_events_run_out_and_come_back_unrecorded(kit):
    card = aj.record_event(kit.card, 0, 0)
    for handle in (1, 2):
        card, event = aj.create_event(card)
        assert int(event) == handle
    refuse(card, aj.create_event, aj.Code.NO_EVENT_RESOURCE)
    card, event = aj.create_event(aj.destroy_event(card, 0))
    assert int(event) not in (0, 1, 2)
    with pytest.raises(aj.AscendError, match="never recorded"):
        aj.event_elapsed_ms(card, event, event)
    with pytest.raises(aj.AscendError, match="does not exist"):
        aj.event_elapsed_ms(card, 0, 0)


def test_a_refused_call_does_not_wait(kit, programs):
    card = programs.launch(kit, kit.card, 0, 1_000_000)
    before = aj.host_time_ns(card)
    for stream in (0, -1, -2, 2, 4, 99):
        assert aj.host_time_ns(aj.destroy_stream(card, stream)) == before
    for stream in (-1, -2, 2, 4, 99):
        assert aj.host_time_ns(aj.synchronize_stream(card, stream)) == before + 10
    assert aj.host_time_ns(aj.synchronize_event(card, 9)) == before + 10
    assert aj.host_time_ns(aj.memset(card, 0, 0, 64)) == before + 20


def test_destroying_a_stream_waits_for_its_commands(kit, programs):
    card = programs.launch(kit, kit.card, 1, 1_000_000)
    card = aj.destroy_stream(card, 1)
    assert aj.host_time_ns(card) == aj.insight.timeline(card).end_ns[0]


def test_the_first_failure_stays_and_can_be_cleared(kit):
    card = aj.free(kit.card, 0)
    card = aj.synchronize_stream(card, 99)
    now = aj.status(card)
    assert (now.code, now.last_code) == (aj.Code.INVALID_PARAM, aj.Code.RT_STREAM_CONTEXT)
    assert now.site.startswith("runtime/test_status.py:") and now.stream == -1
    with pytest.raises(aj.AscendError, match="100000 ACL_ERROR_INVALID_PARAM"):
        aj.raise_if_error(card)
    card = aj.synchronize_stream(aj.clear_error(card), 1)
    aj.raise_if_error(card)
    assert aj.status(card).calls == now.calls + 1
    card = aj.synchronize_stream(card, 99)
    assert (aj.status(card).stream, aj.status(card).call) == (99, now.calls + 1)
