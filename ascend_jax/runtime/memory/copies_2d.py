"""Copies of rows: one command moves ``height`` rows of ``width`` bytes between two pitches."""

import jax.numpy as jnp

from ascend_jax.runtime import layout
from ascend_jax.runtime.advance import Goal
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, host_stream, operand_rows
from ascend_jax.runtime.edge import Site, concrete, stage, verb
from ascend_jax.runtime.layout import Field, Kind, Pitch
from ascend_jax.runtime.memory.copies import check_copy, submit, transfer, wait_if_pageable
from ascend_jax.runtime.ranges import address, is_device, is_host, overlaps, rows_meet, rows_range, starts_at
from ascend_jax.runtime.refusals import copy_given, first_if, rows_given
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import make_room, settle
from ascend_jax.runtime.translation import translate

MOST_WIDTH, MOST_HEIGHT = 5_000_000, 5_242_880  # of an asynchronous copy (CANN, aclrtMemcpy2dAsync)

NO_ROWS_INSIDE = frozenset({"310", "310B", "310P", "910 first gen"})  # rows inside the device: from A2 on (CANN)


@stage(static=("is_blocking", "is_traced"))
def _copy_rows(
    card: CardState,
    pointers: tuple[Number, Number],
    shape: tuple[Number, Number, Number, Number],
    stream: Number,
    site: Number,
    *,
    is_blocking: bool,
    is_traced: bool,
) -> tuple:
    dst_pitch, src_pitch, width, height = (jnp.asarray(number, jnp.int32) for number in shape)
    spans = tuple(
        rows_range(pointer, pitch, width, height)
        for pointer, pitch in zip(pointers, (dst_pitch, src_pitch), strict=True)
    )
    payload = rows_range(layout.NULL, width, width, height)
    dst, src = (translate(card, span) for span in spans)
    is_wide = (width > dst_pitch) | (width > src_pitch)
    is_large = (width > MOST_WIDTH) | (height > MOST_HEIGHT)
    is_alike = (dst_pitch == src_pitch) | (height <= 1)
    same = starts_at(dst, src) & is_alike
    meet = jnp.where(is_alike, rows_meet(dst, src, dst_pitch, width, height), overlaps(dst, src))
    code, slot = check_copy(card, dst, src, stream, is_blocking, is_traced, meet & ~same)
    on_device = is_device(dst.pointer) & is_device(src.pointer)
    rules = first_code(
        ((width < 0) | (height < 0) | is_wide, Code.INVALID_PARAM),
        (is_large & (not is_blocking), Code.RT_PARAM_INVALID),
        (on_device & (card.chip.family in NO_ROWS_INSIDE), Code.FEATURE_NOT_SUPPORT),
    )
    moving = transfer(card, payload.as_int32(), is_host(dst.pointer), is_host(src.pointer))
    pitches = {Pitch.DST: dst_pitch, Pitch.SRC: src_pitch, Pitch.WIDTH: width, Pitch.ROWS: height}
    moving["fields"] |= {Field.SCALARS + column: number for column, number in pitches.items()}
    command = Command(Kind.COPY, slot, operands=operand_rows(dst, src), writes=1 << 0, reads=1 << 1, **moving)
    is_idle = (width == 0) | (height == 0) | same
    given = first_if(rules != Code.SUCCESS, rows_given(*shape), copy_given(*spans))
    code = first_failing(rules, code)
    return submit(card, command, code, is_idle, site, is_blocking, stream=stream, given=given)[0], spans


@verb
def memcpy2d(
    card: CardState,
    dst: Number,
    dst_pitch: Number,
    src: Number,
    src_pitch: Number,
    width: Number,
    height: Number,
    *,
    site: Site = None,
) -> CardState:
    """Copy ``height`` rows of ``width`` bytes and block the host until they have arrived (``aclrtMemcpy2d``).

    Rows begin ``dst_pitch`` and ``src_pitch`` bytes apart; what lies between them stays as it is. It takes as long as a
    copy of ``width * height`` bytes.

    Status as :func:`memcpy` for the two spans from first to last byte; 100000 for a width above a pitch or a negative
    count (CANN, aclrtMemcpy2d). Rows of one pitch may lie between each other as long as no byte is both read and
    written; with two pitches the spans must not overlap (107000; that code is this runtime's choice).
    207000 for rows inside the device on products before A2, which do not copy them (the code is this runtime's choice).

    >>> import numpy as np
    >>> import ascend_jax as aj
    >>> card, ptr = aj.malloc(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 20), 128)
    >>> card = aj.upload(card, ptr, np.arange(64, dtype=np.uint8))
    >>> card = aj.memcpy2d(card, ptr + 1, 3, ptr, 8, 2, 4)
    >>> card, rows = aj.download(card, ptr + 1, (11,), "uint8")
    >>> rows.tolist()
    [0, 1, 0, 8, 9, 0, 16, 17, 0, 24, 25]
    """
    card, shape = make_room(card, site), (dst_pitch, src_pitch, width, height)
    card, _ = _copy_rows(
        card, (address(dst), address(src)), shape, layout.NONE, site, is_blocking=True, is_traced=False
    )
    return settle(card, Goal(stream=host_stream(card)), site)


@verb
def memcpy2d_async(
    card: CardState,
    dst: Number,
    dst_pitch: Number,
    src: Number,
    src_pitch: Number,
    width: Number,
    height: Number,
    stream: Number,
    *,
    site: Site = None,
) -> CardState:
    """Queue a copy of rows in ``stream`` (``aclrtMemcpy2dAsync``).

    Status as :func:`memcpy2d` and :func:`memcpy_async`; 107000 for a width above 5,000,000 or a height above 5,242,880.
    """
    is_traced = concrete(card.host.words) is None
    card, shape = make_room(card, site, stream), (dst_pitch, src_pitch, width, height)
    card, spans = _copy_rows(
        card, (address(dst), address(src)), shape, stream, site, is_blocking=False, is_traced=is_traced
    )
    return wait_if_pageable(card, spans, stream, site)
