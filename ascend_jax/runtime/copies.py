"""Copies and fills. The direction comes from the addresses: pinned host memory has negative pointers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from ascend_jax.runtime import bytes as hbm
from ascend_jax.runtime import layout
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import (
    Command,
    Number,
    answer,
    enqueue,
    host_stream,
    is_stream,
    operand_rows,
    transfer_time,
)
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.kernels import Argument, from_bytes, require_plain, to_bytes
from ascend_jax.runtime.layout import GRANULE_SHIFT, Field, Kind, Resource
from ascend_jax.runtime.memory import is_live
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code
from ascend_jax.runtime.synchronize import look, settle

Range = tuple[Number, Number]  # pointer and byte offset from it


def check_range(card: CardState, place: Range, nbytes: Number) -> jax.Array:
    """Return 0, or why a range cannot be used: null 100000, not allocated 107000, no bytes behind it 900002."""
    pointer, offset = (jnp.asarray(x, jnp.int32) for x in place)
    length = jnp.asarray(nbytes, jnp.int32)
    no_bytes = ~hbm.is_backed(card, pointer, offset, length) if card.has_values else jnp.bool_(False)
    return first_code(
        (pointer == layout.NULL, Code.INVALID_PARAM),
        ((length < 0) | ~is_live(card, pointer, offset, length), Code.RT_PARAM_INVALID),
        (no_bytes, Code.NO_BYTES_BEHIND),
    )


def _engine_of(card: CardState, to_host: jax.Array, from_host: jax.Array) -> tuple[dict, jax.Array]:
    """Return the copy engine a direction occupies and its rate in bytes/s."""
    is_h2d, is_d2h = from_host & ~to_host, to_host & ~from_host
    need = {Resource.H2D: is_h2d, Resource.D2H: is_d2h, Resource.D2D: ~to_host & ~from_host}
    h2d, d2h, d2d = (card.chip[name] for name in ("h2d_bytes_per_s", "d2h_bytes_per_s", "d2d_bytes_per_s"))
    # host to host is the CPU's own work; it is taken to be as fast as the link
    rate = jnp.where(is_d2h, d2h, jnp.where(to_host | from_host, h2d, d2d))
    return need, rate


@stage(static=("is_blocking",))
def _copy(
    card: CardState,
    dst: Range,
    src: Range,
    nbytes: Number,
    stream: Number,
    site: Number,
    *,
    is_blocking: bool,
) -> CardState:
    nbytes = jnp.asarray(nbytes, jnp.int32)
    to_host, from_host = (jnp.asarray(place[0], jnp.int32) < layout.NULL for place in (dst, src))
    code = jnp.int32(Code.SUCCESS)
    if not is_blocking:
        code = first_code(
            (~is_stream(card, stream), Code.RT_STREAM_CONTEXT),
            (to_host & from_host, Code.FEATURE_NOT_SUPPORT),
        )
    for place in (dst, src):
        code = jnp.where(code == Code.SUCCESS, check_range(card, place, nbytes), code)
    same = jnp.asarray(dst[0] == src[0]) & (dst[1] == src[1])
    is_idle = (code == Code.SUCCESS) & ((nbytes == 0) | same)
    need, rate = _engine_of(card, to_host, from_host)
    cost = card.chip["host_copy_sync_ns" if is_blocking else "host_copy_enqueue_ns"]
    card = spend(card, cost)
    command = Command(
        Kind.COPY,
        host_stream(card) if is_blocking else stream,
        duration=transfer_time(nbytes, rate, card.chip["copy_latency_ns"]),
        need=need,
        operands=operand_rows((*dst, nbytes), (*src, nbytes)),
        writes=1 << 0,
        reads=1 << 1,
        fields={Field.SITE: site, Field.MOVED: nbytes >> GRANULE_SHIFT},
    )
    card, queued = enqueue(card, command, jnp.where(is_idle, layout.NONE, code))
    return answer(card, jnp.where(is_idle, Code.SUCCESS, queued), site, stream)[0]


@stage(static=("is_blocking",))
def _set(
    card: CardState,
    dst: Range,
    value: Number,
    nbytes: Number,
    stream: Number,
    site: Number,
    *,
    is_blocking: bool,
) -> CardState:
    nbytes = jnp.asarray(nbytes, jnp.int32)
    to_host = jnp.asarray(dst[0], jnp.int32) < layout.NULL
    code = jnp.int32(Code.SUCCESS) if is_blocking else first_code((~is_stream(card, stream), Code.RT_STREAM_CONTEXT))
    code = jnp.where(code == Code.SUCCESS, check_range(card, dst, nbytes), code)
    is_idle = (code == Code.SUCCESS) & (nbytes == 0)
    need, rate = _engine_of(card, to_host, to_host)
    card = spend(card, card.chip["host_copy_sync_ns" if is_blocking else "host_copy_enqueue_ns"])
    command = Command(
        Kind.MEMSET,
        host_stream(card) if is_blocking else stream,
        duration=transfer_time(nbytes, rate, card.chip["copy_latency_ns"]),
        need=need,
        operands=operand_rows((*dst, nbytes)),
        writes=1 << 0,
        fields={Field.SITE: site, Field.MOVED: nbytes >> GRANULE_SHIFT, Field.FILL: jnp.asarray(value) & 255},
    )
    card, queued = enqueue(card, command, jnp.where(is_idle, layout.NONE, code))
    return answer(card, jnp.where(is_idle, Code.SUCCESS, queued), site, stream)[0]


@verb
def memcpy(
    card: CardState,
    dst: Number,
    src: Number,
    nbytes: Number,
    *,
    dst_offset: Number = 0,
    src_offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Copy ``nbytes`` bytes and block the host until they have arrived (``aclrtMemcpy``).

    Not ordered with work in any stream: there is no implicit barrier. A count of 0 and ``dst == src`` succeed.

    Args:
      card: The card.
      dst: Pointer to write at.
      src: Pointer to read from.
      nbytes: Bytes.
      dst_offset: Bytes from ``dst`` to the first byte written.
      src_offset: Bytes from ``src`` to the first byte read.
      site: Call site, filled in by the runtime.

    Returns:
      The card. Status 100000 for a null pointer, 107000 for a range outside every live block or a negative count.
    """
    card = _copy(card, (dst, dst_offset), (src, src_offset), nbytes, layout.NONE, site, is_blocking=True)
    return settle(card, host_stream(card), layout.NONE, True, site)


@verb
def memcpy_async(
    card: CardState,
    dst: Number,
    src: Number,
    nbytes: Number,
    stream: Number,
    *,
    dst_offset: Number = 0,
    src_offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue a copy in ``stream`` (``aclrtMemcpyAsync``); host memory must be pinned (``malloc_host``).

    Status as :func:`memcpy`, and 107003 for an unknown stream, 207000 for host to host.
    """
    return _copy(card, (dst, dst_offset), (src, src_offset), nbytes, stream, site, is_blocking=False)


@verb
def memset(
    card: CardState, dst: Number, value: Number, nbytes: Number, *, dst_offset: Number = 0, site: Site = None
) -> CardState:
    """Fill ``nbytes`` bytes with the low byte of ``value`` and block until it is done (``aclrtMemset``)."""
    card = _set(card, (dst, dst_offset), value, nbytes, layout.NONE, site, is_blocking=True)
    return settle(card, host_stream(card), layout.NONE, True, site)


@verb
def memset_async(
    card: CardState,
    dst: Number,
    value: Number,
    nbytes: Number,
    stream: Number,
    *,
    dst_offset: Number = 0,
    site: Site = None,
) -> CardState:
    """Queue a fill in ``stream`` (``aclrtMemsetAsync``)."""
    return _set(card, (dst, dst_offset), value, nbytes, stream, site, is_blocking=False)


@stage
def _pageable(card: CardState, place: Range, nbytes: Number, to_device: bool | jax.Array, site: Number) -> tuple:
    nbytes, to_device = jnp.asarray(nbytes, jnp.int32), jnp.asarray(to_device)
    code = first_code((jnp.asarray(place[0]) < layout.NULL, Code.RT_PARAM_INVALID))
    code = jnp.where(code == Code.SUCCESS, check_range(card, place, nbytes), code)
    host = jnp.asarray(place[0], jnp.int32) < layout.NULL
    need, rate = _engine_of(card, host | ~to_device, host | to_device)
    card = spend(card, card.chip["host_copy_sync_ns"])
    command = Command(
        Kind.COPY,
        host_stream(card),
        duration=transfer_time(nbytes, rate, card.chip["copy_latency_ns"]),
        need=need,
        operands=operand_rows((*place, nbytes)),
        writes=to_device,
        reads=~to_device,
        has_effect=False,
        fields={Field.SITE: site, Field.MOVED: nbytes >> GRANULE_SHIFT},
    )
    is_idle = (code == Code.SUCCESS) & (nbytes == 0)
    card, queued = enqueue(card, command, jnp.where(is_idle, layout.NONE, code))
    return answer(card, jnp.where(is_idle, Code.SUCCESS, queued), site, layout.NONE)


def _raw(array: ArrayLike) -> tuple[np.ndarray | jax.Array, int]:
    """Return the array (NumPy as its bytes in C order, whatever the dtype) and its length in bytes."""
    if isinstance(array, jax.Array):
        require_plain(array.dtype)
        return array, array.size * array.dtype.itemsize
    raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    return raw, raw.nbytes


@stage
def _store(card: CardState, place: Range, array: jax.Array, code: jax.Array) -> CardState:
    raw = to_bytes(array)
    index = hbm.first_byte(card, jnp.asarray(place[0], jnp.int32), jnp.asarray(place[1], jnp.int32))
    index = jnp.where(code == Code.SUCCESS, index, 0)
    old = lax.dynamic_slice(card.memory, (index,), raw.shape)
    raw = jnp.where(code == Code.SUCCESS, raw, old)
    return dataclasses.replace(card, memory=lax.dynamic_update_slice(card.memory, raw, (index,)))


@stage(static=("argument",))
def _load(card: CardState, place: Range, code: jax.Array, *, argument: Argument) -> tuple:
    index = hbm.first_byte(card, jnp.asarray(place[0], jnp.int32), jnp.asarray(place[1], jnp.int32))
    raw = lax.dynamic_slice(card.memory, (jnp.where(code == Code.SUCCESS, index, 0),), (argument.nbytes,))
    return card, from_bytes(jnp.where(code == Code.SUCCESS, raw, jnp.zeros_like(raw)), argument)


def _argument(shape: tuple[int, ...], dtype: object) -> Argument:
    kind = jnp.dtype(dtype)  # type: ignore[call-overload]
    require_plain(kind)
    return Argument(tuple(int(n) for n in shape), kind)


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
    card, code = _pageable(card, (dst, offset), nbytes, True, site)
    card = settle(card, host_stream(card), layout.NONE, True, site)
    return _store(card, (dst, offset), raw, code) if _has_bytes(card, nbytes) else card


@verb
def download(
    card: CardState, src: Number, shape: tuple[int, ...], dtype: object, *, offset: Number = 0, site: Site = None
) -> tuple[CardState, jax.Array]:
    """Copy bytes from the device to ordinary host memory, block until they are there, and return them as an array.

    The bytes are those at the end of the copy. Status as :func:`memcpy`; on failure, and on a card without values,
    the array is zero.
    """
    argument = _argument(shape, dtype)
    card, code = _pageable(card, (src, offset), argument.nbytes, False, site)
    card = settle(card, host_stream(card), layout.NONE, True, site)
    if not _has_bytes(card, argument.nbytes):
        return card, jnp.zeros(argument.shape, argument.dtype)
    return _load(card, (src, offset), code, argument=argument)


@stage
def _check_host(card: CardState, place: Range, nbytes: Number, site: Number) -> tuple:
    code = first_code((jnp.asarray(place[0]) > layout.NULL, Code.RT_PARAM_INVALID))
    code = jnp.where(code == Code.SUCCESS, check_range(card, place, nbytes), code)
    return answer(card, code, site, layout.NONE)


@verb
def host_write(card: CardState, dst: Number, array: ArrayLike, *, offset: Number = 0, site: Site = None) -> CardState:
    """Let the host program write ``array`` into its own pinned memory, now and at no cost."""
    raw, nbytes = _raw(array)
    card, code = _check_host(look(card, site), (dst, offset), nbytes, site)
    return _store(card, (dst, offset), raw, code) if _has_bytes(card, nbytes) else card


@verb
def host_read(
    card: CardState, src: Number, shape: tuple[int, ...], dtype: object, *, offset: Number = 0, site: Site = None
) -> tuple[CardState, jax.Array]:
    """Let the host program read its own pinned memory as it is now.

    An asynchronous copy that has not ended by now has changed nothing yet.
    """
    argument = _argument(shape, dtype)
    card, code = _check_host(look(card, site), (src, offset), argument.nbytes, site)
    if not _has_bytes(card, argument.nbytes):
        return card, jnp.zeros(argument.shape, argument.dtype)
    return _load(card, (src, offset), code, argument=argument)
