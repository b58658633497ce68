"""Task groups: what a capture notes of them, and what an update puts in their place."""

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import Clock
from tests.runtime.captures import make
from tests.runtime.cards import code

IN_NO_STATE, INTERRUPTED = aj.Code.STREAM_TASK_GROUP_STATUS, aj.Code.STREAM_TASK_GROUP_INTR


@pytest.fixture(scope="module")
def made():
    return make()


def fills(card, pointer, *values, stream=1, nbytes=64):
    for number, value in enumerate(values):
        card = aj.memset_async(card, pointer, value, nbytes, stream, dst_offset=100 * number)
    return card


def grouped(card, pointer):
    """Capture a fill, then two fills and a side stream in a group, then another fill: 8 commands."""
    card = fills(aj.capture_begin(card, 1), pointer, 1)
    card = aj.capture_task_group_begin(card, 1)
    card = aj.record_event(fills(card, pointer, 2, 3), 0, 1)
    card = aj.record_event(aj.stream_wait_event(card, 2, 0), 1, 2)
    card, group = aj.capture_task_group_end(aj.stream_wait_event(card, 1, 1), 1)
    card = aj.memset_async(card, pointer, 4, 64, 1, dst_offset=200)
    assert code(card) == 0
    return *aj.capture_end(card, 1), group


def test_an_update_replaces_the_tasks_of_the_group_and_nothing_else(made):
    card, pointer = made
    ended, program, group = grouped(card, pointer)
    assert (code(ended), program.rows, np.asarray(group).tolist()) == (0, 8, [1, 7])
    ended, other = aj.capture_end(fills(aj.capture_begin(ended, 2), pointer, 20, 30, stream=2, nbytes=32), 2)
    updated = aj.update_task_group(program, group, other)
    # the new fills are shorter: behind them lies what was there before
    for one, wanted in ((program, [[2, 2], [3, 3], [4, 4]]), (updated, [[20, 1], [30, 3], [4, 4]])):
        ended = aj.synchronize_device(aj.execute_program(ended, one, 1))
        assert code(ended) == 0
        ended, out = aj.download(ended, pointer, (300,), "uint8")
        assert [[int(out[at]), int(out[at + 40])] for at in (0, 100, 200)] == wanted


def test_groups_in_the_wrong_state(made):
    card, pointer = made
    begun = aj.capture_begin(card, 1)
    for wrong, wanted in (
        (aj.capture_task_group_begin(card, 1), aj.Code.RT_STREAM_NOT_CAPTURED),
        (aj.capture_task_group_end(card, 1)[0], aj.Code.RT_STREAM_NOT_CAPTURED),
        (aj.capture_task_group_begin(card, 77), aj.Code.RT_STREAM_CONTEXT),
        (aj.capture_task_group_end(begun, 1)[0], IN_NO_STATE),
        (aj.capture_task_group_begin(aj.capture_task_group_begin(begun, 1), 1), IN_NO_STATE),
    ):
        assert code(wrong) == wanted
        assert int(wrong.clock[Clock.ENQUEUED]) == 0
    assert np.asarray(aj.capture_task_group_end(begun, 1)[1]).tolist() == [-1, -1]
    still, program = aj.capture_end(fills(aj.capture_task_group_begin(begun, 1), pointer, 1), 1)
    assert (code(still), program.rows) == (INTERRUPTED, 0)
    again, program = aj.capture_end(fills(aj.capture_begin(still, 1), pointer, 1), 1)  # the group went with the capture
    assert (code(again), program.rows) == (0, 1)


def test_updates_that_do_not_fit(made):
    card, pointer = made
    ended, program, group = grouped(card, pointer)
    ended, one = aj.capture_end(fills(aj.capture_begin(ended, 1), pointer, 9), 1)
    copy = aj.memcpy_async(fills(aj.capture_begin(ended, 1), pointer, 9), pointer, pointer, 8, 1, dst_offset=100)
    _, mixed = aj.capture_end(copy, 1)
    for other in (one, mixed):
        with pytest.raises(aj.AscendError) as error:
            aj.update_task_group(program, group, other)
        assert error.value.code == aj.Code.RT_FEATURE_NOT_SUPPORT_UPDATE_OP
    for wrong in ([-1, -1], [3, 9], [5, 2]):
        with pytest.raises(ValueError, match="group ="):
            aj.update_task_group(program, np.array(wrong, np.int32), one)
