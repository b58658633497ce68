"""A timeline as plain text: time to the right, a row per stream or per core."""

from __future__ import annotations

import itertools
import string
import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ascend_jax.insight.cores import CoreSlices, assign_cores
from ascend_jax.insight.kinds import COPY, KERNEL, MEMSET
from ascend_jax.insight.timeline import Texts, Timeline, stream_name

_MIN_WIDTH = 40
_UNFINISHED, _FAILED, _DROPPED = ">", "!", "x"
_MEANING = {
    "#": "kernel",
    "=": "copy or memset",
    "+": "event record or other",
    ".": "waits for an event or other",
    ":": "waits for cores or a copy engine",
    _UNFINISHED: "not finished",
    _DROPPED: "dropped",
    _FAILED: "failed",
}
_WEAKEST_FIRST = ".:+=#>x!"  # where several things share a column, the one drawn last is seen


class _Span(NamedTuple):
    start_ns: int
    end_ns: int
    ink: str


class _Row(NamedTuple):
    label: str
    members: int  # streams or cores that the row stands for
    spans: list[_Span]


def gantt(timeline: Timeline, *, width: int = 100, by: str = "stream", max_rows: int = 40) -> str:
    """Draws a timeline as text.

    ``by="stream"`` shows a row per stream: its work, its waits from the moment a command had reached the head of
    the stream, and what failed or was dropped. ``by="core"`` shows a row per core, as `assign_cores` pictures them,
    with a letter per stream, upper and lower case in turn from one command of a stream to the next; neighbours that
    did the same share a row. Every piece of work gets at least one column, so short ones look longer than they are
    and may hide each other.

    Args:
      timeline: the log of one card.
      width: length of the rows, at least 40 characters.
      by: "stream" or "core".
      max_rows: rows to draw; the streams or cores beyond are counted in one line.

    Returns:
      Lines of ASCII text without a newline at the end; the axis is in us from the first issue.

    Raises:
      ValueError: a width below 40, no rows, or an unknown ``by``.

    >>> matmul = {"kind": "kernel", "stream": 0, "start_ns": 0, "end_ns": 6000}
    >>> copy = {"kind": "copy", "stream": 7, "start_ns": 4000, "end_ns": 9000}
    >>> card = dict(chip="Ascend910B2", calibration="example", cube_cores=24, vector_cores=48)
    >>> log = Timeline.from_rows([matmul, copy], **card)
    >>> print(gantt(log, width=40))
    Ascend910B2 (example), simulated: 2 commands in 9 us
    us        0     2     4      6     8
              +-----+-----+------+-----+---
    stream 0 |####################         |
    stream 7 |            =================|
    # kernel   = copy or memset
    """
    if by not in ("stream", "core"):
        raise ValueError(f'by={by!r}: choose "stream" or "core"')
    if width < _MIN_WIDTH or max_rows < 1:
        raise ValueError(f"width={width}, max_rows={max_rows}: need at least {_MIN_WIDTH} and 1")
    if not len(timeline):
        return "no commands"
    rows, meaning = _stream_rows(timeline) if by == "stream" else _core_rows(timeline)
    shown, hidden = rows[:max_rows], rows[max_rows:]
    label_width = max((len(row.label) for row in shown), default=0)
    columns = width - label_width - 3
    pictures = [_draw(row.spans, timeline, columns) for row in shown]
    numbers, ruler = _axis(timeline, columns)
    lines = [_heading(timeline), f"{'us':<{label_width}}  {numbers}", f"{'':<{label_width}}  {ruler}"]
    lines += [f"{row.label:<{label_width}} |{text}|" for row, text in zip(shown, pictures, strict=True)]
    if hidden:
        lines.append(f"... {sum(row.members for row in hidden)} more {by}s")
    lines += _legend(meaning, set("".join(pictures)), width)
    return "\n".join(line.rstrip() for line in lines)


def _stream_rows(timeline: Timeline) -> tuple[list[_Row], dict[str, str]]:
    """A row per stream, and what the characters mean."""
    spans: dict[int, list[_Span]] = {stream: [] for stream in np.unique(timeline.stream).tolist()}
    for stream, span in _stream_spans(timeline):
        spans[stream].append(span)
    return [_Row(stream_name(stream), 1, of_stream) for stream, of_stream in spans.items()], _MEANING


def _stream_spans(timeline: Timeline) -> Iterator[tuple[int, _Span]]:
    """What each command adds to the row of its stream; little if it is stuck behind another one."""
    horizon_ns = timeline.horizon_ns
    until_ns, is_wait = timeline.until_ns().tolist(), timeline.is_wait.tolist()
    for position, row in enumerate(timeline.rows()):
        stream, ready, start, dropped = row["stream"], row["ready_ns"], row["start_ns"], row["dropped_ns"]
        if ready is not None and (start is None or start > ready):
            held_until = next(time for time in (start, dropped, horizon_ns) if time is not None)
            yield stream, _Span(ready, held_until, "." if is_wait[position] else ":")
        if start is not None and not is_wait[position]:
            yield stream, _Span(start, until_ns[position], _ink(row["kind"]))
        if row["state"] in ("ready", "running"):
            yield stream, _Span(horizon_ns, horizon_ns, _UNFINISHED)
        if row["state"] == "failed":
            yield stream, _Span(row["end_ns"], row["end_ns"], _FAILED)
        if dropped is not None:
            yield stream, _Span(dropped, dropped, _DROPPED)


def _ink(kind: str) -> str:
    return {KERNEL: "#", COPY: "=", MEMSET: "="}.get(kind, "+")


def _core_rows(timeline: Timeline) -> tuple[list[_Row], dict[str, str]]:
    """A row per run of cores that did the same, and what the characters mean."""
    lanes = assign_cores(timeline)
    inks, meaning = _letters(timeline)
    rows = []
    for unit, count, slices in (
        ("cube", timeline.cube_cores, lanes.cube),
        ("vector", timeline.vector_cores, lanes.vector),
    ):
        spans = _core_spans(timeline, slices, count, inks)
        for did, group in itertools.groupby(range(count), key=spans.__getitem__):
            cores = list(group)
            numbers = f"{cores[0]}-{cores[-1]}" if len(cores) > 1 else f"{cores[0]}"
            rows.append(_Row(f"{unit} {numbers}", len(cores), did))
    return rows, meaning


def _core_spans(timeline: Timeline, slices: CoreSlices, count: int, inks: Texts) -> list[list[_Span]]:
    spans: list[list[_Span]] = [[] for _ in range(count)]
    start_ns, horizon_ns, state = timeline.start_ns.tolist(), timeline.horizon_ns, timeline.state().tolist()
    columns = (slices.entry.tolist(), slices.core.tolist(), slices.until_ns.tolist())
    for entry, core, until_ns in zip(*columns, strict=True):
        spans[core].append(_Span(start_ns[entry], until_ns, inks[entry]))
        if state[entry] == "running":
            spans[core].append(_Span(horizon_ns, horizon_ns, _UNFINISHED))
    return spans


def _letters(timeline: Timeline) -> tuple[Texts, dict[str, str]]:
    """The letter of every command that holds cores, and the streams that each letter stands for."""
    on_cores = (timeline.held_cube > 0) | (timeline.held_vector > 0)
    inks = np.full(len(timeline), "", object)
    streams: dict[str, list[str]] = {}
    for rank, stream in enumerate(np.unique(timeline.stream[on_cores])):
        letter = string.ascii_uppercase[rank % 26]
        positions = np.flatnonzero(on_cores & (timeline.stream == stream))
        inks[positions[::2]], inks[positions[1::2]] = letter, letter.lower()
        streams.setdefault(letter + letter.lower(), []).append(str(stream))
    meaning = {letters: f"stream {', '.join(numbers)}" for letters, numbers in streams.items()}
    return inks, meaning | {_UNFINISHED: _MEANING[_UNFINISHED]}


def _draw(spans: Iterable[_Span], timeline: Timeline, columns: int) -> str:
    begin_ns, length_ns = timeline.begin_ns, _length_ns(timeline)
    picture = [" "] * columns
    for span in sorted(spans, key=lambda span: _WEAKEST_FIRST.find(span.ink)):
        first = min((span.start_ns - begin_ns) * columns // length_ns, columns - 1)
        last = max(first, ((span.end_ns - begin_ns) * columns - 1) // length_ns)
        picture[first : last + 1] = span.ink * (last + 1 - first)
    return "".join(picture)


def _length_ns(timeline: Timeline) -> int:
    return max(1, timeline.horizon_ns - timeline.begin_ns)


def _axis(timeline: Timeline, columns: int) -> tuple[str, str]:
    """Numbers, and a ruler with a "+" at each of them, as wide as the picture."""
    length_ns = _length_ns(timeline)
    room = len(_us(length_ns)) + 3
    steps = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    step_ns = next(step for step in steps if step * columns >= room * length_ns)
    numbers, ruler = "", ["-"] * columns
    for tick_ns in range(0, length_ns, step_ns):
        column = tick_ns * columns // length_ns
        ruler[column] = "+"
        if column + len(_us(tick_ns)) <= columns:
            numbers = f"{numbers:<{column}}{_us(tick_ns)}"
    return numbers, "".join(ruler)


def _us(time_ns: int) -> str:
    return f"{time_ns / 1000:.3f}".rstrip("0").rstrip(".")


def _heading(timeline: Timeline) -> str:
    length_us, count = _us(timeline.horizon_ns - timeline.begin_ns), len(timeline)
    commands = "1 command" if count == 1 else f"{count} commands"
    parts = [f"{timeline.chip} ({timeline.calibration}), simulated: {commands} in {length_us} us"]
    if timeline.begin_ns:
        parts.append(f"from {_us(timeline.begin_ns)} us on")
    if timeline.forgotten:
        parts.append(f"{timeline.forgotten} earlier ones no longer in the log")
    return ", ".join(parts)


def _legend(meaning: dict[str, str], used: set[str], width: int) -> list[str]:
    items = [f"{inks} {what}" for inks, what in meaning.items() if used & set(inks)]
    glued = "   ".join(item.replace(" ", "\xa0") for item in items)  # lines break between items only
    lines = textwrap.wrap(glued, width, max_lines=4, placeholder=" ...")
    return [line.replace("\xa0", " ") for line in lines]
