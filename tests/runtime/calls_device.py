"""The twin's calls: contexts, host threads and the device as a whole."""

from collections.abc import Sequence

from tests.runtime.calls_streams import StreamCalls
from tests.runtime.machine import (
    NO_CONTEXT,
    OBJECTS_FULL,
    RT_PARAM_INVALID,
    STREAM_CAPTURED,
    SUCCESS,
)
from tests.runtime.records import NOBODY, Thread

IS_SERVED, NO_STREAM, TASK_ABORT = 107011, 207005, 107022
PRIMARY = 0


class DeviceCalls(StreamCalls):
    """What makes and ends everything else."""

    # contexts ---------------------------------------------------------------------------------------------------

    def _open_context(self, context: int, stream: int) -> None:
        self._open_stream(stream, context)
        self.contexts.live[context] = stream
        self.threads[self.thread].context = context

    def _close_contexts(self, contexts: Sequence[int]) -> None:
        for context in contexts:
            while self._streams_of(context):
                self._close_stream(self._streams_of(context)[0])
            for slots in (self.events, self.notifies):
                for slot in [slot for slot, event in slots.live.items() if event.context == context]:
                    slots.give_back(slot)
            for thread in self.threads.values():
                thread.context = NOBODY if thread.context == context else thread.context
            self.contexts.give_back(context)

    def _streams_of(self, context: int) -> list[int]:
        return [slot for slot, stream in self.streams.live.items() if stream.context == context]

    def create_context(self) -> int:
        self.spend("host_stream_create_ns")
        contexts, streams = [slot for slot in self.contexts.free() if slot != PRIMARY], self._streams_free()
        code = SUCCESS if contexts else OBJECTS_FULL
        if self.answer(code or (SUCCESS if streams else NO_STREAM)):
            return NOBODY
        self._open_context(contexts[0], streams[0])
        return self.contexts.handle(contexts[0])

    def _find_context(self, handle: int) -> int | None:
        slot = handle % 2**18
        return slot if self.contexts.find(handle) is not None else None

    def destroy_context(self, handle: int) -> None:
        slot = self._find_context(handle)
        code = SUCCESS if slot else NO_CONTEXT
        if not code and any(self.streams.live[stream].capture for stream in self._streams_of(slot)):
            code = STREAM_CAPTURED
        if self.answer(code) == SUCCESS and self._drain(self._streams_of(slot)):
            self._close_contexts([slot])

    def set_context(self, handle: int) -> None:
        slot = self._find_context(handle)
        if self.answer(RT_PARAM_INVALID if slot is None else SUCCESS) == SUCCESS:
            self.threads[self.thread].context = slot

    def get_context(self) -> int:
        return NOBODY if self.answer(self.has_context()) else self.contexts.handle(self.context)

    def current_default_stream(self) -> int:
        return NOBODY if self.answer(self.has_context()) else self.streams.handle(self.contexts.live[self.context])

    # threads ----------------------------------------------------------------------------------------------------

    def create_thread(self) -> int:
        unused = [number for number in range(self.max_threads) if number not in self.threads]
        if self.answer(SUCCESS if unused else OBJECTS_FULL):
            return NOBODY
        self.threads[unused[0]] = Thread(self.host)
        return unused[0]

    def use_thread(self, thread: int) -> None:
        if self._answer_thread(thread):
            self.thread = thread

    def join_thread(self, thread: int) -> None:
        if self._answer_thread(thread):
            self.host = max(self.host, self.threads[thread].host)

    def end_thread(self, thread: int) -> None:
        is_there = thread in self.threads and thread != self.thread
        code = RT_PARAM_INVALID if not is_there else IS_SERVED if self.serves(thread) else SUCCESS
        if self.answer(code) == SUCCESS:
            del self.threads[thread]

    def _answer_thread(self, thread: int) -> bool:
        return self.answer(SUCCESS if thread in self.threads else RT_PARAM_INVALID) == SUCCESS

    # device -----------------------------------------------------------------------------------------------------

    def set_device(self) -> None:
        self.users += 1
        if PRIMARY not in self.contexts.live:
            self._open_context(PRIMARY, PRIMARY)
        self.threads[self.thread].context = PRIMARY
        self.answer(SUCCESS)

    def reset_device(self) -> None:
        if self.answer(SUCCESS if self.users else NO_CONTEXT):
            return
        if self.users > 1 or self._drain(range(self.host_stream + 1)):
            self.users -= 1
            self._release()

    def reset_device_force(self) -> None:
        self.look()
        if self.answer(SUCCESS if self.users else NO_CONTEXT) == SUCCESS:
            self.users = 0
            self._release()

    def _release(self) -> None:
        if self.users:
            return
        self._close_contexts(list(self.contexts.live))
        self.hbm.blocks.clear()
        self.values.clear()
        self.scheduler.device_error = 0
        self.scheduler.stream_error[self.host_stream] = 0

    def device_task_abort(self) -> None:
        self.look()
        if self.answer(self.has_context()) == SUCCESS:
            for slot in range(self.host_stream + 1):
                self.scheduler.drop_stream(slot)
            self.scheduler.device_error = self.scheduler.device_error or TASK_ABORT
