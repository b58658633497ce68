"""Time of evaluating many (tile, chip) points of FlashAttention under one jit.

    python tools/bench_tiling.py [--points 10000] [--runs 20] [--json]

A point is one candidate tile on one variant of a chip (clock, cores and memory rates drawn at random). All points are
one vmapped call; the time is the median of runs after compilation.
"""

import argparse
import json
import statistics
import time

import jax
import numpy as np

from ascend_jax.chip import chip
from ascend_jax.ops.attention.tiling import TILES, AttentionShape, tile_costs


def variants(count: int, seed: int = 0) -> object:
    """A batch of chips around Ascend910B2, leaves `[count]`."""
    spec, draw = chip("Ascend910B2"), np.random.default_rng(seed)
    scaled = {
        name: spec[name] * draw.uniform(0.5, 2.0, count)
        for name in ("clock_hz", "hbm_bytes_per_s", "l2_l1_bytes_per_s")
    }
    return spec.replace(cube_cores=draw.integers(8, 48, count), **scaled)


def measure(points: int, runs: int) -> dict[str, float]:
    """Median and spread of the time of one call, in ms."""
    batch = variants(-(-points // len(TILES)))
    shape = AttentionShape(1, 32, 32, 4096, 4096, 128, 128, 2)
    call = jax.jit(jax.vmap(lambda spec: tile_costs(spec, shape)))
    started = time.perf_counter()
    found = jax.block_until_ready(call(batch))
    compile_s = time.perf_counter() - started
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        jax.block_until_ready(call(batch))
        times.append(1e3 * (time.perf_counter() - started))
    return {
        "points": int(found.duration_ns.size),
        "ms": round(statistics.median(times), 3),
        "ms_min": round(min(times), 3),
        "ms_max": round(max(times), 3),
        "first_call_s": round(compile_s, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.points < 1 or args.runs < 1:
        parser.error("--points and --runs are at least 1")
    found = measure(args.points, args.runs)
    print(json.dumps(found) if args.json else "  ".join(f"{key} = {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
