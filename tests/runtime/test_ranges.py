"""Byte ranges against Python's whole numbers, which have no last one."""

import jax
import numpy as np

from ascend_jax.runtime.layout import HBM_BASE, HOST_BASE, HOST_END
from ascend_jax.runtime.ranges import Range, overlaps

HALF = 2**31  # granules; a distance whose sign int32 does not hold


def test_ranges_meet_where_they_share_a_byte():
    rng = np.random.default_rng(0)
    bases = np.array([HOST_BASE, HOST_BASE + HBM_BASE - 1, HOST_END, -HBM_BASE, HBM_BASE, HOST_END + HALF, HALF - 40])
    pointers = bases[rng.integers(0, len(bases), (2, 4000))] + rng.integers(0, 4, (2, 4000))
    offsets, wholes, rests = (rng.integers(0, most, (2, 4000)) for most in (64, 4, 64))
    one, other = (
        Range(*(column[side].astype(np.int32) for column in (pointers, offsets, wholes, rests))) for side in (0, 1)
    )
    first = pointers * 64 + offsets
    past = first + wholes * 64 + rests
    is_met = np.maximum(*first) < np.minimum(*past)
    assert (abs(pointers[0] - pointers[1]) == HALF).any() and 0.05 < is_met.mean() < 0.5
    np.testing.assert_array_equal(jax.jit(overlaps)(one, other), is_met)
