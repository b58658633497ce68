"""Random host programs, run by the twin and by ascend_jax: eagerly, under one jit, under vmap.

A program is an int32 array [L, 8]: (call, seven arguments). The same table of branches serves every way to run it.
"""

import dataclasses
import functools
import random
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ascend_jax as aj
from ascend_jax.chip.fields import FIELDS
from ascend_jax.ops.registry import Operator, Plan
from ascend_jax.runtime.kernels import Cost, Executor

CALLS = (
    "launch_mix", "launch_pair", "copy_async", "fill_async", "record", "wait", "sync_stream", "sync_event",
    "sync_device", "copy", "fill", "work", "host_write", "host_read", "upload", "download",
    "create_stream", "destroy_stream", "create_event", "destroy_event",
)  # fmt: skip
CALL = {name: number for number, name in enumerate(CALLS)}
ARGUMENTS = 7
DEVICE, HOST = 0, 1  # places are coded (space, offset)
DEVICE_BYTES, HOST_BYTES = 70_000, 512
MIX_BYTES, PAIR_BYTES, HOST_WORD = 48, 80, 40

# Every cost a multiple of ten and every rate a power of two per ns: ties are frequent and durations whole.
TIES = {
    "host_launch_ns": 10, "host_copy_enqueue_ns": 10, "host_copy_sync_ns": 20, "host_malloc_ns": 10, "host_free_ns": 10,
    "host_stream_create_ns": 10, "host_event_ns": 10, "host_sync_ns": 10, "host_op_prepare_ns": 10,
    "copy_latency_ns": 20, "h2d_bytes_per_s": 1e9, "d2h_bytes_per_s": 2e9, "d2d_bytes_per_s": 4e9,
}  # fmt: skip
ODD = TIES | {
    "host_launch_ns": 4507, "host_copy_enqueue_ns": 3203, "host_copy_sync_ns": 12_007,
    "host_event_ns": 2953, "host_sync_ns": 2609, "copy_latency_ns": 5003,
    "h2d_bytes_per_s": 5e8, "d2h_bytes_per_s": 2.5e8, "d2d_bytes_per_s": 1e9,
}  # fmt: skip


def operator(name: str, value: Any) -> None:
    """Register a test operator whose attributes are its cost; a second call does nothing."""

    def plan(chip: Any, inputs: tuple, outputs: tuple, *limit: Any, duration: int, cube: int, vector: int) -> Plan:
        return Plan(cost(duration, cube, vector), 0, True)

    def values(*arrays: jax.Array, duration: int, cube: int, vector: int) -> list[jax.Array]:
        return value(*arrays)

    if name not in aj.ops.names():
        aj.ops.add(Operator(name, values, plan))


def cost(duration: Any, cube: Any, vector: Any) -> Cost:
    """Return a cost of which only duration and cores matter."""
    matters = {"duration_ns": duration, "cube_cores": cube, "vector_cores": vector, "blocks": 1}
    floats = ("duration_ns", "cube_busy_ns", "vector_busy_ns", "hbm_bytes")
    names = [field.name for field in dataclasses.fields(Cost)]
    types = {name: jnp.float32 if name in floats else jnp.int32 for name in names}
    return Cost(**{name: jnp.asarray(matters.get(name, 0), types[name]) for name in names})


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


def chip(fields: dict) -> aj.ChipSpec:
    return aj.chip("Ascend910B2").replace(**fields)


def sizes(**changed: int) -> dict:
    """The one static shape that all random programs share."""
    return {"max_streams": 4, "max_events": 3, "max_commands": 16, "max_blocks": 4, "hbm_backing_bytes": 73_728,
                "host_backing_bytes": 512} | changed  # fmt: skip


def kit(fields: dict, **changed: int) -> Kit:
    """Set a card up: one block per memory, two kernels, stream 1 and event 0."""
    operator("runtime_test_mix", mix)
    operator("runtime_test_pair", pair)
    card = aj.init(chip(fields), **sizes(**changed))
    card, device = aj.malloc(card, DEVICE_BYTES, site=1)
    card, host = aj.malloc_host(card, HOST_BYTES, site=2)
    cost_of = {"duration": 10, "cube": 1, "vector": 1}
    small = aj.tensor(device, (MIX_BYTES,), "uint8")
    large = aj.tensor(device, (PAIR_BYTES,), "uint8")
    card, _, mixer = aj.ops.get_workspace_size(card, "runtime_test_mix", [small], [small], cost_of, site=3)
    card, _, pairer = aj.ops.get_workspace_size(card, "runtime_test_pair", [large] * 2, [large] * 2, cost_of, site=4)
    card, _ = aj.create_stream(card, site=5)
    card, _ = aj.create_event(card, site=6)
    return Kit(card, mixer, pairer, int(device), int(host))


def twin(oracle: ModuleType, fields: dict, **changed: int) -> Any:
    """The twin after the same set-up as :func:`kit`."""
    size = sizes(**changed)
    sheet = dict(zip(FIELDS, np.asarray(chip(fields).values).tolist(), strict=True))
    card = oracle.Card(
        sheet,
        max_streams=size["max_streams"],
        max_events=size["max_events"],
        max_blocks=size["max_blocks"],
        hbm_backing=size["hbm_backing_bytes"],
        host_backing=size["host_backing_bytes"],
    )
    card.malloc(DEVICE_BYTES)
    card.malloc_host(HOST_BYTES)
    card.prepare()
    card.prepare()
    card.create_stream()
    card.create_event()
    return card


# One call -----------------------------------------------------------------------------------------------------


def branches(kit: Kit) -> list:
    """Return one function per call: ``(card, arguments) -> (card, handle, bytes [HOST_WORD])``."""

    def place(space: Any, offset: Any) -> tuple:
        return jnp.where(space == HOST, kit.host, kit.device).astype(jnp.int32), offset

    def launch(executor: Executor, card: aj.CardState, a: Any) -> aj.CardState:
        # arguments: stream, duration, cube, vector, then operand offsets (pair: second input and outputs follow)
        offsets = [a[4], a[5]] if executor is kit.mix else [a[4], a[5], a[6], a[6] + PAIR_BYTES]
        operands = executor.operands
        for slot, offset in enumerate(offsets):
            operands = operands.at[slot, 1].set(offset)
        changed = dataclasses.replace(executor, operands=operands, cost=cost(a[1], a[2], a[3]))
        return aj.launch(card, changed, 0, a[0], site=10)

    def copy(card: aj.CardState, a: Any, *stream: Any) -> aj.CardState:
        (dst, to), (src, start) = place(a[1], a[2]), place(a[3], a[4])
        verb = aj.memcpy_async if stream else aj.memcpy
        return verb(card, dst, src, a[5], *stream, dst_offset=to, src_offset=start, site=11)

    def fill(card: aj.CardState, a: Any, *stream: Any) -> aj.CardState:
        dst, to = place(a[1], a[2])
        verb = aj.memset_async if stream else aj.memset
        return verb(card, dst, a[3], a[5], *stream, dst_offset=to, site=12)

    def data(a: Any) -> jax.Array:
        return (jnp.arange(HOST_WORD) * 5 + a[3]).astype(jnp.uint8)

    def put(verb: Any, space: int) -> Any:
        return lambda card, a: verb(card, *place(space, 0)[:1], data(a), offset=a[2], site=13)

    def get(verb: Any, space: int) -> Any:
        def run(card: aj.CardState, a: Any) -> tuple:
            card, out = verb(card, *place(space, 0)[:1], (HOST_WORD,), "uint8", offset=a[2], site=14)
            return card, jnp.int32(0), out

        return run

    def handle(verb: Any) -> Any:
        return lambda card, a: (*verb(card, site=15), jnp.zeros(HOST_WORD, jnp.uint8))

    def plain(run: Any) -> Any:
        return lambda card, a: (run(card, a), jnp.int32(0), jnp.zeros(HOST_WORD, jnp.uint8))

    table = {
        "launch_mix": plain(functools.partial(launch, kit.mix)),
        "launch_pair": plain(functools.partial(launch, kit.pair)),
        "copy_async": plain(lambda card, a: copy(card, a, a[0])),
        "fill_async": plain(lambda card, a: fill(card, a, a[0])),
        "record": plain(lambda card, a: aj.record_event(card, a[1], a[0], site=16)),
        "wait": plain(lambda card, a: aj.stream_wait_event(card, a[0], a[1], site=17)),
        "sync_stream": plain(lambda card, a: aj.synchronize_stream(card, a[0], site=18)),
        "sync_event": plain(lambda card, a: aj.synchronize_event(card, a[1], site=19)),
        "sync_device": plain(lambda card, a: aj.synchronize_device(card, site=20)),
        "copy": plain(copy),
        "fill": plain(fill),
        "work": plain(lambda card, a: aj.host_work(card, a[1])),
        "host_write": plain(put(aj.host_write, HOST)),
        "host_read": get(aj.host_read, HOST),
        "upload": plain(put(aj.upload, DEVICE)),
        "download": get(aj.download, DEVICE),
        "create_stream": handle(aj.create_stream),
        "destroy_stream": plain(lambda card, a: aj.destroy_stream(card, a[0], site=21)),
        "create_event": handle(aj.create_event),
        "destroy_event": plain(lambda card, a: aj.destroy_event(card, a[1], site=22)),
    }
    return [table[name] for name in CALLS]


def twin_call(card: Any, kit: Kit, call: np.ndarray) -> tuple[int, bytes]:
    """Make one call on the twin; return (handle, bytes)."""
    name, a = CALLS[call[0]], [int(x) for x in call[1:]]
    empty = bytes(HOST_WORD)
    word = bytes((i * 5 + a[3]) % 256 for i in range(HOST_WORD))

    def place(space: int, offset: int) -> tuple[int, int]:
        return (kit.host if space == HOST else kit.device), offset

    match name:
        case "launch_mix":
            reads, writes = [(kit.device, a[4], MIX_BYTES)], [(kit.device, a[5], MIX_BYTES)]
            card.launch(*a[:4], reads, writes, _bytes_of(mix))
        case "launch_pair":
            reads = [(kit.device, a[4], PAIR_BYTES), (kit.device, a[5], PAIR_BYTES)]
            writes = [(kit.device, a[6], PAIR_BYTES), (kit.device, a[6] + PAIR_BYTES, PAIR_BYTES)]
            card.launch(*a[:4], reads, writes, _bytes_of(pair))
        case "copy_async":
            card.copy(place(a[1], a[2]), place(a[3], a[4]), a[5], a[0])
        case "fill_async":
            card.fill(place(a[1], a[2]), a[3], a[5], a[0])
        case "copy":
            card.copy(place(a[1], a[2]), place(a[3], a[4]), a[5])
        case "fill":
            card.fill(place(a[1], a[2]), a[3], a[5])
        case "record":
            card.record_event(a[1], a[0])
        case "wait":
            card.wait_event(a[0], a[1])
        case "sync_stream":
            card.synchronize_stream(a[0])
        case "sync_event":
            card.synchronize_event(a[1])
        case "sync_device":
            card.synchronize_device()
        case "work":
            card.work(a[1])
        case "host_write":
            card.host_write(place(HOST, a[2]), word)
        case "host_read":
            return 0, card.host_read(place(HOST, a[2]), HOST_WORD)
        case "upload":
            card.upload(place(DEVICE, a[2]), word)
        case "download":
            return 0, card.download(place(DEVICE, a[2]), HOST_WORD)
        case "create_stream":
            return card.create_stream(), empty
        case "create_event":
            return card.create_event(), empty
        case "destroy_stream":
            card.destroy_stream(a[0])
        case "destroy_event":
            card.destroy_event(a[1])
    return 0, empty


def launch(kit: Kit, card: aj.CardState, stream: int, duration: float, **options: int) -> aj.CardState:
    """Launch the small kernel with chosen cost; ``source`` and ``target`` are byte offsets in the device block."""
    operands = np.array(kit.mix.operands)
    operands[:2, 1] = options.get("source", 0), options.get("target", 0)
    changed = cost(duration, options.get("cube", 0), options.get("vector", 0))
    return aj.launch(card, dataclasses.replace(kit.mix, operands=operands, cost=changed), 0, stream)


# Whole programs -----------------------------------------------------------------------------------------------


def outcome(card: aj.CardState, handle: Any, out: Any) -> tuple:
    """What is compared after every call: host clock, status word, handle, bytes."""
    return card.clock[:2], card.status, handle, out


def run_eager(kit: Kit, program: np.ndarray) -> tuple[aj.CardState, list[tuple]]:
    table, card, seen = branches(kit), kit.card, []
    for call in program:
        card, handle, out = table[call[0]](card, [int(x) for x in call[1:]])
        seen.append(outcome(card, handle, out))
    return card, seen


def runner(kit: Kit, names: tuple[str, ...] = CALLS) -> Any:
    """Return ``(card, calls [L], arguments [L, 7]) -> (card, outcomes)``, traceable; calls count in ``names``."""
    table = [branches(kit)[CALL[name]] for name in names]

    def run(card: aj.CardState, calls: jax.Array, arguments: jax.Array) -> tuple:
        def step(card: aj.CardState, call: tuple) -> tuple:
            card, handle, out = jax.lax.switch(call[0], table, card, call[1])
            return card, outcome(card, handle, out)

        return jax.lax.scan(step, card, (calls, arguments))

    return run


def difference(kit: Kit, twin: Any, program: np.ndarray, card: aj.CardState, seen: tuple) -> str:
    """Run ``program`` on the twin and say where ``card`` differs first; empty if nowhere.

    The program's last call is a device synchronisation, so that every command has ended.
    """
    for number, call in enumerate(program):
        handle, data = twin_call(twin, kit, call)
        clock, status, got_handle, got_data = (np.asarray(part[number]) for part in seen)
        expected = (twin.host, twin.last, twin.calls, twin.sticky, handle, data.hex())
        got = (int(clock[0]) * 2**30 + int(clock[1]), int(status[4]), int(status[5]), int(status[0]))
        got += (int(got_handle), bytes(got_data).hex())
        for what, want, have in zip(
            ("host ns", "code", "calls", "sticky", "handle", "bytes"), expected, got, strict=True
        ):
            if want != have:
                return f"after call {number} {text(call)}: {what} expected {want} got {have}"
    log = aj.insight.timeline(card)
    kept = twin.commands[log.dropped :]
    if len(kept) != len(log):
        return f"commands: expected {len(twin.commands)} got {len(log) + log.dropped}"
    for row, command in enumerate(kept):
        got = [int(getattr(log, f"{name}_ns")[row]) for name in ("issue", "ready", "start", "end")]
        got += [int(log.stream[row]), str(log.kind[row])]
        want = [command.issue, command.ready, command.start, command.end, command.stream, command.kind]
        if want != got:
            return f"command {command.sequence}: (issue, ready, start, end, stream, kind) expected {want} got {got}"
    memory = bytes(np.asarray(card.memory)[: len(twin.memory)])
    if memory != bytes(twin.memory):
        first = next(i for i, (x, y) in enumerate(zip(memory, twin.memory, strict=True)) if x != y)
        return f"memory byte {first}: expected {twin.memory[first]} got {memory[first]}"
    return ""


def text(call: np.ndarray) -> str:
    return f"{CALLS[call[0]]}{tuple(int(x) for x in call[1:])}"


# Generation ---------------------------------------------------------------------------------------------------


def random_calls(rng: random.Random, length: int, *, table: int, is_sorted: bool = True) -> np.ndarray:
    """Draw the kinds of ``length`` calls, int32 [L]; enough syncs that a table of ``table`` rows never fills."""
    weights = dict.fromkeys(CALLS, 2) | {
        "launch_mix": 7,
        "launch_pair": 5,
        "copy_async": 6,
        "record": 5,
        "wait": 6,
    }
    weights |= {"sync_device": 1, "destroy_stream": 1, "destroy_event": 1, "work": 3, "fill_async": 3}
    calls, queued = [], 0
    for _ in range(length - 1):
        name = rng.choices(CALLS, [weights[name] for name in CALLS])[0] if queued < table - 1 else "sync_device"
        queued = 0 if name == "sync_device" else queued + 1
        calls.append(CALL[name])
    return np.array([*calls, CALL["sync_device"]], np.int32)


def random_arguments(rng: random.Random, calls: np.ndarray, *, ties: bool) -> np.ndarray:
    """Draw arguments for the given calls, int32 [L, 7]: mostly good ones, close together in time and memory."""
    return np.array([_arguments(rng, CALLS[call], ties) for call in calls], np.int32).reshape(-1, ARGUMENTS)


def _arguments(rng: random.Random, name: str, ties: bool) -> list[int]:
    stream = rng.choice([0, 0, 1, 1, 1, 2, 3]) if rng.random() < 0.97 else rng.choice([-1, 4, 9])
    event = rng.choice([0, 0, 0, 1, 2]) if rng.random() < 0.97 else rng.choice([-1, 3])
    step = 10 if ties else 1
    duration = step * rng.choice([1, 1, 2, 3, 4, 5, 8, 20, 100, 5000])
    if name.startswith("launch"):
        cube, vector = rng.choice([0, 0, 1, 8, 12, 13, 24]), rng.choice([0, 0, 1, 16, 24, 25, 48])
        offsets = [rng.choice([0, 16, 48, 100, 160, 200]) for _ in range(3)]
        if rng.random() < 0.02:
            offsets[1] = rng.choice([-1, DEVICE_BYTES - 40])
        return [stream, duration, cube, vector, *offsets]
    if name == "work":
        return [0, rng.choice([0, 1, duration, duration, 10 * duration]), 0, 0, 0, 0, 0]
    if name in ("sync_stream", "destroy_stream") and stream == -1:
        stream = 7
    nbytes = rng.choice([0, 40, 40, 80, 80, 120])
    space, from_space = (rng.choice([DEVICE, DEVICE, HOST]) for _ in range(2))
    if space == from_space == DEVICE and rng.random() < 0.1:
        nbytes = rng.choice([65_536, 65_600, 69_000])
    offset, start = (rng.choice([0, 8, 40, 100, 160, 300]) for _ in range(2))
    if rng.random() < 0.02:
        offset = rng.choice([-8, HOST_BYTES - 20, DEVICE_BYTES - 20])
    if name in ("copy_async", "copy"):
        return [stream, space, offset, from_space, start, nbytes, 0]
    if name in ("fill_async", "fill"):
        return [stream, space, offset, rng.choice([0, 1, 255, 256, -1, 77]), 0, nbytes, 0]
    return [stream, event, offset, rng.randrange(256), 0, 0, 0]
