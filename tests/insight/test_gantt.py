import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_jax.insight.gantt import gantt


def expect(text, picture):
    print(text)  # shown when the picture differs
    assert text == textwrap.dedent(picture).strip("\n")


def overlap(build):
    """A copy feeds a kernel through an event, a second kernel waits for its cores."""
    return build(
        [
            {"kind": "copy", "engine": "h2d", "stream": 0, "start_ns": 0, "end_ns": 20_000},
            {"kind": "event record", "stream": 0, "issue_ns": 1000, "start_ns": 20_000, "end_ns": 20_000},
            {"kind": "event wait", "stream": 1, "issue_ns": 2000, "ready_ns": 2000, "start_ns": 20_000,
             "end_ns": 20_000, "waits_for": 1},
            {"stream": 1, "issue_ns": 3000, "start_ns": 20_000, "end_ns": 40_000, "held_cube": 3},
            {"stream": 12, "issue_ns": 4000, "ready_ns": 4000, "start_ns": 40_000, "end_ns": 50_000,
             "held_cube": 2, "held_vector": 4},
            {"stream": 12, "issue_ns": 5000, "ready_ns": 50_000, "start_ns": 50_000, "end_ns": 60_000,
             "held_cube": 2},
        ]
    )  # fmt: skip


def test_streams(build):
    expect(
        gantt(overlap(build), width=72),
        """
        Ascend910B2 (test), simulated: 6 commands in 60 us
        us         0    5    10   15   20   25   30   35   40   45   50   55
                   +----+----+----+----+----+----+----+----+----+----+----+----
        stream 0  |====================+                                       |
        stream 1  |  ..................####################                    |
        stream 12 |    ::::::::::::::::::::::::::::::::::::####################|
        # kernel   = copy or memset   + event record or other
        . waits for an event or other   : waits for cores or a copy engine
        """,
    )


def test_cores(build):
    expect(
        gantt(overlap(build), width=50, by="core"),
        """
        Ascend910B2 (test), simulated: 6 commands in 60 us
        us          0     10    20    30    40    50
                    +-----+-----+-----+-----+-----+------
        cube 0-1   |            AAAAAAAAAAAABBBBBBbbbbbbb|
        cube 2     |            AAAAAAAAAAAAA            |
        cube 3     |                                     |
        vector 0-3 |                        BBBBBBB      |
        vector 4-7 |                                     |
        Aa stream 1   Bb stream 12
        """,
    )


def test_heads_on_different_cores(build):
    heads = [{"stream": h, "start_ns": 10 * (h // 4), "end_ns": 10 * (h // 4) + 10, "held_cube": 1} for h in range(6)]
    expect(
        gantt(build(heads), width=40, by="core"),
        """
        Ascend910B2 (test), simulated: 6 commands in 0.02 us
        us          0            0.01
                    +------------+-------------
        cube 0     |AAAAAAAAAAAAAEEEEEEEEEEEEEE|
        cube 1     |BBBBBBBBBBBBBFFFFFFFFFFFFFF|
        cube 2     |CCCCCCCCCCCCCC             |
        cube 3     |DDDDDDDDDDDDDD             |
        vector 0-7 |                           |
        Aa stream 0   Bb stream 1   Cc stream 2
        Dd stream 3   Ee stream 4   Ff stream 5
        """,
    )


def test_a_hang_reaches_the_right_edge(build):
    log = build(
        [
            {"kind": "event wait", "stream": 0, "issue_ns": 0, "ready_ns": 0},
            {"stream": 0, "issue_ns": 100},
            {"stream": 1, "issue_ns": 200, "start_ns": 200, "held_cube": 4},
            {"stream": 2, "issue_ns": 400, "ready_ns": 400, "held_cube": 1},
            {"stream": 3, "issue_ns": 900, "start_ns": 900, "end_ns": 1000},
        ]
    )
    expect(
        gantt(log, width=50),
        """
        Ascend910B2 (test), simulated: 5 commands in 1 us
        us        0      0.2     0.4     0.6     0.8
                  +------+-------+-------+-------+-------
        stream 0 |......................................>|
        stream 1 |       ###############################>|
        stream 2 |               :::::::::::::::::::::::>|
        stream 3 |                                   ####|
        # kernel   . waits for an event or other
        : waits for cores or a copy engine
        > not finished
        """,
    )


def test_failed_and_dropped(build):
    log = build(
        [
            {"kind": "notify wait", "stream": 0, "ready_ns": 0, "start_ns": 300, "end_ns": 300, "code": 107019},
            {"stream": 1, "issue_ns": 0, "start_ns": 0, "dropped_ns": 600, "held_cube": 4},
            {"stream": 1, "issue_ns": 0, "dropped_ns": 600},
            {"stream": 2, "issue_ns": 0, "ready_ns": 200, "dropped_ns": 600, "held_cube": 1},
            {"kind": "value write", "stream": 3, "start_ns": 1000, "end_ns": 1000},
        ]
    )
    expect(
        gantt(log, width=51),
        """
        Ascend910B2 (test), simulated: 5 commands in 1 us
        us        0   0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9
                  +---+---+---+---+---+---+---+---+---+---
        stream 0 |............!                           |
        stream 1 |########################x               |
        stream 2 |        ::::::::::::::::x               |
        stream 3 |                                       +|
        # kernel   + event record or other
        . waits for an event or other
        : waits for cores or a copy engine   x dropped
        ! failed
        """,
    )
    assert "cube 0-3   |AAAAAAAAAAAAAAAAAAAAAA" in gantt(log, width=50, by="core")


def test_late_logs_say_where_they_begin(build):
    row = {"issue_ns": 7_000_500, "start_ns": 7_001_000, "end_ns": 7_002_000}
    first = gantt(build([row], forgotten=3)).splitlines()[0]
    assert first.endswith("1 command in 1.5 us, from 7000.5 us on, 3 earlier ones no longer in the log")


@pytest.mark.parametrize("by", ["stream", "core"])
def test_no_commands(build, by):
    assert gantt(build([]), by=by) == "no commands"


def test_everything_at_one_moment(build):
    log = build([{"kind": "event record", "start_ns": 0, "end_ns": 0}, {"start_ns": 0, "end_ns": 0, "stream": 1}])
    lines = gantt(log, width=40).splitlines()
    assert lines[3:5] == [
        "stream 0 |+                            |",
        "stream 1 |#                            |",
    ]


def test_rows_beyond_the_limit_are_counted(build):
    log = build([{"stream": s, "start_ns": 0, "end_ns": 9, "held_vector": 1} for s in range(8)])
    lines = gantt(log, max_rows=3).splitlines()
    assert [line.split("|")[0].strip() for line in lines[3:6]] == ["stream 0", "stream 1", "stream 2"]
    assert lines[6] == "... 5 more streams"
    assert "... 7 more cores" in gantt(log, max_rows=2, by="core")


@given(st.integers(0, 2**32), st.integers(40, 130), st.sampled_from(["stream", "core"]))
def test_pictures_are_ascii_and_show_who_works(random_log, seed, width, by):
    log = random_log(seed, 10)
    text = gantt(log, width=width, by=by)
    assert text.isascii()
    pictures = [line for line in text.splitlines() if "|" in line]
    assert {len(line) for line in pictures} == {width}
    if by == "stream":
        for line in pictures:
            stream = int(line.split("|")[0].split()[1])
            works = {str(kind) for kind in log.kind[log.stream == stream]}
            assert ("#" in line) == ("kernel" in works)
            assert "=" not in line or works & {"copy", "memset"}


def test_many_streams_reuse_letters_and_the_legend_stays_short(build):
    rows = [{"stream": s, "start_ns": s, "end_ns": s + 1, "held_vector": 1} for s in range(300)]
    text = gantt(build(rows), by="core")
    legend = text.splitlines()[6:]
    assert legend[0].startswith("Aa stream 0, 26, 52")
    assert len(legend) <= 4 and legend[-1].endswith("...")


@pytest.mark.parametrize("wrong", [{"by": "card"}, {"width": 39}, {"max_rows": 0}])
def test_wrong_options_are_refused(build, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        gantt(build([{}]), **wrong)
