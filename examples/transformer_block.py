"""A transformer block, tensor parallel and data parallel: the same values, and the simulated step per card count.

Tensor parallel cards hold some heads and some columns of the MLP and add up twice a layer; data parallel groups add
their gradients. Values run on 4 cards (2 x 2); times on up to 64.
"""

import jax
import jax.numpy as jnp
import numpy as np

import ascend_jax as aj
from ascend_jax import hccl, ops
from ascend_jax.hccl import Call, Collective, Work
from ascend_jax.ops.timing.matmul import MatmulShape, choose_tile, vendor_fixed_ns

BATCH, SEQ, HEADS, DIM = 4, 16, 4, 8
WIDTH = HEADS * DIM


def block(weights: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return what attention and the MLP of these weights (all, or one card's share) add to ``x`` [B, T, W]."""
    q, k, v = (jnp.einsum("btw,whd->bthd", x, weights[name]) for name in ("q", "k", "v"))
    attention = jnp.einsum("bthd,hdw->btw", ops.flash_attention(q, k, v, causal=True), weights["o"])
    return attention, jnp.einsum(
        "btf,fw->btw", jax.nn.gelu(jnp.einsum("btw,wf->btf", x, weights["up"])), weights["down"]
    )


def values() -> float:
    """Return the greatest difference between four cards and one, of the output and of the gradient."""
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("q", "k", "v"), (WIDTH, HEADS, DIM)) | {"o": (HEADS, DIM, WIDTH)}
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    weights = {name: jnp.asarray(0.2 * rng.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}
    x = jnp.asarray(rng.standard_normal((BATCH, SEQ, WIDTH)), jnp.float32)
    split = {"q": 1, "k": 1, "v": 1, "o": 0, "up": 1, "down": 0}  # the axis of heads or columns
    tensor, data = hccl.comm_world(4).split([0, 0, 1, 1]), hccl.comm_world(4).split([0, 1, 0, 1])

    def step(weights: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        parts, pull = jax.vjp(lambda w: block(w, x), weights)
        out = x + sum(hccl.all_reduce(part, tensor) for part in parts)
        # each card's share of the loss through its own weights; the sum over data parallel cards is the gradient
        cotangent = out / (BATCH * SEQ)
        grads = pull((cotangent, cotangent))[0]
        return out, {name: hccl.all_reduce(grad, data) for name, grad in grads.items()}

    mine = {name: ops.shard_axis(weight, 2, split[name], name) for name, weight in weights.items()}
    every = {name: jnp.concatenate([shards, shards]) for name, shards in mine.items()}  # cards 0 1 | 2 3
    rows = jnp.repeat(ops.shard_axis(x, 2, 0, "batch"), 2, axis=0)
    out, grads = hccl.carry(step, 4)(every, rows)

    @jax.jit
    def alone(weights: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        added, pull = jax.vjp(lambda w: sum(block(w, x)), weights)
        return x + added, pull((x + added) / (BATCH * SEQ))[0]

    whole, whole_grads = alone(weights, x)
    joined = {name: ops.join_axis(grad[:2], split[name]) for name, grad in grads.items()}
    worst = [np.abs(ops.join_axis(out[::2], 0) - whole).max()]
    worst += [np.abs(joined[name] - whole_grads[name]).max() for name in weights]
    return float(max(worst))


def step_ns(chip: aj.ChipSpec, tensor: int, data: int, *, batch: int, seq: int, heads: int, width: int) -> int:
    """Return the simulated time of one training step of the block: forward, backward (twice the work), gradients."""
    cards, rows = tensor * data, batch // data * seq
    comm = hccl.comm_world(cards)
    inside = comm.split([card // tensor for card in range(cards)], name="tensor")
    across = comm.split([card % tensor for card in range(cards)], name="data")

    def matmul(name: str, n: int, k: int, times: int) -> Work:
        cost, _ = choose_tile(chip, MatmulShape(rows, n, k, 2), fixed_ns=vendor_fixed_ns(chip))
        return Work(name, times * int(cost.duration_ns))

    shape = ops.AttentionShape(
        batch // data, heads // tensor, heads // tensor, seq, seq, width // heads, width // heads, 2, 2
    )
    attention = int(ops.choose_tile(chip, shape).duration_ns)
    steps: list[hccl.Step] = []
    for name, times in (("forward", 1), ("backward", 2)):
        steps += [
            matmul(f"qkv {name}", 3 * width // tensor, width, times),
            Work(f"attention {name}", times * attention),
        ]
        steps.append(matmul(f"out {name}", width, width // tensor, times))
        steps.append(Call(Collective.ALL_REDUCE, inside, rows * width, "bfloat16"))
        steps.append(matmul(f"up {name}", 4 * width // tensor, width, times))
        steps.append(matmul(f"down {name}", width, 4 * width // tensor, times))
        steps.append(Call(Collective.ALL_REDUCE, inside, rows * width, "bfloat16"))
    steps.append(Call(Collective.ALL_REDUCE, across, 12 * width * width // tensor, "bfloat16", name="gradients"))
    return hccl.run_plan(hccl.make_plan(chip, steps, hccl.default_topology(chip, cards))).makespan_ns


def main() -> None:
    """Compare the values, then print the scaling curve."""
    print(f"max |difference| from one card, outputs and gradients: {values():.1e}")
    chip = aj.chip("Ascend910B2")
    size = {"batch": 64, "seq": 1024, "heads": 16, "width": 2048}
    alone = step_ns(chip, 1, 1, **size)
    for tensor, data in ((1, 1), (8, 1), (1, 8), (8, 8)):
        time = alone if tensor == data == 1 else step_ns(chip, tensor, data, **size)
        cards = tensor * data
        print(
            f"{cards:3} cards, tensor {tensor} x data {data}: {time / 1e6:8.2f} ms a step, "
            f"{alone / time:5.1f} times as fast, efficiency {alone / time / cards:.0%}"
        )


if __name__ == "__main__":
    main()
