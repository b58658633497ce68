"""FlashAttention forward: the float64 reference, worked cases, garbage, memory, tracing, refusals."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import ascend_jax as aj
from ascend_jax.ops.attention.host_tile import host_tiles
from ascend_jax.ops.attention.kernel import FLT_MAX, flash_forward
from ascend_jax.ops.attention.products import narrowed
from ascend_jax.ops.attention.reference import attention_reference, naive_attention
from ascend_jax.ops.attention.visibility import Visibility

FULL, LEFT_UP, RIGHT_DOWN = 0, 2, 3
QUICK = aj.QUICK_TO_COMPILE | {"xla_backend_optimization_level": 0}  # the runs themselves are short


@pytest.fixture(autouse=True)
def _no_implicit_rank_promotion():
    with jax.numpy_rank_promotion("raise"):
        yield


def operands(q_len, kv_len, *, heads=(1, 1), dims=(16, 16), batch=1, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((heads[0], q_len, dims[0]), (heads[1], kv_len, dims[0]), (heads[1], kv_len, dims[1]))
    return [jax.device_put(rng.normal(size=(batch, *shape)).astype(jnp.dtype(dtype))) for shape in shapes]


@functools.partial(jax.jit, static_argnames=("visibility", "scale", "q_tile", "kv_tile"), compiler_options=QUICK)
def compiled(q, k, v, **options):
    return flash_forward(q, k, v, **options)


def flash(q, k, v, mode=FULL, *, scale=1.0, tile=(None, None)):
    visibility = Visibility(q.shape[2], k.shape[2], mode)
    return [
        np.asarray(x) for x in compiled(q, k, v, visibility=visibility, scale=scale, q_tile=tile[0], kv_tile=tile[1])
    ]


naive = jax.jit(naive_attention, static_argnames=("mode", "scale"), compiler_options=QUICK)


def probe(q_len, kv_len, mode, **kwargs):
    """Zero scores and v[j] = j: row_sum counts the visible columns, out is their mean index."""
    q, k, v = np.zeros((1, 1, q_len, 4)), np.zeros((1, 1, kv_len, 4)), np.arange(kv_len).reshape(1, 1, -1, 1)
    out, row_max, row_sum = flash(*(jax.device_put(x.astype(np.float32)) for x in (q, k, v)), mode, **kwargs)
    return out.ravel().tolist(), row_max.ravel().tolist(), row_sum.ravel().tolist()


# Every value of a column meets every value of the others somewhere (pairs, not all combinations).
SHAPES = [
    # q_len, kv_len, mode, dtype, (heads, key heads), (D, Dv), tile
    (1, 1, LEFT_UP, "float16", (1, 1), (16, 16), (None, None)),
    (1, 1537, RIGHT_DOWN, "bfloat16", (4, 2), (64, 32), (None, None)),
    (37, 129, LEFT_UP, "float32", (2, 2), (16, 8), (16, 32)),
    (37, 513, FULL, "bfloat16", (2, 1), (128, 24), (16, 32)),
    (127, 127, RIGHT_DOWN, "float32", (3, 1), (40, 16), (64, 48)),
    (127, 513, RIGHT_DOWN, "float16", (2, 1), (64, 64), (16, 32)),
    (129, 37, RIGHT_DOWN, "bfloat16", (2, 2), (16, 40), (16, 32)),
    (129, 127, LEFT_UP, "float16", (4, 2), (40, 16), (512, 512)),
    (513, 127, RIGHT_DOWN, "float32", (2, 1), (64, 16), (128, 128)),
    (513, 513, LEFT_UP, "bfloat16", (1, 1), (64, 64), (None, None)),
    (1536, 1537, FULL, "float32", (1, 1), (64, 64), (None, None)),
    (1537, 1536, LEFT_UP, "float32", (1, 1), (16, 16), (512, 256)),
]


@pytest.mark.parametrize(("q_len", "kv_len", "mode", "dtype", "heads", "dims", "tile"), SHAPES)
def test_error_against_float64(q_len, kv_len, mode, dtype, heads, dims, tile):
    scale = dims[0] ** -0.5
    q, k, v = operands(q_len, kv_len, heads=heads, dims=dims, batch=2, dtype=dtype, seed=q_len + kv_len)
    expected, expected_max, expected_sum = attention_reference(q, k, v, mode=mode, scale=scale)
    out, row_max, row_sum = flash(q, k, v, mode, scale=scale, tile=tile)
    assert (out.dtype, row_max.dtype, row_sum.dtype) == (q.dtype, np.float32, np.float32)

    def error(x):
        return np.abs(np.asarray(x, np.float64) - expected).max()

    if dtype == "float32":
        assert error(out) <= 2e-6 * np.abs(expected).max()
    else:
        assert error(out) <= 2 * error(naive(q, k, v, mode=mode, scale=scale))
    assert_allclose(row_max, expected_max, atol=5e-6)
    assert_allclose(row_sum, expected_sum, rtol=5e-6)


def test_any_tile_gives_the_same_result():
    q, k, v = operands(50, 70)
    results = [flash(q, k, v, RIGHT_DOWN, tile=tile) for tile in [(1, 7), (13, 1), (16, 64), (128, 3)]]
    for other in results[1:]:
        chex.assert_trees_all_close(other, results[0], atol=2e-6, rtol=2e-6)


class TestWorkedCases:
    """Values that follow from the definition by hand."""

    @pytest.mark.parametrize("tile", [(None, None), (3, 1)])
    def test_causal_anchors(self, tile):
        assert probe(4, 6, LEFT_UP, tile=tile) == ([0, 0.5, 1, 1.5], [0] * 4, [1, 2, 3, 4])
        assert probe(4, 6, RIGHT_DOWN, tile=tile) == ([1, 1.5, 2, 2.5], [0] * 4, [3, 4, 5, 6])
        assert probe(6, 4, LEFT_UP, tile=tile)[2] == [1, 2, 3, 4, 4, 4]

    @pytest.mark.parametrize("tile", [(None, None), (3, 1)])
    def test_rows_that_see_nothing(self, tile):
        out, row_max, row_sum = probe(6, 4, RIGHT_DOWN, tile=tile)
        assert out == [0, 0, 0, 0.5, 1, 1.5]
        assert row_max == [-FLT_MAX, -FLT_MAX, 0, 0, 0, 0]
        assert row_sum == [FLT_MAX, FLT_MAX, 1, 2, 3, 4]

    def test_full(self):
        assert probe(4, 4, FULL) == ([1.5] * 4, [0] * 4, [4] * 4)

    def test_query_heads_share_key_heads_by_blocks(self):
        q, k, _ = operands(2, 3, heads=(4, 2), dims=(8, 4))
        v = jnp.broadcast_to(jnp.array([5.0, 9.0]).reshape(1, 2, 1, 1), (1, 2, 3, 4))
        out, _, _ = flash(q, k, v)
        assert out.shape == (1, 4, 2, 4)
        assert_allclose(out[0, :, 0, 0], [5, 5, 9, 9], rtol=1e-6)

    def test_large_scores(self):
        """Scores of +-3e4 stay finite, and -5e4 next to hidden columns is still a visible score."""
        q = jnp.full((1, 1, 2, 2), 150, jnp.float16)
        k = jnp.array([[100, 100], [-100, -100], [100, 100]], jnp.float16)[None, None]
        v = jnp.array([1, 2, 4], jnp.float16).reshape(1, 1, 3, 1)
        out, row_max, row_sum = flash(q, k, v, RIGHT_DOWN)
        assert (out.ravel().tolist(), row_max.ravel().tolist()) == ([1, 2.5], [3e4, 3e4])
        assert row_sum.ravel().tolist() == [1, 2]
        k = jnp.array([[-200, -400 / 3], [900, 900]], jnp.float32)[None, None]
        out, row_max, row_sum = flash(q.astype(jnp.float32), k, v[:, :, :2].astype(jnp.float32), LEFT_UP)
        assert (out.ravel()[0], row_max.ravel()[0], row_sum.ravel()[0]) == (1, -5e4, 1)


class TestNonFinite:
    """What a row does not see cannot reach it; what it sees must."""

    @pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("tile", [(None, None), (8, 8)])
    def test_hidden_garbage_changes_no_bit(self, garbage, tile):
        q, k, v = operands(40, 60)
        clean = flash(q, k, v, LEFT_UP, tile=tile)
        for first_bad in (40, 23):  # hidden from all rows; hidden from the rows above it
            dirty = flash(
                q,
                k.at[:, :, first_bad:].set(garbage),
                v.at[:, :, first_bad:].set(garbage),
                LEFT_UP,
                tile=tile,
            )
            for got, want in zip(dirty, clean, strict=True):
                assert_array_equal(got[:, :, :first_bad], want[:, :, :first_bad])

    def test_hidden_rows_ignore_all_garbage(self):
        q, k, v = (jnp.full_like(x, jnp.nan) for x in operands(5, 2))
        out, row_max, row_sum = flash(q, k, v, RIGHT_DOWN)
        assert_array_equal(out[0, 0, :3], 0)
        assert_array_equal(row_max[0, 0, :3], -FLT_MAX)
        assert_array_equal(row_sum[0, 0, :3], FLT_MAX)
        assert np.isnan(out[0, 0, 3:]).all()

    @pytest.mark.parametrize("tile", [(8, 8), (None, None)])
    def test_visible_garbage_is_not_swallowed(self, tile):
        q, k, v = operands(20, 20, dims=(8, 4))
        v = v.at[0, 0, 6, 1].set(jnp.inf).at[0, 0, 9, 2].set(jnp.nan).at[0, 0, 11, 1].set(-jnp.inf)
        out = flash(q, k, v, LEFT_UP, tile=tile)[0][0, 0]
        assert np.isfinite(out[:, [0, 3]]).all()
        assert np.isfinite(out[:6, 1]).all()
        assert_array_equal(out[6:11, 1], np.inf)
        assert np.isnan(out[11:, 1]).all()
        assert np.isfinite(out[:9, 2]).all()
        assert np.isnan(out[9:, 2]).all()

    def test_query_garbage_stays_in_its_row(self):
        q, k, v = operands(20, 20)
        out = flash(q.at[0, 0, 7, 3].set(jnp.nan), k, v, LEFT_UP)[0][0, 0]
        assert np.isnan(out[7]).all()
        assert_array_equal(np.delete(out, 7, axis=0), np.delete(flash(q, k, v, LEFT_UP)[0][0, 0], 7, axis=0))


def test_narrowing_rounds_as_the_conversion_does():
    edges = [0.0, -0.0, 1e-45, 1.1754944e-38, 1 + 2**-8, 1 + 3 * 2**-8, 3.3895314e38, 3.4028235e38, np.inf, -np.inf]
    bits = np.random.default_rng(0).integers(0, 2**32, 4096, np.uint32)  # NaN of any payload among them
    values = np.concatenate([np.float32(edges), bits.view(np.float32), np.uint32([0xFFFFFFFF]).view(np.float32)])
    got = np.asarray(narrowed(jnp.asarray(values), jnp.bfloat16), np.float32)
    upper = (values.view(np.uint32).astype(np.uint64) + 0x7FFF + (values.view(np.uint32) >> 16 & 1)) >> 16 << 16
    wanted = np.where(np.isnan(values), np.nan, upper.astype(np.uint32).view(np.float32))
    np.testing.assert_array_equal(got, wanted)
    assert np.isnan(wanted).any() and narrowed(jnp.float32(1.5), jnp.float16).dtype == jnp.float16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_a_short_call_can_be_differentiated(dtype):
    """Without loops it is plain arithmetic; also where it rounds by integers, and for a query row of zeros."""
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in operands(12, 300, dims=(8, 8), dtype=dtype))
    q = q.at[0, 3].set(0)

    def along_ones(attention):
        loss = lambda q: jnp.square(attention(q, k, v).astype(jnp.float32)).sum()  # noqa: E731
        return np.asarray(jax.jvp(jax.grad(loss), (q,), (jnp.ones_like(q),))[1], np.float32)

    wanted = along_ones(aj.ops.plain_attention)
    tolerance = (1e-6 if dtype == "float32" else 2e-2) * np.abs(wanted).max()
    assert_allclose(along_ones(aj.flash_attention), wanted, atol=tolerance)


def test_float64_stays_float64():
    with jax.enable_x64(True):
        q, k, v = operands(37, 50, heads=(2, 1), dims=(16, 8), dtype="float64")
        got = flash(q, k, v, RIGHT_DOWN, scale=0.25, tile=(16, 16))
        assert {x.dtype for x in got} == {np.dtype(np.float64)}
        for x, y in zip(got, attention_reference(q, k, v, mode=RIGHT_DOWN, scale=0.25), strict=True):
            assert_allclose(x, y, rtol=1e-13, atol=1e-14)
        halves = [x.astype(jnp.float16) for x in (q, k, v)]
        in_x64 = flash(*halves, LEFT_UP, scale=0.25)
    halves = [jnp.asarray(np.asarray(x)) for x in halves]
    assert [x.dtype for x in in_x64] == [np.float16, np.float32, np.float32]
    chex.assert_trees_all_equal(in_x64, flash(*halves, LEFT_UP, scale=0.25))


def test_a_mask_over_several_tiles_in_x64_mode():
    with jax.enable_x64(True):
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in operands(37, 50, heads=(2, 1), dims=(16, 8), dtype="float64"))
        mask = jnp.arange(37)[:, None] % 3 != jnp.arange(50)[None] % 5
        got = aj.flash_attention(q, k, v, mask=mask, tile=16)
        assert_allclose(got, aj.ops.plain_attention(q, k, v, mask=mask), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(("q_len", "kv_len", "batch"), [(3, 0, 1), (0, 3, 1), (3, 3, 0)])
def test_empty_operands(q_len, kv_len, batch):
    q, k, v = operands(q_len, kv_len, heads=(2, 1), batch=batch)
    out, row_max, row_sum = flash(q, k, v)
    assert (out.shape, row_max.shape) == ((batch, 2, q_len, 16), (batch, 2, q_len))
    if kv_len == 0:
        assert_array_equal(out, 0)
        assert_array_equal(row_sum, FLT_MAX)


def test_values_and_scale_do_not_retrace():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(q, k, v, scale):
        return flash_forward(q, k, v, Visibility(8, 8, LEFT_UP), scale=scale)

    for seed in range(3):
        q, k, v = operands(8, 8, seed=seed)
        chex.assert_trees_all_close(
            run(q, k, v, 0.1 + seed), tuple(flash(q, k, v, LEFT_UP, scale=0.1 + seed)), atol=1e-6
        )


def test_vmap_equals_loop():
    lanes = [operands(20, 30, heads=(2, 1), seed=seed) for seed in range(3)]
    lanes[1][2] = lanes[1][2].at[0, 0, 25].set(jnp.nan)
    run = jax.jit(
        lambda q, k, v: flash_forward(q, k, v, Visibility(20, 30, RIGHT_DOWN), scale=0.5, q_tile=8, kv_tile=8)
    )
    stacked = jax.jit(jax.vmap(run))(*(jnp.stack(x) for x in zip(*lanes, strict=True)))
    for lane, result in enumerate(zip(*stacked, strict=True)):
        chex.assert_trees_all_close(result, run(*lanes[lane]), atol=1e-6)


def test_runs_inside_switch_inside_while():
    q, k, v = operands(12, 12)

    @jax.jit
    def twice(out):
        def body(carry):
            step, out = carry
            attend = lambda x: flash_forward(x, k, v, Visibility(12, 12, LEFT_UP), scale=1.0)[0]  # noqa: E731
            return step + 1, jax.lax.switch(step % 2, [attend, lambda x: x], out)

        return jax.lax.while_loop(lambda carry: carry[0] < 4, body, (0, out))[1]

    once = flash(q, k, v, LEFT_UP)[0]
    assert_allclose(twice(q), flash(jnp.asarray(once), k, v, LEFT_UP)[0], atol=1e-6)


@pytest.mark.parametrize("mode", [FULL, LEFT_UP])
def test_memory_grows_linearly(mode):
    def temporary_bytes(length):
        shape = jax.ShapeDtypeStruct((1, 1, length, 64), jnp.float16)
        visibility = Visibility(length, length, mode)
        run = jax.jit(lambda q, k, v: flash_forward(q, k, v, visibility, scale=1.0))
        return run.lower(shape, shape, shape).compile().memory_analysis().temp_size_in_bytes

    sizes = [temporary_bytes(length) for length in (4096, 8192)]  # of one host tile
    assert all(1 < large / small < 2.1 for small, large in itertools.pairwise(sizes)), sizes
    assert sizes[-1] < 8192 * 8192


def test_host_tiles_cover_with_little_padding():
    assert host_tiles(1, 0) == (16, 16)
    for length in range(1, 3000, 7):
        for cores, skips in itertools.product((1, 2), (True, False)):
            tile, _ = host_tiles(length, 1, backend="cpu", cores=cores, skips=skips)
            tiles = -(-length // tile)
            assert tile <= 1024
            assert tiles * tile - length < 16 * tiles


def test_host_tiles_are_smaller_where_they_can_be_skipped_and_for_a_single_core():
    sizes = [
        np.prod(host_tiles(1024, 1024, 64, backend="cpu", cores=cores, skips=skips))
        for cores, skips in itertools.product((2, 1), (False, True))
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 2


class TestRefusals:
    """Static mistakes raise early and name what was given."""

    @pytest.mark.parametrize(
        ("index", "shape", "message"),
        [
            (0, (1, 2, 4), "must be"),
            (0, (2, 2, 4, 8), "share batch"),
            (1, (1, 2, 4, 7), "share batch"),
            (2, (1, 2, 5, 8), "share batch"),
            (0, (1, 3, 4, 8), "multiple"),
            (0, (1, 2, 5, 8), "q_len=4"),
        ],
    )
    def test_shapes(self, index, shape, message):
        arrays = operands(4, 4, heads=(2, 2), dims=(8, 8))
        arrays[index] = jnp.zeros(shape)
        with pytest.raises(ValueError, match=message):
            flash_forward(*arrays, Visibility(4, 4), scale=1.0)

    def test_dtypes(self):
        q, k, v = operands(4, 4)
        with pytest.raises(TypeError, match="float16"):
            flash_forward(q, k.astype(jnp.float16), v, Visibility(4, 4), scale=1.0)
        with pytest.raises(TypeError, match="int8"):
            flash_forward(*(x.astype(jnp.int8) for x in (q, k, v)), Visibility(4, 4), scale=1.0)

    def test_tiles(self):
        with pytest.raises(ValueError, match="got 0"):
            flash_forward(*operands(4, 4), Visibility(4, 4), scale=1.0, kv_tile=0)
