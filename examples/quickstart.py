"""Quickstart: run FlashAttention on a simulated Ascend card, call by call.

Every call takes a card and returns a new one; pointers, streams and events are small integers.
"""

import numpy as np

import ascend_jax as aj


def main() -> None:
    """Copy q, k, v to the card, run the operator in two phases, and check the result."""
    batch, heads, seq, dim = 1, 4, 256, 64
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((batch, heads, seq, dim)).astype(np.float16) for _ in range(3))

    card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=8 << 20)
    card, stream = aj.create_stream(card)

    inputs = []
    for array in (q, k, v):
        card, ptr = aj.malloc(card, array.nbytes)
        card = aj.upload(card, ptr, array)
        inputs.append(aj.tensor(ptr, array.shape, array.dtype))

    outputs = {}
    for name, each in aj.ops.infer("FlashAttentionScore", inputs, {"sparse_mode": 0}).items():
        card, ptr = aj.malloc(card, each.nbytes)
        outputs[name] = aj.tensor(ptr, each.shape, each.dtype)

    # phase 1: check, choose tiles, predict; nothing runs yet
    card, workspace_bytes, executor = aj.ops.flash_attention_score_get_workspace_size(
        card, *inputs, **outputs, head_num=heads, scale_value=dim**-0.5
    )
    card, workspace = aj.malloc(card, workspace_bytes)
    # phase 2: queue it, wait for it
    card = aj.launch(card, executor, workspace, stream)
    card = aj.synchronize_stream(card, stream)

    out = outputs["attention_out"]
    card, result = aj.download(card, out.pointer, out.shape, out.dtype)
    aj.raise_if_error(card)

    expected, _, _ = aj.ops.attention_reference(q, k, v, mode=0, scale=dim**-0.5)
    print(f"max |error| against float64: {np.abs(np.asarray(result) - expected).max():.1e}")
    print(f"simulated time on the host: {aj.host_time_ns(card) / 1e3:.1f} us")
    print(aj.insight.gantt(aj.insight.timeline(card), width=72))


if __name__ == "__main__":
    main()
