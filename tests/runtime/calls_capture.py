"""The twin's calls: capture of streams, and running what was recorded.

Rules: CANN, ``aclmdlRICaptureBegin`` and its neighbours. Recorded commands do not run; streams that wait for an event
of the capture join it; the last command of the stream on which it began must come after all others.
"""

import dataclasses
from collections.abc import Sequence

from tests.runtime.calls_callbacks import NOBODY_SERVES, CallbackCalls
from tests.runtime.calls_marks import NOTIFIES
from tests.runtime.machine import (
    OBJECTS_FULL,
    RT_PARAM_INVALID,
    STREAM_CAPTURED,
    SUCCESS,
    TABLE_FULL,
)
from tests.runtime.records import NOBODY, Capture, Job, Stream

NO_STREAM, UNJOINED, NOT_CAPTURED, IMPLICIT = 207005, 107025, 107029, 107031
CONFLICT, UNMATCHED, WRONG_THREAD, INVALIDATED = 107032, 107036, 107038, 507903
GLOBAL, RELAXED = 0, 2
DEADLOCK = 900003


class CaptureCalls(CallbackCalls):
    """What records, and what runs what was recorded; ``program`` is the latest good recording."""

    program: tuple[Job, ...] = ()
    origin = 0  # slot of its first stream

    def capture_begin(self, handle: int, mode: int) -> None:
        self.spend("host_event_ns")
        code, stream = self.find_stream(handle)
        if not code:
            is_default = stream.slot in self.contexts.live.values()
            code = RT_PARAM_INVALID if not GLOBAL <= mode <= RELAXED else IMPLICIT if is_default else SUCCESS
            code = code or (STREAM_CAPTURED if stream.capture else SUCCESS)
        if self.answer(code) == SUCCESS:
            stream.capture = Capture(stream.slot, mode, self.thread)

    def capture_info(self, handle: int) -> int:
        code, stream = self.find_stream(handle)
        if self.answer(code):
            return NOBODY
        return (2 if self.refusal(stream.slot) else 1) if stream.capture else 0

    def exchange_mode(self, mode: int) -> int:
        thread = self.threads[self.thread]
        before = thread.capture_mode
        if self.answer(SUCCESS if GLOBAL <= mode <= RELAXED else RT_PARAM_INVALID):
            return NOBODY
        thread.capture_mode = mode
        return before

    def capture_end(self, handle: int) -> int:
        """Return how many commands were recorded."""
        code, stream = self.find_stream(handle)
        capture = stream.capture if stream else None
        if not code:
            code = SUCCESS if capture else NOT_CAPTURED
        if not code and capture.origin != stream.slot:
            code = UNMATCHED
        if not code and capture.thread != self.thread and capture.mode != RELAXED:
            code = WRONG_THREAD
        if not code:
            code = self._flaw(capture)
            jobs = tuple(capture.jobs)
            self.forget_capture(capture)
            if not code:
                self.program, self.origin = jobs, stream.slot
        self.spend("host_event_ns")
        return 0 if self.answer(code) else len(self.program)

    def _flaw(self, capture: Capture) -> int:
        if self.refusal(capture.origin):
            return INVALIDATED
        if any(job.depends is not None and job.depends not in capture.jobs for job in capture.jobs):
            return CONFLICT
        own = [job for job in capture.jobs if job.stream == capture.origin]
        behind = set(own)
        for job in reversed(capture.jobs):  # what a command of the first stream comes after
            earlier = [other for other in capture.jobs[: capture.jobs.index(job)] if other.stream == job.stream]
            behind.update(other for other in (*earlier, job.depends) if other is not None and job in behind)
        return SUCCESS if behind.issuperset(capture.jobs) else UNJOINED

    # running ----------------------------------------------------------------------------------------------------

    def execute(self, handle: int) -> None:
        program = self.program
        if self.waits_for_room:
            self._make_room_for(len(program))
        if any(job.address >= 0 for job in program):
            self.look()
        self.spend("host_launch_ns")
        code, stream = self.find_stream(handle)
        code = code or (STREAM_CAPTURED if stream.capture else SUCCESS) or self._unbound(program)
        code = code or self.refusal(stream.slot)
        slots, wrong = self._slots(program, stream) if not code else ({}, code)
        if not wrong and self._taken_of(len(program)):
            wrong = TABLE_FULL
        if self.answer(wrong) == SUCCESS:
            self._open_sides(slots, stream)
            self._queue(program, slots)

    def _make_room_for(self, count: int) -> None:
        last = None
        while True:
            blockers = [job for job in self._occupants(count) if job.is_queued]
            newest = max(blockers, key=lambda job: job.sequence, default=None)
            if newest is None or newest is last or count > self.rows:
                return
            ending = self.wait(lambda job=newest: not job.is_open, None)
            self.refuses = DEADLOCK if ending == "stuck" else SUCCESS
            last = newest

    def _occupants(self, count: int) -> list[Job]:
        """What is in the rows of the table that the next commands take."""
        first = len(self.jobs) - self.rows
        return [self.jobs[number] for number in range(first, first + count) if 0 <= number < len(self.jobs)]

    def _taken_of(self, count: int) -> bool:
        owed = (not (job.has_run or job.dropped or job.is_erased) for job in self._occupants(count))
        return count > self.rows or any(job.is_open for job in self._occupants(count)) or any(owed)

    def _unbound(self, program: Sequence[Job]) -> int:
        """Why what the commands refer to is not there."""
        if any(job.kind == "callback" and job.thread not in self.threads for job in program):
            return NOBODY_SERVES
        for job in program:
            uses_cell = job.cell is not None and job.kind.split()[0] in ("notify", "event")
            slots = self.notifies if job.kind.startswith("notify") else self.events
            found = slots.find(job.handle) if uses_cell else None
            if uses_cell and not (found and found.kind in ("flag", *NOTIFIES)):
                return RT_PARAM_INVALID
        addresses = {job.address for job in program if job.address >= 0}
        in_use = {address for address, cell in self.values.items() if self.is_busy(cell)}
        return OBJECTS_FULL if addresses and len(in_use | addresses) > self.max_values else SUCCESS

    def _slots(self, program: Sequence[Job], stream: Stream) -> tuple[dict[int, int], int]:
        """Return where each recorded stream goes: sides that work for ``stream`` come first, then free slots."""
        sides = sorted({job.stream for job in program} - {self.origin})
        own = [slot for slot, other in sorted(self.streams.live.items()) if other.master == stream.slot]
        free = [slot for slot in self._streams_free(is_limited=False) if slot not in own]
        chosen = [*own, *free][: len(sides)]
        room = self.fields["max_streams"] - (self.streams.count - len(self._streams_free(is_limited=False)))
        is_new = [slot for slot in chosen if slot in self._streams_free(is_limited=False)]
        if len(chosen) < len(sides) or len(is_new) > room:
            return {}, NO_STREAM
        return {self.origin: stream.slot, **dict(zip(sides, chosen, strict=True))}, SUCCESS

    def _open_sides(self, slots: dict[int, int], stream: Stream) -> None:
        stops = self.scheduler.stop_on_failure
        for slot in slots.values():
            if slot != stream.slot and not self.scheduler.queues[slot]:
                self.scheduler.stream_error[slot] = SUCCESS
                self.scheduler.masters[slot] = stream.slot
                self.streams.live[slot] = Stream(slot, self.context, master=stream.slot)
                stops.discard(slot)
                stops.update({slot} if stream.slot in stops else ())

    def _queue(self, program: Sequence[Job], slots: dict[int, int]) -> None:
        copies: dict[Job, Job] = {}
        for job in program:
            sequence = len(self.jobs)
            fault, reach = self.planned(sequence)
            depends = copies[job.depends] if job.depends else None
            copy = dataclasses.replace(
                job, stream=slots[job.stream], sequence=sequence, issue=self.host, depends=depends, fault=fault,
                reach=reach, is_erased=False, has_run=job.kind != "callback", cell=self._cell_now(job),
            )  # fmt: skip
            if job.kind == "callback wait":
                copy.cell = self.cell("callback", sequence - 1)  # it comes right after its callback
            copies[job] = copy
            self.jobs.append(copy)
            self.scheduler.enqueue(copy)

    def _cell_now(self, job: Job) -> int | None:
        """A value's cell takes over what memory holds unless a command uses it."""
        if job.address < 0:
            return job.cell
        cell = self.cell("value", job.address)
        if job.address not in self.values or not self.is_busy(cell):
            self.scheduler.cells[cell] = int.from_bytes(self.memory[job.address : job.address + 8], "little")
        self.values[job.address] = cell
        return cell
