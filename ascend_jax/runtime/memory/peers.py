"""Copies between two cards of one server: over their direct link where access is enabled, else through the host."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip import links
from ascend_jax.runtime import clock, layout, status
from ascend_jax.runtime.advance import Goal
from ascend_jax.runtime.clock import Instant
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.commands import Command, answer, at_least_1ns, host_stream, operand_rows
from ascend_jax.runtime.edge import Site, concrete, stage, verb
from ascend_jax.runtime.handles import has_context
from ascend_jax.runtime.host import host_now, set_host
from ascend_jax.runtime.layout import Device, Field, Kind, Resource
from ascend_jax.runtime.memory.copies import find_queue, submit
from ascend_jax.runtime.memory.transfers import load_bytes, move_array, store_bytes
from ascend_jax.runtime.ranges import Range, byte_range, granules, is_empty, is_host
from ascend_jax.runtime.refusals import range_given
from ascend_jax.runtime.rows import Number, with_entries
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import first_code, first_failing
from ascend_jax.runtime.synchronize import make_room, settle
from ascend_jax.runtime.translation import translate
from ascend_jax.runtime.usable import check_range

MOST_DEVICES = 31


def can_access_peer(card: CardState, peer: CardState) -> bool:
    """Return whether two cards have a direct link (``aclrtDeviceCanAccessPeer``): those of one family have."""
    return card.chip.family == peer.chip.family


@stage(static=("is_on",), changes=("device", "status"), reads=("chip", "contexts"))
def _set_access(card: CardState, device: Number, site: Number, *, is_on: bool) -> CardState:
    device = jnp.asarray(device, jnp.int32)
    bit = jnp.int32(1) << jnp.clip(device, 0, MOST_DEVICES - 1)
    peers = card.device[Device.PEERS]
    has_it = (peers & bit) != 0
    code = first_code(
        (~has_context(card), Code.RT_CONTEXT_NULL),
        ((device < 0) | (device >= MOST_DEVICES), Code.RT_INVALID_DEVICEID),
        (has_it == is_on, Code.RT_PARAM_INVALID),
    )
    peers = jnp.where(code == Code.SUCCESS, peers ^ bit, peers)
    card = dataclasses.replace(card, device=with_entries(card.device, {Device.PEERS: peers}))
    return status.note(card, code, site)


@verb
def enable_peer_access(card: CardState, device: Number, *, site: Site = None) -> CardState:
    """Let this card reach the memory of another (``aclrtDeviceEnablePeerAccess``).

    Status 107002 without a current context, 107001 for a device number below 0 or above 30, 107000 if it is enabled.
    """
    return _set_access(card, device, site, is_on=True)


@verb
def disable_peer_access(card: CardState, device: Number, *, site: Site = None) -> CardState:
    """End it (``aclrtDeviceDisablePeerAccess``); status as enabling, 107000 if it is not enabled."""
    return _set_access(card, device, site, is_on=False)


def peer_access_status(card: CardState, device: int) -> jax.Array:
    """Return 1 if access to a device is enabled, else 0 (``aclrtDevicePeerAccessStatus``)."""
    return (card.device[..., Device.PEERS] >> device) & 1


@stage
def _refusal(card: CardState, place: Range, wrong: Number, site: Number) -> tuple:
    """Say what is wrong with one side, before anything is queued; return (card, code)."""
    given, place = range_given(place), translate(card, place)
    on_host = first_code((is_host(place.pointer), Code.RT_PARAM_INVALID))
    code = first_failing(find_queue(card, layout.NONE, True)[0], on_host, check_range(card, place), jnp.asarray(wrong))
    return answer(card, code, site, layout.NONE, given=given)


@stage(static=("path",))
def _hold(card: CardState, place: Range, is_written: bool | jax.Array, site: Number, *, path: str) -> CardState:
    """Hold one card's copy engine for as long as the link needs."""
    place, is_written = translate(card, place), jnp.asarray(is_written)
    code, slot = find_queue(card, layout.NONE, True)
    nbytes = place.whole * jnp.float32(layout.GRANULE_BYTES) + place.rest
    block_ns = links.copy_between_ns(card.chip, nbytes, path)
    drawn = nbytes * 1e9 / block_ns / card.chip["hbm_bytes_per_s"]
    command = Command(
        Kind.COPY,
        slot,
        block=at_least_1ns(clock.from_ns(block_ns)),
        need={Resource.D2D: 1},
        operands=operand_rows(place),
        writes=is_written,
        reads=~is_written,
        has_effect=False,
        fields={
            Field.HBM_SHARE: jnp.clip(jnp.floor(layout.SHARES * drawn), 0, layout.SHARES - 1),
            Field.MOVED: granules(place),
        },
    )
    return submit(card, command, code, is_empty(place), site, is_blocking=True)[0]


@stage(reads=(), changes=("clock",))
def _join_clock(card: CardState, hi: Number, lo: Number) -> CardState:
    return set_host(card, clock.later(host_now(card), Instant(jnp.asarray(hi), jnp.asarray(lo))))


def _joined(one: CardState, other: CardState) -> tuple[CardState, CardState]:
    """Return both cards with the host, which is one program, where it stands latest."""
    one = _join_clock(one, *host_now(other))
    return one, _join_clock(other, *host_now(one))


@verb
def memcpy_peer(
    dst_card: CardState,
    dst: Number,
    src_card: CardState,
    src: Number,
    nbytes: int,
    *,
    src_device: int,
    dst_device: int = 0,
    site: Site = None,
) -> tuple[CardState, CardState]:
    """Copy between the device memories of two cards and block the host until it is done.

    If ``dst_card`` has access to ``src_device`` enabled, the bytes go over the path that joins the two (see
    :func:`~ascend_jax.chip.links.path_between`) and hold the copy engine of both cards. If not, they go through host
    memory that is not pinned: a download, then an upload. Both cards are driven by one host program, so both clocks end
    at the same moment.

    Args:
      dst_card: The card to write to.
      dst: Device pointer there.
      src_card: The card to read from; another one than ``dst_card``.
      src: Device pointer there.
      nbytes: Bytes.
      src_device: Number of ``src_card`` in the server, as given to :func:`enable_peer_access`.
      dst_device: Number of ``dst_card`` there.
      site: Call site, filled in by the runtime.

    Returns:
      Both cards. The status of each says what is wrong with its own range, as :func:`memcpy`; if one refuses, nothing
      is copied and no time passes. 107001 for a device number below 0 or above 30, 207000 if access is enabled and the
      cards have no direct link. Bytes move if both cards have values.

    Raises:
      ValueError: The call is traced; whether access is enabled must be known. Or both numbers are the same.
    """
    if src_device == dst_device:
        raise ValueError(f"src_device = dst_device = {src_device}: give the numbers of two cards")
    known = all(0 <= device < MOST_DEVICES for device in (src_device, dst_device))
    access = concrete(peer_access_status(dst_card, src_device)) if known else np.int32(0)
    if access is None or concrete(src_card.clock) is None:
        raise ValueError("memcpy_peer is a call of the host: make it outside jit")
    dst_card, src_card = _joined(dst_card, src_card)
    has_link = not access or can_access_peer(dst_card, src_card)
    wrong = Code.RT_INVALID_DEVICEID if not known else Code.SUCCESS if has_link else Code.FEATURE_NOT_SUPPORT
    to, start = byte_range(dst, 0, nbytes), byte_range(src, 0, nbytes)
    src_card, src_code = _refusal(src_card, start, int(wrong), site)
    dst_card, dst_code = _refusal(dst_card, to, int(wrong), site)
    if int(src_code) or int(dst_code):
        return _joined(dst_card, src_card)
    if access:
        path = links.path_between(dst_card.chip, src_device, dst_device)
        src_card = _hold(make_room(src_card, site), start, False, site, path=path)
        dst_card = _hold(make_room(dst_card, site), to, True, site, path=path)
        src_card = settle(src_card, Goal(stream=host_stream(src_card)), site)
        dst_card = settle(dst_card, Goal(stream=host_stream(dst_card)), site)
    else:
        src_card = move_array(src_card, start, False, site)
        dst_card, src_card = _joined(dst_card, src_card)
        dst_card = move_array(dst_card, to, True, site)
    if nbytes and src_card.has_values and dst_card.has_values:
        dst_card = store_bytes(dst_card, to, load_bytes(src_card, start, nbytes))
    return _joined(dst_card, src_card)
