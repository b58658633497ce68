"""Causal attention over a sequence that lies on four cards: a ring in zig-zag.

Values are computed by all cards and compared with one card; times come from the exact engine, where the next keys
travel while a card works on those it has.
"""

import functools

import numpy as np

import ascend_jax as aj
from ascend_jax import hccl, ops
from ascend_jax.hccl import Call, Collective, Topology, Work

CARDS, HEADS, SEQ, DIM = 4, 4, 512, 64


def main() -> None:
    """Run the ring with real values, then with times."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, SEQ, HEADS, DIM), dtype=np.float32) for _ in range(3))
    parts = [ops.shard_sequence(x, CARDS, causal=True) for x in (q, k, v)]
    ring = hccl.carry(functools.partial(ops.ring_attention, causal=True), CARDS)
    out = ops.join_sequence(ring(*parts), causal=True)
    one_card = ops.flash_attention(q, k, v, causal=True)
    print(f"{hccl.choose_carrier(CARDS).reason}")
    print(f"max |difference| from one card: {np.abs(out - one_card).max():.1e}")

    chip, comm = aj.chip("Ascend910B2"), hccl.comm_world(CARDS)
    long = 64 * SEQ  # the times of a long sequence, where communication hides
    own = ops.choose_tile(chip, ops.AttentionShape(1, HEADS, HEADS, long // CARDS, long // CARDS, DIM, DIM, 2, 2))
    half = ops.AttentionShape(2, HEADS, HEADS, long // CARDS // 2, long // CARDS // 2, DIM, DIM, 2)
    other = ops.choose_tile(chip, half)
    steps: list[hccl.Step] = [Work("own keys", int(own.duration_ns), cube_cores=int(own.cores_used))]
    for number in range(1, CARDS):
        count = 2 * HEADS * DIM * long // CARDS
        steps.append(Call(Collective.SEND_RECV, comm, count, "float16", stream=1, name=f"keys {number} on"))
        work = Work(f"step {number}", int(other.duration_ns), after=(len(steps) - 1,), cube_cores=int(other.cores_used))
        steps.append(work)
    times = hccl.run_plan(hccl.make_plan(chip, steps, Topology(CARDS, 8)))
    for row in times.steps(0):
        start, end = row["start_ns"] / 1e3, row["end_ns"] / 1e3
        print(f"  card 0 stream {row['stream']}: {row['name']:10} {start:9.1f} to {end:9.1f} us")
    print(f"not hidden: {times.exposed_ns(0) / 1e3:.1f} us of {times.makespan_ns / 1e3:.1f} us")


if __name__ == "__main__":
    main()
