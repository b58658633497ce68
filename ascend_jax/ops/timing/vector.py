"""Time of operators that run on the vector cores: elementwise, reductions, normalisations, transpose, copy, memset.

Each core takes an equal share and walks over it in tiles, double-buffered in UB:

| queue | time of a tile |
|---|---|
| mte2 | read bytes / rate of one core (GM or L2), not faster than `copy_issue_cycles` a run |
| vector | instructions of the operator, head + slope * repeats + tail cycles each |
| mte3 | written bytes / rate of one core |

Operators over whole rows, and transpose, start each row where it lies: rows off an L2 line reach `aligned_share` of
these rates. All cores share HBM: time = head + end + max(pipeline, (reads + writes) that miss L2 / HBM rate).
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip import cost, memory
from ascend_jax.chip.instructions import sequence_ns
from ascend_jax.chip.onchip import Buffer, OnChipPlan, place
from ascend_jax.chip.pipeline import bound, stages, tile_pipeline
from ascend_jax.chip.spec import ChipSpec

TILES = tuple(1 << log for log in range(8, 16))  # elements of a tile


@dataclasses.dataclass(frozen=True)
class VectorOperator:
    """What an operator does to each element."""

    reads: int  # input arrays
    writes: int  # output arrays of full size
    instructions: tuple[str, ...]  # vector instructions over a tile, in order
    compute_bytes: int = 0  # element size inside UB; 0: that of the operands
    by_row: bool = False  # needs whole rows, so rows larger than UB are read twice
    out_rows: bool = False  # writes one element a row instead of full arrays
    scatters: bool = False  # writes runs of one tile edge only


_BINARY = {name: VectorOperator(2, 1, (name,)) for name in ("add", "sub", "mul", "div", "max", "min")}
_UNARY = {name: VectorOperator(1, 1, (name,)) for name in ("exp", "ln", "sqrt", "rsqrt", "adds", "muls", "cast")}
OPERATORS: dict[str, VectorOperator] = {
    **_BINARY,
    **_UNARY,
    "copy": VectorOperator(1, 1, ()),
    "memset": VectorOperator(0, 1, ("copy",)),
    "transpose": VectorOperator(1, 1, ("copy",), scatters=True),
    "reduce_sum": VectorOperator(1, 0, ("cast", "vcgadd"), 4, by_row=True, out_rows=True),
    "reduce_max": VectorOperator(1, 0, ("vcgmax",), by_row=True, out_rows=True),
    "softmax": VectorOperator(1, 1, ("cast", "vcgmax", "sub", "exp", "vcgadd", "div", "cast"), 4, by_row=True),
    "layer_norm": VectorOperator(
        1, 1, ("cast", "vcgadd", "sub", "mul", "vcgadd", "mul", "mul", "add", "cast"), 4, by_row=True
    ),
    "rms_norm": VectorOperator(1, 1, ("cast", "mul", "vcgadd", "mul", "mul", "cast"), 4, by_row=True),
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class VectorShape:
    """Shape of one launch: `rows` contiguous rows of `columns` elements. Sizes may be traced.

    Raises:
        ValueError: A size below 1, an unknown operator, or dtype_bytes other than 1, 2, 4.
    """

    operator: str = dataclasses.field(metadata={"static": True})
    rows: Any
    columns: Any
    dtype_bytes: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise ValueError(f"operator {self.operator!r}: no vector operator; known: {', '.join(sorted(OPERATORS))}")
        for name in ("rows", "columns"):
            size = getattr(self, name)
            if not isinstance(size, jax.Array) and np.min(size) < 1:
                raise ValueError(f"{name}={size}: at least 1; an empty launch takes no kernel")
        if self.dtype_bytes not in (1, 2, 4):
            raise ValueError(f"dtype_bytes={self.dtype_bytes}: the vector unit takes elements of 1, 2 or 4 bytes")

    @property
    def rule(self) -> VectorOperator:
        """What the operator does."""
        return OPERATORS[self.operator]

    @property
    def read_bytes(self) -> Any:
        """Bytes of all inputs."""
        return 1.0 * self.rule.reads * self.rows * self.columns * self.dtype_bytes

    @property
    def written_bytes(self) -> Any:
        """Bytes of all outputs."""
        full = 1.0 * self.rule.writes * self.rows * self.columns * self.dtype_bytes
        return full + (1.0 * self.rows * self.dtype_bytes if self.rule.out_rows else 0.0)

    @property
    def flop(self) -> Any:
        """One operation per element and instruction, without casts and copies, as float."""
        counted = [name for name in self.rule.instructions if name not in ("cast", "copy")]
        return 1.0 * self.rows * self.columns * len(counted)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class VectorCost:
    """Time and traffic of one launch; leaves are scalars or have the axes of what was vmapped."""

    duration_ns: jax.Array  # float32 ns, head to end; inf if the tile does not fit
    core_ns: jax.Array  # float32 ns, busiest core
    hbm_ns: jax.Array  # float32 ns
    busy_ns: jax.Array  # float32 [7], busiest core by queue
    hbm_bytes: jax.Array  # float32
    blocks: jax.Array  # int32, vector cores used
    limit: jax.Array  # int32, index into chip.pipeline.LIMITS
    fits: jax.Array  # bool


def tile_buffers(shape: VectorShape, elements: Any) -> tuple[Buffer, ...]:
    """On-chip buffers of a tile: inputs and outputs twice, and two arrays of working size."""
    rule = shape.rule
    working = Buffer("UB", "working", elements * (rule.compute_bytes or shape.dtype_bytes), copies=2)
    arrays = [Buffer("UB", f"input {i}", elements * shape.dtype_bytes, copies=2) for i in range(rule.reads)]
    arrays += [Buffer("UB", f"output {i}", elements * shape.dtype_bytes, copies=2) for i in range(rule.writes)]
    return (*arrays, working) if rule.compute_bytes else tuple(arrays)


def place_tile(spec: ChipSpec, shape: VectorShape, elements: Any) -> OnChipPlan:
    """Where the buffers of a tile lie; `chip.onchip.require` refuses a misfit, with numbers."""
    return place(spec, tile_buffers(shape, elements))


def vector_cost(spec: ChipSpec, shape: VectorShape, elements: Any, *, cores: Any = None) -> VectorCost:
    """Cost of a launch with tiles of `elements`, on at most `cores` vector cores (all if None).

    Example:
        >>> from ascend_jax.chip import chip
        >>> add = vector_cost(chip("Ascend910B2"), VectorShape("add", 8192, 8192, 2), 4096)
        >>> 255 < float(add.duration_ns) / 1e3 < 285  # bound by 403 MB of HBM traffic
        True
    """
    with jax.named_scope("vector_cost"):
        rule, size = shape.rule, shape.dtype_bytes
        total = jnp.asarray(shape.rows, jnp.float32) * jnp.asarray(shape.columns, jnp.float32)
        limit = spec["vector_cores"] if cores is None else jnp.minimum(spec["vector_cores"], cores)
        tiles = jnp.ceil(total / elements)
        used = jnp.minimum(limit, tiles)
        share = total / used  # elements of one core
        per_core = jnp.ceil(share / elements)
        passes = jnp.where(rule.by_row & (jnp.asarray(shape.columns) > elements), 2.0, 1.0)
        miss = memory.miss_share(spec, shape.read_bytes + shape.written_bytes)
        inside = jnp.minimum(share, jnp.asarray(elements, jnp.float32))
        tile_ns = _tile_ns(spec, shape, inside, used, miss, passes)
        loop = tile_pipeline(spec, tile_ns, per_core)
        hbm_bytes = miss * (passes * shape.read_bytes + shape.written_bytes)
        hbm_ns = cost.copy_ns(spec, hbm_bytes, memory.hbm_rate(spec) * memory.run_share(spec, inside * size))
        launch_ns = (spec["kernel_head_ns"] + spec["kernel_end_ns"]) * jnp.ones_like(hbm_ns)
        l2_ns = cost.copy_ns(spec, passes * shape.read_bytes + shape.written_bytes, spec["l2_bytes_per_s"])
        fits = place_tile(spec, shape, elements).fits
        return VectorCost(
            duration_ns=jnp.where(fits, launch_ns + jnp.maximum(loop.total_ns, hbm_ns), jnp.inf),
            core_ns=loop.total_ns,
            hbm_ns=hbm_ns,
            busy_ns=loop.busy_ns,
            hbm_bytes=hbm_bytes,
            blocks=used.astype(jnp.int32),
            limit=bound(loop.busy_ns, l2_ns, hbm_ns, launch_ns),
            fits=jnp.asarray(fits),
        )


def choose_tile(spec: ChipSpec, shape: VectorShape, *, cores: Any = None) -> tuple[VectorCost, jax.Array]:
    """Cost with the fastest tile of `TILES`, and its index; all in one vmapped call, first of equal times."""
    costs = tile_costs(spec, shape, cores=cores)
    best = jnp.argmin(costs.duration_ns)
    return jax.tree.map(lambda leaf: leaf[best], costs), best.astype(jnp.int32)


def tile_costs(spec: ChipSpec, shape: VectorShape, *, cores: Any = None) -> VectorCost:
    """Costs with all tiles of `TILES`, leaves `[len(TILES), ...]`, in one vmapped call."""
    table = np.asarray(TILES, np.int32)
    return jax.vmap(lambda elements: vector_cost(spec, shape, elements, cores=cores))(table)


def _tile_ns(
    spec: ChipSpec, shape: VectorShape, inside: jax.Array, used: jax.Array, miss: jax.Array, passes: jax.Array
) -> jax.Array:
    rule, size = shape.rule, shape.dtype_bytes
    both = rule.reads > 0 and rule.writes > 0
    run = inside * size
    edge = math.sqrt(256) * size  # a transpose turns 16 x 16 blocks, so each run it writes is 16 elements

    def moved(arrays: int, rate: jax.Array, run_bytes: Any, pitch: Any, rounds: Any = 1.0) -> Any:
        nbytes = arrays * inside * size * rounds
        if rule.by_row or rule.scatters:
            rate = rate * memory.aligned_share(spec, pitch % 4096 * size)
        return memory.copies_ns(spec, nbytes, rate, instruction_bytes=run, run_bytes=run_bytes) if arrays else 0.0

    from_gm = moved(rule.reads, memory.vector_read_rate(spec, used, both_ways=both), run, shape.columns, passes)
    from_l2 = moved(rule.reads, memory.vector_read_rate(spec, used, from_l2=True), run, shape.columns, passes)
    out_run, out_pitch = (edge, shape.rows) if rule.scatters else (run, shape.columns)
    stores = moved(rule.writes, memory.vector_write_rate(spec, used, both_ways=both), out_run, out_pitch)
    working = rule.compute_bytes or size
    vector = sequence_ns(spec, rule.instructions, inside, working) if rule.instructions else 0.0
    return stages(mte2=miss * from_gm + (1 - miss) * from_l2, vector=vector, mte3=stores)
