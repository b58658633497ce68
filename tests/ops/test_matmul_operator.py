"""Matmul in two phases on a card: values, time, refusals, and a measured time in place of the predicted one."""

import math

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.insight.kinds import KERNEL

B2 = aj.chip("Ascend910B2")


def tensors(card, *arrays):
    made = []
    for array in arrays:
        card, pointer = aj.malloc(card, array.nbytes)
        card = aj.upload(card, pointer, array)
        made.append(aj.tensor(pointer, array.shape, array.dtype))
    return card, made


def test_the_operator_computes_and_takes_its_time():
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal(shape).astype(np.float16) for shape in ((2, 48, 32), (2, 32, 24)))
    card = aj.init(B2, hbm_backing_bytes=1 << 20, max_streams=1, max_events=1, max_commands=2, max_blocks=8)
    card, (left, right, out) = tensors(card, a, b, np.zeros((2, 48, 24), np.float16))
    card, size, executor = aj.ops.matmul_get_workspace_size(card, left, right, out=out)
    assert int(size) == 0
    card = aj.synchronize_device(aj.launch(card, executor, 0, 0))
    aj.raise_if_error(card)
    _, found = aj.download(card, out.pointer, (2, 48, 24), np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(np.asarray(found).astype(np.float64) - exact).max() < 2e-2
    log = aj.insight.timeline(card)
    log = log.of_kind(KERNEL)
    predicted = float(executor.cost.duration_ns(B2))
    assert abs(int(log.end_ns[0] - log.start_ns[0]) - math.ceil(predicted)) <= 1
    assert predicted > float(B2["kernel_head_ns"] + B2["matmul_fixed_ns"])


def test_the_first_phase_refuses_shapes_that_do_not_go_together():
    card = aj.init(B2, hbm_backing_bytes=0, max_streams=1, max_events=1, max_commands=2, max_blocks=4)
    good = [aj.tensor(1 << 15, shape, "float16") for shape in ((3, 4), (4, 6), (3, 6))]
    for bad, words in (((5, 6), "inner dimension"), ((4,), "rank 2"), ((4, 0), "at least 1")):
        other = aj.tensor(1 << 15, bad, "float16")
        with pytest.raises(aj.ParameterError, match=words) as error:
            aj.ops.matmul_get_workspace_size(card, good[0], other, out=good[2])
        assert "161002" in str(error.value)
    with pytest.raises(aj.ParameterError, match="161001"):
        aj.ops.matmul_get_workspace_size(card, good[0], None, out=good[2])
    with pytest.raises(aj.ParameterError, match="share float16"):
        aj.ops.matmul_get_workspace_size(card, good[0], aj.tensor(1 << 15, (4, 6), "int8"), out=good[2])


def test_a_measured_time_replaces_the_predicted_one(tmp_path):
    (tmp_path / "own.csv").write_text('operator,shape,dtype,us\nmatmul,"3,4;4,6",fp16,42.5\n')
    card = aj.init(B2, hbm_backing_bytes=0, max_streams=1, max_events=1, max_commands=2, max_blocks=8)
    made = [aj.tensor(1 << 15, shape, "float16") for shape in ((3, 4), (4, 6), (3, 6))]
    card, _, executor = aj.ops.matmul_get_workspace_size(card, made[0], made[1], out=made[2])
    measured = aj.ops.read_measurements(tmp_path / "own.csv")
    assert float(measured.apply(B2, executor).cost.duration_ns(B2)) == pytest.approx(42500)
    other = aj.ops.Measurements({})
    assert other.apply(B2, executor) is executor
