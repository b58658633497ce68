"""Attention launches: library and hand-written kernels, and the backward pass.

Forward is `ops.attention.tiling`; this adds what is told apart around it. The backward pass walks, for each block of
`kv_rows` key rows of one head, over the queries in rounds of `q_cols` rows (`attention_queues`):

    block = rounds * round + what it does once; duration = head + fixed + max(waves * block, HBM bytes / HBM rate)
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip import cost, memory
from ascend_jax.chip.onchip import Buffer, OnChipPlan, place
from ascend_jax.chip.pipeline import bound
from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops.attention.tiling import TILES, AttentionCost, AttentionShape, choose_tile, tile_costs
from ascend_jax.ops.attention.visibility import SparseMode, Visibility
from ascend_jax.ops.timing import attention_queues as queues
from ascend_jax.ops.timing.confidence import Confidence, confidence

HAND_ROWS = 128
BACKWARD_TILES = tuple((rows, cols) for rows in (64, 128) for cols in (64, 128, 256, 512))


def hand_written(spec: ChipSpec) -> ChipSpec:
    """The chip as a hand-written attention kernel sees it: its own start instead of the library's."""
    return spec.replace(attention_fixed_ns=spec["attention_start_ns"])


def forward(spec: ChipSpec, shape: AttentionShape, *, library: bool = True, cores: Any = None) -> AttentionCost:
    """Cost of attention forward with the fastest tile: the vendor's fused operator, or a hand-written kernel.

    Hand-written kernels take the tiles of HAND_ROWS query rows, the side of a cube base tile, as the open PTO kernel
    does; the library takes smaller ones too, where those fill the cores better.
    """
    if library:
        return choose_tile(spec, shape, cores)
    costs = tile_costs(hand_written(spec), shape, cores)
    is_taken = np.array([rows == HAND_ROWS for rows, _ in TILES])
    best = jnp.argmin(jnp.where(is_taken, costs.duration_ns, jnp.inf))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[best], costs)


def forward_flop(shape: AttentionShape) -> float:
    """Floating-point operations of the visible pairs, 2 (D + Dv) each."""
    pairs = Visibility(shape.q_len, shape.kv_len, shape.mode).live_pairs()
    return 2.0 * (shape.dim + shape.value_dim) * pairs * shape.batch * shape.heads


def forward_confidence(spec: ChipSpec, shape: AttentionShape, kind: str = "") -> Confidence:
    """Trust in a forward time: measured are float16 heads of dimension 128, as many keys as queries, all of them seen.

    Example:
        >>> from ascend_jax.chip import chip
        >>> forward_confidence(chip("Ascend910B2"), AttentionShape(1, 1, 1, 4096, 4096, 128, 128, 2)).label
        'calibrated'
    """
    dtype = "float32" if shape.dtype_bytes == 4 else "float16"
    is_square = shape.q_len == shape.kv_len and shape.heads == shape.kv_heads
    alike = is_square and shape.mode == SparseMode.NO_MASK and (shape.dim, shape.value_dim) == (128, 128)
    unlike = "" if alike else "measured without a mask, with head dimension 128 and as many keys as queries"
    return confidence(spec, "attention", dtype, forward_flop(shape), kind=kind, unlike=unlike)


def backward_buffers(shape: AttentionShape, tile: tuple[Any, Any]) -> tuple[Buffer, ...]:
    """On-chip buffers of a backward tile (kv_rows, q_cols): as forward, with two score tiles in UB."""
    rows, cols = tile
    size, step, width = shape.dtype_bytes, jnp.minimum(rows, cost.BASE), jnp.minimum(cols, cost.BASE)
    depth = 256 // size
    dim, value_dim = min(shape.dim, cost.BASE), min(shape.value_dim, cost.BASE)
    return (
        Buffer("L1", "key", rows * shape.dim * size),
        Buffer("L1", "value", rows * shape.value_dim * size),
        Buffer("L1", "query", step * dim * size, copies=2),
        Buffer("L1", "gradient", step * value_dim * size, copies=2),
        Buffer("L1", "probability", step * width * size, copies=2),
        Buffer("L0A", "left", step * depth * size, copies=2),
        Buffer("L0B", "right", cost.BASE * depth * size, copies=2),
        Buffer("L0C", "product", step * jnp.maximum(dim, width) * 4),
        Buffer("UB", "score", 8 * cols * 4, copies=2),
        Buffer("UB", "score_gradient", 8 * cols * 4, copies=2),
        Buffer("UB", "probability", 8 * cols * size, copies=2),
        Buffer("UB", "row_statistics", cols * 32, copies=3),
    )


def place_backward(spec: ChipSpec, shape: AttentionShape, tile: tuple[Any, Any]) -> OnChipPlan:
    """Where the buffers of a backward tile lie."""
    return place(spec, backward_buffers(shape, tile))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class BackwardCost:
    """Time of one backward launch."""

    duration_ns: jax.Array  # float32 ns; inf if the tile does not fit
    busy_ns: jax.Array  # float32 ns [..., 7] by chip.pipeline.QUEUES, busiest core of each kind
    hbm_bytes: jax.Array  # float32
    blocks: jax.Array  # int32
    waves: jax.Array  # int32
    limit: jax.Array  # int32, index into chip.pipeline.LIMITS
    fits: jax.Array  # bool


def backward_cost(
    spec: ChipSpec, shape: AttentionShape, tile: tuple[int, int], *, library: bool = True
) -> BackwardCost:
    """Cost of attention backward with one tile (kv_rows, q_cols), multiples of 16.

    Raises:
        ValueError: A tile side is no multiple of 16.

    Example:
        >>> from ascend_jax.chip import chip
        >>> shape = AttentionShape(1, 24, 24, 4096, 4096, 128, 128, 2)
        >>> back = backward_cost(chip("Ascend910B2"), shape, (128, 128))
        >>> int(back.blocks), int(back.waves)
        (768, 32)
    """
    if min(tile) < 16 or tile[0] % 16 or tile[1] % 16:
        raise ValueError(f"tile {tile}: both sides are multiples of 16, the edge of a cube step")
    return _backward_cost(spec, shape, *tile, library)


def _backward_cost(
    spec: ChipSpec, shape: AttentionShape, kv_rows: Any, q_cols: Any, library: bool, cores: Any = None
) -> BackwardCost:
    rows, cols = (
        jnp.minimum(side, -(-size // 16) * 16) for side, size in ((kv_rows, shape.kv_len), (q_cols, shape.q_len))
    )
    with jax.named_scope("attention_backward_cost"):
        blocks = shape.batch * shape.heads * jnp.ceil(shape.kv_len / rows)
        limit = spec["cube_cores"] if cores is None else jnp.minimum(spec["cube_cores"], cores)
        used = jnp.minimum(limit, blocks)
        waves = jnp.ceil(blocks / used)
        pairs = Visibility(shape.q_len, shape.kv_len, shape.mode).live_pairs()
        rounds = jnp.maximum(float(pairs) / (shape.kv_len * cols), 1.0)  # of a mean block
        dims, size = (shape.dim, shape.value_dim), shape.dtype_bytes
        block = queues.backward_round(spec, rows, cols, dims, size, used).times(rounds)
        block = block.plus(queues.backward_edge(spec, rows, dims, size, used))
        hbm = _backward_bytes(shape)
        hbm_ns = cost.copy_ns(spec, hbm, memory.hbm_rate(spec))
        block, l2 = block.waits_for_hbm(hbm_ns / waves), queues.l2_ns(spec, block, used)
        work_ns = jnp.maximum(waves * jnp.maximum(queues.overlapped_ns(spec, block), l2), hbm_ns)
        fixed_ns = spec["kernel_head_ns"] + (spec["attention_fixed_ns"] if library else spec["attention_start_ns"])
        busy = waves * block.busy_ns()
        fits = jnp.asarray(place_backward(spec, shape, (rows, cols)).fits)
        return BackwardCost(
            duration_ns=jnp.where(fits, fixed_ns + work_ns, jnp.inf),
            busy_ns=busy,
            hbm_bytes=jnp.float32(hbm),
            blocks=blocks.astype(jnp.int32),
            waves=waves.astype(jnp.int32),
            limit=bound(busy, waves * l2, hbm_ns, jnp.where(fixed_ns > work_ns, jnp.inf, 0.0)),
            fits=fits,
        )


def _backward_bytes(shape: AttentionShape) -> float:
    """Bytes from and to HBM: queries, output and their gradients; keys, values and theirs."""
    queries = 2.0 * shape.heads * shape.q_len * (shape.dim + shape.value_dim)
    keys = 2.0 * shape.kv_heads * shape.kv_len * (shape.dim + shape.value_dim)
    return shape.batch * shape.dtype_bytes * (queries + keys)


def backward(
    spec: ChipSpec, shape: AttentionShape, *, library: bool = True, cores: Any = None
) -> tuple[BackwardCost, jax.Array]:
    """Cost of attention backward with the fastest tile of BACKWARD_TILES, and its index there."""
    table = backward_costs(spec, shape, library=library, cores=cores)
    best = jnp.argmin(table.duration_ns)
    return jax.tree.map(lambda leaf: leaf[best], table), best.astype(jnp.int32)


def backward_costs(spec: ChipSpec, shape: AttentionShape, *, library: bool = True, cores: Any = None) -> BackwardCost:
    """Costs with all tiles of BACKWARD_TILES on at most `cores` cube cores, leaves `[T]`, in one vmapped call."""
    rows, cols = (np.array(side, np.int32) for side in zip(*BACKWARD_TILES, strict=True))
    return jax.vmap(lambda r, c: _backward_cost(spec, shape, r, c, library, cores))(rows, cols)
