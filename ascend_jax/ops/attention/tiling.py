"""The Ascend tile of FlashAttention forward, from a card's sizes, and the time it takes.

One block = `q_rows` query rows of one head, walking over the keys in rounds of `kv_cols` columns:

| what a round does | time | hardware fact |
|---|---|---|
| cube: S = Q K^T, then P V | `matmul_ns` | MMAD beside MTE1 |
| vector: P = exp(S - max) | 11 cycles a repeat | muls 1; max, exp, sub, sum, cast 2 each; rows halved |
| vector: rescale O | 4 cycles a repeat | mul 2, add 2 |
| memory: K, V, P into L1 | / `l2_l1`, first use / `gm_l1` | MTE2 of the cube core; other blocks hit L2 |
| memory: S, P V to GM | / `l0c_gm` | FixPipe: A2 cores meet only in GM and L2 |
| memory: S, P V in, P out | / `l2_ub` + / `ub_gm` | MTE2 and MTE3 of a vector core share its port |
| memory: all reads of all cores | / `l2_bytes_per_s` | one L2 |
| memory: first uses, Q, O | / `hbm_bytes_per_s` | one HBM |

cube and vector are sums of their rows, memory is the slowest of its rows.
block = max(cube, vector, memory) + attention_overlap_loss * (the other two),
duration = kernel_head + attention_fixed + ceil(blocks / cores) * block: blocks run in waves over the cores.
A causal launch deals its live tiles out evenly: its block is the mean one; it never ends before its longest.
Fused cores (910A, 310P) hand over inside the core, one vector width a cycle, without workspace.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip import cost
from ascend_jax.chip.onchip import Buffer, OnChipPlan, place
from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops.attention.visibility import SparseMode, Visibility
from ascend_jax.runtime.kernels import LIMITS

TILES = tuple((rows, cols) for rows in (16, 32, 64, 128) for cols in (64, 128, 256, 512, 1024, 2048))
VECTOR_ROWS = 8  # rows of scores that the vector core holds at once
ROW_BYTES = 32  # one statistic of one row takes a whole UB block
STARTUP_CYCLES = 26.0  # head and tail of one vector instruction, typical for add, mul, exp


@dataclasses.dataclass(frozen=True)
class AttentionShape:
    """Shape of one attention launch. Hashable, so it can be a static argument of `jit`.

    Raises:
        ValueError: A size below 1, heads that kv_heads does not divide, or dtype_bytes other than 2 or 4.
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
    cube_busy_ns: jax.Array  # float32 ns, busiest core
    vector_busy_ns: jax.Array  # float32 ns, busiest core
    hbm_bytes: jax.Array  # float32, read and written
    l2_bytes: jax.Array  # float32, moved between L2 and cores
    workspace_bytes: jax.Array  # int32
    limit: jax.Array  # int32, index into LIMITS
    tile: jax.Array  # int32, index into TILES; -1 for a tile of your own
    fits: jax.Array  # bool


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
        hbm, first = _hbm_bytes(spec, shape, work, used, workspace)
        hbm_ns = cost.copy_ns(spec, hbm / waves, spec["hbm_bytes_per_s"])
        units, l2_block = _block_parts(spec, shape, work, work.columns, work.rounds, used, first)
        longest, _ = _block_parts(spec, shape, work, work.longest_columns, work.longest_rounds, used, first)
        units, longest = (parts.at[2].max(hbm_ns) for parts in (units, longest))
        block_ns = _overlapped(spec, units)
        work_ns = jnp.maximum(waves * block_ns, _overlapped(spec, longest))
        fixed_ns = spec["kernel_head_ns"] + spec["attention_fixed_ns"]
        fits = place_tile(spec, shape, (work.rows, work.cols)).fits
        return AttentionCost(
            duration_ns=jnp.where(fits, fixed_ns + work_ns, jnp.inf),
            block_ns=block_ns,
            blocks=jnp.asarray(work.blocks),
            cores_used=used,
            waves=waves,
            cube_busy_ns=waves * units[0],
            vector_busy_ns=waves * units[1],
            hbm_bytes=hbm,
            l2_bytes=l2_block * work.blocks,
            workspace_bytes=workspace,
            limit=jnp.where(fixed_ns > work_ns, LIMITS.index("fixed"), jnp.argmax(units)).astype(jnp.int32),
            tile=jnp.asarray(work.tile),
            fits=jnp.asarray(fits),
        )


def _block_parts(
    spec: ChipSpec, shape: AttentionShape, work: _Work, columns: Any, rounds: Any, active: Any, first: Any
) -> tuple[jax.Array, jax.Array]:
    """(cube, vector, memory) ns of one block `[3]`, and the bytes it moves through L2."""
    rows, size, value_dim = jnp.asarray(work.rows, jnp.float32), shape.dtype_bytes, _padded(shape.value_dim)

    def moved(nbytes: Any, path: str) -> jax.Array:
        return cost.copy_ns(spec, nbytes, spec[f"{path}_bytes_per_s"])

    split = spec["vector_per_cube"] > 1
    share = jnp.ceil(rows / spec["vector_per_cube"])  # rows of one vector core
    cube = cost.matmul_ns(spec, rows, columns, shape.dim, size)
    cube += cost.matmul_ns(spec, rows, value_dim, columns, size)

    pieces = jnp.ceil(share / VECTOR_ROWS) * STARTUP_CYCLES
    vector = cost.vector_ns(spec, share * columns, 11.0, 4, startup_cycles=6 * pieces * rounds)
    vector += cost.vector_ns(spec, share * value_dim * rounds, 4.0, 4, startup_cycles=2 * pieces * rounds)
    vector += cost.vector_ns(spec, share * value_dim, 6.0, 4, startup_cycles=2 * pieces)  # divide, cast

    partial = 4 * (columns + rounds * value_dim)  # bytes a row that the cube hands to the vector cores
    queries, output, handed = (size * rows * width for width in (_padded(shape.dim), value_dim, columns))
    keys = size * columns * (_padded(shape.dim) + value_dim)
    cold = queries + first * keys
    warm = (1 - first) * keys + jnp.where(split, handed, 0.0)
    stored = share * size * (columns + value_dim)
    port = moved(cold, "gm_l1") + moved(warm, "l2_l1")
    drain = moved(rows * partial, "l0c_gm")
    exchange = moved(share * partial, "l2_ub") + moved(stored, "ub_gm")
    inside = cost.cycles_ns(spec, (rows * partial + handed) / spec["vector_bytes_per_cycle"])
    inside += moved(output, "ub_gm")
    turned = jnp.where(split, rows * partial + handed, 0.0)  # written by one side, read by the other
    read = queries + keys + turned
    on_core = jnp.where(split, jnp.maximum(drain, exchange), inside)
    memory = jnp.maximum(jnp.maximum(port, on_core), moved(read * active, "l2"))
    return jnp.stack([cube, vector, memory]), read + turned + output


def _hbm_bytes(
    spec: ChipSpec, shape: AttentionShape, work: _Work, used: Any, workspace: Any
) -> tuple[jax.Array, jax.Array]:
    """Bytes from and to HBM, and the share of a block's key and value reads that miss L2.

    Blocks that share keys miss once among them if the heads in work and the workspace fit in L2.
    """
    head_blocks = work.blocks // (shape.batch * shape.heads)
    sharers = head_blocks * (shape.heads // shape.kv_heads)
    width = (shape.dim + shape.value_dim) * shape.dtype_bytes  # of one row of Q and O, or of K and V
    kv_heads = shape.batch * shape.kv_heads
    heads_in_work = jnp.minimum(jnp.ceil(used / sharers), kv_heads)
    resident = heads_in_work * float(shape.kv_len * width) + workspace <= spec["l2_bytes"]
    first = jnp.where(resident, 1 / sharers, 1.0)
    columns = jnp.maximum(first * work.columns * work.blocks, kv_heads * work.longest_columns)
    return width * (columns + float(shape.batch * shape.heads * shape.q_len)), first


def _overlapped(spec: ChipSpec, units: jax.Array) -> jax.Array:
    longest = units.max(-1)
    return longest + spec["attention_overlap_loss"] * (units.sum(-1) - longest)


def _clipped(shape: AttentionShape, tile: tuple[Any, Any]) -> tuple[Any, Any]:
    return _least(tile[0], _padded(shape.q_len)), _least(tile[1], _padded(shape.kv_len))


def _padded(length: int) -> int:
    return -(-length // 16) * 16


def _least(a: Any, b: int) -> Any:
    return min(a, b) if isinstance(a, int) else jnp.minimum(a, b)
