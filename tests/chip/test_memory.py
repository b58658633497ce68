"""Rates of the memory model against the published tables they come from, and L2 misses against a bisection."""

import math

import jax
import numpy as np
import pytest

from ascend_jax.chip import chip, memory

B1, B2 = chip("Ascend910B1"), chip("Ascend910B2")


def misses(ratio):
    """Root of m = 1 - exp(-m ratio) in (0, 1], by bisection; 0 where only 0 solves it."""
    if ratio <= 1:
        return 0.0
    low, high = 1e-9, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - math.exp(-middle * ratio) > middle else (low, middle)
    return low


def test_miss_share_solves_its_equation():
    ratios = np.array([0.0, 0.5, 1.0, 1.05, 1.3, 2.0, 3.0, 10.0, 1000.0])
    found = jax.vmap(lambda w: memory.miss_share(B2, w))(ratios * float(memory.kept_bytes(B2)))
    np.testing.assert_allclose(found, [misses(ratio) for ratio in ratios], atol=2e-4)
    assert 0.85 < float(memory.miss_share(B2, 301_989_888)) < 1  # published: 0 % hits


@pytest.mark.parametrize(
    ("cores", "read", "write"),
    [(1, 100.9, 188.46), (4, 77.945, 130.295), (16, 73.264, 100.373), (32, 53.306, 55.932), (48, 33.687, 34.343)],
)
def test_rates_per_core_against_the_published_table(cores, read, write):
    assert float(memory.vector_read_rate(B1, cores)) / 1e9 == pytest.approx(read, rel=0.11)
    assert float(memory.vector_write_rate(B1, cores)) / 1e9 == pytest.approx(write, rel=0.15)


def test_rates_of_cube_cores_and_both_ways():
    b3 = chip("Ascend910B3")
    assert 20 * float(memory.cube_read_rate(b3, 20)) / 1e9 == pytest.approx(1540.9, rel=0.01)
    assert float(memory.cube_read_rate(b3, 1)) / 1e9 == pytest.approx(141.11)
    assert float(memory.cube_read_rate(B2, 24, from_l2=True)) == pytest.approx(5e12 / 24)
    for rate in (memory.vector_read_rate, memory.vector_write_rate):
        assert float(rate(b3, 1, both_ways=True)) / 1e9 == pytest.approx(86.5, rel=0.001)


def test_short_runs_and_short_copies():
    assert float(memory.run_share(B2, 64)) == pytest.approx(0.5)
    assert float(memory.run_share(B2, 1 << 20)) == pytest.approx(1.0, abs=1e-4)
    long = memory.copies_ns(B2, 1 << 20, 1e11, instruction_bytes=1 << 16, run_bytes=1 << 16)
    assert float(long) == pytest.approx((1 << 20) / 1e11 * 1e9 * (1 + 64 / 65536), rel=1e-5)
    short = memory.copies_ns(B2, 1 << 20, 1e12, instruction_bytes=128, run_bytes=1 << 16)
    assert float(short) == pytest.approx(8192 * float(B2["copy_issue_cycles"]) / 1.8, rel=1e-5)


def test_alignment():
    pitches = np.array([8, 32, 256, 512, 1024])
    np.testing.assert_allclose(memory.aligned_share(B2, pitches), [0.7, 0.7, 0.7, 1, 1])
    np.testing.assert_allclose(memory.nd2nz_share(B2, pitches), [0.51, 0.7, 0.7, 1, 1])


def test_writes_that_stay_in_l2():
    assert float(memory.vector_write_rate(B2, 48)) == pytest.approx(1.536e12 / 48)
    assert float(memory.vector_write_rate(B2, 48, to_l2=True)) == pytest.approx(5e12 / 48)
