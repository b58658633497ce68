"""Inference operators against the float64 twin: pages, int8, prefixes, padding, packed queries, log-sum-exp."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ascend_jax.ops import (
    fused_infer_attention_score,
    incre_flash_attention,
    npu_fused_infer_attention_score_v2,
    npu_prompt_flash_attention,
    prompt_flash_attention,
)
from tests.ops import attention_twin as twin

N, K, D = 4, 2, 16
COMPRESSED = jax.device_put(np.triu(np.ones((2048, 2048), np.uint8), 1))
HEADS = {"num_heads": N, "num_key_value_heads": K, "scale_value": 0.25}


def draw(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def expect(q, k, v, seen, **options):
    return twin.attend_batch(*(np.asarray(x, np.float64) for x in (q, k, v)), seen, scale=0.25, **options)


def pages(x, table, block):
    """Scatter [B, N, S, D] into a pool of NaN, [blocks, N, block, D]."""
    pool = np.full((table.max() + 3, x.shape[1], block, x.shape[3]), np.nan, np.float32)
    for b, row in enumerate(table):
        for i, page in enumerate(row):
            part = x[b, :, i * block : (i + 1) * block]
            pool[page, :, : part.shape[1]] = part
    return pool


@pytest.mark.parametrize("layout", ["BSH", "BNSD", "NZ"])
def test_pages_in_any_order_and_layout(layout):
    q, k, v = draw((2, N, 1, D), (2, K, 96, D), (2, K, 96, D))
    lengths = np.array([70, 33])
    seen = (np.arange(96) < lengths[:, None])[:, None, None]
    expected = expect(q, k, v, seen)
    results = []
    for seed in range(2):
        table = np.random.default_rng(seed).permutation(12).reshape(2, 6)
        pools = [pages(x, table, 16) for x in (k, v)]
        if layout == "BSH":
            pools = [x.swapaxes(1, 2).reshape(len(x), 16, -1) for x in pools]
        elif layout == "NZ":
            pools = [x.reshape(len(x), K, 16, D // 8, 8).swapaxes(2, 3) for x in pools]
        table[0, 5], table[1, 3:] = -1, 10**6  # stale entries past the length
        done = fused_infer_attention_score(
            jax.device_put(q), *map(jax.device_put, pools), input_layout="BNSD", block_table=table, block_size=16,
            actual_seq_lengths_kv=lengths, softmax_lse_flag=True, **HEADS,
        )  # fmt: skip
        np.testing.assert_allclose(done.attention_out, expected[0], atol=1e-6)
        np.testing.assert_allclose(done.softmax_lse[..., 0], expected[3], atol=1e-6)
        results.append(done)
    np.testing.assert_array_equal(results[0].attention_out, results[1].attention_out)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_key_of_another_head_is_never_seen(value):
    """Key heads share a product, where 0 times this would be NaN."""
    q, k, v = draw((1, 1, N * D), (1, 16, K * D), (1, 16, K * D))
    run = functools.partial(fused_infer_attention_score, block_table=np.array([[0]]), block_size=16, **HEADS)
    clean = run(q, k, v, actual_seq_lengths_kv=np.array([9])).attention_out
    k[0, 4, (K - 1) * D] = value
    out = run(q, k, v, actual_seq_lengths_kv=np.array([9])).attention_out
    own = N // K * D  # columns of the heads of the last key head
    np.testing.assert_allclose(out[..., :-own], clean[..., :-own], rtol=1e-6)
    assert np.isinf(value) or np.isnan(out[..., -own:]).all()


def test_a_traced_table_never_reads_another_page():
    q, k, v = (jax.device_put(x) for x in draw((1, 1, N * D), (3, 16, K * D), (3, 16, K * D)))

    @jax.jit
    def run(table, lengths):
        return fused_infer_attention_score(
            q, k, v, block_table=table, block_size=16, actual_seq_lengths_kv=lengths, **HEADS
        ).attention_out

    good = run(jnp.array([[2, 0]]), jnp.array([20]))
    assert np.isfinite(good).all()
    np.testing.assert_array_equal(run(jnp.array([[2, 9]]), jnp.array([16])), run(jnp.array([[2, -1]]), jnp.array([16])))
    assert np.isnan(run(jnp.array([[2, 3]]), jnp.array([20]))).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_decoding_reads_the_pages_where_they_are(dtype):
    """Whole spans of pages and a rest; temporary memory is that of a few pages, whatever the type."""
    q, k, v = (jnp.asarray(x, dtype) for x in draw((2, 1, N * D), (384, 128, K * D), (384, 128, K * D), seed=5))
    table, lengths = np.random.default_rng(5).permutation(384)[:96].reshape(2, 48), np.array([48 * 128 - 200, 700])
    run = jax.jit(
        lambda *pools: fused_infer_attention_score(
            q, *pools, block_table=jnp.asarray(table), block_size=128, actual_seq_lengths_kv=jnp.asarray(lengths),
            **HEADS,
        ).attention_out
    ).lower(k, v).compile()  # fmt: skip
    assert run.memory_analysis().temp_size_in_bytes < k.nbytes / 2
    rows = [np.asarray(x, np.float32)[table].reshape(2, -1, K, D).swapaxes(1, 2) for x in (k, v)]
    seen = (np.arange(48 * 128)[None] < lengths[:, None])[:, None, None]
    heads_first = np.asarray(q, np.float32).reshape(2, N, 1, D)
    wanted = expect(heads_first, *rows, seen)[0]
    got = np.asarray(run(k, v), np.float32).reshape(2, N, 1, D)
    np.testing.assert_allclose(got, wanted, atol=1e-6 if dtype == "float32" else 2e-3)


@pytest.mark.parametrize("is_paged", [False, True])
def test_traced_lengths_past_the_end_reach_to_the_end(is_paged):
    """Keys that only pad a tile, or a page that the table does not name, take no part."""
    q, k, v = (jax.device_put(x) for x in draw((1, 1, N * D), (3, 48, K * D), (3, 48, K * D)))
    given = {"block_table": jnp.array([[2, 1]]), "block_size": 48} if is_paged else {}
    k, v = (k, v) if is_paged else (k[:1, :40], v[:1, :40])
    run = jax.jit(lambda n: fused_infer_attention_score(q, k, v, actual_seq_lengths_kv=n, **given, **HEADS)[0])
    end = 96 if is_paged else 40
    np.testing.assert_array_equal(run(jnp.array([end + 7])), run(jnp.array([end])))


def test_a_traced_table_never_reads_past_the_smaller_pool():
    q, k, v = (jax.device_put(x) for x in draw((1, 1, N * D), (3, 16, K * D), (2, 16, K * D)))
    run = jax.jit(
        lambda table, lengths: (
            fused_infer_attention_score(
                q, k, v, block_table=table, block_size=16, actual_seq_lengths_kv=lengths, **HEADS
            ).attention_out
        )
    )
    assert np.isnan(run(jnp.array([[2, 0]]), jnp.array([20]))).all()
    assert np.isfinite(run(jnp.array([[1, 2]]), jnp.array([16]))).all()
    assert not run(jnp.array([[1, 2]]), jnp.array([-3])).any()  # no key


@pytest.mark.parametrize("mode", [0, 2, 3, 4])
def test_prompt_with_lengths(mode):
    q, k, v = draw((2, N, 24, D), (2, K, 40, D), (2, K, 40, 8), seed=mode)
    q_lens, kv_lens = np.array([24, 9]), np.array([31, 40])
    tokens = {"pre_tokens": 12, "next_tokens": 2}
    seen = np.zeros((2, 1, 24, 40), bool)
    for b, (a, c) in enumerate(zip(q_lens, kv_lens, strict=True)):
        seen[b, 0, :a, :c] = twin.allow(mode, a, c, 12, 2)
    mask = jax.device_put(~twin.allow(0, 24, 40, 12, 2)) if mode == 0 else COMPRESSED
    options = {"atten_mask": mask, "sparse_mode": mode, **tokens, **HEADS}
    done = fused_infer_attention_score(
        *map(jax.device_put, (q, k, v)), input_layout="BNSD_BSND", actual_seq_lengths=q_lens,
        actual_seq_lengths_kv=kv_lens, softmax_lse_flag=True, **options,
    )  # fmt: skip
    expected = expect(q, k, v, seen)
    np.testing.assert_allclose(done.attention_out.swapaxes(1, 2), expected[0], atol=1e-6)
    np.testing.assert_allclose(done.softmax_lse[..., 0], expected[3], atol=2e-6)
    assert (done.softmax_lse[1, :, 9:] == np.inf).all()


def test_one_query_row_ignores_mode_and_tokens():
    q, k, v = (jax.device_put(x) for x in draw((2, 1, N * D), (2, 40, K * D), (2, 40, K * D)))
    full = fused_infer_attention_score(q, k, v, **HEADS).attention_out
    odd = fused_infer_attention_score(
        q, k, v, atten_mask=COMPRESSED, sparse_mode=2, pre_tokens=0, next_tokens=0, **HEADS
    )
    np.testing.assert_array_equal(full, odd.attention_out)
    np.testing.assert_array_equal(full, incre_flash_attention(q, k, v, **HEADS))
    renamed = {"num_query_heads": N, "num_key_value_heads": K, "softmax_scale": 0.25}
    np.testing.assert_array_equal(full, npu_fused_infer_attention_score_v2(q, k, v, **renamed)[0])
    mask = np.zeros((2, 1, 1, 40), bool)
    mask[0, ..., 5:], mask[1, ..., :] = True, True  # the second hides all: the mean without the fix, 0 with it
    done = fused_infer_attention_score(q, k, v, atten_mask=jax.device_put(mask), softmax_lse_flag=True, **HEADS)
    mean = np.repeat(np.asarray(v[1]).reshape(40, K, D).mean(axis=0), N // K, axis=0).ravel()
    np.testing.assert_allclose(done.attention_out[1, 0], mean, atol=1e-6)
    assert (done.softmax_lse[1] == np.inf).all() and np.isfinite(done.softmax_lse[0]).all()
    fixed = fused_infer_attention_score(q, k, v, atten_mask=jax.device_put(mask), inner_precise=2, **HEADS)
    assert not fixed.attention_out[1].any()
    only = fused_infer_attention_score(q, k, v, actual_seq_lengths_kv=[5, 0], **HEADS).attention_out
    np.testing.assert_allclose(done.attention_out[0], only[0], atol=1e-6)
    assert not only[1].any()


def test_prompt_defaults():
    """next_tokens is 0 in the prompt operator: with a mask and mode 0, nothing right of the diagonal is visited."""
    q = jax.device_put(draw((1, 6, N * D))[0])
    none = jnp.zeros((6, 6), bool)
    options = {"num_heads": N, "atten_mask": none}
    causal = fused_infer_attention_score(q, q, q, next_tokens=0, **options).attention_out
    np.testing.assert_array_equal(prompt_flash_attention(q, q, q, **options), causal)
    assert np.abs(causal - fused_infer_attention_score(q, q, q, **options).attention_out).max() > 0.1
    banded = npu_prompt_flash_attention(q, q, q, num_heads=N, atten_mask=COMPRESSED, sparse_mode=13)
    again = prompt_flash_attention(q, q, q, num_heads=N, atten_mask=COMPRESSED, sparse_mode=3)
    np.testing.assert_array_equal(banded, again)


SCALES = {0: (K, D), 1: (2, 20), 2: (K,), 3: (2, K, 20)}


@pytest.mark.parametrize(("key_mode", "value_mode"), [(0, 1), (1, 0), (2, 3), (3, 2)])
def test_int8_keys_and_values(key_mode, value_mode):
    rng = np.random.default_rng(key_mode)
    k, v = (rng.integers(-128, 128, (2, 20, K * D)).astype(np.int8) for _ in range(2))
    q = draw((2, 1, N * D))[0]
    plain, fields = [], {}
    for name, x, mode in (("key", k, key_mode), ("value", v, value_mode)):
        scale, offset = (rng.uniform(0.01, 0.03, SCALES[mode]).astype(np.float32) for _ in range(2))
        shape = {0: (1, 1, K, D), 1: (2, 20, 1, 1), 2: (1, 1, K, 1), 3: (2, 20, K, 1)}[mode]
        s, o = ((y.swapaxes(1, 2) if mode == 3 else y).reshape(shape) for y in (scale, offset))
        plain.append((x.reshape(2, 20, K, D) + o.astype(np.float64)) * s)
        for part, y in (("scale", scale), ("offset", offset), ("mode", mode)):
            fields[f"{name}_antiquant_{part}"] = y if part == "mode" else jax.device_put(y)
    done = fused_infer_attention_score(*map(jax.device_put, (q, k, v)), **fields, **HEADS)
    heads = [x.swapaxes(1, 2) for x in (q.reshape(2, 1, N, D), *plain)]
    expected = expect(*heads, np.ones((1, 20), bool))[0].swapaxes(1, 2).reshape(2, 1, -1)
    np.testing.assert_allclose(done.attention_out, expected, atol=1e-5)


def test_the_offset_is_added_first():
    one, half, three = jnp.ones((1, 1, 16), jnp.int8), jnp.array([0.5]), jnp.array([3.0])
    fields = {"value_antiquant_scale": half, "value_antiquant_offset": three, "key_antiquant_scale": half}
    done = fused_infer_attention_score(jnp.ones((1, 1, 16)), one, one, **fields)
    assert done.attention_out[0, 0, 0] == 2  # not 1 * 0.5 + 3


def test_shared_prefix_and_left_padding():
    q, k, v, pk, pv = draw((2, N, 8, D), (2, K, 20, D), (2, K, 20, D), (1, K, 6, D), (1, K, 6, D))
    q_lens, kv_lens = np.array([8, 5]), np.array([20, 11])
    seen, padded = np.zeros((2, 1, 8, 24), bool), [x.copy() for x in (q, k, v)]
    for b, (a, c) in enumerate(zip(q_lens, kv_lens, strict=True)):
        seen[b, 0, :a, : c + 4] = twin.allow(3, a, c + 4)
    for x, lens, pad in zip(padded, (q_lens, kv_lens, kv_lens), (0, 0, 0), strict=True):
        x[1] = np.nan
        source = {8: q, 20: k}[x.shape[2]] if x is not padded[2] else v
        x[1, :, x.shape[2] - lens[1] - pad :] = source[1, :, : lens[1]]
    done = fused_infer_attention_score(
        *map(jax.device_put, padded), input_layout="BNSD", sparse_mode=3, atten_mask=COMPRESSED,
        actual_seq_lengths=q_lens, actual_seq_lengths_kv=kv_lens,
        key_shared_prefix=jax.device_put(pk), value_shared_prefix=jax.device_put(pv),
        actual_shared_prefix_len=[4], query_padding_size=np.array([0]), kv_padding_size=np.array([0]),
        softmax_lse_flag=True, **HEADS,
    )  # fmt: skip
    joined = [np.concatenate([np.repeat(p[:, :, :4], 2, axis=0), x], axis=2) for p, x in ((pk, k), (pv, v))]
    expected = expect(q, *joined, seen)
    np.testing.assert_allclose(done.attention_out[0], expected[0][0], atol=1e-6)
    np.testing.assert_allclose(done.attention_out[1, :, 3:], expected[0][1, :, :5], atol=1e-6)
    assert not done.attention_out[1, :, :3].any() and (done.softmax_lse[1, :, :3] == np.inf).all()


@pytest.mark.parametrize("is_paged", [False, True])
def test_packed_queries(is_paged):
    q, k, v = draw((9, N, 64), (15, K, 64), (15, K, 64))
    q_ends, kv_ends = [2, 2, 9], [5, 5, 15]
    given = [jax.device_put(x) for x in (k, v)]
    options = {"actual_seq_lengths_kv": kv_ends}
    if is_paged:
        table = np.array([[3], [-1], [1]])
        pools = np.full((2, 5, 16, K, 64), np.nan, np.float32)
        for pool, x in zip(pools, (k, v), strict=True):
            pool[3, :5], pool[1, :10] = x[:5], x[5:]
        given = [jax.device_put(x.reshape(5, 16, -1)) for x in pools]
        options = {"actual_seq_lengths_kv": [5, 0, 10], "block_table": table, "block_size": 16}
    done = fused_infer_attention_score(
        jax.device_put(q), *given, input_layout="TND", actual_seq_lengths=q_ends, atten_mask=COMPRESSED, sparse_mode=3,
        softmax_lse_flag=True, **options, **HEADS,
    )  # fmt: skip
    for at, to in ((slice(0, 2), slice(0, 5)), (slice(2, 9), slice(5, 15))):
        parts = [x.swapaxes(0, 1)[None] for x in (q[at], k[to], v[to])]
        expected = expect(*parts, twin.allow(3, parts[0].shape[2], parts[1].shape[2]))
        np.testing.assert_allclose(done.attention_out[at].swapaxes(0, 1), expected[0][0], atol=2e-6)
        np.testing.assert_allclose(done.softmax_lse[at, :, 0].T, expected[3][0], atol=1e-6)
