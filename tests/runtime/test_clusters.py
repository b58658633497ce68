"""The exact engine with cards that meet, against schedulers that run in step; what an uncoupled run must not notice."""

import random

import jax
import numpy as np
import pytest

import ascend_jax as aj
from ascend_jax.runtime.clock import to_ns
from ascend_jax.runtime.layout import LIMB, NONE, Field, Kind, Phase
from ascend_jax.runtime.rendezvous import Coupling
from ascend_jax.runtime.simulate import simulate
from tests.runtime import lanes
from tests.runtime.cluster_scheduler import Card, ClusterScheduler, Rendezvous
from tests.runtime.random_tasks import CAPACITY, US, WAIT_TIMEOUT, describe, random_commands
from tests.runtime.scheduler import Command

CHANNELS = ((0, 1, 2), (0, 1), (2, 0))
COUPLING = Coupling(3, CHANNELS)
ROWS, WORLDS = 24, 192
lanes._KINDS["rendezvous"] = Kind.RENDEZVOUS


def random_world(seed):
    """Return the commands of three cards, which meet some times, or miss each other."""
    rng = random.Random(seed)
    cards = [random_commands(rng, rng.choice((2, 6, 12)), streams=3, cells=lanes.CELLS) for _ in range(3)]
    streams = {(card, channel): rng.randrange(3) for card in range(3) for channel in range(3)}
    places = dict.fromkeys(streams, 0)
    misses = rng.choice((0.0, 0.0, 0.1))
    for _ in range(rng.choice((1, 3, 6))):
        channel = rng.randrange(3)
        for card in CHANNELS[channel]:
            if rng.random() < misses or len(cards[card]) == ROWS:
                continue
            own = cards[card]
            place = rng.randint(places[card, channel], len(own))
            issue = own[min(place, len(own) - 1)].issue if own else 0
            mark = Rendezvous("rendezvous", streams[card, channel], issue, channel=channel)
            mark.timeout_reach = "stream"
            if rng.random() < 0.15:
                mark.timeout, mark.timeout_code = US * rng.choice((1, 2, 5, 50)), WAIT_TIMEOUT
            own.insert(place, mark)
            for key in places:
                places[key] += key[0] == card and (places[key] > place or key[1] == channel)
            places[card, channel] = place + 1
    return cards


def table_of(commands, card):
    table = lanes.table_of(commands, ROWS)
    for row, command in enumerate(commands):
        if isinstance(command, Rendezvous):
            rank = CHANNELS[command.channel].index(card)
            table[row, Field.VALUE_LO] = command.channel * COUPLING.width + rank
    return table


def wanted(world, stops):
    schedulers = [Card(CAPACITY, 3, lanes.CELLS, range(3) if stops else ()) for _ in world]
    for scheduler, commands in zip(schedulers, world, strict=True):
        for command in commands:
            scheduler.enqueue(command)
    ClusterScheduler(CHANNELS, schedulers).run()
    answers = []
    for scheduler, commands in zip(schedulers, world, strict=True):
        columns = np.full((5, ROWS), NONE, np.int64)
        columns[3:] = [[Phase.EMPTY], [0]]
        for row, command in enumerate(commands):
            columns[3, row] = Phase.DROPPED
            if command.end >= 0:
                failed = Phase.EXPIRED if command.result == command.timeout_code else Phase.FAULTED
                columns[:, row] = command.ready, command.start, command.end, failed, command.result
                columns[3, row] = failed if command.result else Phase.DONE
        is_stuck = any(command.end < 0 and not command.dropped for command in commands)
        answers.append(lanes.Answer(*columns, np.array(is_stuck), np.array(scheduler.device_error)))
    return answers


def found(tables, chip, coupling, **options):
    programs = lanes.programs_of([table for world in tables for table in world], 3)
    shape = (len(tables), len(tables[0]))
    programs = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), programs)
    result = jax.device_get(simulate(programs, chip, cells=lanes.CELLS, coupling=coupling, **options))
    has_ended = np.isin(result.phase, (Phase.DONE, Phase.FAULTED, Phase.EXPIRED))
    times = [np.where(has_ended, to_ns(*time), NONE) for time in (result.ready, result.start, result.end)]
    return lanes.Answer(*times, result.phase, result.code, result.is_stuck, result.device_error)


CHIP = aj.chip("Ascend910B2").replace(cube_cores=CAPACITY["cube"], vector_cores=CAPACITY["vector"])


@pytest.mark.parametrize("stops", [False, True])
def test_random_worlds_equal_schedulers_in_step(stops):
    worlds = [random_world(f"{stops} {number}") for number in range(WORLDS)]
    tables = [[table_of(commands, card) for card, commands in enumerate(world)] for world in worlds]
    given = found(tables, CHIP, COUPLING, stops=stops)
    meetings = 0
    for number, world in enumerate(worlds):
        for card, answer in enumerate(wanted(world, stops)):
            mine = lanes.Answer(*(part[number, card] for part in given))
            texts = "\n".join(f"card {c}: {describe(one)}" for c, all_of in enumerate(world) for one in all_of)
            assert not (text := lanes.difference(mine, answer)), f"world {number}, card {card}: {text}\n{texts}"
        meetings += sum(isinstance(one, Rendezvous) and one.end >= 0 for all_of in world for one in all_of)
    assert meetings > WORLDS


def test_a_collective_starts_with_its_last_rank():
    def card(delay, length):
        return [
            Command("kernel", 0, block=delay, cube=1),
            Rendezvous("rendezvous", 0),
            Command("kernel", 0, block=length),
        ]

    far = 5 * LIMB + 123  # one rank comes seconds later
    world = [card(100, 50), card(far, 50), card(2000, 70)]
    given = found([[table_of(commands, number) for number, commands in enumerate(world)]], CHIP, COUPLING)
    assert given.start[0, :, 2].tolist() == [far] * 3
    assert given.end[0, :, 2].tolist() == [far + 50, far + 50, far + 70]
    assert given.ready[0, :, 1].tolist() == [100, far, 2000]


def test_the_channel_of_a_rendezvous_is_checked():
    tables = [[table_of([Rendezvous("rendezvous", 0)], number) for number in range(3)]]
    tables[0][1][0, Field.VALUE_LO] = 2
    with pytest.raises(ValueError, match="card 1 has a rendezvous of rank 2 in channel 0"):
        found(tables, CHIP, COUPLING)
    with pytest.raises(ValueError, match="coupling joins 2 cards"):
        found(tables, CHIP, Coupling(2, ((0, 1),)))
