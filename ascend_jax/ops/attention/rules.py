"""From the arguments of a JAX attention call to its scoring: causality, windows, lengths, segments, masks.

All of it ends in one interval of columns per row (:func:`~ascend_jax.ops.attention.visibility.column_bounds`), plus
what no interval can say: scattered segments and a mask array.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.ops.attention.dropout import Dropout, PackedDropout, PhiloxDropout, element_order
from ascend_jax.ops.attention.host_tile import host_tiles, multiplies_narrow
from ascend_jax.ops.attention.scoring import Options, Scoring
from ascend_jax.ops.attention.visibility import ALL_TOKENS, SparseMode, column_bounds

__all__ = ["make_options", "make_scoring", "pad_rank", "window_tokens"]

Window = int | tuple[int | None, int | None] | None


def window_tokens(causal: bool | str, window: Window) -> tuple[SparseMode, int, int]:
    """Returns (mode, pre_tokens, next_tokens) of a causal flag and a window.

    >>> window_tokens(True, 3)
    (<SparseMode.NO_MASK: 0>, 3, 0)
    """
    if causal not in (True, False, "upper_left", "lower_right"):
        raise ValueError(f"causal = {causal!r}: must be True, False, 'upper_left' (same as True) or 'lower_right'")
    pair = _pair("window", window, "(left, right)")
    left, right = (ALL_TOKENS if side is None else _integer("window", side) for side in pair)
    if left < 0 or right < 0:
        raise ValueError(f"window = {window!r}: both sides must be at least 0; None means no limit")
    mode = SparseMode.BAND if causal == "lower_right" else SparseMode.NO_MASK
    return mode, left, 0 if causal else right


def make_scoring(
    shapes: tuple[int, int, int, int],
    *,
    causal: bool | str,
    window: Window,
    segment_ids: Any,
    q_lengths: Any,
    kv_lengths: Any,
    mask: Any,
    dropout: Dropout | None,
) -> Scoring:
    """Returns the scoring of a call on ``shapes`` = (B, N, Sq, Skv); the arguments are those of ``flash_attention``."""
    batch, _, q_len, kv_len = shapes
    mode, left, right = window_tokens(causal, window)
    q_lens, kv_lens = (
        _lengths(name, given, batch, longest)
        for name, given, longest in (("q_lengths", q_lengths, q_len), ("kv_lengths", kv_lengths, kv_len))
    )
    rows = jnp.arange(q_len)[None, :]
    low, high = column_bounds(rows, q_lens, kv_lens, mode, pre_tokens=left, next_tokens=right)
    fields: dict[str, Any] = {}
    if segment_ids is not None:
        segments = _segments(segment_ids, batch, q_len, kv_len)
        first, end, fields["is_whole"] = segment_hull(*segments)
        low, high = jnp.maximum(low, first), jnp.minimum(high, end)
        low = jnp.minimum(low, high)
        fields["q_segment"], fields["kv_segment"] = segments
    if mask is not None:
        fields["mask"] = _four_axes("mask", mask, shapes)
        if mask.dtype != jnp.bool_:
            raise TypeError(f"mask has dtype {mask.dtype}: must be bool, True where a pair takes part")
    if dropout is not None:
        fields["dropout"], fields["order"] = _check_dropout(dropout, shapes)
    return Scoring(low, high, **fields)


def segment_hull(q_segment: jax.Array, kv_segment: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns of each row the first and the end of the columns of its segment, and whether all segments are runs.

    >>> [x.tolist() for x in segment_hull(jnp.array([[7, 9]]), jnp.array([[9, 7, 7]]))]
    [[[1, 0]], [[3, 1]], [[True]]]
    """
    order = jnp.argsort(kv_segment, axis=1, stable=True)
    ordered = jnp.take_along_axis(kv_segment, order, axis=1)
    search = jax.vmap(jnp.searchsorted, in_axes=(0, 0))
    left = search(ordered, q_segment)
    right = jax.vmap(lambda a, b: jnp.searchsorted(a, b, side="right"))(ordered, q_segment)
    last = kv_segment.shape[1] - 1
    first = jnp.take_along_axis(order, left.clip(0, last), axis=1)
    end = jnp.take_along_axis(order, (right - 1).clip(0, last), axis=1) + 1
    is_met = left < right
    is_whole = jnp.all(~is_met | (end - first == right - left), axis=1, keepdims=True)
    return jnp.where(is_met, first, 0), jnp.where(is_met, end, 0), is_whole


def make_options(
    tile: int | tuple[int, int] | None,
    q_len: int,
    kv_len: int,
    dim: int,
    softcap: float | None,
    precision: Any,
    dtype: Any,
    *,
    skips: bool,
) -> Options:
    """Returns the static side of a call; 16-bit products only where nobody asked for a precision.

    ``skips`` is that of :func:`~ascend_jax.ops.attention.host_tile.host_tiles`.
    """
    if tile is None:
        sizes = host_tiles(q_len, kv_len, dim, skips=skips)
    else:
        pair = _pair("tile", tile, "(query rows, key columns)")
        sizes = (_integer("tile", pair[0]), _integer("tile", pair[1]))
    if min(sizes) < 1:
        raise ValueError(f"tile = {tile}: needs at least 1 row and 1 column")
    if isinstance(softcap, jax.core.Tracer):
        raise TypeError("softcap is traced: must be a number known before tracing, as by static_argnames of jax.jit")
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap = {softcap}: must be positive and finite; None means no cap")
    cap = None if softcap is None else float(softcap)
    if precision is None:
        return Options(sizes, softcap=cap, is_narrow=multiplies_narrow(dtype))
    return Options(sizes, softcap=cap, precision=precision)


def _pair(name: str, given: Any, meaning: str) -> tuple[Any, Any]:
    pair = tuple(given) if isinstance(given, Sequence) or getattr(given, "ndim", 0) == 1 else (given, given)
    if len(pair) != 2:
        raise ValueError(f"{name} = {given!r}: must be a number, or the pair {meaning}")
    return pair[0], pair[1]


def _integer(name: str, given: Any) -> int:
    if isinstance(given, jax.core.Tracer):
        raise TypeError(f"{name} is traced: must be known before tracing, as by static_argnames of jax.jit")
    try:
        if isinstance(given, bool):
            raise TypeError
        return operator.index(given)
    except TypeError:
        raise TypeError(f"{name} = {given!r}: must be an integer, or a pair of them") from None


def _lengths(name: str, given: Any, batch: int, longest: int) -> Any:
    if given is None:
        return longest
    lengths = jnp.asarray(given)
    if lengths.shape != (batch,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise ValueError(
            f"{name} is {lengths.dtype}{list(lengths.shape)}: must be integers [{batch}], one per batch row"
        )
    if not isinstance(lengths, jax.core.Tracer) and batch and not 0 <= lengths.min() <= lengths.max() <= longest:
        raise ValueError(f"{name} = {lengths.tolist()}: must be 0 to {longest}, the rows that there are")
    return lengths.astype(jnp.int32).clip(0, longest)[:, None]


def _segments(given: Any, batch: int, q_len: int, kv_len: int) -> tuple[jax.Array, jax.Array]:
    pair = given if isinstance(given, tuple | list) and len(given) == 2 else (given, given)
    result = []
    for name, ids, length in zip(("queries", "keys"), pair, (q_len, kv_len), strict=True):
        array = jnp.asarray(ids)
        if array.ndim != 2 or array.shape[0] not in (1, batch) or array.shape[1] != length:
            raise ValueError(
                f"segment_ids of {name} have shape {list(array.shape)}: must be [{batch}, {length}]; give a pair "
                "(of queries, of keys) if the lengths differ"
            )
        result.append(jnp.broadcast_to(array, (batch, length)))
    return result[0], result[1]


def pad_rank(name: str, given: Any) -> Any:
    """Returns a bias or mask of rank 4, with axes of 1 in front as NumPy broadcasts it; None stays None.

    >>> pad_rank("mask", jnp.ones((2, 3))).shape
    (1, 1, 2, 3)
    """
    if given is None:
        return None
    if not hasattr(given, "ndim"):
        raise TypeError(f"{name} is a {type(given).__name__}: must be an array, broadcast to [B, N, T, S]")
    return given.reshape((1,) * (4 - given.ndim) + given.shape) if given.ndim < 4 else given


def _four_axes(name: str, given: Any, shapes: tuple[int, int, int, int]) -> Any:
    given = pad_rank(name, given)
    if given.ndim != 4 or any(n not in (1, full) for n, full in zip(given.shape, shapes, strict=True)):
        raise ValueError(
            f"{name} has shape {list(given.shape)}: must be [B, N, T, S] = {list(shapes)}, or 1 in any place"
        )
    return given


def _check_dropout(dropout: Any, shapes: tuple[int, int, int, int]) -> tuple[Any, Any]:
    batch, heads, q_len, kv_len = shapes
    if not isinstance(dropout, PackedDropout | PhiloxDropout):
        raise TypeError(f"dropout is a {type(dropout).__name__}: give PhiloxDropout or PackedDropout")
    kept = dropout.keep_prob
    if not isinstance(kept, int | float | np.number | np.ndarray | jax.Array):
        raise TypeError(f"dropout.keep_prob = {kept!r}: must be a number")
    if not isinstance(kept, jax.core.Tracer) and not 0 < kept <= 1:
        raise ValueError(f"dropout.keep_prob = {kept}: must be above 0 and at most 1")
    lengths = [[(q_len, kv_len)]] * batch
    if isinstance(dropout, PhiloxDropout):
        return dropout, element_order(heads, lengths, unit=16, align=16)
    needed = -(-batch * heads * q_len * kv_len // 8)
    if dropout.bits.ndim != 1 or dropout.bits.dtype != jnp.uint8 or dropout.bits.size < needed:
        found = f"{dropout.bits.dtype}{list(dropout.bits.shape)}"
        raise ValueError(f"dropout.bits is {found}: must be flat uint8 of at least {needed} bytes")
    return dropout, element_order(heads, lengths, unit=8)
