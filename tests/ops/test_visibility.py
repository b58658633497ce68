"""Visibility against a boolean matrix that is filled in one entry at a time from the specification."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_jax.ops.attention.visibility import ALL_TOKENS, SparseMode, TileClass, Visibility
from tests.ops.attention_twin import allow

LENGTHS = st.integers(0, 40)
TILES = st.integers(1, 17)
TOKENS = st.one_of(st.just(ALL_TOKENS), st.integers(-45, 45))


@st.composite
def rules(draw):
    """A visibility of any mode and the same, entry by entry."""
    q_len, kv_len, mode = draw(LENGTHS), draw(LENGTHS), draw(st.integers(0, 8))
    pre, nxt, prefix = draw(TOKENS), draw(TOKENS), draw(st.integers(0, kv_len))
    seen = allow(mode, q_len, kv_len, pre, nxt, prefix)
    return Visibility(q_len, kv_len, mode, pre, nxt, prefix), seen


def class_of(block):
    if not block.any():
        return TileClass.SKIP
    return TileClass.FULL if block.all() else TileClass.PARTIAL


@settings(max_examples=60, deadline=None)
@given(rules())
def test_rows_and_counts(rule):
    visibility, seen = rule
    q_len, kv_len = seen.shape
    rows, columns = np.arange(q_len), np.arange(kv_len)
    low, high = visibility.column_bounds(rows)
    np.testing.assert_array_equal((low[:, None] <= columns) & (columns < high[:, None]), seen)
    np.testing.assert_array_equal(visibility.visible(rows, columns), seen)
    assert np.all((low >= 0) & (low <= high) & (high <= kv_len))
    assert visibility.live_pairs() == seen.sum()
    assert visibility.hidden_rows() == (~seen.any(axis=1)).sum()


@settings(max_examples=60, deadline=None)
@given(rules(), TILES, TILES)
def test_tiles(rule, q_tile, kv_tile):
    visibility, seen = rule
    q_len, kv_len = seen.shape
    q_tiles, kv_tiles = -(-q_len // q_tile), -(-kv_len // kv_tile)
    padded = np.pad(seen, ((0, 0), (0, kv_tiles * kv_tile - kv_len)))
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


@pytest.mark.parametrize("mode", range(9))
def test_traced_rows_equal_host_rows(mode):
    visibility = Visibility(9, 5, mode, 3, 1, 2)
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


def test_refuses_bad_sizes():
    with pytest.raises(ValueError, match="q_len=-1"):
        Visibility(-1, 4)
    with pytest.raises(ValueError, match="9"):
        Visibility(4, 4, 9)
    with pytest.raises(ValueError, match="got 0"):
        Visibility(4, 4).live_tiles(0, 4)
