"""Measure FlashAttention on this machine's CPU, side by side with its peers in one process.

    python tools/bench_attention.py [--json] [--full] [--seq 1024 4096] [--dims 64] [--heads 4] [--rounds 3]
                                    [--devices 2] [--decode] [--steps]

Prints each case as soon as it is measured (with ``--json`` to stderr). By default S is 1,024 and 4,096 and D is 64;
``--full`` takes S from 512 to 8,192 and D of 64 and 128, and many minutes.

JAX gets a CPU device for each core (``--devices``), and every JAX implementation runs on all of them under one
``jax.shard_map`` over the heads; torch gets a thread for each core. Rows "... 1 device" are plain calls, whose one
device has all cores. ``--devices 1`` measures only those, and leaves torch its own choice of threads. On all devices
"flash" and the bare steps are compiled with ``ascend_jax.QUICK_TO_RUN``, as the documentation advises; the peers, which
lose by these options, and every plain call have those of XLA.

Peers: ``torch.nn.functional.scaled_dot_product_attention`` (if torch is installed), ``jax.nn.dot_product_attention``,
and the unfused form ("naive"); the last two are left out where their scores take more than 256 MiB. Every round runs
each implementation once untimed and once timed, in turn, so that a busy machine disturbs all alike; figures are
medians, of 3 rounds where one takes long, and "x" is the longest over the shortest. FLOPs are those of the visible
pairs, 4 D each forward and 3.5 times that with backward, for every implementation, whatever it really computes.
``temp_bytes`` is what XLA allocates beside operands and results, on all devices; for torch it is not known. Threads of
torch wait for one another at every step: while other programs hold one of the cores, torch loses more than the rest,
and the ratios flatter.

Ratios tell how many times as fast "flash" is as each peer, a peer in JAX being taken where it is faster, on one device
or on all; each is the median over S of at least 1,024. What ends in ", 1 device" says so of "flash 1 device". A causal
case also times "flash, full", the same call without the mask; "causal / full speed" is taken from S of 4,096 on.

``--steps`` tells what the steps of attention take by themselves: beside flash and torch it times "products", the 2-D
products (two forward, five backward) of as many host tiles as the visible pairs fill, in the operand type that is
faster, and "softmax", the maxima, exponentials and sums of the same tiles, and nothing else; each device does its share
of the tiles. "steps alone" is the time of torch divided by the two. The decode case times "copies", of the pages in the
order of the table to a place that stays in the cache, "products", of as many keys and values that lie there, and
"softmax"; "steps alone" is what the three take. It is no bound: side by side, steps may find more in the cache.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from attention_runs import (
    HEADS,
    P,
    Run,
    bare_copies,
    bare_decode_products,
    bare_products,
    bare_softmax,
    compiled_run,
    interleaved,
    jax_run,
    make_mesh,
    torch_run,
)

import ascend_jax as aj
from ascend_jax.ops.attention.host_cores import usable_cores
from ascend_jax.ops.page_chunks import chunks_of

DTYPES = ("float32", "bfloat16", "float16")
NAIVE_LIMIT_BYTES = 1 << 28  # of scores: longer cases leave out the peers that hold them


def main() -> None:
    """Run the cases and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="results and ratios as JSON; the table goes to stderr")
    parser.add_argument("--full", action="store_true", help="S from 512 to 8,192, D of 64 and 128, 5 rounds")
    parser.add_argument("--seq", type=at_least_one, nargs="+", help="lengths of the sequence")
    parser.add_argument("--dims", type=at_least_one, nargs="+", help="head dimensions")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES[:2])
    parser.add_argument(
        "--heads", type=at_least_one, help="a multiple of the devices; by default about 4, fewer from 2,048 on"
    )
    parser.add_argument(
        "--devices", type=at_least_one, default=usable_cores(), help="CPU devices of JAX, by default one a core"
    )
    parser.add_argument("--rounds", type=at_least_one, help="timed runs of each case")
    parser.add_argument("--decode", action="store_true", help="only the paged decode case")
    parser.add_argument("--steps", action="store_true", help="flash and torch beside bare steps, instead of the peers")
    flags = parser.parse_args()
    if flags.devices > usable_cores():
        parser.error(f"--devices {flags.devices}: give at most {usable_cores()}, one for each core of this process")
    if flags.heads and flags.heads % flags.devices:
        at = f"--heads {flags.heads} --devices {flags.devices}"
        parser.error(f"{at}: each device takes as many heads; give a multiple of {flags.devices} heads, or --devices 1")
    jax.config.update("jax_platforms", "cpu")  # torch has the CPU too
    jax.config.update("jax_num_cpu_devices", flags.devices)
    lengths, dims, rounds = ([512, 1024, 2048, 4096, 8192], [64, 128], 5) if flags.full else ([1024, 4096], [64], 9)
    flags.seq, flags.dims, flags.rounds = flags.seq or lengths, flags.dims or dims, flags.rounds or rounds
    rows: list[dict[str, Any]] = []
    for found in cases(flags):
        rows += found
        for row in found:
            print(line(row), file=sys.stderr if flags.json else sys.stdout, flush=True)
    report = {"results": rows, "ratios": ratios(rows)}
    if flags.json:
        print(json.dumps(report))
        return
    for name, ratio in report["ratios"].items():
        print(f"{name:<50} {ratio:.2f}")


def at_least_one(text: str) -> int:
    """Return the number that a flag gives."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: give at least 1")
    return number


def cases(flags: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of one case after the other."""
    kinds = itertools.product(flags.dtypes, flags.dims, flags.seq, (False, True), (False, True))
    for dtype, dim, length, causal, backward in () if flags.decode else kinds:
        heads = flags.heads or default_heads(length, flags.devices)
        run = measure_steps if flags.steps else measure
        yield run(length, dim, dtype, causal, backward, heads, flags.rounds, flags.devices)
    yield measure_decode(flags.rounds, flags.devices, with_steps=flags.steps)


def default_heads(length: int, devices: int) -> int:
    """Return as many heads for each device, about 4 in all and fewer for long sequences."""
    return multiple(min(4, max(1, 4096 // length)), devices)


def multiple(least: int, of: int) -> int:
    """Return the first multiple of a number from ``least`` on."""
    return -(-least // of) * of


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    temp = "-" if row["temp_bytes"] is None else f"{row['temp_bytes'] / 2**20:.1f} MiB"
    time = f"{row['ms']:9.2f} ms x{row['spread']:<4.1f}"
    return f"{row['case']:<40} {row['impl']:<15} {time} {row['gflops']:8.1f} GFLOP/s  temp {temp}"


def measure(
    length: int,
    dim: int,
    dtype: str,
    causal: bool,
    backward: bool,
    heads: int,
    rounds: int,
    devices: int = 1,
    others: dict[str, Run] | None = None,
) -> list[dict[str, Any]]:
    """Return one row for each implementation of a case; ``others`` take the place of the peers that hold scores."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(1, length, heads, dim)).astype(np.float32) for _ in range(4)]
    operands = [jnp.asarray(x, dtype) for x in arrays]
    holds_scores = {
        "jax.nn": lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal),
        "naive": lambda q, k, v: aj.ops.plain_attention(q, k, v, causal=causal),
    }
    if others is not None or heads * length * length * 4 > NAIVE_LIMIT_BYTES:
        holds_scores = {}
    functions = {"flash": lambda q, k, v: aj.flash_attention(q, k, v, causal=causal)} | holds_scores
    if causal and others is None:
        functions["flash, full"] = aj.flash_attention
    mesh = make_mesh(devices)
    runs, temps = dict(others or {}), dict.fromkeys(others or {})
    for name, function in functions.items():
        options = None if name in holds_scores else aj.QUICK_TO_RUN
        runs[name], temps[name] = jax_run(function, operands, backward, mesh, options)
    if mesh is not None:
        for name in ("flash", *holds_scores):
            function = functions[name]
            runs[f"{name} 1 device"], temps[f"{name} 1 device"] = jax_run(function, operands, backward, None)
    torch_call = torch_run(arrays, dtype, causal, backward, None if mesh is None else usable_cores())
    if torch_call is not None:
        runs["torch"], temps["torch"] = torch_call, None
    flops = 4 * dim * heads * visible_pairs(length, causal) * (3.5 if backward else 1)
    case = f"{dtype} S={length} D={dim} {'causal' if causal else 'full'} {'fwd+bwd' if backward else 'fwd'}"
    return rows_of(case, runs, temps, flops, rounds)


def rows_of(case: str, runs: dict[str, Run], temps: dict[str, Any], flops: float, rounds: int) -> list[dict[str, Any]]:
    """Time the runs of a case; return their rows."""
    rows = []
    for name, times in interleaved(runs, rounds).items():
        ms, spread = statistics.median(times), max(times) / min(times)
        row = {"gflops": flops / ms / 1e6, "ms": ms, "spread": spread, "temp_bytes": temps[name]}
        rows.append({"case": case, "impl": name, **row})
    return rows


def visible_pairs(length: int, causal: bool) -> int:
    """Return how many pairs of a row and a column a head has."""
    return length * (length + 1) // 2 if causal else length * length


def measure_steps(
    length: int, dim: int, dtype: str, causal: bool, backward: bool, heads: int, rounds: int, devices: int = 1
) -> list[dict[str, Any]]:
    """Return flash, torch, and the bare products and softmax of a case."""
    tile = aj.ops.host_tiles(length, length, dim, skips=causal, cores=max(1, usable_cores() // devices))
    tiles = -(-heads * visible_pairs(length, causal) // (tile[0] * tile[1]))
    mesh = make_mesh(devices)
    bare = {f"products {kind}": bare_products(tile, dim, kind, tiles, backward, mesh) for kind in {dtype, "float32"}}
    others = bare | {"softmax": bare_softmax(tile, tiles, backward, mesh)}
    rows = {row["impl"]: row for row in measure(length, dim, dtype, causal, backward, heads, rounds, devices, others)}
    best = min((rows.pop(name) for name in bare), key=lambda row: row["ms"])
    return [*rows.values(), best | {"impl": "products"}]


def measure_decode(
    rounds: int, devices: int = 1, length: int = 16384, *, with_steps: bool = False
) -> list[dict[str, Any]]:
    """One query row against many keys in pages, by key heads, beside reading the same bytes once."""
    kv_heads = multiple(2, devices)
    batch, heads, dim, block = max(1, 8 // kv_heads), 4 * kv_heads, 128, 128
    pages = length // block
    rng = np.random.default_rng(0)
    pool = [rng.normal(size=(batch * pages, block, kv_heads * dim)).astype(np.float32) for _ in range(2)]
    q = rng.normal(size=(batch, 1, heads * dim)).astype(np.float32)
    table = rng.permutation(batch * pages).reshape(batch, pages).astype(np.int32)
    given, specs = (q, *pool, table, np.full(batch, length, np.int32)), (HEADS, HEADS, HEADS, P(), P())

    def decode(q: jax.Array, k: jax.Array, v: jax.Array, table: jax.Array, lengths: jax.Array) -> jax.Array:
        of_device = k.shape[2] // dim
        return aj.ops.fused_infer_attention_score(
            q, k, v, num_heads=q.shape[2] // dim, num_key_value_heads=of_device, scale_value=dim**-0.5,
            block_table=table, block_size=block, actual_seq_lengths_kv=lengths,
        ).attention_out  # fmt: skip

    mesh = make_mesh(devices)
    calls = {"flash": compiled_run(decode, given, mesh, specs, HEADS, aj.QUICK_TO_RUN)}
    read, of_heads = (lambda k, v: (k.sum() + v.sum())[None]), (HEADS, HEADS)
    calls["read"] = compiled_run(read, tuple(pool), mesh, of_heads, P("core"))
    if mesh is not None:
        calls["flash 1 device"] = compiled_run(decode, given, None, specs, HEADS)
    if with_steps:
        copies = bare_copies(pool, table, block, kv_heads, mesh)
        group, chunks = heads // kv_heads, chunks_of(block, pages, kv_heads // devices, dim)
        times = batch * (kv_heads // chunks.heads) * -(-length // chunks.rows)
        products = bare_decode_products(chunks.heads, chunks.rows, dim, group, times, mesh)
        softmax = bare_softmax((chunks.heads * group, chunks.rows), times, False, mesh)
        calls |= {"copies": (copies, None), "products": (products, None), "softmax": (softmax, None)}
    case = f"float32 decode B={batch} N={heads}/{kv_heads} S={length} D={dim} pages of {block}"
    runs, temps = ({name: call[at] for name, call in calls.items()} for at in (0, 1))
    return rows_of(case, runs, temps | {"read": None}, 4 * dim * heads * length * batch, rounds)


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return how many times as fast ``flash`` is as each peer, the median over S >= 1,024 of each kind of case.

    A peer in JAX counts where it is faster, on one device or on all. What ends in ", 1 device" is said of
    "flash 1 device".
    """
    by_case: dict[str, dict[str, float]] = {}
    for row in rows:
        by_case.setdefault(row["case"], {})[row["impl"]] = row["ms"]
    found: dict[str, list[float]] = {}
    for case, times in by_case.items():
        if "decode" in case:
            name = "decode time / time to read the bytes"
            if "copies" in times:
                found[f"{name}, steps alone"] = [
                    sum(times[step] for step in ("copies", "products", "softmax")) / times["read"]
                ]
            for impl in [impl for impl in times if impl.startswith("flash")]:
                where = impl.replace("flash 1", ", 1").removeprefix("flash")
                found[f"{name}{where}"] = [times[impl] / times["read"]]
            continue
        dtype, length, _, kind, what = case.split()
        if int(length[2:]) < 1024:
            continue
        for peer in ("jax.nn", "naive", "flash 1 device", "torch"):
            if peer in times:
                fastest = min(times[peer], times.get(f"{peer} 1 device", math.inf))
                found.setdefault(f"{dtype} {kind} {what} / {peer}", []).append(fastest / times["flash"])
        if {"flash 1 device", "torch"} <= times.keys():
            alone = times["torch"] / times["flash 1 device"]
            found.setdefault(f"{dtype} {kind} {what} / torch, 1 device", []).append(alone)
        if {"products", "torch"} <= times.keys():
            alone = times["torch"] / (times["products"] + times["softmax"])
            found.setdefault(f"{dtype} {kind} {what} / torch, steps alone", []).append(alone)
        if "flash, full" in times and int(length[2:]) >= 4096:
            found.setdefault(f"{dtype} causal / full speed {what}", []).append(times["flash, full"] / times["flash"])
    return {name: math.exp(statistics.median(map(math.log, each))) for name, each in found.items()}


if __name__ == "__main__":
    main()
