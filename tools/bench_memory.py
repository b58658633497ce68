"""Measure the device memory allocator: lanes of random malloc and free under one jit, and eager pairs.

    python tools/bench_memory.py [--lanes 1024] [--ops 1000] [--live 128] [--rounds 3] [--json]

An operation of a lane draws one of ``live`` places: it frees the block that lies there, or allocates 1 byte to 4 MiB if
none does. The first operations fill all places, so ``live_blocks``, the most that were live at once in any lane, is the
number of places; later on about half of them are taken.

``ns_per_op_by_live_blocks`` is CPU time for tables of that many blocks; ``growth_per_block`` is how its growth from the
size before compares with that of the table: at most 1 is no worse than linear.

``eager_pair_us`` is one malloc and one free made one by one with JAX as it comes; it then hands every call to another
thread, and what waking one takes depends on the machine. ``eager_pair_inline_us`` is the same with
``jax.config.update("jax_cpu_enable_async_dispatch", False)``, as a program of many small calls would set it.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.backend import clear_backends

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


class Case:
    """Lanes of programs that keep up to ``live`` blocks, compiled, and what their rounds took."""

    def __init__(self, lanes: int, ops: int, live: int, rounds: int) -> None:
        self.calls, self.traces, self.wall_s, self.cpu_s = lanes * ops, 0, [], []
        card = small_card(live)
        mesh = jax.make_mesh((jax.device_count(),), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec("device")
        tile = max(1, min(lanes // jax.device_count(), TILE_BYTES // card.hbm.blocks.nbytes))

        def run(programs: jax.Array) -> tuple:
            self.traces += 1
            return lax.map(lambda program: run_lane(card, live, program), programs, batch_size=tile)

        mapped = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
        sharding = jax.sharding.NamedSharding(mesh, spec)
        self.programs = [jax.device_put(draw(lanes, ops, live, seed), sharding) for seed in range(rounds)]
        started = time.perf_counter()
        options = {"xla_cpu_prefer_vector_width": 512}
        self.compiled = mapped.lower(self.programs[0]).compile(compiler_options=options)
        self.compile_s = time.perf_counter() - started
        jax.block_until_ready(self.programs)

    def run(self, number: int) -> None:
        """Run and time one round."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.count, self.most, failure = jax.block_until_ready(self.compiled(self.programs[number]))
        self.wall_s.append(time.perf_counter() - wall)
        self.cpu_s.append(time.process_time() - cpu)
        assert not np.asarray(failure).any(), "an operation failed"

    @property
    def cpu_ns_per_op(self) -> float:
        """CPU time of all threads for one operation, median of the rounds: what a shared machine shows best."""
        return 1e9 * statistics.median(self.cpu_s) / self.calls


def measure_pairs(rounds: int) -> dict[str, float]:
    """Return the times of :func:`measure_pair` as JAX comes, and with calls that run in the thread that makes them."""
    result = {f"eager_pair{name}": value for name, value in measure_pair(rounds).items()}
    clear_backends()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    result |= {f"eager_pair_inline{name}": value for name, value in measure_pair(rounds).items()}
    clear_backends()
    jax.config.update("jax_cpu_enable_async_dispatch", True)
    return result


def measure_pair(rounds: int) -> dict[str, float]:
    """Return the time of one malloc and one free made one by one on a card with default sizes, in us."""
    card = aj.init(aj.chip("Ascend910B2"))
    wall, cpu = [], []
    for _ in range(100 * rounds):
        started, spent = time.perf_counter(), time.process_time()
        card, pointer = aj.malloc(card, 4096)
        card = aj.free(card, pointer)
        jax.block_until_ready(card.status)
        wall.append(1e6 * (time.perf_counter() - started))
        cpu.append(1e6 * (time.process_time() - spent))
    return {
        "_us": statistics.median(wall[5:]),
        "_best_us": min(wall),
        "_cpu_us": statistics.median(cpu[5:]),
    }


def measure(lanes: int, ops: int, live: int, rounds: int) -> dict[str, Any]:
    """Return every figure of this tool; rounds of all sizes take turns."""
    main = Case(lanes, ops, live, rounds)
    cases = {}
    for count in LIVE_COUNTS:
        few = max(jax.device_count(), min(lanes, lanes * 128 // count))
        cases[count] = Case(few, 2 * ops, count, rounds)
    for number in range(rounds):
        for case in (main, *cases.values()):
            case.run(number)
    costs = {count: case.cpu_ns_per_op for count, case in cases.items()}
    steps = itertools.pairwise(LIVE_COUNTS)
    return {
        "ops_per_s": main.calls / min(main.wall_s),
        "spread": max(main.wall_s) / min(main.wall_s),
        "live_blocks": int(np.asarray(main.most).max()),
        "mean_live_blocks": float(np.asarray(main.count).mean()),
        "compile_s": main.compile_s,
        "traces": main.traces,
        "lanes": lanes,
        "ops": ops,
        "devices": jax.device_count(),
        "cpu_ns_per_op": main.cpu_ns_per_op,
        "ns_per_op_by_live_blocks": {str(count): cost for count, cost in costs.items()},
        "growth_per_block": {str(high): costs[high] / costs[low] * low / high for low, high in steps},
    }


def main() -> None:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=1024, help="cards at a time (default %(default)s)")
    parser.add_argument("--ops", type=int, default=1000, help="operations of each (default %(default)s)")
    parser.add_argument("--live", type=int, default=128, help="most blocks live at once (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    pairs = measure_pairs(options.rounds)
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    result = pairs | measure(options.lanes, options.ops, options.live, options.rounds)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        rows = value if isinstance(value, dict) else {"": value}
        for size, one in rows.items():
            print(f"{name} {size}".ljust(40) + f"{one:>16,.2f}")


if __name__ == "__main__":
    main()
