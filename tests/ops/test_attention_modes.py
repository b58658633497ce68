"""Every sparse mode, in every layout and dtype, at odd lengths, against the float64 twin; and the gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ascend_jax.ops import flash_attention_score, flash_attention_score_grad
from ascend_jax.ops.attention_layout import from_heads_first, to_heads_first
from tests.ops import attention_twin as twin

B, N, NKV, D, DV, SCALE = 2, 4, 2, 16, 8, 0.3
COMPRESSED, PREFIX = np.triu(np.ones((2048, 2048), np.uint8), 1), np.zeros((3072, 2048), np.uint8)
LAYOUTS = ("BSH", "SBH", "BNSD", "BSND")
DTYPES = ("float32", "float16", "bfloat16")
# mode, (Sq, Skv), pre, next, prefix of each batch row
MODES = [
    (0, (37, 53), 11, 6, None),
    (0, (37, 53), 12, -2, None),
    (1, (37, 53), 1, 1, None),
    (2, (37, 53), 1, 1, None),
    (3, (37, 53), 1, 1, None),
    (4, (37, 53), 9, 3, None),
    (4, (37, 53), -2, 7, None),
    (5, (37, 53), 1, 1, [20, 53]),
    (6, (37, 53), 1, 1, [16, 41]),
    (2, (53, 37), 1, 1, None),
    (3, (53, 37), 1, 1, None),
    (6, (53, 37), 1, 1, [0, 9]),
]


def draw(q_len, kv_len, dtype, batch=B):
    rng = np.random.default_rng(q_len)
    shapes = ((batch, N, q_len, D), (batch, NKV, kv_len, D), (batch, NKV, kv_len, DV), (batch, N, q_len, DV))
    return [
        jax.device_put(rng.normal(size=shape).astype(jnp.dtype(dtype))) for shape in shapes
    ]  # which compiles nothing


def masks(mode, q_len, kv_len, pre, nxt, prefix):
    """The mask that CANN asks for, and who sees whom [B, 1, Sq, Skv]."""
    seen = np.stack([twin.allow(mode, q_len, kv_len, pre, nxt, n) for n in prefix or [0] * B])[:, None]
    if mode in (0, 1, 5):
        seen = seen & (np.random.default_rng(1).random(seen.shape) < 0.7) if mode == 1 else seen
        return ~seen, seen
    return PREFIX if mode == 6 else COMPRESSED, seen


def layouts_of(case, dtype):
    """Each mode meets every layout in some type, and each type every layout in some mode."""
    first = MODES.index(case)
    shifts = {"float32": (0, 2), "float16": (1,), "bfloat16": (3,)}[dtype]
    return [LAYOUTS[(first + shift) % len(LAYOUTS)] for shift in shifts]


@jax.jit
def naive(q, k, v, seen):
    k, v = (jnp.repeat(x, N // NKV, axis=1) for x in (k, v))
    scores = jnp.einsum("bhid,bhjd->bhij", q, k) * jnp.asarray(SCALE, q.dtype)
    weights = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(q.dtype).min), axis=-1)
    return jnp.einsum("bhij,bhjd->bhid", jnp.where(seen, weights, 0), v)


def naive_error(arrays, seen, expected):
    """Error of the unfused computation in the type of the inputs."""
    return np.abs(np.asarray(naive(*arrays, seen), np.float64) - expected).max()


@pytest.mark.parametrize("case", MODES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_mode_layout_dtype(case, dtype):
    mode, (q_len, kv_len), pre, nxt, prefix = case
    if dtype != "float32" and q_len > kv_len:
        pytest.skip("the other lengths do for 16 bits: each pair of a type and a shape costs a compilation")
    *arrays, _ = draw(q_len, kv_len, dtype)
    mask, seen = masks(mode, q_len, kv_len, pre, nxt, prefix)
    expected = twin.attend_batch(*(np.asarray(x, np.float64) for x in arrays), seen, scale=SCALE)
    limit = 1e-6 * np.abs(expected[0]).max() if dtype == "float32" else 2 * naive_error(arrays, seen, expected[0])
    for layout in layouts_of(case, dtype):
        given = [from_heads_first(x, layout) for x in arrays]
        done = flash_attention_score(
            *given, head_num=N, input_layout=layout, atten_mask=jax.device_put(mask), scale_value=SCALE,
            sparse_mode=mode, pre_tokens=pre, next_tokens=nxt, prefix=prefix,
        )  # fmt: skip
        out = to_heads_first("out", done.attention_out, layout, N)
        assert (out.dtype, done.softmax_max.dtype, done.softmax_out.size) == (arrays[0].dtype, np.float32, 0)
        assert np.abs(np.asarray(out, np.float64) - expected[0]).max() <= limit
        for got, want in zip(done[:2], expected[1:3], strict=True):
            assert got.shape == (B, N, q_len, 8)
            np.testing.assert_allclose(got, np.repeat(want[..., None], 8, -1), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", MODES, ids=str)
def test_gradients_of_every_mode(case):
    mode, (q_len, kv_len), pre, nxt, prefix = case
    q, k, v, d_out = draw(q_len, kv_len, "float32")
    mask, seen = masks(mode, q_len, kv_len, pre, nxt, prefix)
    options = {
        "head_num": N, "input_layout": "BNSD", "atten_mask": jax.device_put(mask), "scale_value": SCALE,
        "sparse_mode": mode, "pre_tokens": pre, "next_tokens": nxt, "prefix": prefix,
    }  # fmt: skip
    expected = reference_gradients((q, k, v), d_out, seen)
    done = flash_attention_score(q, k, v, **options)
    saved = {"softmax_max": done.softmax_max, "softmax_sum": done.softmax_sum, "attention_in": done.attention_out}
    by_operator = flash_attention_score_grad(q, k, v, d_out, **saved, **options)[:3]
    found = [by_operator]
    if mode in (0, 3):  # the same backward pass; these have every kind of hidden rows, and both lengths
        found.append(jax.vjp(lambda *x: flash_attention_score(*x, **options).attention_out, q, k, v)[1](d_out))
    for got in found:
        for mine, want in zip(got, expected, strict=True):
            assert np.abs(np.asarray(mine) - want).max() <= 5e-6 * np.abs(want).max()


@jax.jit
def twin_gradients(q, k, v, d_out, seen):
    """Gradients by automatic differentiation of the twin; one compilation for each shape."""

    def value(q, k, v):
        return (twin.attend_vmapped(q, k, v, seen, scale=SCALE, xp=jnp)[0] * d_out).sum()

    return jax.grad(value, argnums=(0, 1, 2))(q, k, v)


def reference_gradients(arrays, d_out, seen):
    """In float64."""
    wide = [np.asarray(x, np.float64) for x in (*arrays, d_out)]
    with jax.enable_x64(True):
        return [
            np.asarray(x) for x in twin_gradients(*wide, np.broadcast_to(seen, (*wide[0].shape[:3], seen.shape[-1])))
        ]


PACKED = [  # mode, lengths, key lengths, pre, next, prefix
    (0, (5, 0, 13, 8), (9, 4, 7, 8), 40, 40, None),
    (1, (5, 0, 13, 8), (9, 4, 7, 8), 40, 40, None),
    (2, (5, 0, 13, 8), (9, 4, 7, 8), 40, 40, None),
    (3, (5, 0, 7, 8), (9, 4, 13, 8), 40, 40, None),
    (4, (5, 3, 7, 8), (9, 4, 13, 8), 6, 2, None),
    (6, (5, 3, 7, 8), (9, 4, 13, 8), 40, 40, [4, 4, 6, 8]),
    (7, (5, 3, 7, 4), (9, 4, 13, 8), 9, -3, None),
    (8, (5, 3, 7, 4), (9, 4, 13, 8), 11, 1, None),
]


# float32 in all modes, one of the others in each: every pair of a mode and a type is met above
PACKED_RUNS = [(case, kind) for n, case in enumerate(PACKED) for kind in ("float32", DTYPES[1 + n % 2])]


def padded_gradients(parts, seen, size=16):
    """Of sequences padded to one length, so that all share a compilation."""
    padded = [np.pad(x, ((0, 0), (0, 0), (0, size - x.shape[2]), (0, 0))) for x in parts]
    seen = np.pad(seen, [(0, size - n) for n in seen.shape])
    return reference_gradients(padded[:3], padded[3], seen)


@pytest.mark.parametrize("case, dtype", PACKED_RUNS, ids=str)
def test_packed_sequences(case, dtype):
    mode, q_lens, kv_lens, pre, nxt, prefix = case
    total, keys = 32, 40  # longer than the sequences: slack
    rng = np.random.default_rng(3)
    shapes = ((total, N, D), (keys, NKV, D), (keys, NKV, DV), (total, N, DV))
    q, k, v, d_out = (jax.device_put(rng.normal(size=shape).astype(jnp.dtype(dtype))) for shape in shapes)
    seen = twin.varlen_allow(mode, q_lens, kv_lens, pre, nxt, prefix)
    mask = PREFIX if mode == 6 else COMPRESSED
    if mode in (0, 1):
        mask = rng.random((max(q_lens), max(kv_lens))) < 0.3
        mask[:, 0] = False
        seen = [x & ~mask[: x.shape[0], : x.shape[1]] for x in seen]
    options = {
        "head_num": N, "input_layout": "TND", "atten_mask": jax.device_put(mask), "scale_value": SCALE,
        "prefix": prefix, "sparse_mode": mode, "pre_tokens": pre, "next_tokens": nxt,
        "actual_seq_qlen": np.cumsum(q_lens).tolist(), "actual_seq_kvlen": np.cumsum(kv_lens).tolist(),
        "softmax_layout": "TND",
    }  # fmt: skip
    done = flash_attention_score(q, k, v, **options)
    saved = {"softmax_max": done.softmax_max, "softmax_sum": done.softmax_sum, "attention_in": done.attention_out}
    has_grads = dtype == "float32" or mode <= 1  # the types differ in the forward pass if anywhere
    grads = flash_attention_score_grad(q, k, v, d_out, **saved, **options)[:3] if has_grads else ()
    used = [np.zeros(n, bool) for n in (total, keys, keys)]
    limit = {"float32": 2e-6, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    start = np.zeros(2, int)
    for q_len, kv_len, one in zip(q_lens, kv_lens, seen, strict=True):
        at, to = (slice(a, a + n) for a, n in zip(start, (q_len, kv_len), strict=True))
        start += (q_len, kv_len)
        if not q_len or not kv_len:
            continue
        for flags, part in zip(used, (at, to, to), strict=True):
            flags[part] = True
        parts = [np.asarray(x, np.float64).swapaxes(0, 1)[None] for x in (q[at], k[to], v[to], d_out[at])]
        expected = twin.attend_batch(*parts[:3], one, scale=SCALE)
        np.testing.assert_allclose(
            np.asarray(done.attention_out, np.float64)[at].swapaxes(0, 1), expected[0][0], atol=4 * limit
        )
        np.testing.assert_allclose(done.softmax_sum[at, :, 3].T, expected[2][0], rtol=2e-5)
        if dtype == "float32":
            for got, want, part in zip(grads, padded_gradients(parts, one), (at, to, to), strict=True):
                got = np.asarray(got)[part].swapaxes(0, 1)
                want = want[0, :, : got.shape[1]]
                assert np.abs(got - want).max() <= 5e-6 * np.abs(want).max()
    for got, flags in zip(grads, used, strict=False):
        assert not np.asarray(got)[~flags].any()
    assert not np.asarray(done.attention_out)[~used[0]].any()
    assert not np.asarray(done.softmax_sum)[~used[0]].any()


def test_statistics_of_packed_sequences_lie_sequence_by_sequence():
    rng = np.random.default_rng(0)
    q, k = jnp.asarray(rng.normal(size=(6, N, D)), jnp.float32), jnp.asarray(rng.normal(size=(6, NKV, D)), jnp.float32)
    options = {"head_num": N, "input_layout": "TND", "actual_seq_qlen": [2, 6], "actual_seq_kvlen": [3, 6]}
    default = flash_attention_score(q, k, k, **options).softmax_sum[..., 0]
    true = flash_attention_score(q, k, k, softmax_layout="TND", **options).softmax_sum[..., 0]
    flat = np.asarray(default).reshape(-1)
    np.testing.assert_array_equal(flat[: 2 * N].reshape(N, 2), true[:2].T)
    np.testing.assert_array_equal(flat[2 * N :].reshape(N, 4), true[2:].T)
