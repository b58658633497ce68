"""From a card's command table to a timeline: with ``deadlock`` the only place outside the runtime that knows it."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ascend_jax.insight import kinds
from ascend_jax.insight.cells import would_release
from ascend_jax.insight.timeline import NOT_YET, Texts, Timeline, Times
from ascend_jax.runtime import callsite, clock, layout
from ascend_jax.runtime.commands import host_stream
from ascend_jax.runtime.faults import result_codes
from ascend_jax.runtime.kernels import LIMITS
from ascend_jax.runtime.layout import (
    GRANULE_BYTES,
    TASKS,
    Change,
    Clock,
    Condition,
    Field,
    Kind,
    Operand,
    Phase,
    Resource,
    Time,
)
from ascend_jax.runtime.state import CardState, require_single

_KINDS = {
    Kind.KERNEL: kinds.KERNEL,
    Kind.COPY: kinds.COPY,
    Kind.MEMSET: kinds.MEMSET,
    Kind.EVENT_RECORD: kinds.EVENT_RECORD,
    Kind.EVENT_WAIT: kinds.EVENT_WAIT,
    Kind.EVENT_RESET: kinds.EVENT_RESET,
    Kind.NOTIFY_RECORD: kinds.NOTIFY_RECORD,
    Kind.NOTIFY_WAIT: kinds.NOTIFY_WAIT,
    Kind.VALUE_WRITE: kinds.VALUE_WRITE,
    Kind.VALUE_WAIT: kinds.VALUE_WAIT,
    Kind.CALLBACK: kinds.CALLBACK,
    Kind.CALLBACK_WAIT: kinds.CALLBACK_WAIT,
    Kind.RENDEZVOUS: kinds.RENDEZVOUS,
    Kind.COLLECTIVE: kinds.COLLECTIVE,
    Kind.HOST_FUNC: kinds.HOST_FUNC,
}
_ENGINES = {Resource.H2D: "h2d", Resource.D2H: "d2h", Resource.D2D: "d2d"}
_DIRECTIONS = {
    "h2d": "host to device",
    "d2h": "device to host",
    "d2d": "device to device",
    "": "host to host",
}


class Rows(NamedTuple):
    """The commands that a card's table still holds, in the order of enqueueing; without captured ones."""

    fields: NDArray[np.int32]  # [N, FIELDS]
    operands: NDArray[np.int32]  # [N, P, len(Operand)]
    times: NDArray[np.int32]  # [N, len(Time)]
    code: NDArray[np.int32]  # [N], 0 or the code with which it failed

    @property
    def phase(self) -> NDArray[np.int32]:
        """[N] Phase."""
        return self.times[:, Time.PHASE]


def rows_of(card: CardState) -> Rows:
    """Return the rows of the command table that are commands, for one card."""
    require_single(card)
    fields, times = np.asarray(card.table.fields), np.asarray(card.table.times)
    enqueued = int(np.asarray(card.clock)[Clock.ENQUEUED])
    sequence = np.arange(max(0, enqueued - card.table.rows), enqueued)
    row = sequence % card.table.rows
    row = row[(fields[row, Field.SEQUENCE] == sequence) & (times[row, Time.PHASE] != Phase.CAPTURED)]
    code = np.zeros(len(fields), np.int32)
    if np.isin(times[row, Time.PHASE], (Phase.FAULTED, Phase.EXPIRED)).any():
        code = np.asarray(result_codes(card.table.fields, card.table.times[:, Time.PHASE]))
    return Rows(fields[row], np.asarray(card.table.operands)[row], times[row], code[row])


def timeline(card: CardState) -> Timeline:
    """Return what ``card`` has done so far, for one card; its own host copies are on stream -1.

    What a capture has recorded is no part of it.

    >>> import ascend_jax as aj
    >>> card, ptr = aj.malloc(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 20), 256)
    >>> aj.insight.timeline(aj.memset(card, ptr, 0, 256)).name.tolist()
    ['fill device memory']
    """
    rows = rows_of(card)
    fields, kind = rows.fields, rows.fields[:, Field.KIND]
    enqueued, now_hi, now_lo = np.asarray(card.clock)[[Clock.ENQUEUED, Clock.DEVICE_HI, Clock.DEVICE_LO]].tolist()
    need = fields[:, Field.NEED : Field.NEED + len(Resource)]
    engine = _texts(next((name for unit, name in _ENGINES.items() if units[unit]), "") for units in need)
    held_cube, held_vector = _most_held(card, fields[:, Field.BLOCKS], need)
    stream = fields[:, Field.STREAM]
    columns: dict[str, Any] = {
        "command": fields[:, Field.SEQUENCE],
        "kind": _texts(_KINDS[Kind(each)] for each in kind),
        "name": _texts(_name(card, *each) for each in zip(fields, rows.operands, engine, strict=True)),
        "stream": np.where(stream == host_stream(card), layout.NONE, stream),
        "priority": fields[:, Field.PRIORITY],
        "thread": fields[:, Field.THREAD],
        "issue_ns": clock.to_ns(fields[:, Field.ISSUE_HI], fields[:, Field.ISSUE_LO]),
        **_instants(rows),
        "code": rows.code,
        "blocks": np.where(np.isin(kind, TASKS), fields[:, Field.BLOCKS], 0),
        "held_cube": held_cube,
        "held_vector": held_vector,
        "engine": engine,
        "cube_busy_ns": fields[:, Field.CUBE_NS],
        "vector_busy_ns": fields[:, Field.VECTOR_NS],
        "moved_bytes": fields[:, Field.MOVED].astype(np.int64) * GRANULE_BYTES,
        "limit": np.where(kind == Kind.KERNEL, np.array(LIMITS, dtype=object)[fields[:, Field.LIMIT]], ""),
        "waits_for": _released_by(rows),
        "site": _texts(callsite.text(site) for site in fields[:, Field.SITE]),
    }
    return Timeline(
        chip=card.chip.name,
        calibration=card.chip.calibration,
        cube_cores=int(card.chip["cube_cores"]),
        vector_cores=int(card.chip["vector_cores"]),
        forgotten=max(0, enqueued - card.table.rows),
        now_ns=int(clock.to_ns(now_hi, now_lo)),
        **columns,
    )


def _texts(each: Iterable[str]) -> Texts:
    return np.array(list(each), dtype=np.object_)


def _instants(rows: Rows) -> dict[str, Times]:
    """Return the columns that say when each command was ready, started, ended and was dropped.

    A dropped command has its end stamp at the moment of the drop; one that had not begun has no start stamp, and one
    that was not at the head of its stream no ready stamp.
    """
    phase, is_dropped = rows.phase, rows.phase == Phase.DROPPED
    columns = (Time.READY_HI, Time.START_HI, Time.END_HI)
    ready, start, end = (clock.to_ns(rows.times[:, column], rows.times[:, column + 1]) for column in columns)
    is_ready = np.where(is_dropped, ready > 0, phase >= Phase.READY)
    is_started = np.where(is_dropped, start >= 0, phase >= Phase.RUNNING)
    return {
        "ready_ns": np.where(is_ready, ready, NOT_YET),
        "start_ns": np.where(is_started, start, NOT_YET),
        "end_ns": np.where((phase >= Phase.DONE) & ~is_dropped, end, NOT_YET),
        "dropped_ns": np.where(is_dropped, end, NOT_YET),
    }


def _most_held(card: CardState, blocks: NDArray[np.int32], need: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return [2, N], the most cube and vector cores that each command's blocks can hold at one time."""
    cores = np.array([[int(card.chip["cube_cores"])], [int(card.chip["vector_cores"])]], np.int32)
    each = need[:, [Resource.CUBE, Resource.VECTOR]].T
    fits = np.where(each > 0, cores // np.maximum(each, 1), blocks).min(0)
    return np.minimum(blocks, fits) * each


def _released_by(rows: Rows) -> Times:
    """Return [N] the command that each wait is bound to, or whose change of its cell let it go; -1 for none."""
    fields, is_done = rows.fields, rows.phase == Phase.DONE
    changes: dict[int, list[int]] = {}
    for row in np.flatnonzero((fields[:, Field.CHANGE] != Change.NONE) & is_done):
        changes.setdefault(int(fields[row, Field.CELL]), []).append(int(row))
    source = fields[:, Field.DEPENDS].astype(np.int64)
    for row in np.flatnonzero((fields[:, Field.CONDITION] != Condition.NONE) & is_done):
        cause = _cause(rows, int(row), changes.get(int(fields[row, Field.CELL]), []))
        source[row] = layout.NONE if cause is None else fields[cause, Field.SEQUENCE]
    return source


def _cause(rows: Rows, wait: int, changes: Sequence[int]) -> int | None:
    """Return which change of its cell let a wait go: the first of that moment if it was held, else the latest."""

    def end(row: int) -> list[int]:
        return rows.times[row, [Time.END_HI, Time.END_LO]].tolist()

    mine, stream = rows.fields[wait], rows.fields[:, Field.STREAM]
    before = [row for row in changes if end(row) <= end(wait) and (row < wait or stream[row] != stream[wait])]
    able = [row for row in before if row != wait and would_release(rows.fields[row], mine)]
    was_held = rows.times[wait, [Time.READY_HI, Time.READY_LO]].tolist() < end(wait)
    now = [row for row in able if end(row) == end(wait)]
    return now[0] if was_held and now else max(able, key=lambda row: (end(row), row), default=None)


def _name(card: CardState, fields: NDArray[np.int32], operands: NDArray[np.int32], engine: str) -> str:
    kind = Kind(fields[Field.KIND])
    if kind in (Kind.KERNEL, Kind.COLLECTIVE):
        index = fields[Field.KERNEL]
        return card.kernels[index].operator if 0 <= index < len(card.kernels) else f"kernel {index}"
    if kind == Kind.COPY:
        return f"copy {_DIRECTIONS[engine]}"
    if kind == Kind.MEMSET:
        return f"fill {'device' if engine else 'host'} memory"
    if kind in (Kind.VALUE_WRITE, Kind.VALUE_WAIT):
        return f"{_KINDS[kind]} at {address(operands)}"
    return _KINDS[kind] if kind == Kind.CALLBACK_WAIT else f"{_KINDS[kind]} {fields[Field.OBJECT]}"


def address(operands: NDArray[np.int32]) -> str:
    """Return where a value lies: its device pointer, and bytes from there.

    >>> address(np.array([[32768, 8, 0, 8]])), address(np.array([[32768, 0, 0, 8]]))
    ('32768 + 8 bytes', '32768')
    """
    pointer, offset = operands[0, Operand.POINTER], operands[0, Operand.OFFSET]
    return f"{pointer} + {offset} bytes" if offset else f"{pointer}"
