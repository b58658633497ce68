import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_jax.insight.cores import assign_cores


@given(st.integers(0, 2**32))
def test_every_command_gets_its_cores_and_no_core_runs_two(random_log, seed):
    log = random_log(seed)
    lanes = assign_cores(log)
    for slices, held, cores in ((lanes.cube, log.held_cube, 4), (lanes.vector, log.held_vector, 8)):
        for entry in range(len(log)):
            mine = slices.of(entry).tolist()
            assert len(mine) == len(set(mine)) == held[entry]
            assert all(0 <= core < cores for core in mine)
        for core in range(cores):
            runs = sorted((log.start_ns[e], log.end_ns[e]) for e in slices.entry[slices.core == core])
            assert all(one[1] <= other[0] for one, other in itertools.pairwise(runs))


@given(st.integers(0, 2**32))
def test_takes_the_lowest_free_numbers(random_rows, build, seed):
    rows = random_rows(seed, count=15)
    slices = assign_cores(build(rows)).cube
    owner = dict.fromkeys(range(4), 0)
    for entry in sorted(range(len(rows)), key=lambda e: (rows[e]["start_ns"], rows[e]["command"])):
        free = [core for core in range(4) if owner[core] <= rows[entry]["start_ns"]]
        wanted = free[: rows[entry].get("held_cube", 0)]
        assert slices.of(entry).tolist() == wanted
        owner |= dict.fromkeys(wanted, rows[entry]["end_ns"])


def test_known_case(build):
    log = build(
        [
            {"start_ns": 0, "end_ns": 10, "held_cube": 2, "held_vector": 4},
            {"start_ns": 5, "end_ns": 20, "held_cube": 1, "stream": 1},
            {"start_ns": 10, "end_ns": 12, "held_cube": 3, "stream": 2},
            {"held_cube": 4, "stream": 3},  # not started
        ]
    )
    lanes = assign_cores(log)
    assert [lanes.cube.of(entry).tolist() for entry in range(4)] == [[0, 1], [2], [0, 1, 3], []]
    assert lanes.vector.core.tolist() == [0, 1, 2, 3]
    assert len(lanes.vector) == 4


def test_a_running_command_keeps_its_cores(build):
    log = build([{"start_ns": 0, "held_cube": 3}, {"start_ns": 9, "held_cube": 1, "stream": 1}])
    assert assign_cores(log).cube.of(1).tolist() == [3]


def test_a_command_without_length_can_precede_a_full_one(build):
    log = build(
        [
            {"start_ns": 5, "end_ns": 9, "held_cube": 4},
            {"start_ns": 5, "end_ns": 5, "held_cube": 4, "stream": 1},
        ]
    )
    assert assign_cores(log).cube.of(1).tolist() == [0, 1, 2, 3]


def test_an_engine_fault_is_named(build):
    log = build([{"start_ns": 0, "end_ns": 9, "held_cube": 3}, {"start_ns": 8, "held_cube": 2, "stream": 1}])
    with pytest.raises(ValueError, match="command 1 holds 2 cube cores at 8 ns but only 1 of 4"):
        assign_cores(log)


def test_empty_log(build):
    lanes = assign_cores(build([]))
    assert len(lanes.cube) == len(lanes.vector) == 0
