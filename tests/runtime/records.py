"""What there is on the twin's card: commands, streams, events, threads, captures, and the slots that they are in."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tests.runtime.scheduler import Command

ALL_STREAMS, NOBODY = -2, -1
RUNTIME = -2  # serves a stream that has called a host function


@dataclasses.dataclass(eq=False)
class Job(Command):
    """A command with what it does to memory."""

    sequence: int = -1
    writes: tuple[tuple[int, int], ...] = ()  # (first byte, length)
    compute: Callable[[bytearray], Sequence[bytes]] | None = None  # from memory as it is at the start
    handle: int = -1  # event or notify concerned, or the number of a callback
    thread: int = -1  # that runs this callback
    has_run: bool = True
    address: int = -1  # of the value concerned
    is_captured: bool = False  # recorded, and not run
    is_erased: bool = False  # it was recorded, and the capture is over

    @property
    def is_open(self) -> bool:
        """Whether it holds its row and its cell: it may still happen, or is recorded."""
        return self.end < 0 and not self.dropped and not self.is_erased

    @property
    def is_queued(self) -> bool:
        """Whether it may still happen."""
        return self.is_open and not self.is_captured


@dataclasses.dataclass(eq=False)
class Capture:
    """What is recorded since a begin."""

    origin: int  # slot
    mode: int
    thread: int
    jobs: list[Job] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Stream:
    """A stream slot in use."""

    slot: int
    context: int
    priority: int = 0
    flags: int = 0
    reporter: int = NOBODY  # a thread, or RUNTIME
    capture: Capture | None = None
    master: int = NOBODY  # slot of the stream for which it runs a side of a program


@dataclasses.dataclass(eq=False)
class Event:
    """An event or a notify."""

    slot: int
    context: int
    kind: str  # "plain", "flag", "ex" or "notify"
    flags: int
    record: Job | None = None

    @property
    def is_captured(self) -> bool:
        """Whether the latest record belongs to a capture."""
        return self.record is not None and self.record.is_captured


@dataclasses.dataclass(eq=False)
class Thread:
    """A host thread."""

    host: int
    context: int = NOBODY
    capture_mode: int = 0


class Slots:
    """Places for objects of one kind; a handle is the slot and how often it has been given back."""

    def __init__(self, count: int) -> None:
        self.count, self.generation, self.live = count, [0] * count, {}

    def free(self) -> list[int]:
        return [slot for slot in range(self.count) if slot not in self.live]

    def handle(self, slot: int) -> int:
        return slot | self.generation[slot] << 18

    def find(self, handle: int) -> Any:
        slot = handle % 2**18
        return self.live.get(slot) if slot < self.count and handle == self.handle(slot) else None

    def give_back(self, slot: int) -> None:
        del self.live[slot]
        self.generation[slot] = (self.generation[slot] + 1) % 2**12
