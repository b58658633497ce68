"""First phases of the attention operators on a card, by CANN's names; the second phase is ``launch`` for all.

What each computes, and what it refuses, is told at the function of the same name on arrays.
"""

from collections.abc import Sequence
from typing import Any

import jax

from ascend_jax.ops.attention_layout import refuse
from ascend_jax.ops.attention_operators import first_phase
from ascend_jax.ops.registry import ALL_CORES
from ascend_jax.ops.tensor import Tensor
from ascend_jax.runtime.codes import Code, ParameterError
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.kernels import Executor
from ascend_jax.runtime.state import CardState

__all__ = [
    "attention_update_get_workspace_size",
    "flash_attention_score_grad_get_workspace_size",
    "fused_infer_attention_score_get_workspace_size",
    "incre_flash_attention_get_workspace_size",
    "prompt_flash_attention_get_workspace_size",
    "ring_attention_update_get_workspace_size",
]

Cores = int | jax.Array
Prepared = tuple[CardState, jax.Array, Executor]


@verb
def flash_attention_score_grad_get_workspace_size(
    card: CardState,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    *,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    attention_in: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dpse: Tensor | None = None,
    dsink: Tensor | None = None,
    head_num: int,
    input_layout: str = "BNSD",
    scale_value: float | jax.Array = 1.0,
    core_limit: Cores = ALL_CORES,
    site: Site = None,
    **attributes: Any,
) -> Prepared:
    """First phase of ``aclnnFlashAttentionScoreGrad``, and with TND of ``aclnnFlashAttentionUnpaddingScoreGrad``.

    Every tensor that the operator knows may be given at once.

    Args:
      card: The card.
      query: As in the forward call; so are ``key``, ``value``, ``head_num``, ``input_layout``, ``scale_value``.
      key: Keys.
      value: Values.
      dy: Gradient of attention_out.
      softmax_max: Of the forward call.
      softmax_sum: Of the forward call.
      attention_in: attention_out of the forward call.
      dq: Like query.
      dk: Like key.
      dv: Like value.
      dpse: Like pse, if wanted.
      dsink: Like sink, if wanted.
      head_num: Heads of query.
      input_layout: "BNSD", "BSND", "BSH", "SBH" or "TND".
      scale_value: May be traced.
      core_limit: Most cube cores that the launch may use.
      site: Call site, filled in by the runtime.
      **attributes: Tensors pse, drop_mask, atten_mask, sink, query_rope, key_rope; host values as in
        :func:`~ascend_jax.ops.flash_attention_score_grad`.

    Returns:
      The card, the workspace size in bytes (int32) and the executor for ``launch``. Status 561002 if no tile fits.

    Raises:
      ParameterError: 161001, 161002 or 561002.
    """
    tensors = {"query": query, "key": key, "value": value, "dy": dy, "softmax_max": softmax_max}
    tensors |= {"softmax_sum": softmax_sum, "attention_in": attention_in}
    outputs = {"dq": dq, "dk": dk, "dv": dv, "dpse": dpse, "dsink": dsink}
    for name, source in (("dpse", "pse"), ("dsink", "sink")):
        if outputs[name] is not None and attributes.get(source) is None:
            raise refuse(name, "given", f"needs {source}")
    attributes |= {"head_num": head_num, "input_layout": input_layout, "scale_value": scale_value}
    return first_phase(card, "FlashAttentionScoreGrad", tensors, outputs, attributes, core_limit, site)


@verb
def fused_infer_attention_score_get_workspace_size(
    card: CardState,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attention_out: Tensor,
    softmax_lse: Tensor | None = None,
    softmax_lse_flag: bool = False,
    scale_value: float | jax.Array = 1.0,
    core_limit: Cores = ALL_CORES,
    site: Site = None,
    **attributes: Any,
) -> Prepared:
    """First phase of ``aclnnFusedInferAttentionScore``.

    Lengths are host integers, as in CANN, and then part of the kernel; or an int32 tensor, which keeps one kernel while
    they change. What a tensor holds is not known here: a page that does not exist makes its row NaN.

    Args:
      card: The card.
      query: In ``input_layout``.
      key: Keys, or a page pool.
      value: Values, likewise.
      attention_out: In the layout of the output.
      softmax_lse: float32 [B, N, Sq, 1] or [T, N, 1], needed and written with ``softmax_lse_flag`` only.
      softmax_lse_flag: Whether the log-sum-exp is wanted.
      scale_value: May be traced.
      core_limit: Most cube cores that the launch may use.
      site: Call site, filled in by the runtime.
      **attributes: Tensors and host values as in :func:`~ascend_jax.ops.fused_infer_attention_score`.

    Returns:
      As :func:`flash_attention_score_grad_get_workspace_size`.

    Raises:
      ParameterError: 161001, 161002 or 561002.
    """
    if softmax_lse_flag and softmax_lse is None:
        raise ParameterError(Code.PARAM_NULLPTR, "softmax_lse", None, "softmax_lse_flag needs one")
    outputs = {"attention_out": attention_out, "softmax_lse": softmax_lse if softmax_lse_flag else None}
    tensors, attributes = {"query": query, "key": key, "value": value}, {**attributes, "scale_value": scale_value}
    return first_phase(card, "FusedInferAttentionScore", tensors, outputs, attributes, core_limit, site)


@verb
def prompt_flash_attention_get_workspace_size(
    card: CardState,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attention_out: Tensor,
    scale_value: float | jax.Array = 1.0,
    core_limit: Cores = ALL_CORES,
    site: Site = None,
    **attributes: Any,
) -> Prepared:
    """First phase of ``aclnnPromptFlashAttentionV3``; next_tokens is 0 unless given.

    Args:
      card: The card.
      query: As :func:`fused_infer_attention_score_get_workspace_size`; so are the others.
      key: Keys.
      value: Values.
      attention_out: In the layout of the output.
      scale_value: May be traced.
      core_limit: Most cube cores that the launch may use.
      site: Call site, filled in by the runtime.
      **attributes: As in :func:`~ascend_jax.ops.prompt_flash_attention`.
    """
    tensors, attributes = {"query": query, "key": key, "value": value}, {**attributes, "scale_value": scale_value}
    outputs = {"attention_out": attention_out}
    return first_phase(card, "PromptFlashAttention", tensors, outputs, attributes, core_limit, site)


@verb
def incre_flash_attention_get_workspace_size(
    card: CardState,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attention_out: Tensor,
    scale_value: float | jax.Array = 1.0,
    core_limit: Cores = ALL_CORES,
    site: Site = None,
    **attributes: Any,
) -> Prepared:
    """First phase of ``aclnnIncreFlashAttentionV4``; inner_precise is 1 unless given.

    Args:
      card: The card.
      query: As :func:`fused_infer_attention_score_get_workspace_size`; so are the others.
      key: Keys, plain or pages.
      value: Values.
      attention_out: Like query.
      scale_value: May be traced.
      core_limit: Most cube cores that the launch may use.
      site: Call site, filled in by the runtime.
      **attributes: As in :func:`~ascend_jax.ops.incre_flash_attention`.
    """
    tensors, attributes = {"query": query, "key": key, "value": value}, {**attributes, "scale_value": scale_value}
    outputs = {"attention_out": attention_out}
    return first_phase(card, "IncreFlashAttention", tensors, outputs, attributes, core_limit, site)


@verb
def ring_attention_update_get_workspace_size(
    card: CardState,
    prev_attn_out: Tensor,
    prev_softmax_max: Tensor,
    prev_softmax_sum: Tensor,
    cur_attn_out: Tensor,
    cur_softmax_max: Tensor,
    cur_softmax_sum: Tensor,
    *,
    attn_out: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    core_limit: Cores = ALL_CORES,
    site: Site = None,
    **attributes: Any,
) -> Prepared:
    """First phase of ``aclnnRingAttentionUpdate``.

    Args:
      card: The card.
      prev_attn_out: As :func:`~ascend_jax.ops.ring_attention_update`; so are the others.
      prev_softmax_max: Likewise.
      prev_softmax_sum: Likewise.
      cur_attn_out: Likewise.
      cur_softmax_max: Likewise.
      cur_softmax_sum: Likewise.
      attn_out: Like prev_attn_out; may lie where an input lies.
      softmax_max: Like prev_softmax_max.
      softmax_sum: Likewise.
      core_limit: Most cube cores, whose vector cores do the work.
      site: Call site, filled in by the runtime.
      **attributes: actual_seq_qlen (host integers), input_layout, input_softmax_layout.
    """
    tensors = {
        "prev_attn_out": prev_attn_out, "prev_softmax_max": prev_softmax_max, "prev_softmax_sum": prev_softmax_sum,
        "cur_attn_out": cur_attn_out, "cur_softmax_max": cur_softmax_max, "cur_softmax_sum": cur_softmax_sum,
    }  # fmt: skip
    outputs = {"attn_out": attn_out, "softmax_max": softmax_max, "softmax_sum": softmax_sum}
    return first_phase(card, "RingAttentionUpdate", tensors, outputs, attributes, core_limit, site)


@verb
def attention_update_get_workspace_size(
    card: CardState,
    lse: Sequence[Tensor] | Tensor,
    local_out: Sequence[Tensor] | Tensor,
    *,
    out: Tensor,
    lse_out: Tensor | None = None,
    core_limit: Cores = ALL_CORES,
    site: Site = None,
) -> Prepared:
    """First phase of ``aclnnAttentionUpdate``.

    Args:
      card: The card.
      lse: float32 [R] of each part, or all of them as one tensor [parts, R]: a command has room for 19 tensors, so more
        than 9 parts must lie one after the other.
      local_out: [R, D] of each part, or [parts, R, D].
      out: [R, D].
      lse_out: float32 [R], if wanted (update_type 1).
      core_limit: Most cube cores, whose vector cores do the work.
      site: Call site, filled in by the runtime.
    """
    if isinstance(lse, Tensor) and isinstance(local_out, Tensor):
        tensors = {"lse": lse, "local_out": local_out}
    elif isinstance(lse, Sequence) and isinstance(local_out, Sequence) and len(lse) == len(local_out) > 0:
        tensors = {f"lse[{n}]": each for n, each in enumerate(lse)}
        tensors |= {f"local_out[{n}]": each for n, each in enumerate(local_out)}
    else:
        given = f"{type(lse).__name__}, {type(local_out).__name__}"
        code = Code.PARAM_NULLPTR if lse is None or local_out is None else Code.PARAM_INVALID
        raise refuse("lse, local_out", given, "must be lists of equally many tensors, or both stacked", code)
    outputs = {"out": out, "lse_out": lse_out}
    return first_phase(card, "AttentionUpdate", tensors, outputs, {}, core_limit, site)
