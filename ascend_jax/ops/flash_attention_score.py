"""FlashAttentionScore on a card: two-phase calls of fused attention, as ``aclnnFlashAttentionScore`` defines it.

What it computes is :func:`ascend_jax.ops.attention_score.flash_attention_score`; here are the entry in the registry,
the first phase, and the cost. Outputs are attention_out in the layout of query, and the row statistics softmax_max and
softmax_sum, float32 with eight equal copies a row (one 32-byte block).
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops import registry
from ascend_jax.ops.attention.tiling import AttentionShape, choose_tile
from ascend_jax.ops.attention.visibility import ALL_TOKENS, SparseMode
from ascend_jax.ops.attention_plans import plan_forward, training_shape
from ascend_jax.ops.attention_score import COPIES, flash_attention_score
from ascend_jax.ops.registry import ALL_CORES, Operator, Plan
from ascend_jax.ops.tensor import Tensor
from ascend_jax.runtime.codes import Code, ParameterError
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.kernels import Argument, Executor
from ascend_jax.runtime.state import CardState

NAME = "FlashAttentionScore"
MASK_SIZE = 2048  # side of the compressed mask of the causal modes
STATISTICS_COPIES = COPIES
OPTIONAL = ("pse", "drop_mask", "atten_mask", "sink")  # tensors that a call may leave out, in their order
_DEFAULTS = {  # attributes that reach the kernel only where they differ, so that plain calls share one
    "input_layout": "BNSD", "pse_type": 1, "keep_prob": 1.0, "pre_tokens": ALL_TOKENS, "next_tokens": ALL_TOKENS,
    "inner_precise": 0, "softmax_layout": "", "q_start_idx": 0, "kv_start_idx": 0, "prefix": None,
    "actual_seq_qlen": None, "actual_seq_kvlen": None, "seed": None, "offset": 0,
}  # fmt: skip


def _refuse(parameter: str, given: object, rule: str) -> ParameterError:
    return ParameterError(Code.PARAM_INVALID, parameter, given, rule)


def infer(
    inputs: Sequence[Argument], *, sparse_mode: int, optional: tuple[str, ...] | None = None, **attributes: Any
) -> dict[str, Argument]:
    """Refuse what the operator's first phase refuses (161001, 161002, 561002); return the outputs.

    ``optional`` names the inputs after query, key, value; a fourth one alone is the mask.
    """
    for name, given in zip(("query", "key", "value"), inputs, strict=False):
        if min(given.shape, default=1) < 1:
            raise _refuse(f"{name}.shape", list(given.shape), "every dimension must be at least 1")
    arrays = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in inputs]
    compute = functools.partial(value, scale_value=1.0, sparse_mode=sparse_mode, optional=optional, **attributes)
    try:
        results = jax.eval_shape(compute, *arrays)
    except ParameterError as refusal:
        refusal.__notes__ = []  # what JAX says about its own frames
        raise
    names = ("attention_out", "softmax_max", "softmax_sum")
    return {name: Argument(each.shape, np.dtype(each.dtype)) for name, each in zip(names, results, strict=True)}


def value(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *others: jax.Array,
    scale_value: float | jax.Array,
    sparse_mode: int,
    optional: tuple[str, ...] | None = None,
    **attributes: Any,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute attention_out, softmax_max and softmax_sum."""
    names = ("atten_mask",) * len(others) if optional is None else optional
    attributes = {"head_num": query.shape[1], "input_layout": "BNSD", **attributes}
    if optional is None and not others and sparse_mode:
        # a compressed mask holds no choice, so a caller who has checked it may leave it out
        others, names = (jax.ShapeDtypeStruct((MASK_SIZE, MASK_SIZE), np.uint8),), ("atten_mask",)  # type: ignore[assignment]
    given: dict[str, Any] = dict(zip(names, others, strict=True))
    done = flash_attention_score(
        query, key, value, scale_value=scale_value, sparse_mode=sparse_mode, **given, **attributes
    )
    return done.attention_out, done.softmax_max, done.softmax_sum


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


def plan(
    chip: ChipSpec,
    inputs: Sequence[Argument],
    outputs: Sequence[Argument],
    core_limit: jax.Array,
    *,
    sparse_mode: int,
) -> Plan:
    """Choose the fastest tile that fits the chip and predict the launch.

    HBM traffic: what the tile model reads of q, k, v and writes of the output, the statistics, and of the mask the
    part that the window over it can reach.
    """
    query, key, value = inputs[:3]
    return _plan(chip, attention_shape(query, key, value, sparse_mode), len(inputs) > 3, outputs, core_limit)


def _plan(
    chip: ChipSpec, shape: AttentionShape, has_mask: bool, outputs: Sequence[Argument], core_limit: jax.Array
) -> Plan:
    mask_bytes = min(MASK_SIZE, shape.q_len) * min(MASK_SIZE, shape.kv_len) * has_mask
    return plan_forward(chip, shape, float(mask_bytes + sum(each.nbytes for each in outputs[1:])), core_limit)


def plan_call(
    chip: ChipSpec,
    inputs: Sequence[Argument],
    outputs: Sequence[Argument],
    core_limit: jax.Array,
    *,
    sparse_mode: int,
    optional: tuple[str, ...] | None = None,
    **attributes: Any,
) -> Plan:
    """Predict a call of any layout and mode by the tile model, which knows no mask, and the two causal modes.

    Bands and prefixes count as the causal mode that holds them; packed sequences as equal ones of their mean length.
    """
    names = ("atten_mask",) * len(inputs[3:]) if optional is None else optional
    given = dict(zip(("query", "key", "value", *names), inputs, strict=True))
    attributes = {"input_layout": "BNSD", "head_num": inputs[0].shape[1], **attributes}
    shape = training_shape(given, attributes, sparse_mode)
    return _plan(chip, shape, "atten_mask" in given, outputs, core_limit)


registry.add(Operator(NAME, value, plan_call, infer, scalars=("scale_value",)))


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
        next_tokens, inner_precise, pse_type, softmax_layout, seed, offset; host values with CANN's defaults.

    Returns:
      The card, the workspace size in bytes (int32) and the executor for ``launch``. Status 561002 if no tile fits.

    Raises:
      ParameterError: 161001 for a missing tensor, 161002 and 561002 for what the operator refuses.
    """
    given = {"query": query, "key": key, "value": value}
    given |= {"attention_out": attention_out, "softmax_max": softmax_max, "softmax_sum": softmax_sum}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise ParameterError(Code.PARAM_NULLPTR, name, tensor, "must be a tensor; see ascend_jax.tensor")
    if padding_mask is not None:
        raise _refuse("padding_mask", "given", "is reserved: must be None")
    present = {"pse": pse, "drop_mask": drop_mask, "atten_mask": atten_mask, "sink": sink}
    inputs, names = [query, key, value], tuple(name for name in OPTIONAL if present[name] is not None)
    inputs += [present[name] for name in names]  # type: ignore[misc]
    if atten_mask is None:
        sparse_mode = int(SparseMode.NO_MASK)
    elif input_layout == "BNSD" and names == ("atten_mask",) and sparse_mode in (2, 3) and not attributes:
        _check_head_num(head_num, query)
        names = None  # type: ignore[assignment]
    kept = _static_attributes({**attributes, "input_layout": input_layout})
    if names or kept:
        kept |= {"head_num": head_num, "optional": names}
    else:
        _check_head_num(head_num, query)
    attributes = {"scale_value": scale_value, "sparse_mode": int(sparse_mode), **kept}
    outputs = (attention_out, softmax_max, softmax_sum)
    return registry.get_workspace_size(card, NAME, inputs, outputs, attributes, core_limit=core_limit, site=site)


def _check_head_num(head_num: int, query: Tensor) -> None:
    if len(query.shape) == 4 and head_num != query.shape[1]:
        raise _refuse("head_num", head_num, f"must be {query.shape[1]}, the heads of query")


def _static_attributes(given: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that differ from their defaults, hashable."""
    kept = {}
    for name, each in given.items():
        if name not in _DEFAULTS:
            raise TypeError(f"flash_attention_score has no attribute {name!r}; it has {', '.join(_DEFAULTS)}")
        is_list = name in ("prefix", "actual_seq_qlen", "actual_seq_kvlen") and each is not None
        each = tuple(int(n) for n in each) if is_list else each
        if each != _DEFAULTS[name]:
            kept[name] = each
    return kept


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
