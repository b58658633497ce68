"""Cost formulas against plain Python, with the numbers of a 910B2 written out."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_jax.chip import chip, cost

SPEC = chip("Ascend910B2")
GHZ = 1.8
sides = st.integers(1, 1000)


def cube_cycles(m, n, k, size):
    """Twin: 6 cycles a base tile of 128, one 16 x k0 x 16 step a cycle, fp32 at a quarter of fp16."""
    tiles = math.prod(-(-side // 128) for side in (m, n, k))
    steps = -(-m // 16) * -(-n // 16) * -(-k // {1: 32, 2: 16, 4: 16}[size])
    return 6 * tiles + steps / (0.25 if size == 4 else 1)


@settings(max_examples=40, deadline=None)
@given(sides, sides, sides, st.sampled_from([1, 2, 4]))
def test_cube_and_feed(m, n, k, size):
    cycles = cube_cycles(m, n, k, size)
    feed = 1e9 * size * (m * k * -(-n // 128) / 451.76e9 + k * n * -(-m // 128) / 220e9)
    assert float(cost.cube_ns(SPEC, m, n, k, size)) == pytest.approx(cycles / GHZ, rel=1e-5)
    assert float(cost.cube_feed_ns(SPEC, m, n, k, size)) == pytest.approx(feed, rel=1e-3)
    assert float(cost.matmul_ns(SPEC, m, n, k, size)) == pytest.approx(max(cycles / GHZ, feed), rel=1e-3)


def test_cube_reaches_its_peak():
    ns = float(cost.cube_ns(SPEC, 128, 128, 128, 2))
    assert 2 * 128**3 / ns * 24 / 1e3 == pytest.approx(353.9, rel=0.02)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 10**6), st.sampled_from([1, 2, 7]), st.sampled_from([2, 4]))
def test_vector(elements, cycles, size):
    expected = (28 + cycles * -(-elements * size // 256)) / GHZ
    assert float(cost.vector_ns(SPEC, elements, cycles, size, startup_cycles=28)) == pytest.approx(expected, rel=1e-5)


def test_vector_against_the_measured_add():
    """256 fp16 elements take 30.24 cycles in a steady loop on 910B3."""
    ns = float(cost.vector_ns(chip("910B3"), 256, 2, 2, startup_cycles=26))
    assert ns * GHZ == pytest.approx(30.24, rel=0.02)


def test_shared_bandwidth_against_the_per_core_table():
    """GM to UB on 910B1: 100.9 GB/s alone, 33.7 with 48 cores."""
    spec = chip("Ascend910B1")
    for cores, measured in ((1, 100.9), (48, 33.687)):
        rate = cost.shared_bytes_per_s(spec, spec["gm_ub_bytes_per_s"], spec["hbm_bytes_per_s"], cores)
        assert float(rate) / 1e9 == pytest.approx(measured, rel=0.02)


def test_copies_and_cycles_under_vmap():
    sizes = np.array([1, 1 << 20, 1 << 30])
    ns = jax.vmap(lambda nbytes: cost.copy_ns(SPEC, nbytes, SPEC["h2d_bytes_per_s"]))(sizes)
    np.testing.assert_allclose(ns, sizes / 24.926, rtol=1e-5)
    assert float(cost.cycles_ns(SPEC, 18)) == pytest.approx(10.0)


def test_odd_operand_size_is_refused():
    with pytest.raises(ValueError, match="dtype_bytes=3"):
        cost.cube_ns(SPEC, 16, 16, 16, 3)
