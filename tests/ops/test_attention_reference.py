"""The reference against sums written out one pair at a time, and against the worked cases."""

import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ascend_jax.ops.attention import reference
from ascend_jax.ops.attention.reference import attention_reference, naive_attention

FLT_MAX = float(np.finfo(np.float32).max)


def by_pairs(q, k, v, mode, scale):
    """Scalar loops over everything."""
    out = np.zeros((*q.shape[:3], v.shape[3]))
    row_max, row_sum = np.full(q.shape[:3], -FLT_MAX), np.full(q.shape[:3], FLT_MAX)
    offset = {2: 0, 3: k.shape[2] - q.shape[2]}
    for b, h, i in np.ndindex(*q.shape[:3]):
        g = h * k.shape[1] // q.shape[1]
        seen = [j for j in range(k.shape[2]) if mode == 0 or j <= i + offset[mode]]
        if seen:
            scores = [
                scale * sum(float(x) * float(y) for x, y in zip(q[b, h, i], k[b, g, j], strict=True)) for j in seen
            ]
            row_max[b, h, i] = max(scores)
            weights = np.exp(np.array(scores) - max(scores))
            row_sum[b, h, i] = weights.sum()
            out[b, h, i] = sum(w * v[b, g, j] for w, j in zip(weights, seen, strict=True)) / weights.sum()
    return out, row_max, row_sum


@pytest.mark.parametrize("mode", [0, 2, 3])
@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 5), (3, 7), (7, 3)])
def test_equals_scalar_loops(mode, q_len, kv_len, monkeypatch):
    rng = np.random.default_rng(q_len)
    q, k = rng.normal(size=(2, 4, q_len, 3)), rng.normal(size=(2, 2, kv_len, 3))
    v = rng.normal(size=(2, 2, kv_len, 2))
    expected = by_pairs(q, k, v, mode, 0.7)
    for chunk_bytes in (1, 1 << 20):
        monkeypatch.setattr(reference, "_CHUNK_BYTES", chunk_bytes)
        for got, want in zip(attention_reference(q, k, v, mode=mode, scale=0.7), expected, strict=True):
            assert got.dtype == np.float64
            assert_allclose(got, want, rtol=1e-13, atol=1e-14)


def test_hidden_rows_hold_the_cann_values():
    q, k = np.ones((1, 1, 6, 4)), np.ones((1, 1, 4, 4))
    out, row_max, row_sum = attention_reference(q, k, k, mode=3, scale=1.0)
    assert_array_equal(out[0, 0, :2], 0)
    assert row_max[0, 0].tolist() == [-FLT_MAX, -FLT_MAX, 4, 4, 4, 4]
    assert row_sum[0, 0].tolist() == [FLT_MAX, FLT_MAX, 1, 2, 3, 4]


def test_memory_is_bounded():
    x = np.zeros((1, 2, 4096, 8), np.float16)
    tracemalloc.start()
    attention_reference(x, x, x, mode=2, scale=1.0)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 64 << 20 < 2 * 8 * 4096**2


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_refuses_to_be_compared_when_not_finite(name):
    operands = {key: np.ones((1, 1, 3, 2)) for key in "qkv"}
    operands[name][0, 0, 1, 1] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        attention_reference(**operands, mode=0, scale=1.0)


def test_refuses_unknown_modes():
    x = np.ones((1, 1, 3, 2))
    with pytest.raises(ValueError, match="got 4"):
        attention_reference(x, x, x, mode=4, scale=1.0)


@pytest.mark.parametrize("mode", [0, 2, 3])
def test_naive_is_the_same_function(mode):
    rng = np.random.default_rng(1)
    q, k, v = (jnp.asarray(rng.normal(size=(1, n, s, 8)), jnp.float32) for n, s in ((4, 9), (2, 6), (2, 6)))
    expected = attention_reference(q, k, v, mode=mode, scale=0.3)[0]
    assert_allclose(naive_attention(q, k, v, mode=mode, scale=0.3), expected, atol=1e-6)
    assert naive_attention(*(x.astype(jnp.bfloat16) for x in (q, k, v)), scale=0.3).dtype == jnp.bfloat16
