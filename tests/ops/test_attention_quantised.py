"""What inference takes besides plain tensors: additive masks, int8 queries and outputs, latent attention from pages."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.ops import fused_infer_attention_score, prompt_flash_attention
from tests.ops import attention_twin as twin

quick = functools.partial(jax.jit, compiler_options=aj.QUICK_TO_COMPILE | {"xla_backend_optimization_level": 0})
RNG = np.random.default_rng(11)
N, S, D = 2, 12, 16
HEADS = {"num_heads": N, "input_layout": "BNSD"}


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_a_float16_mask_of_the_prompt_call_is_added_times_minus_10000():
    q, k, v = (RNG.normal(size=(1, N, S, D)).astype(np.float16) for _ in range(3))
    mask = np.zeros((S, S), np.float16)
    mask[:, 3:6], mask[4] = 1, 1  # row 4 is lowered as a whole, so nothing changes for it
    mask[7, 8] = 0.0005  # lowered by 5, not hidden
    attributes = {**HEADS, "scale_value": 0.25, "next_tokens": 2**31 - 1}
    out = quick(functools.partial(prompt_flash_attention, **attributes))(q, k, v, atten_mask=mask)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    scores = 0.25 * np.einsum("bnid,bnjd->bnij", *wide[:2]) - 1e4 * mask.astype(np.float64)
    np.testing.assert_allclose(out, softmax(scores) @ wide[2], atol=8e-3)
    only_causal = prompt_flash_attention(q, k, v, atten_mask=np.zeros((S, S), np.float16), **HEADS)
    np.testing.assert_allclose(only_causal[0, :, 0], v[0, :, 0], atol=2e-3)  # next_tokens is 0: the mask counts as one
    with pytest.raises(aj.ParameterError, match="float16 queries") as refusal:
        prompt_flash_attention(*(x.astype(np.float32) for x in (q, k, v)), atten_mask=mask, **HEADS)
    assert refusal.value.code == 161002
    with pytest.raises(aj.ParameterError, match="bool, int8 or uint8") as refusal:
        fused_infer_attention_score(q, k, v, atten_mask=mask, **HEADS)
    assert refusal.value.code == 161002


def int8_call():
    q, k, v = (RNG.integers(-128, 128, (1, N, S, D)).astype(np.int8) for _ in range(3))
    scales = {name: jnp.array([x], jnp.float32) for name, x in
              {"dequant_scale1": 2e-4, "quant_scale1": 127.0, "dequant_scale2": 1e-4}.items()}  # fmt: skip
    return (q, k, v), scales


def test_int8_queries_keys_values():
    (q, k, v), scales = int8_call()
    done = quick(functools.partial(fused_infer_attention_score, scale_value=0.5, **HEADS))(q, k, v, **scales)
    # by the formula, in float64: one block, so the maximum is that of the row
    products = np.einsum("bnid,bnjd->bnij", q.astype(np.int64), k.astype(np.int64))
    scores = products * float(scales["dequant_scale1"][0]) * 0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    rounded = np.rint(weights * 127).clip(-128, 127)
    expected = rounded @ v.astype(np.float64) * float(scales["dequant_scale2"][0]) / weights.sum(axis=-1, keepdims=True)
    assert done.attention_out.dtype == np.float16
    np.testing.assert_allclose(done.attention_out, expected, rtol=2e-3, atol=2e-5)

    both = {**scales, "quant_scale2": jnp.array([50.0]), "quant_offset2": jnp.array([3.0])}
    narrow = quick(functools.partial(fused_infer_attention_score, scale_value=0.5, **HEADS))(q, k, v, **both)
    assert narrow.attention_out.dtype == np.int8
    wanted = np.rint(expected * 50 + 3).clip(-128, 127)
    assert np.abs(narrow.attention_out - wanted).max() <= 1  # float16 in between may turn a half


def test_an_int8_output_of_16_bit_inputs():
    q, k, v = (RNG.normal(size=(1, N, S, D)).astype(np.float16) for _ in range(3))
    plain, scale = prompt_flash_attention(q, k, v, **HEADS), jnp.full((N, D), 200.0)
    out = prompt_flash_attention(q, k, v, quant_scale2=scale, **HEADS)
    np.testing.assert_array_equal(out, np.rint(np.asarray(plain, np.float32) * 200).clip(-128, 127).astype(np.int8))


def test_scales_are_refused_where_they_are_missing_or_do_not_belong():
    (q, k, v), scales = int8_call()
    wide = q.astype(np.float16)
    for arrays, change, code, parameter in (
        ((q, k, v), {"quant_scale1": None}, 161001, "quant_scale1"),
        ((q, k.astype(np.float16), v), {}, 161002, "key.dtype"),
        ((wide, wide, wide), {}, 161002, "dequant_scale1"),
        ((q, k, v), {"quant_offset2": jnp.ones(1)}, 161002, "quant_offset2"),
        ((q, k, v), {"quant_scale2": jnp.ones(3)}, 161002, "quant_scale2.shape"),
    ):
        with pytest.raises(aj.ParameterError, match=parameter) as refusal:
            fused_infer_attention_score(*arrays, **{**scales, **change}, **HEADS)
        assert refusal.value.code == code
    eight = jnp.zeros((1, N, S, D), jnp.float8_e4m3fn)
    for arrays in ((eight, eight, eight), (wide, eight, eight)):
        with pytest.raises(aj.ParameterError, match="dtype") as refusal:
            fused_infer_attention_score(*arrays, **HEADS)
        assert refusal.value.code == 161002


LATENT, ROPE, BLOCK = 512, 64, 16


@pytest.mark.parametrize("packed", [False, True], ids=["BNSD", "TND"])
def test_latent_attention_from_pages(packed):
    heads, lengths = 4, [20, 16]
    table = np.array([[5, 2], [7, -1]])
    latent, rope = (np.full((8, BLOCK, width), np.nan, np.float32) for width in (LATENT, ROPE))
    for pool in (latent, rope):
        pool[[5, 2, 7]] = RNG.normal(size=(3, BLOCK, pool.shape[2]))
    q, q_rope = (RNG.normal(size=(2, heads, 1, width)).astype(np.float32) for width in (LATENT, ROPE))
    flat = [x[:, :, 0] if packed else x for x in (q, q_rope)]
    options = {"input_layout": "TND", "actual_seq_lengths": [1, 2]} if packed else {"input_layout": "BNSD"}
    options |= {"num_heads": heads, "num_key_value_heads": 1, "block_size": BLOCK, "scale_value": 576**-0.5}
    call = quick(functools.partial(fused_infer_attention_score, block_table=table, actual_seq_lengths_kv=lengths,
                                   softmax_lse_flag=True, **options))  # fmt: skip
    done = call(flat[0], latent, latent, query_rope=flat[1], key_rope=rope)
    for row, (length, pages) in enumerate(zip(lengths, ([5, 2], [7]), strict=True)):
        keys, turned = (pool[pages].reshape(1, 1, -1, pool.shape[2])[:, :, :length] for pool in (latent, rope))
        full = [np.concatenate(pair, axis=3, dtype=np.float64)
                for pair in ((q[row : row + 1], q_rope[row : row + 1]), (keys, turned))]  # fmt: skip
        expected = twin.attend_batch(*full, keys.astype(np.float64), np.ones((1, 1, 1, length), bool), scale=576**-0.5)
        np.testing.assert_allclose(
            np.asarray(done.attention_out[row]).reshape(heads, -1), expected[0][0, :, 0], atol=2e-6
        )
        np.testing.assert_allclose(np.ravel(done.softmax_lse[row]), expected[3][0, :, 0], atol=2e-6)


def test_latent_attention_refuses():
    def call(heads=4, kv_heads=1, rows=1, mode=0, pages=BLOCK):
        q, rope = (jnp.zeros((1, heads, rows, width)) for width in (LATENT, ROPE))
        pools = [jnp.zeros((2, kv_heads, pages, width)) for width in (LATENT, ROPE)]
        fused_infer_attention_score(
            q, pools[0], pools[0], query_rope=rope, key_rope=pools[1], block_table=np.array([[0]]), block_size=BLOCK,
            actual_seq_lengths_kv=[9], num_heads=heads, num_key_value_heads=kv_heads, input_layout="BNSD",
            sparse_mode=mode,
        )  # fmt: skip

    for change, parameter in (
        ({"heads": 12}, "num_heads"), ({"kv_heads": 2}, "num_heads"), ({"rows": 17}, "Sq"), ({"mode": 2}, "Sq"),
        ({"pages": 32}, "key.shape"),
    ):  # fmt: skip
        with pytest.raises(aj.ParameterError, match=parameter) as refusal:
            call(**change)
        assert refusal.value.code == 561002


@pytest.mark.parametrize("is_query_int8", [False, True])
def test_latent_attention_with_an_int8_cache(is_query_int8):
    heads, block, table, length = 2, 32, np.array([[2, 1]]), 40
    pool = RNG.integers(-128, 128, (3, block, LATENT)).astype(np.int8)
    rope = RNG.normal(size=(3, block, ROPE)).astype(jnp.bfloat16)
    q = RNG.integers(-128, 128, (1, heads, 1, LATENT)).astype(np.int8)
    q_rope = RNG.normal(size=(1, heads, 1, ROPE)).astype(jnp.bfloat16)
    row_scale, scale = RNG.uniform(0.005, 0.01, (1, heads, 1)).astype(np.float32), np.float32(0.01)
    wide = q * row_scale[..., None]
    given = {"dequant_scale_query": row_scale} if is_query_int8 else {}
    caches = {f"{name}_antiquant_scale": jnp.asarray([scale]) for name in ("key", "value")}
    call = quick(functools.partial(
        fused_infer_attention_score, num_heads=heads, num_key_value_heads=1, input_layout="BNSD", block_size=block,
        block_table=table, actual_seq_lengths_kv=[length], scale_value=576**-0.5,
    ))  # fmt: skip
    query = q if is_query_int8 else wide.astype(jnp.bfloat16)
    out = call(query, pool, pool, query_rope=q_rope, key_rope=rope, **caches, **given).attention_out
    keys = pool[table[0]].reshape(-1, LATENT)[:length].astype(np.float64) * float(scale)
    turned = rope[table[0]].reshape(-1, ROPE)[:length].astype(np.float64)
    scores = wide[0, :, 0] @ keys.T + q_rope[0, :, 0].astype(np.float64) @ turned.T
    expected = softmax(scores * 576**-0.5) @ keys
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out[0, :, 0], np.float32), expected, rtol=2e-2, atol=1e-2)


def test_scales_of_latent_queries_are_refused_where_they_do_not_fit():
    q, rope = jnp.zeros((1, N, 1, LATENT), jnp.int8), jnp.zeros((1, N, 1, ROPE), jnp.bfloat16)
    scale, one = jnp.ones((1, N, 1)), jnp.ones(1)
    given = {"dequant_scale_query": scale, "query_rope": rope, "key_rope": rope[:, :1], "key_antiquant_scale": one,
             "value_antiquant_scale": one, "num_key_value_heads": 1}  # fmt: skip
    for change, code, parameter in (
        ({"dequant_scale_query": scale[0]}, 161002, "dequant_scale_query"),
        ({"query_rope": None}, 161001, "query_rope"),
        ({"key_antiquant_scale": None}, 161001, "key_antiquant_scale"),
        ({"query_rope": rope.astype(jnp.float32)}, 161002, "query_rope.dtype"),
    ):
        with pytest.raises(aj.ParameterError, match=parameter) as refusal:
            fused_infer_attention_score(q, q[:, :1], q[:, :1], **{**given, **change}, **HEADS)
        assert refusal.value.code == code
