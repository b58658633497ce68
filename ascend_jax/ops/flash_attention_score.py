"""FlashAttentionScore on a card: two-phase calls of fused attention, as ``aclnnFlashAttentionScore`` defines it.

What it computes is :func:`ascend_jax.ops.attention_score.flash_attention_score`; its row in the table of operators is
in ``attention_operators``, here are the first phase and the choice of cores. Outputs are attention_out in the layout of
query, and the row statistics softmax_max and softmax_sum, float32 with eight equal copies a row (one 32-byte block).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops.attention.tiling import AttentionShape, choose_tile
from ascend_jax.ops.attention.visibility import SparseMode
from ascend_jax.ops.attention_geometry import COMPRESSED_MASK
from ascend_jax.ops.attention_layout import refuse
from ascend_jax.ops.attention_operators import first_phase
from ascend_jax.ops.registry import ALL_CORES
from ascend_jax.ops.tensor import Tensor
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.kernels import Argument, Executor
from ascend_jax.runtime.state import CardState

NAME = "FlashAttentionScore"
MASK_SIZE = COMPRESSED_MASK[0]  # side of the compressed mask of the causal modes


def attention_shape(query: Argument, key: Argument, value: Argument, sparse_mode: int) -> AttentionShape:
    """Return what the tiling needs to know of a call."""
    batch, heads, q_len, dim = query.shape
    _, kv_heads, kv_len, value_dim = value.shape
    return AttentionShape(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        dim=dim,
        value_dim=value_dim,
        dtype_bytes=query.dtype.itemsize,
        mode=SparseMode(sparse_mode),
    )


@verb
def flash_attention_score_get_workspace_size(
    card: CardState,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attention_out: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    head_num: int,
    pse: Tensor | None = None,
    drop_mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    sink: Tensor | None = None,
    scale_value: float | jax.Array = 1.0,
    sparse_mode: int = 0,
    input_layout: str = "BNSD",
    core_limit: int | jax.Array = ALL_CORES,
    site: Site = None,
    **attributes: Any,
) -> tuple[CardState, jax.Array, Executor]:
    """First phase of ``aclnnFlashAttentionScore`` and of its varlen form: check, tile, predict; nothing is queued.

    See :func:`ascend_jax.ops.flash_attention_score` for what it computes. **Without ``atten_mask`` the sparse mode is
    ignored**, as in CANN: mode 3 and no mask is full attention. Rows that see nothing by the lengths give 0, with
    softmax_max = -FLT_MAX and softmax_sum = +FLT_MAX (ops-transformer, flash_attention_score).

    Args:
      card: The card.
      query: float16, bfloat16 or float32, in ``input_layout``.
      key: Its heads divide those of query.
      value: Head dimension at most that of query.
      attention_out: In the layout and dtype of query, with the head dimension of value.
      softmax_max: float32 [B, N, Sq, 8], or [T, N, 8]: greatest scaled score of each row, eight copies.
      softmax_sum: Likewise, sum of exp(score - max).
      head_num: N.
      pse: Position bias.
      drop_mask: Packed keep-bits, uint8.
      padding_mask: Reserved.
      atten_mask: uint8 or bool, 1 = hidden; [2048, 2048] for sparse modes 2, 3, 4, 7, 8, [3072, 2048] for 6.
      sink: float32 [N].
      scale_value: Factor of the scores, may be traced; 1.0 unless given, never 1 / sqrt(D) by itself.
      sparse_mode: 0 to 8.
      input_layout: "BNSD", "BSND", "BSH", "SBH" or "TND".
      core_limit: Most cube cores that the launch may use (``aclrtSetStreamResLimit``).
      site: Call site, filled in by the runtime.
      **attributes: prefix, actual_seq_qlen, actual_seq_kvlen, q_start_idx, kv_start_idx, keep_prob, pre_tokens,
        next_tokens, inner_precise, pse_type, softmax_layout, seed, offset; host values with CANN's defaults. Also the
        tensors query_rope and key_rope.

    Returns:
      The card, the workspace size in bytes (int32) and the executor for ``launch``. Status 561002 if no tile fits.

    Raises:
      ParameterError: 161001 for a missing tensor, 161002 and 561002 for what the operator refuses.
    """
    if padding_mask is not None:
        raise refuse("padding_mask", "given", "is reserved: must be None")
    if input_layout == "BNSD" and isinstance(query, Tensor) and len(query.shape) == 4 and head_num != query.shape[1]:
        raise refuse("head_num", head_num, f"must be {query.shape[1]}, the heads of query")
    tensors = {"query": query, "key": key, "value": value}
    outputs = {"attention_out": attention_out, "softmax_max": softmax_max, "softmax_sum": softmax_sum}
    attributes |= {"atten_mask": atten_mask, "pse": pse, "drop_mask": drop_mask, "sink": sink}
    attributes |= {"head_num": head_num, "input_layout": input_layout, "scale_value": scale_value}
    attributes["sparse_mode"] = 0 if atten_mask is None else sparse_mode
    return first_phase(card, NAME, tensors, outputs, attributes, core_limit, site)


def share_cores(chip: ChipSpec, shape: AttentionShape, launches: int) -> int:
    """Return the cube cores to give each of ``launches`` equal launches on streams of their own; host-side.

    With c cores each, cores // c launches run at a time; the choice minimises rounds * predicted duration.

    >>> from ascend_jax.chip.spec import chip
    >>> share_cores(chip("Ascend910B2"), AttentionShape(1, 1, 1, 1024, 1024, 128, 128, 2), 1)
    24
    """
    cores = int(chip["cube_cores"])
    limits = jnp.arange(1, cores + 1)
    durations = _durations(chip, shape, limits)
    rounds = -(-launches // (cores // np.asarray(limits)))
    times = rounds * np.asarray(durations)
    return cores - int(np.argmin(times[::-1]))  # of equal times the one with more cores: it ends sooner if alone


@functools.partial(jax.jit, static_argnums=1)
def _durations(chip: ChipSpec, shape: AttentionShape, limits: jax.Array) -> jax.Array:
    return jax.vmap(lambda limit: choose_tile(chip, shape, limit).duration_ns)(limits)


def causal_mask() -> np.ndarray:
    """Return the compressed mask of the causal modes: uint8 [2048, 2048], 1 above the diagonal.

    >>> causal_mask()[0, :3].tolist()
    [0, 1, 1]
    """
    return np.triu(np.ones((MASK_SIZE, MASK_SIZE), np.uint8), 1)
