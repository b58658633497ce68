"""The calls of host programs: one table, :data:`CALLS`, says what each is on a card and on its twin, and on what.

A program is an int32 array [L, 1 + ARGUMENTS]: a call and its arguments.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import ascend_jax as aj
from ascend_jax.chip.fields import FIELDS
from ascend_jax.ops.registry import Operator, Plan
from ascend_jax.runtime.edge import concrete
from ascend_jax.runtime.kernels import Executor, kernel_cost
from ascend_jax.runtime.layout import Field
from ascend_jax.runtime.program import program_from_rows
from tests.runtime.oracle import Card

DEVICE, HOST = 0, 1  # places are coded (space, offset)
DEVICE_BYTES, HOST_BYTES = 70_000, 512
MIX_BYTES, PAIR_BYTES, HOST_WORD = 48, 80, 40
SITE = 1

# Every cost a multiple of ten and every rate a power of two per ns: ties are frequent and durations whole.
TIES = {
    "host_launch_ns": 10, "host_copy_enqueue_ns": 10, "host_copy_sync_ns": 20, "host_malloc_ns": 10, "host_free_ns": 10,
    "host_stream_create_ns": 10, "host_event_ns": 10, "host_sync_ns": 10, "host_op_prepare_ns": 10,
    "copy_latency_ns": 20, "h2d_bytes_per_s": 1e9, "d2h_bytes_per_s": 2e9, "d2d_bytes_per_s": 4e9,
    "hbm_bytes_per_s": 16e9, "l2_bytes_per_s": 32e9, "has_priorities": 1, "has_counting_notifies": 1,
}  # fmt: skip
ODD = TIES | {
    "host_launch_ns": 4507, "host_copy_enqueue_ns": 3203, "host_copy_sync_ns": 12_007,
    "host_event_ns": 2953, "host_sync_ns": 2609, "copy_latency_ns": 5003,
    "h2d_bytes_per_s": 5e8, "d2h_bytes_per_s": 2.5e8, "d2d_bytes_per_s": 1e9,
    "hbm_bytes_per_s": 1e9, "l2_bytes_per_s": 3e9, "has_priorities": 0, "has_counting_notifies": 0, "queue_depth": 3,
}  # fmt: skip
SHEETS = {"ties": TIES, "odd": ODD}


def operator(name: str, value: Any) -> None:
    """Register a test operator; its cost is chosen at each launch. A second call does nothing."""

    def plan(chip: Any, inputs: tuple, outputs: tuple, *limit: Any) -> Plan:
        return Plan(kernel_cost(10.0, cube_cores=1, vector_cores=1), 0, True)

    if name not in aj.ops.names():
        aj.ops.add(Operator(name, value, plan))


def mix(x: Any) -> list:
    """``3 x + 7`` on bytes; jax or NumPy."""
    return [x * 3 + 7]


def pair(x: Any, y: Any) -> list:
    """``x + 2 y`` and ``x ^ y`` on bytes; jax or NumPy."""
    return [x + y * 2, x ^ y]


def _bytes_of(value: Any) -> Any:
    def run(*inputs: bytes) -> list[bytes]:
        return [out.tobytes() for out in value(*(np.frombuffer(data, np.uint8) for data in inputs))]

    return run


@dataclasses.dataclass(frozen=True)
class Kit:
    """A card after its set-up, the executors it knows, and where its two blocks lie."""

    card: aj.CardState
    mix: Executor
    pair: Executor
    device: int
    host: int
    shelf: list[aj.Program] = dataclasses.field(default_factory=list)  # what the latest good capture has recorded


def chip(fields: dict) -> aj.ChipSpec:
    return aj.chip("Ascend910B2").replace(**fields)


def sizes(**changed: int) -> dict:
    """The one static shape that all random programs share."""
    return {"max_streams": 4, "max_events": 3, "max_notifies": 2, "max_values": 3, "max_contexts": 2, "max_threads": 2,
            "max_faults": 2, "max_commands": 16, "max_blocks": 4, "hbm_backing_bytes": 73_728,
            "host_backing_bytes": 512} | changed  # fmt: skip


def kit(fields: dict, **changed: int) -> Kit:
    """Set a card up: one block per memory, two kernels, stream 1 and event 0."""
    operator("runtime_test_mix", mix)
    operator("runtime_test_pair", pair)
    card = aj.init(chip(fields), **sizes(**changed))
    card, device = aj.malloc(card, DEVICE_BYTES, site=SITE)
    card, host = aj.malloc_host(card, HOST_BYTES, site=SITE)
    small = aj.tensor(device, (MIX_BYTES,), "uint8")
    large = aj.tensor(device, (PAIR_BYTES,), "uint8")
    card, _, mixer = aj.ops.get_workspace_size(card, "runtime_test_mix", [small], [small], {}, site=SITE)
    card, _, pairer = aj.ops.get_workspace_size(card, "runtime_test_pair", [large] * 2, [large] * 2, {}, site=SITE)
    card, _ = aj.create_stream(card, site=SITE)
    card, _ = aj.create_event(card, site=SITE)
    return Kit(card, mixer, pairer, int(device), int(host))


def twin(fields: dict, *, waits_for_room: bool = False, **changed: int) -> Card:
    """The twin after the same set-up as :func:`kit`."""
    sheet = dict(zip(FIELDS, np.asarray(chip(fields).values).tolist(), strict=True))
    card = Card(sheet, sizes(**changed), waits_for_room=waits_for_room)
    card.malloc(DEVICE_BYTES)
    card.malloc_host(HOST_BYTES)
    card.prepare()
    card.prepare()
    card.create_stream()
    card.create_event()
    return card


# Calls --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Call:
    """One call on both sides: ``(kit, card, *arguments)`` to a card and possibly an answer, ``(kit, twin, ...)``."""

    names: tuple[str, ...]
    run: Callable[..., Any]
    twin: Callable[..., int | bytes | None]


def place(kit: Kit, space: Any, offset: Any) -> tuple:
    """Return (pointer, offset) of a coded place; ``space`` may be traced."""
    if isinstance(space, int):
        return kit.host if space == HOST else kit.device, offset
    return jnp.where(space == HOST, kit.host, kit.device).astype(jnp.int32), offset


def word(seed: Any, numpy: Any) -> Any:
    """The bytes that a program writes."""
    return (numpy.arange(HOST_WORD) * 5 + seed).astype(numpy.uint8)


KERNEL = ("stream", "block_ns", "cube", "vector", "blocks", "at_once", "head_ns", "hbm_bytes", "l2_bytes")


def _launch(executor: Executor, card: aj.CardState, offsets: list, stream: Any, *cost: Any) -> aj.CardState:
    block_ns, cube, vector, blocks, at_once, head_ns, hbm_bytes, l2_bytes = cost
    operands = jnp.asarray(executor.operands)
    for slot, offset in enumerate(offsets):
        operands = operands.at[slot, 1].set(offset)
    changed = kernel_cost(
        block_ns,
        blocks=blocks,
        cube_cores=cube,
        vector_cores=vector,
        head_ns=head_ns,
        all_at_once=at_once,
        hbm_bytes=hbm_bytes,
        l2_bytes=l2_bytes,
    )
    return aj.launch(card, dataclasses.replace(executor, operands=operands, cost=changed), 0, stream, site=SITE)


def _twin_launch(twin: Card, kit: Kit, reads: list, writes: list, nbytes: int, value: Any, *kernel: int) -> None:
    stream, block_ns, cube, vector, blocks, at_once, head_ns, hbm_bytes, l2_bytes = kernel
    inputs, outputs = ([(kit.device, offset, nbytes) for offset in offsets] for offsets in (reads, writes))
    more = {"blocks": blocks, "at_once": at_once, "head_ns": head_ns, "hbm_bytes": hbm_bytes, "l2_bytes": l2_bytes}
    twin.launch(stream, block_ns, (cube, vector), inputs, outputs, _bytes_of(value), **more)


def _run_copy(
    k: Kit, c: aj.CardState, space: Any, offset: Any, start_space: Any, start: Any, n: Any, *stream: Any
) -> Any:
    (dst, to), (src, begin) = place(k, space, offset), place(k, start_space, start)
    verb = aj.memcpy_async if stream else aj.memcpy
    return verb(c, dst, src, n, *stream, dst_offset=to, src_offset=begin, site=SITE)


def _twin_copy(k: Kit, t: Card, space: int, offset: int, start_space: int, start: int, n: int, *stream: int) -> None:
    t.copy(place(k, space, offset), place(k, start_space, start), n, *stream)


def _run_fill(k: Kit, c: aj.CardState, space: Any, offset: Any, value: Any, n: Any, *stream: Any) -> Any:
    dst, to = place(k, space, offset)
    verb = aj.memset_async if stream else aj.memset
    return verb(c, dst, value, n, *stream, dst_offset=to, site=SITE)


def _end_capture(k: Kit, c: aj.CardState, stream: Any) -> tuple:
    """Keep what was recorded for ``execute``; a compiled program must have captures that succeed."""
    c, program = aj.capture_end(c, stream, site=SITE)
    code = concrete(aj.last_code(c))
    if code is None or code == 0:
        k.shelf[:] = [program]
    return c, (program.fields[:, Field.KIND] != 0).sum(dtype=jnp.int32)


COPY = ("space", "offset", "from_space", "start", "nbytes")
FILL = ("space", "offset", "value", "nbytes")
CALLS = {
    "launch_mix": Call(
        (*KERNEL, "source", "target"),
        lambda k, c, *a: _launch(k.mix, c, [a[9], a[10]], *a[:9]),
        lambda k, t, *a: _twin_launch(t, k, [a[9]], [a[10]], MIX_BYTES, mix, *a[:9]),
    ),
    "launch_pair": Call(
        (*KERNEL, "source", "second", "target"),
        lambda k, c, *a: _launch(k.pair, c, [a[9], a[10], a[11], a[11] + PAIR_BYTES], *a[:9]),
        lambda k, t, *a: _twin_launch(t, k, [*a[9:11]], [a[11], a[11] + PAIR_BYTES], PAIR_BYTES, pair, *a[:9]),
    ),
    "copy_async": Call((*COPY, "stream"), _run_copy, _twin_copy),
    "copy": Call(COPY, _run_copy, _twin_copy),
    "fill_async": Call((*FILL, "stream"), _run_fill, lambda k, t, s, o, v, n, q: t.fill(place(k, s, o), v, n, q)),
    "fill": Call(FILL, _run_fill, lambda k, t, s, o, v, n: t.fill(place(k, s, o), v, n)),
    "upload": Call(
        ("offset", "value"),
        lambda k, c, o, v: aj.upload(c, k.device, word(v, jnp), offset=o, site=SITE),
        lambda k, t, o, v: t.upload((k.device, o), word(v, np).tobytes()),
    ),
    "download": Call(
        ("offset",),
        lambda k, c, o: aj.download(c, k.device, (HOST_WORD,), "uint8", offset=o, site=SITE),
        lambda k, t, o: t.download((k.device, o), HOST_WORD),
    ),
    "host_write": Call(
        ("offset", "value"),
        lambda k, c, o, v: aj.host_write(c, k.host, word(v, jnp), offset=o, site=SITE),
        lambda k, t, o, v: t.host_write((k.host, o), word(v, np).tobytes()),
    ),
    "host_read": Call(
        ("offset",),
        lambda k, c, o: aj.host_read(c, k.host, (HOST_WORD,), "uint8", offset=o, site=SITE),
        lambda k, t, o: t.host_read((k.host, o), HOST_WORD),
    ),
    "work": Call(("duration_ns",), lambda k, c, d: aj.host_work(c, d), lambda k, t, d: t.work(d)),
    "sync_stream": Call(
        ("stream", "timeout_ms"),
        lambda k, c, s, ms: aj.synchronize_stream(c, s, timeout_ms=ms, site=SITE),
        lambda k, t, s, ms: t.synchronize_stream(s, ms),
    ),
    "sync_event": Call(
        ("event", "timeout_ms"),
        lambda k, c, e, ms: aj.synchronize_event(c, e, timeout_ms=ms, site=SITE),
        lambda k, t, e, ms: t.synchronize_event(e, ms),
    ),
    "sync_device": Call(
        ("timeout_ms",),
        lambda k, c, ms: aj.synchronize_device(c, timeout_ms=ms, site=SITE),
        lambda k, t, ms: t.synchronize_device(ms),
    ),
    "create_stream": Call(
        ("priority", "flags"),
        lambda k, c, p, f: aj.create_stream(c, priority=p, flags=f, site=SITE),
        lambda k, t, p, f: t.create_stream(p, f),
    ),
    "destroy_stream": Call(
        ("stream",), lambda k, c, s: aj.destroy_stream(c, s, site=SITE), lambda k, t, s: t.destroy_stream(s)
    ),
    "destroy_stream_force": Call(
        ("stream",),
        lambda k, c, s: aj.destroy_stream_force(c, s, site=SITE),
        lambda k, t, s: t.destroy_stream_force(s),
    ),
    "stream_query": Call(
        ("stream",), lambda k, c, s: aj.stream_query(c, s, site=SITE), lambda k, t, s: t.stream_query(s)
    ),
    "stream_abort": Call(
        ("stream",), lambda k, c, s: aj.stream_abort(c, s, site=SITE), lambda k, t, s: t.stream_abort(s)
    ),
    "failure_mode": Call(
        ("stream", "mode"),
        lambda k, c, s, m: aj.set_stream_failure_mode(c, s, m, site=SITE),
        lambda k, t, s, m: t.set_stream_failure_mode(s, m),
    ),
    "create_event": Call((), lambda k, c: aj.create_event(c, site=SITE), lambda k, t: t.create_event()),
    "create_flag_event": Call(
        ("flags",),
        lambda k, c, f: aj.create_event_with_flag(c, f, site=SITE),
        lambda k, t, f: t.create_event("flag", f),
    ),
    "create_ex_event": Call(
        ("flags",),
        lambda k, c, f: aj.create_event_ex_with_flag(c, f, site=SITE),
        lambda k, t, f: t.create_event("ex", f),
    ),
    "destroy_event": Call(
        ("event",), lambda k, c, e: aj.destroy_event(c, e, site=SITE), lambda k, t, e: t.destroy_event(e)
    ),
    "record": Call(
        ("event", "stream"),
        lambda k, c, e, s: aj.record_event(c, e, s, site=SITE),
        lambda k, t, e, s: t.record_event(e, s),
    ),
    "reset": Call(
        ("event", "stream"),
        lambda k, c, e, s: aj.reset_event(c, e, s, site=SITE),
        lambda k, t, e, s: t.reset_event(e, s),
    ),
    "wait": Call(
        ("stream", "event"),
        lambda k, c, s, e: aj.stream_wait_event(c, s, e, site=SITE),
        lambda k, t, s, e: t.wait_event(s, e),
    ),
    "wait_timed": Call(
        ("stream", "event", "timeout_s"),
        lambda k, c, s, e, limit: aj.stream_wait_event(c, s, e, timeout_s=limit, site=SITE),
        lambda k, t, s, e, limit: t.wait_event(s, e, limit),
    ),
    "query_event": Call(("event",), lambda k, c, e: aj.query_event(c, e, site=SITE), lambda k, t, e: t.query_event(e)),
    "query_status": Call(
        ("event",),
        lambda k, c, e: aj.query_event_status(c, e, site=SITE),
        lambda k, t, e: t.query_event_status(e),
    ),
    "query_wait": Call(
        ("event",),
        lambda k, c, e: aj.query_event_wait_status(c, e, site=SITE),
        lambda k, t, e: t.query_event_wait_status(e),
    ),
    "create_notify": Call(
        ("flags",), lambda k, c, f: aj.create_notify(c, f, site=SITE), lambda k, t, f: t.create_notify(f)
    ),
    "destroy_notify": Call(
        ("notify",), lambda k, c, n: aj.destroy_notify(c, n, site=SITE), lambda k, t, n: t.destroy_notify(n)
    ),
    "record_notify": Call(
        ("notify", "stream"),
        lambda k, c, n, s: aj.record_notify(c, n, s, site=SITE),
        lambda k, t, n, s: t.record_notify(n, s),
    ),
    "wait_notify": Call(
        ("notify", "stream", "timeout_s"),
        lambda k, c, n, s, limit: aj.wait_and_reset_notify(c, n, s, limit, site=SITE),
        lambda k, t, n, s, limit: t.wait_notify(n, s, limit),
    ),
    "reset_notify": Call(
        ("notify",),
        lambda k, c, n: aj.notify_batch_reset(c, [n], site=SITE),
        lambda k, t, n: t.reset_notifies([n]),
    ),
    "create_counting": Call(
        ("flags",),
        lambda k, c, f: aj.create_cnt_notify(c, f, site=SITE),
        lambda k, t, f: t.create_notify(f, "counting"),
    ),
    "destroy_counting": Call(
        ("notify",),
        lambda k, c, n: aj.destroy_cnt_notify(c, n, site=SITE),
        lambda k, t, n: t.destroy_notify(n, "counting"),
    ),
    "record_counting": Call(
        ("notify", "count", "stream", "record_mode"),
        lambda k, c, n, v, s, m: aj.record_cnt_notify(c, n, v, s, mode=m, site=SITE),
        lambda k, t, n, v, s, m: t.record_counting(n, v, s, m),
    ),
    "wait_counting": Call(
        ("notify", "count", "stream", "wait_mode", "clears", "timeout_s"),
        lambda k, c, n, v, s, m, z, limit: aj.wait_cnt_notify(c, n, v, s, mode=m, clears=z, timeout_s=limit, site=SITE),
        lambda k, t, *a: t.wait_counting(*a),
    ),
    "reset_counting": Call(
        ("notify", "stream"),
        lambda k, c, n, s: aj.reset_cnt_notify(c, n, s, site=SITE),
        lambda k, t, n, s: t.reset_counting(n, s),
    ),
    "value_write": Call(
        ("space", "offset", "word", "stream"),
        lambda k, c, p, o, v, s: aj.value_write(c, place(k, p, o)[0], v, s, offset=o, site=SITE),
        lambda k, t, p, o, v, s: t.value_write(place(k, p, o), v, s),
    ),
    "value_wait": Call(
        ("space", "offset", "word", "stream", "flag"),
        lambda k, c, p, o, v, s, f: aj.value_wait(c, place(k, p, o)[0], v, s, flag=f, offset=o, site=SITE),
        lambda k, t, p, o, v, s, f: t.value_wait(place(k, p, o), v, s, f),
    ),
    "host_func": Call(
        ("stream", "number", "callback_ns"),
        lambda k, c, s, n, d: aj.launch_host_func(c, s, n, duration_ns=d, site=SITE),
        lambda k, t, s, n, d: t.launch_host_func(s, n, d),
    ),
    "capture_begin": Call(
        ("stream", "capture_mode"),
        lambda k, c, s, m: aj.capture_begin(c, s, m, site=SITE),
        lambda k, t, s, m: t.capture_begin(s, m),
    ),
    "capture_end": Call(("stream",), _end_capture, lambda k, t, s: t.capture_end(s)),
    "capture_info": Call(
        ("stream",), lambda k, c, s: aj.capture_info(c, s, site=SITE), lambda k, t, s: t.capture_info(s)
    ),
    "exchange_mode": Call(
        ("capture_mode",),
        lambda k, c, m: aj.capture_thread_exchange_mode(c, m, site=SITE),
        lambda k, t, m: t.exchange_mode(m),
    ),
    "execute": Call(
        ("stream",),
        lambda k, c, s: aj.execute_program(c, k.shelf[0] if k.shelf else program_from_rows([]), s, site=SITE),
        lambda k, t, s: t.execute(s),
    ),
    "inject_fault": Call(
        ("code", "skip", "reach"),
        lambda k, c, f, n, r: aj.inject_fault(c, f, skip=n, reach=r, site=SITE),
        lambda k, t, f, n, r: t.inject_fault(f, n, r),
    ),
    "op_timeout": Call(
        ("limit_ms",),
        lambda k, c, ms: aj.set_op_execute_timeout(c, ms, site=SITE),
        lambda k, t, ms: t.set_op_execute_timeout(ms),
    ),
    "wait_timeout": Call(
        ("limit_s",),
        lambda k, c, s: aj.set_op_wait_timeout(c, s, site=SITE),
        lambda k, t, s: t.set_op_wait_timeout(s),
    ),
    "subscribe": Call(
        ("thread", "stream"),
        lambda k, c, h, s: aj.subscribe_report(c, h, s, site=SITE),
        lambda k, t, h, s: t.subscribe_report(h, s),
    ),
    "unsubscribe": Call(
        ("thread", "stream"),
        lambda k, c, h, s: aj.unsubscribe_report(c, h, s, site=SITE),
        lambda k, t, h, s: t.unsubscribe_report(h, s),
    ),
    "callback": Call(
        ("stream", "number"),
        lambda k, c, s, n: aj.launch_callback(c, s, n, site=SITE),
        lambda k, t, s, n: t.launch_callback(s, n, is_blocking=True),
    ),
    "callback_async": Call(
        ("stream", "number"),
        lambda k, c, s, n: aj.launch_callback(c, s, n, is_blocking=False, site=SITE),
        lambda k, t, s, n: t.launch_callback(s, n, is_blocking=False),
    ),
    "process_report": Call(
        ("timeout_ms", "callback_ns"),
        lambda k, c, ms, ns: aj.process_report(c, ms, callback_ns=ns, site=SITE),
        lambda k, t, ms, ns: t.process_report(ms, ns),
    ),
    "create_context": Call((), lambda k, c: aj.create_context(c, site=SITE), lambda k, t: t.create_context()),
    "destroy_context": Call(
        ("context",), lambda k, c, x: aj.destroy_context(c, x, site=SITE), lambda k, t, x: t.destroy_context(x)
    ),
    "set_context": Call(
        ("context",), lambda k, c, x: aj.set_context(c, x, site=SITE), lambda k, t, x: t.set_context(x)
    ),
    "get_context": Call((), lambda k, c: aj.get_context(c, site=SITE), lambda k, t: t.get_context()),
    "default_stream": Call(
        (), lambda k, c: aj.current_default_stream(c, site=SITE), lambda k, t: t.current_default_stream()
    ),
    "create_thread": Call((), lambda k, c: aj.create_thread(c, site=SITE), lambda k, t: t.create_thread()),
    "use_thread": Call(("thread",), lambda k, c, h: aj.use_thread(c, h, site=SITE), lambda k, t, h: t.use_thread(h)),
    "join_thread": Call(("thread",), lambda k, c, h: aj.join_thread(c, h, site=SITE), lambda k, t, h: t.join_thread(h)),
    "end_thread": Call(("thread",), lambda k, c, h: aj.end_thread(c, h, site=SITE), lambda k, t, h: t.end_thread(h)),
    "set_device": Call((), lambda k, c: aj.set_device(c, site=SITE), lambda k, t: t.set_device()),
    "reset_device": Call((), lambda k, c: aj.reset_device(c, site=SITE), lambda k, t: t.reset_device()),
    "reset_device_force": Call(
        (), lambda k, c: aj.reset_device_force(c, site=SITE), lambda k, t: t.reset_device_force()
    ),
    "task_abort": Call((), lambda k, c: aj.device_task_abort(c, site=SITE), lambda k, t: t.device_task_abort()),
    "malloc": Call(("size",), lambda k, c, n: aj.malloc(c, n, site=SITE), lambda k, t, n: t.malloc(n)),
    "free": Call(("pointer",), lambda k, c, p: aj.free(c, p, site=SITE), lambda k, t, p: t.free(p)),
}
NAMES = tuple(CALLS)
ARGUMENTS = max(len(call.names) for call in CALLS.values())


def encode(name: str, **arguments: int) -> list[int]:
    """Return one row of a program."""
    call = CALLS[name]
    values = [arguments[each] for each in call.names]
    return [NAMES.index(name), *values, *[0] * (ARGUMENTS - len(values))]


def text(row: np.ndarray) -> str:
    """One call as people write it."""
    call = CALLS[NAMES[row[0]]]
    given = ", ".join(f"{name}={int(value)}" for name, value in zip(call.names, row[1:], strict=False))
    return f"{NAMES[row[0]]}({given})"
