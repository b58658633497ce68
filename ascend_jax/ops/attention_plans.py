"""Tiling and time of the attention operators on a card, from the shapes of a call.

Prompt and training calls take the tile models of forward and backward. A decoding call has one query row: the query
heads that share keys are the rows of one product, and with few key heads the keys are split over the cores. Merging
partial results is vector work. Masks beyond the causal ones do not shorten a time.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip import cost, memory
from ascend_jax.chip.pipeline import QUEUES
from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops.attention.tiling import AttentionCost, AttentionShape, choose_tile
from ascend_jax.ops.attention.visibility import SparseMode
from ascend_jax.ops.attention_geometry import COMPRESSED_MASK
from ascend_jax.ops.registry import Plan
from ascend_jax.ops.timing import attention as timing
from ascend_jax.ops.timing.limits import launched_limit
from ascend_jax.runtime.kernels import LIMITS, Argument, Cost, kernel_cost

__all__ = [
    "heads_first",
    "plan_backward",
    "plan_forward",
    "plan_inference",
    "plan_merge",
    "plan_score",
    "training_shape",
]

Arguments = Mapping[str, Argument]
CAUSAL = {2: SparseMode.LEFT_UP_CAUSAL, 8: SparseMode.LEFT_UP_CAUSAL, 0: SparseMode.NO_MASK, 1: SparseMode.NO_MASK}
_SPLITS = (1, 2, 4, 8, 16, 32)
_SPLIT_BELOW = 0.4  # of the cores: fewer key heads than that are split along the keys (ops-transformer, IFA tiling)
_MERGE_CYCLES = 14.0  # a repeat of a merge: two casts, two products, a sum and a cast, 2 each, and a broadcast
_MOST_WORKSPACE = 2**31 - 1  # sizes of a workspace are int32


def heads_first(shape: Sequence[int], layout: str, heads: int) -> tuple[int, int, int, int]:
    """Return (B, N, S, D) of a shape in a layout; a packed tensor has B = 1.

    >>> heads_first((5, 2, 12), "SBH", 3)
    (2, 3, 5, 4)
    """
    if layout in ("BSH", "SBH"):
        batch, length, width = shape if layout == "BSH" else (shape[1], shape[0], shape[2])
        return batch, heads, length, width // heads
    order = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "TND": (None, 1, 0, 2), "NTD": (None, 0, 1, 2)}[layout]
    return tuple(1 if axis is None else shape[axis] for axis in order)  # type: ignore[return-value]


def training_shape(inputs: Arguments, attributes: Mapping[str, Any], mode: int) -> AttentionShape:
    """Return the shape of a training call; packed sequences count as equal ones of their mean length.

    Bands and prefixes count as the causal mode that holds them.
    """
    layout, heads = attributes["input_layout"], attributes["head_num"]
    query, key, value = (inputs[name].shape for name in ("query", "key", "value"))
    batch, heads, q_len, dim = heads_first(query, layout, heads)
    kv_heads = key[2] // dim if layout in ("BSH", "SBH") else heads_first(key, layout, 1)[1]
    _, _, kv_len, value_dim = heads_first(value, layout, kv_heads)
    if layout == "TND":
        batch, q_len = _mean_length(attributes["actual_seq_qlen"], q_len)
        kv_len = -(-kv_len // batch)
    rope = inputs.get("query_rope")
    dim += 0 if rope is None else heads_first(rope.shape, layout, heads)[3]
    size = inputs["query"].dtype.itemsize
    return AttentionShape(batch, heads, kv_heads, q_len, kv_len, dim, value_dim, size, _causal(mode))


def inference_shape(inputs: Arguments, attributes: Mapping[str, Any]) -> AttentionShape:
    """Return the shape of an inference call; sequences count as equal ones of their mean length, where it is known."""
    layout = attributes.get("input_layout", "BSH").partition("_")[0]
    heads = attributes.get("num_heads", 1)
    kv_heads = attributes.get("num_key_value_heads", 0) or heads
    batch, heads, q_len, dim = heads_first(inputs["query"].shape, layout, heads)
    lengths = attributes.get("actual_seq_lengths_kv")
    if "block_table" in inputs:
        rows, pages = inputs["block_table"].shape
        kv_len = pages * attributes["block_size"]
        pool = inputs["value"].shape
        value_dim = pool[2] // kv_heads if len(pool) == 3 else pool[3] if len(pool) == 4 else pool[2] * pool[4]
        if lengths is not None:
            kv_len = -(-sum(lengths) // len(lengths))
        if layout in ("TND", "NTD"):
            batch, q_len = rows, -(-q_len // rows)
    else:
        _, _, kv_len, value_dim = heads_first(inputs["value"].shape, layout, kv_heads)
        if layout in ("TND", "NTD"):
            batch, q_len = _mean_length(attributes["actual_seq_lengths"], q_len)
            kv_len = -(-kv_len // batch)
        elif lengths is not None:
            kv_len = -(-sum(lengths) // len(lengths))
    for name in ("key_shared_prefix", "query_rope"):
        if name in inputs:
            extra = heads_first(inputs[name].shape, layout, kv_heads if name.startswith("key") else heads)
            kv_len, dim = (kv_len + extra[2], dim) if name.startswith("key") else (kv_len, dim + extra[3])
    mode = attributes.get("sparse_mode", 0) if "atten_mask" in inputs and q_len > 1 else 0
    size = max(2, inputs["query"].dtype.itemsize)  # int8 calls take the time of 16-bit ones
    return AttentionShape(batch, heads, kv_heads, q_len, max(1, kv_len), dim, value_dim, size, _causal(mode))


def _causal(mode: int) -> SparseMode:
    return CAUSAL.get(mode, SparseMode.RIGHT_DOWN_CAUSAL)


def _mean_length(ends: Sequence[int], total: int) -> tuple[int, int]:
    count = max(1, sum(n > 0 for n in np.diff([0, *ends])))
    return count, -(-total // count)


def plan_forward(chip: ChipSpec, shape: AttentionShape, extra_bytes: float, core_limit: Any) -> Plan:
    """Plan a forward launch with the fastest tile that fits; ``extra_bytes`` is HBM traffic beside q, k, v and out."""
    return _plan(chip, choose_tile(chip, shape, core_limit), extra_bytes)


def plan_score(
    chip: ChipSpec, inputs: Arguments, outputs: Sequence[Argument], core_limit: Any, attributes: Mapping[str, Any]
) -> Plan:
    """Plan a training launch: the fastest tile that fits, by a model that knows no mask and the two causal modes.

    HBM traffic: what the tile model reads of q, k, v and writes of the output, the statistics, and of the mask the
    part that the window over it can reach.
    """
    attributes = {"input_layout": "BNSD", "head_num": inputs["query"].shape[1], **attributes}
    shape = training_shape(inputs, attributes, attributes.get("sparse_mode", 0))
    rows, columns = (min(*pair) for pair in zip(COMPRESSED_MASK, (shape.q_len, shape.kv_len), strict=True))
    mask_bytes = rows * columns * ("atten_mask" in inputs)
    return plan_forward(chip, shape, float(mask_bytes + sum(each.nbytes for each in outputs[1:])), core_limit)


def _plan(chip: ChipSpec, best: AttentionCost, extra_bytes: Any) -> Plan:
    launch = Cost(
        head_ns=chip["kernel_head_ns"],
        block_ns=best.duration_ns - chip["kernel_head_ns"],
        blocks=best.cores_used,  # one per core: each works through its share of the query tiles
        cube_cores=jnp.ones_like(best.cores_used),
        vector_cores=chip["vector_per_cube"].astype(jnp.int32),
        all_at_once=jnp.zeros_like(best.cores_used),
        cube_busy_ns=best.cube_busy_ns,
        vector_busy_ns=best.vector_busy_ns,
        hbm_bytes=best.hbm_bytes + extra_bytes,
        l2_bytes=best.l2_bytes,
        limit=launched_limit(best.limit),
        tile=best.tile,
    )
    return Plan(launch, best.workspace_bytes, best.fits)


def plan_inference(
    chip: ChipSpec, inputs: Arguments, outputs: Sequence[Argument], core_limit: Any, attributes: Mapping[str, Any]
) -> Plan:
    """Plan a prompt or decoding launch. A cache of int8 halves the HBM traffic, not the time: widening it is work."""
    shape = inference_shape(inputs, attributes)
    extra = float(outputs[1].nbytes if len(outputs) > 1 else 0)
    extra += float(sum(inputs[name].nbytes for name in ("pse_shift", "block_table") if name in inputs))
    is_narrow = inputs["key"].dtype.itemsize < shape.dtype_bytes
    saved = shape.batch * shape.kv_heads * shape.kv_len * (shape.dim + shape.value_dim) * is_narrow
    extra -= float(saved * (shape.dtype_bytes - 1))
    if shape.q_len > 1:
        return plan_forward(chip, shape, extra, core_limit)
    return _plan(chip, _decode(chip, shape, core_limit), extra)


def _decode(chip: ChipSpec, shape: AttentionShape, core_limit: Any) -> AttentionCost:
    """Return the cost of one query row, with the keys split over idle cores if there are few key heads."""
    cores = jnp.minimum(chip["cube_cores"], core_limit)
    key_heads = shape.batch * shape.kv_heads
    candidates, is_allowed = [], []
    for splits in _SPLITS:
        if splits > 1 and (key_heads * splits > 64 or shape.kv_len < 128 * splits):
            break
        part = AttentionShape(
            shape.batch * splits, shape.kv_heads, shape.kv_heads, shape.heads // shape.kv_heads,
            -(-shape.kv_len // splits), shape.dim, shape.value_dim, shape.dtype_bytes,
        )  # fmt: skip
        candidates.append(choose_tile(chip, part, core_limit))
        is_allowed.append((splits == 1) | ((key_heads < _SPLIT_BELOW * cores) & (key_heads * splits <= cores)))
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *candidates)
    best = jnp.argmin(jnp.where(jnp.stack([jnp.asarray(x) for x in is_allowed]), stacked.duration_ns, jnp.inf))
    return jax.tree.map(lambda leaf: leaf[best], stacked)


def plan_backward(
    chip: ChipSpec, inputs: Arguments, outputs: Sequence[Argument], core_limit: Any, attributes: Mapping[str, Any]
) -> Plan:
    """Plan a gradient launch: the backward tile model, and dq in float32 as workspace where it is added up there."""
    mode = attributes.get("sparse_mode", 0) if "atten_mask" in inputs else 0
    shape = training_shape(inputs, attributes, mode)
    best, tile = timing.backward(chip, shape, cores=core_limit)
    cores = jnp.minimum(jnp.minimum(chip["cube_cores"], core_limit), best.blocks).astype(jnp.int32)
    others = [x.nbytes for name, x in inputs.items() if name not in ("query", "key", "value", "dy", "attention_in")]
    launch = Cost(
        head_ns=jnp.asarray(chip["kernel_head_ns"], jnp.float32),
        block_ns=best.duration_ns - chip["kernel_head_ns"],
        blocks=cores,
        cube_cores=jnp.ones_like(cores),
        vector_cores=chip["vector_per_cube"].astype(jnp.int32),
        all_at_once=jnp.zeros_like(cores),
        cube_busy_ns=best.busy_ns[..., QUEUES.index("cube")],
        vector_busy_ns=best.busy_ns[..., QUEUES.index("vector")],
        hbm_bytes=best.hbm_bytes + float(sum(others) + sum(x.nbytes for x in outputs[3:])),
        l2_bytes=jnp.zeros_like(best.hbm_bytes),
        limit=launched_limit(best.limit),
        tile=tile,
    )
    sums = 4 * shape.batch * shape.heads * shape.q_len * shape.dim if shape.dtype_bytes == 2 else 0
    return Plan(launch, min(sums, _MOST_WORKSPACE), best.fits)


def plan_merge(
    chip: ChipSpec, inputs: Arguments, outputs: Sequence[Argument], core_limit: Any, attributes: Mapping[str, Any]
) -> Plan:
    """Plan a merge of partial results: vector cores, every input read and every output written once."""
    read, written = (float(sum(x.nbytes for x in each)) for each in (inputs.values(), outputs))
    elements = float(max(x.nbytes // x.dtype.itemsize for x in inputs.values()))
    cores = jnp.minimum(chip["vector_cores"], core_limit * chip["vector_per_cube"])  # a limit counts cube cores
    cores = jnp.minimum(cores, float(-(-int(elements) // 2048))).astype(jnp.int32)
    vector_ns = cost.vector_ns(chip, elements / cores, _MERGE_CYCLES, 4)
    hbm_ns = cost.copy_ns(chip, read + written, memory.hbm_rate(chip))
    core_ns = cost.copy_ns(chip, read / cores, chip["gm_ub_bytes_per_s"])
    core_ns += cost.copy_ns(chip, written / cores, chip["ub_gm_bytes_per_s"])
    launch = kernel_cost(
        jnp.maximum(jnp.maximum(vector_ns, core_ns), hbm_ns), blocks=cores, vector_cores=1,
        head_ns=chip["kernel_head_ns"], vector_busy_ns=vector_ns, hbm_bytes=read + written,
    )  # fmt: skip
    is_fixed = launch.block_ns < chip["kernel_head_ns"]
    unit = jnp.where(vector_ns > jnp.maximum(core_ns, hbm_ns), LIMITS.index("vector"), LIMITS.index("memory"))
    limit = jnp.where(is_fixed, LIMITS.index("fixed"), unit).astype(jnp.int32)
    return Plan(dataclasses.replace(launch, limit=limit), 0, True)
