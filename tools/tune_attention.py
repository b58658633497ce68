"""Measure host tiles and write the table that ``host_tiles`` reads.

    python tools/tune_attention.py [--write] [--rounds 5] [--seq 1024 4096] [--dims 64 128 256] [--per-core]

For each length and head dimension, every tile runs a forward pass and a training step, without a mask and with a causal
one, all taking turns; the least product of the two medians wins. A length stands for all up to half the next one.
bfloat16 is multiplied as it is where that saves a twentieth; float16 never, because its range is too small for
gradients divided by a row sum. ``--write`` replaces the rows of this backend in
``ascend_jax/ops/attention/host_tile_table.py`` and leaves those of the others. Rows that say what the next one says are
left out. ``--per-core`` measures on a CPU device for each core, all at work at once, and writes only the tiles of such
devices: smaller ones, because XLA shares out a larger product to the threads of other devices and waits for them:
jaxlib 0.10.2 does so above some 2^22 multiply-adds, and reduces the rows of more than 2^15 numbers so.
"""

import argparse
import functools
import itertools
import math
import pathlib
import statistics
from typing import TypeVar

import jax
import jax.numpy as jnp
from attention_runs import Run, jax_run, make_mesh, one_round
from jax.sharding import Mesh

import ascend_jax as aj
from ascend_jax.ops.attention import host_tile_table
from ascend_jax.ops.attention.host_cores import usable_cores
from ascend_jax.ops.attention.kernel import attend, scoring_of
from ascend_jax.ops.attention.scoring import Options
from ascend_jax.ops.attention.visibility import Visibility

TILES = (
    *((128, 128), (256, 128), (512, 128), (256, 256), (256, 512)),
    *((512, 256), (512, 512), (1024, 256), (1024, 512)),
)
HEADS = 2  # of a device
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
    parser.add_argument("--per-core", action="store_true", help="measure on a device for each core, for such devices")
    flags = parser.parse_args()
    if min(flags.rounds, *flags.seq, *flags.dims) < 1:
        parser.error("--rounds, --seq and --dims are at least 1")
    cores = usable_cores()
    if flags.per_core and cores < 2:
        parser.error("--per-core: this process may use one core, and a device for it has them all; leave the flag out")
    if flags.per_core:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", cores)
    mesh = make_mesh(cores) if flags.per_core else None
    rows: list[Row] = []
    for length in sorted(flags.seq):
        for dim in sorted(flags.dims):
            best = []
            for causal in (False, True):
                times = measure(length, dim, causal, flags.rounds, mesh)
                best.append(min(times, key=lambda tile: math.prod(times[tile])))
                found = ", ".join(f"{tile} {forward:.1f} and {step:.1f} ms" for tile, (forward, step) in times.items())
                print(f"S = {length}, D <= {dim}, {'causal' if causal else 'full'}: {found}", flush=True)
            # a length stands for all up to half the next one
            longest = 0 if length == max(flags.seq) else min(x for x in flags.seq if x > length) // 2
            rows.append((longest, 0 if dim == max(flags.dims) else dim, best[0], best[1]))
    rows = shortened(rows)
    narrow = ("bfloat16",) if narrow_gain(flags.rounds) > 1.05 else ()
    print(f"multiplied as they are: {narrow}")
    if flags.write:
        backend = jax.default_backend()
        tiles = {**host_tile_table.HOST_TILES, f"{backend} core" if flags.per_core else backend: tuple(rows)}
        types = {**host_tile_table.NARROW_PRODUCTS} | ({} if flags.per_core else {backend: narrow})
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


def measure(length: int, dim: int, causal: bool, rounds: int, mesh: Mesh | None) -> dict[Tile, tuple[float, float]]:
    """Return the milliseconds of a forward pass, and of a training step, of the heads of each device, for each tile."""
    x = jnp.ones((1, length, HEADS * (1 if mesh is None else mesh.size), dim)) * 0.01
    runs = {}
    for tile, backward in itertools.product(TILES, (False, True)):
        attention = functools.partial(aj.flash_attention, causal=causal, tile=tile)
        runs[tile, backward] = jax_run(attention, [x] * 4, backward, mesh, aj.QUICK_TO_RUN)[0]
    ms = medians(runs, rounds)
    return {tile: (ms[tile, False], ms[tile, True]) for tile in TILES}


def narrow_gain(rounds: int) -> float:
    """Return how many times as fast a training step of bfloat16 is with 16-bit products."""
    x = jnp.ones((1, 1024, HEADS, 64), jnp.bfloat16) * 0.01
    scoring = scoring_of(Visibility(1024, 1024))

    def attention(is_narrow: bool, *given: jax.Array) -> jax.Array:
        q, k, v = (y.swapaxes(1, 2) for y in given)
        return attend(q, k, v, scoring, Options((256, 256), is_narrow=is_narrow), scale=0.1)[0].swapaxes(1, 2)

    runs = {narrow: jax_run(functools.partial(attention, narrow), [x] * 4, True, None)[0] for narrow in (False, True)}
    ms = medians(runs, rounds)
    return ms[False] / ms[True]


def medians(runs: dict[K, Run], rounds: int) -> dict[K, float]:
    """Return the median milliseconds of each run, all taking turns."""
    times = [one_round(runs) for _ in range(rounds)]
    return {key: statistics.median(each[key] for each in times) for key in runs}


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
