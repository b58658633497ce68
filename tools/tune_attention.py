"""Measure host tiles and write the table that ``host_tiles`` reads.

    python tools/tune_attention.py [--write] [--rounds 5] [--seq 1024 4096] [--dims 64 128 256] [--one-core]

For each length and head dimension, every tile runs a training step, without a mask and with a causal one, all taking
turns; the least median wins. A length stands for all up to half the next one. bfloat16 is multiplied as it is where
that saves a twentieth; float16 never, because its range is too small for gradients divided by a row sum. ``--write``
replaces the rows of this backend in ``ascend_jax/ops/attention/host_tile_table.py`` and leaves those of the others.
Rows that say what the next one says are left out. ``--one-core`` measures on one core (Linux only), for the devices of
a CPU that have one each, and writes only their tiles.
"""

import argparse
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

import ascend_jax as aj
from ascend_jax.ops.attention import host_tile_table
from ascend_jax.ops.attention.kernel import attend, scoring_of
from ascend_jax.ops.attention.scoring import Options
from ascend_jax.ops.attention.visibility import Visibility

TILES = ((128, 128), (256, 256), (256, 512), (512, 256), (512, 512), (512, 1024), (1024, 256), (1024, 512))
Tile = tuple[int, int]
Row = tuple[int, int, Tile, Tile]
K = TypeVar("K")


def main() -> None:
    """Tune, print, and write on demand."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the rows of this backend in the table")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each tile")
    parser.add_argument("--seq", type=int, nargs="+", default=[1024, 4096], help="lengths of the sequence")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256], help="head dimensions")
    parser.add_argument("--one-core", action="store_true", help="measure on one core, for devices that have one each")
    flags = parser.parse_args()
    if min(flags.rounds, *flags.seq, *flags.dims) < 1:
        parser.error("--rounds, --seq and --dims are at least 1")
    if flags.one_core and not hasattr(os, "sched_setaffinity"):
        parser.error("--one-core: this system does not bind a process to a core; run it on Linux")
    if flags.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows: list[Row] = []
    for length in sorted(flags.seq):
        for dim in sorted(flags.dims):
            best = []
            for causal in (False, True):
                times = measure(length, dim, causal, flags.rounds)
                best.append(min(times, key=times.__getitem__))
                found = ", ".join(f"{tile} {ms:.1f} ms" for tile, ms in times.items())
                print(f"S = {length}, D <= {dim}, {'causal' if causal else 'full'}: {found}", flush=True)
            # a length stands for all up to half the next one
            longest = 0 if length == max(flags.seq) else min(x for x in flags.seq if x > length) // 2
            rows.append((longest, 0 if dim == max(flags.dims) else dim, best[0], best[1]))
    rows = shortened(rows)
    narrow = ("bfloat16",) if narrow_gain(flags.rounds) > 1.05 else ()
    print(f"multiplied as they are: {narrow}")
    if flags.write:
        backend = jax.default_backend()
        tiles = {**host_tile_table.HOST_TILES, f"{backend} core" if flags.one_core else backend: tuple(rows)}
        types = {**host_tile_table.NARROW_PRODUCTS} | ({} if flags.one_core else {backend: narrow})
        pathlib.Path(host_tile_table.__file__).write_text(render(tiles, types))


def shortened(rows: list[Row]) -> list[Row]:
    """Return the rows without those whose shapes find the same tiles in what follows.

    >>> small, large = ((256, 256), (256, 256)), ((512, 512), (256, 256))
    >>> shortened([(2048, 64, *small), (2048, 0, *small), (0, 64, *large), (0, 0, *large)])
    [(2048, 0, (256, 256), (256, 256)), (0, 0, (512, 512), (256, 256))]
    """
    kept: list[Row] = []
    for row in reversed(rows):
        is_last_of_length = not kept or kept[0][0] != row[0]
        following = kept if is_last_of_length else kept[:1]
        if not following or any(each[2:] != row[2:] for each in following):
            kept.insert(0, row)
    return kept


def measure(length: int, dim: int, causal: bool, rounds: int) -> dict[Tile, float]:
    """Return the median milliseconds of a training step of two heads, for each tile."""
    x = jnp.ones((1, length, 2, dim)) * 0.01

    def loss(tile: Tile) -> Callable[..., jax.Array]:
        return lambda q, k, v: aj.flash_attention(q, k, v, causal=causal, tile=tile).sum()

    return medians({tile: loss(tile) for tile in TILES}, x, rounds)


def narrow_gain(rounds: int) -> float:
    """Return how many times as fast a training step of bfloat16 is with 16-bit products."""
    x = jnp.ones((1, 1024, 2, 64), jnp.bfloat16) * 0.01
    scoring = scoring_of(Visibility(1024, 1024))

    def loss(is_narrow: bool) -> Callable[..., jax.Array]:
        options = Options((256, 256), is_narrow=is_narrow)
        return lambda *x: attend(*(y.swapaxes(1, 2) for y in x), scoring, options, scale=0.1)[0].sum()

    ms = medians({is_narrow: loss(is_narrow) for is_narrow in (False, True)}, x, rounds)
    return ms[False] / ms[True]


def medians(losses: dict[K, Callable[..., jax.Array]], x: jax.Array, rounds: int) -> dict[K, float]:
    """Return the median milliseconds of the gradient of each loss of (x, x, x), all taking turns."""
    steps: dict[K, Callable[[], object]] = {}
    for key, loss in losses.items():
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).compile()
        steps[key] = lambda compiled=compiled: jax.block_until_ready(compiled(x, x, x))  # type: ignore[misc]
        steps[key]()
    times: dict[K, list[float]] = {key: [] for key in steps}
    for _ in range(rounds):
        for key, step in steps.items():
            start = time.perf_counter()
            step()
            times[key].append((time.perf_counter() - start) * 1e3)
    return {key: statistics.median(each) for key, each in times.items()}


def render(table: dict[str, tuple[Row, ...]], narrow: dict[str, tuple[str, ...]]) -> str:
    """Return the text of the table's module."""
    lines = [
        f'"""{host_tile_table.__doc__}"""',
        "",
        "HOST_TILES: dict[str, tuple[tuple[int, int, tuple[int, int], tuple[int, int]], ...]] = {",
    ]
    for backend, rows in sorted(table.items()):
        each = [f'    "{backend}": (', *(f"        {row}," for row in rows), "    ),"]
        lines += each if len(rows) > 1 else [f'    "{backend}": {rows},']
    lines += ["}", "", "NARROW_PRODUCTS: dict[str, tuple[str, ...]] = {"]
    lines += [f'    "{backend}": ' + repr(types).replace("'", '"') + "," for backend, types in sorted(narrow.items())]
    return "\n".join([*lines, "}"]) + "\n"


if __name__ == "__main__":
    main()
