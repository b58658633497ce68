"""Measure both time engines, side by side with SimPy on the same contended program, in one process.

    python tools/bench_engine.py [--lanes 1024] [--commands 1024] [--streams 8] [--rounds 5] [--scaling] [--json]

The exact engine and SimPy simulate 8 streams on 32 cube and 64 vector cores: kernels in blocks, mixed kernels, blocks
that start all at once, priorities, copies on three engines, events, shared HBM and L2 rates. Every lane has its own
block times; the first lane is compared with SimPy command by command. The static engine runs a program of the same size
that nothing holds up but itself: it does not solve the contended problem, so its rate is no rival of the others.

``--scaling`` adds the cost per command from 256 to 16,384 commands and from 64 to 8,192 lanes.
"""

import argparse
import functools
import json
import os
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from simpy_card import simulate as simpy_simulate

import ascend_jax as aj
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.edge import QUICK_TO_RUN
from ascend_jax.runtime.layout import Field, Kind, Resource
from ascend_jax.runtime.program import Program, nothing, numbered
from ascend_jax.runtime.simulate import simulate
from ascend_jax.runtime.static import lower, static_end_ns

CAPACITY = {"cube": 32, "vector": 64, "h2d": 1, "d2h": 1, "d2d": 1}
UNITS = dict(zip(CAPACITY, Resource, strict=True))


def contended(commands: int, streams: int, seed: int = 0) -> list[dict]:
    """Draw a program: of ten commands seven are kernels, one is a copy, one records and one waits for an event."""
    rng = np.random.default_rng(seed)
    rows: list[dict] = []
    records: list[int] = []
    for row in range(commands):
        one: dict[str, Any] = {"stream": int(rng.integers(streams)), "depends": -1, "need": {}}
        draw = rng.random()
        if draw < 0.1:
            records.append(row)
        elif draw < 0.2:
            one["depends"] = int(rng.choice(records[-4:])) if records else -1
        elif draw < 0.3:
            one["need"] = {str(rng.choice(["h2d", "d2h", "d2d"])): 1}
        else:
            one["need"] = [{"cube": 1}, {"vector": 1}, {"cube": 1, "vector": 2}][int(rng.integers(3))]
        is_kernel = "cube" in one["need"] or "vector" in one["need"]
        blocks = int(rng.choice([8, 16, 32, 48], p=[0.4, 0.3, 0.25, 0.05])) if is_kernel else 1
        one |= {
            "blocks": blocks,
            "head_ns": 3000 if is_kernel else 0,
            "block_ns": int(rng.integers(2000, 200_000)),
            "shares": (int(rng.integers(0, 8000)), int(rng.integers(0, 4000))) if is_kernel else (4000, 0),
            "at_once": bool(is_kernel and blocks <= 32 and rng.random() < 0.1),
            "priority": int(rng.integers(0, 3)),
        }
        rows.append(one)
    return rows


def program_of(rows: list[dict], streams: int) -> Program:
    """Return the commands as a program."""
    table = nothing(len(rows), len(rows))
    for row, one in enumerate(rows):
        is_copy = any(unit in one["need"] for unit in ("h2d", "d2h", "d2d"))
        kind = Kind.EVENT_WAIT if one["depends"] >= 0 else Kind.EVENT_RECORD
        table[row, Field.KIND] = (Kind.COPY if is_copy else Kind.KERNEL) if one["need"] else kind
        table[row, [Field.STREAM, Field.DEPENDS, Field.BLOCKS]] = one["stream"], one["depends"], one["blocks"]
        table[row, [Field.HEAD_NS, Field.BLOCK_LO]] = one["head_ns"], one["block_ns"]
        table[row, [Field.HBM_SHARE, Field.L2_SHARE]] = one["shares"]
        table[row, [Field.MODE, Field.PRIORITY]] = one["at_once"], one["priority"]
        for unit, count in one["need"].items():
            table[row, Field.NEED + UNITS[unit]] = count
    fields = numbered(jnp.array(table))
    return Program(fields, jnp.zeros((len(rows), 12, 4), jnp.int32), streams=streams, kernels=())


def times_for(rows: list[dict], lanes: int, seed: int = 1) -> np.ndarray:
    """Return block times int32 [lanes, N]: those of the rows in the first lane, within a third of them elsewhere."""
    base = np.array([one["block_ns"] for one in rows])
    factor = np.random.default_rng(seed).uniform(0.67, 1.33, (lanes, len(rows)))
    factor[0] = 1
    return np.maximum(base * factor, 1).astype(np.int32)


class Lanes:
    """The exact engine over lanes, on all host devices; counts how often it is traced."""

    def __init__(self, program: Program, chip: aj.ChipSpec) -> None:
        self.traces, self.devices = 0, jax.devices()
        mesh = jax.make_mesh((len(self.devices),), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec("device")
        self.sharding = jax.sharding.NamedSharding(mesh, spec)

        def run(block_ns: jax.Array) -> tuple:
            self.traces += 1
            plan = simulate(program, chip, block=Instant(jnp.zeros_like(block_ns), block_ns))
            return plan.start, plan.end, plan.is_stuck

        # lanes have nothing to do with each other: without JAX's check of what varies there is a fifth less to trace
        self.run = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))

    def compile(self, block_ns: np.ndarray) -> tuple[Any, float]:
        """Return the compiled run for this shape, and the seconds it took."""
        started = time.perf_counter()
        lowered = self.run.lower(jax.ShapeDtypeStruct(block_ns.shape, jnp.int32, sharding=self.sharding))
        compiled = lowered.compile(compiler_options=QUICK_TO_RUN)
        return compiled, time.perf_counter() - started

    def place(self, block_ns: np.ndarray) -> jax.Array:
        """Spread lanes over the devices."""
        return jax.device_put(block_ns, self.sharding)


def seconds(function: Any, *arguments: Any, rounds: int) -> list[float]:
    """Return wall times after a warm-up."""
    jax.block_until_ready(function(*arguments))
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        taken.append(time.perf_counter() - started)
    return taken


def measure_exact(rows: list[dict], streams: int, lanes: int, rounds: int) -> dict[str, Any]:
    """Return rate, compile time and traces of the exact engine, and the times of the first lane."""
    chip = aj.chip("Ascend910B2").replace(cube_cores=CAPACITY["cube"], vector_cores=CAPACITY["vector"])
    engine = Lanes(program_of(rows, streams), chip)
    compiled, compile_s = engine.compile(times_for(rows, lanes))
    taken = []
    for seed in range(2):  # other values, same compilation
        block_ns = engine.place(times_for(rows, lanes, seed + 1))
        taken += seconds(compiled, block_ns, rounds=rounds)
    start, end, is_stuck = jax.device_get(compiled(block_ns))
    assert not is_stuck.any(), "the program must run to its end"
    first = [np.asarray(hi)[0].astype(np.int64) * 2**30 + np.asarray(lo)[0] for hi, lo in (start, end)]
    rate = lanes * len(rows) / statistics.median(taken)
    return {"rate": rate, "compile_s": compile_s, "traces": engine.traces, "first": first, "taken": taken}


def measure_static(commands: int, streams: int, lanes: int, rounds: int) -> dict[str, float]:
    """Return rate and compile time of the static engine on lanes of durations, batch last, on all host devices."""
    rows = [one | {"need": {"cube": 1}, "blocks": 1} if one["need"] else one for one in contended(commands, streams)]
    pred = lower(program_of(rows, streams))
    mesh = jax.make_mesh((jax.device_count(),), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec(None, "device")
    run = jax.jit(
        jax.shard_map(static_end_ns, mesh=mesh, in_specs=(jax.sharding.PartitionSpec(), spec), out_specs=spec)
    )
    duration = np.where([bool(one["need"]) for one in rows], times_for(rows, lanes), 0).T
    placed = jax.device_put(np.ascontiguousarray(duration), jax.sharding.NamedSharding(mesh, spec))
    started = time.perf_counter()
    compiled = run.lower(pred, placed).compile()
    compile_s = time.perf_counter() - started
    shared = jax.device_put(pred, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    taken = seconds(compiled, shared, placed, rounds=4 * rounds)
    return {"rate": lanes * commands / statistics.median(taken), "compile_s": compile_s}


def measure_simpy(rows: list[dict], rounds: int) -> tuple[float, list[tuple[int, int]]]:
    """Return commands per second in SimPy and the times of every command."""
    taken = []
    for _ in range(max(3, rounds)):
        started = time.perf_counter()
        times = simpy_simulate(rows, CAPACITY)
        taken.append(time.perf_counter() - started)
    return len(rows) / statistics.median(taken), times


def measure(commands: int, streams: int, lanes: int, rounds: int) -> dict[str, Any]:
    """Return all figures; raises if SimPy and the exact engine disagree."""
    rows = contended(commands, streams)
    simpy_rate, times = measure_simpy(rows, rounds)
    exact = measure_exact(rows, streams, lanes, rounds)
    expected = np.array(times).T
    if not np.array_equal(np.stack(exact["first"]), expected):
        row = int(np.argmax((np.stack(exact["first"]) != expected).any(0)))
        ours = [int(one[row]) for one in exact["first"]]
        raise SystemExit(f"command {row}: SimPy says {times[row]}, the engine {ours}")
    static = measure_static(commands, streams, lanes, rounds)
    return {
        "exact_commands_per_s": exact["rate"],
        "static_commands_per_s": static["rate"],
        "simpy_commands_per_s": simpy_rate,
        "exact_over_simpy": exact["rate"] / simpy_rate,
        "exact_compile_s": exact["compile_s"],
        "static_compile_s": static["compile_s"],
        "lanes": lanes,
        "commands": commands,
        "traces": exact["traces"],
        "streams": streams,
        "devices": jax.device_count(),
        "spread": max(exact["taken"]) / min(exact["taken"]),
    }


def measure_scaling(streams: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return ns per command for growing programs, and for growing numbers of lanes."""
    cost = functools.partial(_cost_ns, streams=streams, rounds=rounds)
    return {
        "ns_per_command_by_commands": {str(n): cost(n, 512) for n in (256, 1024, 4096, 16_384)},
        "ns_per_command_by_lanes": {str(lanes): cost(256, lanes) for lanes in (64, 256, 1024, 4096, 8192)},
    }


def _cost_ns(commands: int, lanes: int, *, streams: int, rounds: int) -> float:
    rounds *= max(1, 2**18 // (commands * lanes))  # a short run says little
    return 1e9 / measure_exact(contended(commands, streams), streams, lanes, rounds)["rate"]


def main() -> None:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=1024, help="lanes of both engines (default %(default)s)")
    parser.add_argument("--commands", type=int, default=1024, help="commands of the program (default %(default)s)")
    parser.add_argument("--streams", type=int, default=8, help="streams of the program (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default %(default)s)")
    parser.add_argument("--scaling", action="store_true", help="add the cost per command over sizes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    result = measure(options.commands, options.streams, options.lanes, options.rounds)
    if options.scaling:
        result |= measure_scaling(options.streams, options.rounds)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        rows = value if isinstance(value, dict) else {"": value}
        for size, one in rows.items():
            print(f"{name} {size}".ljust(40) + f"{one:>16,.3f}")


if __name__ == "__main__":
    main()
