"""Collectives that meet on links, and calls of one communicator on several streams, against a plain twin."""

import random

import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax import hccl
from ascend_jax.hccl import Call, Collective, Topology, Work, collective_time, comm_world
from tests.hccl import plan_twin

CHIP, FOUR = aj.chip("Ascend910B2"), Topology(4, 2)  # two servers of two cards
ALL, SEND = Collective.ALL_REDUCE, Collective.SEND_RECV
WORLD = comm_world(4)
OTHER = hccl.comm_world(4, hccl.CommConfig(name="other"))
COMMS = (WORLD, OTHER, WORLD.split([0, 0, 1, 1], name="inside"), WORLD.split([0, 1, 0, 1], name="across"))


def structure(seed):
    """Return for each step what it is, and on which stream each card does it."""
    rng = random.Random(seed)
    steps = []
    for number in range(9):
        comm = rng.choice((None, *COMMS))
        collective = rng.choice((ALL, SEND, Collective.ALL_GATHER))
        own = [rng.randrange(3) for _ in range(4)]
        if rng.random() < 0.6:
            own = own[:1] * 4
        after = tuple(rng.sample(range(number), rng.randrange(min(number, 2) + 1)))
        steps.append((comm, collective, own, after))
    return steps


def draw(steps, seed):
    """Return lists of steps for the four cards, and the same as tasks of the twin."""
    rng, lists, tasks, numbers = random.Random(seed), [[] for _ in range(4)], [[] for _ in range(4)], {}
    for comm, collective, own, after in steps:
        if comm is None:
            for card in range(4):
                length = rng.randrange(1, 400_000)
                lists[card].append(Work("kernel", length, stream=own[card], after=after))
                tasks[card].append(plan_twin.Task(own[card], after, length))
            continue
        count = rng.choice((1, 1 << 10, 1 << 18, 1 << 20, 1 << 22))
        for group in comm.groups:
            call = Call(collective, comm, count)
            known = collective_time(CHIP, FOUR, collective, call.nbytes, group)
            share = min(int(256 * (1 - known.latency_ns / known.time_ns)), 255)
            for card in group:
                lists[card].append(Call(collective, comm, count, stream=own[card], after=after))
                links = plan_twin.links_of(card, group, 2, pair=collective == SEND)
                number = numbers.get((comm, card), 0)
                numbers[comm, card] = number + 1
                mine = plan_twin.Task(own[card], after, round(known.time_ns), (comm, group), number, share, links)
                tasks[card].append(mine)
    return lists, tasks


@pytest.mark.parametrize("kind", range(2))
def test_random_plans_equal_the_twin(kind):
    steps, slowed = structure(f"links {kind}"), 0
    for seed in range(12):
        lists, tasks = draw(steps, seed)
        times = hccl.run_plan(hccl.make_plan(CHIP, lists, FOUR))
        plan_twin.run(tasks)
        for card in range(4):
            given = [times.span_ns(card, number) for number in range(len(steps))]
            assert given == [(task.start, task.end) for task in tasks[card]], f"seed {seed}, card {card}"
            slowed += sum(task.call is not None and task.end - task.start > task.duration for task in tasks[card])
        assert hccl.explain_plan(times) == []
    assert slowed > 8  # or nothing was shared


def pair(first, second, count=1 << 24, topology=None):
    """Return how long two calls on two streams take together, and each alone."""
    topology = topology or Topology(8, 8)
    both = [Call(ALL, first, count), Call(ALL, second, count, stream=1)]
    times = hccl.run_plan(hccl.make_plan(CHIP, both, topology))
    alone = [collective_time(CHIP, topology, ALL, 4 * count, comm.groups[0]).time_ns for comm in (first, second)]
    return [times.span_ns(0, number)[1] for number in (0, 1)], alone


def test_two_large_collectives_of_the_same_cards_take_twice_as_long():
    world = comm_world(8)
    together, alone = pair(world, comm_world(8, hccl.CommConfig(name="other")))
    assert together[0] == together[1]
    assert together[0] == pytest.approx(2 * alone[0], rel=0.03)
    # all latency: the links are idle most of the time
    together, alone = pair(world, comm_world(8, hccl.CommConfig(name="other")), count=64)
    assert together == [round(alone[0])] * 2


def test_groups_of_a_mesh_without_a_common_link_do_not_meet():
    world = comm_world(8)
    rows, columns = world.split([0, 0, 0, 0, 1, 1, 1, 1], name="rows"), world.split([0, 1, 2, 3] * 2, name="columns")
    together, alone = pair(rows, columns)
    assert together == [round(one) for one in alone]


def test_calls_of_one_communicator_meet_by_number_not_by_arrival():
    # card 1 comes to its second call first; the calls are of different lengths
    small, large = 1 << 10, 1 << 22
    slow = [Work("late", 900_000, stream=1)]
    here = [Call(ALL, WORLD, small, stream=1), Call(ALL, WORLD, large, stream=2)]
    lists = [[Work("late", 1, stream=1), *here], [*slow, *here], *[[Work("late", 1, stream=1), *here]] * 2]
    times = hccl.run_plan(hccl.make_plan(CHIP, lists, FOUR))
    assert [times.span_ns(card, 1)[0] for card in range(4)] == [900_000] * 4
    assert [times.span_ns(card, 2)[0] for card in range(4)] == [0] * 4
    length = round(collective_time(CHIP, FOUR, ALL, 4 * large, range(4)).time_ns)
    assert times.span_ns(0, 2)[1] >= length
    assert hccl.explain_plan(times) == []


def test_the_share_of_links():
    known = collective_time(CHIP, Topology(8, 8), ALL, 1 << 20, range(8))
    assert known.latency_ns == pytest.approx(2 * 7400, rel=1e-4)
    assert hccl.occupancy.link_share(known) == int(256 * (1 - known.latency_ns / known.time_ns))
    # first generation: one set of links in each group of four, PCIe between the groups
    first = aj.chip("Ascend910A")
    used = [hccl.occupancy.links_of(first, Topology(8, 8), ALL, 0, group) for group in ((0, 3), (0, 4), (0, 1, 5))]
    assert used == [1, 4, 5]
    assert np.unique([hccl.occupancy.links_of(CHIP, Topology(8, 8), ALL, 3, (3, peer)) for peer in (0, 7)]).size == 2
