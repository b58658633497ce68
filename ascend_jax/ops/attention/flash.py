"""``flash_attention``: the JAX surface of the kernel, with the conventions of ``jax.nn.dot_product_attention``."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.ops.attention.dropout import Dropout
from ascend_jax.ops.attention.kernel import attend, check_operands
from ascend_jax.ops.attention.rules import Window, _four_axes, make_options, make_scoring, pad_rank
from ascend_jax.ops.attention.scoring import Options, Scoring
from ascend_jax.ops.attention.unfused import unfused

__all__ = ["flash_attention", "plain_attention"]


def flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    causal: bool | str = False,
    window: Window = None,
    scale: float | jax.Array | None = None,
    segment_ids: Any = None,
    q_lengths: Any = None,
    kv_lengths: Any = None,
    dropout: Dropout | None = None,
    sink: jax.Array | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    tile: int | tuple[int, int] | None = None,
    precision: Any = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Computes ``softmax(scale q k^T + bias) v`` without ever holding the scores.

    Takes the operands of ``jax.nn.dot_product_attention`` and gives the same result, with these differences, all on
    purpose: a row that sees nothing gives 0 (there: the mean of v); NaN in what a row does not see cannot reach it;
    Dv may differ from D; float64 stays float64. Differentiable once in reverse mode, in q, k, v, bias, sink and scale,
    in memory linear in T and S; for forward mode and higher order use :func:`plain_attention`.

    Args:
        q: Queries ``[B, T, N, D]``, or ``[T, N, D]``; float16, bfloat16, float32 or float64.
        k: Keys ``[B, S, K, D]``; K divides N, and query head n uses key head ``n // (N / K)``.
        v: Values ``[B, S, K, Dv]``.
        bias: Added to the scaled scores, ``[B, N, T, S]`` or 1 in any place; axes may be left out in
            front. Its gradient has its shape.
        mask: bool, **True where a pair takes part** (CANN's masks say the opposite), broadcast like ``bias``.
        causal: True or "upper_left": row i sees ``j <= i``. "lower_right": ``j <= i + S - T``, with the lengths of each
            batch row if given.
        window: Number, or (left, right), of columns beside the diagonal that stay visible; None means no limit.
        scale: Factor of the scores, ``1 / sqrt(D)`` if not given.
        segment_ids: Integers ``[B, T]``, or a pair ``([B, T], [B, S])``: a pair of tokens is visible if they are equal.
        q_lengths: Integers ``[B]``; rows from there on see nothing.
        kv_lengths: Integers ``[B]``; columns from there on are hidden.
        dropout: :class:`PhiloxDropout` (drawn tile by tile) or :class:`PackedDropout` (your bits). The log-sum-exp does
            not see it.
        sink: ``[N]``, one more score for every row of a head, without a value.
        softcap: ``softcap * tanh(score / softcap)``, after the bias.
        return_lse: Also return the log-sum-exp.
        tile: Host tile (query rows, key columns), or one number for both; chosen by backend and shape if not given.
        precision: Of the products, in float32 for 16-bit inputs too. If not given: highest, and 16-bit inputs are
            multiplied as such, sums in float32, where :func:`multiplies_narrow` says that this is faster.

    Returns:
        ``[B, T, N, Dv]`` in the dtype of q; with ``return_lse`` also ``[B, T, N]`` in the accumulator type, -inf for a
        row that sees nothing.

    Raises:
        TypeError: A dtype is not supported.
        ValueError: Shapes or options do not fit.

    >>> q, v = jnp.zeros((1, 3, 2, 8)), jnp.arange(3.0).reshape(1, 3, 1, 1)
    >>> flash_attention(q, q[:, :, :1], v, causal=True)[0, :, 0, 0].tolist()
    [0.0, 0.5, 1.0]
    """
    bias = pad_rank("bias", bias)
    operands, scoring, options, scale = prepare(
        q, k, v, bias=bias, mask=mask, causal=causal, window=window, scale=scale, segment_ids=segment_ids,
        q_lengths=q_lengths, kv_lengths=kv_lengths, dropout=dropout, sink=sink, softcap=softcap, tile=tile,
        precision=precision,
    )  # fmt: skip
    results = attend(*operands, scoring, options, scale=scale, bias=bias, sink=sink)
    return _results(*results, is_flat=q.ndim == 3, return_lse=return_lse)


def plain_attention(q: jax.Array, k: jax.Array, v: jax.Array, **options: Any) -> Any:
    """Computes the same as :func:`flash_attention`, with the same arguments, from whole score matrices.

    Differentiable any number of times and in both modes, in memory of order ``B N T S``. The rules of visibility, bias
    and dropout are the same code; the softmax is the textbook one.

    >>> x = jnp.ones((1, 2, 1, 4))
    >>> float(jax.jvp(lambda s: plain_attention(x, x, x, scale=s).sum(), (0.5,), (1.0,))[1])
    0.0
    """
    return_lse = options.pop("return_lse", False)
    bias, sink = pad_rank("bias", options.get("bias")), options.get("sink")
    operands, scoring, static, scale = prepare(q, k, v, **options)
    return _results(*unfused(*operands, scale, bias, sink, scoring, static), is_flat=q.ndim == 3, return_lse=return_lse)


def prepare(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    causal: bool | str = False,
    window: Window = None,
    scale: float | jax.Array | None = None,
    segment_ids: Any = None,
    q_lengths: Any = None,
    kv_lengths: Any = None,
    dropout: Dropout | None = None,
    sink: jax.Array | None = None,
    softcap: float | None = None,
    tile: int | tuple[int, int] | None = None,
    precision: Any = None,
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], Scoring, Options, float | jax.Array]:
    """Checks a call and returns (q, k, v with heads first), scoring, options and scale."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        if not isinstance(array, jax.Array | np.ndarray):
            raise TypeError(f"{name} is {type(array).__name__}: must be an array")
        if array.ndim not in (3, 4) or array.ndim != q.ndim:
            raise ValueError(
                f"{name} has shape {list(array.shape)}: q, k, v must all be [B, T, N, D], or all [T, N, D]"
            )
    _check_scale(scale)
    given = q, k, v
    q, k, v = (jnp.swapaxes(x if x.ndim == 4 else x[None], 1, 2) for x in given)
    check_operands(q, k, v, given)
    batch, heads, q_len, dim = q.shape
    if dim < 1:
        raise ValueError(f"q has head dimension {dim}: must be at least 1")
    shapes = (batch, heads, q_len, k.shape[2])
    if bias is not None:
        _four_axes("bias", bias, shapes)
    if sink is not None and sink.shape != (heads,):
        raise ValueError(f"sink has shape {list(sink.shape)}: must be [{heads}], one per query head")
    scoring = make_scoring(
        shapes, causal=causal, window=window, segment_ids=segment_ids, q_lengths=q_lengths, kv_lengths=kv_lengths,
        mask=mask, dropout=dropout,
    )  # fmt: skip
    skips = bool(causal) or any(x is not None for x in (window, segment_ids, q_lengths, kv_lengths, mask))
    options = make_options(tile, q_len, k.shape[2], max(dim, v.shape[3]), softcap, precision, q.dtype, skips=skips)
    return (q, k, v), scoring, options, dim**-0.5 if scale is None else scale


def _check_scale(scale: Any) -> None:
    if scale is None:
        return
    if not isinstance(scale, int | float | np.number | np.ndarray | jax.Array) or isinstance(scale, bool):
        raise TypeError(f"scale = {scale!r}: must be a number, or an array [] of one; None means 1 / sqrt(D)")
    dtype, shape = jnp.result_type(scale), jnp.shape(scale)
    if shape or not jnp.issubdtype(dtype, jnp.number):
        raise ValueError(f"scale is {dtype}{list(shape)}: must be one number for all scores")
    if not isinstance(scale, jax.core.Tracer) and not np.isfinite(scale):
        raise ValueError(f"scale = {scale}: must be finite")


def _results(out: jax.Array, row_max: jax.Array, row_sum: jax.Array, *, is_flat: bool, return_lse: bool) -> Any:
    out = jnp.swapaxes(out, 1, 2)
    out = out[0] if is_flat else out
    if not return_lse:
        return out
    # row_max only shifts: its gradient and that of row_sum through it cancel
    hidden = row_sum == 0
    lse = jax.lax.stop_gradient(row_max) + jnp.log(jnp.where(hidden, 1, row_sum))
    lse = jnp.swapaxes(jnp.where(hidden, -jnp.inf, lse), 1, 2)
    return out, lse[0] if is_flat else lse
