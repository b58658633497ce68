"""Host functions and callbacks in programs: each execution calls them once, in the order of their streams."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Clock, Field, Kind
from ascend_jax.runtime.program import program_from_rows
from tests.runtime.captures import ex_event, make
from tests.runtime.cards import code, fill

WORKER = 1


@pytest.fixture(scope="module")
def card(two_streams):
    """Stream 1, served by thread 0, stream 2, served by nobody, events 0 and 1, and a second thread."""
    card = aj.create_thread(aj.subscribe_report(two_streams, 0, 1))[0]
    for _ in range(2):
        card, _ = ex_event(card)
    assert (code(card), aj.host_time_ns(card)) == (0, 50)
    return card


def log_of(card):
    """Return (kind, start, end) of every command; -1 for what has not begun or is not over."""
    log = aj.insight.timeline(card)
    columns = (log.kind, log.start_ns, log.end_ns)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def captured(card, stream, *, is_blocking=True, number=7):
    """A fill of 1000 ns, a callback, a fill of 300 ns."""
    card = fill(aj.capture_begin(card, stream), stream, 1000)
    card = aj.launch_callback(card, stream, number, is_blocking=is_blocking)
    card, program = aj.capture_end(fill(card, stream, 300), stream)
    assert code(card) == 0
    return card, program


def test_a_captured_host_function_runs_in_every_execution(card):
    card = fill(aj.capture_begin(card, 2), 2, 1000)
    card = aj.launch_host_func(card, 2, 5, duration_ns=250)
    card, program = aj.capture_end(fill(card, 2, 300), 2)
    assert (code(card), program.rows) == (0, 3)
    idle = aj.synchronize_device(card)
    assert log_of(idle) == log_of(card)  # none has run
    now = aj.host_time_ns(card)
    card = dataclasses.replace(card, chip=card.chip.replace(host_launch_ns=1000.0))
    card = aj.execute_program(aj.execute_program(card, program, 0), program, 2)  # issued at now + 1000 and + 2000
    card = aj.synchronize_device(card)
    assert code(card) == 0
    first, second = now + 1000, now + 2000  # the one engine for fills is shared, functions run beside it
    assert log_of(card)[-6:] == [
        ("memset", first, first + 1000), ("host function", first + 1000, first + 1250),
        ("memset", second + 1000, second + 1300),
        ("memset", second, second + 1000), ("host function", second + 1000, second + 1250),
        ("memset", second + 1300, second + 1600),
    ]  # fmt: skip
    assert aj.insight.timeline(card).name[-5] == aj.insight.timeline(card).name[-2]
    assert code(aj.subscribe_report(card, 0, 2)) == aj.Code.RT_STREAM_SUBSCRIBE  # as after a call that is not captured


def test_a_host_function_between_bytes():
    """It moves none, and does not keep those behind it from moving."""
    card, pointer = make()
    card = aj.memset_async(aj.capture_begin(card, 1), pointer, 3, 8, 1)
    card = aj.launch_host_func(card, 1, 0, duration_ns=50)
    card, program = aj.capture_end(aj.memcpy_async(card, pointer, pointer, 8, 1, dst_offset=64), 1)
    for _ in range(2):
        card = aj.memset(card, pointer, 9, 128)
        card = aj.synchronize_stream(aj.execute_program(card, program, 2), 2)
        _, out = aj.download(card, pointer, (72,), "uint8")
        assert code(card) == 0
        assert out.tolist() == [3] * 8 + [9] * 56 + [3] * 8


def test_each_execution_hands_the_callback_over_once(card):
    card, program = captured(card, 1)
    assert program.rows == 4
    now = aj.host_time_ns(card)
    assert code(aj.process_report(card, 1)[0]) == aj.Code.RT_REPORT_TIMEOUT  # none yet
    card = dataclasses.replace(card, chip=card.chip.replace(host_launch_ns=1.0))
    for stream in (0, 2):  # nobody serves these: the callback is the captured stream's
        card = aj.execute_program(card, program, stream)
        assert code(card) == 0
        assert code(aj.synchronize_stream(card, stream)) == aj.Code.DEADLOCK
        card, number = aj.process_report(card, -1, callback_ns=400)
        assert (code(card), int(number)) == (0, 7)
        again, none = aj.process_report(card, 1)
        assert (code(again), int(none)) == (aj.Code.RT_REPORT_TIMEOUT, -1)
        card = aj.synchronize_stream(card, stream)
        assert code(card) == 0
    for begin, log in ((now + 1, log_of(card)[-8:-4]), (log_of(card)[-4][1], log_of(card)[-4:])):
        assert log == [  # the fill, the callback at its end, 400 ns in its thread, the other fill
            ("memset", begin, begin + 1000), ("callback", begin + 1000, begin + 1000),
            ("callback wait", begin + 1400, begin + 1400), ("memset", begin + 1400, begin + 1700),
        ]  # fmt: skip


def test_the_callback_stays_with_the_thread_that_served_the_captured_stream(card):
    card, program = captured(card, 1, is_blocking=False)
    card = aj.subscribe_report(aj.unsubscribe_report(card, 0, 1), WORKER, 1)
    card = aj.synchronize_stream(aj.execute_program(card, program, 1), 1)
    assert code(card) == 0
    other = aj.set_device(aj.use_thread(card, WORKER))
    assert code(aj.process_report(other, 1)[0]) == aj.Code.RT_REPORT_TIMEOUT
    ran, number = aj.process_report(card, -1)  # thread 0 serves no stream any more, but this
    assert (code(ran), int(number)) == (0, 7)
    assert code(aj.process_report(ran, -1)[0]) == aj.Code.RT_THREAD_SUBSCRIBE
    assert code(aj.end_thread(other, 0)) == aj.Code.RT_STREAM_SUBSCRIBE
    assert code(aj.end_thread(aj.set_device(aj.use_thread(ran, WORKER)), 0)) == 0


def test_a_callback_of_a_side_stream(card):
    card = fill(aj.capture_begin(aj.subscribe_report(card, WORKER, 2), 1), 1, 500)
    card = aj.stream_wait_event(aj.record_event(card, 0, 1), 2, 0)
    card = fill(aj.launch_callback(card, 2, 8), 2, 200)
    card = aj.stream_wait_event(aj.record_event(card, 1, 2), 1, 1)
    card, program = aj.capture_end(card, 1)
    assert (code(card), program.streams) == (0, 2)
    card = aj.execute_program(card, program, 1)
    begin = aj.host_time_ns(card)
    card, number = aj.process_report(aj.set_device(aj.use_thread(card, WORKER)), -1, callback_ns=60)
    assert (code(card), int(number)) == (0, 8)
    ran = aj.synchronize_stream(aj.use_thread(card, 0), 1)
    assert (code(ran), aj.host_time_ns(ran)) == (0, begin + 500 + 60 + 200)


def test_what_cannot_be_recorded_or_run(card):
    begun = aj.capture_begin(card, 2)
    assert code(aj.launch_callback(begun, 2, 7)) == aj.Code.RT_STREAM_NO_CB_REG
    assert code(aj.launch_callback(aj.capture_begin(card, 1), 1, -1)) == aj.Code.RT_PARAM_INVALID
    assert code(aj.launch_host_func(aj.capture_begin(card, 1), 1, 7)) == aj.Code.RT_STREAM_SUBSCRIBE
    served = aj.subscribe_report(aj.unsubscribe_report(card, 0, 1), WORKER, 1)
    program = captured(served, 1)[1]
    gone = aj.end_thread(aj.unsubscribe_report(served, WORKER, 1), WORKER)
    refused = aj.execute_program(gone, program, 1)
    assert code(refused) == aj.Code.RT_STREAM_NO_CB_REG
    assert int(refused.clock[Clock.ENQUEUED]) == int(gone.clock[Clock.ENQUEUED])
    far = dataclasses.replace(program, fields=program.fields.at[:, Field.THREAD].set(jnp.int32(99)))
    assert code(aj.execute_program(served, far, 1)) == aj.Code.RT_STREAM_NO_CB_REG
    assert code(aj.execute_program(served, program, 1)) == 0


def test_a_wait_for_a_callback_follows_it():
    callback, wait = ({Field.KIND: kind, Field.STREAM: 0} for kind in (Kind.CALLBACK, Kind.CALLBACK_WAIT))
    assert program_from_rows([callback, wait]).rows == 2
    for rows in ([wait], [callback, {Field.KIND: Kind.MEMSET, Field.STREAM: 0, Field.BLOCK_LO: 5}, wait]):
        with pytest.raises(ValueError, match=f"row {len(rows) - 1}: a wait for a callback"):
            program_from_rows(rows)


def test_a_callback_of_a_program_keeps_its_row_until_it_has_run(card):
    card, program = captured(card, 1, is_blocking=False)
    card = aj.synchronize_stream(aj.execute_program(card, program, 2), 2)
    taken = int(card.clock[Clock.ENQUEUED])
    for _ in range(card.table.rows - 2):
        card = aj.record_event(card, 0, 2)
    card = aj.synchronize_device(card)
    refused = aj.record_event(card, 0, 2)
    assert code(refused) == aj.Code.TABLE_FULL
    assert int(refused.clock[Clock.ENQUEUED]) == taken + card.table.rows - 2
    ran, number = aj.process_report(card, -1)
    assert (int(number), code(aj.record_event(ran, 0, 2))) == (7, 0)
    lost = aj.destroy_stream(card, 2)  # with the stream that it was handed over in
    assert code(aj.record_event(lost, 0, 1)) == 0
    np.testing.assert_array_equal(lost.events, card.events)
