"""FlashAttentionScore: fused attention forward, as ``aclnnFlashAttentionScore`` defines it.

Inputs query [B, N, Sq, D], key [B, Nkv, Skv, D], value [B, Nkv, Skv, Dv] and, for causal attention, the compressed
2048 x 2048 mask that CANN demands; outputs attention_out [B, N, Sq, Dv] and the row statistics softmax_max and
softmax_sum, float32 [B, N, Sq, 8] with eight equal copies (one 32-byte block per row).
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.ops import registry
from ascend_jax.ops.attention.kernel import flash_forward
from ascend_jax.ops.attention.tiling import AttentionShape, choose_tile
from ascend_jax.ops.attention.visibility import SparseMode, Visibility
from ascend_jax.ops.registry import ALL_CORES, Operator, Plan, require_shape
from ascend_jax.ops.tensor import Tensor
from ascend_jax.runtime.codes import Code, ParameterError
from ascend_jax.runtime.edge import Site, verb
from ascend_jax.runtime.kernels import Argument, Cost, Executor
from ascend_jax.runtime.state import CardState

NAME = "FlashAttentionScore"
DTYPES = tuple(jnp.dtype(name) for name in ("float16", "bfloat16", "float32"))
MASK_SIZE = 2048  # side of the compressed mask of the causal modes
STATISTICS_COPIES = 8
MAX_DIM = 768
_MODES = (SparseMode.NO_MASK, SparseMode.LEFT_UP_CAUSAL, SparseMode.RIGHT_DOWN_CAUSAL)


def _refuse(parameter: str, given: object, rule: str) -> ParameterError:
    return ParameterError(Code.PARAM_INVALID, parameter, given, rule)


def infer(inputs: Sequence[Argument], *, sparse_mode: int) -> dict[str, Argument]:
    """Refuse what the operator's first phase refuses (161002); return the outputs."""
    query, key, value = inputs[:3]
    for name, given in zip(("query", "key", "value"), inputs, strict=False):
        if len(given.shape) != 4:
            raise _refuse(f"{name}.shape", list(given.shape), "must have rank 4: [B, N, S, D]")
        if given.dtype not in DTYPES or given.dtype != query.dtype:
            raise _refuse(f"{name}.dtype", given.dtype, "query, key and value share float16, bfloat16 or float32")
    (batch, heads, q_len, dim), (_, kv_heads, kv_len, _) = query.shape, key.shape
    value_dim = value.shape[3]
    require_shape("key", key, (batch, kv_heads, kv_len, dim), "batch and head dimension of query")
    require_shape("value", value, (batch, kv_heads, kv_len, value_dim), "batch, heads and length of key")
    if not 1 <= value_dim <= dim <= MAX_DIM:
        raise _refuse("D, Dv", f"{dim}, {value_dim}", f"1 <= Dv <= D <= {MAX_DIM}")
    if kv_heads < 1 or heads % kv_heads:
        raise _refuse("heads, kv_heads", f"{heads}, {kv_heads}", "heads must be a multiple of kv_heads")
    if min(batch, heads, q_len, kv_len) < 1:
        raise _refuse("query, key", f"{list(query.shape)}, {list(key.shape)}", "every dimension must be at least 1")
    if sparse_mode not in _MODES:
        raise _refuse("sparse_mode", sparse_mode, f"must be one of {[int(mode) for mode in _MODES]}")
    statistics = Argument((batch, heads, q_len, STATISTICS_COPIES), np.dtype(np.float32))
    out = Argument((batch, heads, q_len, value_dim), query.dtype)
    return {"attention_out": out, "softmax_max": statistics, "softmax_sum": statistics}


def value(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    *,
    scale_value: float | jax.Array,
    sparse_mode: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute attention_out, softmax_max and softmax_sum. The compressed mask holds no choice, so it is not read."""
    visibility = Visibility(query.shape[2], key.shape[2], SparseMode(sparse_mode))
    out, row_max, row_sum = flash_forward(query, key, value, visibility, scale=scale_value)
    return out, _copies(row_max), _copies(row_sum)


def _copies(rows: jax.Array) -> jax.Array:
    return jnp.broadcast_to(rows[..., None].astype(jnp.float32), (*rows.shape, STATISTICS_COPIES))


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
    shape = attention_shape(query, key, value, sparse_mode)
    best = choose_tile(chip, shape, core_limit)
    mask_bytes = min(MASK_SIZE, shape.q_len) * min(MASK_SIZE, shape.kv_len) * (len(inputs) > 3)
    cost = Cost(
        head_ns=chip["kernel_head_ns"],
        block_ns=best.duration_ns - chip["kernel_head_ns"],
        blocks=best.cores_used,  # one per core: each works through its share of the query tiles
        cube_cores=jnp.ones_like(best.cores_used),
        vector_cores=chip["vector_per_cube"].astype(jnp.int32),
        all_at_once=jnp.zeros_like(best.cores_used),
        cube_busy_ns=best.cube_busy_ns,
        vector_busy_ns=best.vector_busy_ns,
        hbm_bytes=best.hbm_bytes + float(mask_bytes + sum(each.nbytes for each in outputs[1:])),
        l2_bytes=jnp.zeros_like(best.hbm_bytes),
        limit=best.limit,
        tile=best.tile,
    )
    return Plan(cost, best.workspace_bytes, best.fits)


registry.add(Operator(NAME, value, plan, infer, scalars=("scale_value",)))


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
    atten_mask: Tensor | None = None,
    scale_value: float | jax.Array = 1.0,
    sparse_mode: int = 0,
    input_layout: str = "BNSD",
    core_limit: int | jax.Array = ALL_CORES,
    site: Site = None,
) -> tuple[CardState, jax.Array, Executor]:
    """First phase of ``aclnnFlashAttentionScore``: check, tile, predict; nothing is queued.

    Row i sees column j: always without a mask, j <= i in sparse mode 2, j <= i + Skv - Sq in mode 3. **Without
    ``atten_mask`` the sparse mode is ignored**, as in CANN: mode 3 and no mask is full attention. Rows that see nothing
    give 0, with softmax_max = -FLT_MAX and softmax_sum = +FLT_MAX (ops-transformer, flash_attention_score).

    Args:
      card: The card.
      query: [B, N, Sq, D] float16, bfloat16 or float32.
      key: [B, Nkv, Skv, D]; N is a multiple of Nkv and head n uses key head n // (N / Nkv).
      value: [B, Nkv, Skv, Dv].
      attention_out: [B, N, Sq, Dv], dtype of query.
      softmax_max: float32 [B, N, Sq, 8], greatest scaled score of each row, eight copies.
      softmax_sum: float32 [B, N, Sq, 8], sum of exp(score - max).
      head_num: N.
      atten_mask: uint8 or bool [2048, 2048], 1 = hidden above the diagonal: what sparse modes 2 and 3 demand.
      scale_value: Factor of the scores, may be traced; 1.0 unless given, never 1 / sqrt(D) by itself.
      sparse_mode: 0, 2 or 3.
      input_layout: "BNSD".
      core_limit: Most cube cores that the launch may use (``aclrtSetStreamResLimit``).
      site: Call site, filled in by the runtime.

    Returns:
      The card, the workspace size in bytes (int32) and the executor for ``launch``. Status 561002 if no tile fits.

    Raises:
      ParameterError: 161001 for a missing tensor, 161002 for what the operator refuses.
    """
    given = {"query": query, "key": key, "value": value}
    given |= {"attention_out": attention_out, "softmax_max": softmax_max, "softmax_sum": softmax_sum}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise ParameterError(Code.PARAM_NULLPTR, name, tensor, "must be a tensor; see ascend_jax.tensor")
    if input_layout != "BNSD":
        raise _refuse("input_layout", input_layout, "must be 'BNSD'")
    if len(query.shape) == 4 and head_num != query.shape[1]:
        raise _refuse("head_num", head_num, f"must be {query.shape[1]}, the heads of query")
    inputs = [query, key, value]
    if atten_mask is None:
        sparse_mode = int(SparseMode.NO_MASK)
    else:
        _check_mask(atten_mask, sparse_mode)
        inputs.append(atten_mask)
    attributes = {"scale_value": scale_value, "sparse_mode": int(sparse_mode)}
    outputs = (attention_out, softmax_max, softmax_sum)
    return registry.get_workspace_size(card, NAME, inputs, outputs, attributes, core_limit=core_limit, site=site)


def _check_mask(atten_mask: Tensor, sparse_mode: int) -> None:
    if sparse_mode == SparseMode.NO_MASK:
        raise _refuse("sparse_mode", 0, "with atten_mask, give 2 (j <= i) or 3 (j <= i + Skv - Sq)")
    require_shape("atten_mask", atten_mask, (MASK_SIZE, MASK_SIZE), "the compressed mask of sparse modes 2 and 3")
    if atten_mask.dtype not in (np.dtype(np.uint8), np.dtype(np.bool_)):
        raise _refuse("atten_mask.dtype", atten_mask.dtype, "must be uint8 or bool, 1 = hidden")


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
