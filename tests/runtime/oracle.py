"""Plain Python twins of the runtime, written from its rules and sharing no code with it.

:class:`Card` takes host calls one by one and keeps times as Python ints, memory as bytearrays and blocks as lists.
:class:`Pages` is the allocator alone.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

SUCCESS, INVALID_PARAM, RT_PARAM_INVALID, RT_STREAM = 0, 100000, 107000, 107003
FEATURE_NOT_SUPPORT, MEMORY_ALLOCATION, NO_STREAM, NO_EVENT = 207000, 207001, 207005, 207007
NO_BYTES, HEAP_FULL = 900002, 900004

GRANULE = 64
HBM_FIRST = 2 << 20  # byte address of the first allocatable byte
HOST_FIRST = (-(2**31) + 1) * GRANULE
HOST_STREAM = -1  # how a timeline shows the host's own stream


class Pages:
    """First-fit allocator over byte addresses; one instance per memory."""

    def __init__(self, first: int, end: int, max_blocks: int, *, pad: int = 0, paged: bool = True) -> None:
        self.first, self.end, self.max_blocks, self.pad, self.paged = first, end, max_blocks, pad, paged
        self.blocks: dict[int, tuple[int, int]] = {}  # address -> (bytes taken, bytes asked)
        self.peak = 0

    @property
    def used(self) -> int:
        return sum(taken for taken, _ in self.blocks.values())

    def malloc(self, nbytes: int, policy: int = 0) -> tuple[int, int]:
        """Return (status, granule pointer)."""
        if nbytes <= 0 or not 0 <= policy <= 7:
            return INVALID_PARAM, 0
        if len(self.blocks) == self.max_blocks:
            return HEAP_FULL, 0
        for taken, page in self._tries(nbytes, policy):
            address = self._gap(taken, page)
            if address is not None:
                self.blocks[address] = (taken, nbytes)
                self.peak = max(self.peak, self.used)
                return SUCCESS, address // GRANULE
        return MEMORY_ALLOCATION, 0

    def _tries(self, nbytes: int, policy: int) -> list[tuple[int, int]]:
        if not self.paged:
            return [(_up(nbytes, GRANULE), GRANULE)]
        small, huge, giant = 4 << 10, 2 << 20, 1 << 30
        if policy in (6, 7):
            return [(_up(nbytes, giant), giant)]
        size, kind = _up(nbytes, 32) + self.pad, policy % 3
        if kind == 1:
            pages = [huge]
        elif kind == 2:
            pages = [small]
        else:
            pages = [small] if nbytes <= 1 << 20 else [huge, small]
        return [(_up(size, page), page) for page in pages]

    def _gap(self, size: int, align: int) -> int | None:
        opening = self.first
        for start in [*sorted(self.blocks), self.end]:
            address = _up(opening, align)
            if address + size <= start:
                return address
            opening = start + self.blocks[start][0] if start in self.blocks else start
        return None

    def free(self, pointer: int) -> int:
        if pointer == 0:
            return INVALID_PARAM
        if pointer * GRANULE not in self.blocks:
            return RT_PARAM_INVALID
        del self.blocks[pointer * GRANULE]
        return SUCCESS

    def holds(self, address: int, nbytes: int) -> bool:
        return any(s <= address and address + nbytes <= s + asked for s, (_, asked) in self.blocks.items())


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclasses.dataclass(eq=False)
class Command:
    """One command: what it needs, what it does to memory, when it happened."""

    sequence: int
    kind: str
    stream: int
    issue: int
    duration: int
    need: dict[str, int]
    depends: "Command | None" = None
    writes: tuple[tuple[int, int], ...] = ()  # (first byte, length)
    compute: Callable[[bytearray], Sequence[bytes]] | None = None  # from memory as it is at the start
    ready: int = -1
    start: int = -1
    end: int = -1


class Card:
    """One simulated card. ``fields`` is the chip sheet (name -> value); calls return their status code."""

    def __init__(
        self,
        fields: Mapping[str, float],
        *,
        max_streams: int,
        max_events: int,
        max_blocks: int,
        hbm_backing: int,
        host_backing: int,
    ) -> None:
        self.fields = {name: Fraction(float(value)) for name, value in fields.items()}
        self.capacity = {"cube": int(fields["cube_cores"]), "vector": int(fields["vector_cores"])}
        self.capacity |= {"h2d": 1, "d2h": 1, "d2d": 1}
        self.max_streams = min(max_streams, int(fields["max_streams"]))
        self.max_events = min(max_events, int(fields["max_events"]))
        self.streams, self.events = {0}, {}  # live handles; event -> latest record or None
        self.queues: dict[int, list[Command]] = {}
        self.commands: list[Command] = []
        self.running: list[Command] = []
        self.waiting: list[Command] = []
        self.host, self.device, self.calls, self.sticky, self.last = 0, 0, 0, 0, 0
        pad = int(fields["malloc_pad_bytes"])
        self.hbm = Pages(HBM_FIRST, int(fields["hbm_bytes"]), max_blocks, pad=pad)
        self.pinned = Pages(HOST_FIRST, HOST_FIRST + host_backing, max_blocks, paged=False)
        self.hbm_backing, self.host_backing = hbm_backing, host_backing
        self.memory, self.shadow = (
            bytearray(hbm_backing + host_backing),
            bytearray(hbm_backing + host_backing),
        )

    # time -----------------------------------------------------------------------------------------------------

    def _spend(self, field: str) -> None:
        self.host += math.ceil(self.fields[field])

    def _heads(self) -> list[Command]:
        return [queue[0] for queue in self.queues.values() if queue]

    def _is_ready(self, command: Command) -> bool:
        depends = command.depends
        return command.start < 0 and command.issue <= self.device and (depends is None or depends.end >= 0)

    def _end_due(self) -> None:
        due = sorted((c for c in self.running if c.start + c.duration == self.device), key=lambda c: c.sequence)
        for command in due:
            command.end = self.device
            self.running.remove(command)
            self.queues[command.stream].remove(command)
            for first, length in command.writes:
                self.memory[first : first + length] = self.shadow[first : first + length]

    def _settle_marks(self) -> None:
        """Records and waits take no time, so all that can happen now happens before anything starts."""
        while marks := [c for c in self._heads() if c.kind.startswith("event") and self._is_ready(c)]:
            for command in marks:
                command.ready = command.start = command.end = self.device
                self.queues[command.stream].remove(command)

    def _start_ready(self) -> None:
        for command in self._heads():
            if command.ready < 0 and self._is_ready(command):
                command.ready = self.device
                self.waiting.append(command)
        order = {HOST_STREAM: math.inf}
        self.waiting.sort(key=lambda c: (c.ready, order.get(c.stream, c.stream)))
        free = dict(self.capacity)
        for command in self.running:
            for resource, units in command.need.items():
                free[resource] -= units
        demand, started = dict.fromkeys(free, 0), []
        for command in self.waiting:
            for resource, units in command.need.items():
                demand[resource] += units
            if all(units == 0 or demand[resource] <= free[resource] for resource, units in command.need.items()):
                started.append(command)
        for command in sorted(started, key=lambda c: c.sequence):
            command.start = self.device
            self.waiting.remove(command)
            self.running.append(command)
            results = command.compute(self.memory) if command.compute else ()
            for (first, length), result in zip(command.writes, results, strict=True):
                self.shadow[first : first + length] = result

    def _next_instant(self) -> int | None:
        ends = [c.start + c.duration for c in self.running]
        issues = [c.issue for c in self._heads() if c.start < 0 and c.issue > self.device]
        return min(ends + issues, default=None)

    def _look(self) -> None:
        """Bring the device up to the host: every earlier instant, and the ends of this one."""
        while self.device < self.host:
            self._settle_marks()
            self._start_ready()
            following = self._next_instant()
            self.device = self.host if following is None else min(following, self.host)
            self._end_due()

    def _block(self, is_reached: Callable[[], bool]) -> None:
        while not is_reached():
            self._settle_marks()
            if is_reached():
                break
            self._start_ready()
            following = self._next_instant()
            assert following is not None, "nothing can ever start"
            self.device = following
            self._end_due()
        self.host = max(self.host, self.device)

    # calls ----------------------------------------------------------------------------------------------------

    def _answer(self, code: int) -> int:
        self.calls += 1
        self.last = code
        self.sticky = self.sticky or code
        return code

    def _enqueue(self, kind: str, stream: int, duration: int = 0, need: dict | None = None, **rest) -> Command:
        command = Command(len(self.commands), kind, stream, self.host, duration, need or {}, **rest)
        self.commands.append(command)
        self.queues.setdefault(stream, []).append(command)
        return command

    def _index(self, pointer: int, offset: int) -> int:
        address = pointer * GRANULE + offset
        return address - HBM_FIRST if pointer > 0 else address - HOST_FIRST + self.hbm_backing

    def check(self, pointer: int, offset: int, nbytes: int) -> int:
        """Return the status of a byte range."""
        if pointer == 0:
            return INVALID_PARAM
        pages = self.hbm if pointer > 0 else self.pinned
        if offset < 0 or nbytes < 0 or not pages.holds(pointer * GRANULE + offset, nbytes):
            return RT_PARAM_INVALID
        backing = self.hbm_backing if pointer > 0 else self.host_backing
        inside = pointer * GRANULE + offset - pages.first + nbytes <= backing
        return SUCCESS if inside or not self.hbm_backing else NO_BYTES

    def _transfer(self, nbytes: int, to_host: bool, from_host: bool) -> tuple[int, dict[str, int]]:
        engine = {(0, 0): "d2d", (0, 1): "h2d", (1, 0): "d2h", (1, 1): ""}[int(to_host), int(from_host)]
        rate = self.fields[f"{engine or 'h2d'}_bytes_per_s"]
        duration = math.ceil(self.fields["copy_latency_ns"] + nbytes * 10**9 / rate)
        return max(1, duration), {engine: 1} if engine else {}

    def work(self, duration: int) -> None:
        self.host += max(0, duration)

    def malloc(self, nbytes: int, policy: int = 0) -> int:
        code, pointer = self.hbm.malloc(nbytes, policy)
        self._spend("host_malloc_ns")
        self._answer(code)
        return pointer

    def malloc_host(self, nbytes: int) -> int:
        code, pointer = self.pinned.malloc(nbytes)
        self._spend("host_malloc_ns")
        self._answer(code)
        return pointer

    def prepare(self) -> None:
        self._spend("host_op_prepare_ns")
        self._answer(SUCCESS)

    def create_stream(self) -> int:
        self._spend("host_stream_create_ns")
        unused = set(range(self.max_streams)) - self.streams
        self._answer(SUCCESS if unused else NO_STREAM)
        handle = min(unused, default=-1)
        self.streams |= {handle} if unused else set()
        return handle

    def destroy_stream(self, stream: int) -> None:
        if stream not in self.streams or stream == 0:
            self._answer(RT_STREAM)
            return
        self._block(lambda: not self.queues.get(stream))
        self.streams.remove(stream)
        self._answer(SUCCESS)

    def create_event(self) -> int:
        self._spend("host_event_ns")
        unused = set(range(self.max_events)) - set(self.events)
        self._answer(SUCCESS if unused else NO_EVENT)
        handle = min(unused, default=-1)
        if unused:
            self.events[handle] = None
        return handle

    def destroy_event(self, event: int) -> None:
        self._answer(SUCCESS if event in self.events else RT_PARAM_INVALID)
        self.events.pop(event, None)

    def record_event(self, event: int, stream: int) -> None:
        self._spend("host_event_ns")
        code = RT_STREAM if stream not in self.streams else SUCCESS if event in self.events else RT_PARAM_INVALID
        if self._answer(code) == SUCCESS:
            self.events[event] = self._enqueue("event record", stream)

    def wait_event(self, stream: int, event: int) -> None:
        self._spend("host_event_ns")
        code = RT_STREAM if stream not in self.streams else SUCCESS if event in self.events else RT_PARAM_INVALID
        if self._answer(code) == SUCCESS:
            self._enqueue("event wait", stream, depends=self.events[event])

    def synchronize_stream(self, stream: int) -> None:
        self._spend("host_sync_ns")
        if self._answer(SUCCESS if stream in self.streams else RT_STREAM) == SUCCESS:
            self._block(lambda: not self.queues.get(stream))

    def synchronize_event(self, event: int) -> None:
        self._spend("host_sync_ns")
        if self._answer(SUCCESS if event in self.events else RT_PARAM_INVALID) == SUCCESS:
            record = self.events[event]
            self._block(lambda: record is None or record.end >= 0)

    def synchronize_device(self) -> None:
        self._spend("host_sync_ns")
        self._answer(SUCCESS)
        self._block(lambda: not self._heads())

    def launch(
        self,
        stream: int,
        duration: int,
        cube: int,
        vector: int,
        reads: Sequence[tuple[int, int, int]],
        writes: Sequence[tuple[int, int, int]],
        value: Callable[..., Sequence[bytes]],
    ) -> None:
        """Queue a kernel; ``reads`` and ``writes`` are (pointer, offset, bytes)."""
        self._spend("host_launch_ns")
        code = SUCCESS if stream in self.streams else RT_STREAM
        for place in (*reads, *writes):
            code = code or self.check(*place) or (RT_PARAM_INVALID if place[0] < 0 else SUCCESS)
        if self._answer(code) != SUCCESS:
            return
        inputs = [(self._index(p, o), n) for p, o, n in reads]
        self._enqueue(
            "kernel",
            stream,
            max(1, duration),
            {"cube": cube, "vector": vector},
            writes=tuple((self._index(p, o), n) for p, o, n in writes),
            compute=lambda memory: value(*(bytes(memory[i : i + n]) for i, n in inputs)),
        )

    def copy(self, dst: tuple[int, int], src: tuple[int, int], nbytes: int, stream: int | None = None) -> None:
        """Copy between (pointer, offset) places, without a stream blocking on the host's own."""
        is_blocking = stream is None
        self._spend("host_copy_sync_ns" if is_blocking else "host_copy_enqueue_ns")
        to_host, from_host = dst[0] < 0, src[0] < 0
        code = SUCCESS if is_blocking or stream in self.streams else RT_STREAM
        code = code or (FEATURE_NOT_SUPPORT if to_host and from_host and not is_blocking else SUCCESS)
        code = code or self.check(*dst, nbytes) or self.check(*src, nbytes)
        if self._answer(code) == SUCCESS and nbytes and dst != src:
            duration, need = self._transfer(nbytes, to_host, from_host)
            first, last = self._index(*src), self._index(*src) + nbytes
            self._enqueue(
                "copy",
                HOST_STREAM if is_blocking else stream,
                duration,
                need,
                writes=((self._index(*dst), nbytes),),
                compute=lambda memory: [bytes(memory[first:last])],
            )
        if is_blocking:
            self._block(lambda: not self.queues.get(HOST_STREAM))

    def fill(self, dst: tuple[int, int], value: int, nbytes: int, stream: int | None = None) -> None:
        """Set bytes, without a stream blocking on the host's own."""
        is_blocking = stream is None
        self._spend("host_copy_sync_ns" if is_blocking else "host_copy_enqueue_ns")
        code = SUCCESS if is_blocking or stream in self.streams else RT_STREAM
        code = code or self.check(*dst, nbytes)
        if self._answer(code) == SUCCESS and nbytes:
            duration, need = self._transfer(nbytes, dst[0] < 0, dst[0] < 0)
            writes = ((self._index(*dst), nbytes),)
            data = bytes([value % 256]) * nbytes
            queue = HOST_STREAM if is_blocking else stream
            self._enqueue("memset", queue, duration, need, writes=writes, compute=lambda memory: [data])
        if is_blocking:
            self._block(lambda: not self.queues.get(HOST_STREAM))

    def _pageable(self, place: tuple[int, int], nbytes: int, engine: str) -> int:
        self._spend("host_copy_sync_ns")
        code = self._answer(RT_PARAM_INVALID if place[0] < 0 else self.check(*place, nbytes))
        if code == SUCCESS and nbytes:
            duration, need = self._transfer(nbytes, engine == "d2h", engine == "h2d")
            self._enqueue("copy", HOST_STREAM, duration, need)
        self._block(lambda: not self.queues.get(HOST_STREAM))
        return code

    def upload(self, place: tuple[int, int], data: bytes) -> None:
        if self._pageable(place, len(data), "h2d") == SUCCESS:
            self._put(place, data)

    def download(self, place: tuple[int, int], nbytes: int) -> bytes:
        return self._get(place, nbytes) if self._pageable(place, nbytes, "d2h") == SUCCESS else bytes(nbytes)

    def host_write(self, place: tuple[int, int], data: bytes) -> None:
        self._look()
        if self._answer(RT_PARAM_INVALID if place[0] > 0 else self.check(*place, len(data))) == SUCCESS:
            self._put(place, data)

    def host_read(self, place: tuple[int, int], nbytes: int) -> bytes:
        self._look()
        code = self._answer(RT_PARAM_INVALID if place[0] > 0 else self.check(*place, nbytes))
        return self._get(place, nbytes) if code == SUCCESS else bytes(nbytes)

    def _put(self, place: tuple[int, int], data: bytes) -> None:
        self.memory[self._index(*place) : self._index(*place) + len(data)] = data

    def _get(self, place: tuple[int, int], nbytes: int) -> bytes:
        return bytes(self.memory[self._index(*place) : self._index(*place) + nbytes])
