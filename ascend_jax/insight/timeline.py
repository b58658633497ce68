"""What happened on a simulated card: the times, the engines and the reason to wait of every command."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascend_jax.insight import usage
from ascend_jax.insight.kinds import KERNEL, WAITS
from ascend_jax.insight.reasons import wait_reasons

HOST_STREAM = -1  # the host's own stream, on which blocking copies run
NOT_YET = -1  # a time that has not come, or a command that waits for no other
NEVER_NS = 2**63 - 1  # later than every time: what an unfinished command is waited for until

Times = NDArray[np.int64]
Counts = NDArray[np.int32]
Texts = NDArray[np.object_]

# Column name -> dtype and the value of a row that does not mention it.
_COLUMNS: dict[str, tuple[type, Any]] = {
    "command": (np.int64, NOT_YET),
    "kind": (object, KERNEL),
    "name": (object, ""),
    "stream": (np.int32, 0),
    "priority": (np.int32, 0),
    "thread": (np.int32, 0),
    "issue_ns": (np.int64, 0),
    "ready_ns": (np.int64, NOT_YET),
    "start_ns": (np.int64, NOT_YET),
    "end_ns": (np.int64, NOT_YET),
    "dropped_ns": (np.int64, NOT_YET),
    "code": (np.int32, 0),
    "blocks": (np.int32, 1),
    "held_cube": (np.int32, 0),
    "held_vector": (np.int32, 0),
    "engine": (object, ""),
    "cube_busy_ns": (np.int64, 0),
    "vector_busy_ns": (np.int64, 0),
    "moved_bytes": (np.int64, 0),
    "limit": (object, ""),
    "waits_for": (np.int64, NOT_YET),
    "site": (object, ""),
}
_MAY_BE_ABSENT = ("ready_ns", "start_ns", "end_ns", "dropped_ns", "waits_for")  # -1 here, None in a row


@dataclasses.dataclass(frozen=True, eq=False)
class Timeline:
    """The log of one card, one entry per command in the order of enqueueing.

    Dimension: ``N`` commands. All arrays are host-side NumPy, read-only, and copied at construction.
    Times are absolute simulated ns; -1 marks one that has not come.

    A kernel runs as blocks, which share the cores with those of other kernels; the log has when its first block
    started and its last one ended, and how many cores it can hold at one time. A wait starts, and ends, when it
    is released; until then it is only ready.

    Raises:
        ValueError: columns of unequal length, commands out of order, or an end without a start before it.
    """

    chip: str  # SoC name, e.g. "Ascend910B2"
    calibration: str  # how far the chip's times can be trusted, e.g. "uncalibrated"
    cube_cores: int  # cube cores of the chip
    vector_cores: int  # vector cores of the chip
    forgotten: int  # commands that fell out of the log before this one was taken
    command: Times  # [N] sequence number, strictly increasing
    kind: Texts  # [N] str: one of the names in `insight.kinds`
    name: Texts  # [N] str: operator, or e.g. "copy host to device"
    stream: Counts  # [N] stream slot; -1 for the host's own copies
    priority: Counts  # [N] 0 first .. 7 last
    thread: Counts  # [N] host thread that enqueued it
    issue_ns: Times  # [N] when the host enqueued it
    ready_ns: Times  # [N] when it was issued and at the head of its stream
    start_ns: Times  # [N]
    end_ns: Times  # [N]
    dropped_ns: Times  # [N] when it was dropped, for ever without an end; -1 if it was not
    code: Counts  # [N] 0, or the code with which it failed at its end
    blocks: Counts  # [N] blocks of a kernel, pieces of a copy, 0 for what takes no time
    held_cube: Counts  # [N] most cube cores it can hold at one time
    held_vector: Counts  # [N] most vector cores it can hold at one time
    engine: Texts  # [N] str: copy engine "h2d", "d2h", "d2d", or ""
    cube_busy_ns: Times  # [N] time each held cube core computes
    vector_busy_ns: Times  # [N] time each held vector core computes
    moved_bytes: Times  # [N] bytes read and written in device memory, or copied
    limit: Texts  # [N] str: what its duration comes from: "cube", "vector", "memory", "fixed" or ""
    waits_for: Times  # [N] sequence number of the command that releases this wait; -1 if none is known
    site: Texts  # [N] str: the caller's line, e.g. "train.py:12"
    now_ns: int = 0  # up to when the card was simulated

    def __post_init__(self) -> None:
        for column, (dtype, _) in _COLUMNS.items():
            values: NDArray[Any] = np.array(getattr(self, column), dtype=dtype)
            values.setflags(write=False)
            object.__setattr__(self, column, values)
        _check(self)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        *,
        chip: str,
        calibration: str,
        cube_cores: int,
        vector_cores: int,
        forgotten: int = 0,
    ) -> Timeline:
        """Builds a timeline from rows as `rows` returns them.

        Args:
          rows: one mapping per command. A missing key takes its neutral value (0, "", None), except
            ``command`` (position of the row), ``kind`` ("kernel"), ``blocks`` (1) and ``ready_ns``
            (``start_ns``: nothing delayed it).
          chip: SoC name.
          calibration: how far the chip's times can be trusted.
          cube_cores: cube cores of the chip.
          vector_cores: vector cores of the chip.
          forgotten: commands that fell out of the log.

        Raises:
          ValueError: a key that is no column, or values that do not make a timeline.

        >>> rows = [{"name": "Add", "start_ns": 5, "end_ns": 9}]
        >>> log = Timeline.from_rows(rows, chip="Ascend910B2", calibration="", cube_cores=24, vector_cores=48)
        >>> len(log), log.makespan_ns
        (1, 9)
        """
        table: dict[str, list[Any]] = {column: [] for column in _COLUMNS}
        for position, row in enumerate(rows):
            unknown = set(row) - set(_COLUMNS) - {"wait_reason", "state"}
            if unknown:
                raise ValueError(f"row {position} has {sorted(unknown)}; a timeline knows {list(_COLUMNS)}")
            filled = {"command": position, "ready_ns": row.get("start_ns"), **row}
            for column, (_, default) in _COLUMNS.items():
                value = filled.get(column)
                table[column].append(default if value is None else value)
        columns: dict[str, Any] = table
        return cls(chip, calibration, cube_cores, vector_cores, forgotten, **columns)

    def __len__(self) -> int:
        """Number of commands N."""
        return len(self.command)

    @property
    def started(self) -> NDArray[np.bool_]:
        """[N] True where the command has begun."""
        return self.start_ns >= 0

    @property
    def finished(self) -> NDArray[np.bool_]:
        """[N] True where the command has ended."""
        return self.end_ns >= 0

    @property
    def is_wait(self) -> NDArray[np.bool_]:
        """[N] True for waits, which take no time but hold their stream from `ready_ns` to `end_ns`."""
        return np.isin(self.kind, list(WAITS))

    @property
    def begin_ns(self) -> int:
        """First issue in the log, 0 for an empty one."""
        return int(self.issue_ns.min(initial=NEVER_NS)) if len(self) else 0

    @property
    def horizon_ns(self) -> int:
        """Last time the log knows of: an issue, a start, an end, or now if something is unfinished; 0 if empty."""
        columns = (self.issue_ns, self.start_ns, self.end_ns, self.dropped_ns)
        known = max(int(each.max(initial=0)) for each in columns)
        is_over = self.finished | (self.dropped_ns >= 0)
        return known if is_over.all() else max(known, self.now_ns)

    @property
    def makespan_ns(self) -> int:
        """From the first issue to the last end, 0 where nothing has finished."""
        return max(0, int(self.end_ns.max(initial=NOT_YET)) - self.begin_ns) if self.finished.any() else 0

    def state(self) -> Texts:
        """[N] str: "queued", "ready", "running", "done", "failed" (with `code`) or "dropped"."""
        states = {
            "dropped": self.dropped_ns >= 0,
            "failed": self.code != 0,
            "done": self.finished,
            "running": self.started,
            "ready": self.ready_ns >= 0,
        }
        return np.select(list(states.values()), list(states), "queued").astype(object)

    def since_ns(self) -> Times:
        """[N] from when each command occupies its stream: its start; for a wait, when it came to the head."""
        return np.where(self.is_wait, self.ready_ns, self.start_ns)

    def until_ns(self) -> Times:
        """[N] until when: its end or when it was dropped; the horizon while it goes on, -1 before."""
        goes_on = np.where(self.since_ns() >= 0, self.horizon_ns, NOT_YET)
        dropped = np.where(self.since_ns() >= 0, self.dropped_ns, NOT_YET)
        return np.where(self.finished, self.end_ns, np.where(self.dropped_ns >= 0, dropped, goes_on))

    def previous(self) -> Times:
        """[N] position of the preceding command on the same stream, or -1; a drop empties a stream."""
        order, dropped = np.argsort(self.stream, kind="stable"), self.dropped_ns >= 0
        same = self.stream[order[1:]] == self.stream[order[:-1]]
        same &= dropped[order[1:]] | ~dropped[order[:-1]]
        before = np.full(len(self), NOT_YET, np.int64)
        before[order[1:]] = np.where(same, order[:-1], NOT_YET)
        return before

    def previous_end_ns(self) -> Times:
        """[N] end of the preceding command on the stream; -1 if there is none, `NEVER_NS` if unfinished."""
        return self._end_of(self.previous())

    def position_of(self, commands: Times) -> Times:
        """Positions of sequence numbers in this log, same shape; -1 for those it does not hold."""
        if not len(self):
            return np.full(np.shape(commands), NOT_YET, np.int64)
        position = np.minimum(np.searchsorted(self.command, commands), len(self) - 1)
        return np.where(self.command[position] == commands, position, NOT_YET)

    def event_ns(self) -> Times:
        """[N] end of the awaited command; -1 if none is awaited or it left the log, `NEVER_NS` if unfinished.

        A wait that is not over and names no command awaits what nobody has queued so far.
        """
        nobody = self.is_wait & ~self.finished & (self.waits_for < 0)
        return np.where(nobody, NEVER_NS, self._end_of(self.position_of(self.waits_for)))

    def _end_of(self, position: Times) -> Times:
        if not len(self):
            return np.zeros(0, np.int64)
        end = np.where(self.finished, self.end_ns, NEVER_NS)
        return np.where(position >= 0, end[position], NOT_YET)

    def wait_reason(self) -> Texts:
        """[N] str: what came last before each command could start, or is still missing.

        Of a command that was ready before it started: "cores" or "copy engine", or for a wait "event", "notify",
        "value" or "callback". Else "stream order" (the command before it) or "host" (its issue), whichever came
        last. Behind a wait a command inherits the reason of that wait. "" for what opens the timeline.

        >>> rows = [{"start_ns": 0, "end_ns": 9}, {"start_ns": 9, "end_ns": 12}]
        >>> log = Timeline.from_rows(rows, chip="x", calibration="", cube_cores=1, vector_cores=2)
        >>> log.wait_reason().tolist()
        ['', 'stream order']
        """
        return wait_reasons(self)

    def utilisation(self) -> dict[str, float]:
        """Busy fractions of the makespan, from finished commands; 0.0 where nothing has finished.

        "cube" and "vector": core time spent computing over all core time of the chip; "cube held" and "vector
        held": core time taken by kernels, computing or not, where kernels that could hold more cores together than
        the chip has hold all of them; "h2d", "d2h", "d2d": time with a copy under way.

        >>> rows = [{"start_ns": 0, "end_ns": 8, "held_cube": 1, "cube_busy_ns": 4}]
        >>> log = Timeline.from_rows(rows, chip="x", calibration="", cube_cores=2, vector_cores=2)
        >>> log.utilisation()["cube"], log.utilisation()["cube held"]
        (0.25, 0.5)
        """
        return usage.utilisation(self)

    def max_concurrent_kernels(self) -> int:
        """Largest number of kernels under way at one moment; one that ends as another starts does not count.

        >>> rows = [{"start_ns": 0, "end_ns": 9}, {"start_ns": 5, "end_ns": 7, "stream": 1}]
        >>> log = Timeline.from_rows(rows, chip="x", calibration="", cube_cores=2, vector_cores=2)
        >>> log.max_concurrent_kernels()
        2
        """
        return usage.max_concurrent_kernels(self)

    def of_kind(self, kind: str) -> Timeline:
        """Returns the commands of one kind only."""
        columns = {column: getattr(self, column)[self.kind == kind] for column in _COLUMNS}
        return dataclasses.replace(self, **columns)

    def rows(self) -> list[dict[str, Any]]:
        """One plain dict per command for JSON: all columns, ``state`` and ``wait_reason``; None for what is absent.

        >>> rows = [{"name": "Add"}]
        >>> log = Timeline.from_rows(rows, chip="x", calibration="", cube_cores=1, vector_cores=2)
        >>> log.rows()[0]["name"], log.rows()[0]["end_ns"]
        ('Add', None)
        """
        table: dict[str, list[Any]] = {column: getattr(self, column).tolist() for column in _COLUMNS}
        for column in _MAY_BE_ABSENT:
            table[column] = [None if value == NOT_YET else value for value in table[column]]
        table["state"], table["wait_reason"] = self.state().tolist(), self.wait_reason().tolist()
        return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def stream_name(stream: int) -> str:
    """Returns what a stream is called in pictures.

    >>> stream_name(3), stream_name(HOST_STREAM)
    ('stream 3', 'host copies')
    """
    return "host copies" if stream == HOST_STREAM else f"stream {stream}"


def _check(log: Timeline) -> None:
    lengths = {column: np.shape(getattr(log, column)) for column in _COLUMNS}
    if set(lengths.values()) != {(len(log.command),)}:
        raise ValueError(f"all columns of a timeline must be one-dimensional and equally long, got {lengths}")
    if (np.diff(log.command) <= 0).any():
        raise ValueError("commands must come in the order of enqueueing, with growing sequence numbers")
    wrong = log.finished & (~log.started | (log.end_ns < log.start_ns))
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        times = f"start {log.start_ns[first]} ns, end {log.end_ns[first]} ns"
        raise ValueError(f"command {log.command[first]} ends before it starts: {times}")
