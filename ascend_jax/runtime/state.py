"""``CardState``: everything that changes on one card, as one immutable pytree of few arrays."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.runtime import layout
from ascend_jax.runtime.coupling import Coupling
from ascend_jax.runtime.edge import concrete
from ascend_jax.runtime.kernels import KernelSpec
from ascend_jax.runtime.layout import (
    Context,
    Device,
    Event,
    Fault,
    Field,
    Freed,
    HeapWord,
    Operand,
    Phase,
    Pool,
    StatusWord,
    Stream,
    Thread,
    Time,
    Virtual,
)

CHUNK_BYTES = 1 << 16  # data moves in chunks of this size; the byte arrays carry one chunk of slack


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CommandTable:
    """The latest N commands of a card: number ``sequence`` is in row ``sequence % N``; row N is the trash row."""

    fields: jax.Array  # int32 [N + 1, FIELDS], written at enqueue
    operands: jax.Array  # int32 [N + 1, P, len(Operand)], byte ranges
    times: jax.Array  # int32 [N + 1, len(Time)], written by the engine
    effects: jax.Array  # int32 [N + 1], how much of the data effect is in memory (Effect)

    @property
    def rows(self) -> int:
        """N, the number of commands the table can hold."""
        return int(self.fields.shape[-2]) - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Heap:
    """Live blocks of one memory, sorted by address, so that gaps are differences."""

    blocks: jax.Array  # int32 [len(HeapEntry), M], granules; unused columns start at 2**31 - 1
    words: jax.Array  # int32 [len(HeapWord)], granules


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CardState:
    """One simulated card. Letters: S streams, E events, T notifies, N commands, ... (see ``layout``).

    ``memory`` holds the visible bytes: first the HBM that is backed by real bytes, then pinned host memory, then what
    expandable segments hold, then a chunk of slack. ``shadow`` has the same addresses and holds what running commands
    have computed and not published: a command reads its inputs when it starts and its outputs become visible when it
    ends.
    """

    chip: ChipSpec
    hbm: Heap
    host: Heap
    table: CommandTable
    streams: jax.Array  # int32 [S + 1, len(Stream)]
    events: jax.Array  # int32 [E + T, len(Event)], events, then notifies
    values: jax.Array  # int32 [V, 2], granule and byte offset of the addresses that value waits look at; 0 = unused
    cells: jax.Array  # int32 [C, 2], high and low word; C = E + T + V + (S + 1) + H
    contexts: jax.Array  # int32 [X, len(Context)]
    threads: jax.Array  # int32 [H, len(Thread)]
    faults: jax.Array  # int32 [F, len(Fault)]
    freed: jax.Array  # int32 [G + 1, len(Freed)]
    early: jax.Array  # int32 [G + 1, len(Early)]
    pools: jax.Array  # int32 [L, len(Pool)]
    virtual: jax.Array  # int32 [W, len(Virtual)]
    device: jax.Array  # int32 [len(Device)]
    clock: jax.Array  # int32 [len(Clock)], the current thread's host time and the device's
    status: jax.Array  # int32 [STATUS_WORDS]
    memory: jax.Array  # uint8 [bytes of HBM + of pinned memory + of segments + CHUNK_BYTES]
    shadow: jax.Array  # uint8, like memory
    kernels: tuple[KernelSpec, ...] = dataclasses.field(metadata={"static": True})
    max_events: int = dataclasses.field(metadata={"static": True})  # E
    has_values: bool = dataclasses.field(metadata={"static": True})  # commands move real bytes; else times only
    donate: bool = dataclasses.field(metadata={"static": True})
    coupling: Coupling | None = dataclasses.field(default=None, metadata={"static": True})  # of a card of a cluster


def init(
    chip: ChipSpec,
    *,
    hbm_backing_bytes: int = 64 << 20,
    host_backing_bytes: int = 1 << 20,
    max_streams: int = 64,
    max_events: int = 64,
    max_notifies: int = 16,
    max_values: int = 16,
    max_contexts: int = 8,
    max_threads: int = 8,
    max_faults: int = 8,
    max_commands: int = 512,
    max_blocks: int = 256,
    max_freed: int = 32,
    max_pools: int = 4,
    max_mappings: int = 32,
    donate: bool = False,
) -> CardState:
    """Return a card that has just been set up: empty memory, one default stream (handle 0), clock at 0.

    Args:
      chip: What the card is; see :func:`ascend_jax.chip`.
      hbm_backing_bytes: How much of the HBM, from its first allocatable byte, holds real bytes; 0 = times only.
      host_backing_bytes: Pinned host memory available to ``malloc_host``.
      max_streams: Stream slots S, at most what the product allows.
      max_events: Event slots E, at most what the product allows.
      max_notifies: Notify slots T, at most what the product allows.
      max_values: Addresses V that ``value_wait`` can look at.
      max_contexts: Contexts X, the primary one included.
      max_threads: Host threads H, the first one included.
      max_faults: Failures F that can be planned at one time.
      max_commands: Rows N of the command table, rounded up to a power of two; the timeline shows the latest N commands.
      max_blocks: Live allocations M per memory.
      max_freed: Frees G that are remembered for :func:`freed_in_use`, and accesses for :func:`early_accesses`.
      max_pools: Memory pools L.
      max_mappings: Reservations of virtual addresses, mappings, and mapped ranges of expandable segments W.
      donate: If true, every call consumes the card that it is given and works in its buffers; otherwise old cards
        stay valid, and a call that changes memory contents copies them.

    Raises:
      ValueError: A size is not positive or above its limit; the message names it.

    >>> import ascend_jax as aj
    >>> card = aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 20)
    >>> card.chip.name
    'Ascend910B2'
    """
    if not isinstance(chip, ChipSpec):
        raise TypeError(f"chip = {chip!r}: expected a ChipSpec; write aj.init(aj.chip('Ascend910B2'))")
    sizes = {
        "max_streams": (max_streams, 1, 1 << 15),
        "max_events": (max_events, 1, 1 << 17),
        "max_notifies": (max_notifies, 1, 1 << 16),
        "max_values": (max_values, 1, 1 << 16),
        "max_contexts": (max_contexts, 1, 1 << 10),
        "max_threads": (max_threads, 1, 1 << 10),
        "max_faults": (max_faults, 1, 1 << 16),
        "max_commands": (max_commands, 2, 1 << 22),
        "max_blocks": (max_blocks, 1, 1 << 20),
        "max_freed": (max_freed, 1, 1 << 20),
        "max_pools": (max_pools, 0, 1 << 8),
        "max_mappings": (max_mappings, 1, 1 << 16),
        "hbm_backing_bytes": (hbm_backing_bytes, 0, (2**31 - 1) - CHUNK_BYTES),
        "host_backing_bytes": (host_backing_bytes, 0, (2**31 - 1) - CHUNK_BYTES),
    }
    for name, (value, least, most) in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
            raise ValueError(f"{name} = {value!r}: must be an integer from {least} to {most}")
    if hbm_backing_bytes + host_backing_bytes > 2**31 - 1 - CHUNK_BYTES:
        raise ValueError(
            f"hbm_backing_bytes + host_backing_bytes = {hbm_backing_bytes + host_backing_bytes}: at most "
            f"{2**31 - 1 - CHUNK_BYTES} bytes can be real"
        )
    _check_product_limits(chip, max_streams, max_events, max_notifies, hbm_backing_bytes)
    hbm_backing_bytes = _whole_granules(hbm_backing_bytes)
    host_backing_bytes = _whole_granules(host_backing_bytes)
    max_commands = 1 << (max_commands - 1).bit_length()
    nbytes = hbm_backing_bytes + host_backing_bytes + CHUNK_BYTES
    streams = _filled(max_streams + 1, layout.FRESH_HEAD | layout.NAMELESS, len(Stream))
    streams[:, [Stream.HEAD, Stream.LAST]] = max_commands
    streams[[0, max_streams], Stream.ALIVE] = 1  # the default stream, and the host's own
    events = _filled(max_events + max_notifies, layout.UNUSED_EVENT, len(Event))
    contexts = _filled(max_contexts, {Context.STREAM: layout.NONE}, len(Context))
    contexts[0] = (1, 0, 0)  # the primary context with the default stream
    threads = _filled(max_threads, {Thread.CONTEXT: layout.NONE}, len(Thread))
    threads[0, [Thread.ALIVE, Thread.CONTEXT]] = (1, 0)
    device = np.zeros(len(Device), np.int32)
    device[[Device.USERS, Device.OP_TIMEOUT_HI]] = 1, layout.NONE
    backing = hbm_backing_bytes // layout.GRANULE_BYTES, host_backing_bytes // layout.GRANULE_BYTES
    device[[Device.HBM_BACKING, Device.HOST_BACKING]] = backing
    status = np.zeros(layout.STATUS_WORDS, np.int32)
    status[StatusWord.STREAM] = layout.NONE
    granules = chip["hbm_bytes"] / layout.GRANULE_BYTES
    hbm_end = jnp.floor(granules).astype(jnp.int32) if concrete(granules) is None else min(int(granules), 2**31 - 1)
    host_end = layout.HOST_BASE + host_backing_bytes // layout.GRANULE_BYTES
    return CardState(
        chip=jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), chip),
        hbm=_empty_heap(max_blocks, layout.HBM_BASE, hbm_end),
        host=_empty_heap(max_blocks, layout.HOST_BASE, host_end),
        table=_empty_table(max_commands),
        streams=jax.device_put(streams),
        events=jax.device_put(events),
        values=_zeros(max_values, 2),
        cells=_zeros(max_events + max_notifies + max_values + max_streams + 1 + max_threads, 2),
        contexts=jax.device_put(contexts),
        threads=jax.device_put(threads),
        faults=jax.device_put(_filled(max_faults, {Fault.SEQUENCE: layout.NONE}, len(Fault))),
        freed=_zeros(max_freed + 1, len(Freed)),
        early=_zeros(max_freed + 1, len(layout.Early)),
        pools=_zeros(max_pools, len(Pool)),
        virtual=_zeros(max_mappings, len(Virtual)),
        device=jax.device_put(device),
        clock=_zeros(len(layout.Clock)),
        status=jax.device_put(status),
        memory=jnp.zeros(nbytes if hbm_backing_bytes else 0, jnp.uint8),
        shadow=jnp.zeros(nbytes if hbm_backing_bytes else 0, jnp.uint8),
        kernels=(),
        max_events=max_events,
        has_values=hbm_backing_bytes > 0,
        donate=donate,
    )


def require_single(card: CardState) -> None:
    """Refuse a batch of cards where one is meant.

    Raises:
      ValueError: The card has batch axes; the message says how to pick a lane.
    """
    if card.streams.ndim != 2:
        raise ValueError(
            f"card has batch axes {card.streams.shape[:-2]}: pick one lane first, jax.tree.map(lambda x: x[0], card)"
        )


def _check_product_limits(
    chip: ChipSpec, max_streams: int, max_events: int, max_notifies: int, backing_bytes: int
) -> None:
    if chip.values.ndim != 1:
        raise ValueError(f"chip has batch axes {chip.values.shape[:-1]}: init one card at a time, under jax.vmap")
    hbm = concrete(chip["hbm_bytes"])
    least, most = layout.HBM_BASE * layout.GRANULE_BYTES, 2**31 * layout.GRANULE_BYTES
    if hbm is not None and not (least < hbm <= most and backing_bytes <= hbm - least):
        raise ValueError(
            f"chip['hbm_bytes'] = {float(hbm):.0f}: must be above {least} (reserved) and at most {most}, and hold "
            f"hbm_backing_bytes = {backing_bytes}"
        )
    for name, value in (("max_streams", max_streams), ("max_events", max_events), ("max_notifies", max_notifies)):
        known = concrete(chip[name])
        if known is not None and value > known:
            raise ValueError(f"{name} = {value}: {chip.name} has {int(known)}")


def _whole_granules(nbytes: int) -> int:
    return -(-int(nbytes) // layout.GRANULE_BYTES) * layout.GRANULE_BYTES


def _filled(rows: int, values: dict, columns: int) -> np.ndarray:
    array = np.zeros((rows, columns), np.int32)
    for column, value in values.items():
        array[:, column] = value
    return array


def _empty_heap(max_blocks: int, base: int, end: jax.Array | int) -> Heap:
    blocks = _filled(max_blocks, {layout.HeapEntry.START: 2**31 - 1}, len(layout.HeapEntry))
    words = np.zeros(len(HeapWord), np.int32)
    words[[HeapWord.BASE, HeapWord.END]] = base, end if isinstance(end, int) else 0
    shown = jax.device_put(words)
    return Heap(jax.device_put(blocks.T), shown if isinstance(end, int) else shown.at[HeapWord.END].set(end))


def _zeros(*shape: int) -> jax.Array:
    """Return int32 zeros, put there by the host: a function that makes them would be compiled for each shape."""
    return jax.device_put(np.broadcast_to(np.int32(0), shape))


def _empty_table(rows: int) -> CommandTable:
    fields = _filled(
        rows + 1, {Field.SEQUENCE: layout.NONE, Field.DEPENDS: layout.NONE, Field.NEXT: rows}, layout.FIELDS
    )
    fields[:, Field.KERNEL] = layout.NONE
    times = _filled(rows + 1, {Time.PHASE: Phase.EMPTY}, len(Time))
    times[rows, Time.PHASE] = Phase.DONE
    return CommandTable(
        fields=jax.device_put(fields),
        operands=_zeros(rows + 1, layout.OPERANDS, len(Operand)),
        times=jax.device_put(times),
        effects=jax.device_put(np.full(rows + 1, int(layout.Effect.PUBLISHED), np.int32)),
    )
