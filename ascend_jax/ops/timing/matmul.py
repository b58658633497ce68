"""Time of a matrix multiply C[m, n] = A[m, k] B[k, n] on the cube cores, and the search for its tile.

One base step multiplies `[bm, bk] x [bk, bn]` in L0; `steps_k` base steps are loaded into L1 at once. Per base step:

| queue | time |
|---|---|
| cube | 6 + ceil(bm/16) ceil(bn/16) ceil(bk/k0) cycles |
| mte1 | A / L1->L0A + B / L1->L0B |
| mte2 | (bm + bn) bk bytes / rate from L2, slowed by runs of bk steps_k (A), bn (B) elements and rows off a line |
| scalar | `tiling_cycles`, if the tiling is no compile-time constant; nothing hides them |

FixPipe drains a C tile from L0C: behind the next tile if L0C holds two, else, block of 512 B by block (unit flags),
behind the last step of its tile and the first of the next. Tiles are dealt to the cores in waves.

HBM: cores at work form a grid of g x cores / g tiles of C, g = floor(sqrt(cores)) (4 x 6 on 24 cores, as the vendor's
sample splits them); for each g bm rows all of B passes by. B and such a row block of A and C are the working set; what
of it misses L2 (`miss_share`) comes from HBM once per block. A library matmul runs again and again: what of A, B and C
together survives in L2 needs no HBM at all.

HBM's time is shared evenly by all base steps and adds to their MTE2: a line comes into L2 before it goes to a core.

time = head + end + max(fill + waves * tile, HBM bytes / HBM rate)
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip import cost, memory
from ascend_jax.chip.onchip import Buffer, OnChipPlan, place
from ascend_jax.chip.pipeline import QUEUES, bound, serial_ns, stages, steady_ns
from ascend_jax.chip.spec import ChipSpec


class Tile(NamedTuple):
    """A tiling: base step `[bm, bk] x [bk, bn]` in L0, `steps_k` of them per load into L1. Ints, or `[T]` arrays."""

    bm: Any
    bn: Any
    bk: Any
    steps_k: Any


def _candidates(size: int) -> list[Tile]:
    """Tiles of powers of two; tall ones only for narrow outputs, as in the library, whose default is 128 x 256."""
    sides = (16, 32, 64, 128, 256)
    depths = tuple(depth // size for depth in (128, 256, 512))
    pairs = [(m, n) for m in sides for n in sides if n >= m or n < 128]
    return [Tile(m, n, k, steps) for m, n in pairs for k in depths for steps in (1, 2, 4)]


TILES: dict[int, tuple[Tile, ...]] = {size: tuple(_candidates(size)) for size in (1, 2, 4)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MatmulShape:
    """Shape of one launch. Sizes may be traced, so that one compiled search serves all shapes.

    Raises:
        ValueError: A size below 1, or dtype_bytes other than 1, 2, 4.
    """

    m: Any  # int, or traced [...] int32
    n: Any
    k: Any
    dtype_bytes: int = dataclasses.field(metadata={"static": True})
    batch: Any = 1

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            size = getattr(self, name)
            if not isinstance(size, jax.Array) and np.min(size) < 1:
                raise ValueError(f"{name}={size}: a matmul needs sizes of at least 1")
        if self.dtype_bytes not in (1, 2, 4):
            raise ValueError(f"dtype_bytes={self.dtype_bytes}: the cube multiplies operands of 1, 2 or 4 bytes")

    @property
    def flop(self) -> Any:
        """Floating-point operations, 2 m n k batch, as float."""
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def output_bytes(self) -> int:
        """Bytes of one element of C: that of the operands, 4 for the int32 sums of int8."""
        return 4 if self.dtype_bytes == 1 else self.dtype_bytes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class MatmulCost:
    """Time and traffic of one launch; leaves are scalars or have the axes of what was vmapped."""

    duration_ns: jax.Array  # float32 ns, head to end; inf if the tile does not fit
    core_ns: jax.Array  # float32 ns, busiest core
    hbm_ns: jax.Array  # float32 ns
    busy_ns: jax.Array  # float32 [7], busiest core by queue
    hbm_bytes: jax.Array  # float32
    l2_bytes: jax.Array  # float32, from L2 into L1 of all cores, and C
    blocks: jax.Array  # int32, C tiles
    waves: jax.Array  # int32, C tiles of the busiest core
    limit: jax.Array  # int32, index into chip.pipeline.LIMITS
    fits: jax.Array  # bool


def tile_buffers(shape: MatmulShape, tile: Tile, *, buffers: int = 2) -> tuple[Buffer, ...]:
    """On-chip buffers of a tile."""
    size = shape.dtype_bytes
    left, right = tile.bm * tile.bk * size, tile.bk * tile.bn * size
    return (
        Buffer("L1", "a", left * tile.steps_k, copies=buffers),
        Buffer("L1", "b", right * tile.steps_k, copies=buffers),
        Buffer("L0A", "a", left, copies=buffers),
        Buffer("L0B", "b", right, copies=buffers),
        Buffer("L0C", "c", tile.bm * tile.bn * 4),
    )


def place_tile(spec: ChipSpec, shape: MatmulShape, tile: Tile, *, buffers: int = 2) -> OnChipPlan:
    """Where the buffers of a tile lie; `chip.onchip.require` refuses a misfit, with numbers."""
    return place(spec, tile_buffers(shape, tile, buffers=buffers))


def matmul_cost(
    spec: ChipSpec,
    shape: MatmulShape,
    tile: Tile,
    *,
    cores: Any = None,
    buffers: int = 2,
    constant_tiling: bool = True,
    fixed_ns: Any = None,
) -> MatmulCost:
    """Cost of a launch with one tile.

    Args:
        spec: The chip.
        shape: The product.
        tile: The tile; its sides are multiples of 16.
        cores: Most cube cores to use, all if None.
        buffers: 1: load, feed and multiply take turns; 2: they overlap.
        constant_tiling: False adds `tiling_cycles` to each base step.
        fixed_ns: Replaces `kernel_head_ns`, as `vendor_fixed_ns` for a library call.

    Example:
        >>> from ascend_jax.chip import chip
        >>> found = matmul_cost(chip("Ascend910B2"), MatmulShape(4096, 4096, 4096, 2), Tile(128, 256, 64, 4))
        >>> int(found.blocks), int(found.waves), 400 < float(found.duration_ns) / 1e3 < 500
        (512, 22, True)
    """
    with jax.named_scope("matmul_cost"):
        limit = spec["cube_cores"] if cores is None else jnp.minimum(spec["cube_cores"], cores)
        blocks = _up(shape.m, tile.bm) * _up(shape.n, tile.bn) * jnp.asarray(shape.batch, jnp.float32)
        used = jnp.minimum(limit, blocks)
        waves = jnp.ceil(blocks / used)
        steps = _up(shape.k, tile.bk)
        drain = cost.copy_ns(spec, 4.0 * tile.bm * tile.bn, spec["l0c_gm_bytes_per_s"])
        hbm_bytes = _hbm_bytes(spec, shape, tile, used)
        hbm_ns = cost.copy_ns(spec, hbm_bytes, memory.hbm_rate(spec) * memory.run_share(spec, _run_bytes(shape, tile)))
        step_ns = _step(spec, shape, tile, used, constant_tiling, hbm_ns / (waves * steps))
        core_ns = _core_ns(spec, step_ns, steps, waves, drain, tile, buffers)
        launch_ns = (spec["kernel_head_ns"] if fixed_ns is None else fixed_ns) + spec["kernel_end_ns"]
        busy = step_ns * (steps * waves)[..., None]
        busy = busy.at[..., QUEUES.index("fixpipe")].set(drain * waves)
        plan = place_tile(spec, shape, tile, buffers=buffers)
        loaded = blocks * shape.k * (tile.bm + tile.bn) * shape.dtype_bytes
        l2_bytes = loaded + shape.batch * _size(shape.m, shape.n) * shape.output_bytes
        l2_ns = cost.copy_ns(spec, l2_bytes, spec["l2_bytes_per_s"])
        return MatmulCost(
            duration_ns=jnp.where(plan.fits, launch_ns + jnp.maximum(core_ns, hbm_ns), jnp.inf),
            core_ns=core_ns,
            hbm_ns=hbm_ns,
            busy_ns=busy,
            hbm_bytes=hbm_bytes,
            l2_bytes=l2_bytes,
            blocks=blocks.astype(jnp.int32),
            waves=waves.astype(jnp.int32),
            limit=bound(busy, l2_ns, hbm_ns, launch_ns),
            fits=jnp.asarray(plan.fits),
        )


def vendor_fixed_ns(spec: ChipSpec) -> Any:
    """Launch time of a library matmul: its head and what it does before the first tile, float32 ns."""
    return spec["kernel_head_ns"] + spec["matmul_fixed_ns"]


def choose_tile(
    spec: ChipSpec, shape: MatmulShape, *, cores: Any = None, fixed_ns: Any = None
) -> tuple[MatmulCost, jax.Array]:
    """Cost with the fastest tile of `TILES[dtype_bytes]`, and its index there; all tiles in one vmapped call.

    Of equal times the first in the table wins; `fits` is False and the time inf if no tile fits.
    """
    costs = tile_costs(spec, shape, cores=cores, fixed_ns=fixed_ns)
    best = jnp.argmin(costs.duration_ns)
    return jax.tree.map(lambda leaf: leaf[best], costs), best.astype(jnp.int32)


def tile_costs(spec: ChipSpec, shape: MatmulShape, *, cores: Any = None, fixed_ns: Any = None) -> MatmulCost:
    """Costs with all tiles of `TILES[dtype_bytes]`, leaves `[T, ...]`, in one vmapped call."""
    table = Tile(*(np.asarray(column, np.int32) for column in zip(*TILES[shape.dtype_bytes], strict=True)))
    return jax.vmap(lambda tile: matmul_cost(spec, shape, tile, cores=cores, fixed_ns=fixed_ns))(table)


def _step(
    spec: ChipSpec, shape: MatmulShape, tile: Tile, used: Any, constant_tiling: bool, hbm_ns: jax.Array
) -> jax.Array:
    """Time of one base step in each queue, `[..., 7]`; `hbm_ns` is its share of HBM's time."""
    size = shape.dtype_bytes
    left, right = (jnp.asarray(side * tile.bk * size, jnp.float32) for side in (tile.bm, tile.bn))
    rate = memory.cube_read_rate(spec, used, from_l2=True)
    load = cost.copy_ns(spec, left, rate * _load_share(spec, tile.bk * tile.steps_k * size, shape.k, size))
    load += cost.copy_ns(spec, right, rate * _load_share(spec, tile.bn * size, shape.n, size))
    issue = cost.cycles_ns(spec, 2 * spec["copy_issue_cycles"] / tile.steps_k)
    feed = cost.copy_ns(spec, left, spec["l1_l0a_bytes_per_s"]) + cost.copy_ns(spec, right, spec["l1_l0b_bytes_per_s"])
    return stages(
        cube=cost.cube_ns(spec, tile.bm, tile.bn, tile.bk, size),
        mte1=feed,
        mte2=load + issue + hbm_ns,
        scalar=cost.cycles_ns(spec, 0.0 if constant_tiling else spec["tiling_cycles"]),
    )


def _load_share(spec: ChipSpec, run_bytes: Any, pitch: Any, size: int) -> jax.Array:
    """Share of the rate of a copy to L1 of runs out of rows of `pitch` elements."""
    pitch_bytes = pitch % 4096 * size  # all that alignment asks for, and no overflow
    return memory.run_share(spec, run_bytes) * memory.nd2nz_share(spec, pitch_bytes)


def _core_ns(
    spec: ChipSpec, step_ns: jax.Array, steps: jax.Array, waves: jax.Array, drain: jax.Array, tile: Tile, buffers: int
) -> jax.Array:
    """Time of the busiest core: its C tiles one after another, each a loop over k and a drain.

    With two buffers the loads of the next tile start early, so queues fill only once.
    """
    if buffers == 1:
        return waves * (steps * serial_ns(spec, step_ns) + drain)
    scalar = step_ns[..., QUEUES.index("scalar")]  # it dispatches the other queues, so its work delays them all
    step = steady_ns(spec, step_ns) + scalar
    loop = steps * step
    holds_two = 2 * 4 * tile.bm * tile.bn <= spec["l0c_bytes"]
    behind_loop = jnp.maximum(drain - loop, 0.0) + spec["overlap_loss"] * jnp.minimum(loop, drain)
    behind_steps = jnp.maximum(drain - 2 * step_ns[..., QUEUES.index("cube")], 0.0)
    return serial_ns(spec, step_ns) - step + waves * (loop + jnp.where(holds_two, behind_loop, behind_steps))


def _hbm_bytes(spec: ChipSpec, shape: MatmulShape, tile: Tile, used: Any) -> jax.Array:
    a, b = _size(shape.m, shape.k) * shape.dtype_bytes, _size(shape.k, shape.n) * shape.dtype_bytes
    c = _size(shape.m, shape.n) * shape.output_bytes
    passes = jnp.maximum(shape.m / (jnp.floor(jnp.sqrt(used)) * tile.bm), 1.0)
    miss = memory.miss_share(spec, b + (a + c) / passes)
    total = a + b * (1 + (passes - 1) * miss) + c
    return shape.batch * total * memory.miss_share(spec, shape.batch * (a + b + c))


def _run_bytes(shape: MatmulShape, tile: Tile) -> Any:
    return tile.bn * shape.dtype_bytes


def _size(rows: Any, columns: Any) -> jax.Array:
    return jnp.asarray(rows, jnp.float32) * jnp.asarray(columns, jnp.float32)


def _up(value: Any, step: Any) -> jax.Array:
    return jnp.ceil(jnp.asarray(value, jnp.float32) / jnp.asarray(step, jnp.float32))
