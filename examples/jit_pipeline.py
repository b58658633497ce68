"""The whole host program under one jax.jit, and a thousand cards under one jax.vmap.

Inside jit the card, its memory and its clock are ordinary traced values: the program compiles once and runs for any
inputs. Every call that waits is a simulation of the device in the compiled program, so the inputs go up in one copy.
Without real bytes (hbm_backing_bytes=0) the same program predicts times only, which is cheap enough to vmap.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import ascend_jax as aj

SHAPE = (1, 2, 256, 64)  # batch, heads, sequence, dim
LONG = (1, 32, 4096, 128)  # for predictions: nothing of this size is ever computed


def attention_program(
    card: aj.CardState, size: tuple[int, ...], arrays: list[jax.Array] | None = None
) -> tuple[aj.CardState, jax.Array]:
    """Allocate, copy, run FlashAttention, copy back. ``arrays`` None: times only."""
    rows, elements = (*size[:3], 8), int(np.prod(size))
    card, inputs = aj.malloc(card, 3 * 2 * elements)
    q, k, v = (aj.tensor(inputs, size, jnp.float16, offset=index * elements) for index in range(3))
    results = []
    for shape, dtype in ((size, jnp.float16), (rows, jnp.float32), (rows, jnp.float32)):
        card, ptr = aj.malloc(card, aj.tensor(0, shape, dtype).nbytes)
        results.append(aj.tensor(ptr, shape, dtype))
    out, row_max, row_sum = results
    if arrays is not None:
        card = aj.upload(card, inputs, jnp.stack(arrays))
    card, workspace_bytes, executor = aj.ops.flash_attention_score_get_workspace_size(
        card,
        q,
        k,
        v,
        attention_out=out,
        softmax_max=row_max,
        softmax_sum=row_sum,
        head_num=size[1],
        scale_value=0.125,
    )
    card, workspace = aj.malloc(card, workspace_bytes)
    card = aj.launch(card, executor, workspace, 0)
    card = aj.synchronize_stream(card, 0)
    if arrays is None:
        return card, jnp.zeros(0, out.dtype)
    return aj.download(card, out.pointer, out.shape, out.dtype)


def main() -> None:
    """Run the program with values under jit, then 1,000 clock rates under vmap."""
    chip = aj.chip("Ascend910B2")
    traces = []

    @functools.partial(jax.jit, compiler_options=aj.QUICK_TO_COMPILE)
    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[aj.CardState, jax.Array]:
        traces.append(1)
        return attention_program(aj.init(chip, hbm_backing_bytes=1 << 20, max_commands=16), SHAPE, [q, k, v])

    rng = np.random.default_rng(0)
    for seed in range(3):
        q, k, v = (jnp.asarray(rng.standard_normal(SHAPE), jnp.float16) for _ in range(3))
        card, out = run(q, k, v)
        expected, _, _ = aj.ops.attention_reference(*map(np.asarray, (q, k, v)), mode=0, scale=0.125)
        print(f"inputs {seed}: max |error| {np.abs(np.asarray(out) - expected).max():.1e}")
    aj.raise_if_error(card)
    print(f"traced {len(traces)} time(s); attention took {kernel_ns(card) / 1e3:.1f} us of simulated time")

    @functools.partial(jax.jit, compiler_options=aj.QUICK_TO_COMPILE)
    @jax.vmap
    def predict(clock_hz: jax.Array) -> aj.CardState:
        card = aj.init(
            chip.replace(clock_hz=clock_hz), hbm_backing_bytes=0, max_streams=1, max_commands=4, max_blocks=8
        )
        return attention_program(card, LONG)[0]

    clocks = jnp.linspace(1.0e9, 2.2e9, 1000)
    cards = predict(clocks)
    for lane in (0, 500, 999):
        one = jax.tree.map(lambda leaf, lane=lane: leaf[lane], cards)
        print(f"{float(clocks[lane]) / 1e6:.0f} MHz: attention {kernel_ns(one) / 1e3:.1f} us")


def kernel_ns(card: aj.CardState) -> int:
    """Return how long the card's kernel ran, in simulated ns."""
    timeline = aj.insight.timeline(card)
    kernel = int(np.flatnonzero(timeline.kind == "kernel")[0])
    return int(timeline.end_ns[kernel] - timeline.start_ns[kernel])


if __name__ == "__main__":
    main()
