"""Copies and fills. The direction comes from the addresses: pinned host memory has negative pointers."""

import jax
import jax.numpy as jnp

from ascend_jax.runtime import bytes as hbm
from ascend_jax.runtime import layout
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import (
    Command,
    answer,
    enqueue,
    host_stream,
    is_stream,
    operand_rows,
    transfer_time,
)
from ascend_jax.runtime.edge import Site, stage, verb
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import Field, Kind, Resource
from ascend_jax.runtime.memory import Range, byte_range, is_live
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code
from ascend_jax.runtime.synchronize import make_room, settle


def check_range(card: CardState, place: Range) -> jax.Array:
    """Return 0, or why a range cannot be used: null 100000, not allocated 107000, no bytes behind it 900002."""
    no_bytes = ~hbm.is_backed(card, place) if card.has_values else jnp.bool_(False)
    return first_code(
        (place.pointer == layout.NULL, Code.INVALID_PARAM),
        (~is_live(card, place), Code.RT_PARAM_INVALID),
        (no_bytes, Code.NO_BYTES_BEHIND),
    )


def engine_of(card: CardState, to_host: jax.Array, from_host: jax.Array) -> tuple[dict, jax.Array]:
    """Return the copy engine a direction occupies and its rate in bytes/s."""
    is_h2d, is_d2h = from_host & ~to_host, to_host & ~from_host
    need = {Resource.H2D: is_h2d, Resource.D2H: is_d2h, Resource.D2D: ~to_host & ~from_host}
    h2d, d2h, d2d = (card.chip[name] for name in ("h2d_bytes_per_s", "d2h_bytes_per_s", "d2d_bytes_per_s"))
    # host to host is the CPU's own work; it is taken to be as fast as the link
    rate = jnp.where(is_d2h, d2h, jnp.where(to_host | from_host, h2d, d2d))
    return need, rate


@stage(static=("is_blocking",))
def _copy(card: CardState, dst: Range, src: Range, stream: Number, site: Number, *, is_blocking: bool) -> CardState:
    dst, src = dst.as_int32(), src.as_int32()
    to_host, from_host = dst.pointer < layout.NULL, src.pointer < layout.NULL
    code = _check_stream(card, stream, is_blocking)
    if not is_blocking:
        code = jnp.where((code == Code.SUCCESS) & to_host & from_host, Code.FEATURE_NOT_SUPPORT, code)
    for place in (dst, src):
        code = jnp.where(code == Code.SUCCESS, check_range(card, place), code)
    same = (dst.pointer == src.pointer) & (dst.offset == src.offset)
    need, rate = engine_of(card, to_host, from_host)
    command = Command(
        Kind.COPY,
        host_stream(card) if is_blocking else stream,
        duration=transfer_time(dst, rate, card.chip["copy_latency_ns"]),
        need=need,
        operands=operand_rows(dst, src),
        writes=1 << 0,
        reads=1 << 1,
        fields={Field.SITE: site, Field.MOVED: granules(dst)},
    )
    return submit(card, command, code, is_empty(dst) | same, stream, is_blocking)[0]


@stage(static=("is_blocking",))
def _set(card: CardState, dst: Range, value: Number, stream: Number, site: Number, *, is_blocking: bool) -> CardState:
    dst = dst.as_int32()
    to_host = dst.pointer < layout.NULL
    code = _check_stream(card, stream, is_blocking)
    code = jnp.where(code == Code.SUCCESS, check_range(card, dst), code)
    need, rate = engine_of(card, to_host, to_host)
    command = Command(
        Kind.MEMSET,
        host_stream(card) if is_blocking else stream,
        duration=transfer_time(dst, rate, card.chip["copy_latency_ns"]),
        need=need,
        operands=operand_rows(dst),
        writes=1 << 0,
        fields={Field.SITE: site, Field.MOVED: granules(dst), Field.FILL: jnp.asarray(value) & 255},
    )
    return submit(card, command, code, is_empty(dst), stream, is_blocking)[0]


def _check_stream(card: CardState, stream: Number, is_blocking: bool) -> jax.Array:
    """A blocking call runs on the host's own stream, whatever was given."""
    is_wrong = jnp.bool_(False) if is_blocking else ~is_stream(card, stream)
    return first_code((is_wrong, Code.RT_STREAM_CONTEXT))


def granules(place: Range) -> jax.Array:
    """Return the length in granules, rounded up."""
    return place.whole + (place.rest > 0)


def is_empty(place: Range) -> jax.Array:
    """Return whether a range has no bytes."""
    return (place.whole == 0) & (place.rest == 0)


def submit(
    card: CardState, command: Command, code: jax.Array, is_idle: jax.Array, stream: Number, is_blocking: bool
) -> tuple[CardState, jax.Array]:
    """Charge the host, enqueue unless there is nothing to do, and answer."""
    is_idle &= code == Code.SUCCESS
    card = spend(card, card.chip["host_copy_sync_ns" if is_blocking else "host_copy_enqueue_ns"])
    card, queued = enqueue(card, command, jnp.where(is_idle, layout.NONE, code))
    return answer(card, jnp.where(is_idle, Code.SUCCESS, queued), command.fields[Field.SITE], stream)


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
    card = make_room(card, site)
    to, start = byte_range(dst, dst_offset, nbytes), byte_range(src, src_offset, nbytes)
    card = _copy(card, to, start, layout.NONE, site, is_blocking=True)
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
    card = make_room(card, site)
    to, start = byte_range(dst, dst_offset, nbytes), byte_range(src, src_offset, nbytes)
    return _copy(card, to, start, stream, site, is_blocking=False)


@verb
def memset(
    card: CardState, dst: Number, value: Number, nbytes: Number, *, dst_offset: Number = 0, site: Site = None
) -> CardState:
    """Fill ``nbytes`` bytes with the low byte of ``value`` and block until it is done (``aclrtMemset``)."""
    card = make_room(card, site)
    card = _set(card, byte_range(dst, dst_offset, nbytes), value, layout.NONE, site, is_blocking=True)
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
    card = make_room(card, site)
    return _set(card, byte_range(dst, dst_offset, nbytes), value, stream, site, is_blocking=False)
