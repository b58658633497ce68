"""On-chip placement against a plain Python allocator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_jax.chip import LEVELS, Buffer, OnChipError, chip, place, require

SPEC = chip("Ascend910B2")
CAPACITY = {"L1": 524288, "L0A": 65536, "L0B": 65536, "L0C": 131072, "UB": 196608, "L2": 201326592}

buffers = st.lists(
    st.tuples(st.sampled_from(LEVELS), st.integers(0, 300_000), st.integers(1, 4)), min_size=1, max_size=12
)


def allocate(asked):
    """Twin: (offsets, used) with a running end per level."""
    ends, offsets = {}, []
    for level, size, copies in asked:
        align = 32 if level in ("L1", "UB") else 512
        end = ends.get(level, 0)
        assert end % align == 0
        offsets.append(end)
        for _ in range(copies):
            end += size
            while end % align:
                end += align - end % align
        ends[level] = end
    return offsets, ends


@settings(max_examples=60, deadline=None)
@given(buffers)
def test_matches_the_twin(asked):
    plan = place(SPEC, [Buffer(level, f"b{i}", size, n) for i, (level, size, n) in enumerate(asked)])
    offsets, ends = allocate(asked)
    rows = plan.report()
    assert [row["offset_bytes"] for row in rows] == offsets
    assert [row["size_bytes"] for row in rows] == [size for _, size, _ in asked]
    assert dict(zip(LEVELS, plan.used_bytes.tolist(), strict=True)) == {level: ends.get(level, 0) for level in LEVELS}
    assert plan.capacity_bytes.tolist() == [CAPACITY[level] for level in LEVELS]
    assert bool(plan.fits) == all(ends.get(level, 0) <= CAPACITY[level] for level in LEVELS)


def test_batched_sizes_equal_a_loop():
    sizes = [100, 32768, 32769, 65536]

    def fits(size):
        plan = place(SPEC, [Buffer("L0A", "a", size, copies=2), Buffer("UB", "b", 33), Buffer("UB", "c", size)])
        return plan.used_bytes, plan.offset_bytes, plan.fits

    batched = jax.jit(jax.vmap(fits))(jnp.array(sizes, jnp.int32))
    for lane, size in enumerate(sizes):
        for left, right in zip(batched, fits(size), strict=True):
            np.testing.assert_array_equal(left[lane], right)
    assert batched[2].tolist() == [True, True, False, False]


def test_spec_may_be_batched():
    spec = SPEC.replace(ub_bytes=np.array([1024.0, 2048.0]))
    assert place(spec, [Buffer("UB", "x", 1500)]).fits.tolist() == [False, True]


def test_sums_do_not_wrap():
    huge = [Buffer("L1", f"b{i}", 2**31 - 64) for i in range(3)]
    assert not place(SPEC, huge).fits
    traced = [Buffer("L1", buffer.name, jnp.int32(buffer.size_bytes)) for buffer in huge]
    assert not place(SPEC, traced).fits
    assert not place(SPEC, [Buffer("L1", "b", 2**40)]).fits


def test_misfit_is_refused_with_numbers():
    with pytest.raises(OnChipError, match=r"L0C: 131584 bytes asked for, 131072 available"):
        require(place(SPEC, [Buffer("L0C", "score", 65537, copies=1), Buffer("L0C", "output", 65536)]))
    plan = place(SPEC, [Buffer("L0C", "score", 65536, copies=2)])
    assert require(plan) is plan


def test_bad_buffers_are_refused():
    with pytest.raises(ValueError, match="'L3'"):
        Buffer("L3", "x", 1)
    with pytest.raises(ValueError, match="copies=0"):
        Buffer("L1", "x", 1, 0)
    with pytest.raises(ValueError, match="size_bytes=-1"):
        Buffer("L1", "x", -1)
