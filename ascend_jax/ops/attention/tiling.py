"""The Ascend tile of FlashAttention forward, from a card's sizes, and the time it takes.

One block = `q_rows` query rows of one head, walking over the keys in rounds of `kv_cols` columns; how long each queue
of its core pair is busy is in `ops.timing.attention_queues`. Blocks run in waves over the cores:

    duration = kernel_head + attention_fixed + max(ceil(blocks / cores) * block, HBM bytes / HBM rate)

block = longer core + attention_overlap_loss * the other, but no less than L2 takes for all cores together. HBM's time
is shared evenly by the waves and adds to MTE2 of the cube cores. HBM bytes:
queries and output once; keys and values once, and again as far as the heads in work miss L2 (`memory.miss_share`). They
count as cold: what a layer reads was written before it by others. A causal launch deals its live tiles out evenly: its
block is the mean one; it never ends before its longest.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip import cost, memory
from ascend_jax.chip.onchip import Buffer, OnChipPlan, place
from ascend_jax.chip.pipeline import QUEUES, bound
from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops.attention.visibility import SparseMode, Visibility
from ascend_jax.ops.timing import attention_queues as queues
from ascend_jax.ops.timing.attention_queues import VECTOR_ROWS

TILES = tuple((rows, cols) for rows in (16, 32, 64, 128) for cols in (64, 128, 256, 512, 1024, 2048))
_MOST_ROWS = 1 << 26  # of queries: what each sees is counted row by row
ROW_BYTES = 32  # one statistic of one row takes a whole UB block


@dataclasses.dataclass(frozen=True)
class AttentionShape:
    """Shape of one attention launch. Hashable, so it can be a static argument of `jit`.

    Raises:
        ValueError: A size below 1, more than 2**26 query rows, heads that kv_heads does not divide, or dtype_bytes
            other than 2 or 4.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    dim: int  # of queries and keys
    value_dim: int
    dtype_bytes: int
    mode: SparseMode = SparseMode.NO_MASK  # which columns a row sees

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "kv_heads", "q_len", "kv_len", "dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1; an empty launch takes no kernel")
        if self.q_len > _MOST_ROWS:
            raise ValueError(f"q_len={self.q_len}: the time model takes at most {_MOST_ROWS} query rows")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is no multiple of kv_heads={self.kv_heads}")
        if self.dtype_bytes not in (2, 4):
            raise ValueError(f"dtype_bytes={self.dtype_bytes}: attention forward takes 2 or 4 byte inputs")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class AttentionCost:
    """Time and traffic of one launch. Every leaf is a scalar, or has the batch axes of what was vmapped."""

    duration_ns: jax.Array  # float32 ns; inf if the tile does not fit
    block_ns: jax.Array  # float32 ns, mean block
    blocks: jax.Array  # int32
    cores_used: jax.Array  # int32, cube cores
    waves: jax.Array  # int32, blocks that the busiest core runs
    busy_ns: jax.Array  # float32 ns [..., 7] by chip.pipeline.QUEUES, busiest core of each kind
    hbm_bytes: jax.Array  # float32, read and written
    l2_bytes: jax.Array  # float32, moved between L2 and cores
    workspace_bytes: jax.Array  # int32
    limit: jax.Array  # int32, index into chip.pipeline.LIMITS
    tile: jax.Array  # int32, index into TILES; -1 for a tile of your own
    fits: jax.Array  # bool

    @property
    def cube_busy_ns(self) -> jax.Array:
        """Busy time of the busiest cube unit."""
        return self.busy_ns[..., QUEUES.index("cube")]

    @property
    def vector_busy_ns(self) -> jax.Array:
        """Busy time of the busiest vector unit."""
        return self.busy_ns[..., QUEUES.index("vector")]


class _Work(NamedTuple):
    """What a tile makes of a shape; known before tracing. Scalars, or `[T]` under `vmap`."""

    rows: Any  # int32, rows of a block
    cols: Any  # int32, columns of a round
    blocks: Any  # int32
    columns: Any  # float32, columns that a mean block walks over
    rounds: Any  # float32, of a mean block
    longest_columns: Any  # float32
    longest_rounds: Any  # float32
    tile: Any  # int32


def tile_buffers(shape: AttentionShape, tile: tuple[Any, Any]) -> tuple[Buffer, ...]:
    """On-chip buffers of a tile (q_rows, kv_cols), which may be traced.

    Keys, values and probabilities pass through L1 in double-buffered pieces of up to 128 x 128; queries stay.
    UB holds `VECTOR_ROWS` rows of a round twice, and the statistics of every row (max, two exps, two sums).
    """
    rows, cols = tile
    size = shape.dtype_bytes
    m, n = _least(rows, cost.BASE), _least(cols, cost.BASE)
    d, v = (min(_padded(dim), cost.BASE) for dim in (shape.dim, shape.value_dim))
    depth = 256 // size  # of a base step: half of L0A and L0B
    return (
        Buffer("L1", "query", rows * _padded(shape.dim) * size),
        Buffer("L1", "key", n * d * size, copies=2),
        Buffer("L1", "value", n * v * size, copies=2),
        Buffer("L1", "probability", m * n * size, copies=2),
        Buffer("L0A", "left", m * depth * size, copies=2),
        Buffer("L0B", "right", cost.BASE * depth * size, copies=2),
        Buffer("L0C", "score", m * n * 4),
        Buffer("L0C", "output", m * v * 4),
        Buffer("UB", "score", VECTOR_ROWS * cols * 4, copies=2),
        Buffer("UB", "probability", VECTOR_ROWS * cols * size),
        Buffer("UB", "mask", VECTOR_ROWS * cols),
        Buffer("UB", "output", VECTOR_ROWS * _padded(shape.value_dim) * 4, copies=2),
        Buffer("UB", "row_statistics", rows * ROW_BYTES, copies=5),
    )


def place_tile(spec: ChipSpec, shape: AttentionShape, tile: tuple[Any, Any]) -> OnChipPlan:
    """Where the buffers of a tile lie; `chip.onchip.require` refuses a misfit, with numbers."""
    return place(spec, tile_buffers(shape, _clipped(shape, tile)))


def workspace_bytes(spec: ChipSpec, shape: AttentionShape, tile: tuple[Any, Any], cores: Any = None) -> Any:
    """GM bytes of the cube-vector hand-over: scores, probabilities, output of a round, twice, per core used.

    `cores` are the cube cores of the launch, all of the chip if None.
    An int for a concrete spec, else `[...]` int32. 0 on fused cores, which hand over inside the core.

    Example:
        >>> from ascend_jax.chip import chip
        >>> shape = AttentionShape(1, 1, 1, 4096, 4096, 128, 128, 2)
        >>> workspace_bytes(chip("Ascend910B2"), shape, (128, 1024))
        40894464
    """
    rows, cols = _clipped(shape, tile)
    core_bytes = 2 * rows * (cols * (4 + shape.dtype_bytes) + _padded(shape.value_dim) * 4)
    cores = spec["cube_cores"] if cores is None else cores
    is_concrete = not any(isinstance(each, jax.Array) for each in (core_bytes, cores, spec.values))
    if is_concrete and spec.values.ndim == 1:
        return int(core_bytes) * int(cores) if spec["vector_per_cube"] > 1 else 0
    total = core_bytes * jnp.asarray(cores).astype(jnp.int32)
    return jnp.where(jnp.asarray(spec["vector_per_cube"]) > 1, total, 0)


def attention_cost(spec: ChipSpec, shape: AttentionShape, tile: tuple[int, int], cores: Any = None) -> AttentionCost:
    """Cost of a launch with one tile, on at most `cores` cube cores (all if None).

    Raises:
        ValueError: A tile side is no multiple of 16, or cores is below 1.

    Example:
        >>> from ascend_jax.chip import chip
        >>> shape = AttentionShape(1, 1, 1, 4096, 4096, 128, 128, 2)
        >>> cost = attention_cost(chip("Ascend910B2"), shape, (64, 1024))
        >>> int(cost.blocks), int(cost.cores_used), int(cost.waves), bool(cost.fits)
        (64, 24, 3, True)
    """
    return _cost(spec, shape, _work(shape, tile), cores)


def choose_tile(spec: ChipSpec, shape: AttentionShape, cores: Any = None) -> AttentionCost:
    """Cost with the fastest tile of `TILES` that fits; `fits` is False and the duration inf if none does.

    All candidates are evaluated in one vmapped call. Of equal times the first in the table wins.

    Raises:
        ValueError: cores is below 1.
    """
    costs = tile_costs(spec, shape, cores)
    best = jnp.argmin(costs.duration_ns)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[best], costs)


def tile_costs(spec: ChipSpec, shape: AttentionShape, cores: Any = None) -> AttentionCost:
    """Costs with all tiles of `TILES`, leaves `[len(TILES)]`, in one vmapped call."""
    works = _Work(*(np.stack(column) for column in zip(*(_work(shape, tile) for tile in TILES), strict=True)))
    return jax.vmap(lambda work: _cost(spec, shape, work, cores))(works)


def _work(shape: AttentionShape, tile: tuple[int, int]) -> _Work:
    if min(tile) < 16 or tile[0] % 16 or tile[1] % 16:
        raise ValueError(f"tile {tile}: both sides are multiples of 16, the edge of a cube step")
    rows, cols = _clipped(shape, tile)
    q_blocks = -(-shape.q_len // rows)
    last_row = np.minimum(np.arange(1, q_blocks + 1) * rows, shape.q_len) - 1
    _, seen = Visibility(shape.q_len, shape.kv_len, shape.mode).column_bounds(last_row)  # [q_blocks], past the last
    rounds = -(-seen // cols)
    columns = np.minimum(rounds * cols, _padded(shape.kv_len))
    blocks = shape.batch * shape.heads * q_blocks
    if blocks >= 2**31:
        raise ValueError(f"{blocks} blocks of {rows} rows: a launch counts its blocks in 31 bits")
    return _Work(
        rows=np.int32(rows),
        cols=np.int32(cols),
        blocks=np.int32(blocks),
        columns=np.float32(columns.mean()),
        rounds=np.float32(rounds.mean()),
        longest_columns=np.float32(columns.max()),
        longest_rounds=np.float32(rounds.max()),
        tile=np.int32(TILES.index(tile) if tile in TILES else -1),
    )


def _cost(spec: ChipSpec, shape: AttentionShape, work: _Work, cores: Any) -> AttentionCost:
    if isinstance(cores, int) and cores < 1:
        raise ValueError(f"cores={cores}: a launch needs at least one cube core")
    with jax.named_scope("attention_cost"):
        device_cores = jnp.asarray(spec["cube_cores"]).astype(jnp.int32)
        limit = device_cores if cores is None else jnp.minimum(device_cores, cores)
        used = jnp.minimum(limit, work.blocks).astype(jnp.int32)
        waves = -(-work.blocks // used)
        workspace = jnp.asarray(workspace_bytes(spec, shape, (work.rows, work.cols), used), jnp.int32)
        hbm = _hbm_bytes(spec, shape, work, used, workspace)
        hbm_ns = cost.copy_ns(spec, hbm, memory.hbm_rate(spec))
        dims, size = (_padded(shape.dim), _padded(shape.value_dim)), shape.dtype_bytes
        walks = ((work.columns, work.rounds), (work.longest_columns, work.longest_rounds))
        block, longest = (
            queues.forward_block(spec, work.rows, *walk, dims, size, used).waits_for_hbm(hbm_ns / waves)
            for walk in walks
        )
        block_ns, longest_ns = (
            jnp.maximum(queues.overlapped_ns(spec, pair), queues.l2_ns(spec, pair, used)) for pair in (block, longest)
        )
        work_ns = jnp.maximum(jnp.maximum(waves * block_ns, longest_ns), hbm_ns)
        fixed_ns = spec["kernel_head_ns"] + spec["attention_fixed_ns"]
        busy, l2_ns = waves * block.busy_ns(), waves * queues.l2_ns(spec, block, used)
        launch_ns = jnp.where(fixed_ns > work_ns, jnp.inf, 0.0)
        fits = place_tile(spec, shape, (work.rows, work.cols)).fits
        return AttentionCost(
            duration_ns=jnp.where(fits, fixed_ns + work_ns, jnp.inf),
            block_ns=block_ns,
            blocks=jnp.asarray(work.blocks),
            cores_used=used,
            waves=waves,
            busy_ns=busy,
            hbm_bytes=hbm,
            l2_bytes=work.blocks * (block.l2_read_bytes + float(size * dims[1]) * work.rows),
            workspace_bytes=workspace,
            limit=bound(busy, l2_ns, hbm_ns, launch_ns),
            tile=jnp.asarray(work.tile),
            fits=jnp.asarray(fits),
        )


def _hbm_bytes(spec: ChipSpec, shape: AttentionShape, work: _Work, used: Any, workspace: Any) -> jax.Array:
    """Bytes from and to HBM.

    Blocks that share keys read them once among them, and again as far as the heads in work and the workspace miss L2.
    """
    head_blocks = work.blocks // (shape.batch * shape.heads)
    sharers = head_blocks * (shape.heads // shape.kv_heads)
    width = (shape.dim + shape.value_dim) * shape.dtype_bytes  # of one row of Q and O, or of K and V
    kv_heads = shape.batch * shape.kv_heads
    heads_in_work = jnp.minimum(jnp.ceil(used / sharers), kv_heads)
    miss = memory.miss_share(spec, heads_in_work * float(shape.kv_len * width) + workspace)
    first = 1 / sharers + (1 - 1 / sharers) * miss
    columns = jnp.maximum(first * work.columns * work.blocks, kv_heads * work.longest_columns)
    return width * (columns + float(shape.batch * shape.heads * shape.q_len))


def _clipped(shape: AttentionShape, tile: tuple[Any, Any]) -> tuple[Any, Any]:
    return _least(tile[0], _padded(shape.q_len)), _least(tile[1], _padded(shape.kv_len))


def _padded(length: int) -> int:
    return -(-length // 16) * 16


def _least(a: Any, b: int) -> Any:
    return min(a, b) if isinstance(a, int) else jnp.minimum(a, b)
