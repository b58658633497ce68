"""Worked cases and field reports: exact values that follow from the definition by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.ops import (
    attention_update,
    flash_attention_score,
    flash_attention_score_grad,
    fused_infer_attention_score,
    ring_attention_update,
)

FLT_MAX = float(np.finfo(np.float32).max)
COMPRESSED = jax.device_put(np.triu(np.ones((2048, 2048), np.uint8), 1))
PREFIX = jax.device_put(np.zeros((3072, 2048), np.uint8))


def put(array):
    """Put numbers on the device as float32; ``jnp.asarray`` would compile a kernel for each shape."""
    return jax.device_put(np.asarray(array, np.float32))


def probe(q_len, kv_len, mask=COMPRESSED, batch=1, **options):
    """Zero scores and v[j] = j: (sum, out) are the number of live columns and their mean index."""
    v = put(np.tile(np.arange(kv_len).reshape(1, 1, kv_len, 1), (batch, 1, 1, 1)))
    q, k = put(np.zeros((batch, 1, q_len, 4))), put(np.zeros((batch, 1, kv_len, 4)))
    done = flash_attention_score(q, k, v, head_num=1, input_layout="BNSD", atten_mask=mask, **options)
    out, row_sum, row_max = map(np.asarray, (done.attention_out, done.softmax_sum, done.softmax_max))
    return [x.reshape(batch, q_len).squeeze().tolist() for x in (row_sum[..., 0], out, row_max[..., 0])]


def test_anchors():
    assert probe(4, 6, sparse_mode=2)[:2] == [[1, 2, 3, 4], [0, 0.5, 1, 1.5]]
    assert probe(4, 6, sparse_mode=3)[:2] == [[3, 4, 5, 6], [1, 1.5, 2, 2.5]]
    assert probe(6, 4, sparse_mode=2)[0] == [1, 2, 3, 4, 4, 4]
    assert probe(2, 5, sparse_mode=2)[1] == [0, 0.5] and probe(2, 5, sparse_mode=3)[1] == [1.5, 2]
    assert probe(3, 128, sparse_mode=3)[1] == [62.5, 63, 63.5] and probe(3, 128, sparse_mode=2)[1] == [0, 0.5, 1]


def test_rows_that_see_nothing_by_the_lengths():
    row_sum, out, row_max = probe(6, 4, sparse_mode=3)
    assert row_sum == [FLT_MAX, FLT_MAX, 1, 2, 3, 4] and out == [0, 0, 0, 0.5, 1, 1.5]
    assert row_max == [-FLT_MAX, -FLT_MAX, 0, 0, 0, 0]


def test_rows_that_a_mask_hides():
    mask = jnp.asarray([[1, 1, 1, 1], [0, 0, 1, 1]], jnp.uint8)
    assert probe(2, 4, mask, sparse_mode=1) == [[4, 2], [1.5, 0.5], [-FLT_MAX, 0]]
    assert probe(2, 4, mask, sparse_mode=1, inner_precise=2) == [[FLT_MAX, 2], [0, 0.5], [-FLT_MAX, 0]]
    x = jnp.zeros((1, 2, 4))
    kv = jnp.ones((1, 4, 4))
    out, lse = fused_infer_attention_score(x, kv, kv, atten_mask=mask, softmax_lse_flag=True)
    assert out[0, :, 0].tolist() == [0, 1] and lse.ravel()[0] == np.inf


def test_without_a_mask_the_mode_is_ignored():
    assert probe(4, 4, None, sparse_mode=3)[:2] == [[4] * 4, [1.5] * 4]


def test_bands():
    row_sum, out, _ = probe(13, 16, sparse_mode=4, pre_tokens=6, next_tokens=4)
    assert row_sum == [8, 9, 10, 11, 11, 11, 11, 11, 11, 10, 9, 8, 7]
    assert out == [3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 10.5, 11, 11.5, 12]
    i, j = np.indices((8, 8))
    mask = jnp.asarray(~((i - 3 <= j) & (j <= i - 1)))
    row_sum, out, _ = probe(8, 8, mask, pre_tokens=3, next_tokens=-1)
    assert row_sum == [FLT_MAX, 1, 2, 3, 3, 3, 3, 3] and out == [0, 0, 0.5, 1, 2, 3, 4, 5]


def test_prefixes():
    for mode, mask in ((6, PREFIX), (5, None)):
        if mask is None:
            i, j = np.indices((4, 6))
            mask = jnp.asarray(np.stack([~((j <= i + 2) | (j < n)) for n in (4, 5)])[:, None])
        row_sum, out, _ = probe(4, 6, mask, batch=2, sparse_mode=mode, prefix=[4, 5])
        assert row_sum == [[4, 4, 5, 6], [5, 5, 5, 6]] and out == [[1.5, 1.5, 2, 2.5], [2, 2, 2, 2.5]]
    with pytest.warns(UserWarning, match="the mask decides"):
        assert probe(4, 6, mask, batch=2, sparse_mode=5, prefix=[1, 5])[0] == [[4, 4, 5, 6], [5, 5, 5, 6]]
    assert probe(6, 4, PREFIX, sparse_mode=6, prefix=[0])[0][:2] == [FLT_MAX] * 2
    assert probe(3, 5, PREFIX, sparse_mode=6, prefix=[4])[1] == [1.5, 1.5, 2] and probe(3, 5, sparse_mode=3)[1] == [
        1,
        1.5,
        2,
    ]


def packed(q_ends, kv_ends, mode, **options):
    v = np.concatenate([np.arange(b - a) for a, b in zip([0, *kv_ends], kv_ends, strict=False)]).astype(np.float32)
    q, k = put(np.zeros((q_ends[-1], 1, 4))), put(np.zeros((kv_ends[-1], 1, 4)))
    done = flash_attention_score(
        q, k, put(v.reshape(-1, 1, 1)), head_num=1, input_layout="TND", atten_mask=COMPRESSED, sparse_mode=mode,
        actual_seq_qlen=q_ends, actual_seq_kvlen=kv_ends, **options,
    )  # fmt: skip
    return np.asarray(done.softmax_sum)[:, 0, 0].tolist(), np.asarray(done.attention_out).ravel().tolist()


def test_a_split_batch_equals_the_whole():
    whole = probe(4, 6, sparse_mode=3)
    first = packed([3, 5], [3, 9], 7, pre_tokens=6, next_tokens=-2)
    second = packed([2, 7, 11], [6, 11, 15], 3)
    assert first[0][3:] + second[0][:2] == whole[0] and first[1][3:] + second[1][:2] == whole[1]
    assert packed([3, 8, 12], [4, 9, 13], 8, pre_tokens=4, next_tokens=1)[0][:3] == [3, 4, 4]


def one_row(pse, pse_type, **options):
    q, k = put(np.reshape([1, 0], (1, 1, 1, 2))), put(np.eye(2).reshape(1, 1, 2, 2))
    v, pse = put(np.reshape([0, 1], (1, 1, 2, 1))), put(np.reshape(pse, (1, 1, 1, 2)))
    return flash_attention_score(q, k, v, head_num=1, input_layout="BNSD", pse=pse, pse_type=pse_type, **options)


def test_order_of_scale_and_bias():
    for pse_type, expected in ((0, (2, 1.2231302, 0.8175745)), (1, (1, 1.6065307, 0.6224593))):
        done = one_row([0, 2], pse_type, scale_value=0.5)
        found = [np.asarray(x).flat[0] for x in (done.softmax_max, done.softmax_sum, done.attention_out)]
        assert found == pytest.approx(expected, rel=1e-6)
    q, k = put(np.ones((1, 1, 1, 2))), put([[[[1, 0], [0, 0]]]])
    v, pse = put([[[[1], [0]]]]), put([[[[0, 2]]]])
    for pse_type, expected in ((1, 0.377541), (0, 0.182426)):
        done = flash_attention_score(
            q, k, v, head_num=1, input_layout="BNSD", pse=pse, pse_type=pse_type, scale_value=0.5
        )
        assert round(np.asarray(done.attention_out).item(), 6) == expected
    q4, kv4 = jnp.pad(q[0], ((0, 0), (0, 0), (0, 2))), jnp.pad(k[0], ((0, 0), (0, 0), (0, 2)))
    done = fused_infer_attention_score(q4, kv4, kv4, pse_shift=pse, scale_value=0.5)
    assert round(float(done.attention_out[0, 0, 0]), 6) == 0.182426


def test_distance_bias():
    slopes = put([0.5])
    two = probe(4, 4, None, pse=slopes, pse_type=2)
    assert two[0] == pytest.approx([2.1975, 2.5809, 2.5809, 2.1975], abs=1e-4)
    assert two[1] == pytest.approx([0.9154, 1.2851, 1.7149, 2.0846], abs=1e-4) and two[2] == [0] * 4
    assert probe(4, 4, None, pse=slopes, pse_type=3)[0] == pytest.approx([2.5202, 2.7061, 2.7061, 2.5202], abs=1e-4)
    moved = probe(4, 4, None, pse=slopes, pse_type=2, q_start_idx=4)
    assert moved[2] == [-0.5, -1, -1.5, -2] and moved[0] == pytest.approx([2.1975] * 4, abs=1e-4)
    assert moved[1] == pytest.approx([2.0846] * 4, abs=1e-4)


def test_dropout_bits():
    bits = jnp.asarray([173] + [0] * 15, jnp.uint8)
    row_sum, out, _ = probe(1, 8, None, drop_mask=bits, keep_prob=0.5)
    assert (row_sum, out) == (8, 4.25)


def test_sink():
    v = jnp.arange(1.0, 4).reshape(1, 1, 3, 1)
    q, k, sink = jnp.zeros((1, 1, 1, 4)), jnp.zeros((1, 1, 3, 4)), jnp.log(jnp.array([3.0]))
    options = {"head_num": 1, "input_layout": "BNSD", "sink": sink}
    done = flash_attention_score(q, k, v, **options)
    found = [np.asarray(x).flat[0] for x in (done.softmax_max, done.softmax_sum, done.attention_out)]
    assert found == pytest.approx([1.0986123, 2, 1], rel=1e-6)
    saved = {"softmax_max": done.softmax_max, "softmax_sum": done.softmax_sum, "attention_in": done.attention_out}
    grads = flash_attention_score_grad(q, k, v, jnp.full((1, 1, 1, 1), 3.0), **saved, **options)
    assert float(grads.dsink[0]) == pytest.approx(-0.5 * 3, rel=1e-6)


def test_packed_with_empty_sequences_and_slack():
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, 1, 4)) for n in (6, 7, 7)]
    d_out = np.ones_like(rows[0])
    rows[0][5] = d_out[5] = np.nan
    q, k, v, d_out = map(put, (*rows, d_out))
    options = {"head_num": 1, "input_layout": "TND", "actual_seq_qlen": [2, 2, 5], "actual_seq_kvlen": [2, 4, 7]}
    done = flash_attention_score(q, k, v, **options)
    saved = {"softmax_max": done.softmax_max, "softmax_sum": done.softmax_sum, "attention_in": done.attention_out}
    grads = flash_attention_score_grad(q, k, v, d_out, **saved, **options)
    assert not done.attention_out[5].any() and not grads.dq[5].any()
    assert not grads.dk[2:4].any() and not grads.dv[2:4].any()
    assert all(np.isfinite(np.asarray(x)).all() for x in (*grads[:3], done.attention_out))
    shorter = {**options, "actual_seq_qlen": [2, 5, 0], "actual_seq_kvlen": [2, 7, 0]}
    same = {**options, "actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 7]}
    for a, b in zip(flash_attention_score(q, k, v, **shorter), flash_attention_score(q, k, v, **same), strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_mask_is_full_attention_inside_each_segment():
    """And not the mean of v: vllm-ascend 13699."""
    x = 40 * jnp.eye(8)[:, None]
    v = jnp.arange(8.0).reshape(8, 1, 1)
    done = flash_attention_score(
        x, x, v, head_num=1, input_layout="TND", actual_seq_qlen=[3, 8], actual_seq_kvlen=[3, 8]
    )
    np.testing.assert_allclose(done.attention_out.ravel(), np.arange(8), atol=1e-6)


def test_the_vendor_example():
    """All ones, S 256, D 128, a mask of zeros: SBH and TND."""
    mask = jnp.zeros((256, 256), jnp.uint8)
    ends = {"actual_seq_qlen": [256], "actual_seq_kvlen": [256]}
    for layout, shape, extra in (("SBH", (256, 1, 128), {}), ("TND", (256, 1, 128), ends)):
        x = jnp.ones(shape)
        done = flash_attention_score(
            x, x, x, head_num=1, input_layout=layout, atten_mask=mask, scale_value=128**-0.5, **extra
        )
        np.testing.assert_allclose(done.attention_out, 1, rtol=1e-6)
        np.testing.assert_allclose(done.softmax_max, 11.313708, rtol=1e-6)
        np.testing.assert_array_equal(done.softmax_sum, 256)
        assert done.softmax_max.size == 256 * 8


def part(row_max, row_sum, out):
    statistic = (put(np.full((1, 1, 1, 8), x)) for x in (row_max, row_sum))
    return put(np.full((1, 1, 8), out)), *statistic


def test_merging():
    nothing, some = part(-FLT_MAX, FLT_MAX, 0.0), part(0.0, 4.0, 1.5)
    cases = [
        ((part(0.0, 2.0, 0.5), part(np.log(2), 3.0, 4.0)), (3.125, 0.6931472, 4)),
        ((nothing, some), (1.5, 0, 4)),
        ((some, nothing), (1.5, 0, 4)),
        ((nothing, nothing), (0, -FLT_MAX, FLT_MAX)),
        ((ring_attention_update(*nothing, *nothing), some), (1.5, 0, 4)),
        ((part(0.0, 0.0, 0.0), part(-200.0, 4.0, 1.5)), (1.5, -200, 4)),
        ((part(-200.0, 4.0, 1.5), part(0.0, FLT_MAX, np.nan)), (1.5, -200, 4)),
    ]
    for (a, b), expected in cases:
        found = [np.asarray(x).flat[0] for x in ring_attention_update(*a, *b)]
        assert found == pytest.approx(expected, rel=1e-6)
    out, lse = attention_update([jnp.array([np.inf])] * 2, [jnp.full((1, 8), np.nan)] * 2)
    assert not out.any() and lse[0] == np.inf


def test_key_heads_are_shared_by_blocks():
    v = jnp.broadcast_to(jnp.array([10.0, 20.0]).reshape(1, 1, 2, 1), (1, 3, 2, 4))
    q, k = jnp.ones((1, 2, 4, 8)), jnp.ones((1, 3, 2, 8))
    assert aj.flash_attention(q, k, v)[0, 0, :, 0].tolist() == [10, 10, 20, 20]
