"""The twin's calls: streams, waiting for them, what can go wrong in them, contexts, host threads, the device."""

from collections.abc import Sequence

from tests.runtime.machine import (
    BAD_STREAM,
    DEADLOCK,
    EVENT_CAPTURED,
    OBJECTS_FULL,
    RT_PARAM_INVALID,
    STREAM_CAPTURED,
    SUCCESS,
    Machine,
)
from tests.runtime.records import NOBODY, Stream

NOT_SUPPORTED, NO_STREAM, EVENT_TIMEOUT = 207000, 207005, 507047
EXTERNAL = 0x20
MS = 10**6


class StreamCalls(Machine):
    """What makes, ends, awaits and stops streams."""

    # streams ----------------------------------------------------------------------------------------------------

    def _streams_free(self, *, is_limited: bool = True) -> list[int]:
        """Slots where a stream can be made: slot 0 is kept for the primary context, empty sides of programs are not."""
        sides = {slot for slot, stream in self.streams.live.items() if stream.master != NOBODY}
        idle = {slot for slot in sides if not self.scheduler.queues[slot]}
        free = sorted({slot for slot in self.streams.free() if slot} | idle)
        taken = self.streams.count - len(free)
        return free if taken < self.fields["max_streams"] or not is_limited else []

    def create_stream(self, priority: int = 0, flags: int = 0) -> int:
        self.spend("host_stream_create_ns")
        free = self._streams_free()
        code = self.has_context() or (SUCCESS if 0 <= priority <= 7 and 0 <= flags <= 0x3F else RT_PARAM_INVALID)
        code = code or (SUCCESS if free else NO_STREAM)
        if self.answer(code):
            return NOBODY
        self._open_stream(free[0], self.context, priority, flags)
        return self.streams.handle(free[0])

    def _open_stream(self, slot: int, context: int, priority: int = 0, flags: int = 0) -> None:
        stops = self.scheduler.stop_on_failure
        default = self.contexts.live.get(context)
        self.streams.live[slot] = Stream(slot, context, priority, flags)
        self.scheduler.masters.pop(slot, None)
        self.scheduler.stream_error[slot] = 0
        stops.discard(slot)
        if default is not None and default in stops:
            stops.add(slot)

    def _close_stream(self, slot: int) -> None:
        for side in [side for side, stream in self.streams.live.items() if stream.master == slot]:
            self._close_stream(side)
        capture = self.streams.live[slot].capture
        if capture:
            self.forget_capture(capture)
        self.scheduler.drop_stream(slot)
        self.scheduler.masters.pop(slot, None)
        self.lose_callbacks(slot)
        self.scheduler.stream_error[slot] = 0
        self.scheduler.stop_on_failure.discard(slot)
        self.streams.give_back(slot)

    def _plan_destroy(self, handle: int) -> Stream | None:
        code, stream = self.find_stream(handle)
        is_default = stream is not None and stream.slot in self.contexts.live.values()
        code = code or (BAD_STREAM if is_default else STREAM_CAPTURED if stream.capture else SUCCESS)
        return stream if self.answer(code) == SUCCESS else None

    def _drain(self, slots: Sequence[int]) -> bool:
        """Block until streams are empty; what has failed there is not reported, only that it can never be."""
        ending = self.wait(self.is_empty(slots))
        self.overrule(DEADLOCK if ending == "stuck" else SUCCESS)
        return ending != "stuck"

    def destroy_stream(self, handle: int) -> None:
        stream = self._plan_destroy(handle)
        if stream and self._drain([stream.slot]):
            self._close_stream(stream.slot)

    def destroy_stream_force(self, handle: int) -> None:
        self.look()
        stream = self._plan_destroy(handle)
        if stream:
            self._close_stream(stream.slot)

    def stream_query(self, handle: int) -> int:
        self.spend("host_sync_ns")
        self.look()
        code, stream = self.find_stream(handle)
        errors = self.scheduler.stream_error
        code = code or (STREAM_CAPTURED if stream.capture else SUCCESS)
        code = code or self.scheduler.device_error or errors[stream.slot]
        return NOBODY if self.answer(code) else int(bool(self.scheduler.queues[stream.slot]))

    def stream_abort(self, handle: int) -> None:
        self.look()
        code, stream = self.find_stream(handle)
        if self.answer(code) == SUCCESS:
            self.scheduler.drop_stream(stream.slot)

    def set_stream_failure_mode(self, handle: int, mode: int) -> None:
        self.look()
        code, stream = self.find_stream(handle)
        stops = self.scheduler.stop_on_failure
        if not code and mode not in (0, 1):
            code = RT_PARAM_INVALID
        elif not code and mode == 0 and stream.slot in stops:
            code = NOT_SUPPORTED
        if self.answer(code) == SUCCESS and mode == 1:
            own = [slot for slot, other in self.streams.live.items() if other.context == stream.context]
            stops.update(own)
            for slot in own:
                if self.scheduler.stream_error[slot]:
                    self.scheduler.drop_stream(slot)

    # synchronisation --------------------------------------------------------------------------------------------

    @staticmethod
    def _timeout(timeout_ms: int) -> tuple[int, int | None]:
        return (
            RT_PARAM_INVALID if timeout_ms == 0 or timeout_ms < -1 else SUCCESS,
            timeout_ms * MS if timeout_ms > 0 else None,
        )

    def synchronize_stream(self, handle: int, timeout_ms: int = -1) -> None:
        self.spend("host_sync_ns")
        wrong, timeout = self._timeout(timeout_ms)
        code, stream = self.find_stream(handle)
        code = code or (STREAM_CAPTURED if stream.capture else SUCCESS)
        if self.answer(code or wrong) == SUCCESS:
            slots = [stream.slot]
            self.overrule(self.settle(self.is_empty(slots), streams=slots, timeout_ns=timeout))

    def synchronize_device(self, timeout_ms: int = -1) -> None:
        self.spend("host_sync_ns")
        wrong, timeout = self._timeout(timeout_ms)
        is_captured = any(stream.capture for stream in self.streams.live.values())
        if self.answer(self.has_context() or wrong or (STREAM_CAPTURED if is_captured else SUCCESS)) == SUCCESS:
            slots = range(self.host_stream + 1)
            self.overrule(self.settle(self.is_empty(slots), streams=slots, timeout_ns=timeout))

    def synchronize_event(self, handle: int, timeout_ms: int = -1) -> None:
        self.spend("host_sync_ns")
        wrong, timeout = self._timeout(timeout_ms)
        code, event = self.find_event(self.events, handle)
        code = code or wrong or (NOT_SUPPORTED if event.flags == EXTERNAL else SUCCESS)
        code = code or (EVENT_CAPTURED if event.is_captured else SUCCESS)
        if self.answer(code) == SUCCESS:
            record = event.record
            is_over = lambda: not (record and record.is_open)  # noqa: E731
            self.overrule(self.settle(is_over, job=record, timeout_ns=timeout, expired=EVENT_TIMEOUT))

    # failures ---------------------------------------------------------------------------------------------------

    def inject_fault(self, code: int, skip: int, reach: int) -> None:
        is_known = code > 0 and reach in (1, 2) and skip >= 0
        unused = [slot for slot, fault in enumerate(self.faults) if fault[0] < len(self.jobs)]
        wrong = SUCCESS if is_known else RT_PARAM_INVALID
        if self.answer(wrong or (SUCCESS if unused else OBJECTS_FULL)) == SUCCESS:
            self.faults[unused[0]] = len(self.jobs) + skip, code, {1: "stream", 2: "device"}[reach]

    def _set_timeout(self, name: str, limit_ms: int) -> None:
        wrong = SUCCESS if limit_ms >= 0 else RT_PARAM_INVALID
        if self.answer(self.has_context() or wrong) == SUCCESS:
            setattr(self, name, limit_ms * MS)

    def set_op_execute_timeout(self, limit_ms: int) -> None:
        self._set_timeout("op_timeout", limit_ms)

    def set_op_wait_timeout(self, limit_s: int) -> None:
        self._set_timeout("wait_timeout", min(limit_s, 2_147_483) * 1000)  # longer ones end after 24 days
