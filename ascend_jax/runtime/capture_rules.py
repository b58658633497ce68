"""What may not be called while a capture is under way. These are answers to refuse with; 0 is "go ahead"."""

import enum

import jax
import jax.numpy as jnp

from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.layout import Capture, Device, Event, Stream, Thread
from ascend_jax.runtime.rows import Number, get_row
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code


class CaptureMode(enum.IntEnum):
    """Who may make calls that block or run at once while a capture is active (``aclmdlRICaptureMode``)."""

    GLOBAL = 0  # nobody
    THREAD_LOCAL = 1  # every thread but the one that captures
    RELAXED = 2  # everybody


def illegal_sync(card: CardState, slot: Number) -> jax.Array:
    """Return why the host may not wait for or ask about a stream now, in whatever mode.

    107027 if the stream is captured; for all streams (a negative ``slot``), if any of them is (hicann/runtime
    ``context.cc``, ``Context::Synchronize``). Streams outside the capture can be waited for.
    """
    captured = card.streams[:, Stream.CAPTURE] != Capture.NONE
    slot = jnp.asarray(slot, jnp.int32)
    is_meant = (jnp.arange(captured.shape[0]) == slot) | (slot < 0)
    return first_code(((captured & is_meant).any(), Code.RT_STREAM_CAPTURED))


def illegal_event(card: CardState, row: Number) -> jax.Array:
    """Return why the host may not wait for or ask about an event now: 107028 if its record belongs to a capture."""
    return first_code((get_row(card.events, row)[Event.CAPTURED] == 1, Code.RT_EVENT_CAPTURED))


def illegal_blocking(card: CardState) -> jax.Array:
    """Return why the current thread may not call memset, memcpy or memcpy2d now, nor copy pageable memory.

    107030 while any stream is captured in mode GLOBAL, or by this thread in mode THREAD_LOCAL (CANN,
    ``aclmdlRICaptureBegin``). A thread whose own mode is THREAD_LOCAL minds its own captures only, one whose mode is
    RELAXED none (``aclmdlRICaptureThreadExchangeMode``).
    """
    captured = card.streams[:, Stream.CAPTURE] != Capture.NONE
    mode, thread = card.streams[:, Stream.CAPTURE_MODE], card.streams[:, Stream.CAPTURE_THREAD]
    minded = get_row(card.threads, card.device[Device.THREAD])[Thread.CAPTURE_MODE]
    is_own = (mode != CaptureMode.RELAXED) & (thread == card.device[Device.THREAD])
    is_global = (mode == CaptureMode.GLOBAL) & (minded == CaptureMode.GLOBAL)
    is_forbidden = captured & (is_global | is_own) & (minded != CaptureMode.RELAXED)
    return first_code((is_forbidden.any(), Code.RT_CAPTURE_MODE_NOT_SUPPORT))
