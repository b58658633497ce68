"""Between the host program's own arrays and the card: pageable copies, and access to pinned memory.

An array is ordinary (pageable) host memory: copying it blocks the host. Pinned memory lies on the card's host side.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from ascend_jax.runtime import bytes as hbm
from ascend_jax.runtime import layout
from ascend_jax.runtime.advance import Goal
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, host_stream, operand_rows
from ascend_jax.runtime.early import note_access
from ascend_jax.runtime.edge import Site, concrete, stage, verb
from ascend_jax.runtime.kernels import Argument, from_bytes, require_plain, to_bytes
from ascend_jax.runtime.layout import Device, HeapWord, Kind
from ascend_jax.runtime.memory.copies import find_queue, submit, transfer
from ascend_jax.runtime.ranges import Range, byte_range, is_device, is_empty, is_host
from ascend_jax.runtime.refusals import range_given
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing, last_code
from ascend_jax.runtime.synchronize import look, make_room, settle
from ascend_jax.runtime.translation import translate
from ascend_jax.runtime.usable import check_range


@stage
def _queue_array(card: CardState, place: Range, to_device: bool | jax.Array, site: Number) -> tuple:
    given, place, to_device = range_given(place), translate(card, place), jnp.asarray(to_device)
    on_host = is_host(place.pointer)
    code, slot = find_queue(card, layout.NONE, True)
    code = first_failing(code, first_code((on_host, Code.RT_PARAM_INVALID)), check_range(card, place))
    moving = transfer(card, place, on_host | ~to_device, on_host | to_device)
    command = Command(
        Kind.COPY, slot, operands=operand_rows(place), writes=to_device, reads=~to_device, has_effect=False, **moving
    )
    return submit(card, command, code, is_empty(place), site, True, given=given)


def move_array(card: CardState, place: Range, to_device: bool, site: Site) -> CardState:
    """Take the time of a copy between a device range and an array of the host program, and note its code."""
    card = _queue_array(make_room(card, site), place, to_device, site)[0]
    return settle(card, Goal(stream=host_stream(card)), site)


def _raw(array: ArrayLike) -> tuple[np.ndarray | jax.Array, int]:
    """Return the array (NumPy as its bytes in C order, whatever the dtype) and its length in bytes."""
    if isinstance(array, jax.Array):
        require_plain(array.dtype)
        return array, array.size * array.dtype.itemsize
    array = np.asarray(array)
    if array.dtype.hasobject:
        raise ValueError(f"array has dtype {array.dtype}: objects have no bytes to copy; convert to numbers")
    raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    return raw, raw.nbytes


@stage(reads=("hbm", "virtual", "device"), changes=("memory",))
def _store(card: CardState, place: Range, array: jax.Array, code: jax.Array) -> CardState:
    raw, place = to_bytes(array), translate(card, place)
    index = hbm.first_byte(card, place.pointer, place.offset)
    index = jnp.where(code == Code.SUCCESS, index, 0)
    old = lax.dynamic_slice(card.memory, (index,), raw.shape)
    raw = jnp.where(code == Code.SUCCESS, raw, old)
    return dataclasses.replace(card, memory=lax.dynamic_update_slice(card.memory, raw, (index,)))


@stage(static=("argument",), reads=("memory", "hbm", "virtual", "device"), changes=())
def _load(card: CardState, place: Range, code: jax.Array, *, argument: Argument) -> tuple:
    place = translate(card, place)
    index = hbm.first_byte(card, place.pointer, place.offset)
    raw = lax.dynamic_slice(card.memory, (jnp.where(code == Code.SUCCESS, index, 0),), (argument.nbytes,))
    return card, from_bytes(jnp.where(code == Code.SUCCESS, raw, jnp.zeros_like(raw)), argument)


def load_bytes(card: CardState, place: Range, nbytes: int) -> jax.Array:
    """Return the bytes of a backed range as they are now, uint8 [nbytes]."""
    return _load(card, place, jnp.int32(Code.SUCCESS), argument=_argument((nbytes,), np.uint8))[1]


def store_bytes(card: CardState, place: Range, raw: jax.Array) -> CardState:
    """Return the card with the bytes of a backed range replaced at once."""
    return _store(card, place, raw, jnp.int32(Code.SUCCESS))


def _argument(shape: tuple[int, ...], dtype: object) -> Argument:
    kind = jnp.dtype(dtype)  # type: ignore[call-overload]
    require_plain(kind)
    return Argument(tuple(int(n) for n in shape), kind)


def _require_shape(card: CardState, argument: Argument) -> None:
    """Refuse an array that no memory could hold: its zeros could not be returned either."""
    ends = [concrete(words) for words in (card.hbm.words[..., HeapWord.END], card.device[..., Device.HOST_BACKING])]
    most = sum(2**31 if end is None else int(end.max()) for end in ends) * layout.GRANULE_BYTES
    if argument.nbytes > most:
        raise ValueError(f"shape = {argument.shape}: {argument.nbytes} bytes; the card has {most}; ask for fewer")


def _has_bytes(card: CardState, nbytes: int) -> bool:
    """Whether an array of this length can be there at all; the status says so if it cannot."""
    return card.has_values and nbytes <= card.memory.shape[-1]


@verb
def upload(card: CardState, dst: Number, array: ArrayLike, *, offset: Number = 0, site: Site = None) -> CardState:
    """Copy an array from ordinary (pageable) host memory to the device and block until it is there.

    This is ``acl.util.numpy_to_ptr`` followed by ``aclrtMemcpy``. The array's bytes are taken in C order.

    Status as :func:`memcpy`; 107000 if ``dst`` is a host pointer.
    """
    raw, nbytes = _raw(array)
    place = byte_range(dst, offset, nbytes)
    card = move_array(card, place, True, site)
    return _store(card, place, raw, last_code(card)) if _has_bytes(card, nbytes) else card


@verb
def download(
    card: CardState, src: Number, shape: tuple[int, ...], dtype: object, *, offset: Number = 0, site: Site = None
) -> tuple[CardState, jax.Array]:
    """Copy bytes from the device to ordinary host memory, block until they are there, and return them as an array.

    The bytes are those at the end of the copy. Status as :func:`memcpy`; on failure, and on a card without values,
    the array is zero.

    Raises:
      ValueError: The array is longer than all memory of the card.
    """
    argument = _argument(shape, dtype)
    _require_shape(card, argument)
    place = byte_range(src, offset, argument.nbytes)
    card = move_array(card, place, False, site)
    if not _has_bytes(card, argument.nbytes):
        return card, jnp.zeros(argument.shape, argument.dtype)
    return _load(card, place, last_code(card), argument=argument)


@stage(static=("is_write",))
def _check_host(card: CardState, place: Range, site: Number, *, is_write: bool) -> tuple:
    given, place = range_given(place), translate(card, place)
    code = first_code((is_device(place.pointer), Code.RT_PARAM_INVALID))
    code = first_failing(code, check_range(card, place))
    card = note_access(card, place, site, is_write, code == Code.SUCCESS)
    return answer(card, code, site, layout.NONE, given=given)


@verb
def host_write(card: CardState, dst: Number, array: ArrayLike, *, offset: Number = 0, site: Site = None) -> CardState:
    """Let the host program write ``array`` into its own pinned memory, now and at no cost.

    Work that is still to read or write there is a mistake of the program: see :func:`early_accesses`.
    """
    raw, nbytes = _raw(array)
    place = byte_range(dst, offset, nbytes)
    card, code = _check_host(look(card, site), place, site, is_write=True)
    return _store(card, place, raw, code) if _has_bytes(card, nbytes) else card


@verb
def host_read(
    card: CardState, src: Number, shape: tuple[int, ...], dtype: object, *, offset: Number = 0, site: Site = None
) -> tuple[CardState, jax.Array]:
    """Let the host program read its own pinned memory as it is now.

    An asynchronous copy that has not ended by now has changed nothing yet: see :func:`early_accesses`.
    """
    argument = _argument(shape, dtype)
    _require_shape(card, argument)
    place = byte_range(src, offset, argument.nbytes)
    card, code = _check_host(look(card, site), place, site, is_write=False)
    if not _has_bytes(card, argument.nbytes):
        return card, jnp.zeros(argument.shape, argument.dtype)
    return _load(card, place, code, argument=argument)
