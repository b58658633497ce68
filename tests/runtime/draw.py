"""Random programs: each call is drawn with the twin standing where the program does, so that most make sense."""

import random
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from tests.runtime.calls import CALLS, DEVICE, DEVICE_BYTES, HOST, HOST_BYTES, Kit, encode
from tests.runtime.oracle import Card
from tests.runtime.programs import expect_one
from tests.runtime.records import Slots

WEIGHTS = dict.fromkeys(CALLS, 2) | {
    "op_timeout": 1, "wait_timeout": 1,
    "launch_mix": 9, "launch_pair": 7, "copy_async": 8, "fill_async": 3, "record": 6, "wait": 6, "work": 4,
    "sync_device": 1, "destroy_stream": 1, "destroy_stream_force": 1, "destroy_event": 1, "destroy_notify": 1,
    "failure_mode": 1, "stream_abort": 1, "create_notify": 1, "unsubscribe": 1, "inject_fault": 1, "query_wait": 1,
    "value_write": 3, "value_wait": 2, "record_notify": 3, "wait_notify": 2,
    "record_counting": 3, "create_counting": 1, "destroy_counting": 1,
    "capture_begin": 1, "capture_end": 2, "capture_info": 1, "exchange_mode": 1, "execute": 4,
}  # fmt: skip
RARE = (  # they change so much that little of a program makes sense behind them
    "create_context", "destroy_context", "set_context", "get_context", "default_stream", "create_thread", "use_thread",
    "join_thread", "end_thread", "set_device", "reset_device", "reset_device_force", "task_abort", "malloc", "free",
)  # fmt: skip
EMPTYING = {"capture_end": 2, "sync_device": 2, "stream_abort": 3, "destroy_stream_force": 1, "process_report": 1}
STREAM_FAULT, DEVICE_FAULT = 507013, 507015
OPENINGS = (
    (), (), ("create_notify", "create_notify"), ("create_counting", "record_counting", "wait_counting"),
    ("subscribe", "subscribe"), ("create_flag_event", "create_ex_event"),
    ("create_stream", "create_stream", "subscribe"), ("value_wait", "value_write"), ("failure_mode", "inject_fault"),
    ("create_context", "set_context"), ("create_thread", "use_thread", "set_device"),
)  # fmt: skip
TASKS = (
    "launch_mix", "launch_pair", "copy_async", "fill_async", "value_write", "record_notify", "host_func", "callback",
)  # fmt: skip
FORK = (  # a capture of stream 1 that stream 2 joins and leaves; each call with the arguments that make it one
    ("create_stream", {"priority": 3, "flags": 1}), ("create_ex_event", {"flags": 9}),
    ("create_ex_event", {"flags": 9}), ("capture_begin", {"stream": 1}), (TASKS, {"stream": 1}),
    ("record", {"event": 1, "stream": 1}), ("wait", {"stream": 2, "event": 1}), (TASKS, {"stream": 2}),
    (TASKS, {"stream": 1}), ("record", {"event": 2, "stream": 2}), ("wait", {"stream": 1, "event": 2}),
    ("capture_end", {"stream": 1}), ("execute", {}), ("execute", {}), ("sync_stream", {}), ("execute", {}),
)  # fmt: skip
CAPTURING = 0.25  # share of programs that begin with it
LEFT = 3  # rows of the command table that stay free, so that no call waits for one


def program(
    rng: random.Random,
    kit: Kit,
    twin: Card,
    length: int,
    *,
    ties: bool,
    names: Sequence[str | tuple[str, dict[str, int]]] = (),
    allowed: Sequence[str] = tuple(CALLS),
    fills: bool = False,
) -> tuple[np.ndarray, list[tuple]]:
    """Draw a program that ends with a device synchronisation; return it and what the twin says after every call.

    Args:
      rng: Where the dice come from.
      kit: The card that the program is for.
      twin: The twin of that card; it has run the program afterwards.
      length: Calls.
      ties: Whether times are multiples of ten.
      names: The kinds of the calls, if they are given, and arguments that are fixed.
      allowed: The kinds that may be drawn.
      fills: Whether the command table may become full.
    """
    drawn = Draw(rng, twin, ties, allowed, fills)
    script = [(one, {}) if isinstance(one, str) else one for one in names] if len(names) else drawn.script()
    rows, expected = [], []
    for number in range(length):
        name, fixed = script[number] if number < len(script) else ("sync_device", {})
        if len(script) <= number < length - 1:
            name = drawn.name()
        arguments = {each: drawn.argument(name, each, fixed) for each in CALLS[name].names}
        if number == length - 1:
            arguments["timeout_ms"] = -1
        row = np.array(encode(name, **arguments), np.int32)
        drawn.chosen.clear()
        rows.append(row)
        expected.append(expect_one(kit, twin, row))
    return np.stack(rows), expected


class Draw:
    """The dice, and the twin that knows what lives."""

    def __init__(self, rng: random.Random, twin: Card, ties: bool, allowed: Sequence[str], fills: bool) -> None:
        self.rng, self.twin, self.step, self.fills = rng, twin, 10 if ties else 1, fills
        self.allowed = allowed
        self.chosen: dict[str, int] = {}  # arguments of the call that is being drawn
        self.weights = {name: WEIGHTS[name] * rng.choice((0, 1, 1, 2)) for name in allowed}
        rare = rng.choice((0, 0, 0, 0.5))
        self.weights |= {name: rare for name in RARE if name in allowed}

    def script(self) -> list[tuple[str, dict[str, int]]]:
        """Return the calls that a program begins with, and arguments that are fixed."""
        if "execute" in self.allowed and self.rng.random() < CAPTURING:
            return self._fork()
        return [(name, {}) for name in self.rng.choice(OPENINGS) if name in self.allowed]

    def _fork(self) -> list[tuple[str, dict[str, int]]]:
        """The calls of FORK with others in between, and now and then one left out."""
        rng = self.rng
        before = (("subscribe", {"stream": 1}), ("failure_mode", {"stream": 0, "mode": 1}))
        script: list[tuple[str, dict[str, int]]] = [one for one in before if rng.random() < 0.3]
        for names, fixed in FORK:
            if names == "execute" and rng.random() < 0.2:
                script.append(("inject_fault", {"code": STREAM_FAULT, "skip": rng.randrange(6), "reach": 1}))
            if rng.random() < 0.1:
                script.append((rng.choices(list(self.weights), list(self.weights.values()))[0], {}))
            if rng.random() < 0.97:
                script.append((names if isinstance(names, str) else rng.choice(names), fixed))
        return script

    def name(self) -> str:
        weights = self.weights
        if not self.fills and self._is_full():
            weights = {name: weight for name, weight in EMPTYING.items() if name in weights}
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def _is_full(self) -> bool:
        """Whether one of the next rows of the command table is still in use."""
        jobs, rows = self.twin.jobs, self.twin.rows
        next_rows = jobs[max(0, len(jobs) - rows) : max(0, len(jobs) - rows + LEFT)]
        return any(job.is_open or not (job.has_run or job.dropped) for job in next_rows)

    def argument(self, name: str, what: str, fixed: Mapping[str, int]) -> int:
        value = fixed[what] if what in fixed else self._argument(name, what)
        self.chosen[what] = value
        return value

    def _argument(self, name: str, what: str) -> int:
        rng = self.rng
        match what:
            case "stream":
                return self._handle(self.twin.streams)
            case "event":
                return self._handle(self.twin.events)
            case "notify":
                kind = "counting" if name.endswith("counting") else "notify"
                own = [slot for slot, notify in self.twin.notifies.live.items() if notify.kind == kind]
                if own and rng.random() < 0.9:
                    return self.twin.notifies.handle(rng.choice(own))
                return self._handle(self.twin.notifies)
            case "capture_mode":
                return rng.choice((0, 0, 1, 2, 3, -1) if rng.random() < 0.1 else (0, 1, 2))
            case "thread":
                threads = sorted(self.twin.threads)
                return rng.choice(threads) if rng.random() < 0.9 else rng.choice((-1, 0, 1, 2))
            case "context":
                return self._handle(self.twin.contexts)
            case "pointer":
                pointers = [address // 64 for address in self.twin.hbm.blocks]
                return rng.choice((*pointers, 0, 1, -1))
            case "offset" | "start" | "source" | "second" | "target":
                return self._offset(name, what)
            case "nbytes":
                return self._nbytes()
            case "space" | "from_space":
                return HOST if rng.random() < (0.03 if name.startswith("value") else 0.3) else DEVICE
            case "hbm_bytes" | "l2_bytes":
                return self._share(what[:-6])
            case "block_ns" | "duration_ns" | "head_ns" | "callback_ns":
                return self._duration(what)
        return self._small(name, what)

    def _small(self, name: str, what: str) -> int:
        rng = self.rng
        choices = {
            "cube": (0, 1, 1, 1, 2) if rng.random() < 0.1 else (0, 1, 1),
            "vector": (0, 1, 2, 3) if rng.random() < 0.1 else (0, 0, 1, 2),
            "blocks": (1, 0) if rng.random() < 0.05 else (1, 1, 2, 3, 8, 12, 13, 24, 25, 48, 60),
            "at_once": (0, 0, 0, 0, 0, 1),
            "value": (0, 1, 255, 256, -1, 77),
            "timeout_ms": (0, -2, 1) if rng.random() < 0.1 else (-1, -1, -1, 1, 2),
            "timeout_s": (0, 0, 0, 1, 1, 2) if rng.random() < 0.95 else (-1, 3_000_000),
            "limit_ms": (0, 1, 1, 2, -1, 2_147_484),
            "limit_s": (0, 1, 1, 2, -1, 2_200),
            "priority": (0, 0, 1, 3, 7, 8) if rng.random() < 0.2 else (0, 3, 7),
            "flags": (1, 9, 8, 0x20, 0x10, 0x40, 2, 3, 0) if rng.random() < 0.3 else (1, 9),
            "mode": (1, 1, 0, 2),
            "word": (0, 1, 1, 2, 3, 7, -1, -2),
            "flag": (0, 0, 1, 2, 3, 4) if rng.random() < 0.2 else (0, 0, 1, 2, 3),
            "code": (STREAM_FAULT, STREAM_FAULT, STREAM_FAULT, DEVICE_FAULT, 0),
            "skip": (0, 0, 1, 2, -1) if rng.random() < 0.1 else (0, 0, 1, 2),
            "reach": (1, 1, 1, 1, 1, 2, 3) if rng.random() < 0.3 else (1,),
            "size": (DEVICE_BYTES, DEVICE_BYTES, 4000, 3000, 0),
            "number": (*range(10), -1),
            "count": (1, 1, 2, 2, 3, 5, 0, 2**31 - 1, -1) if rng.random() < 0.2 else (1, 1, 2, 2, 3),
            "record_mode": (0, 1, 1, 2, 4, 3, -1) if rng.random() < 0.1 else (0, 1, 1),
            "wait_mode": (0, 4, 5, -1) if rng.random() < 0.1 else (1, 2, 3, 3),
            "clears": (0, 0, 1),
        }
        value = rng.choice(choices[what])
        if what == "flags" and name in ("create_notify", "create_counting", "create_stream"):
            value &= int(name != "create_counting") if rng.random() < 0.9 else 0xFF
        return value

    def _handle(self, slots: Slots) -> int:
        live = [slots.handle(slot) for slot in sorted(slots.live)]
        if not live or self.rng.random() < 0.04:
            return self.rng.choice((-1, slots.count, 0, 1, 1 << 18, 2**31 - 1))
        return self.rng.choice(live)

    def _duration(self, what: str) -> int:
        rng = self.rng
        duration = self.step * rng.choice((1, 1, 2, 3, 4, 5, 8, 20, 100, 5000))
        if what == "head_ns":
            return rng.choice((0, 0, 0, duration))
        if what == "block_ns" and rng.random() < 0.02:
            return 3_000_000
        return rng.choice((0, duration, duration, 10 * duration)) if what == "duration_ns" else duration

    def _share(self, pool: str) -> int:
        """Bytes with which one block draws a chosen part of a pool; never a whole number of 1/65536 (float32)."""
        wanted = self.rng.choice((0, 0, 0, 1 / 50, 1 / 9, 1 / 3, 0.5, 0.7, 1.5))
        seconds = Fraction(self.chosen["block_ns"] * max(1, self.chosen["blocks"]), 10**9)
        whole = seconds * self.twin.fields[f"{pool}_bytes_per_s"]
        nbytes = int(wanted * whole)
        for more in range(30):
            rest = Fraction(65536 * (nbytes + more)) / whole % 1
            if nbytes == 0 or Fraction(1, 10) < rest < Fraction(9, 10):
                return min(nbytes + more, 2**24)
        return 0

    def _nbytes(self) -> int:
        rng = self.rng
        is_inside = self.chosen.get("space") == DEVICE and self.chosen.get("from_space", DEVICE) == DEVICE
        if is_inside and rng.random() < 0.1:
            return rng.choice((65_536, 65_600, 69_000))
        return rng.choice((0, 40, 40, 80, 80, 120, 8))

    def _offset(self, name: str, what: str) -> int:
        rng = self.rng
        if name.startswith("value"):
            return rng.choice((0, 0, 48, 48, 160, 8, 4)) if rng.random() < 0.2 else rng.choice((0, 48))
        if rng.random() < 0.015:
            return rng.choice((-1, -8, HOST_BYTES - 20, DEVICE_BYTES - 20))
        if what in ("offset", "start"):
            return rng.choice((0, 8, 40, 100, 160, 300))
        return rng.choice((0, 16, 48, 100, 160, 200))
