"""The twin's calls: events, notifies and values in memory."""

from collections.abc import Sequence

from tests.runtime.calls_streams import EXTERNAL, StreamCalls
from tests.runtime.machine import (
    EVENT_CAPTURED,
    INVALID_PARAM,
    OBJECTS_FULL,
    RT_PARAM_INVALID,
    SUCCESS,
)
from tests.runtime.records import NOBODY, Event, Slots, Stream
from tests.runtime.scheduler import WORD

NOT_SUPPORTED, NO_EVENT, NO_NOTIFY, UNALIGNED = 207000, 207007, 207009, 107008
NO_DEPENDENCY, JOINS_DEFAULT = 107024, 107031
SYNC, TIME_LINE, PROGRESS, DEVICE_ONLY, IPC = 0x01, 0x08, 0x02, 0x10, 0x40
CONDITIONS = ("GE", "EQ", "AND", "NOR")
NOTIFIES = ("notify", "counting")
CHANGES = {0: "SET", 1: "ADD", 2: "", 4: ""}  # aclrtCntNotifyRecordMode; "": not supported
COMPARISONS = {0: "", 1: "EQ", 2: "GE", 3: "GE", 4: ""}  # aclrtCntNotifyWaitMode
BIGGER = 2
MOST_S = 2_147_483  # longer timeouts end after 24 days


class MarkCalls(StreamCalls):
    """What takes no time on the device."""

    # events and notifies ----------------------------------------------------------------------------------------

    def _cell_of(self, event: Event) -> int:
        return self.cell("notify" if event.kind in NOTIFIES else "event", event.slot)

    def _take(self, slots: Slots, kind: str, flags: int, is_known: bool, limit: str, full: int) -> int:
        self.spend("host_event_ns")
        name = "notify" if kind in NOTIFIES else "event"
        free = [slot for slot in slots.free() if kind in ("plain", "ex") or not self.is_busy(self.cell(name, slot))]
        room = len(slots.live) < self.fields[limit]
        code = self._missing(kind) or self.has_context() or (SUCCESS if is_known else RT_PARAM_INVALID)
        if self.answer(code or (SUCCESS if free and room else full)):
            return NOBODY
        slots.live[free[0]] = Event(free[0], self.context, kind, flags)
        if kind in ("flag", *NOTIFIES):
            self.scheduler.cells[self.cell(name, free[0])] = 0
        return slots.handle(free[0])

    def create_event(self, kind: str = "plain", flags: int = SYNC | TIME_LINE) -> int:
        """Kinds: "plain", "flag", "ex"."""
        alone = {"plain": (), "flag": (DEVICE_ONLY, EXTERNAL), "ex": (IPC,)}[kind]
        is_known = flags in alone or (flags > 0 and not flags & ~(SYNC | TIME_LINE | PROGRESS))
        return self._take(self.events, kind, flags, is_known, "max_events", NO_EVENT)

    def create_notify(self, flags: int = 0, kind: str = "notify") -> int:
        is_known = flags in ((0, 1) if kind == "notify" else (0,))
        return self._take(self.notifies, kind, flags, is_known, "max_notifies", NO_NOTIFY)

    def destroy_event(self, handle: int) -> None:
        self._give_back(self.events, handle)

    def destroy_notify(self, handle: int, kind: str = "notify") -> None:
        self._give_back(self.notifies, handle, kind)

    def _give_back(self, slots: Slots, handle: int, kind: str = "") -> None:
        code, event = self._find_kind(slots, handle, kind)
        if self.answer(code) == SUCCESS:
            slots.give_back(event.slot)

    def _find_kind(self, slots: Slots, handle: int, kind: str) -> tuple[int, Event | None]:
        code, event = self.find_event(slots, handle)
        code = self._missing(kind) or code
        return code or (RT_PARAM_INVALID if kind and event.kind != kind else SUCCESS), event

    def _find_both(
        self, slots: Slots, handle: int, stream_handle: int, kind: str = ""
    ) -> tuple[int, Event | None, Stream | None]:
        code, stream = self.find_stream(stream_handle)
        wrong, event = self._find_kind(slots, handle, kind)
        if not (code or wrong) and event.kind not in NOTIFIES and event.flags & DEVICE_ONLY:
            wrong = RT_PARAM_INVALID
        return self._missing(kind) or code or wrong, event, stream

    def _missing(self, kind: str) -> int:
        """Only some products have counting notifies; the others refuse their calls whatever else is wrong."""
        return NOT_SUPPORTED if kind == "counting" and not self.fields["has_counting_notifies"] else SUCCESS

    def record_event(self, handle: int, stream_handle: int) -> None:
        self.make_room(stream_handle)
        self.spend("host_event_ns")
        code, event, stream = self._find_both(self.events, handle, stream_handle)
        code = code or self._barred(stream, event)
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
        code = code or self._barred(stream, event)
        if not code:
            code, _ = self.enqueue("event reset", stream.slot, handle=handle, cell=self._cell_of(event), effect="SET")
        self.answer(code)

    def wait_event(self, stream_handle: int, handle: int, timeout_s: int | None = None) -> None:
        self.make_room(stream_handle)
        code, event, stream = self._find_both(self.events, handle, stream_handle)
        code = code or self._wrong_seconds(timeout_s or 0)
        if not code and not event.flags & (SYNC | EXTERNAL | IPC):
            code = NOT_SUPPORTED
        if not code and event.kind == "plain" and event.record is None:
            code = RT_PARAM_INVALID
        code = code or self._barred(stream, event) or self._join_refused(stream, event) or self.refusal(stream.slot)
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
            timeout = self.wait_timeout if timeout_s is None else min(timeout_s, MOST_S) * 10**9
            before = stream.capture
            if record is not None and record.is_captured:
                stream.capture = self.streams.live[record.stream].capture
            code, _ = self.enqueue("event wait", stream.slot, handle=handle, timeout=timeout, **what)
            stream.capture = before if code else stream.capture
        self.answer(code)

    @staticmethod
    def _barred(stream: Stream, event: Event) -> int:
        """A captured stream takes Ex events and EXTERNAL ones only."""
        is_fit = (event.kind == "ex" and event.flags != IPC) or event.flags == EXTERNAL
        return NOT_SUPPORTED if stream.capture and not is_fit else SUCCESS

    def _join_refused(self, stream: Stream, event: Event) -> int:
        """A default stream cannot join a capture, and a captured one not wait for what is not captured."""
        if event.kind == "flag" or event.record is None:
            return SUCCESS
        if event.is_captured and not stream.capture and stream.slot == self.contexts.live[self.context]:
            return JOINS_DEFAULT
        return NO_DEPENDENCY if stream.capture and not event.is_captured else SUCCESS

    @staticmethod
    def _wrong_seconds(timeout_s: int) -> int:
        return SUCCESS if timeout_s >= 0 else RT_PARAM_INVALID

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
        return NOBODY if self.answer(code) else int(any(job.is_queued for job in waits))

    def _asked(self, handle: int, *, bars_ex: bool) -> tuple[int, Event | None]:
        self.spend("host_sync_ns")
        self.look()
        code, event = self.find_event(self.events, handle)
        code = code or self.scheduler.device_error
        is_barred = not code and (event.flags == EXTERNAL or (bars_ex and event.kind == "ex"))
        code = code or (NOT_SUPPORTED if is_barred else EVENT_CAPTURED if event.is_captured else SUCCESS)
        return code, event

    @staticmethod
    def _is_unfinished(event: Event) -> bool:
        return event.record is not None and event.record.is_queued

    def record_notify(self, handle: int, stream_handle: int) -> None:
        self.make_room(stream_handle)
        self.spend("host_event_ns")
        code, notify, stream = self._find_both(self.notifies, handle, stream_handle, "notify")
        if not code:
            change = {"cell": self._cell_of(notify), "effect": "SET", "value2": 1}
            code, _ = self.enqueue("notify record", stream.slot, handle=handle, **change)
        self.answer(code)

    def wait_notify(self, handle: int, stream_handle: int, timeout_s: int = 0) -> None:
        self.make_room(stream_handle)
        self.spend("host_event_ns")
        code, notify, stream = self._find_both(self.notifies, handle, stream_handle, "notify")
        code = code or self._wrong_seconds(timeout_s)
        if not code:
            look = {"cell": self._cell_of(notify), "condition": "GE", "value": 1, "effect": "SET"}
            code, _ = self.enqueue(
                "notify wait", stream.slot, handle=handle, timeout=min(timeout_s, MOST_S) * 10**9, **look
            )
        self.answer(code)

    def reset_notifies(self, handles: Sequence[int]) -> None:
        self.look()
        found = [self._find_kind(self.notifies, handle, "notify") for handle in handles]
        code = next((code for code, _ in found if code), SUCCESS if found else RT_PARAM_INVALID)
        for _, notify in found if not code else ():
            self.scheduler.cells[self._cell_of(notify)] = 0
        self.spend("host_event_ns")
        self.answer(code)

    # counting notifies ------------------------------------------------------------------------------------------

    def _count(self, kind: str, handle: int, stream_handle: int, wrong: int, **what: int | str) -> None:
        self.make_room(stream_handle)
        self.spend("host_event_ns")
        code, notify, stream = self._find_both(self.notifies, handle, stream_handle, "counting")
        code = code or wrong
        if not code:
            code, _ = self.enqueue(kind, stream.slot, handle=handle, cell=self._cell_of(notify), **what)
        self.answer(code)

    @staticmethod
    def _wrong_count(value: int, mode: int, modes: dict[int, str]) -> int:
        if mode not in modes or not 0 < value < 2**32:
            return RT_PARAM_INVALID
        return SUCCESS if modes[mode] else NOT_SUPPORTED

    def record_counting(self, handle: int, value: int, stream_handle: int, mode: int) -> None:
        wrong = self._wrong_count(value, mode, CHANGES)
        self._count("notify record", handle, stream_handle, wrong, effect=CHANGES.get(mode, ""), value2=value)

    def wait_counting(
        self, handle: int, value: int, stream_handle: int, mode: int, clears: int, timeout_s: int
    ) -> None:
        wrong = self._wrong_count(value, mode, COMPARISONS) or self._wrong_seconds(timeout_s)
        what = {"condition": COMPARISONS.get(mode, ""), "value": value + (mode == BIGGER)}
        what |= {"effect": "SET", "value2": 0} if clears else {}
        timeout = min(timeout_s, MOST_S) * 10**9
        self._count("notify wait", handle, stream_handle, wrong, timeout=timeout, **what)

    def reset_counting(self, handle: int, stream_handle: int) -> None:
        self._count("notify record", handle, stream_handle, SUCCESS, effect="SET", value2=0)

    # values -----------------------------------------------------------------------------------------------------

    def _value(self, kind: str, place: tuple[int, int], handle: int, wrong: int, **look: int | str) -> None:
        self.make_room(handle)
        self.look()
        address = self.index(*place)
        code, stream = self.find_stream(handle)
        if not code and place[0] <= 0:
            code = RT_PARAM_INVALID if place[0] else INVALID_PARAM
        code = code or self.check(*place, 8) or (UNALIGNED if place[1] % 8 else SUCCESS)
        in_use = {other for other, cell in self.values.items() if self.is_busy(cell)}
        if not code and address not in in_use and len(in_use) == self.max_values:
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
            code, _ = self.enqueue(kind, stream.slot, cell=cell, address=address, **look)
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
