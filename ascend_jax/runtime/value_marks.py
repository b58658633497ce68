"""Values in device memory that streams write and wait for: 64 bits at an address, in any order of issue.

A wait looks at a cell of its own for the address, so that simulated time needs no memory contents. The cell takes over
what memory holds at every call on the address while no unfinished command uses it; from then on it follows
``value_write`` only. What copies, fills and kernels do to the address meanwhile does not release a wait.
"""

import dataclasses

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
from ascend_jax.runtime.rows import Number, get_row, put_if
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


def _find(card: CardState, place: Range) -> tuple[jax.Array, jax.Array]:
    """Return (code, value slot) of an address: its own, one that nobody had, or one that nobody uses.

    Memory keeps the value of an address without a slot; a card without bytes keeps slots until their block is gone.
    """
    values = card.values
    is_it = (values[:, 0] == place.pointer) & (values[:, 1] == place.offset)
    is_new = values[:, 0] == layout.NULL
    cells = card.events.shape[0]
    is_idle = busy_cells(card)[cells : cells + len(values)] == 0
    is_gone = jax.vmap(lambda at: check_range(card, Range(at[0], at[1], 0, VALUE_BYTES)))(values) != Code.SUCCESS
    is_free = is_new | (is_idle & (card.has_values | is_gone))
    slot = jnp.argmax(is_it * 4 + is_new * 2 + is_free * 1).astype(jnp.int32)
    on_host = first_code((is_host(place.pointer), Code.RT_PARAM_INVALID))
    rest = first_code(
        ((place.offset & (VALUE_BYTES - 1)) != 0, Code.RT_ADDR_UNALIGNED),
        (~(is_it | is_free).any(), Code.OBJECT_TABLE_FULL),
    )
    return first_failing(on_host, check_range(card, place), rest), slot


def _refresh(card: CardState, place: Range, slot: jax.Array, code: jax.Array) -> CardState:
    """Return the card with the address in its slot, and in its cell what memory holds if nobody uses the cell."""
    ok, cell = code == Code.SUCCESS, value_cell(card, slot)
    values = put_if(ok, card.values, slot, jnp.stack([place.pointer, place.offset]))
    was = get_row(card.values, slot)
    is_other = (was[0] != place.pointer) | (was[1] != place.offset)
    cells = put_if(ok & is_other, card.cells, cell, jnp.zeros(2, jnp.int32))  # unless memory says otherwise
    if card.has_values:
        is_idle = get_row(busy_cells(card), cell) == 0
        start = jnp.where(ok, hbm.first_byte(card, place.pointer, place.offset), 0)
        raw = lax.dynamic_slice(card.memory, (start,), (VALUE_BYTES,))
        low, high = lax.bitcast_convert_type(raw.reshape(2, 4), jnp.int32)  # little endian
        cells = put_if(ok & is_idle, cells, cell, jnp.stack([high, low]))
    return dataclasses.replace(card, values=values, cells=cells)


@stage(static=("kind",), reads=("chip", "memory"))
def _mark(
    card: CardState, place: Range, value: Words, stream: Number, condition: Number, site: Number, *, kind: Kind
) -> CardState:
    place, condition = translate(card, place), jnp.asarray(condition, jnp.int32)
    is_write = kind == Kind.VALUE_WRITE
    code, slot = find_stream(card, stream)
    place_code, value_slot = _find(card, place)
    is_known = (condition >= Condition.GE) & (condition <= Condition.NOR)
    code = first_failing(code, place_code, first_code((~is_known & (not is_write), Code.RT_PARAM_INVALID)))
    before = card.values, card.cells
    card = spend(_refresh(card, place, value_slot, code), card.chip["host_event_ns"])
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
    values, cells = (
        jnp.where(code == Code.SUCCESS, new, old) for new, old in zip((card.values, card.cells), before, strict=True)
    )
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
      The card. Status 107003 for an unknown stream, 100000 for the null pointer, 107000 for a host pointer or an
      address outside every live block, 107008 if it is no multiple of 8, 900002 if no real bytes are behind it, 900005
      if ``max_values`` other addresses are in use.
    """
    place = byte_range(pointer, offset, VALUE_BYTES)
    card = look(make_room(card, site, stream), site)
    return _mark(card, place, words_of(value), stream, Condition.NONE, site, kind=Kind.VALUE_WRITE)


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
    return _mark(card, place, words_of(value), stream, flag + Condition.GE, site, kind=Kind.VALUE_WAIT)
