"""Operators plan their tiles with the allocators that kernels allocate from; what does not fit is never launched."""

import jax
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.chip import OnChipError, place
from ascend_jax.ops.attention import tiling as attention
from ascend_jax.runtime.layout import Clock

B2 = aj.chip("Ascend910B2")
SMALL = B2.replace(l0c_bytes=512.0)  # no cube step has its result there
HEADS = attention.AttentionShape(1, 1, 1, 4096, 4096, 128, 128, 2)


def allocate(spec, buffers):
    """Return the offset of every buffer, allocated one after another in the memories of a core."""
    memory, offsets = aj.core_memory(spec), []
    for buffer in buffers:
        memory, made = aj.alloc_local(
            memory, buffer.level, (int(buffer.size_bytes),), "uint8", name=buffer.name, copies=buffer.copies
        )
        offsets.append(made.turn(0).offset_bytes)
    return offsets


@pytest.mark.parametrize("index", range(0, len(attention.TILES), 3))
def test_a_tile_lies_where_a_kernel_would_allocate_it(index):
    buffers = attention.tile_buffers(HEADS, attention.TILES[index])
    plan = place(B2, buffers)
    if plan.fits:
        assert allocate(B2, buffers) == [row["offset_bytes"] for row in plan.report()]
    else:
        with pytest.raises(OnChipError, match="are free"):
            allocate(B2, buffers)


@pytest.mark.parametrize("spec", [B2, SMALL])
def test_a_tile_that_does_not_fit_is_not_launched(spec):
    card = aj.init(spec, hbm_backing_bytes=1 << 20, max_streams=1, max_events=1, max_commands=4, max_blocks=8)
    tensors = []
    for _ in range(3):
        card, pointer = aj.malloc(card, 16 * 16 * 2)
        tensors.append(aj.tensor(pointer, (16, 16), "float16"))
    for tensor in tensors:
        card = aj.upload(card, tensor.pointer, np.ones((16, 16), np.float16))
    before = int(card.clock[Clock.ENQUEUED]), np.asarray(card.memory)
    card, _, executor = aj.ops.matmul_get_workspace_size(card, *tensors[:2], out=tensors[2])
    expected = aj.Code.SUCCESS if spec is B2 else aj.Code.INNER_TILING
    assert int(aj.last_code(card)) == expected
    card = aj.launch(card, executor, 0, 0)
    assert int(aj.last_code(card)) == expected
    card = aj.synchronize_device(card)
    assert int(card.clock[Clock.ENQUEUED]) - before[0] == (1 if spec is B2 else 0)
    assert (np.asarray(card.memory) != before[1]).any() == (spec is B2)


def test_under_jit_too():
    @jax.jit
    def first_phase(card):
        tensors = [aj.tensor(1 << 15, (16, 16), "float16")] * 3
        return aj.last_code(aj.ops.matmul_get_workspace_size(card, *tensors[:2], out=tensors[2])[0])

    codes = [int(first_phase(aj.init(spec, hbm_backing_bytes=0, max_commands=2))) for spec in (B2, SMALL)]
    assert codes == [aj.Code.SUCCESS, aj.Code.INNER_TILING]
