"""What a FlashAttention launch asks of the card: one block per core, and the time that the tiling predicts."""

import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.ops import registry
from ascend_jax.runtime.kernels import Argument

operator = importlib.import_module("ascend_jax.ops.flash_attention_score")  # the package's attribute is the function

SHAPES = [(1, 1, 16, 16), (1, 32, 1024, 128), (2, 8, 4096, 64), (1, 1, 16384, 128)]
# chip: cube cores of the chip, vector cores beside each (0 where the core itself has the vector unit)
CORES = {"Ascend910B2": (24, 2), "Ascend910B4": (20, 2), "Ascend910_9392": (24, 2), "Ascend910A": (32, 1),
         "Ascend310P3": (8, 1)}  # fmt: skip


def arguments(shape, dtype):
    qkv = [Argument(shape, jnp.dtype(dtype))] * 3
    return qkv, list(aj.ops.infer(operator.NAME, qkv, {"sparse_mode": 0}).values())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", sorted(CORES))
def test_one_block_per_core_and_the_predicted_time(name, shape):
    chip = aj.chip(name)
    inputs, outputs = arguments(shape, "float16")

    def both(chip, limit):
        cost = registry.find(operator.NAME).plan(chip, inputs, outputs, limit, sparse_mode=0).cost
        best = aj.ops.choose_tile(chip, operator.attention_shape(*inputs, 0), limit)
        return cost, cost.duration_ns(chip), cost.waves(chip), best

    cores, vector = CORES[name]
    for limit in (2**31 - 1, 3):
        cost, duration, waves, best = jax.jit(both)(chip, jnp.int32(limit))
        assert (int(cost.cube_cores), int(cost.vector_cores), int(cost.all_at_once)) == (1, vector, 0)
        assert int(cost.blocks) == int(best.cores_used) <= min(limit, cores)
        assert int(waves) == 1  # every core has one block
        predicted = float(best.duration_ns)
        assert float(duration) == pytest.approx(predicted, abs=max(1.0, float(np.spacing(np.float32(predicted)))))
        on_card = math.ceil(cost.head_ns) + math.ceil(cost.block_ns)  # whole ns, as the card counts
        assert abs(on_card - math.ceil(predicted)) <= max(1.0, float(np.spacing(np.float32(predicted))))


@pytest.mark.parametrize("name", ["Ascend910B2", "Ascend910A", "Ascend310P3"])
def test_a_card_takes_that_time(name):
    chip = aj.chip(name)
    card = aj.init(chip, hbm_backing_bytes=0, max_streams=1, max_events=1, max_commands=2, max_blocks=8)
    shape = (1, 4, 2048, 128)
    inputs, outputs = arguments(shape, "float16")
    tensors = []
    for each in (*inputs, *outputs):
        card, pointer = aj.malloc(card, each.nbytes)
        tensors.append(aj.tensor(pointer, each.shape, each.dtype))
    q, k, v, out, row_max, row_sum = tensors
    card, size, executor = aj.ops.flash_attention_score_get_workspace_size(
        card, q, k, v, attention_out=out, softmax_max=row_max, softmax_sum=row_sum, head_num=4
    )
    card, workspace = aj.malloc(card, size) if int(size) else (card, 0)
    card = aj.synchronize_device(aj.launch(card, executor, workspace, 0))
    aj.raise_if_error(card)
    log = aj.insight.timeline(card)
    predicted = float(
        jax.jit(aj.ops.choose_tile, static_argnums=1)(chip, operator.attention_shape(q, k, v, 0)).duration_ns
    )
    assert abs(int(log.end_ns[0] - log.start_ns[0]) - math.ceil(predicted)) <= 1
    cores, vector = CORES[name]
    held = min(cores, 4 * 2048 // 16)
    assert log.held_cube[0] == log.blocks[0] <= held
    assert log.held_vector[0] == vector * log.blocks[0]
