"""What the operators refuse: the code, the parameter's name, the value. Before anything runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.ops import (
    PackedDropout,
    attention_update,
    explain,
    flash_attention,
    flash_attention_score,
    fused_infer_attention_score,
    incre_flash_attention,
    npu_attention_update,
    philox_dropout,
    prompt_flash_attention,
    ring_attention_update,
)

Z = np.zeros
COMPRESSED = Z((2048, 2048), np.uint8)
Q, KV = Z((1, 4, 6, 8), np.float32), Z((1, 2, 6, 8), np.float32)
PACKED, PACKED_KV = Z((10, 4, 8), np.float32), Z((10, 2, 8), np.float32)
ENDS = {"input_layout": "TND", "actual_seq_qlen": [4, 10], "actual_seq_kvlen": [4, 10]}
FULL = Z((6, 6), np.uint8)

SCORE = [  # changes to a good call, code, words of the message
    ({"query": None}, 161001, "query = None"),
    ({"padding_mask": FULL}, 161002, "padding_mask"),
    ({"input_layout": "BDNS"}, 161002, "input_layout = BDNS"),
    ({"head_num": 0}, 161002, "head_num = 0"),
    ({"head_num": 3}, 161002, "query.shape"),
    ({"key": KV[0]}, 161002, "key.shape"),
    ({"key": KV.astype(np.float16)}, 161002, "key.dtype = float16"),
    ({"key": Z((1, 3, 6, 8), np.float32), "value": Z((1, 3, 6, 8), np.float32)}, 161002, "multiple of the 3 heads"),
    ({"key": Z((1, 2, 6, 4), np.float32)}, 161002, "head dimension of query"),
    ({"value": Z((1, 2, 6, 9), np.float32)}, 161002, "8, 9: 1 <= Dv <= D <= 768"),
    ({"query": Z((1, 4, 6, 769), "f"), "key": Z((1, 2, 6, 769), "f")}, 161002, "769"),
    ({"query": Z((1, 6, 30), "f"), "input_layout": "BSH"}, 161002, "multiple of its 4 heads"),
    ({"pse_type": 4}, 161002, "pse_type = 4"),
    ({"pse_type": 2}, 161002, "pse = None"),
    ({"pse": FULL.astype(np.float32)}, 161002, "rank 4"),
    ({"pse": Z((2, 4, 6, 6), np.float32)}, 161002, "pse.shape"),
    ({"pse": Z((1, 4, 6, 6), np.float16)}, 161002, "pse.dtype = float16"),
    ({"keep_prob": 0.0}, 161002, "keep_prob = 0.0"),
    ({"keep_prob": 1.5}, 161002, "keep_prob = 1.5"),
    ({"keep_prob": 0.5}, 161002, "drop_mask = None"),
    ({"keep_prob": 0.5, "drop_mask": Z(17, np.uint8)}, 161002, "at least 18 bytes"),
    ({"atten_mask": FULL, "sparse_mode": 9}, 161002, "sparse_mode = 9"),
    ({"atten_mask": COMPRESSED, "sparse_mode": 7}, 161002, "sparse_mode = 7"),
    ({"atten_mask": FULL, "sparse_mode": 3}, 161002, "[2048, 2048]"),
    ({"atten_mask": COMPRESSED, "sparse_mode": 6, "prefix": [2]}, 161002, "[3072, 2048]"),
    ({"atten_mask": FULL[0]}, 161002, "rank 2 or 4"),
    ({"atten_mask": Z((1, 1, 1, 6), np.uint8)}, 161002, "atten_mask.shape = [1, 1, 1, 6]"),
    ({"atten_mask": FULL.astype(np.float32)}, 161002, "atten_mask.dtype"),
    ({"atten_mask": FULL, "pre_tokens": -1, "next_tokens": -1}, 561002, "-1, -1"),
    ({"atten_mask": FULL, "pre_tokens": 1, "next_tokens": -2}, 561002, "next_tokens = -2"),
    ({"atten_mask": FULL, "pre_tokens": 1.5}, 161002, "pre_tokens = 1.5"),
    ({"atten_mask": COMPRESSED, "sparse_mode": 4, "next_tokens": True}, 161002, "next_tokens = True"),
    ({"atten_mask": COMPRESSED, "sparse_mode": 4, "pre_tokens": -5, "next_tokens": 2}, 561002, "encloses nothing"),
    ({"atten_mask": FULL[None, None], "sparse_mode": 5}, 161002, "prefix = None"),
    ({"atten_mask": Z((3072, 2048), np.uint8), "sparse_mode": 6, "prefix": [7]}, 561002, "[0, 6]"),
    ({"atten_mask": Z((3072, 2048), np.uint8), "sparse_mode": 6, "prefix": [True]}, 161002, "prefix = [True]"),
    ({"atten_mask": Z((3072, 2048), np.uint8), "sparse_mode": 6, "prefix": [2.5]}, 561002, "prefix = [2.5]"),
    ({"q_start_idx": 2.5}, 561002, "q_start_idx = [2.5]"),
    ({"kv_start_idx": [1, 2]}, 161002, "kv_start_idx = [1, 2]"),
    ({"inner_precise": 3}, 161002, "inner_precise = 3"),
    ({"sink": Z(3, np.float32)}, 161002, "sink"),
    ({"query_rope": Q}, 161001, "both or none"),
    ({"softmax_layout": "TND"}, 161002, "softmax_layout"),
]


def refuse(call, code, words):
    with pytest.raises(aj.ParameterError) as refusal:
        call()
    assert refusal.value.code == code and words in str(refusal.value), str(refusal.value)


@pytest.mark.parametrize(("changes", "code", "words"), SCORE, ids=lambda x: str(x)[:40] if isinstance(x, str) else "")
def test_flash_attention_score(changes, code, words):
    good = {"query": Q, "key": KV, "value": KV, "head_num": 4, "input_layout": "BNSD"}
    refuse(lambda: flash_attention_score(**{**good, **changes}), code, words)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"actual_seq_qlen": None}, 161002, "TND needs both"),
        ({"actual_seq_qlen": [4, 3, 10]}, 561002, "may not fall"),
        ({"actual_seq_qlen": [4, 11]}, 561002, "T = 10"),
        ({"actual_seq_qlen": [4.5, 10]}, 561002, "must be integers"),
        ({"actual_seq_qlen": [10]}, 161002, "actual_seq_kvlen"),
        ({"actual_seq_qlen": []}, 161002, "actual_seq_qlen = []"),
        (
            {"atten_mask": Z((3072, 2048), np.uint8), "sparse_mode": 6, "prefix": np.array([2.5, 6])},
            561002,
            "prefix = [2.5, 6.0]",
        ),
        ({"actual_seq_kvlen": [True, 10]}, 161002, "actual_seq_kvlen = [True, 10]"),
        ({"atten_mask": FULL, "sparse_mode": 5, "prefix": [1, 1]}, 161002, "sparse_mode = 5"),
        ({"atten_mask": FULL[:3], "sparse_mode": 1}, 161002, "atten_mask.shape"),
        ({"atten_mask": COMPRESSED, "sparse_mode": 3, "actual_seq_kvlen": [3, 10]}, 561002, "Sq = 4, Skv = 3"),
        ({"atten_mask": COMPRESSED, "sparse_mode": 7, "pre_tokens": 5, "next_tokens": 0}, 561002, "pre_tokens = 5"),
        ({"atten_mask": COMPRESSED, "sparse_mode": 7, "pre_tokens": 9, "next_tokens": 1}, 561002, "next_tokens = 1"),
        ({"atten_mask": COMPRESSED, "sparse_mode": 8, "pre_tokens": 9, "next_tokens": -1}, 561002, "next_tokens = -1"),
        ({"pse": Z(208, np.float32), "actual_seq_qlen": [0, 10]}, 561002, "length 0"),
    ],
)
def test_packed(changes, code, words):
    good = {"query": PACKED, "key": PACKED_KV, "value": PACKED_KV, "head_num": 4, **ENDS}
    refuse(lambda: flash_attention_score(**{**good, **changes}), code, words)


POOL = Z((4, 16, 16), np.float32)
PAGES = {"block_size": 16, "block_table": np.array([[0, 1]]), "actual_seq_lengths_kv": [20], "key": POOL, "value": POOL}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"sparse_mode": 5}, 161002, "sparse_mode = 5"),
        ({"input_layout": "SBH"}, 161002, "input_layout = SBH"),
        ({"inner_precise": 4}, 161002, "inner_precise"),
        ({"num_key_value_heads": 3}, 161002, "num_heads"),
        ({"atten_mask": Z((1, 1, 1, 6), np.uint8)}, 161002, "atten_mask.shape = [1, 1, 1, 6]"),
        ({"atten_mask": FULL, "sparse_mode": 2}, 161002, "[2048, 2048]"),
        ({"actual_seq_lengths_kv": [7]}, 561002, "must not exceed 6"),
        ({"actual_seq_lengths_kv": [1, 1]}, 561002, "1 or 1 entries"),
        ({"actual_seq_lengths_kv": [True]}, 161002, "actual_seq_lengths_kv = [True]"),
        ({"key": Z((1, 6, 16), np.int8)}, 161001, "key_antiquant_scale"),
        ({"key_shared_prefix": Z((1, 2, 16), np.float32)}, 161002, "value_shared_prefix"),
        ({**PAGES, "actual_seq_lengths_kv": None}, 161002, "required with a block_table"),
        ({**PAGES, "block_size": 1}, 561002, "block_size = 1"),
        ({**PAGES, "block_size": 1024}, 561002, "block_size = 1024"),
        ({**PAGES, "block_size": 32}, 561002, "key.shape"),
        ({**PAGES, "block_table": np.array([[0, -1]])}, 561002, "block_table[0, 1] = -1"),
        ({**PAGES, "block_table": np.array([[0, 4]])}, 561002, "block_table[0, 1] = 4"),
        ({**PAGES, "block_table": np.array([[0]])}, 561002, "must not exceed 16"),
        ({**PAGES, "block_table": Z((1, 0), int), "actual_seq_lengths_kv": [0]}, 161002, "at least one page"),
        ({**PAGES, "key": POOL[:0], "value": POOL[:0], "actual_seq_lengths_kv": [0]}, 561002, "at least one block"),
    ],
)
def test_fused_infer_attention_score(changes, code, words):
    x = Z((1, 6, 16), np.float32)
    good = {"query": x, "key": x, "value": x, "num_heads": 2}
    good = {name: jax.device_put(y) if isinstance(y, np.ndarray) else y for name, y in {**good, **changes}.items()}
    good |= {"block_table": changes["block_table"]} if "block_table" in changes else {}
    refuse(lambda: fused_infer_attention_score(**good), code, words)


def test_packed_inference():
    def call(dim, ends):
        x = Z((10, 1, dim), np.float32)
        fused_infer_attention_score(x, x, x, input_layout="TND", actual_seq_lengths=ends, actual_seq_lengths_kv=ends)

    refuse(lambda: call(256, [10]), 561002, "TND takes 64/64, 128/128")
    refuse(lambda: call(64, [4, 6]), 561002, "the last end 6 must equal T = 10")
    refuse(lambda: call(64, [4, 3, 10]), 561002, "may not fall")
    call(64, [10])
    call(64, [4, 10])


def test_the_older_branches():
    x = Z((1, 2, 8), np.float32)
    refuse(lambda: incre_flash_attention(x, x, x), 161002, "one query row")
    refuse(lambda: incre_flash_attention(x, x, x, sparse_mode=3), 161002, "no such parameter")
    refuse(lambda: prompt_flash_attention(x, x, x, softmax_lse_flag=True), 161002, "no such parameter")


def test_merging():
    out, stat = jnp.zeros((1, 1, 8)), jnp.zeros((1, 1, 1, 8))
    refuse(lambda: ring_attention_update(out, stat, stat, out, stat[..., :1], stat), 161002, "cur_softmax_max")
    refuse(lambda: ring_attention_update(*(out, stat, stat) * 2, input_layout="BSH"), 161002, "input_layout")
    refuse(lambda: attention_update([jnp.zeros(1)] * 17, [out[0]] * 17), 161002, "17, 17")
    refuse(lambda: attention_update([jnp.zeros(1)], [out[0, :, :4]]), 161002, "multiple of 8")
    refuse(lambda: npu_attention_update([jnp.zeros(1)], [out[0]], 2), 161002, "update_type = 2")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"causal": "bottom"}, ValueError, "lower_right"),
        ({"window": (1, -2)}, ValueError, "at least 0"),
        ({"window": (1, 2, 3)}, ValueError, "pair"),
        ({"mask": Z((5, 6), bool)}, ValueError, "mask has shape [1, 1, 5, 6]"),
        ({"mask": [[True] * 6] * 6}, TypeError, "mask is a list"),
        ({"window": True}, TypeError, "window = True"),
        ({"window": np.array([1.5, 2])}, TypeError, "must be an integer"),
        ({"tile": (4, 4, 4)}, ValueError, "pair"),
        ({"tile": 4.0}, TypeError, "tile = 4.0"),
        ({"softcap": np.inf}, ValueError, "finite"),
        ({"q": Z((1, 6, 4, 0), "f"), "k": Z((1, 6, 2, 0), "f")}, ValueError, "head dimension 0"),
        ({"mask": Z((1, 1, 6, 6), np.uint8)}, TypeError, "must be bool"),
        ({"bias": Z((1, 3, 6, 6), np.float32)}, ValueError, "bias has shape"),
        ({"q_lengths": [1, 2]}, ValueError, "q_lengths"),
        ({"kv_lengths": [1.5]}, ValueError, "integers"),
        ({"segment_ids": Z((1, 5), int)}, ValueError, "[1, 6]"),
        ({"sink": Z(3, np.float32)}, ValueError, "[4]"),
        ({"softcap": 0.0}, ValueError, "softcap"),
        ({"tile": 0}, ValueError, "tile"),
        ({"dropout": 0.1}, TypeError, "PhiloxDropout"),
        ({"dropout": PackedDropout(Z(3, np.uint8), 0.5)}, ValueError, "at least 18 bytes"),
        ({"dropout": PackedDropout(Z(18, np.uint8), 0.0)}, ValueError, "keep_prob"),
        ({"k": Z((1, 6, 3, 8), np.float32), "v": Z((1, 6, 3, 8), np.float32)}, ValueError, "multiple"),
        ({"k": Z((1, 6, 2, 8), np.float16)}, TypeError, "float16"),
        ({"k": Z((1, 5, 2, 8), np.float32)}, ValueError, "q (1, 6, 4, 8), k (1, 5, 2, 8), v (1, 6, 2, 8)"),
        ({"q": Z((6, 8), np.float32)}, ValueError, "q has shape"),
        ({"q": [1.0]}, TypeError, "q is list"),
        ({"scale": Z(8, np.float32)}, ValueError, "scale is float32[8]"),
        ({"scale": np.nan}, ValueError, "scale = nan"),
        ({"scale": "1"}, TypeError, "scale = '1'"),
        ({"scale": True}, TypeError, "scale = True"),
        ({"scale": 1j}, TypeError, "scale = 1j"),
        ({"kv_lengths": [7]}, ValueError, "kv_lengths = [7]: must be 0 to 6"),
        ({"q_lengths": [-1]}, ValueError, "q_lengths = [-1]"),
        ({"dropout": PackedDropout(Z(18, np.uint8), "0.5")}, TypeError, "keep_prob = '0.5'"),
    ],
)
def test_the_jax_surface(changes, error, words):
    good = {"q": Z((1, 6, 4, 8), np.float32), "k": Z((1, 6, 2, 8), np.float32), "v": Z((1, 6, 2, 8), np.float32)}
    good = {**good, **changes}
    with pytest.raises(error) as refusal:
        flash_attention(good.pop("q"), good.pop("k"), good.pop("v"), **good)
    assert words in str(refusal.value)


@pytest.mark.parametrize("given", [{"seed": 1.5}, {"offset": 2.0}, {"seed": np.array([1, 2])}, {"seed": jnp.zeros(())}])
def test_dropout_is_numbered_by_whole_numbers(given):
    with pytest.raises(TypeError, match=f"{next(iter(given))} .* whole number"):
        philox_dropout(0.9, **given)


def test_static_options_may_not_be_traced():
    q = Z((1, 6, 4, 8), np.float32)
    for name in ("softcap", "window", "tile"):
        with pytest.raises(TypeError, match=f"{name} is traced"):
            jax.jit(lambda x, name=name: flash_attention(q, q, q, **{name: x}))(4)


def test_explain_takes_what_the_call_takes():
    q = Z((1, 6, 2, 8), np.float32)
    told = explain(q, q, q, mask=np.tri(6, dtype=bool), window=np.int64(2), tile=np.int64(3))
    assert "from i - 2 to i + 2" in told.mask and told.tile == (3, 3) and not told.warnings
    assert "from the first column to i + 1" in explain(q, q, q, window=(None, 1)).mask


def test_an_unknown_keyword_names_the_public_call():
    x = Z((1, 6, 16), np.float32)
    with pytest.raises(TypeError, match=r"fused_infer_attention_score\(\) got .* 'key_scale'"):
        fused_infer_attention_score(x, x, x, key_scale=1)


def test_packed_keys_with_heads_first():
    x, ends = Z((4, 10, 64), np.float32), {"actual_seq_lengths": [10], "actual_seq_lengths_kv": [10]}
    options = {"input_layout": "NTD_TND", "num_heads": 4, "num_key_value_heads": 2, **ends}
    refuse(lambda: fused_infer_attention_score(x, x, x, **options), 161002, "2 heads in axis 0")
    refuse(lambda: fused_infer_attention_score(x, x[:2], x, **options), 161002, "value.shape")


DECODE = {"block_size": 16, "block_table": np.array([[0]]), "actual_seq_lengths_kv": [5]}
WIDE, NARROW = Z((1, 16, 32), np.float32), Z((1, 16, 16), np.float32)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"key": WIDE, "value": WIDE}, 161002, "8, 16, 16"),
        ({"key": Z((1, 2, 16, 16), np.float32), "value": WIDE}, 161002, "8, 16, 16"),
        ({"value": Z((1, 2, 16, 513), np.float32)}, 161002, "8, 8, 513"),
        ({"block_table": np.array([[1]]), "key": Z((2, 16, 16), np.float32)}, 561002, "block_table[0, 0] = 1"),
        ({"actual_seq_lengths_kv": [-1]}, 561002, "below 0"),
        ({"actual_seq_lengths_kv": [1.5]}, 561002, "must be integers"),
        ({"block_table": np.array([[0.5]])}, 161002, "block_table.dtype"),
    ],
)
def test_decoding_from_pages(changes, code, words):
    good = {"query": Z((1, 1, 32), np.float32), "key": NARROW, "value": NARROW, **DECODE, **changes}
    refuse(lambda: fused_infer_attention_score(num_heads=4, num_key_value_heads=2, **good), code, words)


def test_explain_warns_of_inverted_masks(capsys):
    q = Z((2, 64, 2, 8), np.float32)
    causal = np.tril(np.ones((64, 64), bool))[None, None]
    assert not explain(q, q, q, mask=causal).warnings
    assert "inverted" in explain(q, q, q, mask=~causal).warnings[0]
    keys = (np.arange(64) < 40)[None, None, None]
    assert not explain(q, q, q, mask=keys).warnings
    assert "inverted" in explain(q, q, q, mask=~keys).warnings[0]
    report = explain(q, q, q, causal=True, tile=16)
    assert report.tiles == (2 * 6, 2 * 4, 2 * 6) and report.live_pairs == 2 * 64 * 65 // 2
    assert report.flops == 2 * (8 + 8) * report.live_pairs * 2
    assert str(report) in capsys.readouterr().out
    assert "see nothing" in explain(q[:, :, :, :], q[:, :32], q[:, :32], causal="lower_right").warnings[0]
