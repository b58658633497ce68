"""Copies and fills. The direction comes from the addresses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import clock, layout
from ascend_jax.runtime.advance import Goal
from ascend_jax.runtime.capture_rules import illegal_blocking
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, at_least_1ns, enqueue, host_stream, operand_rows
from ascend_jax.runtime.edge import Site, concrete, stage, verb
from ascend_jax.runtime.handles import find_stream, has_context
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import Field, HeapEntry, HeapFlag, HeapWord, Kind, Resource, Stream
from ascend_jax.runtime.ranges import Range, byte_range, granules, is_empty, is_host, overlaps, starts_at
from ascend_jax.runtime.refusals import Given, copy_given, range_given
from ascend_jax.runtime.rows import Number, get_row
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing, last_code
from ascend_jax.runtime.synchronize import make_room, settle
from ascend_jax.runtime.translation import translate
from ascend_jax.runtime.usable import check_range

PIECE = (64 << 20) // layout.GRANULE_BYTES  # granules


def transfer(card: CardState, place: Range, to_host: jax.Array, from_host: jax.Array) -> dict:
    """Return the arguments of a :class:`Command` that moves the bytes of ``place`` in a direction.

    A copy between host and device is split into pieces of 64 MiB, which an engine serves one by one; inside the device
    it is one SDMA task (CANN runtime, task scheduler). A piece takes latency + bytes / rate in float32, rounded up to
    ns; of a copy in pieces all are equally long.
    """
    is_h2d, is_d2h = from_host & ~to_host, to_host & ~from_host
    is_inside = ~to_host & ~from_host
    need = {Resource.H2D: is_h2d, Resource.D2H: is_d2h, Resource.D2D: is_inside}
    h2d, d2h, d2d, hbm_rate, latency_ns = (
        card.chip[name]
        for name in ("h2d_bytes_per_s", "d2h_bytes_per_s", "d2d_bytes_per_s", "hbm_bytes_per_s", "copy_latency_ns")
    )
    # host to host is the CPU's own work; it is taken to be as fast as the link
    rate = jnp.where(is_d2h, d2h, jnp.where(to_host | from_host, h2d, d2d))
    pieces = jnp.where(is_h2d | is_d2h, jnp.maximum((granules(place) + PIECE - 1) // PIECE, 1), 1)
    nbytes = (place.whole * jnp.float32(layout.GRANULE_BYTES) + place.rest) / pieces
    piece_ns = latency_ns + nbytes * (1e9 / rate)
    drawn = jnp.where(is_inside, 2.0, jnp.where(to_host & from_host, 0.0, 1.0)) * nbytes * 1e9 / piece_ns
    return {
        "block": at_least_1ns(clock.from_ns(piece_ns)),
        "blocks": pieces,
        "need": need,
        "fields": {
            Field.HBM_SHARE: jnp.clip(jnp.floor(layout.SHARES * drawn / hbm_rate), 0, layout.SHARES - 1),
            Field.MOVED: granules(place),
        },
    }


@stage(static=("is_blocking", "is_traced"))
def _copy(
    card: CardState, dst: Range, src: Range, stream: Number, site: Number, *, is_blocking: bool, is_traced: bool = False
) -> CardState:
    given, dst, src = copy_given(dst, src), translate(card, dst), translate(card, src)
    same = starts_at(dst, src)
    code, slot = check_copy(card, dst, src, stream, is_blocking, is_traced, overlaps(dst, src) & ~same)
    moving = transfer(card, dst, is_host(dst.pointer), is_host(src.pointer))
    command = Command(Kind.COPY, slot, operands=operand_rows(dst, src), writes=1 << 0, reads=1 << 1, **moving)
    return submit(card, command, code, is_empty(dst) | same, site, is_blocking, stream=stream, given=given)[0]


def check_copy(
    card: CardState,
    dst: Range,
    src: Range,
    stream: Number,
    is_blocking: bool,
    is_traced: bool,
    is_overlapping: jax.Array,
) -> tuple[jax.Array, Number]:
    """Return (code, slot) of a copy between two ranges in normal form; ``is_overlapping``: it writes what it reads."""
    to_host, from_host = is_host(dst.pointer), is_host(src.pointer)
    code, slot = find_queue(card, stream, is_blocking)
    if not is_blocking:
        code = first_failing(code, first_code((to_host & from_host, Code.FEATURE_NOT_SUPPORT)))
        is_pageable = is_pageable_at(card, dst) | is_pageable_at(card, src)
        is_captured = get_row(card.streams, jnp.asarray(slot))[Stream.CAPTURE] != layout.Capture.NONE
        code = first_failing(
            code,
            first_code(
                (is_pageable & is_captured, Code.RT_CAPTURE_MODE_BLOCK_ASYNC),
                (is_pageable & is_traced, Code.FEATURE_NOT_SUPPORT),
            ),
        )
    ranges = first_failing(check_range(card, dst), check_range(card, src))
    overlap = first_code((is_overlapping, Code.RT_PARAM_INVALID))
    return first_failing(code, ranges, overlap), slot


def is_pageable_at(card: CardState, place: Range) -> jax.Array:
    """Return whether a range lies in host memory that is not pinned."""
    blocks = card.host.blocks
    ahead = place.pointer - blocks[HeapEntry.START]
    is_it = (blocks[HeapEntry.START] <= place.pointer) & (ahead < blocks[HeapEntry.SIZE])
    is_unpinned = (blocks[HeapEntry.FLAGS] & (HeapFlag.PAGEABLE | HeapFlag.REGISTERED)) == HeapFlag.PAGEABLE
    live = jnp.arange(blocks.shape[1]) < card.host.words[HeapWord.COUNT]
    return (live & is_it & is_unpinned).any() & is_host(place.pointer)


@stage(static=("is_blocking",))
def _set(card: CardState, dst: Range, value: Number, stream: Number, site: Number, *, is_blocking: bool) -> CardState:
    given, dst = range_given(dst), translate(card, dst)
    to_host = is_host(dst.pointer)
    code, slot = find_queue(card, stream, is_blocking)
    code = first_failing(code, check_range(card, dst))
    filling = transfer(card, dst, to_host, to_host)
    filling["fields"] |= {Field.FILL: jnp.asarray(value) & 255}
    command = Command(Kind.MEMSET, slot, operands=operand_rows(dst), writes=1 << 0, **filling)
    return submit(card, command, code, is_empty(dst), site, is_blocking, stream=stream, given=given)[0]


def find_queue(card: CardState, stream: Number, is_blocking: bool) -> tuple[jax.Array, Number]:
    """Return (code, slot): a blocking call runs on the host's own stream, whatever was given."""
    if not is_blocking:
        return find_stream(card, stream)
    code = first_code((~has_context(card), Code.RT_CONTEXT_NULL))
    return first_failing(code, illegal_blocking(card)), host_stream(card)


def submit(
    card: CardState,
    command: Command,
    code: jax.Array,
    is_idle: jax.Array,
    site: Number,
    is_blocking: bool,
    *,
    stream: Number = layout.NONE,
    given: Given | None = None,
) -> tuple[CardState, jax.Array]:
    """Charge the host, enqueue unless there is nothing to do, and answer.

    ``stream`` is the handle, NONE for a blocking call, and ``given`` are the ranges; both are for the message.
    """
    command = dataclasses.replace(command, fields=command.fields | {Field.SITE: site})
    is_idle &= code == Code.SUCCESS
    card = spend(card, card.chip["host_copy_sync_ns" if is_blocking else "host_copy_enqueue_ns"])
    card, queued = enqueue(card, command, jnp.where(is_idle, layout.NONE, code))
    return answer(card, jnp.where(is_idle, Code.SUCCESS, queued), site, stream, given=given)


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
      The card. Status 100000 for a null pointer, 107000 for a range outside every live block, a negative count, or two
      ranges of which one begins inside the other.
    """
    card = make_room(card, site)
    to, start = byte_range(dst, dst_offset, nbytes), byte_range(src, src_offset, nbytes)
    card = _copy(card, to, start, layout.NONE, site, is_blocking=True)
    return settle(card, Goal(stream=host_stream(card)), site)


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
    """Queue a copy in ``stream`` (``aclrtMemcpyAsync``).

    Between device and pinned host memory (``malloc_host``) the call returns at once. With pageable host memory
    (``malloc_pageable``) it waits for the stream and the copy, as CANN does; under ``jit``, where no call can wait for
    what depends on a pointer, it answers 207000, and 107041 in a captured stream.

    Status as :func:`memcpy`, and 107003 for an unknown stream, 207000 for host to host.
    """
    card = make_room(card, site, stream)
    to, start = byte_range(dst, dst_offset, nbytes), byte_range(src, src_offset, nbytes)
    is_traced = concrete(card.host.words) is None
    card = _copy(card, to, start, stream, site, is_blocking=False, is_traced=is_traced)
    return wait_if_pageable(card, (to, start), stream, site)


def wait_if_pageable(card: CardState, places: tuple[Range, Range], stream: Number, site: Site) -> CardState:
    """Block the host until the stream is done if a copy just queued in it touches pageable memory."""
    flags = concrete(card.host.blocks[..., HeapEntry.FLAGS, :])
    if flags is None or not (flags & HeapFlag.PAGEABLE).any():
        return card
    touched = [concrete(is_pageable_at(card, place.as_int32())) for place in places]
    if any(one is None for one in touched) or not any(touched) or int(last_code(card)) != Code.SUCCESS:
        return card
    return settle(card, Goal(stream=find_stream(card, stream)[1]), site)


def _low_byte(value: Number) -> Number:
    """Return what of a fill value counts; a Python int may have any size."""
    return value & 255 if isinstance(value, int | np.integer) else value


@verb
def memset(
    card: CardState, dst: Number, value: Number, nbytes: Number, *, dst_offset: Number = 0, site: Site = None
) -> CardState:
    """Fill ``nbytes`` bytes with the low byte of ``value`` and block until it is done (``aclrtMemset``)."""
    card = make_room(card, site)
    card = _set(card, byte_range(dst, dst_offset, nbytes), _low_byte(value), layout.NONE, site, is_blocking=True)
    return settle(card, Goal(stream=host_stream(card)), site)


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
    card = make_room(card, site, stream)
    return _set(card, byte_range(dst, dst_offset, nbytes), _low_byte(value), stream, site, is_blocking=False)
