import itertools

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


def test_a_kernel_shows_on_the_cores_that_are_free(build):
    log = build([{"start_ns": 0, "end_ns": 9, "held_cube": 3}, {"start_ns": 8, "held_cube": 2, "stream": 1}])
    cube = assign_cores(log).cube
    assert [cube.of(entry).tolist() for entry in range(2)] == [[0, 1, 2], [3]]
    assert cube.until_ns.tolist() == [9, 9, 9, 9]  # the log knows nothing later


def test_a_kernel_that_starts_on_a_full_chip_takes_a_core_over(build):
    log = build(
        [
            {"start_ns": 0, "end_ns": 20, "held_cube": 2},
            {"start_ns": 5, "end_ns": 25, "held_cube": 4, "stream": 1},
            {"start_ns": 10, "end_ns": 12, "held_cube": 3, "stream": 2},
            {"start_ns": 15, "end_ns": 30, "held_cube": 3, "stream": 3},
        ]
    )
    cube = assign_cores(log).cube
    assert [cube.of(entry).tolist() for entry in range(4)] == [[0, 1], [2, 3], [0], [0]]
    assert cube.until_ns.tolist() == [10, 20, 25, 25, 12, 30]


@given(st.integers(0, 2**32))
def test_kernels_that_share_never_share_a_core(random_rows, build, seed):
    rows = random_rows(seed, count=20)
    for row in rows:  # what is feasible no longer is: everybody could hold more
        row["held_cube"] = 2 * row.get("held_cube", 0)
    log = build(rows)
    cube = assign_cores(log).cube
    assert set(cube.entry.tolist()) == {entry for entry in range(20) if log.held_cube[entry]}
    for core in range(4):
        mine = cube.core == core
        runs = sorted(zip(log.start_ns[cube.entry[mine]], cube.until_ns[mine], strict=True))
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(runs))
        assert all(start <= until for start, until in runs)


def test_a_dropped_command_gives_its_cores_back(build):
    log = build([{"start_ns": 0, "dropped_ns": 9, "held_cube": 4}, {"start_ns": 9, "held_cube": 1, "stream": 1}])
    cube = assign_cores(log).cube
    assert cube.of(1).tolist() == [0]
    assert cube.until_ns.tolist() == [9] * 5


def test_empty_log(build):
    lanes = assign_cores(build([]))
    assert len(lanes.cube) == len(lanes.vector) == 0
