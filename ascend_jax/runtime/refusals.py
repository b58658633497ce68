"""What a refused call was given: kept beside the first failure in the status word, and put into words on the host."""

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import layout
from ascend_jax.runtime.heap import REST_MASK
from ascend_jax.runtime.layout import GIVEN_WORDS, GRANULE_BYTES, HeapEntry, HeapWord, Operand, Virtual, VirtualKind
from ascend_jax.runtime.ranges import MOST_GRANULES, Range, is_host
from ascend_jax.runtime.rows import Number, get_row
from ascend_jax.runtime.state import CardState

LAST = 2**31 - 1  # granule at which nothing lies, see `address`


class GivenKind(enum.IntEnum):
    """How the words of :class:`Given` are to be read."""

    NOTHING = 0
    SIZE = 1  # a length alone
    POINTER = 2  # a pointer alone
    RANGE = 3
    COPY = 4  # from the second range to the first
    OPERAND = 5  # of an operator; the pointer of the second range is its number
    ROWS = 6  # of a 2-D copy: both pitches, width and number of rows, in the place of a range


class Given(NamedTuple):
    """The size, pointer or byte ranges that a call was given."""

    kind: Number  # GivenKind
    first: Range
    second: Range = Range(0, 0, 0, 0)

    def words(self) -> jax.Array:
        """Return them as int32 [GIVEN_WORDS]."""
        numbers = [self.kind]
        for place in (self.first, self.second):
            first = jnp.asarray(place.pointer + place.skip)
            first = jnp.where(first < place.pointer, LAST, first)
            numbers += [first, place.offset, place.whole, place.rest]
        return jnp.stack([jnp.asarray(number, jnp.int32) for number in numbers])


def size_given(whole: Number, rest: Number) -> Given:
    """Return a size in granules and bytes beyond them."""
    return Given(GivenKind.SIZE, Range(layout.NULL, 0, whole, rest))


def wrong_size_given(sizes: list[tuple[jax.Array, jax.Array]], is_wrong: list[jax.Array]) -> Given:
    """Return the last wrong one of some sizes, each (granules, bytes beyond them)."""
    given = Given(GivenKind.NOTHING, Range(layout.NULL, 0, 0, 0))
    for size, is_it in zip(sizes, is_wrong, strict=True):
        given = first_if(is_it, size_given(*size), given)
    return given


def first_if(is_first: jax.Array, one: Given, other: Given) -> Given:
    """Return one of two."""
    return jax.tree.map(lambda mine, its: jnp.where(is_first, mine, its), one, other)


def pointer_given(pointer: Number) -> Given:
    """Return a pointer of which it matters what begins there."""
    return Given(GivenKind.POINTER, Range(pointer, 0, 0, 0))


def range_given(place: Range) -> Given:
    """Return bytes in memory."""
    return Given(GivenKind.RANGE, place)


def copy_given(dst: Range, src: Range) -> Given:
    """Return the two sides of a copy."""
    return Given(GivenKind.COPY, dst, src)


def rows_given(dst_pitch: Number, src_pitch: Number, width: Number, height: Number) -> Given:
    """Return the shape of a 2-D copy, in bytes and rows."""
    return Given(GivenKind.ROWS, Range(dst_pitch, src_pitch, width, height))


def operand_given(operands: jax.Array, is_wrong: jax.Array) -> Given:
    """Return the first wrong one of the operands, int32 [P, len(Operand)], of an operator; bool [P]."""
    number = jnp.argmax(is_wrong)
    place = Range(*(get_row(operands, number)[column] for column in Operand))
    kind = jnp.where(is_wrong.any(), GivenKind.OPERAND, GivenKind.NOTHING)
    return Given(kind, place, Range(number, 0, 0, 0))


def refusal_text(card: CardState, words: np.ndarray, *, is_latest: bool) -> str:
    """Say what a call was given, int [GIVEN_WORDS]; after the latest call also what lies where it points to.

    Host-side, for one card.
    """
    assert len(words) == GIVEN_WORDS
    kind, numbers = GivenKind(words[0]), [int(number) for number in words[1:]]
    first, second = Range(*numbers[:4]), Range(*numbers[4:])
    if kind == GivenKind.ROWS:
        return "{3} rows of {2} bytes, pitches {0} and {1}".format(*numbers[:4])
    there = [f"{_name(place)}{_lies(card, place.pointer) if is_latest else ''}" for place in (first, second)]
    if kind == GivenKind.SIZE:
        return f"{_length(first)} asked for"
    if kind == GivenKind.POINTER:
        return there[0]
    if kind == GivenKind.RANGE:
        return f"{_length(first)} at {there[0]}"
    if kind == GivenKind.OPERAND:
        name = "workspace" if second.pointer == layout.WORKSPACE else f"operand {second.pointer}"
        return f"{name}: {_length(first)} at {there[0]}"
    if kind == GivenKind.COPY and first[2:] == second[2:]:
        return f"{_length(first)} to {there[0]} from {there[1]}"
    if kind == GivenKind.COPY:
        return f"rows over {_length(first)} to {there[0]} from rows over {_length(second)} at {there[1]}"
    return ""


def _length(place: Range) -> str:
    nbytes = place.whole * GRANULE_BYTES + place.rest
    is_more = abs(place.whole) == MOST_GRANULES  # see `split_bytes`
    return f"{nbytes} bytes" + ((" or less" if nbytes < 0 else " or more") if is_more else "")


def _name(place: Range) -> str:
    if place.pointer == LAST:
        return "a pointer past the last one"
    is_less = " or less" if place.offset == -(2**31) else ""  # see `byte_range`
    return f"pointer {place.pointer}" + (f" + {place.offset} bytes{is_less}" if place.offset else "")


def _lies(card: CardState, pointer: int) -> str:
    """Say what there is at a pointer."""
    if pointer == layout.NULL:
        return " (null)"
    heap = card.host if is_host(pointer) else card.hbm
    blocks = np.asarray(heap.blocks, np.int64)[:, : int(heap.words[HeapWord.COUNT])].T
    starts = blocks[:, HeapEntry.START]
    for block in blocks[(starts <= pointer) & (pointer < starts + blocks[:, HeapEntry.SIZE])]:
        nbytes = block[HeapEntry.ASKED] * GRANULE_BYTES + (block[HeapEntry.REST] & REST_MASK)
        return f" (block of {nbytes} bytes at {block[HeapEntry.START]})"
    rows = np.asarray(card.virtual, np.int64)
    starts = rows[:, Virtual.START]
    near = rows[(starts <= pointer) & (pointer < starts + rows[:, Virtual.SIZE])]
    for kind in (VirtualKind.MAPPING, VirtualKind.SEGMENT, VirtualKind.RESERVATION):
        for row in near[near[:, Virtual.KIND] == kind]:
            return f" ({kind.name.lower()} of {row[Virtual.SIZE] * GRANULE_BYTES} bytes at {row[Virtual.START]})"
    return " (no live block)"
