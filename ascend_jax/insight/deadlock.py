"""Why streams can never go on: where each one stops, what would release it, and why that will not happen."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ascend_jax.insight.cells import is_met, signed, would_release
from ascend_jax.insight.extract import Rows, address, rows_of, timeline
from ascend_jax.insight.timeline import Timeline, stream_name
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.handles import thread_cell
from ascend_jax.runtime.layout import NONE, TASKS, Change, Condition, Field, Kind, Phase, Resource
from ascend_jax.runtime.state import CardState
from ascend_jax.runtime.status import status

_WANTED = {
    Condition.GE: "to be at least {}",
    Condition.EQ: "to be {}",
    Condition.AND: "to share a bit with {}",
    Condition.NOR: "to have, like {}, a bit that is 0",
}


@dataclasses.dataclass(frozen=True)
class Release:
    """A command that would release a wait, and why it does not."""

    command: int  # sequence number
    name: str
    stream: int
    site: str  # the caller's line
    obstacle: str


@dataclasses.dataclass(frozen=True)
class Stop:
    """The command at which a stream stops for ever."""

    stream: int
    command: int  # sequence number
    name: str
    site: str  # the caller's line
    since_ns: int | None  # when it came to the head of its stream; None: what is before it has not ended yet
    waits_for: str
    releases: tuple[Release, ...]


@dataclasses.dataclass(frozen=True)
class DeadlockReport:
    """What keeps streams from ever going on, unless the host queues more; ``str`` of it is for reading."""

    stops: tuple[Stop, ...]  # one for each stream that stops
    cycles: tuple[tuple[int, ...], ...]  # streams of which each waits for the next and the last for the first
    call: str  # line of the call that found out (status 900003), or ""

    def __str__(self) -> str:
        lines = [f"The call at {self.call} can never return."] if self.call else []
        count = len(self.stops)
        found = f"{count} stream{'' if count == 1 else 's'} can never go on"
        lines.append(found if count else "No stream is stopped for ever.")
        for stop in self.stops:
            since = "" if stop.since_ns is None else f", since {stop.since_ns / 1000:.3f} us"
            lines += [f"{stream_name(stop.stream)} stops at {stop.name}{_at(stop.site)}{since}"]
            lines += [f"  waits for {stop.waits_for}"]
            lines += [
                f"  {each.name} in {stream_name(each.stream)}{_at(each.site)} would release it, but {each.obstacle}"
                for each in stop.releases
            ]
        for cycle in self.cycles:
            lines.append("cycle: " + " -> ".join(stream_name(stream) for stream in (*cycle, cycle[0])))
        return "\n".join(lines)


class _Log(NamedTuple):
    """A card's commands by position, and its cells."""

    card: CardState
    line: Timeline
    rows: Rows
    value: list[int]  # of each mark, signed
    cells: list[int]  # signed
    queues: list[list[int]]  # unfinished positions of each stream, in order


def deadlock_report(card: CardState) -> DeadlockReport:
    """Return which streams of one card can never go on, and why; reads the card only.

    A stream stops at the first of its commands that can never happen: a wait that nothing queued will release, because
    what would is behind the wait itself, in a stream that stops before it, was dropped or was never queued. Waits that
    have a timeout do not stop a stream.

    >>> import ascend_jax as aj
    >>> card, notify = aj.create_notify(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=0))
    >>> card = aj.wait_and_reset_notify(card, notify, 0)
    >>> card = aj.record_notify(card, notify, 0)  # too late: behind the wait
    >>> report = aj.insight.deadlock_report(aj.synchronize_stream(card, 0))
    >>> report.stops[0].name, report.stops[0].releases[0].obstacle, report.cycles
    ('notify wait 0', 'is behind this wait itself', ((0,),))
    """
    log = _read(card)
    releases = {position: _releases(log, position) for queue in log.queues for position in queue}
    can = _can_happen(log, releases)
    stops = {}
    for queue in log.queues:
        position = next((each for each in queue if not can[each]), None)
        if position is not None:
            stops[int(log.line.stream[position])] = position
    found = [_stop(log, position, releases[position], stops) for position in stops.values()]
    failure = status(card)
    call = failure.site if failure.code == Code.DEADLOCK else ""
    return DeadlockReport(tuple(found), _cycles(log, stops, releases), call)


def _read(card: CardState) -> _Log:
    line, rows = timeline(card), rows_of(card)
    pending = rows.phase < Phase.DONE
    queues = [np.flatnonzero(pending & (line.stream == stream)).tolist() for stream in np.unique(line.stream)]
    values = signed(rows.fields[:, [Field.VALUE_HI, Field.VALUE_LO]])
    return _Log(card, line, rows, values, signed(np.asarray(card.cells)), queues)


def _releases(log: _Log, position: int) -> list[int]:
    """Return the positions of commands that have not happened and would release this one."""
    phase, mine = log.rows.phase, log.rows.fields[position]
    is_open = (phase < Phase.DONE) | (phase == Phase.DROPPED)
    if mine[Field.CONDITION] == Condition.NONE:
        source = _position(log, int(mine[Field.DEPENDS]))
        return [source] if source >= 0 and is_open[source] else []
    changes = np.flatnonzero(_changes(log, position) & is_open).tolist()
    return [each for each in changes if each != position and would_release(log.rows.fields[each], mine)]


def _changes(log: _Log, position: int) -> NDArray[np.bool_]:
    """Return which commands change the cell that this one looks at."""
    fields = log.rows.fields
    return (fields[:, Field.CELL] == fields[position, Field.CELL]) & (fields[:, Field.CHANGE] != Change.NONE)


def _position(log: _Log, command: int) -> int:
    """Return where a sequence number is in the log, or -1."""
    return int(log.line.position_of(np.array(command)))


def _can_happen(log: _Log, releases: Mapping[int, Sequence[int]]) -> list[bool]:
    """Return which commands can happen, if whatever could release a wait does."""
    phase = log.rows.phase
    can = ((phase >= Phase.DONE) & (phase < Phase.DROPPED)).tolist()
    rest = [list(reversed(queue)) for queue in log.queues]
    changed = True
    while changed:
        changed = False
        for queue in rest:
            while queue and _may(log, queue[-1], releases[queue[-1]], can):
                can[queue.pop()] = changed = True
    return can


def _may(log: _Log, position: int, releases: Sequence[int], can: Sequence[bool]) -> bool:
    mine = log.rows.fields[position]
    if mine[Field.KIND] in TASKS:
        return _fits(log, mine)
    if mine[Field.TIMEOUT_HI] or mine[Field.TIMEOUT_LO]:
        return True
    if mine[Field.CONDITION] == Condition.NONE:
        return all(can[each] for each in releases)
    if is_met(mine[Field.CONDITION], log.cells[mine[Field.CELL]], log.value[position]):
        return True
    return any(can[each] for each in releases)


def _fits(log: _Log, mine: NDArray[np.int32]) -> bool:
    at_once = int(mine[Field.BLOCKS]) if mine[Field.MODE] else 1
    cores = (Resource.CUBE, log.line.cube_cores), (Resource.VECTOR, log.line.vector_cores)
    return all(int(mine[Field.NEED + unit]) * at_once <= count for unit, count in cores)


def _stop(log: _Log, position: int, releases: Sequence[int], stops: dict[int, int]) -> Stop:
    line = log.line
    found = [
        Release(
            int(line.command[each]),
            line.name[each],
            int(line.stream[each]),
            line.site[each],
            _obstacle(log, position, each, stops),
        )
        for each in releases
    ]
    since = int(line.ready_ns[position])
    return Stop(
        stream=int(line.stream[position]),
        command=int(line.command[position]),
        name=line.name[position],
        site=line.site[position],
        since_ns=None if since < 0 else since,
        waits_for=_wanted(log, position) + ("" if found else "; nothing that is queued would do that"),
        releases=tuple(found),
    )


def _obstacle(log: _Log, position: int, release: int, stops: dict[int, int]) -> str:
    line, stream = log.line, int(log.line.stream[release])
    if line.dropped_ns[release] >= 0:
        return "was dropped"
    if stream == line.stream[position]:
        return "is behind this wait itself"
    first = stops[stream]
    return f"is behind {line.name[first]}{_at(line.site[first])}, where that stream stops"


def _wanted(log: _Log, position: int) -> str:
    """What the command waits for, in words."""
    mine = log.rows.fields[position]
    match Kind(mine[Field.KIND]):
        case Kind.EVENT_WAIT if mine[Field.OBJECT] == NONE:
            return "the stream that gave memory of a pool back"
        case Kind.EVENT_WAIT if mine[Field.CONDITION] == Condition.NONE:
            return f"the record of event {mine[Field.OBJECT]} to which it was bound"
        case Kind.EVENT_WAIT:
            return f"event {mine[Field.OBJECT]} to be recorded{_history(log, position)}"
        case Kind.NOTIFY_WAIT:
            return f"notify {mine[Field.OBJECT]} to be recorded{_history(log, position)}"
        case Kind.VALUE_WAIT:
            wanted = _WANTED[Condition(mine[Field.CONDITION])].format(log.value[position])
            now = log.cells[mine[Field.CELL]]
            return f"the value at {address(log.rows.operands[position])} {wanted}; it is {now}{_history(log, position)}"
        case Kind.CALLBACK_WAIT:
            return _callback(log, log.value[position] - 1)
    return "more cores than the chip has" if mine[Field.KIND] in TASKS else "what precedes it"


def _history(log: _Log, position: int) -> str:
    """Which command changed the cell last."""
    line = log.line
    done = np.flatnonzero(_changes(log, position) & (log.rows.phase == Phase.DONE))
    if not len(done):
        return ""
    last = done[np.lexsort((line.command[done], line.end_ns[done]))[-1]]
    return f"; the last to change it was {line.name[last]} in {stream_name(line.stream[last])}{_at(line.site[last])}"


def _callback(log: _Log, command: int) -> str:
    """A callback that only its host thread can run."""
    source = _position(log, command)
    if source < 0:
        return "a callback that the host has not run"
    thread = int(log.rows.fields[source, Field.CELL]) - int(thread_cell(log.card, 0))
    return f"{log.line.name[source]} to be run by host thread {thread}, in process_report"


def _cycles(log: _Log, stops: dict[int, int], releases: Mapping[int, Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the circles that come of going from each stream to the one that would release it first."""
    following = {}
    for stream, position in stops.items():
        queued = [each for each in releases[position] if log.line.dropped_ns[each] < 0]
        if queued:
            following[stream] = int(log.line.stream[queued[0]])
    found = set()
    for stream in following:
        path: list[int] = []
        while stream in following and stream not in path:
            path.append(stream)
            stream = following[stream]
        if stream in path:
            circle = path[path.index(stream) :]
            first = circle.index(min(circle))
            found.add((*circle[first:], *circle[:first]))
    return tuple(sorted(found))


def _at(site: str) -> str:
    return f" ({site})" if site else ""
