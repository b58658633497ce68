"""What the model says to a published matmul: library calls, single kernels, steps of a tuning ladder, peak tests."""

import dataclasses
import functools
import re

import jax

from ascend_jax.chip.pipeline import LIMITS
from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops.timing import matmul
from ascend_jax.ops.timing.answers import Answer
from ascend_jax.ops.timing.matmul import MatmulShape, Tile
from ascend_jax.ops.timing.products import cores_of
from ascend_jax.ops.timing.targets import Target


@functools.partial(jax.jit, static_argnames="library")
def _matmul(spec: ChipSpec, shape: MatmulShape, cores: int, library: bool) -> matmul.MatmulCost:
    return matmul.choose_tile(spec, shape, cores=cores, fixed_ns=matmul.vendor_fixed_ns(spec) if library else None)[0]


_matmul_tile = jax.jit(matmul.matmul_cost, static_argnames=("buffers", "constant_tiling"))


def matmul_shape(target: Target) -> MatmulShape:
    """Shape of a matmul row."""
    m, n, k = (target.count(axis) for axis in "mnk")
    return MatmulShape(m, n, k, target.dtype_bytes, target.counts.get("batch", 1))


def gemm(spec: ChipSpec, target: Target) -> Answer:
    """Library matmul, warm: the fastest tile and the launch of a library."""
    shape = matmul_shape(target)
    return _matmul_answer(_matmul(spec, shape, cores_of(spec, target), True), shape)


def gemm_task(spec: ChipSpec, target: Target) -> Answer:
    """One kernel: the fastest tile, pipelined, unless the note says otherwise in words of `STEPS`.

    `tile 64x64x64` in a note states the tile. In the note of a tuning ladder (`ladder`) the last step that it names is
    the one the kernel has reached. A step without a tile takes 128 x 256, which is a guess. Other words say nothing.
    """
    shape, cores, note = matmul_shape(target), cores_of(spec, target), target.note.lower()
    tile = re.search(r"\btile\s+\[?(\d+)\s*[x*,]\s*(\d+)(?:\s*[x*,]\s*(\d+))?", note)
    step = _step(note)
    if not tile and step is None:
        return _matmul_answer(_matmul(spec, shape, cores, False), shape)
    depth = 128 // target.dtype_bytes
    bm, bn, bk = (int(tile[1]), int(tile[2]), int(tile[3] or depth)) if tile else (128, 256, depth)
    if min(bm, bn, bk) < 16 or any(side % 16 for side in (bm, bn, bk)):
        raise ValueError(f"tile {bm}x{bn}x{bk}: sides are multiples of 16, the edge of a cube step")
    serial, constant = step == "serial", step in (None, "constant")
    chosen = Tile(bm, bn, bk, 1 if serial else 4)
    found = _matmul_tile(spec, shape, chosen, cores=cores, buffers=1 if serial else 2, constant_tiling=constant)
    if not bool(found.fits):
        raise ValueError(f"tile {bm}x{bn}x{bk} does not fit {spec.name}")
    guess = "" if tile and tile[3] else "the row states no tile; 128 x 256 stands in"
    return dataclasses.replace(_matmul_answer(found, shape), guess=guess)


# What the words of a gemm_task note mean; words of a ladder count only in a note with the word `ladder`.
STEPS: dict[str, tuple[str, ...]] = {
    "serial": ("naive", "single buffer", "single-buffer", "single buffering", "no double buffer"),
    "ladder serial": ("tile", "split"),  # the first steps of the published ladder, before any buffer is doubled
    "ladder pipelined": ("double", "ping", "pong", "pingpong", "preload", "depth", "l1", "l2"),
    "ladder constant": ("const", "constant", "unit"),
}


def _step(note: str) -> str | None:
    """`serial`, `pipelined` or `constant` (pipelined, the tiling a compile-time constant); None: nothing is said."""
    is_ladder = _says(note, "ladder")
    for name in ("serial", "ladder constant", "ladder pipelined", "ladder serial"):
        if any(_says(note, word) for word in STEPS[name]) and (is_ladder or name == "serial"):
            return name.removeprefix("ladder ")
    return None


def _says(note: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", note) is not None


def gemm_peak_test(spec: ChipSpec, target: Target) -> Answer:
    """Best rate of square library matmuls from 2048 to 8192."""
    shapes = [MatmulShape(n, n, n, target.dtype_bytes) for n in (2048, 3072, 4096, 6144, 8192)]
    answers = [_matmul_answer(_matmul(spec, shape, cores_of(spec, target), True), shape) for shape in shapes]
    return dataclasses.replace(max(answers, key=lambda answer: answer.flop / answer.time_ns), is_rate=True)


def _matmul_answer(found: matmul.MatmulCost, shape: MatmulShape) -> Answer:
    return Answer(float(found.duration_ns), LIMITS[int(found.limit)], flop=float(shape.flop))
