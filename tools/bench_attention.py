"""Measure FlashAttention on this machine's CPU, side by side with its peers in one process.

    python tools/bench_attention.py [--json] [--full] [--seq 1024 4096] [--dims 64] [--heads 4] [--rounds 3]
                                    [--decode | --ceiling]

Prints each case as soon as it is measured (with ``--json`` to stderr). By default S is 1,024 and 4,096 and D is 64;
``--full`` takes S from 512 to 8,192 and D of 64 and 128, and many minutes.

Peers: ``torch.nn.functional.scaled_dot_product_attention`` (if torch is installed), ``jax.nn.dot_product_attention``,
and the unfused form. Every round runs each implementation once, in turn, so that a busy machine disturbs all alike;
figures are medians, of 3 rounds where one takes long. FLOPs are those of the visible pairs, 4 D each forward and 3.5
times that with backward, for every implementation, whatever it really computes. ``temp_bytes`` is what XLA allocates
beside operands and results; for torch it is not known. Threads of torch wait for one another at every step: while other
programs hold one of the cores, torch loses more than the rest, and the ratios flatter.

``--ceiling`` tells how fast attention could be at best with XLA's products: beside flash and torch it times "products",
the 2-D products (two forward, five backward) of as many host tiles as the visible pairs fill, in the operand type that
is faster, and "softmax", the maxima, exponentials and sums of the same tiles, and nothing else. "at best" is the time
of torch divided by the two.
"""

import argparse
import functools
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ascend_jax as aj

Run = Callable[[], object]
NAIVE_LIMIT_BYTES = 1 << 28  # of scores: longer cases leave out the peers that hold them
SETTLE_S = 0.02  # torch's threads spin for some milliseconds, on the cores that the next in turn needs
LONG_ROUND_MS = 400.0  # a round of all implementations that takes longer is run 3 times at most


def main() -> None:
    """Run the cases and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true", help="S from 512 to 8,192, D of 64 and 128, 5 rounds")
    parser.add_argument("--seq", type=int, nargs="+")
    parser.add_argument("--dims", type=int, nargs="+")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--heads", type=int, help="by default 4, fewer from 2,048 on")
    parser.add_argument("--rounds", type=int)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--decode", action="store_true", help="only the paged decode case")
    only.add_argument("--ceiling", action="store_true", help="only flash and torch beside bare products and softmax")
    flags = parser.parse_args()
    lengths, dims, rounds = ([512, 1024, 2048, 4096, 8192], [64, 128], 5) if flags.full else ([1024, 4096], [64], 3)
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


def cases(flags: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of one case after the other."""
    kinds = itertools.product(flags.dtypes, flags.dims, flags.seq, (False, True), (False, True))
    for dtype, dim, length, causal, backward in () if flags.decode else kinds:
        heads = flags.heads or min(4, max(1, 4096 // length))
        yield (measure_ceiling if flags.ceiling else measure)(length, dim, dtype, causal, backward, heads, flags.rounds)
    if not flags.ceiling:
        yield measure_decode(flags.rounds)


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    temp = "-" if row["temp_bytes"] is None else f"{row['temp_bytes'] / 2**20:.1f} MiB"
    return f"{row['case']:<40} {row['impl']:<8} {row['ms']:9.2f} ms {row['gflops']:8.1f} GFLOP/s  temp {temp}"


def measure(
    length: int,
    dim: int,
    dtype: str,
    causal: bool,
    backward: bool,
    heads: int,
    rounds: int,
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
    functions = {"flash": lambda q, k, v: aj.flash_attention(q, k, v, causal=causal)}
    if others is None and heads * length * length * 4 <= NAIVE_LIMIT_BYTES:
        functions |= holds_scores
    runs, temps = dict(others or {}), dict.fromkeys(others or {})
    for name, function in functions.items():
        runs[name], temps[name] = jax_run(function, operands, backward)
    torch_call = torch_run(arrays, dtype, causal, backward)
    if torch_call is not None:
        runs["torch"], temps["torch"] = torch_call, None
    flops = 4 * dim * heads * visible_pairs(length, causal) * (3.5 if backward else 1)
    case = f"{dtype} S={length} D={dim} {'causal' if causal else 'full'} {'fwd+bwd' if backward else 'fwd'}"
    times = interleaved(runs, rounds)
    return [
        {"case": case, "impl": name, "gflops": flops / ms / 1e6, "ms": ms, "temp_bytes": temps[name]}
        for name, ms in times.items()
    ]


def visible_pairs(length: int, causal: bool) -> int:
    """Return how many pairs of a row and a column a head has."""
    return length * (length + 1) // 2 if causal else length * length


def measure_ceiling(
    length: int, dim: int, dtype: str, causal: bool, backward: bool, heads: int, rounds: int
) -> list[dict[str, Any]]:
    """Return flash, torch, and the bare products and softmax of a case."""
    tile = aj.ops.host_tiles(length, length, dim)
    tiles = -(-heads * visible_pairs(length, causal) // (tile[0] * tile[1]))
    bare = {f"products {kind}": bare_products(tile, dim, kind, tiles, backward) for kind in {dtype, "float32"}}
    others = bare | {"softmax": bare_softmax(tile, tiles, backward)}
    rows = {row["impl"]: row for row in measure(length, dim, dtype, causal, backward, heads, rounds, others)}
    best = min((rows.pop(name) for name in bare), key=lambda row: row["ms"])
    return [*rows.values(), best | {"impl": "products"}]


def bare_products(tile: tuple[int, int], dim: int, kind: str, tiles: int, backward: bool) -> Run:
    """Return what runs the two products of a tile forward, and the five backward, so many times."""
    rng = np.random.default_rng(0)
    rows, cols = tile
    shapes = {
        "rows": (2, 1 + 2 * backward, rows, dim), "keys": (dim, cols), "weights": (rows, cols),
        "values": (2, 1 + backward, cols, dim), "columns": (2, 2 * backward, dim, rows),
    }  # fmt: skip
    given = {name: jnp.asarray(rng.normal(size=shape), kind) for name, shape in shapes.items()}

    def step(n: int, _: Any, x: dict[str, jax.Array]) -> Any:
        x = x | {name: x[name][n % 2] for name in ("rows", "values", "columns")}  # so that every step has to be done
        dot = functools.partial(jnp.dot, precision="highest", preferred_element_type=jnp.float32)
        scores = [dot(each, x["keys"]) for each in x["rows"]]  # forward, again backward, and d_out v^T
        sums = [dot(x["weights"], each) for each in x["values"]]  # out, dq
        return scores, sums, [dot(each, x["weights"]) for each in x["columns"]]  # dk, dv

    return repeated(step, given, tiles)


def bare_softmax(tile: tuple[int, int], tiles: int, backward: bool) -> Run:
    """Return what the softmax of a tile takes forward, and backward, so many times."""
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(2, *tile)).astype(np.float32))

    def step(n: int, state: Any, scores: jax.Array) -> Any:
        highest = scores[n % 2].max(axis=1)
        weights = jnp.exp(scores[n % 2] - highest[:, None])
        again = jnp.exp(scores[n % 2] - state[0][:, None]) * scores[1 - n % 2] if backward else 0.0
        return highest, weights.sum(axis=1), weights, jnp.asarray(again)

    return repeated(step, scores, tiles)


def repeated(step: Callable[..., Any], given: Any, times: int) -> Run:
    """Compile ``state = step(n, state, given)``, so many times."""

    def run(given: Any) -> Any:
        start = jax.tree.map(jnp.zeros_like, step(0, (jnp.zeros(1),), given))
        return jax.lax.fori_loop(0, times, lambda n, state: step(n, state, given), start)

    compiled = jax.jit(run).lower(given).compile()
    return lambda: jax.block_until_ready(compiled(given))


def jax_run(function: Callable[..., jax.Array], operands: list[jax.Array], backward: bool) -> tuple[Run, int]:
    """Compile a case; return what runs it once, and its temporary bytes."""

    def train(q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array) -> object:
        out, pull = jax.vjp(function, q, k, v)
        return out, pull(d_out)

    given = operands if backward else operands[:3]
    compiled = jax.jit(train if backward else function).lower(*given).compile()
    return lambda: jax.block_until_ready(compiled(*given)), compiled.memory_analysis().temp_size_in_bytes


def torch_run(arrays: list[np.ndarray], dtype: str, causal: bool, backward: bool) -> Run | None:
    """Return what runs torch's fused CPU attention once, or None without torch."""
    try:
        import torch
    except ImportError:
        return None
    q, k, v, d_out = (torch.tensor(x).swapaxes(1, 2).contiguous().to(getattr(torch, dtype)) for x in arrays)
    attention = torch.nn.functional.scaled_dot_product_attention

    def forward() -> object:
        with torch.no_grad():
            return attention(q, k, v, is_causal=causal)

    def train() -> object:
        return torch.autograd.grad(attention(q, k, v, is_causal=causal), (q, k, v), d_out)

    if backward:
        for x in (q, k, v):
            x.requires_grad_(True)
    return train if backward else forward


def interleaved(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each run, all taking turns."""
    for run in runs.values():
        run()
    times = [{name: milliseconds(run) for name, run in runs.items()}]
    while len(times) < (min(rounds, 3) if sum(times[0].values()) > LONG_ROUND_MS else rounds):
        times.append({name: milliseconds(run) for name, run in runs.items()})
    return {name: statistics.median(each[name] for each in times) for name in runs}


def milliseconds(run: Run) -> float:
    """Return what one run takes, once the threads of the one before have stopped spinning for more work."""
    time.sleep(SETTLE_S)
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def measure_decode(rounds: int) -> list[dict[str, Any]]:
    """One query row against 16,384 keys in pages, beside reading the same bytes once."""
    batch, heads, kv_heads, dim, length, block = 4, 8, 2, 128, 16384, 128
    pages = length // block
    rng = np.random.default_rng(0)
    pool = [jnp.asarray(rng.normal(size=(batch * pages, block, kv_heads * dim)).astype(np.float32)) for _ in range(2)]
    q = jnp.asarray(rng.normal(size=(batch, 1, heads * dim)).astype(np.float32))
    table = jnp.asarray(rng.permutation(batch * pages).reshape(batch, pages))
    lengths = jnp.full(batch, length)

    def decode(q: jax.Array, k: jax.Array, v: jax.Array, table: jax.Array, lengths: jax.Array) -> jax.Array:
        return aj.ops.fused_infer_attention_score(
            q, k, v, num_heads=heads, num_key_value_heads=kv_heads, scale_value=dim**-0.5, block_table=table,
            block_size=block, actual_seq_lengths_kv=lengths,
        ).attention_out  # fmt: skip

    given = (q, *pool, table, lengths)
    compiled = jax.jit(decode).lower(*given).compile()
    read = jax.jit(lambda k, v: k.sum() + v.sum())
    runs: dict[str, Run] = {
        "flash": lambda: jax.block_until_ready(compiled(*given)),
        "read": lambda: jax.block_until_ready(read(*pool)),
    }
    case = f"float32 decode B={batch} N={heads}/{kv_heads} S={length} D={dim} pages of {block}"
    flops = 4 * dim * heads * length * batch
    temps = {"flash": compiled.memory_analysis().temp_size_in_bytes, "read": None}
    return [
        {"case": case, "impl": name, "gflops": flops / ms / 1e6, "ms": ms, "temp_bytes": temps[name]}
        for name, ms in interleaved(runs, rounds).items()
    ]


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return how many times as fast ``flash`` is as each peer, the median over S >= 1,024 of each kind of case."""
    by_case: dict[str, dict[str, float]] = {}
    for row in rows:
        by_case.setdefault(row["case"], {})[row["impl"]] = row["ms"]
    found: dict[str, list[float]] = {}
    for case, times in by_case.items():
        if "decode" in case:
            found["decode time / time to read the bytes"] = [times["flash"] / times["read"]]
            continue
        dtype, length, _, kind, what = case.split()
        if int(length[2:]) < 1024:
            continue
        for peer in [name for name in times if name not in ("flash", "products", "softmax")]:
            found.setdefault(f"{dtype} {kind} {what} / {peer}", []).append(times[peer] / times["flash"])
        if {"products", "torch"} <= times.keys():
            at_best = times["torch"] / (times["products"] + times["softmax"])
            found.setdefault(f"{dtype} {kind} {what} / torch, at best", []).append(at_best)
        full = by_case.get(case.replace("causal", "full"), {}).get("flash")
        if kind == "causal" and int(length[2:]) >= 4096 and full is not None:
            found.setdefault(f"{dtype} causal / full speed {what}", []).append(full / times["flash"])
    return {name: math.exp(statistics.median(map(math.log, each))) for name, each in found.items()}


if __name__ == "__main__":
    main()
