"""Programs: what the columns mean, padding, lanes, faults, files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ascend_jax.runtime import layout
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.kernels import Argument, KernelSpec
from ascend_jax.runtime.layout import Field, Kind, Reach
from ascend_jax.runtime.program import Program, is_joined, predecessors, program_from_rows
from ascend_jax.runtime.program_files import load_program, save_program

FORK = [
    {Field.KIND: Kind.KERNEL, Field.STREAM: 0, Field.BLOCK_LO: 100},
    {Field.KIND: Kind.EVENT_RECORD, Field.STREAM: 0},
    {Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 1, Field.DEPENDS: 1},
    {Field.KIND: Kind.COPY, Field.STREAM: 1, Field.BLOCK_LO: 40},
    {Field.KIND: Kind.EVENT_RECORD, Field.STREAM: 1},
    {Field.KIND: Kind.EVENT_WAIT, Field.STREAM: 0, Field.DEPENDS: 4},
]


def column(program: Program, field: Field) -> list:
    return np.asarray(program.fields)[..., field].tolist()


def test_columns_that_follow_from_the_order():
    program = program_from_rows(FORK)
    assert (program.rows, program.streams) == (6, 2)
    assert column(program, Field.SEQUENCE) == [0, 1, 2, 3, 4, 5]
    assert column(program, Field.NEXT) == [1, 5, 3, 4, 6, 6]
    assert column(program, Field.POSITION) == [0, 1, 0, 1, 2, 2]
    assert column(program, Field.BLOCKS) == [1] * 6
    assert column(program, Field.KERNEL) == [layout.NONE] * 6
    assert predecessors(program.fields).tolist() == [[6, 6], [0, 6], [6, 1], [2, 6], [3, 6], [1, 4]]


def test_padding_adds_rows_that_stand_for_nothing():
    program = program_from_rows(FORK).padded(8)
    assert program.rows == 8
    assert column(program, Field.KIND)[6:] == [Kind.NOTHING] * 2
    assert column(program, Field.NEXT) == [1, 5, 3, 4, 8, 8, 8, 8]
    assert predecessors(program.fields).tolist() == [[8, 8], [0, 8], [8, 1], [2, 8], [3, 8], [1, 4], [8, 8], [8, 8]]
    assert is_joined(program.fields).all()
    with pytest.raises(ValueError, match="rows = 7: the program has 8"):
        program.padded(7)


def test_padding_a_batch():
    lanes = program_from_rows(FORK).with_fault(np.array([0, 3]), 507015)
    padded = lanes.padded(8)
    assert padded.fields.shape == (2, 8, layout.FIELDS)
    one = jax.tree.map(lambda x: x[1], padded)
    np.testing.assert_array_equal(one.fields, jax.tree.map(lambda x: x[1], lanes).padded(8).fields)


@pytest.mark.parametrize(
    ("row", "change", "message"),
    [
        (0, {Field.KIND: 0}, "row 0: KIND must be from 1"),
        (3, {Field.KIND: 99}, "row 3: KIND must be from 1"),
        (0, {Field.STREAM: -1}, "row 0: STREAM must be from 0"),
        (2, {Field.DEPENDS: 2}, "row 2: DEPENDS must be an earlier row"),
        (2, {Field.DEPENDS: -2}, "row 2: DEPENDS must be an earlier row"),
        (3, {Field.DEPENDS: 0}, "row 3: DEPENDS must be NONE, as only marks wait"),
        (2, {Field.DEPENDS: layout.NONE}, "row 2: a stream other than 0 begins with a wait"),
        (0, {Field.KERNEL: 0}, "row 0: KERNEL must be from -1 to -1"),
        (3, {Field.BLOCKS: 0}, "row 3: BLOCKS must be from 1"),
        (3, {Field.NEED + 1: 3}, "row 3: NEED . VECTOR must be from 0 to 2"),
        (0, {Field.HEAD_NS: 1 << 22}, "row 0: HEAD_NS must be from 0 to 4194303"),
        (0, {Field.BLOCK_LO: 0}, "row 0: a block of a task takes at least 1 ns"),
        (0, {Field.BLOCK_HI: 256}, "row 0: a block takes at most"),
        (5, {Field.DEPENDS: layout.NONE}, "row 2: the last command of stream 0 does not come after it"),
        (5, {Field.DEPENDS: 3}, "row 4: the last command of stream 0 does not come after it"),
    ],
)
def test_mistakes_are_named(row, change, message):
    rows = [dict(one) for one in FORK]
    rows[row] |= change
    with pytest.raises(ValueError, match=message):
        program_from_rows(rows)


def test_a_program_may_be_empty():
    program = program_from_rows([])
    assert program.rows == 0
    assert program.padded(2).rows == 2


def test_block_times_vary_per_lane_and_marks_keep_none():
    program = program_from_rows(FORK)
    lanes = program.with_block_ns(np.array([[7], [3 * 2**30 + 5]]))
    assert column(lanes, Field.BLOCK_LO) == [[7, 0, 0, 7, 0, 0], [5, 0, 0, 5, 0, 0]]
    assert column(lanes, Field.BLOCK_HI) == [[0] * 6, [3, 0, 0, 3, 0, 0]]
    assert lanes.operands.shape == (2, *program.operands.shape)
    each = program.with_block_ns(jnp.arange(1, 7))
    assert column(each, Field.BLOCK_LO) == [1, 0, 0, 4, 0, 0]
    for wrong in (0, -1, 2**38):
        with pytest.raises(ValueError, match="block_ns"):
            program.with_block_ns(wrong)


def test_a_fault_is_in_one_row_or_in_one_row_per_lane():
    program = program_from_rows(FORK)
    one = program.with_fault(3, Code.RT_AICORE_EXCEPTION, Reach.DEVICE)
    assert column(one, Field.FAULT) == [0, 0, 0, Code.RT_AICORE_EXCEPTION, 0, 0]
    assert column(one, Field.REACH) == [0, 0, 0, Reach.DEVICE, 0, 0]
    lanes = program.with_fault(jnp.array([0, 3]), jnp.array([5, 6]))
    assert column(lanes, Field.FAULT) == [[5, 0, 0, 0, 0, 0], [0, 0, 0, 6, 0, 0]]
    assert column(lanes, Field.REACH) == [[Reach.STREAM, 0, 0, 0, 0, 0], [0, 0, 0, Reach.STREAM, 0, 0]]
    with pytest.raises(ValueError, match="row = 6"):
        program.with_fault(6, 1)


def test_changes_work_under_jit():
    program = program_from_rows(FORK)
    changed = jax.jit(lambda one, ns, row: one.with_block_ns(ns).with_fault(row, 9).padded(8))(program, 11, 3)
    assert column(changed, Field.BLOCK_LO) == [11, 0, 0, 11, 0, 0, 0, 0]
    assert column(changed, Field.FAULT) == [0, 0, 0, 9, 0, 0, 0, 0]


def test_a_program_is_saved_as_plain_arrays_and_comes_back(tmp_path):
    spec = KernelSpec(
        "flash_attention_score",
        (("layout", "BNSD"), ("keep", -0.0), ("mode", 3), ("on", True), ("none", None), ("deep", (1, ("a", 2.5)))),
        (Argument((2, 3), np.dtype("float32")), Argument((), jnp.dtype("bfloat16"))),
        (Argument((4,), np.dtype("bool")),),
        ("scale_value",),
    )
    rows = [dict(one) for one in FORK]
    rows[0][Field.KERNEL] = 0
    operands = np.arange(6 * layout.OPERANDS * len(layout.Operand)).reshape(6, layout.OPERANDS, -1)
    program = program_from_rows(rows, operands, (spec,))
    save_program(program, tmp_path / "one.npz")
    back = load_program(tmp_path / "one.npz")
    np.testing.assert_array_equal(back.fields, program.fields)
    np.testing.assert_array_equal(back.operands, operands)
    assert back.streams == 2
    assert back.kernels == (spec,)
    assert back.kernels[0].spelling == spec.spelling  # -0.0, True and 3 are themselves again
    save_program(program, tmp_path / "two.npz")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_what_cannot_be_saved_or_read_says_so(tmp_path):
    spec = KernelSpec("add", (("fn", len),), (), ())
    with pytest.raises(TypeError, match="attribute"):
        save_program(program_from_rows(FORK, None, (spec,)), tmp_path / "bad.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match="no saved program"):
        load_program(tmp_path / "other.npz")
    save_program(program_from_rows(FORK), tmp_path / "old.npz")
    with np.load(tmp_path / "old.npz") as file:
        parts = dict(file)
    parts["about"] = np.array(str(parts["about"]).replace("SEQUENCE", "SERIAL"))
    np.savez(tmp_path / "old.npz", **parts)
    with pytest.raises(ValueError, match="another version"):
        load_program(tmp_path / "old.npz")
