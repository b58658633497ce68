"""Decoding from pages, against float64 attention on rows that are gathered first."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ascend_jax.ops import paged_decode as module
from ascend_jax.ops.page_chunks import chunks_of

DIM, LENGTHS = 16, (1300, 0, 1)


def pools_of(form, rows, page_rows):
    """Pools of keys ``[B, S, K, D]`` in pages, the first page last, NaN in what belongs to nobody; and their table."""
    batch, length, kv_heads, _ = rows[0].shape
    count = length // page_rows
    table = np.arange(batch * count)[::-1].reshape(batch, count) + 1
    pools = []
    for x in rows:
        pool = np.full((batch * count + 2, page_rows, kv_heads, x.shape[3]), np.nan, x.dtype)
        pool[table] = x.reshape(batch, count, page_rows, kv_heads, -1)
        if form == "BH":
            pools.append(pool.reshape(len(pool), page_rows, -1))
        elif form == "BNBD":
            pools.append(pool.swapaxes(1, 2))
        else:
            pools.append(pool.swapaxes(1, 2).reshape(len(pool), kv_heads, page_rows, -1, 8).swapaxes(2, 3))
    return [np.ascontiguousarray(x) for x in pools], table


def expect(q, k, v, scale, lengths=LENGTHS):
    """Attention of ``[B, N, 1, D]`` over the first rows of each batch row, in float64."""
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, n in np.ndindex(*q.shape[:2]):
        if lengths[b]:
            keys, values = (x[b, : lengths[b], n * x.shape[2] // q.shape[1]].astype(np.float64) for x in (k, v))
            scores = keys @ q[b, n, 0].astype(np.float64) * scale
            weights = np.exp(scores - scores.max())
            out[b, n, 0] = weights @ values / weights.sum()
    return out


@pytest.mark.parametrize(
    ("form", "page_rows", "heads", "kv_heads", "dtype"),
    [
        ("BH", 16, 4, 2, "float32"),
        ("BH", 64, 10, 1, "float32"),
        ("BH", 64, 20, 2, "bfloat16"),
        ("BH", 512, 4, 1, "float32"),  # pages that are cut
        ("BNBD", 512, 2, 2, "bfloat16"),
        ("BNBD", 128, 4, 2, "float32"),
        ("NZ", 64, 2, 2, "float32"),
        ("NZ", 512, 2, 1, "float32"),
    ],
)
def test_every_row_comes_once(form, page_rows, heads, kv_heads, dtype):
    rng = np.random.default_rng(heads)
    length = -(-1400 // page_rows) * page_rows
    q, k, v = (
        np.array(jnp.asarray(rng.normal(size=shape), dtype))
        for shape in ((3, heads, 1, DIM), (3, length, kv_heads, DIM), (3, length, kv_heads, DIM))
    )
    for b, seen in enumerate(LENGTHS):
        k[b, seen:] = v[b, seen:] = np.nan  # what is not seen never counts
    pools, table = pools_of(form, (k, v), page_rows)
    out, lse = module.paged_decode(q, *map(jnp.asarray, pools), table, LENGTHS, 0.25, page_rows, kv_heads)
    np.testing.assert_allclose(out, expect(q, k, v, 0.25), atol=2e-6 if dtype == "float32" else 1e-2)
    assert np.isposinf(lse[1]).all()
    assert np.isfinite(np.asarray(lse)[[0, 2]]).all()


@pytest.mark.parametrize("form", ["BH", "BNBD", "NZ"])
def test_heads_in_several_parts(form):
    lengths, (heads, kv_heads, page_rows, dim, dim_v) = (70, 33), (12, 6, 16, 256, 64)
    parts = kv_heads // chunks_of(page_rows, 5, kv_heads, dim).heads
    assert 1 < parts < kv_heads
    rng = np.random.default_rng(parts)
    q = rng.normal(size=(2, heads, 1, dim)).astype(np.float32)
    k, v = (rng.normal(size=(2, 80, kv_heads, size)).astype(np.float32) for size in (dim, dim_v))
    k[0, 3, 1] = v[1, 32, 4] = np.nan  # of one key head each: no other has any of it
    pools, table = pools_of(form, (k, v), page_rows)
    out, _ = module.paged_decode(q, *map(jnp.asarray, pools), table, lengths, 0.0625, page_rows, kv_heads)
    np.testing.assert_allclose(out, expect(q, k, v, 0.0625, lengths), atol=2e-6)


def test_only_a_row_that_needs_a_lost_page_is_nan():
    q, pool = jnp.ones((3, 1, 1, 8)), jnp.ones((2, 16, 8))
    table = np.array([[0, -1], [1, 2], [0, 2**31 - 1]])
    out, lse = module.paged_decode(q, pool, pool, table, (16, 17, 3), 1.0, 16, 1)
    assert np.isnan(out).all(axis=(1, 2, 3)).tolist() == np.isnan(lse).ravel().tolist() == [False, True, False]


def test_hidden_rows_do_not_raise_the_maximum():
    q, pool = jnp.ones((1, 1, 1, 8)), jnp.full((1, 16, 8), -200.0)
    out, lse = module.paged_decode(q, pool, pool, np.zeros((1, 1), int), (9,), 1.0, 16, 1)
    np.testing.assert_array_equal(out, np.full(out.shape, -200.0, np.float32))  # 0 beside such scores would hide them
    assert lse.item() == pytest.approx(np.log(9) - 1600)


@pytest.mark.parametrize(
    ("page_rows", "heads", "dim"),
    [(16, 1, 128), (48, 2, 64), (128, 1, 128), (128, 12, 128), (1024, 1, 128), (1000, 2, 128), (1009, 1, 128)],
)
def test_chunks_have_every_row_of_their_pieces(page_rows, heads, dim):
    chunks = chunks_of(page_rows, 3, heads, dim)
    most = 65536 if page_rows != 1009 else 2 * 1009 * 128  # a page that cannot be cut
    assert chunks.rows * chunks.heads * dim <= most
    assert heads % chunks.heads == 0
    pool = jnp.arange(3 * page_rows * heads).reshape(3, page_rows, heads)
    pieces = chunks.pieces_of(jnp.array([[2, 0, 1]], jnp.int32))[0]
    room, order = chunks.room(pool, 1), [*range(2 * page_rows, 3 * page_rows), *range(2 * page_rows)]
    for first in range(0, heads, chunks.heads):
        found = []
        for n in range(0, len(pieces), chunks.pieces):
            room = chunks.take(pool, pieces[n : n + chunks.pieces], first, room)
            found += room[:, :, 0].T.tolist()
        want = [[row * heads + first + n for n in range(chunks.heads)] for row in order]
        assert found[: len(order)] == want


def test_an_empty_table_has_no_keys():
    q, pool = jnp.ones((1, 2, 1, DIM)), jnp.ones((2, 16, 2 * DIM))
    out, lse = module.paged_decode(q, pool, pool, np.zeros((1, 0), np.int32), [0], 0.25, 16, 2)
    assert (out == 0).all()
    assert np.isposinf(lse).all()


def test_a_second_call_compiles_nothing():
    compiled = []

    def note(event, seconds, **_):
        compiled.extend([seconds] if event.endswith("backend_compile_duration") else [])

    q, pool = jnp.ones((1, 2, 1, DIM)), jnp.ones((2, 16, 2 * DIM))
    jax.monitoring.register_event_duration_secs_listener(note)
    counts = []
    for _ in range(2):
        module.paged_decode(q, pool, pool, np.array([[1]]), np.array([9]), 0.25, 16, 2)
        counts.append(len(compiled))
    jax.monitoring.unregister_event_duration_listener(note)
    assert counts[0] > 0
    assert counts[1] == counts[0]


def test_wide_integers_do_not_get_in_the_way():
    with jax.enable_x64(True):
        pool = jnp.asarray(np.arange(3 * 512).reshape(3, 1, 512, 1))  # a cut page of numbers
        q, table, lengths = jnp.zeros((1, 1, 1, 1), jnp.float32), jnp.array([[2]]), jnp.array([300])
        out, lse = module.paged_decode(q, *[pool.astype(jnp.float32)] * 2, table, lengths, 1.0, 512, 1)
    assert out.item() == pytest.approx(1024 + 299 / 2)
    assert lse.item() == pytest.approx(np.log(300))
