"""Measure the device memory allocator: lanes of random malloc and free under one jit, and eager pairs.

    python tools/bench_memory.py [--lanes 1024] [--ops 1000] [--live 128] [--rounds 3] [--json]

An operation of a lane draws one of ``live`` places: it frees the block that lies there, or allocates 1 byte to 4 MiB if
none does. The first operations fill all places, so ``live_blocks``, the most that were live at once in any lane, is the
number of places; later on about half of them are taken.
"""

import argparse
import json
import os
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import ascend_jax as aj
from ascend_jax.runtime.layout import HeapWord

LIVE_COUNTS = (16, 64, 256, 1024)
TILE_BYTES = 1 << 20  # lanes run together up to this size of their heaps


def small_card(live: int) -> aj.CardState:
    """Return a card whose tables hold little more than its heap."""
    counts = dict.fromkeys(("streams", "events", "notifies", "values", "contexts", "threads", "faults", "freed"), 1)
    sizes = {f"max_{name}": count for name, count in counts.items()} | {"max_commands": 2, "max_blocks": live}
    return aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0, host_backing_bytes=0, **sizes)


def draw(lanes: int, ops: int, live: int, seed: int) -> np.ndarray:
    """Return (bytes, place) of every operation, int32 [lanes, ops, 2]."""
    rng = np.random.default_rng(seed)
    places = rng.integers(0, live, (lanes, ops))
    places[:, :live] = np.arange(live)[:ops]
    return np.stack([rng.integers(1, 4 << 20, (lanes, ops)), places], -1).astype(np.int32)


def run_lane(card: aj.CardState, live: int, program: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Run one lane; return (blocks live at the end, most at once, first failure)."""

    def step(state: tuple, row: jax.Array) -> tuple:
        card, pointers, most = state
        nbytes, place = row
        pointer = pointers[place]
        card, new = lax.cond(
            pointer == 0,
            lambda card: aj.malloc(card, nbytes, site=1),
            lambda card: (aj.free(card, pointer, site=2), jnp.int32(0)),
            card,
        )
        most = jnp.maximum(most, card.hbm.words[HeapWord.COUNT])
        return (card, pointers.at[place].set(new), most), None

    start = card, jnp.zeros(live, jnp.int32), jnp.int32(0)
    (card, _, most), _ = lax.scan(step, start, program)
    return card.hbm.words[HeapWord.COUNT], most, aj.first_failure(card)


def measure_lanes(lanes: int, ops: int, live: int, rounds: int) -> dict[str, Any]:
    """Return the rate over all host devices, and what the lanes came to."""
    card = small_card(live)
    mesh = jax.make_mesh((jax.device_count(),), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("device")
    tile = max(1, min(lanes // jax.device_count(), TILE_BYTES // card.hbm.blocks.nbytes))
    traces = 0

    def run(programs: jax.Array) -> tuple:
        nonlocal traces
        traces += 1
        return lax.map(lambda program: run_lane(card, live, program), programs, batch_size=tile)

    mapped = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    programs = [
        jax.device_put(draw(lanes, ops, live, seed), jax.sharding.NamedSharding(mesh, spec)) for seed in range(rounds)
    ]
    started = time.perf_counter()
    compiled = mapped.lower(programs[0]).compile(compiler_options={"xla_cpu_prefer_vector_width": 512})
    compile_s = time.perf_counter() - started
    taken = []
    for program in programs:
        jax.block_until_ready(program)
        started = time.perf_counter()
        count, most, failure = jax.block_until_ready(compiled(program))
        taken.append(time.perf_counter() - started)
    assert not np.asarray(failure).any(), "an operation failed"
    return {
        "ops_per_s": lanes * ops / min(taken),
        "spread": max(taken) / min(taken),
        "live_blocks": int(np.asarray(most).max()),
        "mean_live_blocks": float(np.asarray(count).mean()),
        "compile_s": compile_s,
        "traces": traces,
    }


def measure_pair(rounds: int) -> dict[str, float]:
    """Return the time of one malloc and one free made one by one on a card with default sizes, in us."""
    card = aj.init(aj.chip("Ascend910B2"))
    taken = []
    for _ in range(100 * rounds):
        started = time.perf_counter()
        card, pointer = aj.malloc(card, 4096)
        card = aj.free(card, pointer)
        jax.block_until_ready(card.status)
        taken.append(1e6 * (time.perf_counter() - started))
    return {"eager_pair_us": statistics.median(taken[5:]), "eager_pair_best_us": min(taken)}


def measure(lanes: int, ops: int, live: int, rounds: int) -> dict[str, Any]:
    """Return every figure of this tool."""
    result = measure_lanes(lanes, ops, live, rounds) | {"lanes": lanes, "ops": ops, "devices": jax.device_count()}
    result |= measure_pair(rounds)
    costs = {}
    for count in LIVE_COUNTS:
        few = max(jax.device_count(), min(lanes, lanes * 128 // count))
        costs[str(count)] = 1e9 / measure_lanes(few, 2 * ops, count, rounds)["ops_per_s"]
    return result | {"ns_per_op_by_live_blocks": costs}


def main() -> None:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=1024, help="cards at a time (default %(default)s)")
    parser.add_argument("--ops", type=int, default=1000, help="operations of each (default %(default)s)")
    parser.add_argument("--live", type=int, default=128, help="most blocks live at once (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    result = measure(options.lanes, options.ops, options.live, options.rounds)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        rows = value if isinstance(value, dict) else {"": value}
        for size, one in rows.items():
            print(f"{name} {size}".ljust(40) + f"{one:>16,.2f}")


if __name__ == "__main__":
    main()
