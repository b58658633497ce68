"""The peer of ``bench_engine.py``: the same card in SimPy, one process per stream.

Cores are granted in blocks, by priority and order of readiness; running blocks share the HBM and L2 rates; copy engines
are single units; event waits are SimPy events. Written as a SimPy user would: streams yield on what they wait for, and
what depends on everybody (cores, rates) is settled once per instant, after everything else of that instant.
"""

import dataclasses

import simpy

POOL, FULL = 65536, 256
LATE = 2  # SimPy priority: after all normal events of the instant


@dataclasses.dataclass(eq=False)
class Task:
    """One kernel or copy."""

    need: dict[str, int]
    waiting: int
    head_ns: int
    block_ns: int
    shares: tuple[int, int]
    at_once: bool
    key: tuple
    done: simpy.Event
    start_ns: int | None = None
    groups: list["Group"] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Group:
    """Blocks of one task that started together."""

    task: Task
    blocks: int
    work: int
    rate: int = 0
    since_ns: int = 0
    version: int = 0


class Card:
    """Cores, engines and memory rates of one card."""

    def __init__(self, env: simpy.Environment, capacity: dict[str, int]) -> None:
        self.env, self.free = env, dict(capacity)
        self.tasks: list[Task] = []  # with blocks still to start, in order
        self.groups: list[Group] = []
        self.is_settling = False

    def execute(self, command: dict, slot: int) -> Task:
        """Queue a command; its ``done`` event fires when the last block is done."""
        task = Task(
            command["need"],
            command["blocks"],
            command["head_ns"],
            command["block_ns"],
            command["shares"],
            command["at_once"],
            (command["priority"], self.env.now, slot),
            self.env.event(),
        )
        self.tasks.append(task)
        self.settle_later()
        return task

    def settle_later(self) -> None:
        """Settle cores and rates at the end of this instant."""
        if not self.is_settling:
            self.is_settling = True
            event = self.env.event()
            event._ok, event._value = True, None
            event.callbacks.append(self.settle)
            self.env.schedule(event, priority=LATE)

    def settle(self, _: simpy.Event) -> None:
        """Start what fits, then give every group its rate."""
        self.is_settling = False
        self.grant()
        self.share()

    def grant(self) -> None:
        """Start waiting blocks in order; what earlier ones ask for is not given to later ones."""
        free = dict(self.free)
        self.tasks.sort(key=lambda task: task.key)
        for task in self.tasks:
            fits = max(0, min(free[unit] // units for unit, units in task.need.items()))
            count = min(task.waiting, fits) if not task.at_once else task.waiting * (fits >= task.waiting)
            for unit, units in task.need.items():
                free[unit] -= task.waiting * units
            if count and len(task.groups) < 2:
                self.start(task, count)
        self.tasks = [task for task in self.tasks if task.waiting]

    def start(self, task: Task, count: int) -> None:
        """Let ``count`` blocks begin."""
        head = task.head_ns if task.start_ns is None else 0
        task.start_ns = self.env.now if task.start_ns is None else task.start_ns
        task.waiting -= count
        for unit, units in task.need.items():
            self.free[unit] -= count * units
        group = Group(task, count, (head + task.block_ns) * FULL, since_ns=self.env.now)
        task.groups.append(group)
        self.groups.append(group)

    def share(self) -> None:
        """Max-min fair rates; a group whose rate changes gets a new end."""
        rates = [self.pool_rates(pool) for pool in (0, 1)]
        for group, *both in zip(self.groups, *rates, strict=True):
            rate = min(both)
            if rate != group.rate:
                group.work -= group.rate * (self.env.now - group.since_ns)
                group.rate, group.since_ns, group.version = rate, self.env.now, group.version + 1
                end = self.env.timeout(-(-group.work // rate), (group, group.version))
                end.callbacks.append(self.finish)

    def pool_rates(self, pool: int) -> list[int]:
        """Rate of each group if only this pool were short."""
        wanted = [(group.blocks, group.task.shares[pool]) for group in self.groups]
        left, takers = POOL, sum(blocks for blocks, _ in wanted)
        for blocks, share in sorted(wanted, key=lambda one: one[1]):  # the least first: are all others served with it?
            if share * takers > left:
                break
            left, takers = left - blocks * share, takers - blocks
        else:
            return [FULL] * len(wanted)
        level = share
        return [FULL if one < level else max(1, FULL * left // (takers * one)) for _, one in wanted]

    def finish(self, event: simpy.Event) -> None:
        """End a group, unless its rate has changed since."""
        group, version = event.value
        if version != group.version:
            return
        task = group.task
        self.groups.remove(group)
        task.groups.remove(group)
        for unit, units in task.need.items():
            self.free[unit] += group.blocks * units
        if not task.groups and not task.waiting:
            task.done.succeed()
        self.settle_later()


def simulate(commands: list[dict], capacity: dict[str, int]) -> list[tuple[int, int]]:
    """Return (start, end) in ns of every command of a program whose commands are all issued at 0."""
    env = simpy.Environment()
    card, passed = Card(env, capacity), [env.event() for _ in commands]
    times: list[tuple[int, int]] = [(0, 0)] * len(commands)

    def stream(slot: int, rows: list[int]):
        for row in rows:
            command = commands[row]
            if command["depends"] >= 0:
                yield passed[command["depends"]]
            if command["need"]:
                task = card.execute(command, slot)
                yield task.done
                times[row] = (task.start_ns, env.now)
            else:
                times[row] = (env.now, env.now)
            passed[row].succeed()

    for slot in sorted({command["stream"] for command in commands}):
        env.process(stream(slot, [row for row, one in enumerate(commands) if one["stream"] == slot]))
    env.run()
    return times
