"""The exact engine against the scheduler, list by list, and what must not depend on how the lists are run."""

import dataclasses
import functools
import random

import jax
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.layout import NONE, Field, Phase
from ascend_jax.runtime.simulate import simulate
from tests.runtime import lanes
from tests.runtime.random_tasks import CAPACITY, describe
from tests.runtime.scheduler import POOL, Command

B = 320  # lists in one run
MANY = 1031  # more lanes than one loop takes, and no whole number of vectors: three loops of 352
SECOND = 1_000_000_000
STREAMS = 66  # more than are unrolled
LONE_ROWS = lanes.ROWS + 8  # of a program that runs alone


@functools.cache
def run(stops=False):
    """Random lists as tables, their chips, what the engine says and what the scheduler says."""
    drawn = [lanes.random_list(f"{stops}/{number}") for number in range(B)]
    tables = np.stack([lanes.table_of(commands, lanes.ROWS) for commands, _ in drawn])
    cube, vector = (np.array([capacity[unit] for _, capacity in drawn], np.float32) for unit in ("cube", "vector"))
    chips = chip(cube, vector)
    wanted = [lanes.scheduled(commands, capacity, lanes.ROWS, stops=stops) for commands, capacity in drawn]
    lane = np.arange(MANY if stops else B) % B
    found = lanes.simulated(lanes.programs_of(tables[lane]), pick(chips, lane), stops=stops)
    return tables, chips, found, lanes.stacked(wanted)


def chip(cube, vector):
    return aj.chip("Ascend910B2").replace(cube_cores=cube, vector_cores=vector)


def pick(chips, lane):
    return dataclasses.replace(chips, values=chips.values[lane])


def alone(table, one_chip):
    """Run one list without a batch axis, in a longer table."""
    program = jax.tree.map(lambda leaf: leaf[0], lanes.programs_of(table[None]))
    return lanes.simulated(program.padded(LONE_ROWS), one_chip)


def agree(found, wanted):
    for name, one, other in zip(lanes.Answer._fields, found, wanted, strict=True):
        assert np.array_equal(one, other), name


def kernel(stream, block, **given):
    return Command("kernel", stream, **{"cube": 1, "block": block} | given)


def wait(stream, **given):
    options = {"timeout_code": 107019, "timeout_reach": "stream"} | given
    return Command("notify wait", stream, cell=0, condition="GE", value=1, effect="SET", **options)


# Random lists.


@pytest.mark.parametrize("stops", [False, True])
def test_random_lists_have_the_times_of_the_scheduler(stops):
    _, _, found, wanted = run(stops)
    for number in range(B):
        what = lanes.difference(lanes.lane(found, number), lanes.lane(wanted, number))
        if what:
            commands, capacity = lanes.random_list(f"{stops}/{number}")
            pytest.fail("\n".join([f"{what}, {capacity}", *map(describe, commands)]))


def test_random_lists_reach_every_end():
    _, _, _, wanted = run()
    assert set(np.unique(wanted.phase)) == {Phase.EMPTY, *range(Phase.DONE, Phase.CAPTURED)}
    assert {0, 107019, 507014, 507015, 507054} <= set(np.unique(wanted.code))
    assert 0.1 < wanted.is_stuck.mean() < 0.7 and 0 < (wanted.device_error != 0).mean() < 0.3
    assert (wanted.end >= 0).sum() > 10 * B


def test_the_order_of_lanes_does_not_matter():
    tables, chips, found, _ = run()
    order = np.random.default_rng(0).permutation(B)
    moved = lanes.simulated(lanes.programs_of(tables[order]), pick(chips, order))
    agree(moved, lanes.Answer(*(part[order] for part in found)))


def test_a_list_alone_in_a_longer_table_has_the_same_times():
    tables, chips, found, _ = run()
    for lane in range(0, B, 40):
        lone = alone(tables[lane], pick(chips, lane))
        assert (lone.phase[lanes.ROWS :] == Phase.EMPTY).all()
        agree([part[: lanes.ROWS] if part.ndim else part for part in lone], lanes.lane(found, lane))


@pytest.mark.parametrize("later", [1, (1 << 30) - 1, 3600 * SECOND])
def test_later_by_any_time_is_the_same_schedule(later):
    """A list whose first commands are all issued later runs as it did, later; an hour later is exact to 1 ns."""
    tables, chips, found, _ = run()
    issue = (tables[..., Field.ISSUE_HI].astype(np.int64) << 30) + tables[..., Field.ISSUE_LO] + later
    moved = tables.copy()
    moved[..., Field.ISSUE_HI], moved[..., Field.ISSUE_LO] = issue >> 30, issue & ((1 << 30) - 1)
    wanted = [np.where(time == NONE, NONE, time + later) for time in found[:3]]
    agree(lanes.simulated(lanes.programs_of(moved), chips), (*wanted, *found[3:]))


def test_a_stream_is_a_queue_and_cores_are_not_shared_out_twice():
    """What the times themselves say, without the scheduler."""
    tables, chips, found, _ = run()
    for lane in range(B):
        table, answer = tables[lane], lanes.lane(found, lane)
        has_ended = answer.end >= 0
        for stream in range(lanes.STREAMS):
            queue = np.flatnonzero(has_ended & (table[:, Field.STREAM] == stream))
            before = np.concatenate([[0], answer.end[queue][:-1]])
            assert (answer.ready[queue] == np.maximum(before, table[queue, Field.ISSUE_LO])).all(), lane
            assert (answer.ready <= answer.start).all() and (answer.start <= answer.end).all(), lane
        done = answer.phase == Phase.DONE
        for unit, name in enumerate(("cube_cores", "vector_cores")):
            busy = table[:, Field.NEED + unit].astype(np.int64) * table[:, Field.BLOCKS] * table[:, Field.BLOCK_LO]
            assert busy[done].sum() <= pick(chips, lane)[name] * answer.end.max(), (lane, name)


def test_more_lanes_than_one_loop_takes():
    _, _, found, _ = run(stops=True)
    agree([part[B:] for part in found], [part[np.arange(B, MANY) % B] for part in found])


# Many streams.


def many_streams(seed, is_wide):
    """Kernels and copies in every stream; all ask for far more vector cores than there are, or all kinds of things."""
    rng = random.Random(seed)
    commands = []
    for stream in rng.sample(range(STREAMS), STREAMS):
        share = {"hbm": rng.choice((0, 3000, POOL // 8)), "l2": rng.choice((0, 9000, POOL // 4))}
        needs = rng.choice(((1, 0), (1, 2), (0, 2), (0, 1)))
        cube, vector, blocks = (0, 2, 300) if is_wide else (*needs, rng.choice((1, 3, 8, 40, 255, 300)))
        more = {"cube": cube, "vector": vector, "blocks": blocks, "priority": rng.choice((0, 0, 1, 7))}
        commands.append(kernel(stream, rng.randint(1, 20), head=rng.choice((0, 5)), **more, **share))
        commands.append(Command("copy", stream, block=rng.randint(1, 9), engine=rng.choice(("h2d", "d2h", "d2d"))))
    table = lanes.table_of(commands, len(commands))
    capacity = CAPACITY | {"cube": 24, "vector": 48}
    return table, lanes.scheduled(commands, capacity, len(commands), streams=STREAMS)


@pytest.mark.parametrize("is_wide", [False, True])
def test_many_streams(is_wide):
    tables, wanted = zip(*(many_streams(seed, is_wide) for seed in range(4)), strict=True)
    agree(lanes.simulated(lanes.programs_of(tables, STREAMS), chip(24.0, 48.0)), lanes.stacked(wanted))


def test_a_cell_that_is_not_there_is_refused():
    program = lanes.programs_of(lanes.table_of([wait(0)], 1)[None])
    with pytest.raises(ValueError, match=r"cell 0; give cells=1 or more"):
        simulate(program, chip(3.0, 6.0), cells=0)


def test_more_streams_than_the_engine_can_number_are_refused():
    program = lanes.programs_of(lanes.table_of([wait(0)], 1)[None], 1 << 16)
    with pytest.raises(ValueError, match=r"65536 streams: at most 65535"):
        simulate(program, chip(3.0, 6.0))


# Long times: blocks of up to 270 s, and hours.


def long_list(seed):
    rng = random.Random(seed)
    commands = []
    for _ in range(14):
        issue = rng.randrange(3600 * SECOND)
        if rng.random() < 0.7:
            share = {"hbm": rng.choice((0, 20_000, 40_000)), "l2": rng.choice((0, 50_000))}
            block = rng.choice(
                (rng.randrange(1, 270 * SECOND), rng.randrange(1, 9 * SECOND), rng.randrange(1, 1 << 22))
            )
            head, blocks = rng.randrange(1 << 22), rng.choice((1, 2, 3))
            commands.append(kernel(rng.randrange(4), block, head=head, blocks=blocks, issue=issue, **share))
        else:
            timeout = 1000 * rng.randrange(1, 2_000_000_000)
            commands.append(wait(rng.randrange(4), timeout=timeout, issue=issue))
    return commands


@pytest.mark.parametrize("seed", range(2))
def test_an_hour_is_exact(seed):
    commands = long_list(seed)
    table = lanes.table_of(commands, lanes.ROWS)
    wanted = lanes.scheduled(commands, CAPACITY, LONE_ROWS)
    assert wanted.end.max() > 3600 * SECOND
    agree(alone(table, chip(3.0, 6.0)), wanted)


@pytest.mark.parametrize("block", [270 * SECOND, 1 << 37, (1 << 37) + 1, (1 << 37) - 1])
def test_long_blocks_that_share_a_rate(block):
    """Two that ask for 5/8 of the pool each run at 204/256 until the shorter one is over."""
    short = block // 2 + 1
    commands = [kernel(0, block, hbm=40_960, head=(1 << 22) - 1), kernel(1, short, hbm=40_960)]
    table = lanes.table_of(commands, lanes.ROWS)
    found = alone(table, chip(3.0, 6.0))
    first = -(-short * 256 // 204)
    left = (block + (1 << 22) - 1) * 256 - first * 204
    assert found.end[:2].tolist() == [first - (-left // 256), first]
