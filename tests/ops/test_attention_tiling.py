"""Attention tiles and times against a plain Python twin and the published times of the vendor operator."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ascend_jax.chip import FIELDS, OnChipError, chip, require
from ascend_jax.chip.pipeline import LIMITS, QUEUES
from ascend_jax.ops.attention.tiling import (
    TILES,
    AttentionShape,
    attention_cost,
    choose_tile,
    place_tile,
    workspace_bytes,
)
from ascend_jax.ops.attention.visibility import SparseMode

SPEC = chip("Ascend910B2")
MEASURED_US = {1024: 58.461, 4096: 118.302, 16384: 1118.462}  # 910B2, one head, D 128, fp16
choose = jax.jit(choose_tile, static_argnums=1)
price = jax.jit(attention_cost, static_argnums=(1, 2))

SHAPES = [
    AttentionShape(1, 1, 1, 4096, 4096, 128, 128, 2),
    AttentionShape(2, 8, 2, 1000, 3001, 192, 128, 2),
    AttentionShape(1, 4, 4, 2048, 2048, 64, 64, 2, SparseMode.LEFT_UP_CAUSAL),
    AttentionShape(1, 2, 1, 300, 700, 96, 96, 4, SparseMode.RIGHT_DOWN_CAUSAL),
    AttentionShape(64, 8, 8, 1, 4096, 128, 128, 2),
    AttentionShape(1, 64, 64, 512, 400_000, 512, 512, 2),  # keys of the heads in work exceed L2
]


def up(x, step):
    return -(-x // step) * step


def misses(ratio):
    """Root of m = 1 - exp(-m ratio) in (0, 1], by bisection; 0 where only 0 solves it."""
    low, high = 1e-9, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - math.exp(-middle * ratio) > middle else (low, middle)
    return low if ratio > 1 else 0.0


def twin(spec, shape, tile, cores=None):
    """Float64 re-derivation of times, waves, blocks and bytes from the tables of both modules' docstrings."""
    v = {name: float(spec[name]) for name in FIELDS}
    size, beside = shape.dtype_bytes, int(v["vector_per_cube"])
    split, hz = beside > 1, v["clock_hz"]
    d, dv = up(shape.dim, 16), up(shape.value_dim, 16)
    rows, cols = min(tile[0], up(shape.q_len, 16)), min(tile[1], up(shape.kv_len, 16))
    walked = []  # (columns, rounds) of every block of a head
    for start in range(0, shape.q_len, rows):
        last = min(start + rows, shape.q_len) - 1
        visible = shape.kv_len
        if shape.mode:  # 2: j <= i; 3: j <= i + kv_len - q_len
            ahead = 0 if shape.mode == 2 else shape.kv_len - shape.q_len
            visible = sum(1 for j in range(shape.kv_len) if j <= last + ahead)
        rounds = math.ceil(visible / cols)
        walked.append((min(rounds * cols, up(shape.kv_len, 16)), rounds))
    blocks = shape.batch * shape.heads * len(walked)
    used = min(int(v["cube_cores"]) if cores is None else min(cores, int(v["cube_cores"])), blocks)
    waves = math.ceil(blocks / used)
    workspace = used * 2 * rows * (cols * (4 + size) + dv * 4) if split else 0
    sharers = len(walked) * shape.heads // shape.kv_heads
    kv_heads = shape.batch * shape.kv_heads
    row_bytes = (shape.dim + shape.value_dim) * size
    active_heads = min(math.ceil(used / sharers), kv_heads)
    kept = v["l2_bytes"] * v["l2_effective_share"]
    first = 1 / sharers + (1 - 1 / sharers) * misses((active_heads * shape.kv_len * row_bytes + workspace) / kept)
    mean = tuple(np.mean(walked, axis=0))
    longest = max(walked)
    reads = max(first * mean[0] * blocks, kv_heads * longest[0])
    hbm = row_bytes * (reads + shape.batch * shape.heads * shape.q_len)

    def mmad(m, n, k):
        tiles = math.ceil(m / 128) * math.ceil(n / 128) * math.ceil(k / 128)
        steps = math.ceil(m / 16) * math.ceil(n / 16) * math.ceil(k / 16)
        return (6 * tiles + steps / (v["cube_fp32_share"] if size == 4 else 1)) / hz

    def feed(m, n, k):
        left, right = m * k * math.ceil(n / 128), k * n * math.ceil(m / 128)
        return size * (left / v["l1_l0a_bytes_per_s"] + right / v["l1_l0b_bytes_per_s"])

    # Rates of L2, shared by the cores at work. A store has half of its core's port, and its group's share.
    to_l1 = min(v["l2_l1_bytes_per_s"], v["l2_bytes_per_s"] / used)
    to_ub = min(v["l2_ub_bytes_per_s"], v["l2_bytes_per_s"] / (used * beside))
    group = v["gm_group_write_bytes_per_s"] / beside if beside > 1 else math.inf
    to_gm = min(v["ub_gm_bytes_per_s"], v["ub_port_bytes_per_s"] / 2, group, v["l2_bytes_per_s"] / (used * beside))

    def longer(*queues):
        return max(queues) + v["overlap_loss"] * (sum(queues) - max(queues))

    missed = hbm / (v["hbm_bytes_per_s"] * v["hbm_efficiency"])

    def block(columns, rounds):
        own = math.ceil(rows / beside)
        pieces = math.ceil(own / 8)
        cycles = 11 * math.ceil(own * columns / 64) + 6 * 26 * pieces * rounds
        cycles += 4 * math.ceil(own * dv * rounds / 64) + 2 * 26 * pieces * rounds
        cycles += 6 * math.ceil(own * dv / 64) + 2 * 26 * pieces
        p, o = size * rows * columns, size * rows * dv
        s_and_pv = 4 * rows * (columns + rounds * dv)
        inputs = size * (rows * d + columns * (d + dv))
        cube = mmad(rows, columns, d) + mmad(rows, dv, columns)
        mte1 = feed(rows, columns, d) + feed(rows, dv, columns)
        if split:
            share = own / rows
            one = longer(cube, mte1, (inputs + p) / to_l1 + missed / waves, s_and_pv / v["l0c_gm_bytes_per_s"])
            other = longer(share * s_and_pv / to_ub, cycles / hz, share * (p + o) / to_gm)
            read = inputs + p + s_and_pv
        else:
            width = v["vector_bytes_per_cycle"] * hz
            one = longer(cube, mte1, inputs / to_l1 + missed / waves)
            other = longer(cycles / hz + s_and_pv / width, o / to_gm + p / width)
            read = inputs
        handed = max(one, other) + v["attention_overlap_loss"] * min(one, other)
        return max(handed, read * used / v["l2_bytes_per_s"])

    work = max(waves * block(*mean), block(*longest))
    work = max(work, missed)
    return {
        "duration_ns": v["kernel_head_ns"] + v["attention_fixed_ns"] + 1e9 * work,
        "waves": waves,
        "blocks": blocks,
        "hbm_bytes": hbm,
        "workspace_bytes": workspace,
    }


@pytest.mark.parametrize(
    ("name", "shape", "tile", "cores"),
    [
        ("Ascend910B2", SHAPES[0], (64, 1024), None),
        ("Ascend910B2", SHAPES[1], (128, 256), 7),
        ("Ascend910B2", SHAPES[3], (32, 512), None),
        ("Ascend910B4", SHAPES[4], (16, 1024), None),
        ("Ascend910A", SHAPES[2], (128, 256), None),
        ("Ascend310P3", SHAPES[0], (64, 2048), 3),
    ],
)
def test_cost_equals_the_twin(name, shape, tile, cores):
    spec = chip(name)
    expected, found = twin(spec, shape, tile, cores), price(spec, shape, tile, cores)
    assert bool(found.fits)
    assert (int(found.waves), int(found.blocks)) == (expected["waves"], expected["blocks"])
    for key in ("duration_ns", "hbm_bytes", "workspace_bytes"):
        assert float(getattr(found, key)) == pytest.approx(expected[key], rel=1e-4), key


def test_keys_beyond_l2_are_read_again():
    expected, found = twin(SPEC, SHAPES[5], (128, 1024)), price(SPEC, SHAPES[5], (128, 1024))
    assert float(found.hbm_bytes) == pytest.approx(expected["hbm_bytes"], rel=1e-4)
    assert float(found.duration_ns) == pytest.approx(expected["duration_ns"], rel=1e-4)
    compulsory = 2 * 1024 * 64 * (512 + 400_000)
    assert float(found.hbm_bytes) > 3.9 * compulsory


@pytest.mark.parametrize("length", MEASURED_US)
def test_published_times_within_15_percent(length):
    cost = choose(SPEC, AttentionShape(1, 1, 1, length, length, 128, 128, 2))
    assert float(cost.duration_ns) / 1e3 == pytest.approx(MEASURED_US[length], rel=0.15)


def test_published_rate_that_was_not_fitted():
    """The vendor operator reaches 150.8 TFLOPS at S = 32768."""
    cost = choose(SPEC, AttentionShape(1, 1, 1, 32768, 32768, 128, 128, 2))
    assert 4 * 32768**2 * 128 / float(cost.duration_ns) / 1e3 == pytest.approx(150.8, rel=0.15)


@pytest.mark.parametrize("shape", SHAPES[1:4])
def test_choice_is_the_fastest_of_a_loop(shape):
    legal = [tile for tile in TILES if place_tile(SPEC, shape, tile).fits]
    times = {tile: twin(SPEC, shape, tile)["duration_ns"] for tile in legal}
    best = choose(SPEC, shape)
    tile = TILES[int(best.tile)]
    assert float(best.duration_ns) == pytest.approx(min(times.values()), rel=1e-4)
    assert times[tile] == pytest.approx(min(times.values()), rel=1e-4)
    chex.assert_trees_all_close(best, price(SPEC, shape, tile), rtol=1e-6)


def test_batch_of_specs_equals_a_loop():
    clocks = np.array([1.0e9, 1.8e9], np.float32)
    batch = jax.jit(jax.vmap(lambda spec: choose_tile(spec, SHAPES[0])))(SPEC.replace(clock_hz=clocks))
    for lane, clock in enumerate(clocks):
        one = choose(SPEC.replace(clock_hz=clock), SHAPES[0])
        chex.assert_trees_all_close(jax.tree.map(lambda leaf, i=lane: leaf[i], batch), one, rtol=1e-6)


@pytest.mark.parametrize(("dim", "size"), [(16, 2), (192, 4), (768, 2), (768, 4)])
def test_every_documented_head_size_has_a_tile(dim, size):
    shape = AttentionShape(1, 8, 8, 4096, 4096, dim, dim, size)
    cost = choose(SPEC, shape)
    assert bool(cost.fits) and math.isfinite(float(cost.duration_ns))
    require(place_tile(SPEC, shape, TILES[int(cost.tile)]))


def test_tile_that_does_not_fit_is_refused_with_numbers():
    shape = AttentionShape(1, 1, 1, 8192, 8192, 128, 128, 2)
    cost = price(SPEC, shape, (128, 2048))
    assert not bool(cost.fits) and math.isinf(float(cost.duration_ns))
    with pytest.raises(OnChipError, match=r"UB: 208896 bytes asked for, 196608 available"):
        require(place_tile(SPEC, shape, (128, 2048)))
    assert bool(price(chip("910A"), shape, (128, 2048)).fits)


def test_no_tile_says_so():
    cost = choose(SPEC.replace(l1_bytes=1024), SHAPES[0])
    assert not bool(cost.fits) and math.isinf(float(cost.duration_ns))


def test_plan_of_the_vendor_tile():
    rows = {(row["level"], row["buffer"]): row for row in place_tile(SPEC, SHAPES[0], (128, 1024)).report()}
    for level in ("L0A", "L0B"):
        row = rows[level, "left" if level == "L0A" else "right"]
        assert (row["size_bytes"], row["copies"]) == (32768, 2)  # double-buffered 128 x 128 fp16 fill 64 KiB
    assert rows["L0C", "score"]["size_bytes"] + rows["L0C", "output"]["size_bytes"] == 131072
    assert rows["UB", "row_statistics"]["size_bytes"] == 128 * 32
    assert rows["UB", "score"]["size_bytes"] == 32768  # 8 x 1024 fp32


def test_waves_follow_the_cores():
    shape = SHAPES[0]  # 64 blocks of 64 rows
    for cores, waves in ((64, 3), (32, 3), (24, 3), (22, 3), (21, 4), (1, 64)):
        cost = price(SPEC, shape, (64, 1024), cores)
        assert (int(cost.waves), int(cost.cores_used)) == (waves, min(cores, 24))
    one, all_cores = price(SPEC, shape, (64, 1024), 1), price(SPEC, shape, (64, 1024))
    assert float(one.duration_ns) > 10 * float(all_cores.cube_busy_ns)
    with pytest.raises(ValueError, match="cores=0"):
        attention_cost(SPEC, shape, (64, 1024), 0)


def test_causal_work_counts_live_tiles():
    full = AttentionShape(1, 16, 16, 8192, 8192, 128, 128, 2)
    causal = AttentionShape(1, 16, 16, 8192, 8192, 128, 128, 2, SparseMode.LEFT_UP_CAUSAL)
    whole, half = (price(SPEC, shape, (128, 128)) for shape in (full, causal))
    live, total = sum(range(1, 65)), 64 * 64
    assert float(half.cube_busy_ns) / float(whole.cube_busy_ns) == pytest.approx(live / total, rel=0.01)
    same_below = AttentionShape(1, 16, 16, 128, 8192, 128, 128, 2, SparseMode.RIGHT_DOWN_CAUSAL)
    one_block = AttentionShape(1, 16, 16, 128, 8192, 128, 128, 2)  # its last row sees every column
    chex.assert_trees_all_close(price(SPEC, same_below, (128, 128)), price(SPEC, one_block, (128, 128)))
    one_head = AttentionShape(1, 1, 1, 2048, 2048, 128, 128, 2, SparseMode.LEFT_UP_CAUSAL)  # 16 blocks, 24 cores
    longest = AttentionShape(1, 1, 1, 2048, 2048, 128, 128, 2)
    assert float(price(SPEC, one_head, (128, 128)).duration_ns) >= 0.9 * float(
        price(SPEC, longest, (128, 128)).duration_ns
    )


def test_workspace_is_concrete_for_a_concrete_spec():
    rows, cols = 128, 1024
    expected = 24 * 2 * (rows * cols * (4 + 2) + rows * 128 * 4)
    found = workspace_bytes(SPEC, SHAPES[0], (rows, cols))
    assert isinstance(found, int) and found == expected
    assert int(jax.jit(lambda spec: workspace_bytes(spec, SHAPES[0], (rows, cols)))(SPEC)) == expected
    assert workspace_bytes(chip("910A"), SHAPES[0], (rows, cols)) == 0


def test_limits():
    cases = {
        (1, 1, 1, 128, 128, 128, 128, 2): ("launch",),
        (1, 64, 64, 8192, 8192, 512, 512, 4): ("cube",),
        (1, 64, 64, 8192, 8192, 32, 32, 2): ("vector",),
        (256, 32, 32, 1, 8192, 128, 128, 2): ("hbm",),
    }
    for sizes, names in cases.items():
        assert LIMITS[int(choose(SPEC, AttentionShape(*sizes)).limit)] in names, sizes


def test_every_queue_of_a_core_pair_has_its_time():
    """By hand: one block of 128 x 4096, head dimension 128, fp16, on one of 24 pairs."""
    busy = np.asarray(price(SPEC, AttentionShape(1, 24, 24, 128, 4096, 128, 128, 2), (128, 1024)).busy_ns)
    found = dict(zip(QUEUES, busy.tolist(), strict=True))
    keys, scores = 4096 * 128 * 2, 128 * 4096
    hbm = 1e9 * 24 * (2 * keys + 2 * 128 * 256) / 1.536e12  # Q, K, V and O of 24 heads, one wave
    partial = 4 * (scores + 4 * 128 * 128)
    assert found["cube"] == pytest.approx(2 * 32 * (512 + 6) / 1.8, rel=1e-5)
    assert found["mte2"] == pytest.approx(1e9 * (128 * 256 + 2 * keys + 2 * scores) / (5e12 / 24) + hbm, rel=1e-4)
    assert found["fixpipe"] == pytest.approx(1e9 * partial / 1.4352e11, rel=1e-4)
    assert found["mte3"] == pytest.approx(1e9 * (2 * scores + 2 * 128 * 128) / 2 / 8.65e10, rel=1e-4)
    assert found["scalar"] == 0 and min(found["vector"], found["mte1"]) > 0


@pytest.mark.parametrize("name", ["Ascend910_9392", "Ascend310P3"])
def test_other_chips_answer(name):
    assert math.isfinite(float(choose(chip(name), SHAPES[0]).duration_ns))


def test_changed_values_do_not_retrace():
    traced = jax.jit(chex.assert_max_traces(choose_tile, n=1), static_argnums=1)
    slow, fast = (float(traced(SPEC.replace(clock_hz=hz), SHAPES[0]).duration_ns) for hz in (1e9, 2e9))
    assert slow > fast
    gradient = jax.jit(jax.grad(lambda spec: choose_tile(spec, SHAPES[0]).duration_ns))(SPEC)
    assert bool(jnp.isfinite(gradient.values).all()) and float(gradient["attention_fixed_ns"]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3, "kv_heads": 2}, "no multiple"),
        ({"q_len": 0}, "q_len=0"),
        ({"dtype_bytes": 8}, "dtype_bytes=8"),
    ],
)
def test_bad_shapes_are_refused(change, message):
    good = {
        "batch": 1,
        "heads": 1,
        "kv_heads": 1,
        "q_len": 1,
        "kv_len": 1,
        "dim": 1,
        "value_dim": 1,
        "dtype_bytes": 2,
    }
    with pytest.raises(ValueError, match=message):
        AttentionShape(**(good | change))
    with pytest.raises(ValueError, match="multiples of 16"):
        attention_cost(SPEC, AttentionShape(**good), (20, 64))
