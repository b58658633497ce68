"""The twin's calls: functions of the host program that streams call, in threads of the program or of the runtime."""

from tests.runtime.calls_marks import MarkCalls
from tests.runtime.machine import INVALID_PARAM, RT_PARAM_INVALID, SUCCESS, TABLE_FULL
from tests.runtime.records import NOBODY, RUNTIME, Job

IS_SERVED, NOT_SERVED_HERE, NOBODY_SERVES, REPORT_TIMEOUT = 107011, 107012, 107015, 507012


class CallbackCalls(MarkCalls):
    """Who serves a stream, what is handed over, and running it."""

    def subscribe_report(self, thread: int, handle: int) -> None:
        code, stream = self.find_stream(handle)
        code = code or (SUCCESS if thread in self.threads else RT_PARAM_INVALID)
        code = code or (IS_SERVED if stream.reporter != NOBODY else SUCCESS)
        if self.answer(code) == SUCCESS:
            stream.reporter = thread

    def unsubscribe_report(self, thread: int, handle: int) -> None:
        code, stream = self.find_stream(handle)
        if not code and (stream.reporter != thread or thread < 0):
            code = IS_SERVED if stream.reporter < 0 else NOT_SERVED_HERE
        if self.answer(code) == SUCCESS:
            stream.reporter = NOBODY
            self.lose_callbacks(stream.slot, thread)

    def launch_callback(self, handle: int, number: int, *, is_blocking: bool) -> None:
        self.make_room(handle)
        if is_blocking:
            self.make_room(handle, 1)
        self.spend("host_event_ns")
        code, stream = self.find_stream(handle)
        code = code or (RT_PARAM_INVALID if number < 0 else NOBODY_SERVES if stream.reporter < 0 else SUCCESS)
        if is_blocking and not code:  # the callback and what waits for it, or neither
            code = self.refusal(stream.slot) or (TABLE_FULL if self.row_taken_by(1) else SUCCESS)
        if not code:
            whose = {"handle": number, "thread": stream.reporter, "has_run": False}
            code, job = self.enqueue("callback", stream.slot, **whose)
        if is_blocking and not code:
            run = self.cell("callback", job.sequence)
            code, _ = self.enqueue("callback wait", stream.slot, cell=run, condition="GE", value=1)
        self.answer(code)

    def launch_host_func(self, handle: int, number: int, duration_ns: int) -> None:
        """It needs nobody to run it: a task that takes nothing of the chip. Its stream takes no callbacks any more."""
        self.make_room(handle)
        self.spend("host_event_ns")
        code, stream = self.find_stream(handle)
        code = code or (RT_PARAM_INVALID if number < 0 else SUCCESS if stream.reporter < 0 else IS_SERVED)
        if not code:
            code, _ = self.enqueue("host function", stream.slot, handle=number, block=max(1, duration_ns), blocks=1)
            stream.reporter = stream.reporter if code else RUNTIME
        self.answer(code)

    def process_report(self, timeout_ms: int, callback_ns: int) -> int:
        """Return the number of the callback that was run."""
        self.spend("host_sync_ns")
        wrong, timeout = self._timeout(timeout_ms)
        code = INVALID_PARAM if wrong else SUCCESS if self.serves(self.thread) else NOT_SERVED_HERE
        if self.answer(code) == SUCCESS:
            self.overrule(self.settle(lambda: bool(self._due()), timeout_ns=timeout, expired=REPORT_TIMEOUT))
        due = self._due()
        if self.last or not due:
            self.look()
            return NOBODY
        job = min(due, key=lambda job: (job.end, job.stream, job.sequence))
        self.host += max(0, callback_ns)
        job.has_run = True
        self.look()
        self.scheduler.cells[self.cell("callback", job.sequence)] = 1
        return job.handle

    def _due(self) -> list[Job]:
        """Callbacks that were handed to this thread and that it has not run."""
        jobs = (job for job in self.jobs if job.thread == self.thread and not job.has_run)
        return [job for job in jobs if job.end >= 0 and not job.result]
