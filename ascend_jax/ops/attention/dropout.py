"""Dropout bits, drawn or unpacked tile by tile, bit for bit as the operators have them.

Two sources. A *packed mask* holds one keep-bit per score, bit k of byte b for element 8 b + k, in the order
[B, N, Sq, Skv] (packed sequences one after the other, [N, Sq_i, Skv_i] each); ``aclnnDropoutGenMaskV2`` makes it.
*Philox* draws in the kernel: Philox4x32 with 7 rounds, key = seed, counter = ceil(offset / 16), one byte per element,
low byte of a word first, rows padded to 16 columns, keep if byte <= 255 * keep_prob.
"""

import dataclasses
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Elements", "PackedDropout", "PhiloxDropout", "element_order", "philox_dropout", "philox_words"]

_ROUNDS = 7
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_BUMPS = (0x9E3779B9, 0xBB67AE85)
PHILOX_COLUMNS = 16  # bytes of one counter value; rows of the stream start at a multiple


class Elements(NamedTuple):
    """Number of the first element of each row, in limbs that fit int32: ``unit * high + low``. All ``[Bx, Sq]``."""

    high: np.ndarray
    low: np.ndarray
    head_high: np.ndarray  # what each head adds
    head_low: np.ndarray

    def row(self, batch: jax.Array, head: jax.Array, row0: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
        """Returns the limbs ``[rows]`` of the rows from ``row0`` on; what lies past the last row is unspecified."""
        b = batch if self.high.shape[0] > 1 else 0
        at = jnp.minimum(row0 + jnp.arange(rows), self.high.shape[1] - 1)
        high, low, head_high, head_low = (jnp.asarray(x)[b, at] for x in self)
        return high + head * head_high, low + head * head_low


def element_order(heads: int, lengths: Sequence[Sequence[tuple[int, int]]], *, unit: int, align: int = 1) -> Elements:
    """Numbers the scores of a call, row after row.

    Args:
        heads: N.
        lengths: For each row of the batch the (Sq, Skv) of its sequences: one each, or all in one row if packed.
        unit: Elements of one high limb.
        align: Each row is padded to a multiple of this many elements.

    Raises:
        ValueError: There are more elements than 2^31 units: limbs are int32.

    >>> element_order(1, [[(2, 5)]], unit=8).high.tolist(), element_order(1, [[(2, 5)]], unit=8).low.tolist()
    ([[0, 0]], [[0, 5]])
    """
    base, table = 0, []
    for batch in lengths:
        first, stride = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for q_len, kv_len in batch:
            width = -(-kv_len // align) * align
            first.append(base + np.arange(q_len) * width)
            stride.append(np.full(q_len, q_len * width))
            base += heads * q_len * width
        table.append((np.concatenate(first), np.concatenate(stride)))
    if base // unit > np.iinfo(np.int32).max:
        most = unit << 31
        raise ValueError(f"{base} scores: dropout numbers at most {most}; give it fewer heads or batch rows at a time")
    bases, strides = (np.stack(x) for x in zip(*table, strict=True))
    limbs = (bases // unit, bases % unit, strides // unit, strides % unit)
    return Elements(*(np.asarray(x, np.int32) for x in limbs))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedDropout:
    """Keep-bits that the caller brings."""

    bits: jax.Array  # uint8, flat, at least ceil(elements / 8)
    keep_prob: float | jax.Array  # in (0, 1]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PhiloxDropout:
    """Keep-bits that the kernel draws: nothing is stored. :func:`philox_dropout` makes one."""

    keep_prob: float | jax.Array  # in (0, 1]; the real rate is (floor(255 * keep_prob) + 1) / 256
    key: jax.Array  # uint32 [2], seed, low word first
    counter: jax.Array  # uint32 [2], ceil(offset / 16), low word first


def philox_dropout(
    keep_prob: float | jax.Array, *, seed: int | jax.Array = 0, offset: int | jax.Array = 0
) -> PhiloxDropout:
    """Returns dropout drawn by Philox.

    Args:
        keep_prob: In (0, 1], may be traced. What is kept is divided by it.
        seed: Up to 64 bits; a traced one has 32.
        offset: Bytes of the stream to skip, rounded up to 16; likewise.

    Raises:
        TypeError: ``seed`` or ``offset`` is no whole number.

    >>> philox_dropout(0.9, seed=2**32 + 5).key.tolist()
    [5, 1]
    """
    return PhiloxDropout(keep_prob, _words("seed", seed), _words("offset", offset, unit=16))


Dropout = PackedDropout | PhiloxDropout


def keep_tile(
    dropout: Dropout,
    order: Elements,
    batch: jax.Array,
    head: jax.Array,
    row0: jax.Array,
    columns: jax.Array,
    rows: int,
    aligned: bool,
) -> jax.Array:
    """Returns the boolean keep-tile ``[rows, C]``; ``columns`` is ``[1, C]``, or ``[rows, C]`` in packed sequences.

    ``aligned`` says that columns count up from a multiple of 16, so that one draw serves 16 of them.
    """
    high, low = order.row(batch, head, row0, rows)
    if isinstance(dropout, PackedDropout):
        at = low[:, None] + columns
        index = (high[:, None] + (at >> 3)).clip(0, dropout.bits.size - 1)
        return (dropout.bits[index] >> (at & 7).astype(jnp.uint8)) & 1 > 0
    counts = high[:, None] + ((columns[:, ::PHILOX_COLUMNS] if aligned else columns) >> 4)
    words = philox_words(dropout.key, dropout.counter, counts)
    stacked = jnp.stack(words, axis=-1)  # [rows, C / 16 or C, 4]
    if aligned:
        shifts = jnp.arange(4, dtype=jnp.uint32) * 8
        drawn = ((stacked[..., None] >> shifts[None, None, None, :]) & 255).reshape(rows, -1)[:, : columns.shape[1]]
    else:
        word = jnp.take_along_axis(stacked, ((columns & 15) >> 2)[..., None], axis=-1)[..., 0]
        drawn = (word >> ((columns & 3) * 8).astype(jnp.uint32)) & 255
    return drawn.astype(jnp.float32) <= 255 * jnp.asarray(dropout.keep_prob, jnp.float32)


def philox_words(key: jax.Array, counter: jax.Array, counts: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the four uint32 words of Philox4x32-7 at each ``counter + counts``.

    >>> [hex(int(x)) for x in philox_words(jnp.zeros(2, jnp.uint32), jnp.zeros(2, jnp.uint32), jnp.int32(0))]
    ['0x5f6fb709', '0xd893f64', '0x4f121f81', '0x4f730a48']
    """
    (seed_low, seed_high), (first_low, first_high) = key, counter
    low = first_low + counts.astype(jnp.uint32)
    high = first_high + (low < first_low).astype(jnp.uint32)
    words = (low, high, jnp.zeros_like(low), jnp.zeros_like(low))
    for turn in range(_ROUNDS):
        bump = [jnp.uint32(step * turn & 0xFFFFFFFF) for step in _KEY_BUMPS]
        (top_a, bottom_a), (top_b, bottom_b) = (
            _wide_product(factor, words[at]) for factor, at in zip(_MULTIPLIERS, (0, 2), strict=True)
        )
        words = (
            top_b ^ words[1] ^ (seed_low + bump[0]),
            bottom_b,
            top_a ^ words[3] ^ (seed_high + bump[1]),
            bottom_a,
        )
    return words


def _words(name: str, value: jax.Array | int, unit: int = 1) -> jax.Array:
    """Returns a whole number, in units and rounded up, as two words, the low one first."""
    if isinstance(value, jax.Array):
        if value.ndim or not jnp.issubdtype(value.dtype, jnp.integer):
            raise TypeError(f"{name} is {value.dtype}{list(value.shape)}: must be one whole number")
        low = -(-value // unit)
        return jnp.stack([low.astype(jnp.uint32), jnp.zeros_like(low, jnp.uint32)])
    try:
        number = -(-operator.index(value) // unit)
    except TypeError:
        raise TypeError(f"{name} = {value!r}: must be a whole number") from None
    return jnp.array([number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF], jnp.uint32)


def _wide_product(factor: int, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Multiplies two 32-bit words into (high, low); there are no 64-bit integers without x64."""
    f_low, f_high = jnp.uint32(factor & 0xFFFF), jnp.uint32(factor >> 16)
    x_low, x_high = x & 0xFFFF, x >> 16
    cross = f_high * x_low + (f_low * x_low >> 16)
    other = f_low * x_high + (cross & 0xFFFF)
    return f_high * x_high + (cross >> 16) + (other >> 16), jnp.uint32(factor) * x
