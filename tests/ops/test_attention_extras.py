"""Position bias in every form, dropout in packed sequences, emulation, tilings, the call on a card."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.ops import flash_attention_score, flash_attention_score_grad, npu_fusion_attention
from ascend_jax.ops.attention.dropout import element_order
from ascend_jax.ops.attention.kernel import attend
from ascend_jax.ops.attention.scoring import Options, Scoring
from tests.ops import attention_twin as twin

quick = functools.partial(jax.jit, compiler_options=aj.QUICK_TO_COMPILE)
N, D = 2, 8
COMPRESSED = jax.device_put(np.triu(np.ones((2048, 2048), np.uint8), 1))


def draw(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [jax.device_put(rng.normal(size=shape).astype(np.float32)) for shape in shapes]  # which compiles nothing


def test_compressed_position_bias():
    """The last 1024 rows stand for all: a matrix that depends on i - j, as ALiBi does."""
    length = 1536
    q, k, v = draw(*[(1, N, length, D)] * 3)
    line = np.random.default_rng(1).normal(size=(N, 2 * length)).astype(np.float32)
    i, j = np.indices((length, length))
    whole = line[:, i - j + length]
    options = {"head_num": N, "input_layout": "BNSD", "atten_mask": COMPRESSED, "sparse_mode": 3, "pse_type": 0}
    full = flash_attention_score(q, k, v, pse=jax.device_put(whole[None]), **options)
    short = flash_attention_score(q, k, v, pse=jax.device_put(whole[None, :, -1024:]), **options)
    np.testing.assert_array_equal(full.attention_out, short.attention_out)
    np.testing.assert_array_equal(full.softmax_sum, short.softmax_sum)


LENGTHS = ((5, 7), (6, 6))
ENDS = {"actual_seq_qlen": [5, 11], "actual_seq_kvlen": [7, 13], "head_num": N, "input_layout": "TND"}


def packed_expectation(arrays, each):
    """Run the twin on each sequence; ``each(n)`` gives its options."""
    parts, start = [], np.zeros(2, int)
    for n, (a, b) in enumerate(LENGTHS):
        at, to = slice(start[0], start[0] + a), slice(start[1], start[1] + b)
        start += (a, b)
        q, k, v = (np.asarray(x[s], np.float64).swapaxes(0, 1)[None] for x, s in zip(arrays, (at, to, to), strict=True))
        parts.append(twin.attend_batch(q, k, v, np.ones((a, b), bool), **each(n))[0][0].swapaxes(0, 1))
    return np.concatenate(parts)


@pytest.mark.parametrize("kind", ["flat", "slopes", "bits", "philox"])
def test_packed_sequences_number_their_own_elements(kind):
    arrays = draw((11, N, D), (13, N, D), (13, N, D))
    rng = np.random.default_rng(5)
    sizes = [N * a * b for a, b in LENGTHS]
    if kind == "flat":
        flat = rng.normal(size=sum(sizes)).astype(np.float32)
        parts = [x.reshape(1, N, *LENGTHS[n]) for n, x in enumerate(np.split(flat, sizes[:1]))]
        given = {"pse": jax.device_put(flat), "pse_type": 0}
        expected = packed_expectation(arrays, lambda n: {"bias": parts[n]})
    elif kind == "slopes":
        slopes = rng.uniform(0.1, 1, (2, N)).astype(np.float32)
        given = {"pse": jax.device_put(slopes), "pse_type": 3, "kv_start_idx": 2}
        bias = [np.stack([twin.alibi(3, *LENGTHS[n], slopes[n, h], 0, 2) for h in range(N)])[None] for n in range(2)]
        expected = packed_expectation(arrays, lambda n: {"bias": bias[n]})
    elif kind == "bits":
        bits = np.unpackbits(rng.integers(0, 256, 64).astype(np.uint8), bitorder="little")
        given = {"drop_mask": jax.device_put(np.packbits(bits, bitorder="little")), "keep_prob": 0.5}
        keep = [x.reshape(1, N, *LENGTHS[n]) / 0.5 for n, x in enumerate(np.split(bits[: sum(sizes)], sizes[:1]))]
        expected = packed_expectation(arrays, lambda n: {"keep": keep[n]})
    else:
        given = {"seed": 2**40 + 3, "offset": 5, "keep_prob": 0.8}
        first = N * LENGTHS[0][0] * 16
        keep = [twin.philox_keep((1, N, *LENGTHS[n]), 0.8, 2**40 + 3, 5, first * n) for n in range(2)]
        expected = packed_expectation(arrays, lambda n: {"keep": keep[n]})
    done = flash_attention_score(*arrays, **given, **ENDS)
    np.testing.assert_allclose(done.attention_out, expected, atol=2e-6)
    if kind in ("flat", "slopes"):
        saved = {"softmax_max": done.softmax_max, "softmax_sum": done.softmax_sum, "attention_in": done.attention_out}
        grads = flash_attention_score_grad(*arrays, jnp.ones_like(arrays[0]), **saved, **given, **ENDS)
        step = 1e-2 * np.random.default_rng(0).normal(size=given["pse"].shape).astype(np.float32)
        ends = [
            float(flash_attention_score(*arrays, **{**given, "pse": given["pse"] + s}, **ENDS).attention_out.sum())
            for s in (-step, step)
        ]
        assert float((grads.dpse * step).sum()) * 2 == pytest.approx(ends[1] - ends[0], rel=2e-2, abs=1e-4)


def test_dropout_is_drawn_the_same_in_both_passes():
    q, k, v = draw(*[(1, N, 20, D)] * 3)
    results = npu_fusion_attention(q, k, v, N, "BNSD", keep_prob=0.9, seed=7, offset=16)
    assert results[4:] == (7, 16, N * 400)
    keep = twin.philox_keep((1, N, 20, 20), 0.9, 7, 16)
    assert 0.8 < (keep > 0).mean() < 0.97
    wide = [np.asarray(x, np.float64) for x in (q, k, v)]
    expected = twin.attend_batch(*wide, np.ones((20, 20), bool), keep=keep)
    np.testing.assert_allclose(results[0], expected[0], atol=2e-6)
    np.testing.assert_allclose(results[2][..., 0], expected[2], rtol=1e-5)  # the sum does not see dropout


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_emulation_rounds_the_weights(dtype):
    q, k, v = (x.astype(dtype) for x in draw(*[(1, N, 64, D)] * 3))
    options = {"head_num": N, "input_layout": "BNSD", "atten_mask": COMPRESSED, "sparse_mode": 3}
    scores = np.einsum("bhid,bhjd->bhij", *(np.asarray(x, np.float32) for x in (q, k)))
    scores = np.where(np.tril(np.ones((64, 64), bool)), scores, -twin.FLT_MAX)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    rounded = np.asarray(jnp.asarray(weights).astype(dtype).astype(jnp.float32))
    expected = rounded @ np.asarray(v, np.float32) / weights.sum(-1, keepdims=True)
    spacing = float(jnp.finfo(dtype).eps) * np.abs(expected).max()
    emulated = np.asarray(flash_attention_score(q, k, v, emulate=True, **options).attention_out, np.float32)
    exact = np.asarray(flash_attention_score(q, k, v, **options).attention_out, np.float32)
    assert np.abs(emulated - expected).max() <= spacing
    assert np.abs(exact - emulated).max() > 0
    true = twin.attend_batch(*(np.asarray(x, np.float64) for x in (q, k, v)), np.tril(np.ones((64, 64), bool)))[0]
    assert np.abs(exact - true).mean() < np.abs(emulated - true).mean()


def test_softmax_in_float16():
    """Scores rounded to float16 before the softmax, weights before the second product, sums in float32."""
    q, k, v = (x.astype(jnp.float16) for x in draw(*[(1, N, 40, D)] * 3, seed=4))
    scoring = Scoring(jnp.zeros((1, 40), jnp.int32), jnp.arange(1, 41)[None])
    options = Options((64, 64), score_dtype="float16", weight_dtype="float16")
    found = [np.asarray(x, np.float32) for x in attend(q, k, v, scoring, options, scale=1.0)]
    wide = [np.asarray(x, np.float32) for x in (q, k, v)]
    raw = np.where(np.tril(np.ones((40, 40), bool)), wide[0] @ wide[1].swapaxes(2, 3), -np.inf)
    scores = raw.astype(np.float16).astype(np.float32)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights.astype(np.float16).astype(np.float32) @ wide[2] / weights.sum(-1, keepdims=True)
    # scores a rounding apart may fall to the other side; such a step is 2^-10 of a score
    assert np.abs(found[0] - expected).max() <= 2**-10 * np.abs(expected).max()
    np.testing.assert_array_equal(found[1], found[1].astype(np.float16))
    assert (found[1] == scores.max(-1)).mean() > 0.95 and (scores.max(-1) != raw.max(-1)).mean() > 0.5
    np.testing.assert_allclose(found[2], weights.sum(-1), rtol=2e-3)


@functools.cache
def masked_call(tile):
    """Result and gradients of a masked, biased call with one tile."""
    q, k, v = draw((1, N, 50, D), (1, N, 70, D), (1, N, 70, D))
    low, high = jnp.zeros((1, 50), jnp.int32), jnp.arange(21, 71)[None]
    mask = jnp.asarray(np.random.default_rng(3).random((1, N, 50, 70)) < 0.8)
    bias = draw((1, 1, 50, 70), seed=9)[0]

    @quick
    def run(*operands):
        def value(q, k, v, bias):
            return attend(q, k, v, Scoring(low, high, mask=mask), Options(tile), scale=0.4, bias=bias)[0]

        out, pull = jax.vjp(value, *operands)
        return out, *pull(jnp.cos(jnp.arange(out.size)).reshape(out.shape))

    return run(q, k, v, bias)


@pytest.mark.parametrize("tile", [(1, 7), (13, 1), (16, 64), (128, 3), (512, 512)])
def test_any_tile_gives_the_same_result_and_gradients(tile):
    """Block_q above block_k once broke a causal bound (jax 17267); lengths that no tile divides broke others."""
    for got, want in zip(masked_call(tile), masked_call((16, 16)), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-6 * float(jnp.abs(want).max()))


@pytest.mark.parametrize("kv_len", [1, 127, 129, 1536, 1537])
def test_lengths_that_broke_others(kv_len):
    q, k, v = draw((1, N, 1, D), (1, N, kv_len, D), (1, N, kv_len, D), seed=kv_len)
    out = aj.flash_attention(*(jnp.swapaxes(x, 1, 2) for x in (q, k, v)), scale=1.0, tile=128)
    expected = twin.attend_batch(*(np.asarray(x, np.float64) for x in (q, k, v)), np.ones((1, kv_len), bool))[0]
    assert np.abs(np.asarray(out).swapaxes(1, 2) - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("has_rope", [False, True])
def test_two_phase_call_of_a_packed_batch_on_a_card(has_rope):
    *arrays, q_rope, k_rope = draw((11, N, D), (13, N, D), (13, N, D), (11, N, 4), (13, N, 4))
    ropes = {"query_rope": q_rope, "key_rope": k_rope} if has_rope else {}
    arrays = [*arrays, COMPRESSED, *ropes.values()]
    options = {"sparse_mode": 3, "scale_value": 0.5, **ENDS}
    expected = flash_attention_score(*arrays[:3], atten_mask=COMPRESSED, **options, **ropes)
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=8 << 20, max_streams=1, max_events=1, max_commands=8)
    tensors = []
    for x in (*arrays, expected.attention_out, expected.softmax_max, expected.softmax_sum):
        card, pointer = aj.malloc(card, x.nbytes)
        tensors.append(aj.tensor(pointer, x.shape, x.dtype))
    for x, tensor in zip(arrays, tensors, strict=False):
        card = aj.upload(card, tensor.pointer, x)
    names = ("atten_mask", *ropes, "attention_out", "softmax_max", "softmax_sum")
    first_phase = aj.ops.flash_attention_score_get_workspace_size
    options |= dict(zip(names, tensors[3:], strict=True))
    for ends, code in (([5, 12], 561002), ([5.5, 12], 561002), ([], 161002), ([True, 12], 161002)):
        with pytest.raises(aj.ParameterError, match="actual_seq_qlen") as refusal:
            first_phase(card, *tensors[:3], **{**options, "actual_seq_qlen": ends})
        assert refusal.value.code == code
    card, workspace, executor = first_phase(card, *tensors[:3], **options)
    card, pointer = aj.malloc(card, workspace)
    card = aj.synchronize_stream(aj.launch(card, executor, pointer, 0), 0)
    for name, tensor in zip(names[-3:], tensors[-3:], strict=True):
        want = getattr(expected, name)
        card, got = aj.download(card, tensor.pointer, tensor.shape, tensor.dtype)
        np.testing.assert_allclose(got, want, atol=1e-6)
    aj.raise_if_error(card)


def test_rows_of_no_sequence_leave_the_sink_gradient_alone():
    x, sink = jnp.ones((6, N, D)), jnp.full(N, 100.0)
    options = {"head_num": N, "input_layout": "TND", "actual_seq_qlen": [4], "actual_seq_kvlen": [4], "sink": sink}
    done = flash_attention_score(x, x, x, **options)
    saved = {"softmax_max": done.softmax_max, "softmax_sum": done.softmax_sum, "attention_in": done.attention_out}
    assert np.isfinite(flash_attention_score_grad(x, x, x, x, **saved, **options).dsink).all()


def test_no_rows_and_no_sequences_give_empty_results():
    x = jnp.zeros((0, N, 6, D))
    assert npu_fusion_attention(x, x, x, N, "BNSD")[0].shape == x.shape
    x, ends = jnp.ones((0, N, D)), {"actual_seq_qlen": [], "actual_seq_kvlen": []}
    assert npu_fusion_attention(x, x, x, N, "TND", **ends)[0].shape == x.shape


def test_a_sink_without_keys_is_the_whole_sum():
    q, k, sink = jnp.ones((1, 2, N, D)), jnp.ones((1, 0, N, D)), jnp.array([3.0, -1.0])
    out, lse = aj.flash_attention(q, k, k, sink=sink, return_lse=True)
    assert not out.any()
    np.testing.assert_allclose(lse, np.broadcast_to(sink, (1, 2, N)))
    grad = jax.grad(lambda s: aj.flash_attention(q, k, k, sink=s, return_lse=True)[1].sum())(sink)
    np.testing.assert_allclose(grad, [2, 2])


def test_narrow_products_err_at_most_twice_as_much_as_naive_ones():
    """Products of 16-bit operands against float64; the measure is the textbook formula in bfloat16."""
    q, k, v, w = (np.asarray(x.astype(jnp.bfloat16)) for x in draw(*[(1, N, 64, 16)] * 4))
    scoring = Scoring(jnp.zeros((1, 64), jnp.int32), jnp.full((1, 64), 64, jnp.int32))
    options = Options(tile=(32, 32), is_narrow=True)

    def ours(q, k, v):
        return attend(q, k, v, scoring, options, scale=0.25)[0]

    def naive(q, k, v):
        return jax.nn.softmax(q @ k.swapaxes(2, 3) * q.dtype.type(0.25)) @ v

    def results(function):
        out, pull = jax.vjp(function, *map(jnp.asarray, (q, k, v)))
        return [np.asarray(x, np.float64) for x in (out, *pull(jnp.asarray(w)))]

    a, b, c, d = (np.asarray(x, np.float64) for x in (q, k, v, w))
    p = np.exp(a @ b.swapaxes(2, 3) * 0.25)
    p /= p.sum(axis=3, keepdims=True)
    d_p = d @ c.swapaxes(2, 3)
    d_s = p * (d_p - (d_p * p).sum(axis=3, keepdims=True)) * 0.25
    exact = (p @ c, d_s @ b, d_s.swapaxes(2, 3) @ a, p.swapaxes(2, 3) @ d)
    for found, textbook, truth in zip(results(ours), results(naive), exact, strict=True):
        assert 0 < np.sqrt(np.square(found - truth).mean()) <= 2 * np.sqrt(np.square(textbook - truth).mean())


def test_more_scores_than_dropout_can_number_are_refused():
    longest = element_order(8, [[(65536, 65536 - 16)]], unit=16, align=16)
    assert longest.high.min() >= 0
    with pytest.raises(ValueError, match="dropout numbers at most 34359738368"):
        element_order(8, [[(65536, 65536 + 16)]], unit=16, align=16)
