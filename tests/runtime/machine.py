"""What lies behind the calls of the twin: handles, host threads, the status word, bytes, and when things happen."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from tests.runtime.pages import GRANULE, HBM_FIRST, HOST_FIRST, Pages
from tests.runtime.records import NOBODY, Capture, Event, Job, Slots, Stream, Thread
from tests.runtime.scheduler import POOL, Scheduler

STREAM_CAPTURED, EVENT_CAPTURED, CAPTURE_FORBIDS = 107027, 107028, 107030
SUCCESS, INVALID_PARAM, RT_PARAM_INVALID, NO_CONTEXT, BAD_STREAM = 0, 100000, 107000, 107002, 107003
WAIT_TIMEOUT, STREAM_ABORT, STREAM_TIMEOUT = 107019, 107023, 507046
TABLE_FULL, NO_BYTES, DEADLOCK, OBJECTS_FULL = 900001, 900002, 900003, 900005
PIECE = 64 << 20  # bytes


class Machine:
    """One card and the host program's clocks; ``fields`` is the chip sheet (name -> value)."""

    def __init__(self, fields: Mapping[str, float], sizes: Mapping[str, int], *, waits_for_room: bool) -> None:
        self.fields = {name: Fraction(float(value)) for name, value in fields.items()}
        self.rows, self.max_values = sizes["max_commands"], sizes["max_values"]
        self.waits_for_room = waits_for_room
        self.streams, self.contexts = Slots(sizes["max_streams"]), Slots(sizes["max_contexts"])
        self.events, self.notifies = Slots(sizes["max_events"]), Slots(sizes["max_notifies"])
        self.host_stream = sizes["max_streams"]
        self.threads, self.thread, self.users = {0: Thread(0, 0)}, 0, 1
        self.max_threads = sizes["max_threads"]
        self.contexts.live[0] = 0  # -> slot of its default stream
        self.streams.live[0] = Stream(0, 0)
        self.values: dict[int, int] = {}  # address -> cell
        self.faults = [(NOBODY, 0, "")] * sizes["max_faults"]  # (sequence number, code, reach)
        self.jobs: list[Job] = []
        self.calls = self.sticky = self.last = 0
        self.op_timeout = int(fields["op_timeout_s"]) * 10**9  # ns, of kernels enqueued from now on; 0: never
        self.wait_timeout = 0  # the same of waits
        pad = int(fields["malloc_pad_bytes"])
        self.hbm = Pages(HBM_FIRST, int(fields["hbm_bytes"]), sizes["max_blocks"], pad=pad)
        host_end = HOST_FIRST + sizes["host_backing_bytes"]
        self.pinned = Pages(HOST_FIRST, host_end, sizes["max_blocks"], paged=False)
        self.backing = sizes["hbm_backing_bytes"], sizes["host_backing_bytes"]
        self.memory, self.shadow = bytearray(sum(self.backing)), bytearray(sum(self.backing))
        capacity = {"cube": int(fields["cube_cores"]), "vector": int(fields["vector_cores"])}
        self.scheduler = Scheduler(capacity | dict.fromkeys(("h2d", "d2h", "d2d"), 1), self.host_stream + 1, 0)
        self.scheduler.on_start, self.scheduler.on_end = self._on_start, self._on_end
        self._cells: dict[tuple[str, int], int] = defaultdict(self._new_cell)

    # bytes ------------------------------------------------------------------------------------------------------

    def _on_start(self, job: Job) -> None:
        if job.compute and job.is_task and not job.fault:
            self._fill(self.shadow, job, job.compute(self.memory))

    def _on_end(self, job: Job) -> None:
        if job.result:
            return
        if job.compute and not job.is_task:
            self._fill(self.shadow, job, job.compute(self.memory))
        for first, length in job.writes:
            self.memory[first : first + length] = self.shadow[first : first + length]

    def _fill(self, target: bytearray, job: Job, results: Sequence[bytes]) -> None:
        for (first, length), result in zip(job.writes, results, strict=True):
            target[first : first + length] = result

    def index(self, pointer: int, offset: int) -> int:
        address = pointer * GRANULE + offset
        return address - HBM_FIRST if pointer > 0 else address - HOST_FIRST + self.backing[0]

    def check(self, pointer: int, offset: int, nbytes: int) -> int:
        """Return the status of a byte range."""
        if pointer == 0:
            return INVALID_PARAM
        pages = self.hbm if pointer > 0 else self.pinned
        if offset < 0 or nbytes < 0 or not pages.holds(pointer * GRANULE + offset, nbytes):
            return RT_PARAM_INVALID
        inside = pointer * GRANULE + offset - pages.first + nbytes <= self.backing[pointer < 0]
        return SUCCESS if inside or not self.backing[0] else NO_BYTES

    # the host ---------------------------------------------------------------------------------------------------

    @property
    def host(self) -> int:
        return self.threads[self.thread].host

    @host.setter
    def host(self, time: int) -> None:
        self.threads[self.thread].host = time

    @property
    def context(self) -> int:
        return self.threads[self.thread].context

    def spend(self, field: str) -> None:
        self.host += math.ceil(self.fields[field])

    def answer(self, code: int) -> int:
        self.calls += 1
        self.refuses = SUCCESS
        self.last = code
        self.sticky = self.sticky or code
        return code

    def overrule(self, code: int) -> None:
        """A call that was accepted has failed after all."""
        if code and not self.last:
            self.last = code
            self.sticky = self.sticky or code

    # handles ----------------------------------------------------------------------------------------------------

    def has_context(self) -> int:
        return SUCCESS if self.context in self.contexts.live else NO_CONTEXT

    def find_stream(self, handle: int) -> tuple[int, Stream | None]:
        if self.has_context():
            return NO_CONTEXT, None
        default = self.streams.live[self.contexts.live[self.context]]
        stream = default if handle == 0 else self.streams.find(handle)
        is_mine = stream is not None and stream.context == self.context and stream.master == NOBODY
        return (SUCCESS, stream) if is_mine else (BAD_STREAM, None)

    def find_event(self, slots: Slots, handle: int) -> tuple[int, Event | None]:
        event = slots.find(handle)
        return self.has_context() or (SUCCESS if event else RT_PARAM_INVALID), event

    def _new_cell(self) -> int:
        self.scheduler.cells.append(0)
        return len(self.scheduler.cells) - 1

    def cell(self, kind: str, number: int) -> int:
        return self._cells[kind, number]

    def is_busy(self, cell: int) -> bool:
        """Whether a command that may still happen looks at the cell or will change it."""
        return any(job.is_open and job.cell == cell for job in self.jobs)

    def forget_capture(self, capture: Capture) -> None:
        """A capture is over: its streams are free, its events as if never recorded, its rows empty."""
        for stream in self.streams.live.values():
            stream.capture = None if stream.capture is capture else stream.capture
        for slots in (self.events, self.notifies):
            for event in slots.live.values():
                event.record = None if event.record in capture.jobs else event.record
        for job in capture.jobs:
            job.is_captured, job.is_erased, job.has_run = False, True, True

    def bars_blocking(self) -> int:
        """Return why this thread may not copy or fill and wait for it now."""
        own = self.threads[self.thread].capture_mode
        captures = {id(stream.capture): stream.capture for stream in self.streams.live.values() if stream.capture}
        for capture in captures.values():
            is_mine = capture.thread == self.thread
            if 2 not in (own, capture.mode) and (is_mine or (own == 0 and capture.mode == 0)):
                return CAPTURE_FORBIDS
        return SUCCESS

    # time -------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Bring the device up to where the host stands."""
        if self.scheduler.now <= self.host:
            self.scheduler.advance_to(self.host)
        self._stop_all_sides()

    def wait(self, is_reached: Callable[[], bool], timeout_ns: int | None = None) -> str:
        """Block the host; return "reached", "limit", "stuck" or "lost".

        A thread that is behind the device finds it as it is: what is reached already takes it nowhere.
        """
        ending = self._wait(is_reached, timeout_ns)
        self._stop_all_sides()
        return ending

    def _stop_all_sides(self) -> None:
        """Of a program in a stream that stops on failure, the failed stream stops at once and the others now."""
        for slot in self.scheduler.stop_on_failure:
            if self.scheduler.stream_error[slot]:
                self.scheduler.drop_stream(slot)

    def _wait(self, is_reached: Callable[[], bool], timeout_ns: int | None) -> str:
        device = self.scheduler
        if device.device_error:
            return "lost"
        if is_reached():
            return "reached"
        limit = None if timeout_ns is None else self.host + timeout_ns
        ending = device.run_until(lambda: bool(device.device_error) or is_reached(), limit)
        self.host = limit if ending == "limit" else max(self.host, device.now)
        return "lost" if device.device_error else ending

    def is_empty(self, slots: Sequence[int]) -> Callable[[], bool]:
        return lambda: not any(self.scheduler.queues[slot] for slot in slots)

    def settle(
        self,
        is_reached: Callable[[], bool],
        *,
        streams: Sequence[int] = (),
        job: Job | None = None,
        timeout_ns: int | None = None,
        expired: int = STREAM_TIMEOUT,
    ) -> int:
        """Block the host; return the code that follows from how that went."""
        ending = self.wait(is_reached, timeout_ns)
        errors = [self.scheduler.stream_error[slot] for slot in sorted(streams) if self.scheduler.stream_error[slot]]
        self.scheduler.stream_error[self.host_stream] = SUCCESS  # a blocking copy answers for itself
        code = self.scheduler.device_error or next(iter(errors), 0)
        code = code or (STREAM_ABORT if job and job.dropped else 0)
        return code or {"stuck": DEADLOCK, "limit": expired}.get(ending, SUCCESS)

    # commands ---------------------------------------------------------------------------------------------------

    def make_room(self, handle: int = 0, ahead: int = 0) -> None:
        """Wait for a row of the table and a place in the queue behind ``ahead`` others, as an eager program does."""
        if not self.waits_for_room:
            return
        blocker = self.row_taken_by(ahead)
        if blocker is not None and blocker.is_captured:
            blocker = None  # waiting does not free it
        code, stream = self.find_stream(handle)
        if blocker is None and code == SUCCESS:
            queue = self.scheduler.queues[stream.slot]
            blocker = queue[0] if queue and len(queue) + ahead >= self.fields["queue_depth"] else None
        if blocker is not None:
            ending = self.wait(lambda: not blocker.is_open, None)
            self.refuses = DEADLOCK if ending == "stuck" else SUCCESS  # what this call then answers

    def row_taken_by(self, ahead: int = 0) -> Job | None:
        """The command whose row of the table the next one, or one later, would take, if it is not over."""
        number = len(self.jobs) - self.rows + ahead
        old = self.jobs[number] if number >= 0 else None
        return old if old is not None and (old.is_open or not (old.has_run or old.dropped)) else None

    def lose_callbacks(self, slot: int, thread: int | None = None) -> None:
        """Callbacks of a stream (for a thread) that nobody has run will never be run."""
        for job in self.jobs:
            job.has_run = job.has_run or (job.stream == slot and thread in (None, job.thread) and not job.is_captured)

    def serves(self, thread: int) -> bool:
        """Whether a thread may have callbacks to run."""
        is_asked = any(stream.reporter == thread for stream in self.streams.live.values())
        owed = (job for job in self.jobs if job.thread == thread and not (job.has_run or job.dropped or job.result))
        return is_asked or any(not job.is_captured and not job.is_erased for job in owed)

    def refusal(self, slot: int) -> int:
        """Return why a stream takes nothing more, or 0."""
        stops = slot in self.scheduler.stop_on_failure
        stopped = self.scheduler.stream_error[slot] if stops else SUCCESS
        return self.scheduler.device_error or stopped or self.refuses

    def planned(self, sequence: int) -> tuple[int, str]:
        """Return (code, reach) of the failure that is planned for a command."""
        return next((fault[1:] for fault in self.faults if fault[0] == sequence), (0, "stream"))

    def enqueue(self, kind: str, slot: int, **fields: Any) -> tuple[int, Job | None]:
        code = self.refusal(slot) or (TABLE_FULL if self.row_taken_by() else SUCCESS)
        if code:
            return code, None
        counts = slot != self.host_stream and self.fields["has_priorities"]
        priority = self.streams.live[slot].priority if counts else 0
        sequence = len(self.jobs)
        fault, reach = self.planned(sequence)
        marks = {"timeout_code": WAIT_TIMEOUT, "timeout_reach": "stream"}
        given = marks | {"priority": priority, "fault": fault, "reach": reach, "issue": self.host} | fields
        job = Job(kind, slot, sequence=sequence, **given)
        self.jobs.append(job)
        capture = self.streams.live[slot].capture if slot != self.host_stream else None
        if capture:
            job.is_captured = True
            capture.jobs.append(job)
        else:
            self.scheduler.enqueue(job)
        return SUCCESS, job

    def transfer(self, nbytes: int, to_host: bool, from_host: bool) -> dict[str, Any]:
        """Return what a copy takes: pieces of 64 MiB over the link, one task inside the device or the host."""
        engine = {(0, 0): "d2d", (0, 1): "h2d", (1, 0): "d2h", (1, 1): ""}[int(to_host), int(from_host)]
        rate = self.fields[f"{engine or 'h2d'}_bytes_per_s"]
        pieces = max(1, -(-nbytes // PIECE)) if engine in ("h2d", "d2h") else 1
        piece_ns = self.fields["copy_latency_ns"] + Fraction(nbytes, pieces) * 10**9 / rate
        passes = {"d2d": 2, "": 0}.get(engine, 1)  # over the HBM
        drawn = passes * Fraction(nbytes, pieces) / (piece_ns / 10**9)
        hbm = min(POOL - 1, math.floor(POOL * drawn / self.fields["hbm_bytes_per_s"]))
        return {"engine": engine, "blocks": pieces, "block": max(1, math.ceil(piece_ns)), "hbm": hbm}
