"""``explain``: what an attention call will do, in words, before it does it."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ascend_jax.ops.attention.flash import prepare
from ascend_jax.ops.attention.rules import window_tokens
from ascend_jax.ops.attention.scoring import Scoring, tile_runs
from ascend_jax.ops.attention.visibility import ALL_TOKENS

__all__ = ["Explanation", "explain"]


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A report; ``str`` of it is what ``explain`` prints."""

    path: str
    mask: str
    tile: tuple[int, int]
    tiles: tuple[int, int, int]  # skipped, partly visible, wholly visible; of one head of every batch row
    live_pairs: int  # of one head, over the batch; an upper bound if a mask is given
    flops: int  # forward, all heads: 2 (D + Dv) a pair
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        """The report, a line each."""
        skipped, part, full = self.tiles
        lines = [
            f"path: {self.path}",
            f"mask: {self.mask}",
            f"tiles of {self.tile[0]} x {self.tile[1]}: {skipped} skipped, {part} with a mask, {full} without",
            f"work: {self.live_pairs} visible pairs a head, {self.flops / 1e9:.3g} GFLOP forward",
            *(f"warning: {text}" for text in self.warnings),
        ]
        return "\n".join(lines)


def explain(q: jax.Array, k: jax.Array, v: jax.Array, **options: Any) -> Explanation:
    """Print and return what :func:`flash_attention` will do with the same arguments, which must be concrete.

    Args:
      q: Queries ``[B, T, N, D]``; only shapes and dtypes of q, k, v are looked at.
      k: Keys.
      v: Values.
      **options: Any of those of ``flash_attention``.

    >>> q = np.zeros((1, 1024, 2, 64), np.float32)
    >>> _ = explain(q, q, q, causal=True, tile=512)
    path: online softmax over tiles, float32 accumulators; backward recomputes the scores
    mask: row i sees j <= i
    tiles of 512 x 512: 1 skipped, 2 with a mask, 1 without
    work: 524800 visible pairs a head, 0.269 GFLOP forward
    """
    options.pop("return_lse", False)
    _, scoring, static, _ = prepare(*(jax.numpy.asarray(x) for x in (q, k, v)), **options)
    heads, dims = q.shape[-2], q.shape[-1] + v.shape[-1]
    batch = q.shape[0] if q.ndim == 4 else 1
    counts = _count_tiles(scoring, static, batch, (q.shape[-3], k.shape[-3]))
    pairs = int(np.asarray(scoring.high - scoring.low, np.int64).sum()) * (batch // scoring.low.shape[0])
    accumulators = "float64" if q.dtype == np.float64 else "float32"
    report = Explanation(
        path=f"online softmax over tiles, {accumulators} accumulators; backward recomputes the scores",
        mask=_meaning(options),
        tile=static.tile,
        tiles=counts,
        live_pairs=pairs,
        flops=2 * dims * pairs * heads,
        warnings=tuple(_warnings(scoring, options)),
    )
    print(report)
    return report


def _count_tiles(scoring: Scoring, static: Any, batch: int, lengths: tuple[int, int]) -> tuple[int, int, int]:
    runs = tile_runs(scoring, static)
    start, full, part, end = (np.asarray(x, np.int64) for x in runs[:4])
    grid = start.size * -(-lengths[1] // static.tile[1])
    live, whole, copies = int((end - start).sum()), int((part - full).sum()), batch // start.shape[0]
    if runs.live is not None:  # of a mask that differs from head to head, the mean head
        count = np.asarray(runs.live.counts, np.int64)
        live, copies = int(count.sum()) // count.shape[1], batch // count.shape[0]
        grid = grid // start.shape[0] * count.shape[0]
    return (grid - live) * copies, (live - whole) * copies, whole * copies


def _meaning(options: dict[str, Any]) -> str:
    causal, window = options.get("causal", False), options.get("window")
    shift = " + S - T" if causal == "lower_right" else ""
    parts = [f"row i sees j <= i{shift}" if causal else "row i sees every column"]
    if window is not None:
        _, left, right = window_tokens(causal, window)
        first = "the first column" if left == ALL_TOKENS else f"i{shift} - {left}"
        last = "the last column" if right == ALL_TOKENS else f"i{shift} + {right}"
        parts.append(f"from {first} to {last}")
    for name, text in (
        ("segment_ids", "in its own segment"),
        ("q_lengths", "if i is below its row's q_lengths"),
        ("kv_lengths", "below its row's kv_lengths"),
        ("mask", "where mask is True"),
    ):
        if options.get(name) is not None:
            parts.append(text)
    return ", ".join(parts)


def _warnings(scoring: Scoring, options: dict[str, Any]) -> list[str]:
    """Look for masks that say the opposite of what was probably meant."""
    found = []
    if scoring.mask is not None:
        found += _mask_warnings(np.asarray(scoring.mask))
    hidden = int((np.asarray(scoring.low) >= np.asarray(scoring.high)).sum())
    if hidden and options.get("q_lengths") is None:
        found.append(f"{hidden} rows see nothing before the mask counts; their output is 0")
    return found


def _mask_warnings(mask: np.ndarray) -> list[str]:
    inverted = "mask looks inverted: here True keeps a pair; CANN's masks hide where they are 1"
    rows, columns = mask.shape[2:]
    found = []
    if rows > 1 and columns > 1:
        above = np.triu(np.ones((rows, columns), bool), 1)
        if mask[..., above].mean() > 0.9 and mask[..., ~above].mean() < 0.1:
            found.append(f"{inverted}; True lies above the diagonal only")
    elif columns > 1:
        lines = mask.reshape(-1, columns)
        if (np.diff(lines.astype(int), axis=1) > 0).any(axis=1).all() and not lines[:, 0].any():
            found.append(f"{inverted}; every row of the batch hides its first keys and keeps its last ones")
    blind = int((~mask.any(axis=3)).sum())
    if blind:
        found.append(f"the mask hides every column of {blind} rows; their output is 0")
    return found
