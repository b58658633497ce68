"""Byte ranges in memory, and sizes that int32 cannot count in bytes: whole granules and a rest."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import layout
from ascend_jax.runtime.edge import require_whole
from ascend_jax.runtime.layout import GRANULE_BYTES, GRANULE_SHIFT
from ascend_jax.runtime.rows import Number

MOST_GRANULES = 2**31 - 1 - (2 << 20) // GRANULE_BYTES  # rounding up to pages still fits int32


class Range(NamedTuple):
    """Bytes in memory. Numbers, or int32 arrays of one shape; a length may exceed what int32 can count in bytes."""

    pointer: Any  # granule
    offset: Any  # bytes from there to the first byte
    whole: Any  # length: whole granules ...
    rest: Any  # ... and bytes beyond them, 0..63
    skip: Any = 0  # granules from the pointer to where the offset counts from

    @property
    def end(self) -> tuple[Any, Any]:
        """(granules from the pointer, bytes beyond them) past the last byte."""
        low = (self.offset & (GRANULE_BYTES - 1)) + self.rest
        return (self.offset >> GRANULE_SHIFT) + self.whole + (low >> GRANULE_SHIFT), low & (GRANULE_BYTES - 1)

    def as_int32(self) -> "Range":
        """Return the same range as int32 arrays, in its one normal form: no skip, an offset below one granule.

        Null pointers and negative offsets stay as they are, to be refused; an address past the last one gets a
        negative length, for the same reason.
        """
        pointer, offset, whole, rest, skip = (jnp.asarray(number, jnp.int32) for number in self)
        is_odd = (pointer == layout.NULL) | (offset < 0)
        granules = jnp.where(is_odd, 0, offset >> GRANULE_SHIFT)
        first = pointer + granules
        moved = first + jnp.where(is_odd, 0, skip)
        is_past = (first < pointer) | (moved < first) | ((pointer < layout.NULL) & (moved >= layout.NULL))
        whole = jnp.where(is_past, layout.NONE, whole)
        return Range(moved, offset - (granules << GRANULE_SHIFT), whole, rest, jnp.zeros_like(moved))


def is_host(pointer: Any) -> Any:
    """Return, elementwise, whether an address is one of host memory."""
    return pointer < layout.HOST_END


def is_device(pointer: Any) -> Any:
    """Return, elementwise, whether an address is one of the device, virtual ones included."""
    return (pointer >= layout.HOST_END) & (pointer != layout.NULL)


def address(pointer: Number) -> Number:
    """Return a pointer as given, or one at which nothing lies if it is a number that int32 does not hold.

    Raises:
      TypeError: It is no whole number.
    """
    require_whole(pointer=pointer)
    is_far = isinstance(pointer, int | np.integer) and not -(2**31) <= pointer < 2**31
    return 2**31 - 1 if is_far else pointer


def byte_range(pointer: Number, offset: Number, nbytes: Number) -> Range:
    """Return a range; Python ints may have any size, what no card has becomes a length below 0, to be refused."""
    pointer = address(pointer)
    require_whole(offset=offset)
    whole, rest = split_bytes(nbytes)
    if not isinstance(offset, int | np.integer):
        return Range(pointer, offset, whole, rest)
    skip, offset = divmod(int(offset), GRANULE_BYTES) if offset >= 2**31 else (0, max(int(offset), -(2**31)))
    return Range(pointer, offset, whole, rest, min(skip, 2**31 - 1))  # from any pointer that is past the last address


def split_bytes(nbytes: Number) -> tuple[Number, Number]:
    """Split a byte count into whole granules, below 0 if it is, and the rest, so that 128 GiB fits int32."""
    if isinstance(nbytes, float | bool | np.bool_ | np.floating):
        raise TypeError(f"nbytes = {nbytes!r}: must be a whole number of bytes")
    whole, rest = nbytes >> GRANULE_SHIFT, nbytes & (GRANULE_BYTES - 1)
    if not isinstance(nbytes, int | np.integer):
        return whole, rest
    return max(-MOST_GRANULES, min(int(whole), MOST_GRANULES)), int(rest)


def rows_range(pointer: Number, pitch: jax.Array, width: jax.Array, height: jax.Array) -> Range:
    """Return the range from the first byte of the first of some rows to the last byte of the last, all int32.

    No step leaves int32: a length that no card has becomes one below 0, to be refused.
    """
    pointer = address(pointer)
    is_some = (width > 0) & (height > 0)
    whole, rest = product(jnp.where(is_some, height - 1, 0), jnp.where(is_some, pitch, 0))
    width = jnp.where(is_some, width, 0)
    low = rest + (width & (GRANULE_BYTES - 1))
    whole = jnp.where(whole < 0, layout.NONE, whole + (width >> GRANULE_SHIFT) + (low >> GRANULE_SHIFT))
    return Range(pointer, 0, whole, low & (GRANULE_BYTES - 1))


def product(count: jax.Array, nbytes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return ``count * nbytes`` bytes, int32 of 0 or more, as (granules, rest); (-1, 0) for more than a card has."""
    is_huge = count.astype(jnp.float32) * nbytes / GRANULE_BYTES >= MOST_GRANULES - GRANULE_BYTES * 1024
    count_whole, count_rest = count >> GRANULE_SHIFT, count & (GRANULE_BYTES - 1)
    nbytes_whole, nbytes_rest = nbytes >> GRANULE_SHIFT, nbytes & (GRANULE_BYTES - 1)
    low = count_rest * nbytes_rest
    whole = count * nbytes_whole + count_whole * nbytes_rest + (low >> GRANULE_SHIFT)
    return jnp.where(is_huge, layout.NONE, whole), jnp.where(is_huge, 0, low & (GRANULE_BYTES - 1))


def granules(place: Range) -> jax.Array:
    """Return the length in granules, rounded up."""
    return place.whole + (place.rest > 0)


def is_empty(place: Range) -> jax.Array:
    """Return whether a range has no bytes."""
    return (place.whole == 0) & (place.rest == 0)


def starts_at(one: Range, other: Range) -> jax.Array:
    """Return whether two ranges in normal form begin at the same byte."""
    return (one.pointer == other.pointer) & (one.offset == other.offset)


def rows_meet(one: Range, other: Range, pitch: jax.Array, width: jax.Array, height: jax.Array) -> jax.Array:
    """Return whether two sets of rows of one pitch share a byte, given the ranges they span, in normal form."""
    ahead, low = one.pointer - other.pointer, one.offset - other.offset
    is_behind = (ahead < 0) | ((ahead == 0) & (low < 0))
    ahead, low = jnp.where(is_behind, -ahead, ahead), jnp.where(is_behind, -low, low)
    ahead, low = jnp.where(low < 0, ahead - 1, ahead), jnp.where(low < 0, low + GRANULE_BYTES, low)
    divisor = jnp.maximum(pitch, 1)
    steps, left = ahead // divisor, (ahead % divisor).astype(jnp.uint32)
    for bit in reversed(range(GRANULE_SHIFT)):  # long division of the distance in bytes, which may pass int32
        left = left * 2 + ((low >> bit) & 1).astype(jnp.uint32)
        fits = left >= divisor.astype(jnp.uint32)
        left = jnp.where(fits, left - divisor.astype(jnp.uint32), left)
        steps = steps * 2 + fits
    left = left.astype(jnp.int32)
    return overlaps(one, other) & ((left < width) | ((divisor - left < width) & (steps < height - 1)))


def overlaps(one: Range, other: Range) -> jax.Array:
    """Return whether two ranges in normal form share a byte."""

    def begins_before_end_of(first: Range, second: Range) -> jax.Array:
        end, rest = second.end
        ahead = first.pointer - second.pointer
        return (ahead < end) | ((ahead == end) & (first.offset < rest))

    # of this distance alone int32 loses the sign: each would seem to begin before the other
    is_half_of_all = one.pointer - other.pointer == -(2**31)
    is_none = is_empty(one) | is_empty(other) | is_half_of_all
    return ~is_none & begins_before_end_of(one, other) & begins_before_end_of(other, one)
