"""A plain Python twin of the runtime's calls, written from its rules and sharing no code with it.

:class:`Card` takes host calls one by one, in whole ns, on bytearrays; :mod:`machine` has what lies behind them.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor

from tests.runtime.machine import (
    BAD_STREAM,
    INVALID_PARAM,
    NOBODY,
    OBJECTS_FULL,
    RT_PARAM_INVALID,
    SUCCESS,
    Event,
    Machine,
    Slots,
    Stream,
)
from tests.runtime.scheduler import POOL, WORD

NOT_SUPPORTED, NO_STREAM, NO_EVENT, NO_NOTIFY, UNALIGNED = 207000, 207005, 207007, 207009, 107008
IS_SERVED, NOT_SERVED_HERE, NOBODY_SERVES = 107011, 107012, 107015
EVENT_TIMEOUT, REPORT_TIMEOUT, DEADLOCK = 507047, 507012, 900003
SYNC, TIME_LINE, PROGRESS, DEVICE_ONLY, EXTERNAL, IPC = 0x01, 0x08, 0x02, 0x10, 0x20, 0x40
CUBE_LATE, VECTOR_LATE, LONGEST_MS = 507014, 507034, 2_147_483
CONDITIONS = ("GE", "EQ", "AND", "NOR")
MS = 10**6


class Card(Machine):
    """One simulated card; calls that answer with more than a code return that."""

    # memory and operators ---------------------------------------------------------------------------------------

    def work(self, duration: int) -> None:
        self.host += max(0, duration)

    def malloc(self, nbytes: int, policy: int = 0) -> int:
        code, pointer = self.hbm.malloc(nbytes, policy)
        self.spend("host_malloc_ns")
        self.answer(code)
        return pointer

    def malloc_host(self, nbytes: int) -> int:
        code, pointer = self.pinned.malloc(nbytes)
        self.spend("host_malloc_ns")
        self.answer(code)
        return pointer

    def prepare(self) -> None:
        self.spend("host_op_prepare_ns")
        self.answer(SUCCESS)

    def launch(
        self,
        handle: int,
        block_ns: int,
        cores: tuple[int, int],
        reads: Sequence[tuple[int, int, int]],
        writes: Sequence[tuple[int, int, int]],
        value: Callable[..., Sequence[bytes]],
        *,
        blocks: int = 1,
        at_once: int = 0,
        head_ns: int = 0,
        hbm_bytes: int = 0,
        l2_bytes: int = 0,
    ) -> None:
        """Queue a kernel; ``cores`` are cube and vector cores of a block, places are (pointer, offset, bytes)."""
        self.make_room(handle)
        self.spend("host_launch_ns")
        code, stream = self.find_stream(handle)
        for place in (*reads, *writes):
            code = code or self.check(*place) or (RT_PARAM_INVALID if place[0] < 0 else SUCCESS)
        code = code or self._check_blocks(cores, blocks, at_once)
        if not code:
            seconds = Fraction(block_ns * blocks, 10**9)
            pools = {"hbm": hbm_bytes, "l2": l2_bytes}
            inputs = [(self.index(p, o), n) for p, o, n in reads]
            code, _ = self.enqueue(
                "kernel",
                stream.slot,
                block=max(1, block_ns),
                head=head_ns,
                blocks=blocks,
                mode=at_once,
                cube=cores[0],
                vector=cores[1],
                writes=tuple((self.index(p, o), n) for p, o, n in writes),
                compute=lambda memory: value(*(bytes(memory[i : i + n]) for i, n in inputs)),
                timeout=self.op_timeout,
                timeout_code=CUBE_LATE if cores[0] else VECTOR_LATE,
                timeout_reach="device",
                **{pool: self._share(pool, nbytes, seconds) for pool, nbytes in pools.items()},
            )
        self.answer(code)

    def _share(self, pool: str, nbytes: int, seconds: Fraction) -> int:
        """What one block draws of a pool, in 1/65536, rounded down."""
        whole = seconds * self.fields[f"{pool}_bytes_per_s"]
        return min(POOL - 1, floor(POOL * nbytes / whole)) if nbytes else 0

    def _check_blocks(self, cores: tuple[int, int], blocks: int, at_once: int) -> int:
        """A block must fit the chip, and blocks that start together must all fit."""
        together = blocks if at_once else 1
        fits = all(
            n * together <= self.fields[f"{core}_cores"] for n, core in zip(cores, ("cube", "vector"), strict=True)
        )
        is_block = 1 <= blocks < 65536 and 0 <= cores[0] <= 1 and 0 <= cores[1] <= 2
        return SUCCESS if fits and is_block else RT_PARAM_INVALID

    # copies -----------------------------------------------------------------------------------------------------

    def _find_queue(self, handle: int | None) -> tuple[int, int]:
        """Return (code, slot): a blocking call runs on the host's own stream."""
        if handle is None:
            return self.has_context(), self.host_stream
        code, stream = self.find_stream(handle)
        return code, stream.slot if stream else NOBODY

    def _begin(self, handle: int | None) -> tuple[int, int]:
        self.make_room(0 if handle is None else handle)
        self.spend("host_copy_sync_ns" if handle is None else "host_copy_enqueue_ns")
        return self._find_queue(handle)

    def _finish(self, handle: int | None) -> None:
        if handle is None:
            slots = [self.host_stream]
            self.overrule(self.settle(self.is_empty(slots), streams=slots))

    def copy(self, dst: tuple[int, int], src: tuple[int, int], nbytes: int, handle: int | None = None) -> None:
        """Copy between (pointer, offset) places, without a stream blocking on the host's own."""
        code, slot = self._begin(handle)
        to_host, from_host = dst[0] < 0, src[0] < 0
        code = code or (NOT_SUPPORTED if to_host and from_host and handle is not None else SUCCESS)
        code = code or self.check(*dst, nbytes) or self.check(*src, nbytes)
        if not code and nbytes and dst != src:
            first, last = self.index(*src), self.index(*src) + nbytes
            code, _ = self.enqueue(
                "copy",
                slot,
                writes=((self.index(*dst), nbytes),),
                compute=lambda memory: [bytes(memory[first:last])],
                **self.transfer(nbytes, to_host, from_host),
            )
        self.answer(code)
        self._finish(handle)

    def fill(self, dst: tuple[int, int], value: int, nbytes: int, handle: int | None = None) -> None:
        """Set bytes, without a stream blocking on the host's own."""
        code, slot = self._begin(handle)
        code = code or self.check(*dst, nbytes)
        if not code and nbytes:
            data = bytes([value % 256]) * nbytes
            code, _ = self.enqueue(
                "memset",
                slot,
                writes=((self.index(*dst), nbytes),),
                compute=lambda memory: [data],
                **self.transfer(nbytes, dst[0] < 0, dst[0] < 0),
            )
        self.answer(code)
        self._finish(handle)

    def _pageable(self, place: tuple[int, int], nbytes: int, engine: str) -> bool:
        """Copy between a place and the program's own arrays; return whether the bytes arrive."""
        code, slot = self._begin(None)
        code = code or (RT_PARAM_INVALID if place[0] < 0 else self.check(*place, nbytes))
        if not code and nbytes:
            code, _ = self.enqueue("copy", slot, **self.transfer(nbytes, engine == "d2h", engine == "h2d"))
        self.answer(code)
        self._finish(None)
        return not self.last

    def upload(self, place: tuple[int, int], data: bytes) -> None:
        if self._pageable(place, len(data), "h2d"):
            self._put(place, data)

    def download(self, place: tuple[int, int], nbytes: int) -> bytes:
        return self._get(place, nbytes) if self._pageable(place, nbytes, "d2h") else bytes(nbytes)

    def host_write(self, place: tuple[int, int], data: bytes) -> None:
        self.look()
        if self.answer(RT_PARAM_INVALID if place[0] > 0 else self.check(*place, len(data))) == SUCCESS:
            self._put(place, data)

    def host_read(self, place: tuple[int, int], nbytes: int) -> bytes:
        self.look()
        code = self.answer(RT_PARAM_INVALID if place[0] > 0 else self.check(*place, nbytes))
        return self._get(place, nbytes) if code == SUCCESS else bytes(nbytes)

    def _put(self, place: tuple[int, int], data: bytes) -> None:
        self.memory[self.index(*place) : self.index(*place) + len(data)] = data

    def _get(self, place: tuple[int, int], nbytes: int) -> bytes:
        return bytes(self.memory[self.index(*place) : self.index(*place) + nbytes])

    # streams ----------------------------------------------------------------------------------------------------

    def _streams_free(self) -> list[int]:
        """Slots where a stream can be made: slot 0 is kept for the primary context."""
        free = [slot for slot in self.streams.free() if slot]
        taken = self.streams.count - len(free)
        return free if taken < self.fields["max_streams"] else []

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
        if default is not None and default in stops:
            stops.add(slot)

    def _close_stream(self, slot: int) -> None:
        self.scheduler.drop_stream(slot)
        self.scheduler.stream_error[slot] = 0
        self.scheduler.stop_on_failure.discard(slot)
        self.streams.give_back(slot)

    def _plan_destroy(self, handle: int) -> Stream | None:
        code, stream = self.find_stream(handle)
        is_default = stream is not None and stream.slot in self.contexts.live.values()
        return stream if self.answer(code or (BAD_STREAM if is_default else SUCCESS)) == SUCCESS else None

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
        if self.answer(code or wrong) == SUCCESS:
            slots = [stream.slot]
            self.overrule(self.settle(self.is_empty(slots), streams=slots, timeout_ns=timeout))

    def synchronize_device(self, timeout_ms: int = -1) -> None:
        self.spend("host_sync_ns")
        wrong, timeout = self._timeout(timeout_ms)
        if self.answer(self.has_context() or wrong) == SUCCESS:
            slots = range(self.host_stream + 1)
            self.overrule(self.settle(self.is_empty(slots), streams=slots, timeout_ns=timeout))

    def synchronize_event(self, handle: int, timeout_ms: int = -1) -> None:
        self.spend("host_sync_ns")
        wrong, timeout = self._timeout(timeout_ms)
        code, event = self.find_event(self.events, handle)
        if self.answer(code or wrong):
            return
        record = event.record
        is_set = (lambda: self._flag(event) >= 1) if event.kind == "flag" else lambda: not (record and record.is_open)
        job = None if event.kind == "flag" else record
        self.overrule(self.settle(is_set, job=job, timeout_ns=timeout, expired=EVENT_TIMEOUT))

    # events and notifies ----------------------------------------------------------------------------------------

    def _flag(self, event: Event) -> int:
        return self.scheduler.cells[self._cell_of(event)]

    def _cell_of(self, event: Event) -> int:
        return self.cell("notify" if event.kind == "notify" else "event", event.slot)

    def _take(self, slots: Slots, kind: str, flags: int, is_known: bool, limit: str, full: int) -> int:
        self.spend("host_event_ns")
        name = "notify" if kind == "notify" else "event"
        free = [slot for slot in slots.free() if kind in ("plain", "ex") or not self.is_busy(self.cell(name, slot))]
        room = len(slots.live) < self.fields[limit]
        code = self.has_context() or (SUCCESS if is_known else RT_PARAM_INVALID)
        if self.answer(code or (SUCCESS if free and room else full)):
            return NOBODY
        slots.live[free[0]] = Event(free[0], self.context, kind, flags)
        if kind in ("flag", "notify"):
            self.scheduler.cells[self.cell(name, free[0])] = 0
        return slots.handle(free[0])

    def create_event(self, kind: str = "plain", flags: int = SYNC | TIME_LINE) -> int:
        """Kinds: "plain", "flag", "ex"."""
        alone = {"plain": (), "flag": (DEVICE_ONLY, EXTERNAL), "ex": (IPC,)}[kind]
        is_known = flags in alone or (flags > 0 and not flags & ~(SYNC | TIME_LINE | PROGRESS))
        return self._take(self.events, kind, flags, is_known, "max_events", NO_EVENT)

    def create_notify(self, flags: int = 0) -> int:
        return self._take(self.notifies, "notify", flags, flags in (0, 1), "max_notifies", NO_NOTIFY)

    def destroy_event(self, handle: int) -> None:
        self._give_back(self.events, handle)

    def destroy_notify(self, handle: int) -> None:
        self._give_back(self.notifies, handle)

    def _give_back(self, slots: Slots, handle: int) -> None:
        code, event = self.find_event(slots, handle)
        if self.answer(code) == SUCCESS:
            slots.give_back(event.slot)

    def _find_both(self, slots: Slots, handle: int, stream_handle: int) -> tuple[int, Event | None, Stream | None]:
        code, stream = self.find_stream(stream_handle)
        wrong, event = self.find_event(slots, handle)
        if not (code or wrong) and event.kind != "notify" and event.flags & DEVICE_ONLY:
            wrong = RT_PARAM_INVALID
        return code or wrong, event, stream

    def record_event(self, handle: int, stream_handle: int) -> None:
        self.make_room(stream_handle)
        self.spend("host_event_ns")
        code, event, stream = self._find_both(self.events, handle, stream_handle)
        if not code:
            cell = {"cell": self._cell_of(event), "effect": "SET", "value2": 1} if event.kind == "flag" else {}
            code, job = self.enqueue("event record", stream.slot, handle=handle, **cell)
            event.record = job or event.record
        self.answer(code)

    def reset_event(self, handle: int, stream_handle: int) -> None:
        self.make_room(stream_handle)
        self.spend("host_event_ns")
        code, event, stream = self._find_both(self.events, handle, stream_handle)
        if not code and not (event.kind == "flag" and event.flags & (SYNC | EXTERNAL | IPC)):
            code = NOT_SUPPORTED
        if not code:
            code, _ = self.enqueue("event reset", stream.slot, handle=handle, cell=self._cell_of(event), effect="SET")
        self.answer(code)

    def wait_event(self, stream_handle: int, handle: int, timeout_s: int | None = None) -> None:
        self.make_room(stream_handle)
        code, event, stream = self._find_both(self.events, handle, stream_handle)
        code = code or self._wrong_seconds(timeout_s or 0)
        if not code and not event.flags & (SYNC | EXTERNAL | IPC):
            code = NOT_SUPPORTED
        code = code or self.refusal(stream.slot)
        record = None if code or event.kind == "flag" else event.record
        is_kept = record is not None and record.sequence >= len(self.jobs) - self.rows
        if is_kept and record.stream == stream.slot:  # in its own stream that is behind it anyway
            self.answer(SUCCESS)
            return
        self.spend("host_event_ns")
        if not code:
            what = {"depends": record}
            if event.kind == "flag":
                what = {"cell": self._cell_of(event), "condition": "GE", "value": 1}
            timeout = self.wait_timeout if timeout_s is None else timeout_s * 10**9
            code, _ = self.enqueue("event wait", stream.slot, handle=handle, timeout=timeout, **what)
        self.answer(code)

    @staticmethod
    def _wrong_seconds(timeout_s: int) -> int:
        return SUCCESS if 0 <= timeout_s * 1000 <= LONGEST_MS else RT_PARAM_INVALID

    def query_event(self, handle: int) -> int:
        """0: complete or never recorded."""
        code, event = self._asked(handle, bars_ex=True)
        return NOBODY if self.answer(code) else int(self._is_unfinished(event))

    def query_event_status(self, handle: int) -> int:
        """1: complete; never recorded only if an Ex event."""
        code, event = self._asked(handle, bars_ex=False)
        if self.answer(code):
            return NOBODY
        is_unused = event.record is None and event.kind != "ex"
        return int(not (is_unused or self._is_unfinished(event)))

    def query_event_wait_status(self, handle: int) -> int:
        """0: nobody waits for it any more."""
        code, _ = self._asked(handle, bars_ex=True)
        waits = (job for job in self.jobs if job.kind == "event wait" and job.handle == handle)
        return NOBODY if self.answer(code) else int(any(job.is_open for job in waits))

    def _asked(self, handle: int, *, bars_ex: bool) -> tuple[int, Event | None]:
        self.spend("host_sync_ns")
        self.look()
        code, event = self.find_event(self.events, handle)
        code = code or self.scheduler.device_error
        is_barred = not code and (event.flags == EXTERNAL or (bars_ex and event.kind == "ex"))
        return code or (NOT_SUPPORTED if is_barred else SUCCESS), event

    @staticmethod
    def _is_unfinished(event: Event) -> bool:
        return event.record is not None and event.record.is_open

    def record_notify(self, handle: int, stream_handle: int) -> None:
        self.make_room(stream_handle)
        self.spend("host_event_ns")
        code, notify, stream = self._find_both(self.notifies, handle, stream_handle)
        if not code:
            change = {"cell": self._cell_of(notify), "effect": "SET", "value2": 1}
            code, _ = self.enqueue("notify record", stream.slot, handle=handle, **change)
        self.answer(code)

    def wait_notify(self, handle: int, stream_handle: int, timeout_s: int = 0) -> None:
        self.make_room(stream_handle)
        self.spend("host_event_ns")
        code, notify, stream = self._find_both(self.notifies, handle, stream_handle)
        code = code or self._wrong_seconds(timeout_s)
        if not code:
            look = {"cell": self._cell_of(notify), "condition": "GE", "value": 1, "effect": "SET"}
            code, _ = self.enqueue("notify wait", stream.slot, handle=handle, timeout=timeout_s * 10**9, **look)
        self.answer(code)

    def reset_notifies(self, handles: Sequence[int]) -> None:
        self.look()
        found = [self.find_event(self.notifies, handle) for handle in handles]
        code = next((code for code, _ in found if code), SUCCESS if found else RT_PARAM_INVALID)
        for _, notify in found if not code else ():
            self.scheduler.cells[self._cell_of(notify)] = 0
        self.spend("host_event_ns")
        self.answer(code)

    # values -----------------------------------------------------------------------------------------------------

    def _value(self, kind: str, place: tuple[int, int], handle: int, wrong: int, **look: int | str) -> None:
        self.make_room(handle)
        self.look()
        address = self.index(*place)
        code, stream = self.find_stream(handle)
        if not code and place[0] <= 0:
            code = RT_PARAM_INVALID if place[0] else INVALID_PARAM
        code = code or self.check(*place, 8) or (UNALIGNED if place[1] % 8 else SUCCESS)
        if not code and address not in self.values and len(self.values) == self.max_values:
            code = OBJECTS_FULL
        code = code or wrong
        cell = self.values.get(address, -1)
        if not code:
            code = self.refusal(stream.slot)
        now = int.from_bytes(self.memory[address : address + 8], "little")
        is_idle = cell < 0 or not self.is_busy(cell)
        self.spend("host_event_ns")
        if not code:
            cell = self.cell("value", address)
            code, _ = self.enqueue(kind, stream.slot, cell=cell, **look)
            if not code:
                self.values[address] = cell
                if is_idle:
                    self.scheduler.cells[cell] = now
        self.answer(code)

    def value_write(self, place: tuple[int, int], value: int, handle: int) -> None:
        raw = (value % WORD).to_bytes(8, "little")
        effect = {"effect": "SET", "value2": value % WORD, "writes": ((self.index(*place), 8),)}
        self._value("value write", place, handle, SUCCESS, compute=lambda memory: [raw], **effect)

    def value_wait(self, place: tuple[int, int], value: int, handle: int, flag: int) -> None:
        condition = CONDITIONS[flag] if 0 <= flag <= 3 else ""
        wrong = SUCCESS if condition else RT_PARAM_INVALID
        look = {"condition": condition, "value": value % WORD, "timeout": self.wait_timeout}
        self._value("value wait", place, handle, wrong, **look)

    # failures ---------------------------------------------------------------------------------------------------

    def inject_fault(self, code: int, skip: int, reach: int) -> None:
        is_known = code > 0 and reach in (1, 2) and skip >= 0
        is_full = len(self.faults) == self.max_faults
        wrong = SUCCESS if is_known else RT_PARAM_INVALID
        if self.answer(wrong or (OBJECTS_FULL if is_full else SUCCESS)) == SUCCESS:
            self.faults[len(self.jobs) + skip] = code, {1: "stream", 2: "device"}[reach]

    def _set_timeout(self, name: str, limit_ms: int) -> None:
        wrong = SUCCESS if 0 <= limit_ms <= LONGEST_MS else RT_PARAM_INVALID
        if self.answer(self.has_context() or wrong) == SUCCESS:
            setattr(self, name, limit_ms * MS)

    def set_op_execute_timeout(self, limit_ms: int) -> None:
        self._set_timeout("op_timeout", limit_ms)

    def set_op_wait_timeout(self, limit_s: int) -> None:
        self._set_timeout("wait_timeout", limit_s * 1000)

    # callbacks --------------------------------------------------------------------------------------------------

    def subscribe_report(self, thread: int, handle: int) -> None:
        code, stream = self.find_stream(handle)
        code = code or (SUCCESS if thread in self.threads else RT_PARAM_INVALID)
        code = code or (IS_SERVED if stream.reporter != NOBODY else SUCCESS)
        if self.answer(code) == SUCCESS:
            stream.reporter = thread

    def unsubscribe_report(self, thread: int, handle: int) -> None:
        code, stream = self.find_stream(handle)
        if not code and (stream.reporter != thread or thread == NOBODY):
            code = IS_SERVED if stream.reporter == NOBODY else NOT_SERVED_HERE
        if self.answer(code) == SUCCESS:
            stream.reporter = NOBODY

    def launch_callback(self, handle: int, number: int, *, is_blocking: bool) -> None:
        self.make_room(handle)
        self.spend("host_event_ns")
        code, stream = self.find_stream(handle)
        code = code or (NOBODY_SERVES if stream.reporter == NOBODY else SUCCESS)
        if not code:
            cell = self.cell("thread", stream.reporter)
            change = {"cell": cell, "effect": "ADD", "value2": 1}
            whose = {"handle": number, "thread": stream.reporter, "has_run": False}
            code, job = self.enqueue("callback", stream.slot, **change, **whose)
        if is_blocking:
            self.make_room(handle)
        if is_blocking and not code:
            run = self.cell("callback", job.sequence)
            code, _ = self.enqueue("callback wait", stream.slot, cell=run, condition="GE", value=1)
        self.answer(code)

    def process_report(self, timeout_ms: int, callback_ns: int) -> int:
        """Return the number of the callback that was run."""
        self.spend("host_sync_ns")
        wrong, timeout = self._timeout(timeout_ms)
        serves = any(stream.reporter == self.thread for stream in self.streams.live.values())
        code = INVALID_PARAM if wrong else SUCCESS if serves else NOT_SERVED_HERE
        if self.answer(code) == SUCCESS:
            cell = self.cell("thread", self.thread)
            is_due = lambda: self.scheduler.cells[cell] >= 1  # noqa: E731
            self.overrule(self.settle(is_due, timeout_ns=timeout, expired=REPORT_TIMEOUT))
        due = [
            job
            for job in self.jobs
            if job.thread == self.thread and not job.has_run and job.end >= 0 and not job.result
        ]
        if self.last or not due:
            self.look()
            return NOBODY
        job = min(due, key=lambda job: (job.end, job.stream, job.sequence))
        self.host += max(0, callback_ns)
        self.scheduler.cells[self.cell("thread", self.thread)] -= 1
        job.has_run = True
        self.look()
        self.scheduler.cells[self.cell("callback", job.sequence)] = 1
        return job.handle
