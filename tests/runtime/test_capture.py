"""Capture: codes, and what is recorded."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime import layout
from ascend_jax.runtime.capture import CaptureMode, CaptureStatus, capture_begin, capture_end, capture_info
from ascend_jax.runtime.capture_rules import illegal_blocking, illegal_event, illegal_sync
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.execute import execute_program
from ascend_jax.runtime.layout import Clock, Event, Field, Kind, Phase, Stream, Time
from ascend_jax.runtime.program import Program
from ascend_jax.runtime.threads import create_thread, use_thread
from tests.runtime.captures import fork, make
from tests.runtime.cards import code


@pytest.fixture(scope="module")
def made():
    return make()


@pytest.fixture
def card(made):
    return made[0]


@pytest.fixture
def pointer(made):
    return made[1]


def columns(program: Program, *fields: Field) -> list:
    return np.asarray(program.fields)[:, list(fields)].tolist()


def test_begin_says_what_cannot_be_captured(card):
    assert code(capture_begin(card, 0)) == Code.RT_STREAM_CAPTURE_IMPLICIT
    assert code(capture_begin(card, 77)) == Code.RT_STREAM_CONTEXT
    for mode in (-1, 3):
        assert code(capture_begin(card, 1, mode)) == Code.RT_PARAM_INVALID
    once = capture_begin(card, 1)
    assert code(once) == 0
    assert code(capture_begin(once, 1)) == Code.RT_STREAM_CAPTURED
    joined = aj.stream_wait_event(aj.record_event(once, 0, 1), 2, 0)
    assert code(capture_begin(joined, 2)) == Code.RT_STREAM_CAPTURED


def test_info_says_how_a_stream_stands(card):
    def info(card, stream):
        return int(capture_info(card, stream)[1])

    assert info(card, 1) == CaptureStatus.NONE
    begun = capture_begin(card, 1)
    assert (info(begun, 1), info(begun, 2)) == (CaptureStatus.ACTIVE, CaptureStatus.NONE)
    joined = aj.stream_wait_event(aj.record_event(begun, 0, 1), 2, 0)
    assert info(joined, 2) == CaptureStatus.ACTIVE
    ended, _ = capture_end(begun, 1)
    assert info(ended, 1) == CaptureStatus.NONE
    wrong, status = capture_info(card, 99)
    assert (code(wrong), int(status)) == (Code.RT_STREAM_CONTEXT, -1)


def test_captured_commands_do_not_run(card, pointer):
    begun = fork(capture_begin(card, 1), pointer)
    assert code(begun) == 0
    assert np.asarray(begun.streams)[:, Stream.PENDING].sum() == 0
    ended, _ = capture_end(begun, 1)
    ended = aj.synchronize_device(ended)
    assert code(ended) == 0
    _, out = aj.download(ended, pointer, (4,), "uint8")
    assert out.tolist() == [0] * 4
    assert int(ended.clock[Clock.DEVICE_LO]) == int(aj.synchronize_device(card).clock[Clock.DEVICE_LO])


def test_end_says_what_is_wrong_and_changes_nothing(card):
    wrong, program = capture_end(card, 1)
    assert (code(wrong), program.rows) == (Code.RT_STREAM_NOT_CAPTURED, 0)
    joined = aj.stream_wait_event(aj.record_event(capture_begin(card, 1), 0, 1), 2, 0)
    wrong, program = capture_end(joined, 2)
    assert (code(wrong), program.rows) == (Code.RT_STREAM_CAPTURE_UNMATCHED, 0)
    np.testing.assert_array_equal(wrong.streams, joined.streams)
    np.testing.assert_array_equal(wrong.table.fields, joined.table.fields)
    assert code(capture_end(wrong, 1)[0]) == Code.RT_STREAM_UNJOINED  # it is still there


@pytest.mark.parametrize("mode", list(CaptureMode))
def test_another_thread_ends_only_a_relaxed_capture(card, mode):
    other, thread = create_thread(capture_begin(card, 1, mode))
    other = use_thread(other, int(thread))
    other = dataclasses.replace(other, device=other.device.at[layout.Device.CONTEXT].set(0))
    ended, _ = capture_end(other, 1)
    assert code(ended) == (0 if mode == CaptureMode.RELAXED else Code.RT_STREAM_CAPTURE_WRONG_THREAD)


def test_a_fork_must_be_joined_and_the_streams_are_free_again(card, pointer):
    begun = aj.memset_async(capture_begin(card, 1), pointer, 1, 8, 1)
    begun = aj.stream_wait_event(aj.record_event(begun, 0, 1), 2, 0)
    joined = aj.stream_wait_event(aj.record_event(begun, 1, 2), 1, 1)
    late = aj.memset_async(joined, pointer, 2, 8, 2)  # after the event that joins back
    for unjoined in (begun, late):
        ended, program = capture_end(unjoined, 1)
        assert (code(ended), program.rows) == (Code.RT_STREAM_UNJOINED, 0)
        assert not np.asarray(ended.streams)[:, Stream.CAPTURE].any()
        phase = np.asarray(ended.table.times)[:-1, Time.PHASE]
        assert not (phase == Phase.CAPTURED).any()
        ended = aj.synchronize_stream(aj.memset_async(ended, pointer, 3, 8, 2), 2)
        assert code(ended) == 0
    ended, program = capture_end(joined, 1)
    assert (code(ended), program.rows) == (0, 5)


def test_events_of_a_capture_were_never_recorded(card, pointer):
    ended, _ = capture_end(fork(capture_begin(card, 1), pointer), 1)
    events = np.asarray(ended.events)
    assert (events[:2, Event.RECORD] == layout.NONE).all()
    assert not events[:, Event.CAPTURED].any()
    ended = aj.synchronize_event(ended, 0)
    assert code(ended) == 0
    ended = aj.synchronize_stream(aj.stream_wait_event(ended, 2, 0), 2)
    assert code(ended) == 0


def test_two_captures_do_not_mix(card, pointer):
    begun = capture_begin(capture_begin(card, 1), 2)
    begun = aj.memset_async(begun, pointer, 1, 8, 1)
    begun = aj.memset_async(begun, pointer, 2, 16, 2)
    begun = aj.memset_async(begun, pointer, 3, 24, 1)
    begun, second = capture_end(begun, 2)
    begun, first = capture_end(begun, 1)
    assert code(begun) == 0
    assert columns(second, Field.FILL, Field.STREAM) == [[2, 0]]
    assert columns(first, Field.FILL, Field.STREAM, Field.SEQUENCE, Field.NEXT) == [[1, 0, 0, 1], [3, 0, 1, 2]]


def test_a_capture_that_waits_for_another_is_torn(card, pointer):
    begun = capture_begin(capture_begin(card, 1), 2)
    begun = aj.record_event(aj.memset_async(begun, pointer, 1, 8, 1), 0, 1)
    begun = aj.stream_wait_event(begun, 2, 0)
    torn, program = capture_end(begun, 2)
    assert (code(torn), program.rows) == (Code.RT_STREAM_CAPTURE_CONFLICT, 0)
    _, program = capture_end(torn, 1)
    assert program.rows == 2


def test_a_failed_stream_gives_no_program(card):
    stopped = dataclasses.replace(card, streams=card.streams.at[1, Stream.STOPS].set(1).at[1, Stream.ERROR].set(507000))
    begun = capture_begin(stopped, 1)
    assert int(capture_info(begun, 1)[1]) == CaptureStatus.INVALIDATED
    ended, program = capture_end(begun, 1)
    assert (code(ended), program.rows) == (Code.RT_STREAM_CAPTURE_INVALIDATED, 0)
    assert int(capture_info(ended, 1)[1]) == CaptureStatus.NONE


def test_a_context_with_a_captured_stream_stays(card, pointer):
    """Destroying it waits for its streams, and nobody may wait for what is captured."""
    card, context = aj.create_context(card)
    card, stream = aj.create_stream(card)
    begun = aj.memset_async(capture_begin(card, stream), pointer, 1, 8, stream)
    refused = aj.destroy_context(begun, context)
    assert code(refused) == Code.RT_STREAM_CAPTURED
    np.testing.assert_array_equal(refused.streams, begun.streams)
    ended, program = capture_end(refused, stream)
    assert (program.rows, code(aj.destroy_context(ended, context))) == (1, 0)


def test_a_reset_forgets_what_is_recorded(card, pointer):
    before = aj.insight.timeline(card)
    begun = aj.record_event(aj.memset_async(capture_begin(card, 1), pointer, 1, 8, 1), 0, 1)
    fresh = aj.set_device(aj.reset_device_force(begun))
    assert code(fresh) == 0
    assert aj.insight.timeline(fresh).command.tolist() == before.command.tolist()
    assert not (np.asarray(fresh.table.times)[:-1, Time.PHASE] == Phase.CAPTURED).any()
    assert not np.asarray(fresh.streams)[:, Stream.CAPTURE].any()
    fresh, stream = aj.create_stream(fresh)
    assert code(aj.synchronize_device(fresh)) == code(capture_begin(fresh, stream)) == 0


# Rules ---------------------------------------------------------------------------------------------------------


def test_captured_streams_and_events_cannot_be_waited_for(card):
    begun = aj.record_event(capture_begin(card, 1, CaptureMode.RELAXED), 0, 1)
    assert int(illegal_sync(begun, 1)) == Code.RT_STREAM_CAPTURED
    assert int(illegal_sync(begun, 2)) == 0
    assert int(illegal_sync(begun, layout.NONE)) == Code.RT_STREAM_CAPTURED
    assert int(illegal_event(begun, 0)) == Code.RT_EVENT_CAPTURED
    assert int(illegal_event(begun, 1)) == 0
    ended, _ = capture_end(begun, 1)
    assert int(illegal_sync(ended, 1)) == int(illegal_sync(ended, layout.NONE)) == int(illegal_event(ended, 0)) == 0
    assert code(aj.synchronize_stream(begun, 1)) == Code.RT_STREAM_CAPTURED
    assert code(aj.synchronize_event(begun, 0)) == Code.RT_EVENT_CAPTURED
    assert code(aj.synchronize_device(begun)) == Code.RT_STREAM_CAPTURED


@pytest.mark.parametrize(
    ("mode", "same", "other"),
    [(CaptureMode.GLOBAL, True, True), (CaptureMode.THREAD_LOCAL, True, False), (CaptureMode.RELAXED, False, False)],
)
def test_modes_forbid_blocking_calls(card, mode, same, other):
    assert int(illegal_blocking(card)) == 0
    begun = capture_begin(card, 1, mode)
    forbidden = int(Code.RT_CAPTURE_MODE_NOT_SUPPORT)
    assert int(illegal_blocking(begun)) == same * forbidden
    begun, thread = create_thread(begun)
    assert int(illegal_blocking(use_thread(begun, int(thread)))) == other * forbidden
    assert int(illegal_blocking(capture_end(begun, 1)[0])) == 0


# What is recorded ----------------------------------------------------------------------------------------------


def test_local_numbers(card, pointer):
    begun = aj.memset_async(card, pointer, 1, 8, 0)  # not captured: sequence numbers do not start at 0
    begun = aj.memset_async(capture_begin(begun, 2), pointer, 2, 8, 2)
    begun = aj.record_event(begun, 0, 2)
    begun = aj.memset_async(begun, pointer, 3, 8, 0)  # between captured ones
    begun = aj.stream_wait_event(begun, 1, 0)
    begun = aj.record_event(begun, 1, 1)
    begun = aj.stream_wait_event(begun, 2, 1)
    ended, program = capture_end(begun, 2)
    assert code(ended) == 0
    assert (program.rows, program.streams, program.kernels) == (5, 2, ())
    got = columns(program, Field.KIND, Field.STREAM, Field.SEQUENCE, Field.DEPENDS, Field.NEXT, Field.POSITION)
    assert got == [
        [Kind.MEMSET, 0, 0, -1, 1, 0],
        [Kind.EVENT_RECORD, 0, 1, -1, 4, 1],
        [Kind.EVENT_WAIT, 1, 2, 1, 3, 0],
        [Kind.EVENT_RECORD, 1, 3, -1, 5, 1],
        [Kind.EVENT_WAIT, 0, 4, 3, 5, 2],
    ]
    assert not np.asarray(program.fields)[:, [Field.ISSUE_HI, Field.ISSUE_LO]].any()
    assert code(aj.synchronize_device(ended)) == 0


def test_an_empty_capture_is_an_empty_program(card):
    ended, program = capture_end(capture_begin(card, 1), 1)
    assert (code(ended), program.rows) == (0, 0)
    ran = execute_program(ended, program, 1)
    assert code(ran) == 0
    np.testing.assert_array_equal(ran.table.fields, ended.table.fields)


def test_under_jit_the_program_is_padded_and_runs_the_same(made):
    card, pointer = made

    def captured(card):
        return capture_end(aj.memset_async(capture_begin(card, 1), pointer, 7, 100, 1), 1)

    @functools.partial(jax.jit, compiler_options=aj.QUICK_TO_COMPILE)
    def run(card, ns):
        ended, program = captured(card)
        return ended, program, execute_program(ended, program.with_block_ns(ns), 2)

    ended, program, queued = run(card, 50)
    _, exact = captured(card)
    assert (exact.rows, program.rows) == (1, card.table.rows)
    assert program.streams == card.streams.shape[0]
    jax.tree.map(np.testing.assert_array_equal, (program.fields, program.operands), padded_arrays(exact, program.rows))
    again = execute_program(ended, exact.with_block_ns(50), 2)
    assert code(again) == 0
    jax.tree.map(np.testing.assert_array_equal, queued, again)


def padded_arrays(program: Program, rows: int) -> tuple:
    padded = program.padded(rows)
    return padded.fields, padded.operands


def test_a_thread_chooses_which_captures_bar_its_calls(card, pointer):
    def is_barred(card):
        return code(aj.memset(card, pointer, 0, 8)) == Code.RT_CAPTURE_MODE_NOT_SUPPORT

    def exchange(card, mode):
        card, before = aj.capture_thread_exchange_mode(card, mode)
        return card, int(before), code(card)

    every, own, none = CaptureMode
    card, worker = create_thread(card)
    captured = {mode: capture_begin(card, 1, mode) for mode in CaptureMode}
    wanted = {  # (mode of the capture, mode of the thread): barred in the thread that captures, in another one
        (every, every): (True, True), (every, own): (True, False), (every, none): (False, False),
        (own, every): (True, False), (own, own): (True, False), (own, none): (False, False),
        (none, every): (False, False), (none, own): (False, False), (none, none): (False, False),
    }  # fmt: skip
    for (capture, mode), (here, there) in wanted.items():
        mine, before, answer = exchange(captured[capture], mode)
        assert (before, answer) == (every, 0)
        assert exchange(mine, every)[1] == mode
        other = aj.set_device(use_thread(captured[capture], worker))
        assert (is_barred(mine), is_barred(exchange(other, mode)[0])) == (here, there), (capture, mode)
        assert is_barred(use_thread(exchange(other, none)[0], 0)) == wanted[capture, every][0]  # its own mode
    for wrong in (-1, 3):
        assert exchange(card, wrong)[1:] == (-1, Code.RT_PARAM_INVALID)
