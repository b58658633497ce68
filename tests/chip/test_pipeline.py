"""The tile loop against queues stepped one tile at a time."""

import jax
import numpy as np
import pytest

from ascend_jax.chip import chip
from ascend_jax.chip.instructions import instructions, sequence_ns
from ascend_jax.chip.pipeline import LIMITS, QUEUES, bound, stages, steady_ns, tile_pipeline

IDEAL = chip("Ascend910B2").replace(overlap_loss=0.0, flag_cycles=0.0)


def stepped(stage_ns, tiles, buffers):
    """End of the last tile: a queue is in order, and writes a buffer only once the next queue has read it."""
    ends = [[0.0] * len(stage_ns) for _ in range(tiles)]
    for i in range(tiles):
        ready = 0.0
        for q, length in enumerate(stage_ns):
            start = max(ready, ends[i - 1][q] if i else 0.0)
            if q + 1 < len(stage_ns) and i >= buffers:
                start = max(start, ends[i - buffers][q + 1])
            if buffers == 1 and i:
                start = max(start, ends[i - 1][-1])  # one buffer in every queue: tiles do not overlap at all
            ready = ends[i][q] = start + length
    return ends[-1][-1]


def test_double_buffering_equals_stepped_queues():
    draw = np.random.default_rng(5)
    run = jax.jit(lambda tile_ns, tiles, buffers: tile_pipeline(IDEAL, tile_ns, tiles, buffers=buffers).total_ns)
    for _ in range(40):
        mte2, vector, mte3 = (int(n) for n in draw.integers(1, 100, 3))
        tiles, buffers = int(draw.integers(1, 12)), int(draw.integers(1, 3))
        once = stages(mte2=float(mte2), vector=float(vector), mte3=float(mte3))
        assert float(run(once, tiles, buffers)) == stepped([mte2, vector, mte3], tiles, buffers)


def test_loss_and_flags():
    spec = IDEAL.replace(overlap_loss=0.25, flag_cycles=18.0)  # 10 ns a flag
    once = stages(mte2=100.0, cube=40.0)
    assert float(steady_ns(spec, once)) == 100 + 0.25 * 40
    assert float(tile_pipeline(spec, once, 5, buffers=1).total_ns) == pytest.approx(5 * (140 + 20))
    assert float(tile_pipeline(spec, once, 5).total_ns) == pytest.approx(160 + 4 * 110)
    assert float(tile_pipeline(spec, once, 0).total_ns) == 0


def test_busy_and_limit_by_queue():
    found = tile_pipeline(IDEAL, stages(mte2=10.0, cube=30.0), 4)
    assert QUEUES[int(found.limit)] == "cube"
    busy = dict(zip(QUEUES, np.asarray(found.busy_ns).tolist(), strict=True))
    assert busy == {name: {"mte2": 40.0, "cube": 120.0}.get(name, 0.0) for name in QUEUES}
    assert float(found.utilisation()[0]) == pytest.approx(120 / 130)


def test_what_bounds_a_time():
    def name(l2=0.0, hbm=0.0, launch=0.0, **queues):
        return LIMITS[int(bound(stages(**queues), l2, hbm, launch))]

    assert name(cube=3.0, mte2=2.0) == "cube" and name(cube=3.0, launch=4.0) == "launch"
    assert name(mte2=5.0, hbm=2.0, cube=4.0) == "mte2" and name(mte2=5.0, hbm=3.0, cube=4.0) == "hbm"
    assert name(hbm=3.0, mte3=2.0) == "hbm" and name(l2=3.0, mte3=2.0) == "l2"


def test_batches_of_tiles_and_chips():
    tile_ns = stages(mte2=np.array([1.0, 2.0, 4.0]), vector=np.array([3.0, 3.0, 3.0]))
    by_tile = jax.vmap(lambda tile: tile_pipeline(IDEAL, tile, 10).total_ns)(tile_ns)
    np.testing.assert_allclose(by_tile, [4 + 27, 5 + 27, 7 + 36])
    chips = IDEAL.replace(overlap_loss=np.array([0.0, 1.0]))
    by_chip = jax.vmap(lambda spec: tile_pipeline(spec, tile_ns[0], 10).total_ns)(chips)
    np.testing.assert_allclose(by_chip, [31, 4 + 9 * 4])


def test_unknown_queue():
    with pytest.raises(ValueError, match="no queue 'mte4'"):
        stages(mte4=1.0)


@pytest.mark.parametrize(
    ("names", "cycles"),
    [(["add"], 30.24), (["mul"], 31.25), (["max"], 28.24), (["exp", "ln", "sqrt", "rsqrt"], 138.25)],
)
def test_instructions_against_measured_cycles(names, cycles):
    """Steady loops over 256 fp16 elements on 910B3."""
    assert float(sequence_ns(chip("910B3"), names, 256, 2)) * 1.8 == pytest.approx(cycles, rel=0.15)


def test_instruction_table():
    assert instructions()["vcadd"] == (14, 7, 32)
    with pytest.raises(ValueError, match="'vfoo'"):
        sequence_ns(IDEAL, ["vfoo"], 1, 2)
