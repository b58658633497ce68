"""Random lists of commands for the scheduler and the engine: every kind, every field, many ties."""

import random
from collections.abc import Callable
from dataclasses import fields

from tests.runtime.scheduler import POOL, WORD, Command

CAPACITY = {"cube": 3, "vector": 6, "h2d": 1, "d2h": 1, "d2d": 1}
WAIT_TIMEOUT, CUBE_TIMEOUT, VECTOR_TIMEOUT, EXCEPTION, DEVICE_FAULT = 107019, 507014, 507034, 507015, 507054
VALUES = (0, 1, 2, 3, WORD - 1, WORD - 2, WORD // 2, WORD // 2 - 1, 1 << 32, (1 << 32) - 1, 3 << 31)
SHARES = (0, 0, POOL // 8, POOL // 4, POOL // 3, POOL // 2, 40_000, POOL - 1, 1)
CHUNK = 1 << 22  # ns; the engine counts longer work in pieces of this length
US = 1000  # ns; timeouts are whole us

Duration = Callable[[], int]


def random_commands(
    rng: random.Random, length: int, *, streams: int = 3, cells: int = 4, ties: bool = True
) -> list[Command]:
    """Commands in order of enqueueing; ``ties`` draws times from a few small multiples of a unit.

    A command depends on such that come before it in the list only, so no list is circular by its dependencies; waits
    on cells may never end, with or without a timeout. Issue times do not fall.
    """
    duration = _ties(rng) if ties else _spread(rng)
    task_share, wide = rng.choice((0.3, 0.6, 0.9)), rng.random() < 0.05
    is_faulty, is_pacing, is_hasty = (rng.random() < chance for chance in (0.3, 0.3, 0.2))
    commands: list[Command] = []
    issue = 0
    for _ in range(length):
        issue += duration() if is_pacing and rng.random() < 0.4 else 0
        if rng.random() < task_share:
            command = _task(rng, duration, ties, wide)
            if is_hasty and rng.random() < 0.2:
                _time_out(command, 4 * duration())
        else:
            command = _mark(rng, duration, cells, commands)
        command.stream, command.issue = rng.randrange(streams), issue
        if is_faulty and rng.random() < 0.08:
            command.reach = "device" if rng.random() < 0.15 else "stream"
            command.fault = DEVICE_FAULT if command.reach == "device" else EXCEPTION
        commands.append(command)
    return commands


def describe(command: Command) -> str:
    """One line: the kind, the stream and every field that is not at its default."""
    parts = [f"{command.kind} on {command.stream}:"]
    for entry in fields(command):
        value = getattr(command, entry.name)
        if entry.name == "depends" and value is not None:
            parts.append(f"depends=({value.kind} on {value.stream}, end={value.end})")
        elif entry.name not in ("kind", "stream") and value != entry.default:
            parts.append(f"{entry.name}={value}")
    return " ".join(parts)


def _ties(rng: random.Random) -> Duration:
    unit = rng.choice((1, 1, 250, US))
    return lambda: unit * rng.choice((1, 1, 2, 3, 4, 6, 12))


def _spread(rng: random.Random) -> Duration:
    if rng.random() < 0.1:  # around whole chunks
        return lambda: max(
            1, rng.choice((1, 1, 2, 5)) * CHUNK + rng.choice((-CHUNK, -1, 0, 0, 1, rng.randrange(CHUNK)))
        )
    top = rng.choice((10, 17))  # powers of two, ns
    return lambda: rng.randint(1, 1 << rng.randint(1, top))


def _task(rng: random.Random, duration: Duration, ties: bool, wide: bool) -> Command:
    command = Command(rng.choice(("kernel", "kernel", "kernel", "copy", "memset")), 0)
    command.blocks = rng.choice((1, 1, 2, 3, 4, 7, 12))
    command.head = 0 if rng.random() < 0.4 else min(duration(), CHUNK - 1)
    command.block = duration()
    command.priority = rng.choice((0, 0, 0, 1, 7))
    if command.kind == "kernel":
        command.cube, command.vector = rng.choice(((1, 0), (0, 1), (1, 1), (1, 2), (0, 2), (0, 0)))
        if rng.random() < 0.25:
            command.mode, command.blocks = 1, rng.choice((1, 2, 2, 3, 3, 4))
        elif wide and command.needs and rng.random() < 0.2:
            command.blocks = rng.randint(200, 300)
    elif command.kind == "copy":
        command.engine = rng.choice(("h2d", "d2h", "d2d"))
    else:
        command.engine = rng.choice(("", "d2d"))
    if rng.random() < 0.7:
        command.hbm, command.l2 = rng.choice(SHARES), rng.choice(SHARES)
        if not ties:
            command.hbm = min(POOL - 1, command.hbm + rng.randrange(1000))
    return command


def _mark(rng: random.Random, duration: Duration, cells: int, before: list[Command]) -> Command:
    kinds = ["event record", "event wait", "event reset", "notify record", "notify wait", "value write", "value wait"]
    kind = rng.choice([*kinds, "callback", "callback wait", "event record", "event wait", "event wait"])
    command = Command(kind, 0)
    if before and rng.random() < (0.8 if kind == "event wait" else 0.1):
        records = [command for command in before if command.kind == "event record" and not command.effect]
        command.depends = rng.choice(records[-6:] if records and rng.random() < 0.7 else before[-8:])
    is_order_only = kind.startswith("event") and rng.random() < 0.7 and (kind != "event wait" or command.depends)
    if not is_order_only:
        command.cell = rng.randrange(cells)
        _look_and_change(rng, command)
    if rng.random() < (0.6 if command.condition else 0.15 if command.depends else 0.02):
        _time_out(command, 3 * duration())
    return command


def _look_and_change(rng: random.Random, command: Command) -> None:
    match command.kind:
        case "event record" | "notify record":
            command.effect, command.value2 = "SET", 1
        case "event reset":
            command.effect = "SET"
        case "event wait":
            command.condition, command.value = "GE", 1
        case "notify wait":
            command.condition, command.value, command.effect = "GE", 1, "SET"
        case "value write":
            command.effect, command.value2 = rng.choice(("SET", "ADD")), rng.choice(VALUES)
        case "value wait":
            command.condition, command.value = rng.choice(("GE", "EQ", "AND", "NOR")), rng.choice(VALUES)
            if command.condition == "NOR":
                command.value = WORD - 1 - rng.choice((1, 2, 3, WORD // 2, 1 << 32))
            if rng.random() < 0.2:
                command.effect, command.value2 = rng.choice(
                    (("SET", 0), ("SET", command.value), ("ADD", command.value))
                )
        case "callback":
            command.effect, command.value2 = "ADD", 1
        case "callback wait":
            command.condition, command.value = "GE", rng.choice((1, 1, 2, 3))


def _time_out(command: Command, about: int) -> None:
    """Set a timeout near ``about`` ns with what goes by the kind: a task takes the device, a mark its stream."""
    command.timeout = max(1, about // US) * US
    command.timeout_reach = "device" if command.is_task else "stream"
    late = CUBE_TIMEOUT if command.cube else VECTOR_TIMEOUT
    command.timeout_code = late if command.kind == "kernel" else WAIT_TIMEOUT
