import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_jax.insight.timeline import NEVER_NS, Timeline

SEEDS = st.integers(0, 2**32)


WAITS = {"event wait": "event", "notify wait": "notify", "value wait": "value", "callback wait": "callback"}


def expected_reasons(rows):
    """The rule of `wait_reason` for finished logs, row by row."""
    last, reasons = {}, []
    for row in rows:
        previous = last.get(row["stream"])
        before = -1 if previous is None else previous["end_ns"]
        if row["start_ns"] > row["ready_ns"]:
            reason = WAITS.get(row["kind"]) or ("copy engine" if row.get("engine") else "cores")
        elif before >= row["issue_ns"]:
            reason = previous["reason"] if previous["kind"] in WAITS else "stream order"
        else:
            reason = "host" if row["issue_ns"] > rows[0]["issue_ns"] else ""
        row["reason"] = reason
        last[row["stream"]] = row
        reasons.append(reason)
    return reasons


@given(SEEDS)
def test_wait_reason_matches_plain_rule(build, random_rows, seed):
    rows = random_rows(seed)
    assert build(rows).wait_reason().tolist() == expected_reasons(rows)


@given(SEEDS)
def test_summaries_match_counting_nanoseconds(build, random_rows, seed):
    rows = random_rows(seed, count=12)
    log = build(rows)
    begin, end = min(row["issue_ns"] for row in rows), max(row["end_ns"] for row in rows)
    assert log.makespan_ns == end - begin
    running = [[r for r in rows if r["start_ns"] <= t < r["end_ns"]] for t in range(begin, end)]
    kernels = [sum(row["kind"] == "kernel" for row in now) for now in running]
    assert log.max_concurrent_kernels() == max(kernels, default=0)

    found = log.utilisation()
    span = max(1, end - begin)
    for unit, cores in (("cube", 4), ("vector", 8)):
        held = sum(row.get(f"held_{unit}", 0) for now in running for row in now)
        busy = sum(row.get(f"held_{unit}", 0) * row.get(f"{unit}_busy_ns", 0) for row in rows)
        assert found[f"{unit} held"] == pytest.approx(held / (cores * span))
        assert found[unit] == pytest.approx(busy / (cores * span))
    for engine in ("h2d", "d2h", "d2d"):
        used = sum(any(row.get("engine") == engine for row in now) for now in running)
        assert found[engine] == pytest.approx(used / span)


def test_copies_that_overlap_on_one_engine_count_once(build):
    copy = {"kind": "copy", "engine": "h2d"}
    spans = [(0, 50), (10, 20), (40, 60), (80, 100)]
    log = build([{**copy, "stream": s, "start_ns": a, "end_ns": b} for s, (a, b) in enumerate(spans)])
    assert log.utilisation()["h2d"] == 0.8


@given(SEEDS)
def test_rows_survive_json(build, random_rows, seed):
    log = build(random_rows(seed))
    again = build(json.loads(json.dumps(log.rows())))
    assert again.rows() == log.rows()


def test_a_hang_is_told_from_a_queue(build):
    log = build(
        [
            {"kind": "event wait", "stream": 0, "ready_ns": 0},  # nobody recorded the event
            {"stream": 0, "held_cube": 1},
            {"stream": 1, "start_ns": 0, "held_cube": 4},  # still running
            {"stream": 1, "held_cube": 4},
            {"stream": 2, "ready_ns": 0, "held_cube": 1},
            {"kind": "event wait", "stream": 3, "ready_ns": 0, "waits_for": 3},
            {"kind": "copy", "engine": "d2h", "stream": 4, "ready_ns": 0},
            {"kind": "notify wait", "stream": 5, "ready_ns": 0},
            {"kind": "value wait", "stream": 6, "ready_ns": 0},
            {"kind": "callback wait", "stream": 7, "ready_ns": 0},
            {"kind": "event record", "stream": 7},
            {"stream": 8},  # the device has not come to it
        ]
    )
    assert log.wait_reason().tolist() == [
        "event", "event", "", "stream order", "cores", "event", "copy engine",
        "notify", "value", "callback", "callback", "",
    ]  # fmt: skip
    assert log.started.tolist() == [False, False, True] + [False] * 9
    assert log.state().tolist() == [
        "ready", "queued", "running", "queued", *["ready"] * 6, "queued", "queued",
    ]  # fmt: skip
    assert not log.finished.any()
    assert log.makespan_ns == 0
    assert set(log.utilisation().values()) == {0.0}
    assert log.rows()[1]["start_ns"] is None


def test_a_wait_that_was_released_before_it_came_up_holds_nobody(build):
    log = build(
        [
            {"stream": 0, "start_ns": 0, "end_ns": 9},
            {"kind": "notify wait", "stream": 0, "issue_ns": 1, "start_ns": 9, "end_ns": 9},
            {"stream": 0, "issue_ns": 2, "start_ns": 9, "end_ns": 12},
            {"kind": "notify wait", "stream": 0, "issue_ns": 3, "ready_ns": 12, "start_ns": 20, "end_ns": 20},
            {"stream": 0, "issue_ns": 4, "start_ns": 20, "end_ns": 21},
        ]
    )
    assert log.wait_reason().tolist() == ["", "stream order", "stream order", "notify", "notify"]
    assert log.since_ns().tolist() == [0, 9, 9, 12, 20]
    assert log.until_ns().tolist() == [9, 9, 12, 20, 21]


def test_failed_and_dropped_commands(build):
    log = build(
        [
            {"stream": 1, "start_ns": 0, "end_ns": 40, "code": 507015},
            {"stream": 1, "issue_ns": 1, "ready_ns": 40, "start_ns": 41, "dropped_ns": 60, "held_cube": 2},
            {"stream": 1, "issue_ns": 2, "dropped_ns": 60, "held_cube": 1},
            {"stream": 1, "issue_ns": 70, "start_ns": 70, "end_ns": 80},  # the drop has emptied the stream
            {"kind": "event wait", "stream": 2, "issue_ns": 3, "ready_ns": 3, "waits_for": 2},
            {"kind": "event wait", "stream": 3, "issue_ns": 3, "ready_ns": 5, "dropped_ns": 60},
        ]
    )
    log = dataclasses.replace(log, now_ns=100)
    assert log.state().tolist() == ["failed", "dropped", "dropped", "done", "ready", "dropped"]
    assert log.wait_reason().tolist() == ["", "cores", "stream order", "host", "event", "event"]
    assert log.previous().tolist() == [-1, 0, 1, -1, -1, -1]
    assert log.event_ns()[4] == NEVER_NS
    assert log.until_ns().tolist() == [40, 60, -1, 80, 100, 60]
    assert log.finished.tolist() == [True, False, False, True, False, False]
    assert log.max_concurrent_kernels() == 1
    assert log.rows()[1]["state"] == "dropped" and log.rows()[0]["dropped_ns"] is None


def test_nothing_is_awaited_after_the_last_drop(build):
    log = build([{"start_ns": 0, "dropped_ns": 30}, {"stream": 1, "start_ns": 0, "end_ns": 9}])
    assert dataclasses.replace(log, now_ns=100).horizon_ns == 30


def test_kernels_that_share_the_chip_hold_at_most_all_of_it(build):
    rows = [{"stream": s, "start_ns": 10 * s, "end_ns": 10 * s + 20, "held_cube": 3} for s in range(2)]
    # 0..10: 3 of 4 cores, 10..20: both, so all 4, 20..30: 3
    assert build(rows).utilisation()["cube held"] == pytest.approx((30 + 40 + 30) / (4 * 30))


def test_times_of_predecessors(build):
    log = build(
        [
            {"command": 5, "stream": 1, "issue_ns": 3, "start_ns": 3, "end_ns": 9},
            {"command": 7, "stream": 2, "issue_ns": 4, "start_ns": 4},
            {"command": 8, "stream": 1, "issue_ns": 5, "start_ns": 9, "end_ns": 10, "waits_for": 5},
            {"command": 9, "stream": 2, "issue_ns": 6, "waits_for": 7},
            {"command": 10, "stream": 1, "issue_ns": 12, "waits_for": 1},  # long out of the log
        ]
    )
    assert log.previous().tolist() == [-1, -1, 0, 1, 2]
    assert log.previous_end_ns().tolist() == [-1, -1, 9, NEVER_NS, 10]
    assert log.event_ns().tolist() == [-1, -1, 9, NEVER_NS, -1]
    assert log.position_of(np.array([10, 6, 5, 99])).tolist() == [4, -1, 0, -1]
    assert log.until_ns().tolist() == [9, 12, 10, -1, -1]
    assert (log.begin_ns, log.horizon_ns, log.makespan_ns) == (3, 12, 7)


def test_empty_log(build):
    log = build([])
    assert (len(log), log.makespan_ns, log.begin_ns, log.horizon_ns, log.max_concurrent_kernels()) == (0,) * 5
    assert log.rows() == [] and log.wait_reason().shape == (0,)
    assert log.previous_end_ns().shape == log.event_ns().shape == (0,)
    assert log.position_of(np.array([3])).tolist() == [-1]
    assert set(log.utilisation().values()) == {0.0}


def test_absolute_times_beyond_int32_stay_exact(build):
    hour = 3_600_000_000_000
    log = build([{"issue_ns": hour, "start_ns": hour + 1, "end_ns": hour + 4}])
    assert log.makespan_ns == 4


def test_columns_are_copied_and_read_only(build):
    log = build([{"start_ns": 0, "end_ns": 1}])
    with pytest.raises(ValueError, match="read-only"):
        log.end_ns[0] = 5


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"start_ns": 5, "end_ns": 4}], "ends before it starts"),
        ([{"end_ns": 4}], "ends before it starts"),
        ([{"command": 2}, {"command": 2}], "order of enqueueing"),
        ([{"begin_ns": 2}], "begin_ns"),
    ],
)
def test_impossible_rows_are_refused(build, rows, message):
    with pytest.raises(ValueError, match=message):
        build(rows)


def test_columns_of_unequal_length_are_refused(build):
    log = build([{}, {}])
    with pytest.raises(ValueError, match="equally long"):
        Timeline(**{**vars(log), "site": ["a.py:1"]})


def test_an_unfinished_command_reaches_to_now(build):
    running = {"start_ns": 5, "end_ns": None}
    log = dataclasses.replace(build([running]), now_ns=400)
    assert (log.horizon_ns, log.until_ns().tolist()) == (400, [400])
    done = dataclasses.replace(build([{"start_ns": 5, "end_ns": 9}]), now_ns=400)
    assert done.horizon_ns == 9
