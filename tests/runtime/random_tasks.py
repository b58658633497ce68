"""Random lists of commands for the scheduler and the engine: every kind, every field, many ties."""

import random
from dataclasses import fields

from tests.runtime.scheduler import POOL, WORD, Command

CAPACITY = {"cube": 3, "vector": 6, "h2d": 2, "d2h": 1, "d2d": 2}
WAIT_TIMEOUT, TASK_TIMEOUT, EXCEPTION, DEVICE_FAULT = 107019, 507014, 507015, 507054
VALUES = (0, 1, 2, 3, WORD - 1, WORD - 2, WORD // 2, WORD // 2 - 1)
SHARES = (0, 0, POOL // 8, POOL // 4, POOL // 3, POOL // 2, 40_000, POOL - 1, 1)


def random_commands(
    rng: random.Random, length: int, *, streams: int = 3, cells: int = 4, ties: bool = True
) -> list[Command]:
    """Commands in order of enqueueing; ``ties`` draws times from a few small numbers.

    A wait depends on records that come before it in the list only, so no list is circular by its dependencies; waits
    on cells may never end, with or without a timeout. Issue times do not fall.
    """
    task_share = rng.choice((0.3, 0.6, 0.9))
    is_faulty, is_pacing = rng.random() < 0.3, rng.random() < 0.3
    commands, records, issue = [], [], 0
    for _ in range(length):
        issue += _duration(rng, ties) if is_pacing and rng.random() < 0.4 else 0
        command = _task(rng, ties) if rng.random() < task_share else _mark(rng, cells, records, ties)
        command.stream, command.issue = rng.randrange(streams), issue
        if is_faulty and command.kind != "event record" and rng.random() < 0.08:
            command.reach = "device" if rng.random() < 0.15 else "stream"
            command.fault = DEVICE_FAULT if command.reach == "device" else EXCEPTION
        if command.kind == "event record" and not command.effect:
            records.append(command)
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


def _duration(rng: random.Random, ties: bool) -> int:
    return rng.choice((1, 1, 2, 3, 4, 6, 12)) if ties else rng.randint(1, 1000)


def _task(rng: random.Random, ties: bool) -> Command:
    command = Command(rng.choice(("kernel", "kernel", "kernel", "copy", "memset")), 0)
    command.blocks = rng.choice((1, 1, 2, 3, 4, 7, 12))
    command.head = 0 if rng.random() < 0.4 else _duration(rng, ties)
    command.block = _duration(rng, ties)
    command.priority = rng.choice((0, 0, 0, 1, 7))
    if command.kind == "kernel":
        command.cube, command.vector = rng.choice(((1, 0), (0, 1), (1, 1), (1, 2), (0, 2), (0, 0)))
        if rng.random() < 0.25:
            command.mode, command.blocks = 1, rng.choice((1, 2, 2, 3, 3, 4))
    elif command.kind == "copy":
        command.engine = rng.choice(("h2d", "d2h", "d2d"))
    else:
        command.engine = rng.choice(("", "d2d"))
    if rng.random() < 0.7:
        command.hbm, command.l2 = rng.choice(SHARES), rng.choice(SHARES)
        if not ties:
            command.hbm = min(POOL - 1, command.hbm + rng.randrange(1000))
    if rng.random() < 0.06:
        command.timeout, command.timeout_code = 4 * _duration(rng, ties), TASK_TIMEOUT
        command.timeout_reach = "device" if rng.random() < 0.3 else "stream"
    return command


def _mark(rng: random.Random, cells: int, records: list[Command], ties: bool) -> Command:
    kinds = ["event record", "event wait", "event reset", "notify record", "notify wait", "value write", "value wait"]
    kind = rng.choice([*kinds, "callback", "event record", "event wait"])
    command = Command(kind, 0)
    if kind == "event wait" and records and rng.random() < 0.8:
        command.depends = rng.choice(records[-6:])
        _may_time_out(rng, command, 0.1, ties)
        return command
    if kind == "event record" and rng.random() < 0.7:
        return command
    command.cell = rng.randrange(cells)
    match kind:
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
                command.value = WORD - 1 - rng.choice((1, 2, 3, WORD // 2))
        case "callback":
            command.effect, command.value2 = "ADD", 1
    if command.condition:
        _may_time_out(rng, command, 0.6, ties)
    return command


def _may_time_out(rng: random.Random, command: Command, chance: float, ties: bool) -> None:
    if rng.random() < chance:
        command.timeout, command.timeout_code = 3 * _duration(rng, ties), WAIT_TIMEOUT
        command.timeout_reach = "device" if rng.random() < 0.05 else "stream"
