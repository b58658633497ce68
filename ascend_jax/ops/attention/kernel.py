"""The attention kernel: checked operands in, forward by online softmax, backward by recomputation, one custom_vjp.

Every surface calls :func:`attend`: the JAX one, the CANN operators, and the operator that runs on a card.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.ops.attention.backward import backward
from ascend_jax.ops.attention.host_tile import host_tiles
from ascend_jax.ops.attention.online_softmax import forward
from ascend_jax.ops.attention.products import row_dtype
from ascend_jax.ops.attention.scoring import Options, Scoring, fit_to_tile
from ascend_jax.ops.attention.visibility import Visibility
from ascend_jax.runtime.loop import varying_together

__all__ = [
    "FLT_MAX",
    "attend",
    "check_operands",
    "compiled_backward",
    "fit_planes",
    "flash_forward",
    "hide_rows",
    "scoring_of",
]

FLT_MAX = float(np.finfo(np.float32).max)

_DTYPES = ("float16", "bfloat16", "float32", "float64")


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    scoring: Scoring,
    options: Options,
    *,
    scale: float | jax.Array,
    bias: jax.Array | None = None,
    sink: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes ``softmax(scores) v`` over the visible pairs, differentiable in reverse mode, once.

    Scores, statistics and accumulators are float32 (float64 for float64 inputs), whatever the input type. What a row
    does not see never reaches it, not even as NaN; a non-finite value that it sees makes it non-finite.

    Args:
        q: Queries ``[B, N, Sq, D]``; float16, bfloat16, float32 or float64.
        k: Keys ``[B, Nkv, Skv, D]``, dtype of ``q``; query head ``h`` uses key head ``h // (N // Nkv)``.
        v: Values ``[B, Nkv, Skv, Dv]``, dtype of ``q``.
        scoring: Visibility, mask and dropout.
        options: Static choices.
        scale: Factor of the scores, may be traced.
        bias: Position bias, as ``options.bias_kind`` says.
        sink: ``[N]``, one more score for every row of a head, without a value.

    Returns:
        ``out`` ``[B, N, Sq, Dv]`` in the dtype of ``q``; ``row_max`` and ``row_sum`` ``[B, N, Sq]`` in the accumulator
        dtype: greatest score, and sum of exp(score - row_max). A row that sees nothing is (0, lowest, 0), which merges
        safely. The gradient of row_sum counts with row_max held fixed: right for any function of
        ``stop_gradient(row_max) + log(row_sum)``.

    Raises:
        TypeError: A dtype is not supported, or the three differ.
        ValueError: Shapes do not fit each other, or a tile is smaller than 1.
    """
    check_operands(q, k, v)
    if min(options.tile) < 1:
        raise ValueError(f"a tile needs at least 1 row and 1 column, got {min(options.tile)} in {options.tile}")
    rows = q.shape[:3]
    if not all(rows) or k.shape[2] == 0:
        low = jnp.full(rows, jnp.finfo(row_dtype(q)).min, row_dtype(q))
        out = jnp.zeros((*rows, v.shape[3]), q.dtype)
        if sink is None:
            return out, low, jnp.zeros_like(low)
        alone = jnp.broadcast_to(sink.astype(low.dtype)[None, :, None], rows)
        return out, jax.lax.stop_gradient(alone), jnp.exp(alone - jax.lax.stop_gradient(alone))
    bias, scoring = fit_planes(bias, scoring, options)
    operands = q, k, v, jnp.asarray(scale, row_dtype(q)), bias, sink, scoring
    return _compiled(*varying_together((), operands)[1], options)


def fit_planes(bias: jax.Array | None, scoring: Scoring, options: Options) -> tuple[jax.Array | None, Scoring]:
    """Pads a bias and a mask that are smaller than a tile, as the loops need them."""
    if bias is not None and options.bias_kind == "dense":
        bias = fit_to_tile(bias, options.tile)
    if scoring.mask is not None and not options.mask_is_local:
        scoring = dataclasses.replace(scoring, mask=fit_to_tile(scoring.mask, options.tile))
    return bias, scoring


@functools.partial(jax.custom_vjp, nondiff_argnums=(7,))
def _attend(
    q: jax.Array, k: jax.Array, v: jax.Array, scale: jax.Array, bias: Any, sink: Any, scoring: Scoring, options: Options
) -> tuple[jax.Array, jax.Array, jax.Array]:
    return forward(q, k, v, scale, bias, sink, scoring, options)


def _attend_fwd(
    q: jax.Array, k: jax.Array, v: jax.Array, scale: jax.Array, bias: Any, sink: Any, scoring: Scoring, options: Options
) -> tuple[Any, Any]:
    out, row_max, row_sum = forward(q, k, v, scale, bias, sink, scoring, options)
    # a factor of 1: derivatives of a gradient too see row_sum change with row_max held fixed
    fixed = jax.lax.stop_gradient(row_max)
    results = out, fixed, row_sum * jnp.exp(row_max - fixed)
    return results, (q, k, v, scale, bias, sink, scoring, results)


def _attend_bwd(options: Options, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    q, k, v, scale, bias, sink, scoring, results = saved
    d_out, _, d_sum = cotangents
    grads = compiled_backward(q, k, v, scale, bias, sink, scoring, options, results, (d_out, d_sum))
    return (*grads, None)


_attend.defvjp(_attend_fwd, _attend_bwd)
# an eager caller must not compile the loops anew for every call; inside another jit this is a call
_compiled = jax.jit(_attend, static_argnums=7)
compiled_backward = jax.jit(backward, static_argnums=7)


def scoring_of(visibility: Visibility) -> Scoring:
    """Returns the scoring of one rule for every row of the batch.

    >>> scoring_of(Visibility(2, 2, 2)).high.tolist()
    [[1, 2]]
    """
    low, high = visibility.column_bounds(jnp.arange(visibility.q_len))
    return Scoring(low[None], high[None])


def hide_rows(row_max: jax.Array, row_sum: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Writes CANN's convention for rows that saw nothing: -FLT_MAX and +FLT_MAX.

    >>> [float(x) for x in hide_rows(jnp.float32(-3e38), jnp.float32(0))]
    [-3.4028234663852886e+38, 3.4028234663852886e+38]
    """
    hidden = row_sum == 0
    return jnp.where(hidden, -FLT_MAX, row_max), jnp.where(hidden, FLT_MAX, row_sum)


@jax.named_scope("flash_forward")
def flash_forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    visibility: Visibility,
    *,
    scale: float | jax.Array,
    q_tile: int | None = None,
    kv_tile: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes attention under one static rule, with the row statistics as ``aclnnFlashAttentionScore`` gives them.

    Args:
        q: Queries ``[B, N, Sq, D]``; float16, bfloat16, float32 or float64.
        k: Keys ``[B, Nkv, Skv, D]``.
        v: Values ``[B, Nkv, Skv, Dv]``.
        visibility: Which columns each row sees; static, its lengths are those of ``q`` and ``k``.
        scale: Factor of the scores, may be traced. CANN defaults to 1, never to ``1 / sqrt(D)``.
        q_tile: Query rows of a host tile, by default those of :func:`~ascend_jax.ops.attention.host_tile.host_tiles`.
            Any size gives the same result up to rounding.
        kv_tile: Key columns of a host tile, likewise.

    Returns:
        ``out``, ``row_max`` and ``row_sum`` of :func:`attend`, but a row that sees no column has
        ``row_max = -FLT_MAX`` and ``row_sum = FLT_MAX``.

    Raises:
        TypeError: A dtype is not supported, or the three differ.
        ValueError: Shapes do not fit each other or ``visibility``, or a tile is smaller than 1.

    >>> q, k, v = jnp.zeros((1, 1, 2, 8)), jnp.ones((1, 1, 2, 8)), jnp.arange(2.0).reshape(1, 1, 2, 1)
    >>> out, row_max, row_sum = flash_forward(q, k, v, Visibility(2, 2, 2), scale=1.0)
    >>> out.ravel().tolist(), row_max.ravel().tolist(), row_sum.ravel().tolist()
    ([0.0, 0.5], [0.0, 0.0], [1.0, 2.0])
    """
    check_operands(q, k, v)
    if (q.shape[2], k.shape[2]) != (visibility.q_len, visibility.kv_len):
        lengths = f"q_len={visibility.q_len} and kv_len={visibility.kv_len}"
        raise ValueError(f"visibility is for {lengths}, got q {q.shape}, k {k.shape}, v {v.shape}")
    skips = visibility.live_pairs() < visibility.q_len * visibility.kv_len
    auto = host_tiles(q.shape[2], k.shape[2], q.shape[3], skips=skips)
    tile = (auto[0] if q_tile is None else q_tile, auto[1] if kv_tile is None else kv_tile)
    out, row_max, row_sum = attend(q, k, v, scoring_of(visibility), Options(tile), scale=scale)
    return out, *hide_rows(row_max, row_sum)


def check_operands(q: jax.Array, k: jax.Array, v: jax.Array, given: tuple[jax.Array, ...] | None = None) -> None:
    """Raise unless q, k, v are the operands of one attention call, [batch, heads, length, dim].

    Messages tell the shapes of ``given``, what the caller made them of.
    """
    if str(q.dtype) not in _DTYPES or not q.dtype == k.dtype == v.dtype:
        dtypes = f"{q.dtype}, {k.dtype}, {v.dtype}"
        raise TypeError(f"q, k, v need one and the same dtype of {', '.join(_DTYPES)}, got {dtypes}")
    shapes = "got " + ", ".join(f"{name} {x.shape}" for name, x in zip("qkv", given or (q, k, v), strict=True))
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"q, k, v must be [batch, heads, length, dim], {shapes}")
    if (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]) or k.shape[:3] != v.shape[:3]:
        raise ValueError(f"q, k must share batch and dim, and k, v batch, heads and length, {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"the number of query heads must be a multiple of that of key heads, {shapes}")
