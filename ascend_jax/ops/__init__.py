"""Operators: tensors in device memory, two-phase calls, FlashAttention, matmul, tiles and times."""

from ascend_jax.ops import tiling
from ascend_jax.ops.attention.dropout import PackedDropout, PhiloxDropout, philox_dropout
from ascend_jax.ops.attention.explain import explain
from ascend_jax.ops.attention.flash import flash_attention, plain_attention
from ascend_jax.ops.attention.host_tile import host_tiles
from ascend_jax.ops.attention.reference import attention_reference
from ascend_jax.ops.attention.ring import ring_attention
from ascend_jax.ops.attention.sharding import join_axis, join_sequence, shard_axis, shard_sequence, zigzag_pieces
from ascend_jax.ops.attention.tiling import TILES, AttentionCost, AttentionShape, attention_cost, choose_tile
from ascend_jax.ops.attention.ulysses import ulysses_attention
from ascend_jax.ops.attention.visibility import SparseMode, Visibility
from ascend_jax.ops.flash_attention_score import (
    causal_mask,
    flash_attention_score_get_workspace_size,
    share_cores,
)
from ascend_jax.ops.matmul import matmul_get_workspace_size
from ascend_jax.ops.registry import Operator, Plan, add, get_workspace_size, infer, names
from ascend_jax.ops.timing.measured import Measurements, read_measurements

# after the module of the same name: the function takes it over as an attribute of the package
from ascend_jax.ops.attention_branches import incre_flash_attention, prompt_flash_attention  # isort: skip
from ascend_jax.ops.attention_inference import InferAttention, fused_infer_attention_score  # isort: skip
from ascend_jax.ops.attention_merge import attention_update, ring_attention_update  # isort: skip
from ascend_jax.ops.attention_phases import (  # isort: skip
    attention_update_get_workspace_size,
    flash_attention_score_grad_get_workspace_size,
    fused_infer_attention_score_get_workspace_size,
    incre_flash_attention_get_workspace_size,
    prompt_flash_attention_get_workspace_size,
    ring_attention_update_get_workspace_size,
)
from ascend_jax.ops.attention_score import (  # isort: skip
    AttentionGrads,
    AttentionScore,
    flash_attention_score,
    flash_attention_score_grad,
)
from ascend_jax.ops.torch_npu import (  # isort: skip
    npu_attention_update,
    npu_fusion_attention,
    npu_fusion_attention_grad,
    npu_fusion_attention_v2,
    npu_fusion_attention_v3,
    npu_ring_attention_update,
)
from ascend_jax.ops.torch_npu_inference import (  # isort: skip
    npu_fused_infer_attention_score,
    npu_fused_infer_attention_score_v2,
    npu_incre_flash_attention,
    npu_prompt_flash_attention,
)

__all__ = [
    "TILES",
    "AttentionCost",
    "AttentionGrads",
    "AttentionScore",
    "AttentionShape",
    "InferAttention",
    "Measurements",
    "Operator",
    "PackedDropout",
    "PhiloxDropout",
    "Plan",
    "SparseMode",
    "Visibility",
    "add",
    "attention_cost",
    "attention_reference",
    "attention_update",
    "attention_update_get_workspace_size",
    "causal_mask",
    "choose_tile",
    "explain",
    "flash_attention",
    "flash_attention_score",
    "flash_attention_score_get_workspace_size",
    "flash_attention_score_grad",
    "flash_attention_score_grad_get_workspace_size",
    "fused_infer_attention_score",
    "fused_infer_attention_score_get_workspace_size",
    "get_workspace_size",
    "host_tiles",
    "incre_flash_attention",
    "incre_flash_attention_get_workspace_size",
    "infer",
    "join_axis",
    "join_sequence",
    "matmul_get_workspace_size",
    "names",
    "npu_attention_update",
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2",
    "npu_fusion_attention",
    "npu_fusion_attention_grad",
    "npu_fusion_attention_v2",
    "npu_fusion_attention_v3",
    "npu_incre_flash_attention",
    "npu_prompt_flash_attention",
    "npu_ring_attention_update",
    "philox_dropout",
    "plain_attention",
    "prompt_flash_attention",
    "prompt_flash_attention_get_workspace_size",
    "read_measurements",
    "ring_attention",
    "ring_attention_update",
    "ring_attention_update_get_workspace_size",
    "shard_axis",
    "shard_sequence",
    "share_cores",
    "tiling",
    "ulysses_attention",
    "zigzag_pieces",
]
