"""Measure host tiles and write the table that ``host_tiles`` reads.

    python tools/tune_attention.py [--write] [--rounds 5] [--seq 1024 4096] [--dims 64 128 256]

For each head dimension, every tile runs a causal training step of every length, all taking turns; the tile with the
least sum of logarithms of its medians wins. ``--write`` replaces the rows of this backend in
``ascend_jax/ops/attention/host_tile_table.py`` and leaves those of the others.
"""

import argparse
import importlib.util
import math
import pathlib
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

import ascend_jax as aj
from ascend_jax.ops.attention import host_tile_table

TILES = ((128, 128), (256, 256), (256, 512), (512, 256), (512, 512), (512, 1024), (1024, 512))
Row = tuple[int, int, int, int]


def main() -> None:
    """Tune, print, and write on demand."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seq", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256])
    flags = parser.parse_args()
    rows: list[Row] = []
    for dim in sorted(flags.dims):
        scores = dict.fromkeys(TILES, 0.0)
        for length in flags.seq:
            for tile, ms in measure(length, dim, flags.rounds).items():
                scores[tile] += math.log(ms)
        best = min(scores, key=scores.__getitem__)
        print(f"D <= {dim}: {best}")
        rows.append((0, 0 if dim == max(flags.dims) else dim, *best))
    rows = [row for row, after in zip(rows, [*rows[1:], None], strict=True) if after is None or row[2:] != after[2:]]
    if flags.write:
        path = pathlib.Path(importlib.util.find_spec(host_tile_table.__name__).origin)  # type: ignore[union-attr,arg-type]
        path.write_text(render({**host_tile_table.HOST_TILES, jax.default_backend(): tuple(rows)}))


def measure(length: int, dim: int, rounds: int) -> dict[tuple[int, int], float]:
    """Return the median milliseconds of a causal training step of two heads, for each tile."""
    x = jnp.ones((1, length, 2, dim)) * 0.01
    steps: dict[tuple[int, int], Callable[[], object]] = {}
    for tile in TILES:

        def loss(q: jax.Array, k: jax.Array, v: jax.Array, tile: tuple[int, int] = tile) -> jax.Array:
            return aj.flash_attention(q, k, v, causal=True, tile=tile).sum()

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).compile()
        steps[tile] = lambda compiled=compiled: jax.block_until_ready(compiled(x, x, x))  # type: ignore[misc]
        steps[tile]()
    times: dict[tuple[int, int], list[float]] = {tile: [] for tile in TILES}
    for _ in range(rounds):
        for tile, step in steps.items():
            start = time.perf_counter()
            step()
            times[tile].append((time.perf_counter() - start) * 1e3)
    return {tile: statistics.median(each) for tile, each in times.items()}


def render(table: dict[str, tuple[Row, ...]]) -> str:
    """Return the text of the table's module."""
    lines = [f'"""{host_tile_table.__doc__}"""', "", "HOST_TILES: dict[str, tuple[tuple[int, int, int, int], ...]] = {"]
    lines += [f'    "{backend}": {rows},' for backend, rows in sorted(table.items())]
    return "\n".join([*lines, "}"]) + "\n"


if __name__ == "__main__":
    main()
