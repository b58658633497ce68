"""Measure the simulation of many cards: a plan of kernels and AllReduces, from the cost forms to the makespan.

    python tools/bench_cards.py [--cards 64 1024] [--collectives 100] [--json]

Every card does a kernel of its own length before each AllReduce of 1 MiB, so the late ones hold the others up. `first`
includes compilation, `again` does not.
"""

import argparse
import json
import time
from typing import Any

import numpy as np

import ascend_jax as aj
from ascend_jax import hccl


def measure(cards: int, collectives: int, seed: int = 0) -> dict[str, Any]:
    """Return the seconds that a plan of ``cards`` takes to make, and to run once and once more."""
    rng, chip = np.random.default_rng(seed), aj.chip("Ascend910B2")
    call = hccl.Call(hccl.Collective.ALL_REDUCE, hccl.comm_world(cards), 1 << 18)
    kernels = [hccl.Work("kernel", rng.integers(1000, 50_000, cards)) for _ in range(collectives)]
    steps = [step for kernel in kernels for step in (kernel, call)]
    started = time.perf_counter()
    plan = hccl.make_plan(chip, steps, hccl.Topology(cards, 8))
    seconds = [time.perf_counter() - started]
    for _ in range(2):
        started = time.perf_counter()
        makespan_ns = hccl.run_plan(plan).makespan_ns
        seconds.append(time.perf_counter() - started)
    names = ("plan_s", "first_s", "again_s")
    result = {"cards": cards, "collectives": collectives, **dict(zip(names, seconds, strict=True))}
    return result | {"again_ms_per_card": 1e3 * seconds[2] / cards, "makespan_ns": int(makespan_ns)}


def main() -> None:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=int, nargs="+", default=[64, 1024], help="numbers of cards")
    parser.add_argument("--collectives", type=int, default=100, help="AllReduces in the plan (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    options = parser.parse_args()
    results = [measure(cards, options.collectives) for cards in options.cards]
    if options.json:
        print(json.dumps(results))
        return
    for result in results:
        for name, value in result.items():
            print(f"{name:20}{value:>16,.3f}" if isinstance(value, float) else f"{name:20}{value:>16,}")


if __name__ == "__main__":
    main()
