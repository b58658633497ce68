"""The attention operators on a card: one row of a table each, one first phase for all.

A row names the tensors, what they compute (the function on arrays, so that the refusals are the same), and how a launch
is planned. Which tensors and outputs a call has are static attributes of its kernel.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops import registry
from ascend_jax.ops.attention.visibility import ALL_TOKENS
from ascend_jax.ops.attention_branches import incre_flash_attention, prompt_flash_attention
from ascend_jax.ops.attention_geometry import COMPRESSED_MASK
from ascend_jax.ops.attention_inference import fused_infer_attention_score
from ascend_jax.ops.attention_layout import refuse
from ascend_jax.ops.attention_merge import attention_update, ring_attention_update
from ascend_jax.ops.attention_plans import plan_backward, plan_inference, plan_merge, plan_score
from ascend_jax.ops.attention_score import flash_attention_score, flash_attention_score_grad
from ascend_jax.ops.registry import Operator, Plan
from ascend_jax.ops.tensor import Tensor
from ascend_jax.runtime.codes import Code, ParameterError
from ascend_jax.runtime.edge import Site
from ascend_jax.runtime.kernels import Argument, Executor
from ascend_jax.runtime.state import CardState

__all__ = ["ATTENTION_OPERATORS", "AttentionOperator", "first_phase"]

Results = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class AttentionOperator:
    """One attention operator; tensors and outputs in the order in which a kernel takes them."""

    compute: Callable[..., Results]  # (wanted, **tensors, **attributes) -> at least the outputs asked for, by name
    plan: Callable[[ChipSpec, Mapping[str, Argument], Sequence[Argument], Any, Mapping[str, Any]], Plan]
    tensors: tuple[str, ...]  # must be given
    optional: tuple[str, ...]  # may be
    outputs: tuple[str, ...]  # must be given
    may_return: tuple[str, ...] = ()  # outputs that may be left out
    scalars: tuple[str, ...] = ("scale_value",)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # all attributes; equal ones share a kernel


def _score(wanted: tuple[str, ...], *, query: Any, sparse_mode: int = 0, **given: Any) -> Results:
    given = {"head_num": query.shape[1], "input_layout": "BNSD", **given}
    if sparse_mode and "atten_mask" not in given:
        # a compressed mask holds no choice, so a caller who has checked it may leave it out
        given["atten_mask"] = jax.ShapeDtypeStruct(COMPRESSED_MASK, np.uint8)
    return flash_attention_score(query, sparse_mode=sparse_mode, **given)._asdict()


def _score_grad(wanted: tuple[str, ...], **given: Any) -> Results:
    return flash_attention_score_grad(**given)._asdict()


def _infer(wanted: tuple[str, ...], **given: Any) -> Results:
    return fused_infer_attention_score(**given, softmax_lse_flag="softmax_lse" in wanted)._asdict()


def _prompt(wanted: tuple[str, ...], **given: Any) -> Results:
    return {"attention_out": prompt_flash_attention(**given)}


def _incre(wanted: tuple[str, ...], **given: Any) -> Results:
    return {"attention_out": incre_flash_attention(**given)}


def _ring_update(wanted: tuple[str, ...], **given: Any) -> Results:
    names = ("attn_out", "softmax_max", "softmax_sum")
    return dict(zip(names, ring_attention_update(**given), strict=True))


def _update(wanted: tuple[str, ...], **given: Any) -> Results:
    """Merge parts that come as tensors of their own, or stacked along a first axis."""
    parts = [given[name] for name in sorted(given, key=_part_order)]
    if set(given) == {"lse", "local_out"}:
        lse, outs = list(given["lse"]), list(given["local_out"])
    else:
        lse, outs = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    return dict(zip(("out", "lse_out"), attention_update(lse, outs), strict=True))


def _part_order(name: str) -> tuple[bool, int]:
    kind, _, number = name.partition("[")
    return kind != "lse", int(number[:-1] or 0) if number else 0


_CACHE = (
    "pse_shift", "atten_mask", "actual_seq_lengths", "actual_seq_lengths_kv", "block_table", "key_antiquant_scale",
    "key_antiquant_offset", "value_antiquant_scale", "value_antiquant_offset", "key_shared_prefix",
    "value_shared_prefix", "query_padding_size", "kv_padding_size", "query_rope", "key_rope", "learnable_sink",
    "dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2", "quant_offset2",
    "dequant_scale_query",
)  # fmt: skip
_HOST_TOO = ("actual_seq_lengths", "actual_seq_lengths_kv")  # a tensor, or host integers
_QKV = ("query", "key", "value")
_PARTS = tuple(f"{part}_{name}" for part in ("prev", "cur") for name in ("attn_out", "softmax_max", "softmax_sum"))
_STATISTICS = ("attn_out", "softmax_max", "softmax_sum")

ATTENTION_OPERATORS = {
    "FlashAttentionScore": AttentionOperator(
        _score, plan_score, _QKV, ("atten_mask", "pse", "drop_mask", "sink", "query_rope", "key_rope"),
        ("attention_out", "softmax_max", "softmax_sum"),
        defaults={
            "head_num": None, "sparse_mode": None, "input_layout": "BNSD", "pse_type": 1, "keep_prob": 1.0,
            "pre_tokens": ALL_TOKENS, "next_tokens": ALL_TOKENS, "inner_precise": 0, "softmax_layout": "",
            "q_start_idx": 0, "kv_start_idx": 0, "prefix": None, "actual_seq_qlen": None, "actual_seq_kvlen": None,
            "seed": None, "offset": 0,
        },
    ),
    "FlashAttentionScoreGrad": AttentionOperator(
        _score_grad, plan_backward, (*_QKV, "dy", "softmax_max", "softmax_sum", "attention_in"),
        ("pse", "drop_mask", "atten_mask", "sink", "query_rope", "key_rope"), ("dq", "dk", "dv"), ("dpse", "dsink"),
    ),
    "FusedInferAttentionScore": AttentionOperator(
        _infer, plan_inference, _QKV, _CACHE, ("attention_out",), ("softmax_lse",)
    ),
    "PromptFlashAttention": AttentionOperator(_prompt, plan_inference, _QKV, _CACHE, ("attention_out",)),
    "IncreFlashAttention": AttentionOperator(_incre, plan_inference, _QKV, _CACHE, ("attention_out",)),
    "RingAttentionUpdate": AttentionOperator(_ring_update, plan_merge, _PARTS, (), _STATISTICS, scalars=()),
    "AttentionUpdate": AttentionOperator(
        _update, plan_merge, ("lse", "local_out"), (), ("out",), ("lse_out",), scalars=()
    ),
}  # fmt: skip


def _names(operator: str, inputs: Sequence[Any], tensors: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names of the inputs; those of a kernel that has none are the first of the table."""
    entry = ATTENTION_OPERATORS[operator]
    return (*entry.tensors, *entry.optional)[: len(inputs)] if tensors is None else tensors


def _value(
    operator: str,
    *arrays: Any,
    tensors: tuple[str, ...] | None = None,
    wanted: tuple[str, ...] | None = None,
    **attributes: Any,
) -> tuple[jax.Array, ...]:
    entry = ATTENTION_OPERATORS[operator]
    wanted = entry.outputs if wanted is None else wanted
    given = dict(zip(_names(operator, arrays, tensors), arrays, strict=True))
    results = entry.compute(wanted, **given, **attributes)
    return tuple(results[name] for name in wanted)


def _infer_outputs(
    operator: str,
    inputs: Sequence[Argument],
    *,
    tensors: tuple[str, ...] | None = None,
    wanted: tuple[str, ...] | None = None,
    **attributes: Any,
) -> dict[str, Argument]:
    """Run the checks of the call on arrays, without any: the first phase refuses what that one refuses."""
    entry, tensors = ATTENTION_OPERATORS[operator], _names(operator, inputs, tensors)
    wanted = entry.outputs if wanted is None else wanted
    for name, given in zip(tensors, inputs, strict=True):
        if min(given.shape, default=1) < 1:
            raise refuse(f"{name}.shape", list(given.shape), "every dimension must be at least 1")
    arrays = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in inputs]
    varying = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in entry.scalars}
    compute = functools.partial(_value, operator, tensors=tensors, wanted=wanted, **attributes)
    try:
        results = jax.eval_shape(compute, *arrays, **varying)
    except ParameterError as refusal:
        refusal.__notes__ = []  # what JAX says about its own frames
        raise
    return {name: Argument(each.shape, np.dtype(each.dtype)) for name, each in zip(wanted, results, strict=True)}


def _plan(
    operator: str,
    chip: ChipSpec,
    inputs: Sequence[Argument],
    outputs: Sequence[Argument],
    core_limit: jax.Array,
    *,
    tensors: tuple[str, ...] | None = None,
    wanted: tuple[str, ...] | None = None,
    **attributes: Any,
) -> Plan:
    given = dict(zip(_names(operator, inputs, tensors), inputs, strict=True))
    return ATTENTION_OPERATORS[operator].plan(chip, given, outputs, core_limit, attributes)


for _name, _entry in ATTENTION_OPERATORS.items():
    _of = functools.partial
    registry.add(
        Operator(_name, _of(_value, _name), _of(_plan, _name), _of(_infer_outputs, _name), scalars=_entry.scalars)
    )


def first_phase(
    card: CardState,
    operator: str,
    tensors: Mapping[str, Any],
    outputs: Mapping[str, Tensor | None],
    attributes: Mapping[str, Any],
    core_limit: int | jax.Array,
    site: Site,
) -> tuple[CardState, jax.Array, Executor]:
    """Check, tile and predict a call of one of the operators of this table.

    Args:
      card: The card.
      operator: Its name.
      tensors: By name; one that may be left out may be None. A name of the table that holds no tensor is an attribute.
      outputs: By name, None for one that is not wanted.
      attributes: All else; None and lists are as in the call on arrays.
      core_limit: Most cube cores that the launch may use.
      site: Call site.

    Raises:
      ParameterError: 161001 for a tensor that is missing; else what the call on arrays refuses.
    """
    entry = ATTENTION_OPERATORS[operator]
    for name, given in {**tensors, **{name: outputs.get(name) for name in entry.outputs}}.items():
        if name not in entry.optional and not isinstance(given, Tensor):
            raise ParameterError(Code.PARAM_NULLPTR, name, given, "must be a tensor; see ascend_jax.tensor")
    everything = {**tensors, **attributes}
    inputs = {name: given for name, given in everything.items() if isinstance(given, Tensor)}
    for name in inputs:
        if name in attributes and name not in entry.optional:
            raise refuse(name, "a tensor", f"{operator} takes no tensor there: give a number or host integers")
    for name, given in attributes.items():
        if name in entry.optional and name not in _HOST_TOO and given is not None and name not in inputs:
            raise refuse(name, type(given).__name__, "must be a tensor; see ascend_jax.tensor")
    wanted = {name: each for name, each in outputs.items() if each is not None}
    kept = {name: each for name, each in everything.items() if name not in inputs and each is not None}
    kept = {name: each if name in entry.scalars else _frozen(each) for name, each in kept.items()}
    if entry.defaults:
        for name in kept:
            if name not in (*entry.defaults, *entry.scalars):
                raise TypeError(f"{operator} has no attribute {name!r}; it has {', '.join(entry.defaults)}")
        kept = {name: each for name, each in kept.items() if name in entry.scalars or each != entry.defaults[name]}
    if tuple(inputs) != _names(operator, tuple(inputs), None):
        kept["tensors"] = tuple(inputs)
    if tuple(wanted) != entry.outputs:
        kept["wanted"] = tuple(wanted)
    return registry.get_workspace_size(
        card, operator, tuple(inputs.values()), tuple(wanted.values()), kept, core_limit=core_limit, site=site
    )


def _frozen(given: Any) -> Any:
    """Make a list hashable. What it holds stays as it is: the call on arrays refuses what is no integer."""
    given = np.asarray(given).ravel().tolist() if isinstance(given, np.ndarray | jax.Array) else given
    return tuple(given) if isinstance(given, list | tuple) else given
