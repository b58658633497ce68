"""Attention operators on a card: two phases give and refuse what the call on arrays does, in the predicted time."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.ops.attention_operators import ATTENTION_OPERATORS
from ascend_jax.runtime.kernels import Argument

quick_jit = functools.partial(jax.jit, compiler_options=aj.QUICK_TO_COMPILE | {"xla_backend_optimization_level": 0})
RNG = np.random.default_rng(7)
H, D, S = 2, 16, 16


class Job(NamedTuple):
    """One call: tensors, host values, and the outputs by name."""

    operator: str
    arrays: dict
    attributes: dict
    outputs: tuple


def normal(*shape, dtype=np.float32):
    return jnp.asarray(RNG.normal(size=shape), dtype)


def decoding():
    pool = np.full((8, 16, H * D), np.nan, np.float32)
    pool[[5, 2, 7]] = RNG.normal(size=(3, 16, H * D))
    arrays = {"query": normal(2, 1, H * D), "key": jnp.asarray(pool), "value": jnp.asarray(pool + 1),
              "block_table": jnp.asarray([[5, 2], [7, -1]], jnp.int32),
              "actual_seq_lengths_kv": jnp.asarray([20, 16], jnp.int32)}  # fmt: skip
    attributes = {"num_heads": H, "block_size": 16, "softmax_lse_flag": True}
    return Job("fused_infer_attention_score", arrays, attributes, ("attention_out", "softmax_lse"))


def int8_cache():
    arrays = {"query": normal(1, 1, H * D, dtype="float16")}
    arrays |= {name: jnp.asarray(RNG.integers(-9, 9, (1, S, H * D)), jnp.int8) for name in ("key", "value")}
    arrays |= {f"{name}_antiquant_scale": jnp.asarray([0.5], jnp.float16) for name in ("key", "value")}
    arrays |= {"key_antiquant_offset": jnp.asarray([3], jnp.float16)}
    return Job("incre_flash_attention", arrays, {"num_heads": H}, ("attention_out",))


def prompt():
    arrays = {"query": normal(1, H, S, D), "key": normal(1, 1, S, D), "value": normal(1, 1, S, D)}
    arrays["atten_mask"] = jnp.asarray(np.triu(np.ones((S, S), bool), 1))
    attributes = {"num_heads": H, "num_key_value_heads": 1, "input_layout": "BNSD", "scale_value": 0.25}
    return Job("prompt_flash_attention", arrays, attributes, ("attention_out",))


def gradient():
    options = {"input_layout": "TND", "actual_seq_qlen": [6, 16], "actual_seq_kvlen": [7, 16], "head_num": H}
    options |= {"scale_value": 0.25, "sparse_mode": 1, "keep_prob": 0.5}
    pairs = H * (6 * 7 + 10 * 9)
    arrays = {"sink": normal(H), "pse": normal(pairs), "atten_mask": jnp.asarray(np.triu(np.ones((10, 9), bool), 3)),
              "drop_mask": jnp.asarray(RNG.integers(0, 256, -(-pairs // 8)), jnp.uint8)}  # fmt: skip
    arrays |= {name: normal(S, H, D) for name in ("query", "key", "value")}
    forward = quick_jit(functools.partial(aj.ops.flash_attention_score, **options))(**arrays)
    arrays |= {"dy": normal(S, H, D), "softmax_max": forward.softmax_max, "softmax_sum": forward.softmax_sum}
    arrays |= {"attention_in": forward.attention_out}
    return Job("flash_attention_score_grad", arrays, options, ("dq", "dk", "dv", "dpse", "dsink"))


def ring_update():
    parts = {}
    for part in ("prev", "cur"):
        parts[f"{part}_attn_out"] = normal(S, 1, H * D, dtype="float16")
        for name, each in (("max", normal(1, H, S, 1)), ("sum", 1 + normal(1, H, S, 1) ** 2)):
            parts[f"{part}_softmax_{name}"] = jnp.broadcast_to(each, (1, H, S, 8))
    return Job("ring_attention_update", parts, {}, ("attn_out", "softmax_max", "softmax_sum"))


def update(count):
    arrays = {f"lse[{n}]": normal(S) for n in range(count)} | {f"local_out[{n}]": normal(S, D) for n in range(count)}
    return Job("attention_update", arrays, {}, ("out", "lse_out"))


@functools.cache
def jobs():
    return {
        "decoding": decoding(), "int8": int8_cache(), "prompt": prompt(), "gradient": gradient(),
        "ring update": ring_update(), "update": update(3),
    }  # fmt: skip


def arguments_of(job, arrays):
    """Lists where the call takes lists."""
    if job.operator != "attention_update":
        return dict(arrays)
    return {name: [each for key, each in arrays.items() if key.startswith(name)] for name in ("lse", "local_out")}


def on_arrays(job, arrays):
    given = arguments_of(job, arrays)
    given = {"outs" if name == "local_out" else name: each for name, each in given.items()}
    found = getattr(aj.ops, job.operator)(**given, **job.attributes)
    found = found._asdict() if hasattr(found, "_asdict") else found
    found = (found,) if isinstance(found, jax.Array) else found
    return found if isinstance(found, dict) else dict(zip(job.outputs, found, strict=True))


@functools.cache
def run(name):
    """What a card computes, what the call on arrays gives, the cost, and how long the launch took in ns."""
    job = jobs()[name]
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 18, max_streams=1, max_events=1, max_commands=2)
    expected = quick_jit(functools.partial(on_arrays, job))(job.arrays)
    given, made = {}, {}
    for key, array in {**job.arrays, **{f"out {key}": expected[key] for key in job.outputs}}.items():
        card, pointer = aj.malloc(card, array.nbytes)
        (made if key.startswith("out ") else given)[key.removeprefix("out ")] = aj.tensor(
            pointer, array.shape, array.dtype
        )
        if key in job.arrays:
            card = aj.upload(card, pointer, np.asarray(array))
    call = getattr(aj.ops, f"{job.operator}_get_workspace_size")
    card, size, executor = call(card, **arguments_of(job, given), **made, **job.attributes)
    card, workspace = aj.malloc(card, max(64, int(size)))
    card = aj.synchronize_device(aj.launch(card, executor, workspace, 0))
    log = aj.insight.timeline(card)  # before the downloads, which are commands too
    at = int(np.argmax(log.held_vector > 0))  # uploads hold no core
    results = {}
    for key, tensor in made.items():
        card, results[key] = aj.download(card, tensor.pointer, tensor.shape, tensor.dtype)
    aj.raise_if_error(card)
    return results, expected, executor.cost, int(log.end_ns[at] - log.start_ns[at])


@pytest.mark.parametrize("name", ["decoding", "int8", "prompt", "gradient", "ring update", "update"])
def test_a_card_computes_what_the_call_on_arrays_does(name):
    results, expected, cost, took_ns = run(name)
    for key in jobs()[name].outputs:
        got, want = (np.asarray(x[key], np.float32) for x in (results, expected))
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert took_ns == pytest.approx(float(cost.duration_ns(aj.chip("Ascend910B2"))), abs=2)


def test_bytes_are_those_read_and_written():
    # a tile pads; every key and value in use is read once at least
    assert float(run("decoding")[2].hbm_bytes) >= 2 * 36 * H * D * 4
    assert float(run("gradient")[2].hbm_bytes) >= 2 * 3 * S * H * D * 4  # q, k, v in, their gradients out
    merge = run("ring update")[2]
    assert float(merge.hbm_bytes) == 3 * (S * H * D * 2 + 2 * H * S * 8 * 4)  # two parts in, one out
    assert (int(merge.cube_cores), int(merge.vector_cores)) == (0, 1)


REFUSED = [  # call, tensors, attributes, code, parameter
    ("fused_infer_attention_score", {"key": (1, S, 31)}, {"num_heads": H}, 161002, "key.shape"),
    ("fused_infer_attention_score", {}, {"num_heads": 3, "num_key_value_heads": 2}, 161002, "num_heads"),
    ("fused_infer_attention_score", {"block_table": (1, 1)}, {"num_heads": H, "block_size": 7,
     "actual_seq_lengths_kv": [5]}, 561002, "block_size"),
    ("fused_infer_attention_score", {"query": (S, H, 256), "key": (S, H, 256), "value": (S, H, 256)},
     {"num_heads": H, "input_layout": "TND", "actual_seq_lengths": [S], "actual_seq_lengths_kv": [S]}, 561002, "D of"),
    ("fused_infer_attention_score", {}, {"num_heads": H, "sparse_mode": 5}, 161002, "sparse_mode"),
    ("fused_infer_attention_score", {}, {"num_heads": H, "softmax_lse_flag": True}, 161001, "softmax_lse"),
    ("fused_infer_attention_score", {"value": None}, {"num_heads": H}, 161001, "value"),
    ("fused_infer_attention_score", {"key": (1, 0, 32)}, {"num_heads": H}, 161002, "key.shape"),
    ("incre_flash_attention", {}, {"num_heads": H}, 161002, "query.shape"),
    ("prompt_flash_attention", {"block_table": (1, 1)}, {"num_heads": H}, 161002, "block_table"),
    ("prompt_flash_attention", {}, {"num_heads": H, "atten_mask": np.ones((S, S), bool)}, 161002, "atten_mask"),
    ("prompt_flash_attention", {"attention_out": (1, S, 16)}, {"num_heads": H}, 161002, "attention_out.shape"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}: {case[4]}")
def test_the_first_phase_refuses(case):
    name, shapes, attributes, code, parameter = case
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, max_streams=1, max_events=1, max_commands=2)
    shapes = dict.fromkeys(("query", "key", "value", "attention_out"), (1, S, H * D)) | shapes
    given = {name: shape and aj.tensor(1 << 15, shape, "int32" if name == "block_table" else "float16")
             for name, shape in shapes.items()}  # fmt: skip
    with pytest.raises(aj.ParameterError, match=parameter) as refusal:
        getattr(aj.ops, f"{name}_get_workspace_size")(card, **given, **attributes)
    assert refusal.value.code == code


def test_gradient_refuses_as_the_array_call_does():
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, max_streams=1, max_events=1, max_commands=2)
    x, statistic = aj.tensor(1 << 15, (1, H, S, D), "float16"), aj.tensor(1 << 15, (1, H, S, 8), "float32")
    given = {"dy": x, "softmax_max": statistic, "softmax_sum": statistic, "attention_in": x, "dq": x, "dk": x, "dv": x}
    call = functools.partial(aj.ops.flash_attention_score_grad_get_workspace_size, card, x, x, x, head_num=H)
    for change, code, parameter in (
        ({"softmax_max": x}, 161002, "softmax_max.shape"),
        ({"dy": statistic}, 161002, "dy"),
        ({"dq": None}, 161001, "dq"),
        ({"keep_prob": 1.5}, 161002, "keep_prob"),
        ({"dsink": statistic}, 161002, "dsink"),
    ):
        with pytest.raises(aj.ParameterError, match=parameter) as refusal:
            call(**{**given, **change})
        assert refusal.value.code == code


def test_more_parts_than_operands_come_stacked():
    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, max_streams=1, max_events=1, max_commands=2)
    lse, outs = (aj.tensor(1 << 15, shape, "float32") for shape in ((16, S), (16, S, D)))
    out = aj.tensor(1 << 15, (S, D), "float32")
    _, _, executor = aj.ops.attention_update_get_workspace_size(card, lse, outs, out=out)
    assert float(executor.cost.hbm_bytes) == 4 * S * (16 + 17 * D)
    with pytest.raises(aj.ParameterError, match="at most 19"):
        aj.ops.attention_update_get_workspace_size(
            card, [aj.tensor(1 << 15, (S,), "float32")] * 10, [aj.tensor(1 << 15, (S, D), "float32")] * 10, out=out
        )


def plan(name, arguments, outputs, chip="Ascend910B2", **attributes):
    arguments = {key: Argument(shape, np.dtype(dtype)) for key, (shape, dtype) in arguments.items()}
    outputs = [Argument(shape, np.dtype(dtype)) for shape, dtype in outputs]
    spec = aj.chip(chip)
    call = functools.partial(ATTENTION_OPERATORS[name].plan, attributes=attributes)
    cost = quick_jit(lambda spec, limit: call(spec, arguments, outputs, limit).cost)(spec, jnp.int32(2**31 - 1))
    return cost, spec


def test_times_follow_the_models():
    shape = (1, 8, 2048, 128)
    qkv = dict.fromkeys(("query", "key", "value"), (shape, "float16"))
    prompt, chip = plan("PromptFlashAttention", qkv, [(shape, "float16")], num_heads=8, input_layout="BNSD")
    model = quick_jit(aj.ops.choose_tile, static_argnums=1)(
        chip, aj.ops.AttentionShape(1, 8, 8, 2048, 2048, 128, 128, 2)
    )
    assert float(prompt.duration_ns(chip)) == pytest.approx(float(model.duration_ns), rel=1e-6)
    statistics = dict.fromkeys(("softmax_max", "softmax_sum"), ((1, 8, 2048, 8), "float32"))
    backward, _ = plan(
        "FlashAttentionScoreGrad", {**qkv, "dy": (shape, "float16"), "attention_in": (shape, "float16"), **statistics},
        [(shape, "float16")] * 3, head_num=8, input_layout="BNSD",
    )  # fmt: skip
    assert 1.5 < float(backward.duration_ns(chip)) / float(prompt.duration_ns(chip)) < 5  # 5 products to 2


def test_decoding_time_is_that_of_reading_the_cache_and_few_heads_are_split():
    def decode(batch, length):
        one, cache = ((batch, 1, 8 * 128), "float16"), ((batch, length, 8 * 128), "float16")
        return plan("IncreFlashAttention", {"query": one, "key": cache, "value": cache}, [one], num_heads=8)

    times = {}
    for batch, length in ((1, 32768), (8, 32768)):
        planned, chip = decode(batch, length)
        read_ns = batch * length * 2 * 8 * 128 * 2 / float(chip["hbm_bytes_per_s"]) * 1e9
        times[batch] = float(planned.duration_ns(chip))
        assert read_ns < times[batch] < 4 * read_ns
        assert int(planned.blocks) >= 16  # eight key heads alone would leave two thirds of 24 cores idle
    assert times[1] < times[8] < 10 * times[1]
