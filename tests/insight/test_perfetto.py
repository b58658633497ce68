import collections
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_jax.insight import perfetto
from ascend_jax.insight.perfetto import HostSpan, to_perfetto

SEEDS = st.integers(0, 2**32)


def validate(trace):
    """What the trace event format and the viewers ask for; returns the events by phase."""
    trace = json.loads(json.dumps(trace, allow_nan=False))
    by_phase = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= event.keys()
        assert type(event["pid"]) is type(event["tid"]) is int
        by_phase[event["ph"]].append(event)
    timed = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    times = [event["ts"] for event in timed]
    assert times == sorted(times)
    assert all(event["ts"] == round(event["ts"], 3) for event in timed)
    assert set(by_phase) <= {"M", "X", "s", "f"}
    _validate_slices(by_phase["X"])
    _validate_arrows(timed)
    named = {(e["pid"], e["tid"]) for e in by_phase["M"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in timed} <= named
    assert {pid for pid, _ in named} == {e["pid"] for e in by_phase["M"] if e["name"] == "process_name"}
    return by_phase


def _ns(us):
    return round(us * 1000)


def _validate_slices(slices):
    tracks = collections.defaultdict(list)
    for event in slices:
        assert event["dur"] >= 0
        start = _ns(event["ts"])
        tracks[event["pid"], event["tid"]].append((start, start + _ns(event["dur"])))
    for extents in tracks.values():
        for one, other in itertools.pairwise(sorted(extents)):
            assert one[1] <= other[0]


def _validate_arrows(timed):
    """Arrows pair up, leave before they land in file order, and each lies on the slice read last there."""
    open_slice, left = {}, {}
    landed = set()
    for event in timed:
        track = event["pid"], event["tid"]
        at = _ns(event["ts"])
        if event["ph"] == "X":
            open_slice[track] = at, at + _ns(event["dur"])
            continue
        key = event["cat"], event["name"], event["id"]
        assert event["bp"] == "e"
        start, end = open_slice[track]
        assert start <= at <= end
        if event["ph"] == "s":
            assert key not in left
            left[key] = at
        else:
            assert left[key] <= at and key not in landed
            landed.add(key)
    assert landed == left.keys()


def process(trace, name):
    pids = {e["args"]["name"]: e["pid"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == pids.get(name)]


@given(SEEDS)
def test_random_logs_give_valid_traces(random_rows, build, seed):
    rows = random_rows(seed)
    spans = [HostSpan(f"step {i}", 7 * i, 7 * i + 10 + i % 3) for i in range(5)]
    trace = to_perfetto(build(rows), host_spans=spans)
    by_phase = validate(trace)
    awaited = sum(row.get("waits_for") is not None for row in rows)
    assert len(by_phase["s"]) == len(by_phase["f"]) == len(rows) + awaited
    assert len(process(trace, "Ascend Hardware")) == len(rows)
    assert len(process(trace, "Cube cores")) == sum(row.get("held_cube", 0) for row in rows)
    assert len(process(trace, "Vector cores")) == sum(row.get("held_vector", 0) for row in rows)
    assert len(process(trace, "Copy engines")) == sum(row["kind"] == "copy" for row in rows)
    assert len(process(trace, "Host")) == len(rows) + len(spans)


@given(SEEDS, st.integers(0, 1500))
def test_a_log_cut_short_gives_a_valid_trace(random_rows, build, seed, cut):
    rows = random_rows(seed)
    for row in rows:
        for key in ("end_ns", "start_ns", "ready_ns"):
            row[key] = row[key] if row[key] <= cut else None
    trace = to_perfetto(build(rows))
    validate(trace)
    started = [row for row in rows if row["start_ns"] is not None]
    assert trace["otherData"]["commands not started"] == len(rows) - len(started)
    states = [event["args"]["state"] for event in process(trace, "Ascend Hardware")]
    assert states.count("done") == sum(row["end_ns"] is not None for row in rows)


def test_known_case(build):
    log = build(
        [
            {"name": "MatMul", "stream": 3, "issue_ns": 10, "start_ns": 12, "end_ns": 1012, "held_cube": 2,
             "held_vector": 4, "limit": "cube", "moved_bytes": 64, "site": "a.py:7"},
            {"kind": "event record", "stream": 3, "issue_ns": 11, "start_ns": 1012, "end_ns": 1012},
            {"kind": "event wait", "stream": 5, "issue_ns": 20, "ready_ns": 20, "start_ns": 1012, "end_ns": 1012,
             "waits_for": 1},
            {"kind": "copy", "name": "copy device to host", "stream": 5, "issue_ns": 30, "start_ns": 1012,
             "end_ns": 3012, "engine": "d2h", "moved_bytes": 50_000},
        ]
    )  # fmt: skip
    trace = to_perfetto(log)
    by_phase = validate(trace)
    matmul, wait, record, copy = process(trace, "Ascend Hardware")
    assert (matmul["ts"], matmul["dur"], matmul["tid"]) == (0.012, 1.0, 3)
    assert matmul["args"] == {
        "Task Type": "MIX_AIC", "Stream Id": 3, "Task Id": 0, "Block Num": 1, "cube cores": 2, "vector cores": 4,
        "priority": 0, "host thread": 0, "wait reason": "", "limit": "cube", "moved bytes": 64, "call site": "a.py:7",
        "state": "done", "result": 0,
    }  # fmt: skip
    assert (wait["ts"], wait["dur"]) == (0.02, 0.992)  # from the head of its stream to its release
    assert [e["args"]["Task Type"] for e in (record, wait)] == ["EVENT_RECORD", "EVENT_WAIT"]
    assert copy["args"]["Task Type"] == "MEMCPY_ASYNC"
    assert copy["args"]["wait reason"] == "event"
    assert copy["args"]["size(B)"] == 50_000
    assert copy["args"]["bandwidth(GB/s)"] == 25.0
    assert copy["args"]["operation"] == "device to host"
    arrows = [(e["ph"], e["ts"], e["tid"]) for e in by_phase["s"] + by_phase["f"] if e["cat"] == "event"]
    assert arrows == [("s", 1.012, 3), ("f", 1.012, 5)]
    sort = {e["pid"]: e["args"]["sort_index"] for e in by_phase["M"] if e["name"] == "process_sort_index"}
    assert sort[matmul["pid"]] == 14
    threads = {e["tid"]: e["args"]["name"] for e in by_phase["M"] if e["name"] == "thread_name" and
               e["pid"] == matmul["pid"]}  # fmt: skip
    assert threads == {3: "Stream 3", 5: "Stream 5"}
    assert trace["displayTimeUnit"] == "ns"
    assert trace["otherData"] == {
        "chip": "Ascend910B2", "calibration": "test", "simulated": True, "commands": 4,
        "commands no longer in the log": 0, "commands not started": 0, "commands failed": 0, "commands dropped": 0,
        "core tracks": "shown",
    }  # fmt: skip


def test_task_types_tell_the_cores(build):
    held = [(1, 0), (0, 1), (1, 1), (0, 0)]
    log = build(
        [{"start_ns": 9 * i, "end_ns": 9 * i + 1, "held_cube": c, "held_vector": v} for i, (c, v) in enumerate(held)]
    )
    types = [e["args"]["Task Type"] for e in process(to_perfetto(log), "Ascend Hardware")]
    assert types == ["AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "KERNEL"]


def test_a_wait_issued_before_its_record_still_gets_its_arrow(build):
    log = build(
        [
            {"kind": "event wait", "stream": 0, "ready_ns": 0, "start_ns": 50, "end_ns": 50, "waits_for": 2},
            {"stream": 0, "start_ns": 50, "end_ns": 60},
            {"kind": "event record", "stream": 1, "start_ns": 50, "end_ns": 50},
        ]
    )
    arrows = [e for e in validate(to_perfetto(log))["f"] if e["cat"] == "event"]
    assert [(e["ts"], e["tid"]) for e in arrows] == [(0.05, 0)]


def test_failed_dropped_and_waiting_commands(build):
    log = build(
        [
            {"stream": 0, "start_ns": 0, "end_ns": 40, "code": 507015},
            {"stream": 1, "start_ns": 0, "dropped_ns": 60, "held_vector": 2},
            {"kind": "notify wait", "stream": 2, "ready_ns": 10},
            {"kind": "notify record", "stream": 1, "dropped_ns": 60},
        ]
    )
    trace = to_perfetto(log)
    validate(trace)
    shown = {e["args"]["Task Id"]: (e["dur"], e["args"]["state"]) for e in process(trace, "Ascend Hardware")}
    assert shown == {0: (0.04, "failed"), 1: (0.06, "dropped"), 2: (0.05, "ready")}
    assert {e["dur"] for e in process(trace, "Vector cores")} == {0.06}
    assert trace["otherData"]["commands failed"] == 1 and trace["otherData"]["commands dropped"] == 2


def test_a_core_that_is_taken_over_shows_one_kernel_at_a_time(build):
    log = build([{"start_ns": 0, "end_ns": 20, "held_cube": 4}, {"start_ns": 8, "end_ns": 30, "held_cube": 1}])
    trace = to_perfetto(log)
    validate({**trace, "traceEvents": [e for e in trace["traceEvents"] if e["pid"] == 36 << 5]})
    extents = [(e["tid"], e["ts"], e["dur"]) for e in process(trace, "Cube cores")]
    assert extents[0] == (0, 0.0, 0.008) and extents[-1] == (0, 0.008, 0.022)


def test_core_tracks_are_left_out_of_a_large_trace(build, monkeypatch):
    log = build([{"start_ns": 0, "end_ns": 9, "held_cube": 4, "held_vector": 8}])
    monkeypatch.setattr(perfetto, "MAX_EVENTS", 15)
    assert to_perfetto(log)["otherData"]["core tracks"].startswith("left out: their 12 slices")
    monkeypatch.setattr(perfetto, "MAX_EVENTS", 16)
    trace = to_perfetto(log)
    assert trace["otherData"]["core tracks"] == "shown"
    assert sum(event["ph"] != "M" for event in trace["traceEvents"]) == 16


def test_full_chip_kernel_makes_a_slice_per_core(build):
    log = build([{"start_ns": 0, "end_ns": 9, "held_cube": 24, "held_vector": 48}], cube_cores=24, vector_cores=48)
    trace = to_perfetto(log)
    assert len(process(trace, "Cube cores")) == 24 and len(process(trace, "Vector cores")) == 48


def test_an_hour_keeps_its_nanoseconds(build):
    hour = 3_600_000_000_000
    log = build([{"issue_ns": hour, "start_ns": hour + 1, "end_ns": hour + 4}])
    text = json.dumps(to_perfetto(log))
    assert '"ts": 3600000000.001' in text and '"dur": 0.003' in text


def test_writes_the_whole_file_or_none(build, tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    log = build([{"start_ns": 0, "end_ns": 9, "name": "Größe"}])
    trace = to_perfetto(log, path)
    assert json.loads(path.read_text(encoding="utf-8")) == trace
    old = path.read_bytes()

    def no_space(*_):
        raise OSError("disk full")

    monkeypatch.setattr(perfetto.os, "replace", no_space)
    with pytest.raises(OSError, match="disk full"):
        to_perfetto(build([]), str(path))
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


def test_empty_log(build):
    trace = to_perfetto(build([]))
    assert trace["traceEvents"] == [] and trace["otherData"]["commands"] == 0


def test_host_spans_share_a_thread_unless_they_overlap(build):
    extents = [(0, 10), (2, 4), (10, 20), (19, 30), (4, 4)]
    spans = [HostSpan(f"span {i}", *extent) for i, extent in enumerate(extents)]
    trace = to_perfetto(build([]), host_spans=spans)
    validate(trace)
    lanes = {event["name"]: event["tid"] for event in process(trace, "Host")}
    assert lanes == {"span 0": 1, "span 1": 2, "span 2": 1, "span 3": 2, "span 4": 2}
