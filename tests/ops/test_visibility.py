"""Visibility against a boolean matrix that is filled in one entry at a time from the specification."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_jax.ops.attention.visibility import SparseMode, TileClass, Visibility

LENGTHS = st.integers(0, 40)
TILES = st.integers(1, 17)
MODES = st.sampled_from([0, 2, 3])


def matrix(q_len, kv_len, mode):
    """The specification, entry by entry."""
    seen = np.zeros((q_len, kv_len), bool)
    for i in range(q_len):
        for j in range(kv_len):
            seen[i, j] = {0: True, 2: j <= i, 3: j <= i + kv_len - q_len}[mode]
    return seen


def class_of(block):
    if not block.any():
        return TileClass.SKIP
    return TileClass.FULL if block.all() else TileClass.PARTIAL


@settings(max_examples=60, deadline=None)
@given(LENGTHS, LENGTHS, MODES)
def test_rows_and_counts(q_len, kv_len, mode):
    visibility, seen = Visibility(q_len, kv_len, mode), matrix(q_len, kv_len, mode)
    rows, columns = np.arange(q_len), np.arange(kv_len)
    low, high = visibility.column_bounds(rows)
    np.testing.assert_array_equal((low[:, None] <= columns) & (columns < high[:, None]), seen)
    np.testing.assert_array_equal(visibility.visible(rows, columns), seen)
    assert np.all((low >= 0) & (low <= high) & (high <= kv_len))
    assert visibility.live_pairs() == seen.sum()
    assert visibility.hidden_rows() == (~seen.any(axis=1)).sum()


@settings(max_examples=60, deadline=None)
@given(LENGTHS, LENGTHS, MODES, TILES, TILES)
def test_tiles(q_len, kv_len, mode, q_tile, kv_tile):
    visibility = Visibility(q_len, kv_len, mode)
    q_tiles, kv_tiles = -(-q_len // q_tile), -(-kv_len // kv_tile)
    padded = np.pad(matrix(q_len, kv_len, mode), ((0, 0), (0, kv_tiles * kv_tile - kv_len)))
    expected, live = np.zeros((q_tiles, kv_tiles), np.int8), []
    for a in range(q_tiles):
        for b in range(kv_tiles):
            row0, col0 = a * q_tile, b * kv_tile
            expected[a, b] = class_of(padded[row0 : row0 + q_tile, col0 : col0 + kv_tile])
            assert visibility.tile_class(row0, q_tile, col0, kv_tile) == expected[a, b]
            if expected[a, b]:
                live.append((a, b, expected[a, b] == TileClass.PARTIAL))
    np.testing.assert_array_equal(visibility.tile_classes(q_tile, kv_tile), expected)
    tiles = visibility.live_tiles(q_tile, kv_tile)
    assert np.stack(tiles[:3], axis=1).tolist() == [list(x) for x in live]
    lines = [a for a, _, _ in live]
    assert tiles.is_first.tolist() == [a not in lines[:n] for n, a in enumerate(lines)]
    assert tiles.is_last.tolist() == [a not in lines[n + 1 :] for n, a in enumerate(lines)]


@pytest.mark.parametrize("mode", [0, 2, 3])
def test_traced_rows_equal_host_rows(mode):
    visibility = Visibility(9, 5, mode)
    for traced, host in zip(
        jax.jit(visibility.column_bounds)(jnp.arange(9)), visibility.column_bounds(np.arange(9)), strict=True
    ):
        assert traced.dtype == jnp.int32
        np.testing.assert_array_equal(traced, host)


def test_work_is_linear_in_length():
    visibility = Visibility(1 << 20, 1 << 20, SparseMode.LEFT_UP_CAUSAL)
    assert visibility.live_pairs() == (1 << 20) * ((1 << 20) + 1) // 2
    tiles = visibility.live_tiles(8192, 8192)
    assert (tiles.q_index.size, int(tiles.is_partial.sum())) == (128 * 129 // 2, 128)


def test_is_hashable_and_equal_by_value():
    assert len({Visibility(4, 4, 2), Visibility(4, 4, SparseMode.LEFT_UP_CAUSAL), Visibility(4, 4)}) == 2


@pytest.mark.parametrize("mode", [1, 4, 5, 6, 7, 8, 9])
def test_refuses_modes_without_a_rule(mode):
    with pytest.raises(ValueError, match=str(mode)):
        Visibility(4, 4, mode)


def test_refuses_bad_sizes():
    with pytest.raises(ValueError, match="q_len=-1"):
        Visibility(-1, 4)
    with pytest.raises(ValueError, match="got 0"):
        Visibility(4, 4).live_tiles(0, 4)
