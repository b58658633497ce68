"""A timeline as a Chrome trace, for Perfetto, chrome://tracing and MindStudio Insight.

Track names, sort positions and argument names follow the trace that msprof writes (``msprof_*.json``), as far
as a simulated card has the same thing; tracks for cores and copy engines are additions, sorted behind these.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ascend_jax.insight.cores import CoreSlices, assign_cores
from ascend_jax.insight.files import write_together
from ascend_jax.insight.kinds import COPY, KERNEL, RELEASES, WAITS
from ascend_jax.insight.timeline import Timeline, stream_name

MAX_EVENTS = 200_000  # browsers get slow beyond; core tracks, the bulk of a trace, are left out first


@dataclasses.dataclass(frozen=True)
class HostSpan:
    """Something the host did, e.g. an API call or a phase of the user's program."""

    name: str
    start_ns: int  # absolute simulated time
    end_ns: int


class _Process(NamedTuple):
    name: str
    label: str
    sort_index: int

    @property
    def pid(self) -> int:
        return self.sort_index << 5  # where msprof keeps it, with process 0 above and device 0 below


_HOST = _Process("Host", "CPU", 7)
_HARDWARE = _Process("Ascend Hardware", "NPU", 14)
_CUBE = _Process("Cube cores", "NPU", 36)
_VECTOR = _Process("Vector cores", "NPU", 37)
_COPY = _Process("Copy engines", "NPU", 38)

_OPERATION = {"h2d": "host to device", "d2h": "device to host", "d2d": "device to device"}

# At equal times viewers read events in file order, and an arrow must leave before it lands.
_ISSUE, _RELEASE, _WAIT, _WORK = range(4)


class _Event(NamedTuple):
    at_ns: int
    order: tuple[int, int]  # rank and sequence number
    json: dict[str, Any]


_Task = dict[str, Any]  # a row of the timeline, with "name" filled in, "since_ns", "until_ns" and "order"
_Threads = dict[tuple[_Process, int], str]


def to_perfetto(
    timeline: Timeline, path: str | os.PathLike[str] | None = None, *, host_spans: Sequence[HostSpan] = ()
) -> dict[str, Any]:
    """Converts a timeline to a Chrome trace and writes it if a path is given.

    Tracks: "Host" (issue of every command, spans of the host), "Ascend Hardware" with a thread per stream,
    "Cube cores" and "Vector cores" with a thread per core (see `assign_cores`), "Copy engines". Arrows go from issue
    to start and from what released a wait to the wait. A wait is drawn from when it came to the head of its stream;
    a command that is not over is drawn up to the last known time.

    Args:
      timeline: the log of one card.
      path: file to write; it appears complete or not at all.
      host_spans: what the host did; spans that overlap get threads of their own.

    Returns:
      The trace as a JSON-ready dict. ``ts`` and ``dur`` are numbers in us, exact to the ns. ``otherData``
      has the chip, its calibration, ``simulated``, how many commands the log no longer has, have not started, have
      failed or were dropped, and whether core tracks are shown; they are left out beyond `MAX_EVENTS` events.

    >>> rows = [{"name": "Add", "start_ns": 1500, "end_ns": 4000, "held_vector": 1}]
    >>> log = Timeline.from_rows(rows, chip="x", calibration="", cube_cores=1, vector_cores=2)
    >>> [(e["name"], e["ts"], e["dur"]) for e in to_perfetto(log)["traceEvents"] if e["ph"] == "X"]
    [('Add', 0.0, 0.0), ('Add', 1.5, 2.5), ('Add', 1.5, 2.5)]
    """
    tasks, threads = _tasks(timeline), _Threads()
    events = [*_issues(tasks, threads), *_spans(host_spans, threads), *_streams(tasks, threads)]
    events += [*_event_arrows(timeline, tasks), *_copies(tasks, threads)]
    cores = assign_cores(timeline)
    slices = len(cores.cube) + len(cores.vector)
    core_tracks = "shown"
    if len(events) + slices <= MAX_EVENTS:
        events += [*_cores(tasks, cores.cube, _CUBE, threads), *_cores(tasks, cores.vector, _VECTOR, threads)]
    else:
        core_tracks = f"left out: their {slices} slices would make more than {MAX_EVENTS} events"
    events.sort(key=lambda event: (event.at_ns, event.order))

    trace = {
        "traceEvents": [*_metadata(threads), *(event.json for event in events)],
        "displayTimeUnit": "ns",
        "otherData": {
            "chip": timeline.chip,
            "calibration": timeline.calibration,
            "simulated": True,
            "commands": len(timeline),
            "commands no longer in the log": timeline.forgotten,
            "commands not started": int((~timeline.started).sum()),
            "commands failed": int((timeline.code != 0).sum()),
            "commands dropped": int((timeline.dropped_ns >= 0).sum()),
            "core tracks": core_tracks,
        },
    }
    if path is not None:
        write_together({path: lambda file: file.write(encode(trace))})
    return trace


def encode(trace: dict[str, Any]) -> bytes:
    """Returns a trace as the bytes of a JSON file."""
    return json.dumps(trace, separators=(",", ":"), allow_nan=False).encode()


def _tasks(timeline: Timeline) -> list[_Task]:
    tasks = timeline.rows()
    extents = zip(timeline.since_ns().tolist(), timeline.until_ns().tolist(), strict=True)
    for task, (since_ns, until_ns) in zip(tasks, extents, strict=True):
        task["name"] = task["name"] or task["kind"]
        task["since_ns"], task["until_ns"] = None if since_ns < 0 else since_ns, until_ns
        rank = _WAIT if task["kind"] in WAITS else _RELEASE if task["kind"] in RELEASES else _WORK
        task["order"] = rank, task["command"]
    return tasks


def _us(time_ns: int) -> float:
    return time_ns / 1000  # prints with at most three decimals up to 100 days


def _slice(
    process: _Process,
    tid: int,
    name: str,
    start_ns: int,
    end_ns: int,
    order: tuple[int, int],
    args: dict[str, Any],
) -> _Event:
    place = {"ph": "X", "pid": process.pid, "tid": tid, "ts": _us(start_ns), "dur": _us(end_ns - start_ns)}
    return _Event(start_ns, order, {**place, "name": name, "args": args})


def _task_slice(process: _Process, tid: int, task: _Task, args: dict[str, Any]) -> _Event:
    return _slice(process, tid, task["name"], task["since_ns"], task["until_ns"], task["order"], args)


def _arrow(
    phase: str, category: str, number: int, process: _Process, tid: int, at_ns: int, order: tuple[int, int]
) -> _Event:
    """One end of an arrow: it leaves ("s") or lands ("f") at the slice that is open here at this time."""
    place = {"ph": phase, "pid": process.pid, "tid": tid, "ts": _us(at_ns), "bp": "e"}
    return _Event(at_ns, order, {**place, "cat": category, "name": f"{category}{number}", "id": number})


def _issues(tasks: list[_Task], threads: _Threads) -> Iterator[_Event]:
    """A slice of no length per call, with an arrow to where the command starts."""
    for task in tasks:
        threads[_HOST, 0] = "Enqueue"
        number, issue_ns = task["command"], task["issue_ns"]
        args = {"Task Id": number, "Stream Id": task["stream"], "call site": task["site"]}
        yield _slice(_HOST, 0, task["name"], issue_ns, issue_ns, (_ISSUE, number), args)
        if task["since_ns"] is not None:
            yield _arrow("s", "HostToDevice", number, _HOST, 0, issue_ns, (_ISSUE, number))


def _spans(spans: Sequence[HostSpan], threads: _Threads) -> Iterator[_Event]:
    extents = [(span.start_ns, span.end_ns) for span in spans]
    for span, lane in zip(spans, _lanes(extents), strict=True):
        threads[_HOST, 1 + lane] = f"Steps {lane}" if lane else "Steps"
        yield _slice(_HOST, 1 + lane, span.name, span.start_ns, span.end_ns, (_ISSUE, -1), {})


def _streams(tasks: list[_Task], threads: _Threads) -> Iterator[_Event]:
    for task in tasks:
        stream, since_ns = task["stream"], task["since_ns"]
        threads[_HARDWARE, stream] = stream_name(stream).capitalize()
        if since_ns is not None:
            yield _task_slice(_HARDWARE, stream, task, _task_args(task))
            yield _arrow("f", "HostToDevice", task["command"], _HARDWARE, stream, since_ns, task["order"])


def _task_args(task: _Task) -> dict[str, Any]:
    args = {
        "Task Type": _task_type(task),
        "Stream Id": task["stream"],
        "Task Id": task["command"],
        "Block Num": task["blocks"],
        "cube cores": task["held_cube"],
        "vector cores": task["held_vector"],
        "priority": task["priority"],
        "host thread": task["thread"],
        "wait reason": task["wait_reason"],
        "limit": task["limit"],
        "moved bytes": task["moved_bytes"],
        "call site": task["site"],
        "state": task["state"],
        "result": task["code"],
    }
    if task["kind"] == COPY:
        args["size(B)"] = task["moved_bytes"]
        args["operation"] = _OPERATION.get(task["engine"], task["engine"])
        took_ns = task["until_ns"] - task["start_ns"]
        if task["end_ns"] is not None and took_ns:
            args["bandwidth(GB/s)"] = round(task["moved_bytes"] / took_ns, 3)  # bytes per ns
    return args


def _task_type(task: _Task) -> str:
    """The word of msprof for the kind of task; a kernel's says which cores it runs on."""
    if task["kind"] == COPY:
        return "MEMCPY_ASYNC"
    if task["kind"] == KERNEL and task["held_cube"]:
        return "MIX_AIC" if task["held_vector"] else "AI_CORE"
    if task["kind"] == KERNEL and task["held_vector"]:
        return "AI_VECTOR_CORE"
    return str(task["kind"]).upper().replace(" ", "_")


def _event_arrows(timeline: Timeline, tasks: list[_Task]) -> Iterator[_Event]:
    """An arrow from the end of each awaited command to where its waiter was let go."""
    source = timeline.position_of(timeline.waits_for)
    ended = (source >= 0) & (timeline.event_ns() <= timeline.horizon_ns)
    for position in np.flatnonzero(ended & (timeline.since_ns() >= 0)):
        origin, target = tasks[source[position]], tasks[position]
        # An end is outside its slice: step back by 1 ns where the slice has a length.
        leave_ns = max(origin["since_ns"], origin["end_ns"] - 1)
        last_ns = max(target["since_ns"], target["until_ns"] - 1)
        land_ns = max(leave_ns, target["since_ns"], min(origin["end_ns"], last_ns))
        landing = max(origin["order"], target["order"])
        for phase, at_ns, stream, order in (
            ("s", leave_ns, origin["stream"], origin["order"]),
            ("f", land_ns, target["stream"], landing),
        ):
            yield _arrow(phase, "event", target["command"], _HARDWARE, stream, at_ns, order)


def _copies(tasks: list[_Task], threads: _Threads) -> Iterator[_Event]:
    """A thread per copy engine; copies that overlap on one engine get threads side by side."""
    engines = sorted({task["engine"] for task in tasks} - {""})
    first = 0
    for engine in engines:
        used = [task for task in tasks if task["engine"] == engine and task["start_ns"] is not None]
        lanes = _lanes([(task["start_ns"], task["until_ns"]) for task in used])
        for task, lane in zip(used, lanes, strict=True):
            threads[_COPY, first + lane] = f"{engine} {lane}" if lane else engine
            args = {"Task Id": task["command"], "Stream Id": task["stream"], "size(B)": task["moved_bytes"]}
            yield _task_slice(_COPY, first + lane, task, args)
        first += max(lanes, default=0) + 1


def _cores(tasks: list[_Task], slices: CoreSlices, process: _Process, threads: _Threads) -> Iterator[_Event]:
    columns = (slices.entry.tolist(), slices.core.tolist(), slices.until_ns.tolist())
    for entry, core, until_ns in zip(*columns, strict=True):
        threads[process, core] = f"{process.name.split()[0]} {core}"
        task = tasks[entry]
        args = {"Task Id": task["command"], "Stream Id": task["stream"]}
        yield _slice(process, core, task["name"], task["start_ns"], until_ns, task["order"], args)


def _lanes(extents: Sequence[tuple[int, int]]) -> list[int]:
    """Lowest lane that is free for each interval, given to the earliest and, of those, the longest first."""
    free_ns: list[int] = []
    lanes = [0] * len(extents)
    for position in sorted(range(len(extents)), key=lambda i: (extents[i][0], -extents[i][1])):
        start_ns, end_ns = extents[position]
        lane = next((lane for lane, free in enumerate(free_ns) if free <= start_ns), len(free_ns))
        free_ns[lane : lane + 1] = [end_ns]
        lanes[position] = lane
    return lanes


def _metadata(threads: _Threads) -> Iterator[dict[str, Any]]:
    for process in sorted({process for process, _ in threads}, key=lambda process: process.sort_index):
        yield _meta("process_name", process.pid, 0, name=process.name)
        yield _meta("process_labels", process.pid, 0, labels=process.label)
        yield _meta("process_sort_index", process.pid, 0, sort_index=process.sort_index)
    for (process, tid), name in threads.items():
        yield _meta("thread_name", process.pid, tid, name=name)
        yield _meta("thread_sort_index", process.pid, tid, sort_index=tid)


def _meta(kind: str, pid: int, tid: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
