"""Tiles that a mask array hides wholly are not visited, and nothing else changes by it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.ops.attention import backward, online_softmax, scoring
from ascend_jax.ops.attention.kernel import FLT_MAX
from ascend_jax.ops.attention.scoring import Options, Scoring

quick = functools.partial(jax.jit, compiler_options=aj.QUICK_TO_COMPILE | {"xla_backend_optimization_level": 0})
TILE, HEADS, LENGTH, DIM = 16, 2, 53, 8
GRID = -(-LENGTH // TILE)
RNG = np.random.default_rng(5)
Q, K, V, W = (RNG.normal(size=(1, HEADS, LENGTH, DIM)).astype(np.float32) for _ in range(4))


def block_mask():
    """Who sees whom: some blocks of 16 x 16, and within them not every pair; each row sees its own column."""
    blocks = RNG.random((HEADS, GRID, GRID)) < 0.3
    seen = np.kron(blocks, np.ones((TILE, TILE), bool))[:, :LENGTH, :LENGTH]
    return (seen & (RNG.random(seen.shape) < 0.8) | np.eye(LENGTH, dtype=bool))[None]


MASK = block_mask()


def tiles(seen):
    """Blocks with a visible pair, by head and row of blocks."""
    padded = np.pad(seen[0], ((0, 0), (0, GRID * TILE - LENGTH), (0, GRID * TILE - LENGTH)))
    return padded.reshape(HEADS, GRID, TILE, GRID, TILE).any(axis=(2, 4))


def run(mask, value):
    """Forward and gradients, traced anew each time."""
    options = Options((TILE, TILE), mask_value=value)
    rows = jnp.zeros((1, LENGTH), jnp.int32)

    def compute(q, k, v, w, mask):
        given = (q, k, v, jnp.float32(0.4), None, None, Scoring(rows, rows + LENGTH, mask=mask), options)
        results = online_softmax.forward(*given)
        return results, backward.backward(*given, results, (w, jnp.zeros_like(results[2])))[:3]

    return jax.tree.leaves(quick(compute)(Q, K, V, W, mask))


@pytest.mark.parametrize("value", [None, -FLT_MAX], ids=["exact", "replaced"])
def test_values_are_bit_for_bit_those_of_a_visit_to_every_tile(value, monkeypatch):
    mask = MASK.copy()
    mask[0, 1, 20] = False  # a row that sees nothing: the mean of v where scores are replaced, else 0
    skipping = run(mask, value)
    monkeypatch.setattr(scoring, "_live_tiles", lambda *_: None)
    for mine, all_visited in zip(skipping, run(mask, value), strict=True):
        np.testing.assert_array_equal(mine, all_visited)
    want = V[0, 1].mean(axis=0) if value is not None else np.zeros(DIM)
    np.testing.assert_allclose(skipping[0][0, 1, 20], want, atol=1e-6)


def test_the_visited_tiles_are_those_with_a_visible_pair():
    live = scoring.tile_runs(
        Scoring(jnp.zeros((1, LENGTH), jnp.int32), jnp.full((1, LENGTH), LENGTH), mask=jnp.asarray(MASK)),
        Options((TILE, TILE)),
    ).live
    expected = tiles(MASK)
    np.testing.assert_array_equal(live.counts[0], expected.sum(axis=2))
    for head in range(HEADS):
        for row in range(GRID):
            visited = live.order[0, head, row, : int(live.counts[0, head, row])]
            assert visited.tolist() == np.flatnonzero(expected[head, row]).tolist()


def test_a_row_without_a_visible_pair_keeps_all_tiles_of_its_query_tile_where_scores_are_replaced():
    hidden = ~MASK
    hidden[0, 1, 20] = True
    live = scoring.tile_runs(
        Scoring(jnp.zeros((1, LENGTH), jnp.int32), jnp.full((1, LENGTH), LENGTH), mask=jnp.asarray(hidden)),
        Options((TILE, TILE), mask_hides=True, mask_value=-FLT_MAX),
    ).live
    expected = tiles(~hidden).sum(axis=2)
    expected[1, 20 // TILE] = GRID
    np.testing.assert_array_equal(live.counts[0], expected)


def test_explain_counts_fewer_tiles():
    q = np.zeros((1, LENGTH, HEADS, DIM), np.float32)
    told = aj.ops.explain(q, q, q, mask=MASK, tile=TILE)
    visited = int(tiles(MASK).sum()) // HEADS
    assert told.tiles == (GRID * GRID - visited, visited, 0)
    assert told.tiles[0] > 4
    causal = aj.ops.explain(q, q, q, mask=MASK[:, :1], tile=TILE, causal=True)
    assert causal.tiles[1] == int((tiles(MASK)[0] & np.tri(GRID, dtype=bool)).sum())
    keys = np.arange(LENGTH)[None, None, None, :] >= 20  # the first whole tile is padding
    assert aj.ops.explain(q, q, q, mask=keys, tile=TILE).tiles[0] == GRID
