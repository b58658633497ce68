"""The scheduler on random lists: what must hold whatever the list."""

import random

import pytest

from tests.runtime.command_lists import never
from tests.runtime.random_tasks import CAPACITY, describe, random_commands
from tests.runtime.scheduler import FULL_RATE, POOL, WORD, Scheduler


class Watched(Scheduler):
    """Looks at what runs whenever time is about to move, and does the work of each group step by step."""

    def __init__(self, *args):
        super().__init__(*args)
        self.left = {}

    def _move_time(self, limit):
        used, asked = dict.fromkeys(self.capacity, 0), {"hbm": 0, "l2": 0}
        for task in self._tasks.values():
            assert len(task.groups) <= 2
            for group in task.groups:
                self.left.setdefault(group, group.work)
                for unit, count in task.command.needs.items():
                    used[unit] += count * group.blocks
                for pool in asked:
                    asked[pool] += getattr(task.command, pool) * group.blocks * group.rate
        assert used == self.in_use
        assert all(used[unit] <= self.capacity[unit] for unit in used)
        assert all(work <= POOL * FULL_RATE for work in asked.values())
        assert all(0 <= cell < WORD for cell in self.cells)
        self.watch(used)
        before = self.now
        rates = {group: group.rate for task in self._tasks.values() for group in task.groups}
        moved = super()._move_time(limit)
        assert not moved or self.now > before
        for group, rate in rates.items():
            self.left[group] -= rate * (self.now - before)
            assert group.over == (self.left[group] <= 0)
        return moved

    def watch(self, used):
        """More to hold in a subclass."""


class Busy(Watched):
    """No unit idles that a waiting task could take, unless one with two groups under way asks for it."""

    def watch(self, used):
        waiting = [task for task in self._tasks.values() if task.waiting]
        for unit in self.capacity:
            asking = [task for task in waiting if unit in task.command.needs]
            if asking and all(len(task.groups) < 2 for task in asking):
                assert self.capacity[unit] - used[unit] < max(task.command.needs[unit] for task in asking)


def random_run(seed, kind=Watched, change=lambda command: None, looks=0):
    rng = random.Random(seed)
    commands = random_commands(rng, 40, ties=seed % 3 > 0)
    scheduler = kind(CAPACITY, 4, 4, {0} if seed % 2 else ())
    for command in commands:
        change(command)
        scheduler.enqueue(command)
    if looks:
        for limit in range(0, looks, 1 + seed % 3):
            scheduler.advance_to(limit)
    assert scheduler.run_until(never) == "stuck"
    return commands, scheduler


def times(commands):
    return [(command.ready, command.start, command.end, command.result, command.dropped) for command in commands]


@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, 300, 50)], ids=str)
def test_random_lists_keep_order(seeds):
    for seed in seeds:
        commands, scheduler = random_run(seed)
        for slot in range(3):
            queue = [command for command in commands if command.stream == slot]
            fates = ["end" if x.end >= 0 else "dropped" if x.dropped else "waits" for x in queue]
            assert fates == sorted(fates, key=["end", "dropped", "waits"].index), seed
            earlier = 0
            for x in (x for x in queue if x.end >= 0):
                text = f"{seed}: {describe(x)}"
                assert max(earlier, x.issue) <= x.ready <= x.start <= x.end, text
                assert x.end >= (x.depends.end if x.depends and not x.result else 0), text
                if x.is_task and x.result in (0, x.fault):
                    assert x.end - x.start >= x.head + x.block, text
                if not x.is_task:
                    assert x.ready <= x.start == x.end, text
                earlier = x.end
        failed = [x for x in commands if x.result]
        assert bool(failed) == bool(scheduler.device_error or any(scheduler.stream_error.values()))
        assert all(x.dropped or x.end >= 0 for x in commands) or not scheduler.device_error


def test_random_lists_leave_no_unit_idle():
    def simplify(command):
        command.mode = 0
        command.vector *= not command.cube

    for seed in range(300):
        random_run(seed, Busy, simplify)


def test_looks_change_nothing():
    for seed in range(300):
        whole, _ = random_run(seed)
        looked, _ = random_run(seed, looks=60)
        assert times(whole) == times(looked), seed


def test_random_lists_cover_what_they_should():
    """The generator reaches every kind, both ends of a list, and every way to fail."""
    seen = set()
    for seed in range(300):
        commands, _ = random_run(seed)
        for x in commands:
            fate = "failed" if x.result else "done" if x.end >= 0 else "dropped" if x.dropped else "waits"
            seen |= {x.kind, x.condition, x.effect, x.engine, fate, ("mode", x.mode, x.end >= 0)}
            seen |= {("fault", x.reach)} if x.result == x.fault != 0 else set()
            seen |= {("late", x.is_task)} if x.result and x.result == x.timeout_code else set()
        seen.add(("all done", all(x.end >= 0 for x in commands)))
    kinds = {"event record", "event wait", "event reset", "notify record", "notify wait", "value write", "value wait"}
    assert seen >= kinds | {
        "callback",
        "callback wait",
        "kernel",
        "copy",
        "memset",
        "GE",
        "EQ",
        "AND",
        "NOR",
        "SET",
        "ADD",
    }
    assert seen >= {"h2d", "d2h", "d2d", "failed", "done", "dropped", "waits", ("all done", True), ("all done", False)}
    assert seen >= {("mode", mode, done) for mode in (0, 1) for done in (True, False)}
    assert seen >= {("fault", "stream"), ("fault", "device")}
    assert seen >= {("late", False), ("late", True)}
