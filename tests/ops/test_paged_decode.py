"""Decoding from pages, against float64 attention on rows that are gathered first."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ascend_jax.ops import paged_decode as module
from ascend_jax.ops.attention.host_cores import device_cores, usable_cores
from ascend_jax.ops.page_chunks import chunks_of

DIM, LENGTHS = 16, (1300, 0, 1)


def pools_of(form, rows, page_rows):
    """Pools of keys ``[B, S, K, D]`` in pages, the first page last, NaN in what belongs to nobody; and their table."""
    batch, length, kv_heads, dim = rows[0].shape
    count = length // page_rows
    table = np.arange(batch * count)[::-1].reshape(batch, count) + 1
    pools = []
    for x in rows:
        pool = np.full((batch * count + 2, page_rows, kv_heads, dim), np.nan, x.dtype)
        pool[table] = x.reshape(batch, count, page_rows, kv_heads, dim)
        if form == "BH":
            pools.append(pool.reshape(len(pool), page_rows, -1))
        elif form == "BNBD":
            pools.append(pool.swapaxes(1, 2))
        else:
            pools.append(pool.swapaxes(1, 2).reshape(len(pool), kv_heads, page_rows, -1, 8).swapaxes(2, 3))
    return [np.ascontiguousarray(x) for x in pools], table


def expect(q, k, v, scale):
    """Attention of ``[B, N, 1, D]`` over the first rows of each batch row, in float64."""
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, n in np.ndindex(*q.shape[:2]):
        if LENGTHS[b]:
            keys, values = (x[b, : LENGTHS[b], n * x.shape[2] // q.shape[1]].astype(np.float64) for x in (k, v))
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


def test_cores_are_known_without_a_cpu_backend(monkeypatch):
    def unknown(backend=None):
        raise RuntimeError(f"Unknown backend {backend}")

    for name in ("local_device_count", "local_devices", "device_count", "devices"):
        monkeypatch.setattr(jax, name, unknown)
    assert device_cores() == usable_cores()
