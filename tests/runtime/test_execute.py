"""Execution of captured programs: a replay is what direct calls would have been, and programs bring their kernels."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime import layout
from ascend_jax.runtime.capture import capture_begin, capture_end
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.execute import execute_program
from ascend_jax.runtime.faults import inject_fault
from ascend_jax.runtime.kernels import Argument, Cost, Executor, KernelSpec, register
from ascend_jax.runtime.layout import Clock, Field, Kind, Phase, Stream, Time
from ascend_jax.runtime.notifies import create_notify, record_notify, wait_and_reset_notify
from ascend_jax.runtime.program import program_from_rows
from ascend_jax.runtime.program_files import load_program, save_program
from tests.runtime.captures import CHIP, fork, make
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


def busy(card, pointer):
    """What the streams do in the comparison of calls and replay; more work than the engines can do at once."""
    for number in range(4):
        card = aj.memset_async(card, pointer, number, 300 * (number + 1), 1, dst_offset=64 * number)
        card = aj.record_event(card, 0, 1)
        card = aj.stream_wait_event(card, 2, 0)
        card = aj.memcpy_async(card, pointer, pointer, 200, 2, dst_offset=2000, src_offset=100 * number)
        card = aj.memcpy_async(card, pointer, pointer, 150, 1, dst_offset=3000, src_offset=200)
    return aj.stream_wait_event(aj.record_event(card, 1, 2), 1, 1)


def times_of(card, first: int, count: int) -> np.ndarray:
    return np.asarray(card.table.times)[first : first + count]


def test_a_replay_is_what_calls_would_have_been(card, pointer):
    direct = aj.synchronize_device(busy(card, pointer))
    count = int(direct.clock[Clock.ENQUEUED]) - int(card.clock[Clock.ENQUEUED])
    ended, program = capture_end(busy(capture_begin(card, 1), pointer), 1)
    assert program.rows == count == 22
    first = int(ended.clock[Clock.ENQUEUED])
    ran = aj.synchronize_device(execute_program(ended, program, 1))
    assert code(ran) == code(direct) == 0
    start = int(card.clock[Clock.ENQUEUED])
    np.testing.assert_array_equal(times_of(ran, first, count), times_of(direct, start, count))
    np.testing.assert_array_equal(ran.memory, direct.memory)
    assert aj.host_time_ns(ran) == aj.host_time_ns(direct)
    padded = aj.synchronize_device(execute_program(ended, program.padded(40), 1))
    np.testing.assert_array_equal(padded.table.times, ran.table.times)
    np.testing.assert_array_equal(padded.table.fields, ran.table.fields)


def test_an_execution_costs_one_launch():
    card, pointer = make(CHIP.replace(host_launch_ns=5000.0))
    ended, program = capture_end(fork(capture_begin(card, 1), pointer), 1)
    ran = execute_program(ended, program, 1)
    assert aj.host_time_ns(ran) - aj.host_time_ns(ended) == 5000
    rows = np.asarray(ran.table.fields)[6:12]
    assert (rows[:, Field.ISSUE_LO] == aj.host_time_ns(ran)).all()


def test_every_execution_works_on_what_is_there_then(card, pointer):
    begun = aj.memcpy_async(capture_begin(card, 1), pointer, pointer, 4, 1, dst_offset=100)
    ended, program = capture_end(begun, 1)
    for value in (5, 9):
        ended = aj.upload(ended, pointer, np.full(4, value, np.uint8))
        ended = aj.synchronize_stream(execute_program(ended, program, 2), 2)
        ended, out = aj.download(ended, pointer, (4,), "uint8", offset=100)
        assert out.tolist() == [value] * 4


def test_many_executions_take_one_hidden_stream_and_wait_for_room(card, pointer):
    ended, program = capture_end(fork(capture_begin(card, 1), pointer), 1)
    once = aj.synchronize_device(execute_program(ended, program, 1))
    alive = int(np.asarray(ended.streams)[:, Stream.ALIVE].sum())
    span = aj.host_time_ns(once) - aj.host_time_ns(ended)
    assert span > 0
    many = ended
    for _ in range(30):  # 180 commands in 64 rows
        many = execute_program(many, program, 1)
    many = aj.synchronize_device(many)
    assert code(many) == 0
    assert aj.host_time_ns(many) - aj.host_time_ns(ended) == 30 * span
    assert int(np.asarray(many.streams)[:, Stream.ALIVE].sum()) == alive + 1


def test_hidden_streams_cannot_be_named_and_run_out(card, pointer):
    ended, program = capture_end(fork(capture_begin(card, 1), pointer), 1)
    for _ in range(3):
        ended, last = aj.create_stream(ended)  # now no slot is left
    full = execute_program(ended, program, 1)
    assert code(full) == Code.RESOURCE_ALLOC_FAIL
    np.testing.assert_array_equal(full.table.fields, ended.table.fields)
    np.testing.assert_array_equal(full.streams, ended.streams)
    freed = execute_program(aj.destroy_stream(ended, last), program, 1)
    assert code(freed) == 0
    assert code(aj.create_stream(freed)[0]) == Code.RESOURCE_ALLOC_FAIL
    for handle in range(7):
        assert (code(aj.synchronize_stream(freed, handle)) == 0) == (handle < 5)


def test_two_streams_at_once_do_not_share_a_hidden_one(card, pointer):
    ended, program = capture_end(fork(capture_begin(card, 1), pointer), 1)
    both = execute_program(execute_program(ended, program, 1), program, 2)
    rows = np.asarray(both.table.fields)[6:18].reshape(2, 6, -1)[:, :, Field.STREAM]
    assert rows[0].tolist() == [1, 1, rows[0, 2], rows[0, 2], rows[0, 2], 1]
    assert rows[1].tolist() == [2, 2, rows[1, 2], rows[1, 2], rows[1, 2], 2]
    assert len({1, 2, rows[0, 2], rows[1, 2]}) == 4
    assert code(aj.synchronize_device(both)) == 0


def test_a_table_without_room_takes_all_or_nothing(card):
    program = program_from_rows([{Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCK_LO: 1}] * 33)
    once = execute_program(card, program, 1)
    assert code(once) == 0
    twice = jax.jit(lambda card: execute_program(card, program, 1), compiler_options=aj.QUICK_TO_COMPILE)(once)
    assert code(twice) == Code.TABLE_FULL
    np.testing.assert_array_equal(twice.table.fields, once.table.fields)
    np.testing.assert_array_equal(twice.streams, once.streams)
    waited = execute_program(once, program, 2)  # outside jit the host waits for two of the 33
    assert code(waited) == 0
    assert aj.host_time_ns(waited) - aj.host_time_ns(card) == 2
    large = program_from_rows([{Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCK_LO: 1}] * 65)
    assert code(execute_program(card, large, 1)) == Code.TABLE_FULL


def test_a_program_comes_after_what_is_before_and_before_what_is_after(card, pointer):
    rows = [
        {Field.KIND: Kind.EVENT_RECORD, Field.STREAM: 0},
        {Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCK_LO: 30},
        {Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 1, Field.DEPENDS: 0},
        {Field.KIND: Kind.KERNEL, Field.STREAM: 1, Field.BLOCK_LO: 500},
        {Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 0, Field.DEPENDS: 3},
    ]
    program = program_from_rows(rows)
    before = aj.memset_async(card, pointer, 1, 1000, 1)
    ran = aj.memset_async(execute_program(before, program, 1), pointer, 2, 8, 1)
    ran = aj.synchronize_device(ran)
    first = int(card.clock[Clock.ENQUEUED])
    start, end = np.asarray(ran.table.times)[first : first + 7][:, [Time.START_LO, Time.END_LO]].T
    assert end[0] > start[0]
    assert start[1:6].tolist() == [end[0], end[0], end[0], end[0], end[0] + 500]
    assert end[1:6].tolist() == [end[0], end[0] + 30, end[0], end[0] + 500, end[0] + 500]
    assert start[6] == end[5]


def test_captured_and_unknown_streams_are_refused(card):
    kernel = {Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCK_LO: 1}
    program = program_from_rows([kernel])
    assert code(execute_program(capture_begin(card, 1), program, 1)) == Code.RT_STREAM_CAPTURED
    assert code(execute_program(card, program, 55)) == Code.RT_STREAM_CONTEXT
    with pytest.raises(ValueError, match="batch axes"):
        execute_program(card, program.with_block_ns(np.ones((2, 1), int)), 1)


def test_failures_of_the_program_and_planned_ones_apply(card):
    kernel = {Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCK_LO: 10}
    program = program_from_rows([kernel] * 3)
    first = int(card.clock[Clock.ENQUEUED])
    for failing in (
        execute_program(card, program.with_fault(1, Code.RT_AICPU_EXCEPTION), 1),
        execute_program(inject_fault(card, Code.RT_AICPU_EXCEPTION, skip=1), program, 1),
    ):
        ran = aj.synchronize_stream(failing, 1)
        assert code(ran) == Code.RT_AICPU_EXCEPTION
        phases = np.asarray(ran.table.times)[first : first + 3, Time.PHASE].tolist()
        assert phases == [Phase.DONE, Phase.FAULTED, Phase.DONE]


def two_streams(**fault: int):
    """A program whose side stream does one kernel, with a fault if wanted."""
    rows = [
        {Field.KIND: Kind.EVENT_RECORD, Field.STREAM: 0},
        {Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 1, Field.DEPENDS: 0},
        {Field.KIND: Kind.KERNEL, Field.STREAM: 1, Field.BLOCK_LO: 500},
        {Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 0, Field.DEPENDS: 2},
    ]
    program = program_from_rows(rows)
    return program.with_fault(2, fault["code"]) if fault else program


def test_a_failure_in_a_side_is_one_of_the_stream_and_of_no_other(card):
    bad = int(Code.RT_AICPU_EXCEPTION)
    ran = aj.synchronize_stream(execute_program(card, two_streams(code=bad), 1), 1)
    assert code(ran) == bad
    after, answer = aj.stream_query(ran, 1)
    assert (code(after), int(answer)) == (bad, -1)
    other = aj.synchronize_stream(execute_program(ran, two_streams(), 2), 2)
    assert code(other) == 0
    assert code(aj.synchronize_stream(other, 1)) == bad
    fresh, handle = aj.create_stream(aj.destroy_stream(ran, 1))
    assert code(aj.synchronize_stream(fresh, handle)) == 0


def test_a_stream_that_stops_takes_the_sides_of_its_programs_along(card, pointer):
    bad = int(Code.RT_AICPU_EXCEPTION)
    card = aj.set_stream_failure_mode(card, 1, 1)
    ran = execute_program(card, two_streams(code=bad), 1)
    ran = aj.synchronize_stream(aj.memset_async(ran, pointer, 1, 8, 1), 1)
    assert code(ran) == bad
    assert code(execute_program(ran, two_streams(), 1)) == bad


def test_streams_of_finished_programs_can_be_made_anew(card):
    free = int(aj.stream_available_count(card)[1])
    ran = aj.synchronize_stream(execute_program(card, two_streams(), 1), 1)
    assert int(aj.stream_available_count(ran)[1]) == free
    made = ran
    for _ in range(free):
        made, handle = aj.create_stream(made)
        assert code(made) == 0 and int(handle) > 0
    assert code(execute_program(made, two_streams(), 1)) == Code.RESOURCE_ALLOC_FAIL


def test_a_program_takes_no_row_of_a_callback_that_is_still_to_be_run():
    card, _ = make(max_commands=8)
    card = aj.launch_callback(aj.subscribe_report(card, 0, 1), 1, 5, is_blocking=False)
    card = aj.synchronize_stream(card, 1)
    program = program_from_rows([{Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCK_LO: 5}] * 6)
    card = execute_program(card, program, 2)
    assert code(card) == 0
    full = execute_program(aj.synchronize_device(card), program, 2)
    assert code(full) == Code.TABLE_FULL
    card, callback = aj.process_report(card, 100)
    assert (code(card), int(callback)) == (0, 5)
    assert code(execute_program(aj.synchronize_device(card), program, 2)) == 0


def test_a_failure_planned_for_a_captured_command_is_not_recorded(card, pointer):
    begun = inject_fault(capture_begin(card, 1), Code.RT_AICPU_EXCEPTION)
    ended, program = capture_end(aj.memset_async(begun, pointer, 1, 8, 1), 1)
    assert not np.asarray(program.fields)[:, Field.FAULT].any()
    assert code(aj.synchronize_stream(execute_program(ended, program, 1), 1)) == 0


def test_lanes_of_programs_are_put_in_lanes_of_cards_under_vmap(card):
    rows = [{Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCK_LO: 1}] * 2
    lanes = program_from_rows(rows).with_block_ns(np.array([[3, 4], [30, 40], [300, 400]]))
    together = jax.vmap(lambda program: execute_program(card, program, 1))(lanes)
    for lane in range(3):
        alone = execute_program(card, jax.tree.map(lambda x, i=lane: x[i], lanes), 1)
        jax.tree.map(lambda x, y, i=lane: np.testing.assert_array_equal(x[i], y), together, alone)
        ran = aj.synchronize_stream(alone, 1)
        assert aj.host_time_ns(ran) - aj.host_time_ns(card) == 7 * 10**lane


def _triple(x, *, plus):
    return [x * 3 + plus]


register("capture_test_triple", _triple)


def triple(pointer: int, plus: int) -> Executor:
    """``out = 3 in + plus`` on 8 bytes, from the first to the ninth byte of a block."""
    eight = Argument((8,), np.dtype("uint8"))
    spec = KernelSpec("capture_test_triple", (("plus", plus),), (eight,), (eight,))
    operands = np.zeros((layout.OPERANDS, len(layout.Operand)), np.int32)
    operands[:2] = [[pointer, 0, 0, 8], [pointer, 8, 0, 8]]
    numbers = {"block_ns": 100, "blocks": 30, "cube_cores": 1}
    cost = Cost(
        **{
            field.name: jnp.asarray(
                numbers.get(field.name, 0), jnp.float32 if field.name.endswith(("_ns", "_bytes")) else jnp.int32
            )
            for field in dataclasses.fields(Cost)
        }
    )
    return Executor(
        operands=jnp.array(operands),
        reads=jnp.int32(1),
        writes=jnp.int32(2),
        scalars=jnp.zeros(layout.SCALARS),
        workspace_bytes=jnp.int32(0),
        cost=cost,
        code=jnp.int32(0),
        kernel=spec,
    )


def test_a_program_brings_its_kernels_to_another_card(card, pointer, tmp_path):
    begun = aj.launch(card, triple(pointer, 1), 0, 1)  # the card knows one more kernel than the program needs
    begun = aj.launch(capture_begin(aj.synchronize_device(begun), 1), triple(pointer, 2), 0, 1)
    ended, program = capture_end(begun, 1)
    assert code(ended) == 0
    assert [spec.attributes for spec in program.kernels] == [(("plus", 2),)]
    save_program(program, tmp_path / "triple.npz")
    other, pointer = make()
    other = aj.upload(other, pointer, np.arange(8, dtype=np.uint8))
    other = aj.synchronize_stream(execute_program(other, load_program(tmp_path / "triple.npz"), 2), 2)
    other, out = aj.download(other, pointer, (8,), "uint8", offset=8)
    assert code(other) == 0
    assert out.tolist() == [3 * i + 2 for i in range(8)]


def test_a_kernel_without_a_spec_takes_time_and_computes_nothing(card):
    program = program_from_rows([{Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCK_LO: 70, Field.WRITES: 1}])
    ran = aj.synchronize_stream(execute_program(card, program, 1), 1)
    assert aj.host_time_ns(ran) - aj.host_time_ns(card) == 70
    np.testing.assert_array_equal(ran.memory, card.memory)


def test_a_captured_notify_is_set_and_taken_at_every_execution(card):
    card, notify = create_notify(card)
    begun = record_notify(capture_begin(card, 1), notify, 1)
    ended, program = capture_end(wait_and_reset_notify(begun, notify, 1), 1)
    assert (code(ended), program.rows) == (0, 2)
    for _ in range(2):
        ended = aj.synchronize_stream(execute_program(ended, program, 1), 1)
        assert code(ended) == 0
        assert ended.cells[card.max_events].tolist() == [0, 0]  # the first notify's
