"""What the training operators refuse of a mask geometry, and the rows' intervals of what they accept.

All of it is known before anything runs: lengths, tokens and prefixes are host integers, as in CANN. Sources: the
aclnnFlashAttentionScore documents and the tiling of the operator (ops-transformer, flash_attention_score).
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ascend_jax.ops.attention.scoring import Scoring
from ascend_jax.ops.attention.visibility import ALL_TOKENS, SparseMode, Visibility
from ascend_jax.ops.attention_layout import host_integers, refuse
from ascend_jax.runtime.codes import Code

__all__ = ["COMPRESSED_MASK", "PREFIX_MASK", "Geometry", "fixed_geometry", "packed_geometry"]

COMPRESSED_MASK = (2048, 2048)  # what modes 2, 3, 4, 7, 8 demand
PREFIX_MASK = (3072, 2048)  # what mode 6 demands
_MASK_READ = (SparseMode.NO_MASK, SparseMode.ALL_MASK, SparseMode.PREFIX)
_TILING = Code.INNER_TILING


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Who sees whom, before a mask that is read."""

    sequences: tuple[Visibility, ...]  # one per batch row or packed sequence
    is_packed: bool
    rows: int  # of the query tensor: T if packed
    has_invalid_rows: bool  # proved by the numbers: their convention switches on by itself
    reads_mask: bool  # the mask is no compressed one

    def scoring(self) -> Scoring:
        """Return the intervals of all rows, and for packed sequences where each row belongs."""
        if not self.sequences:
            nothing = jnp.zeros((int(self.is_packed), self.rows), jnp.int32)
            of_sequences: dict[str, Any] = (
                {"row": nothing, "origin": nothing, "q_segment": nothing} if self.is_packed else {}
            )
            return Scoring(nothing, nothing, **of_sequences)
        if not self.is_packed:
            distinct = self.sequences[:1] if len(set(self.sequences)) == 1 else self.sequences
            bounds = zip(*map(_bounds, distinct), strict=True)
            first, end = (jnp.asarray(np.stack(x), jnp.int32) for x in bounds)
            return Scoring(first, end)
        columns = np.cumsum([0, *(each.kv_len for each in self.sequences)])
        parts = []
        for number, (each, first) in enumerate(zip(self.sequences, columns, strict=False)):
            low, high = _bounds(each)
            same = np.full(each.q_len, 1)
            parts.append((low + first, high + first, np.arange(each.q_len), same * first, same * number))
        packed = [np.concatenate(x) if parts else np.empty(0, int) for x in zip(*parts, strict=True)]
        slack = self.rows - packed[0].size
        fields = [jnp.asarray(np.pad(x, (0, slack)), jnp.int32)[None] for x in packed]
        return Scoring(fields[0], fields[1], row=fields[2], origin=fields[3], q_segment=fields[4])

    def lengths(self) -> list[list[tuple[int, int]]]:
        """Return (Sq, Skv) as :func:`~ascend_jax.ops.attention.dropout.element_order` takes them."""
        pairs = [(each.q_len, each.kv_len) for each in self.sequences]
        return [pairs] if self.is_packed else [[pair] for pair in pairs]

    def live_pairs(self) -> int:
        """Return how many pairs of one head the intervals leave."""
        return sum(each.live_pairs() for each in self.sequences)


def _bounds(visibility: Visibility) -> tuple[np.ndarray, np.ndarray]:
    return visibility.column_bounds(np.arange(visibility.q_len))


def fixed_geometry(
    batch: int,
    q_len: int,
    kv_len: int,
    *,
    has_mask: bool,
    sparse_mode: int,
    pre_tokens: int = ALL_TOKENS,
    next_tokens: int = ALL_TOKENS,
    prefix: Sequence[int] | None = None,
) -> Geometry:
    """Return the geometry of a call whose sequences all have one length.

    Without a mask the sparse mode, the tokens and the prefix are ignored: full attention.

    Raises:
      ParameterError: 161002 for a mode that does not exist here or a missing prefix; 561002 for a window that encloses
        nothing, or a prefix of mode 6 out of range.
    """
    if not has_mask:
        return Geometry((Visibility(q_len, kv_len),) * batch, False, q_len, False, False)
    mode = _mode(sparse_mode, range(7), "0 to 6; 7 and 8 are for TND")
    check_tokens(pre_tokens, next_tokens)
    if mode == SparseMode.NO_MASK:
        _check_top_left(q_len, kv_len, pre_tokens, next_tokens)
    if mode == SparseMode.BAND:
        _check_band(q_len, kv_len, pre_tokens, next_tokens)
    tokens = {"pre_tokens": pre_tokens, "next_tokens": next_tokens} if mode in (0, 4) else {}
    is_kept, has_prefix = True, mode in (SparseMode.PREFIX, SparseMode.PREFIX_COMPRESS)
    prefixes = _prefixes(prefix, batch, "modes 5 and 6 need one number per batch row") if has_prefix else [0] * batch
    if has_prefix and not _check_prefix(mode, q_len, kv_len, prefixes):
        is_kept, prefixes = False, [0] * batch
    rule = mode if is_kept else SparseMode.ALL_MASK
    sequences = tuple(Visibility(q_len, kv_len, rule, prefix=n, **tokens) for n in prefixes)
    invalid = {
        SparseMode.NO_MASK: next_tokens < 0 or pre_tokens + kv_len < q_len,
        SparseMode.RIGHT_DOWN_CAUSAL: q_len > kv_len,
        SparseMode.BAND: pre_tokens < 0 or next_tokens + kv_len < q_len,
        SparseMode.PREFIX: q_len > kv_len and 0 in prefixes,
        SparseMode.PREFIX_COMPRESS: q_len > kv_len and 0 in prefixes,
    }.get(mode, False)
    return Geometry(sequences, False, q_len, invalid, mode in _MASK_READ)


def packed_geometry(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    total_rows: int,
    *,
    has_mask: bool,
    sparse_mode: int,
    pre_tokens: int = ALL_TOKENS,
    next_tokens: int = ALL_TOKENS,
    prefix: Sequence[int] | None = None,
) -> Geometry:
    """Return the geometry of packed sequences (TND).

    Raises:
      ParameterError: 161002 for lists of different length or a mode that TND does not know; 561002 for windows that
        enclose nothing, and for modes 3, 4, 7, 8 if a row of a sequence would see nothing.
    """
    if len(q_lens) != len(kv_lens):
        raise refuse("actual_seq_kvlen", len(kv_lens), f"must have as many entries as actual_seq_qlen: {len(q_lens)}")
    pairs = list(zip(q_lens, kv_lens, strict=True))
    if not has_mask:
        return Geometry(tuple(Visibility(a, b) for a, b in pairs), True, total_rows, False, False)
    mode = _mode(sparse_mode, (0, 1, 2, 3, 4, 6, 7, 8), "0 to 4 or 6 to 8 with TND")
    check_tokens(pre_tokens, next_tokens)
    live = [n for n, (a, b) in enumerate(pairs) if a and b]
    banded = {SparseMode.RIGHT_DOWN_CAUSAL_BAND: live[-1:], SparseMode.BAND_LEFT_UP_CAUSAL: live[:1]}.get(mode, [])
    inner = {7: SparseMode.RIGHT_DOWN_CAUSAL, 8: SparseMode.LEFT_UP_CAUSAL}.get(mode, mode)
    tokens = {"pre_tokens": pre_tokens, "next_tokens": next_tokens}
    has_prefix = mode == SparseMode.PREFIX_COMPRESS
    prefixes = _prefixes(prefix, len(pairs), "mode 6 needs one number per sequence") if has_prefix else []
    sequences = []
    for n, (a, b) in enumerate(pairs):
        if n in banded:
            _check_outer_split(mode, a, b, pre_tokens, next_tokens)
            sequences.append(Visibility(a, b, SparseMode.BAND, **tokens))
        elif inner in (SparseMode.NO_MASK, SparseMode.BAND):
            check = _check_top_left if inner == SparseMode.NO_MASK else _check_band
            if a and b:
                check(a, b, pre_tokens, next_tokens)
            sequences.append(Visibility(a, b, inner, **tokens))
        elif has_prefix:
            _check_prefix(mode, a, b, prefixes[n : n + 1])
            sequences.append(Visibility(a, b, inner, prefix=prefixes[n]))
        else:
            sequences.append(Visibility(a, b, inner))
        if mode in (3, 4, 7, 8) and a and b and sequences[-1].hidden_rows():
            hidden = f"Sq = {a}, Skv = {b} of sequence {n}"
            raise refuse("sparse_mode", int(mode), f"{hidden}: a row would see nothing; TND refuses that", _TILING)
    return Geometry(tuple(sequences), True, total_rows, False, mode in _MASK_READ)


def _mode(given: int, known: Sequence[int], rule: str) -> SparseMode:
    if given not in known:
        raise refuse("sparse_mode", given, f"must be {rule}")
    return SparseMode(given)


def check_tokens(pre_tokens: object, next_tokens: object) -> None:
    """Raise 161002 unless both sides of a window are integers."""
    for name, given in (("pre_tokens", pre_tokens), ("next_tokens", next_tokens)):
        if isinstance(given, bool) or not isinstance(given, int | np.integer):
            raise refuse(name, repr(given), "must be an integer")


def _check_top_left(q_len: int, kv_len: int, pre: int, nxt: int) -> None:
    if pre < 0 and nxt < 0:
        raise refuse("pre_tokens, next_tokens", f"{pre}, {nxt}", "must not both be negative", _TILING)
    if nxt < 0 and (pre < -nxt or -nxt >= kv_len):
        raise refuse("next_tokens", nxt, f"a negative one needs pre_tokens >= {-nxt} and Skv > {-nxt}", _TILING)
    if pre < 0 and (nxt < -pre or -pre >= q_len):
        raise refuse("pre_tokens", pre, f"a negative one needs next_tokens >= {-pre} and Sq > {-pre}", _TILING)


def _check_band(q_len: int, kv_len: int, pre: int, nxt: int) -> None:
    if pre + nxt < 0 or Visibility(q_len, kv_len, SparseMode.BAND, pre, nxt).live_pairs() == 0:
        given = f"{pre}, {nxt}"
        raise refuse("pre_tokens, next_tokens", given, f"the band encloses nothing of {q_len} x {kv_len}", _TILING)


def _check_outer_split(mode: SparseMode, q_len: int, kv_len: int, pre: int, nxt: int) -> None:
    if pre < kv_len:
        raise refuse("pre_tokens", pre, f"mode {mode} needs at least Skv = {kv_len} of the banded sequence", _TILING)
    if mode == SparseMode.RIGHT_DOWN_CAUSAL_BAND and not q_len - kv_len <= nxt <= 0:
        raise refuse("next_tokens", nxt, f"mode 7 needs Sq - Skv = {q_len - kv_len} to 0 of the last sequence", _TILING)
    if mode == SparseMode.BAND_LEFT_UP_CAUSAL and nxt < q_len - kv_len:
        raise refuse("next_tokens", nxt, f"mode 8 needs at least Sq - Skv = {q_len - kv_len} of the first", _TILING)


def _prefixes(prefix: Sequence[int] | None, count: int, rule: str) -> list[int]:
    given = [] if prefix is None else host_integers("prefix", prefix)
    if len(given) != count:
        raise refuse("prefix", prefix, f"{rule}: {count}")
    return given


def _check_prefix(mode: SparseMode, q_len: int, kv_len: int, prefixes: list[int]) -> bool:
    """Return False if mode 5 drops all prefixes because one is out of range."""
    least = max(0, kv_len - q_len)
    if all(least <= n <= kv_len for n in prefixes):
        return True
    if mode == SparseMode.PREFIX_COMPRESS:
        raise refuse("prefix", prefixes, f"must lie in [{least}, {kv_len}]", _TILING)
    warnings.warn(
        f"prefix {prefixes} leaves [{least}, {kv_len}]: sparse mode 5 then visits every block and the mask decides",
        stacklevel=2,
    )
    return False
