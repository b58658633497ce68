"""One stream per head: heads run side by side on different AI cores, and an event joins them.

Each head is a launch of its own. It gets a share of the cube cores, so that several heads fit on the chip at a time;
the timeline shows which head ran where.
"""

import numpy as np

import ascend_jax as aj

HEADS, SEQ, DIM = 8, 512, 64


def main() -> None:
    """Run eight heads on eight streams; one more stream waits for all of them."""
    chip = aj.chip("Ascend910B2")
    shape, rows = (1, HEADS, SEQ, DIM), (1, HEADS, SEQ, 8)
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for _ in range(3))

    card = aj.init(chip, hbm_backing_bytes=16 << 20, donate=True)
    tensors = []
    for array in (
        q,
        k,
        v,
        np.zeros(shape, np.float16),
        np.zeros(rows, np.float32),
        np.zeros(rows, np.float32),
    ):
        card, ptr = aj.malloc(card, array.nbytes)
        card = aj.upload(card, ptr, array)
        tensors.append(aj.tensor(ptr, array.shape, array.dtype))

    one_head = aj.ops.AttentionShape(1, 1, 1, SEQ, SEQ, DIM, DIM, 2)
    cores = aj.ops.share_cores(chip, one_head, launches=HEADS)
    print(f"{HEADS} heads, {cores} cube cores each")

    # prepare every head first, so that the launches follow one another closely
    card, joined = aj.create_stream(card)
    heads = []
    for head in range(HEADS):
        card, stream = aj.create_stream(card)
        card, done = aj.create_event(card)
        q1, k1, v1, out, row_max, row_sum = (
            aj.tensor(t.pointer, (1, 1, *t.shape[2:]), t.dtype, offset=head * t.shape[2] * t.shape[3]) for t in tensors
        )
        card, workspace_bytes, executor = aj.ops.flash_attention_score_get_workspace_size(
            card,
            q1,
            k1,
            v1,
            attention_out=out,
            softmax_max=row_max,
            softmax_sum=row_sum,
            head_num=1,
            scale_value=DIM**-0.5,
            core_limit=cores,
        )
        card, workspace = aj.malloc(card, workspace_bytes)
        heads.append((stream, done, executor, workspace))

    for stream, done, executor, workspace in heads:
        card = aj.launch(card, executor, workspace, stream)
        card = aj.record_event(card, done, stream)
        card = aj.stream_wait_event(card, joined, done)
    card = aj.synchronize_stream(card, joined)  # returns when the last head is done

    card, result = aj.download(card, tensors[3].pointer, shape, np.float16)
    aj.raise_if_error(card)
    expected, _, _ = aj.ops.attention_reference(q, k, v, mode=0, scale=DIM**-0.5)
    print(f"max |error| against float64: {np.abs(np.asarray(result) - expected).max():.1e}")

    timeline = aj.insight.timeline(card).of_kind("kernel")
    print(f"heads at a time: {timeline.max_concurrent_kernels()}")
    print(aj.insight.gantt(timeline, width=72, by="core", max_rows=24))


if __name__ == "__main__":
    main()
