"""Values in device memory that streams write and wait for: 64 bits at an address, in any order of issue.

A wait looks at a cell of its own for the address, so that simulated time needs no memory contents. The cell takes over
what memory holds at every call on the address while no unfinished command uses it; from then on it follows
``value_write`` only. What copies, fills and kernels do to the address meanwhile does not release a wait.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ascend_jax.runtime import bytes as hbm
from ascend_jax.runtime import layout
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, enqueue, operand_rows
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.event_slots import busy_cells
from ascend_jax.runtime.handles import find_stream, value_cell
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import Change, Condition, Field, Kind
from ascend_jax.runtime.ranges import Range, byte_range, is_host
from ascend_jax.runtime.rows import Number, get_row, put_row
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import look, make_room
from ascend_jax.runtime.translation import translate
from ascend_jax.runtime.usable import check_range

VALUE_BYTES = 8
Words = tuple[Number, Number]  # high and low word of 64 bits


def words_of(value: Number) -> Words:
    """Split a value into its high and low 32 bits; negative ones are two's complement, int32 arrays are sign-extended.

    >>> words_of(-2), words_of(2**63)
    ((-1, -2), (-2147483648, 0))

    Raises:
      ValueError: A Python int does not fit 64 bits.
      TypeError: The value is no whole number.
    """
    if isinstance(value, jax.Array):
        return _traced_words(value)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"value = {value!r}: must be a whole number")
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"value = {value}: must fit 64 bits")
    high, low = divmod(int(value) & (2**64 - 1), 2**32)
    return (high ^ 2**31) - 2**31, (low ^ 2**31) - 2**31


def _traced_words(value: jax.Array) -> Words:
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"value has dtype {value.dtype}: must be whole numbers")
    low = value.astype(jnp.int32)
    if value.dtype.itemsize == VALUE_BYTES:
        return (value >> 32).astype(jnp.int32), low
    return (low >> 31 if jnp.issubdtype(value.dtype, jnp.signedinteger) else jnp.zeros_like(low)), low


class Slots(NamedTuple):
    """Which addresses have a cell, and what lies in it."""

    places: jax.Array  # int32 [V, 2], granule and byte offset; 0: nobody's
    cells: jax.Array  # int32 [V, 2], high and low word
    is_idle: jax.Array  # bool [V]: no unfinished command uses the cell
    is_free: jax.Array  # bool [V]: it may be given to another address


def value_slots(card: CardState, places: Range) -> tuple[Slots, jax.Array]:
    """Return the slots as they are and what memory holds at some addresses, int32 [N, 2].

    Memory keeps the value of an address without a slot; a card without bytes keeps slots until their block is gone, and
    its memory holds 0.
    """
    values, first = card.values, card.events.shape[0]
    is_idle = busy_cells(card)[first : first + len(values)] == 0
    is_gone = jax.vmap(lambda at: check_range(card, Range(at[0], at[1], 0, VALUE_BYTES)))(values) != Code.SUCCESS
    is_free = (values[:, 0] == layout.NULL) | (is_idle & (card.has_values | is_gone))
    slots = Slots(values, card.cells[first : first + len(values)], is_idle, is_free)
    if not card.has_values:
        return slots, jnp.zeros((*jnp.shape(places.pointer), 2), jnp.int32)
    start = jnp.maximum(hbm.first_byte(card, places.pointer, places.offset), 0)
    raw = jax.vmap(lambda first: lax.dynamic_slice(card.memory, (first,), (VALUE_BYTES,)))(start)
    words = lax.bitcast_convert_type(raw.reshape(-1, 2, 4), jnp.int32)  # little endian: the low one first
    return slots, words[:, ::-1]


def give_slot(
    slots: Slots, pointer: jax.Array, offset: jax.Array, content: jax.Array, *, keeps: bool = False
) -> tuple[Slots, jax.Array, jax.Array]:
    """Return (slots, slot, whether there is one) of an address: its own, one that nobody had, or one nobody uses.

    An idle cell takes over ``content``, what memory holds there; with ``keeps`` there is no memory, and an address that
    has a slot keeps what is in its cell.
    """
    is_it = (slots.places[:, 0] == pointer) & (slots.places[:, 1] == offset)
    is_new = slots.places[:, 0] == layout.NULL
    slot = jnp.argmax(is_it * 4 + is_new * 2 + slots.is_free * 1).astype(jnp.int32)
    found = (is_it | slots.is_free).any()
    own = get_row(is_it, slot)
    kept = get_row(slots.cells, slot)
    taken_over = jnp.where(own & (keeps | ~get_row(slots.is_idle, slot)), kept, content)
    no = jnp.bool_(False)
    given = Slots(
        put_row(slots.places, slot, jnp.stack([pointer, offset])),
        put_row(slots.cells, slot, taken_over),
        put_row(slots.is_idle, slot, no),
        put_row(slots.is_free, slot, no),
    )
    return given, slot, found


@stage(static=("kind",), reads=("chip", "memory"))
def _mark(
    card: CardState, place: Range, value: Words, stream: Number, flag: Number, site: Number, *, kind: Kind
) -> CardState:
    place, condition = translate(card, place), jnp.asarray(flag, jnp.int32) + Condition.GE
    is_write = kind == Kind.VALUE_WRITE
    code, slot = find_stream(card, stream)
    code = first_failing(first_code((card.chip["has_value_marks"] == 0, Code.FEATURE_NOT_SUPPORT)), code)
    slots, content = value_slots(card, Range(*(jnp.asarray(number)[None] for number in place)))
    given, value_slot, is_found = give_slot(slots, place.pointer, place.offset, content[0], keeps=not card.has_values)
    place_code = first_failing(
        first_code((is_host(place.pointer), Code.RT_PARAM_INVALID)),
        check_range(card, place),
        first_code(
            ((place.offset & (VALUE_BYTES - 1)) != 0, Code.RT_ADDR_UNALIGNED), (~is_found, Code.OBJECT_TABLE_FULL)
        ),
    )
    is_known = (condition >= Condition.GE) & (condition <= Condition.NOR)
    code = first_failing(code, place_code, first_code((~is_known & (not is_write), Code.RT_PARAM_INVALID)))
    card = spend(card, card.chip["host_event_ns"])
    fields = {
        Field.OBJECT: value_slot,
        Field.CELL: value_cell(card, value_slot),
        Field.CONDITION: Condition.NONE if is_write else condition,
        Field.CHANGE: Change.SET if is_write else Change.NONE,
        Field.VALUE_HI: value[0],
        Field.VALUE_LO: value[1],
        Field.SITE: site,
    }
    operands = operand_rows(place)
    command = Command(kind, slot, operands=operands, writes=int(is_write), reads=int(not is_write), fields=fields)
    card, code = enqueue(card, command, code)
    ok, cells = code == Code.SUCCESS, lax.dynamic_update_slice(card.cells, given.cells, (card.events.shape[0], 0))
    values, cells = jnp.where(ok, given.places, card.values), jnp.where(ok, cells, card.cells)
    return answer(dataclasses.replace(card, values=values, cells=cells), code, site, stream)[0]


@verb
def value_write(
    card: CardState, pointer: Number, value: Number, stream: Number, *, offset: Number = 0, site: Site = None
) -> CardState:
    """Write 64 bits to device memory when ``stream`` gets there (``aclrtValueWrite``).

    Args:
      card: The card.
      pointer: Device pointer.
      value: Python int of 64 bits, signed or not; or an integer array, sign-extended.
      stream: Stream that writes.
      offset: Bytes from ``pointer`` to the value, a multiple of 8.
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status 207000 on a product without this (``has_value_marks``: A2, A3 and 950 have it), 107003 for an
      unknown stream, 100000 for the null pointer, 107000 for a host pointer or an address outside every live block,
      107008 if it is no multiple of 8, 900002 if no real bytes are behind it, 900005 if ``max_values`` other addresses
      are in use.
    """
    place = byte_range(pointer, offset, VALUE_BYTES)
    card = look(make_room(card, site, stream), site)
    return _mark(card, place, words_of(value), stream, 0, site, kind=Kind.VALUE_WRITE)


@verb
def value_wait(
    card: CardState,
    pointer: Number,
    value: Number,
    stream: Number,
    *,
    flag: Number = 0,
    offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Hold ``stream`` until 64 bits of device memory satisfy a condition (``aclrtValueWait``).

    The wait may be queued before the write. It sees what memory held when the first of the unfinished calls on the
    address was made and what ``value_write`` wrote since; of other writers it is not told.

    Args:
      card: The card.
      pointer: Device pointer.
      value: Python int of 64 bits, signed or not; or an integer array, sign-extended.
      stream: Stream that waits.
      flag: 0: memory - value >= 0 as signed 64 bits; 1: equal; 2: memory & value not 0; 3: ~(memory | value) not 0.
      offset: Bytes from ``pointer`` to the value, a multiple of 8.
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status as :func:`value_write`, 107000 for another flag.

    >>> import ascend_jax as aj
    >>> card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 20)
    >>> card, stream = aj.create_stream(card)
    >>> card, flag = aj.malloc(card, 8)
    >>> card = aj.value_wait(aj.memset(card, flag, 0, 8), flag, 1, stream)
    >>> card = aj.synchronize_device(aj.value_write(card, flag, 1, 0))
    >>> aj.last_code(card).item(), aj.download(card, flag, (2,), "int32")[1].tolist()
    (0, [1, 0])
    """
    place = byte_range(pointer, offset, VALUE_BYTES)
    card = look(make_room(card, site, stream), site)
    return _mark(card, place, words_of(value), stream, flag, site, kind=Kind.VALUE_WAIT)
