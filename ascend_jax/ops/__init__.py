"""Operators: tensors in device memory, two-phase calls, FlashAttention, matmul, tiles and times."""

from ascend_jax.ops import tiling
from ascend_jax.ops.attention.reference import attention_reference
from ascend_jax.ops.attention.tiling import TILES, AttentionCost, AttentionShape, attention_cost, choose_tile
from ascend_jax.ops.attention.visibility import SparseMode, Visibility
from ascend_jax.ops.flash_attention_score import (
    causal_mask,
    flash_attention_score_get_workspace_size,
    share_cores,
)
from ascend_jax.ops.matmul import matmul_get_workspace_size
from ascend_jax.ops.registry import Operator, Plan, add, get_workspace_size, infer, names
from ascend_jax.ops.timing.measured import Measurements, read_measurements

__all__ = [
    "TILES",
    "AttentionCost",
    "AttentionShape",
    "Measurements",
    "Operator",
    "Plan",
    "SparseMode",
    "Visibility",
    "add",
    "attention_cost",
    "attention_reference",
    "causal_mask",
    "choose_tile",
    "flash_attention_score_get_workspace_size",
    "get_workspace_size",
    "infer",
    "matmul_get_workspace_size",
    "names",
    "read_measurements",
    "share_cores",
    "tiling",
]
