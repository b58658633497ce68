"""Vector operators and attention kernels against hand-made bounds and a twin."""

import math

import jax
import pytest

from ascend_jax.chip import FIELDS, chip
from ascend_jax.chip.instructions import instructions
from ascend_jax.chip.pipeline import LIMITS
from ascend_jax.ops.attention.tiling import AttentionShape
from ascend_jax.ops.attention.visibility import SparseMode
from ascend_jax.ops.timing import attention
from ascend_jax.ops.timing.vector import OPERATORS, TILES, VectorShape, choose_tile, place_tile, vector_cost

B2 = chip("Ascend910B2")
choose = jax.jit(choose_tile)
price = jax.jit(vector_cost)
forward = jax.jit(attention.forward, static_argnames=("shape", "library"))


def twin(spec, name, rows, columns, size, tile):
    """Float64 re-derivation for operands far larger than L2, so that everything misses."""
    v, rule = {field: float(spec[field]) for field in FIELDS}, OPERATORS[name]
    elements = rows * columns
    used = min(v["vector_cores"], math.ceil(elements / tile))
    inside = min(elements / used, tile)
    tiles = math.ceil(elements / used / tile)
    passes = 2 if rule.by_row and columns > tile else 1
    both = rule.reads > 0 and rule.writes > 0
    run = inside * size
    hbm = v["hbm_bytes_per_s"] * v["hbm_efficiency"]

    def rate(alone, group):
        single = min(v[alone], v["ub_port_bytes_per_s"] / 2) if both else v[alone]
        return min(single, v[group] / 2, hbm / used)

    def moved(arrays, speed, burst, rounds=1):
        if not arrays:
            return 0.0
        nbytes = arrays * inside * size * rounds
        issue = math.ceil(nbytes / run) * v["copy_issue_cycles"] / v["clock_hz"] * 1e9
        return max(1e9 * nbytes / speed * (burst + v["burst_overhead_bytes"]) / burst, issue)

    work = rule.compute_bytes or size
    cycles = sum(
        instructions()[op].head + instructions()[op].tail + instructions()[op].slope * math.ceil(inside * work / 256)
        for op in rule.instructions
    )
    parts = [
        moved(rule.reads, rate("gm_ub_bytes_per_s", "gm_group_read_bytes_per_s"), run, passes),
        cycles / v["clock_hz"] * 1e9,
        moved(
            rule.writes, rate("ub_gm_bytes_per_s", "gm_group_write_bytes_per_s"), 16 * size if rule.scatters else run
        ),
    ]
    fill = sum(parts) + sum(part > 0 for part in parts) * v["flag_cycles"] / v["clock_hz"] * 1e9
    loop = fill + (tiles - 1) * (max(parts) + v["overlap_loss"] * (sum(parts) - max(parts)))
    out = elements * size * rule.writes + (rows * size if rule.out_rows else 0)
    traffic = elements * size * rule.reads * passes + out
    shared = 1e9 * traffic / hbm * (run + v["burst_overhead_bytes"]) / run
    return v["kernel_head_ns"] + v["kernel_end_ns"] + max(loop, shared)


@pytest.mark.parametrize(
    ("name", "tile"), [("add", 8192), ("softmax", 4096), ("transpose", 2048), ("reduce_sum", 8192)]
)
def test_cost_equals_the_twin(name, tile):
    rows, columns = 65536, 16384  # 2 GB an array
    found = price(B2, VectorShape(name, rows, columns, 2), tile)
    assert bool(found.fits)
    assert float(found.duration_ns) == pytest.approx(twin(B2, name, rows, columns, 2, tile), rel=2e-3)


def test_published_add():
    """A vendor sample adds two fp16 arrays of 8192 x 8192 in 264 us; it was not fitted."""
    found, tile = choose(B2, VectorShape("add", 8192, 8192, 2))
    assert float(found.duration_ns) / 1e3 == pytest.approx(264, rel=0.1)
    assert LIMITS[int(found.limit)] == "hbm" and TILES[int(tile)] >= 2048


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_operator_has_a_time_between_its_bounds(name):
    found, tile = choose(B2, VectorShape(name, 4096, 4096, 2))
    shape = VectorShape(name, 4096, 4096, 2)
    assert bool(place_tile(B2, shape, TILES[int(tile)]).fits)
    least = (shape.read_bytes + shape.written_bytes) / float(B2["l2_bytes_per_s"]) * 1e9
    assert least < float(found.duration_ns) < 1e6


def test_rows_off_a_line_are_slower():
    """Softmax of 2 GB, bound by MTE2 once its rate falls to 70 %: 1000 columns start off 512 B lines, 1024 on them."""
    even, odd = (float(price(B2, VectorShape("softmax", 1 << 20, n, 2), 4096).busy_ns[4]) for n in (1024, 1000))
    assert odd / even == pytest.approx(1000 / 1024 / 0.7, rel=1e-2)
    flat = [float(price(B2, VectorShape("add", 1 << 20, n, 2), 4096).busy_ns[4]) for n in (1024, 1000)]
    assert flat[1] / flat[0] == pytest.approx(1000 / 1024, rel=1e-2), "elementwise work has no rows"


def test_what_is_in_l2_is_faster():
    small, _ = choose(B2, VectorShape("add", 2048, 2048, 2))
    assert float(small.hbm_bytes) == 0
    assert float(small.duration_ns) < 12 * 2048 * 2048 / 1.6e3  # the HBM time of reading and writing it


@pytest.mark.parametrize(
    ("given", "words"),
    [(("relu6", 1, 1, 2), "relu6"), (("add", 0, 1, 2), "rows=0"), (("add", 1, 1, 8), "dtype_bytes=8")],
)
def test_bad_shapes(given, words):
    with pytest.raises(ValueError, match=words):
        VectorShape(*given)


PUBLISHED = {1024: (20.96, 58.461), 4096: (88.902, 118.302), 16384: (909.058, 1118.462)}


@pytest.mark.parametrize("length", PUBLISHED)
def test_hand_written_and_library_attention(length):
    shape = AttentionShape(1, 1, 1, length, length, 128, 128, 2)
    for library, us in zip((False, True), PUBLISHED[length], strict=True):
        assert float(forward(B2, shape=shape, library=library).duration_ns) / 1e3 == pytest.approx(us, rel=0.12)


def test_attention_operations():
    assert attention.forward_flop(AttentionShape(2, 4, 4, 8, 8, 16, 16, 2)) == 4 * 2 * 4 * 64 * 16
    causal = AttentionShape(1, 1, 1, 8, 8, 16, 16, 2, SparseMode.LEFT_UP_CAUSAL)
    assert attention.forward_flop(causal) == 4 * 36 * 16


def backward_twin(spec, shape, rows, cols):
    """Float64 re-derivation for one A2 chip whose cores all work, from the table of `attention_queues`."""
    v = {name: float(spec[name]) for name in FIELDS}
    d = shape.dim
    sides = [(cols, rows, d)] * 2 + [(rows, d, cols)] * 2 + [(cols, d, rows)]
    cube = mte1 = 0.0
    for m, n, k in sides:
        steps = math.prod(math.ceil(side / 16) for side in (m, n, k))
        base = math.prod(math.ceil(side / 128) for side in (m, n, k))
        cube += (6 * base + steps) / v["clock_hz"]
        mte1 += 2 * m * k * math.ceil(n / 128) / v["l1_l0a_bytes_per_s"]
        mte1 += 2 * k * n * math.ceil(m / 128) / v["l1_l0b_bytes_per_s"]
    own, scores = cols // 2, 2 * rows * cols
    vector = (13 * math.ceil(own * rows / 64) + 7 * 26 * math.ceil(own / 8)) / v["clock_hz"]
    l2 = v["l2_bytes_per_s"]
    to_l1, to_ub = min(v["l2_l1_bytes_per_s"], l2 / 24), min(v["l2_ub_bytes_per_s"], l2 / 48)
    to_gm = min(v["ub_port_bytes_per_s"] / 2, v["gm_group_write_bytes_per_s"] / 2, l2 / 48)
    rounds = shape.q_len / cols
    loads = rounds * 2 * (2 * cols * d + scores) + 2 * 2 * rows * d
    drains = rounds * 4 * (scores + cols * d) + 4 * 2 * rows * d

    def longer(*queues):
        return max(queues) + v["overlap_loss"] * (sum(queues) - max(queues))

    waves = math.ceil(shape.batch * shape.heads * shape.kv_len / rows / 24)
    hbm = 2 * 8 * shape.batch * shape.heads * shape.q_len * d / (v["hbm_bytes_per_s"] * v["hbm_efficiency"])
    one = longer(rounds * cube, rounds * mte1, loads / to_l1 + hbm / waves, drains / v["l0c_gm_bytes_per_s"])
    other = longer(rounds * vector, rounds * scores / 2 * 4 / to_ub, rounds * scores / 2 * 2 / to_gm)
    block = max(one, other) + v["attention_overlap_loss"] * min(one, other)
    block = max(block, 24 * (loads + rounds * 4 * scores) / l2)
    work = max(waves * block, hbm)
    return v["kernel_head_ns"] + v["attention_fixed_ns"] + 1e9 * work


@pytest.mark.parametrize("tile", [(128, 128), (64, 256)])
def test_backward_equals_the_twin_and_counts_waves(tile):
    shape = AttentionShape(1, 25, 25, 2048, 2048, 128, 128, 2)
    found = attention.backward_cost(B2, shape, tile)
    assert int(found.waves) == math.ceil(25 * 2048 / tile[0] / 24)
    assert float(found.duration_ns) == pytest.approx(backward_twin(B2, shape, *tile), rel=1e-4)


def test_backward_choice_and_refusal():
    shape = AttentionShape(1, 8, 8, 4096, 4096, 128, 128, 2)
    best, index = jax.jit(attention.backward, static_argnames="shape")(B2, shape=shape)
    times = [backward_twin(B2, shape, *tile) for tile in attention.BACKWARD_TILES]
    legal = [bool(attention.place_backward(B2, shape, tile).fits) for tile in attention.BACKWARD_TILES]
    fastest = min((time, i) for i, time in enumerate(times) if legal[i])
    assert float(best.duration_ns) == pytest.approx(fastest[0], rel=1e-4) and int(index) == fastest[1]
    assert float(best.duration_ns) > float(forward(B2, shape=shape, library=True).duration_ns)
    with pytest.raises(ValueError, match="multiples of 16"):
        attention.backward_cost(B2, shape, (100, 128))
