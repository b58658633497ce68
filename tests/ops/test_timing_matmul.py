"""Matmul times against a plain Python twin, and the choice of tile."""

import math

import jax
import pytest

from ascend_jax.chip import FIELDS, chip
from ascend_jax.chip.pipeline import LIMITS
from ascend_jax.ops.timing.matmul import (
    TILES,
    MatmulShape,
    Tile,
    choose_tile,
    matmul_cost,
    place_tile,
    vendor_fixed_ns,
)

B1, B2 = chip("Ascend910B1"), chip("Ascend910B2")
price = jax.jit(matmul_cost, static_argnames=("buffers", "constant_tiling"))
choose = jax.jit(lambda spec, shape: choose_tile(spec, shape, fixed_ns=vendor_fixed_ns(spec)))


def misses(ratio):
    low, high = 1e-9, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - math.exp(-middle * ratio) > middle else (low, middle)
    return low if ratio > 1 else 0.0


def twin(spec, m, n, k, size, tile, cores, buffers=2, constant=True):
    """Float64 re-derivation from the table in the module's docstring: (us, HBM bytes)."""
    v = {name: float(spec[name]) for name in FIELDS}
    bm, bn, bk, steps_k = tile
    blocks = math.ceil(m / bm) * math.ceil(n / bn)
    used = min(cores, int(v["cube_cores"]), blocks)
    waves, steps = math.ceil(blocks / used), math.ceil(k / bk)

    def run(nbytes):
        return nbytes / (nbytes + v["burst_overhead_bytes"])

    cycle = 1e9 / v["clock_hz"]
    base = math.ceil(bm / 128) * math.ceil(bn / 128) * math.ceil(bk / 128)
    grid = math.ceil(bm / 16) * math.ceil(bn / 16) * math.ceil(bk / (32 // min(size, 2)))
    cube = (6 * base + grid / (v["cube_fp32_share"] if size == 4 else 1)) * cycle
    left, right = bm * bk * size, bk * bn * size
    mte1 = 1e9 * (left / v["l1_l0a_bytes_per_s"] + right / v["l1_l0b_bytes_per_s"])
    rate = min(v["l2_l1_bytes_per_s"], v["l2_bytes_per_s"] / used)
    share = [1 if row * size % 512 == 0 else 0.7 if row * size % 32 == 0 else 0.51 for row in (k, n)]
    mte2 = 1e9 * (left / rate / run(bk * steps_k * size) / share[0] + right / rate / run(bn * size) / share[1])
    mte2 += 2 * v["copy_issue_cycles"] / steps_k * cycle
    a, b, c = m * k * size, k * n * size, m * n * (4 if size == 1 else size)
    passes = max(m / (math.isqrt(used) * bm), 1)
    kept = v["l2_bytes"] * v["l2_effective_share"]
    hbm = (a + b * (1 + (passes - 1) * misses((b + (a + c) / passes) / kept)) + c) * misses((a + b + c) / kept)
    hbm_ns = 1e9 * hbm / (v["hbm_bytes_per_s"] * v["hbm_efficiency"] * run(bn * size))
    mte2 += hbm_ns / waves / steps
    scalar = 0 if constant else v["tiling_cycles"] * cycle
    parts = [cube, mte1, mte2] + ([scalar] if scalar else [])
    alone = sum(parts) + len(parts) * v["flag_cycles"] * cycle
    drain = 1e9 * 4 * bm * bn / v["l0c_gm_bytes_per_s"]
    if buffers == 1:
        core = waves * (steps * alone + drain)
    else:
        step = max(parts) + v["overlap_loss"] * (sum(parts) - max(parts)) + scalar
        loop = steps * step
        if 8 * bm * bn <= v["l0c_bytes"]:  # two tiles in L0C
            shown = max(loop, drain) + v["overlap_loss"] * min(loop, drain) - loop
        else:
            shown = max(drain - 2 * cube, 0)
        core = alone - step + waves * (loop + shown)
    work = max(core, hbm_ns)
    return v["kernel_head_ns"] + v["kernel_end_ns"] + work, hbm


CASES = [
    (B2, 4096, 4096, 4096, 2, Tile(128, 256, 64, 4), 24, {}),
    (B2, 4224, 16384, 16384, 2, Tile(128, 256, 64, 4), 24, {}),
    (B2, 1000, 300, 777, 2, Tile(64, 128, 128, 1), 7, {}),
    (B2, 10240, 10240, 10240, 4, Tile(128, 128, 32, 4), 24, {}),
    (B1, 8192, 8192, 8192, 2, Tile(64, 64, 64, 1), 1, {"buffers": 1, "constant_tiling": False}),
    (chip("Ascend910A"), 512, 2048, 640, 1, Tile(256, 256, 128, 2), 32, {}),
]


@pytest.mark.parametrize(("spec", "m", "n", "k", "size", "tile", "cores", "how"), CASES)
def test_cost_equals_the_twin(spec, m, n, k, size, tile, cores, how):
    found = price(spec, MatmulShape(m, n, k, size), tile, cores=cores, **how)
    twin_how = {"buffers": how.get("buffers", 2), "constant": how.get("constant_tiling", True)}
    expected, hbm = twin(spec, m, n, k, size, tile, cores, **twin_how)
    assert bool(found.fits)
    assert float(found.duration_ns) == pytest.approx(expected, rel=2e-3)
    assert float(found.hbm_bytes) == pytest.approx(hbm, rel=2e-3, abs=1e4)


def test_choice_is_the_fastest_legal_tile_of_a_loop():
    best, index = choose(B2, MatmulShape(640, 8192, 8192, 2))
    legal = [tile for tile in TILES[2][::7] if bool(place_tile(B2, MatmulShape(640, 8192, 8192, 2), tile).fits)]
    extra = float(B2["matmul_fixed_ns"])
    least = min(twin(B2, 640, 8192, 8192, 2, tile, 24)[0] + extra for tile in (*legal, TILES[2][int(index)]))
    assert float(best.duration_ns) <= least * 1.002
    assert twin(B2, 640, 8192, 8192, 2, TILES[2][int(index)], 24)[0] + extra == pytest.approx(
        float(best.duration_ns), rel=2e-3
    )


@pytest.mark.parametrize(
    ("m", "n", "k", "size", "tflops", "within"),
    [
        (1024, 1024, 1024, 2, 98.08, 0.15),
        (4096, 4096, 4096, 2, 314.52, 0.15),
        (10240, 10240, 10240, 2, 287.9, 0.2),  # fp16 274.8, bf16 300.9: the model knows no difference, and is too slow
        (4096, 4096, 4096, 4, 84.53, 0.15),
        (128, 16384, 16384, 2, 127, 0.15),
        (1664, 8192, 8192, 2, 280, 0.15),
    ],
)
def test_published_rates(m, n, k, size, tflops, within):
    shape = MatmulShape(m, n, k, size)
    assert shape.flop / float(choose(B2, shape)[0].duration_ns) / 1e3 == pytest.approx(tflops, rel=within)


def test_fp32_on_a3_is_no_fp16():
    """A chain of fp32 2048^3 products on one 910C die takes 0.2275 ms each, measured on a card."""
    found = float(choose(chip("Ascend910_9382"), MatmulShape(2048, 2048, 2048, 4))[0].duration_ns)
    assert 0.16e6 < found < 0.30e6


def test_limits_and_waves():
    small, _ = choose(B2, MatmulShape(64, 64, 64, 2))
    wide, _ = choose(B2, MatmulShape(16, 16384, 16384, 2))
    assert LIMITS[int(small.limit)] == "launch" and LIMITS[int(wide.limit)] == "hbm"
    for m, waves in ((128 * 24, 1), (128 * 25, 2)):
        assert int(price(B2, MatmulShape(m, 256, 512, 2), Tile(128, 256, 64, 4)).waves) == waves
    too_large = price(B2, MatmulShape(512, 512, 512, 2), Tile(256, 256, 64, 1))
    assert not bool(too_large.fits) and math.isinf(float(too_large.duration_ns))


@pytest.mark.parametrize(("sizes", "words"), [((0, 1, 1, 2), "m=0"), ((1, 1, 1, 8), "dtype_bytes=8")])
def test_bad_shapes(sizes, words):
    with pytest.raises(ValueError, match=words):
        MatmulShape(*sizes)
