"""The JAX surface: against the float64 twin, against jax.nn, with garbage, under transformations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.ops import PackedDropout, philox_dropout, plain_attention
from tests.ops import attention_twin as twin

QUICK = aj.QUICK_TO_COMPILE | {"xla_backend_optimization_level": 0}  # the runs themselves are short
quick = functools.partial(jax.jit, compiler_options=QUICK)
B, T, S, N, K, D, DV = 2, 37, 53, 4, 2, 8, 6
RNG = np.random.default_rng(7)
Q, KEYS, V = (RNG.normal(size=shape).astype(np.float32) for shape in ((B, T, N, D), (B, S, K, D), (B, S, K, DV)))
W = RNG.normal(size=(B, T, N, DV)).astype(np.float32)
ROW, COL = np.indices((T, S))
SEGMENTS = RNG.integers(0, 4, (B, T)), RNG.integers(0, 4, (B, S))
RUNS = np.sort(SEGMENTS[0], axis=1), np.sort(SEGMENTS[1], axis=1)
LENGTHS = np.array([20, 37]), np.array([53, 11])
MASK = RNG.random((B, 1, T, S)) < 0.5
BITS = RNG.integers(0, 256, (B * N * T * S + 7) // 8).astype(np.uint8)
BIAS, SINK = RNG.normal(size=(1, N, T, S)).astype(np.float32), RNG.normal(size=N).astype(np.float32)


def by_lengths():
    seen = []
    for q_len, kv_len in zip(*LENGTHS, strict=True):
        seen.append((q_len > ROW) & (kv_len > COL) & (ROW + kv_len - q_len >= COL))
    return np.stack(seen)[:, None]


def same(ids):
    return (ids[0][:, :, None] == ids[1][:, None, :])[:, None]


# name: options of the call, who sees whom, options of the twin
CASES = {
    "full": ({}, ROW >= 0, {}),
    "causal": ({"causal": True}, COL <= ROW, {}),
    "lower right": ({"causal": "lower_right"}, COL <= ROW + S - T, {}),
    "window": ({"window": (5, 9)}, (ROW - 5 <= COL) & (COL <= ROW + 9), {}),
    "causal window": ({"causal": True, "window": 4}, (ROW - 4 <= COL) & (COL <= ROW), {}),
    "segments": ({"segment_ids": RUNS}, same(RUNS), {}),
    "scattered segments": ({"segment_ids": SEGMENTS}, same(SEGMENTS), {}),
    "lengths": ({"q_lengths": LENGTHS[0], "kv_lengths": LENGTHS[1], "causal": "lower_right"}, by_lengths(), {}),
    "mask": ({"mask": MASK}, MASK, {}),
    "key mask": ({"mask": MASK[:, :, :1]}, np.broadcast_to(MASK[:, :, :1], MASK.shape), {}),
    "bias": ({"bias": BIAS}, ROW >= 0, {"bias": BIAS}),
    "key bias": ({"bias": BIAS[:, :1, :1], "causal": True}, COL <= ROW, {"bias": BIAS[:, :1, :1]}),
    "sink": ({"sink": SINK, "causal": True}, COL <= ROW, {"sink": SINK}),
    "cap": ({"softcap": 1.5, "bias": BIAS}, ROW >= 0, {"bias": BIAS, "softcap": 1.5}),
    "philox": (
        {"dropout": philox_dropout(0.7, seed=12345678901, offset=37)},
        ROW >= 0,
        {"keep": twin.philox_keep((B, N, T, S), 0.7, 12345678901, 37)},
    ),
    "packed bits": (
        {"dropout": PackedDropout(jnp.asarray(BITS), 0.6), "causal": True},
        COL <= ROW,
        {"keep": twin.packed_keep(BITS, (B, N, T, S), 0.6)},
    ),
}
TENSORS = ("bias", "sink")


@pytest.fixture(autouse=True)
def _no_nan_anywhere():
    with jax.debug_nans(True):
        yield


def heads_first(x):
    return np.asarray(x).swapaxes(1, 2)


@functools.partial(jax.jit, static_argnames="options", compiler_options=QUICK)
def twin_value_and_gradients(q, k, v, tensors, seen, keep, options):
    def value(q, k, v, tensors):
        out, _, _, lse = twin.attend_vmapped(
            q, k, v, seen, scale=D**-0.5, keep=keep, xp=jnp, **tensors, **dict(options)
        )
        return (out * W.swapaxes(1, 2)).sum() + jnp.where(lse < np.inf, lse, 0).sum(), (out, lse)

    return jax.value_and_grad(value, argnums=(0, 1, 2, 3), has_aux=True)(q, k, v, tensors)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients(name):
    options, seen, more = CASES[name]
    tensors = {key: jnp.asarray(options[key]) for key in TENSORS if key in options}
    rest = {key: x for key, x in options.items() if key not in TENSORS}

    def value(q, k, v, tensors):
        out, lse = aj.flash_attention(q, k, v, return_lse=True, tile=(16, 32), **rest, **tensors)
        return (out * W).sum() + jnp.where(lse > -np.inf, lse, 0).sum(), (out, lse)

    run = jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2, 3), has_aux=True), compiler_options=QUICK)
    (_, (out, lse)), grads = run(Q, KEYS, V, tensors)
    with jax.enable_x64(True):
        wide = [np.asarray(heads_first(x), np.float64) for x in (Q, KEYS, V)]
        wide_tensors = {key: np.asarray(x, np.float64) for key, x in more.items() if key in TENSORS}
        static = tuple((key, x) for key, x in more.items() if key == "softcap")
        results = twin_value_and_gradients(
            *wide, wide_tensors, np.broadcast_to(seen, (B, N, T, S)), more.get("keep"), static
        )
        (_, expected), expected_grads = jax.tree.map(np.asarray, results)
    assert np.abs(heads_first(out) - expected[0]).max() <= 1e-6 * np.abs(expected[0]).max()
    live = np.asarray(expected[1]) < np.inf
    np.testing.assert_allclose(heads_first(lse)[live], np.asarray(expected[1])[live], atol=3e-6)
    assert (heads_first(lse)[~live] == -np.inf).all()
    for got, want in zip(grads[:3], expected_grads[:3], strict=True):
        assert np.abs(heads_first(got) - want).max() <= 5e-6 * np.abs(want).max()
    for key in wide_tensors:
        want = np.asarray(expected_grads[3][key])
        assert np.abs(grads[3][key] - want).max() <= 5e-6 * np.abs(want).max()


@pytest.mark.parametrize("name", ["lengths", "mask", "cap", "philox"])
def test_the_plain_form_is_the_same(name):
    options, _, _ = CASES[name]
    for got, want in zip(
        quick(lambda *x: plain_attention(*x, return_lse=True, **options))(Q, KEYS, V),
        quick(lambda *x: aj.flash_attention(*x, return_lse=True, tile=(16, 32), **options))(Q, KEYS, V),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("columns", [264, 300, 512])  # longer than a product is, multiples of 16 or not
def test_long_tiles_draw_the_same_dropout(columns):
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(1, length, 1, D)).astype(np.float32) for length in (16, 600, 600))
    dropout = philox_dropout(0.5, seed=3)
    out = quick(lambda *x: aj.flash_attention(*x, dropout=dropout, tile=(16, columns)))(q, k, v)
    np.testing.assert_allclose(out, quick(lambda *x: plain_attention(*x, dropout=dropout))(q, k, v), atol=2e-6)


def test_heads_side_by_side_under_shard_map():
    """With its checks on, a loop must not start from what is the same on all devices; the shared key adds up."""
    mesh = jax.make_mesh((jax.device_count(),), ("card",), axis_types=(jax.sharding.AxisType.Auto,))
    heads, alike = jax.sharding.PartitionSpec(None, None, "card"), jax.sharding.PartitionSpec()
    rng = np.random.default_rng(2)
    q = rng.normal(size=(1, 20, 2 * jax.device_count(), D)).astype(np.float32)
    k, v = (rng.normal(size=(1, 40, 1, D)).astype(np.float32) for _ in range(2))

    def attend(q, k, v):
        return aj.flash_attention(q, k, v, causal="lower_right", tile=16)

    sharded = jax.shard_map(attend, mesh=mesh, in_specs=(heads, alike, alike), out_specs=heads)
    for got, want in zip(
        *(quick(jax.grad(lambda *x, f=f: jnp.sin(f(*x)).sum(), (0, 1, 2)))(q, k, v) for f in (sharded, attend)),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, atol=2e-6)


def test_the_plain_form_has_higher_derivatives():
    def value(q):
        return plain_attention(q, KEYS, V, causal=True, bias=jnp.asarray(BIAS)).sum()

    twice = jax.jit(lambda q: jax.jvp(jax.grad(value), (q,), (jnp.ones_like(q),)), compiler_options=QUICK)
    _, second = twice(Q)
    assert np.isfinite(second).all() and np.abs(second).max() > 0


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({}, {}),
        ({"causal": True}, {"is_causal": True}),
        ({"window": (3, 5)}, {"local_window_size": (3, 5)}),
        ({"mask": MASK[:, :, :1] | (COL == 0)}, {"mask": jnp.asarray(MASK[:, :, :1] | (COL == 0))}),
        ({"bias": BIAS[:, :1], "scale": 0.7}, {"bias": jnp.asarray(BIAS[:, :1]), "scale": 0.7}),
        ({"kv_lengths": LENGTHS[1]}, {"key_value_seq_lengths": jnp.asarray(LENGTHS[1])}),
    ],
    ids=lambda x: " ".join(x),
)
def test_replaces_the_function_of_jax(mine, theirs):
    values = KEYS  # there Dv is D
    expected = quick(lambda *x: jax.nn.dot_product_attention(*x, **theirs))(Q, KEYS, values)
    found = quick(lambda *x: aj.flash_attention(*x, **mine))(Q, KEYS, values)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    if not mine:
        np.testing.assert_allclose(quick(aj.flash_attention)(Q[0], KEYS[0], values[0]), found[0], atol=1e-6)


def test_garbage_in_what_nobody_sees_reaches_nothing():
    """jax.nn lets a NaN of a hidden value through; so do gradients that multiply it by a weight of 0."""
    lengths = {"q_lengths": np.array([30, 37]), "kv_lengths": np.array([40, 53])}

    def run(q, k, v, weight):
        out, pull = jax.vjp(lambda *x: aj.flash_attention(*x, causal=True, tile=16, **lengths), q, k, v)
        return out, *pull(weight)

    run = jax.jit(run, compiler_options=QUICK)
    clean = run(Q, KEYS, V, W)
    for garbage in (np.nan, np.inf):
        q, k, v, w = Q.copy(), KEYS.copy(), V.copy(), W.copy()
        q[0, 30:], w[0, 30:], k[0, 40:], v[0, 40:], k[1, 37:], v[1, 37:] = [garbage] * 6
        with jax.debug_nans(False):
            dirty = run(q, k, v, w)
        for got, want in zip(dirty, clean, strict=True):
            np.testing.assert_array_equal(got, want)


def test_garbage_in_hidden_queries_reaches_neither_the_scale_nor_the_sinks():
    run = quick(
        jax.grad(
            lambda scale, sink, q: jnp.tanh(
                aj.flash_attention(
                    q, KEYS, V, scale=scale, sink=sink, q_lengths=np.array([30, 37]), return_lse=True, tile=16
                )[1]
            ).sum(),
            argnums=(0, 1),
        )
    )
    q = Q.copy()
    clean = run(np.float32(0.3), SINK, q)
    assert all(np.abs(x).min() > 0 for x in clean)
    q[0, 30:] = np.nan
    with jax.debug_nans(False):
        jax.tree.map(np.testing.assert_array_equal, run(np.float32(0.3), SINK, q), clean)


def test_rows_that_pad_a_tile_do_not_overflow():
    """A number added to all of the bias changes nothing; exp of it is infinite."""
    run = quick(lambda bias: jax.vjp(lambda *x: aj.flash_attention(*x, bias=bias, tile=16), Q, KEYS, V)[1](W))
    for got, want in zip(run(np.full_like(BIAS, 128)), run(np.zeros_like(BIAS)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_infinite_key_without_weight_changes_no_gradient(dtype):
    """Its scores are -inf, as if a mask hid it."""
    q, k, v, w = (jnp.asarray(x, dtype) for x in (np.abs(Q), KEYS, V, W))
    run = quick(lambda k, mask: jax.vjp(lambda *x: aj.flash_attention(*x, mask=mask, tile=16), q, k, v)[1](w))
    seen = np.arange(S)[None, None, None] != 3
    for got, want in zip(run(k.at[:, 3].set(-jnp.inf), seen | True), run(k, seen), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("tile", [16, 64])
def test_a_visible_nan_reaches_the_gradients(tile):
    k = KEYS.copy()
    k[0, 3, 0] = np.nan
    with jax.debug_nans(False):
        gradients = quick(lambda w, *x: jax.vjp(lambda *x: aj.flash_attention(*x, causal=True, tile=tile), *x)[1](w))
        dq, dk, dv = (np.asarray(x) for x in gradients(W, Q, k, V))
    assert np.isnan(dq[0, 3:, :2]).all() and np.isfinite(dq[0, :3]).all() and np.isfinite(dq[1]).all()
    assert np.isnan(dk[0, :, 0]).any() and np.isfinite(dk[1]).all() and np.isfinite(dv[0, :, 1]).all()


def test_operands_that_are_constants_of_a_program_give_the_same():
    """XLA folds a transpose and a bitcast of a 16-bit constant into wrong numbers, if it is let."""
    q, k, v, w = (jnp.asarray(x, jnp.bfloat16) for x in (Q, KEYS, V, W))

    def train(q, k, v, w):
        out, pull = jax.vjp(lambda *x: aj.flash_attention(*x, tile=16), q, k, v)
        return out, *pull(w)

    closed = jax.jit(lambda q: train(q, k, v, w), compiler_options=QUICK)
    for got, want in zip(closed(q), jax.jit(train, compiler_options=QUICK)(q, k, v, w), strict=True):
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (got, want)), atol=2e-2)


def test_vmap_equals_a_loop():
    """Values and gradients of lanes, over several tiles; one pair of programs checks both."""
    stacked = [np.stack([x[:1, :20], 2 * x[:1, 16:36]]) for x in (Q, KEYS, V)]

    def value(q, k, v):
        out = aj.flash_attention(q, k, v, causal=True, tile=16)
        return (out * W[:1, :20]).sum(), out

    gradient = jax.value_and_grad(value, argnums=(0, 1, 2), has_aux=True)
    lanes = jax.jit(jax.vmap(gradient), compiler_options=QUICK)(*stacked)
    alone = jax.jit(gradient, compiler_options=QUICK)
    for lane in range(2):
        expected = alone(*(x[lane] for x in stacked))
        jax.tree.map(lambda got, want: np.testing.assert_allclose(got[lane], want, atol=1e-5), lanes, expected)  # noqa: B023


@pytest.mark.parametrize("function", [aj.flash_attention, plain_attention])
def test_gradient_of_the_scale(function):
    with jax.enable_x64(True):
        wide = [jnp.asarray(x, jnp.float64) for x in (Q, KEYS, V)]

        @functools.partial(jax.jit, compiler_options=QUICK)
        @jax.value_and_grad
        def value(scale):
            return (function(*wide, scale=scale, causal=True) * W).sum()

        slope = (value(0.3001)[0] - value(0.2999)[0]) / 0.0002
        assert float(value(0.3)[1]) == pytest.approx(float(slope), rel=1e-6)


def test_second_derivatives_of_a_small_call_are_right():
    """Where the keys are one tile, reverse mode goes through twice."""

    def curvature(function):
        def value(q):
            out, lse = function(q, KEYS[:1, :9], V[:1, :9], sink=SINK, return_lse=True)
            return (out * W[:1, :6]).sum() + jnp.square(lse).sum()

        return quick(jax.grad(lambda q: jnp.sin(jax.grad(value)(q)).sum()))(Q[:1, :6])

    np.testing.assert_allclose(curvature(aj.flash_attention), curvature(plain_attention), atol=1e-5)


def test_memory_is_linear_in_the_length():
    length, dim = 8192, 16
    x = jax.ShapeDtypeStruct((1, length, 1, dim), jnp.float32)

    def train(q, k, v):
        return jax.grad(lambda *x: aj.flash_attention(*x, causal=True).sum(), argnums=(0, 1, 2))(q, k, v)

    temporary = jax.jit(train).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes
    assert temporary < 40 * length * dim * 4 + 16 * 512 * 512 * 4 < length * length * 4 // 4


def test_float64_stays_float64():
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x, np.float64)) for x in (Q, KEYS, V)]
        out, lse = quick(lambda *x: aj.flash_attention(*x, causal=True, return_lse=True, tile=16))(*wide)
        expected = twin.attend_batch(*(heads_first(x) for x in wide), COL <= ROW, scale=D**-0.5)
        assert out.dtype == lse.dtype == np.float64
        np.testing.assert_allclose(heads_first(out), expected[0], atol=1e-14)


@pytest.mark.parametrize("shape", [(T, S), (N, T, S), (1, S)])
def test_bias_and_mask_may_leave_out_axes(shape):
    rng = np.random.default_rng(3)
    bias, mask = rng.normal(size=shape).astype(np.float32), rng.random(shape) < 0.7
    full = (1,) * (4 - len(shape)) + shape
    whole = {"bias": bias.reshape(full), "mask": mask.reshape(full)}
    expected = aj.flash_attention(Q, KEYS, V, **whole)
    np.testing.assert_array_equal(aj.flash_attention(Q, KEYS, V, bias=bias, mask=mask), expected)
    np.testing.assert_allclose(plain_attention(Q, KEYS, V, bias=bias, mask=mask), expected, atol=2e-6)
