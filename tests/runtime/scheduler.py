"""When the commands of one card run: an event-driven twin of the engine that shares no code with it.

A heap holds the moments to come: the issue of a head, the deadline of a head, the projected end of a group of blocks. A
moment that something made void (a dropped head, a changed rate) stays in the heap and is passed over when it comes up.
All times are whole ns, all numbers Python ints.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

WORD = 1 << 64
POOL = 65536  # capacity of each of the two pools of bandwidth
FULL_RATE = 256  # a block that gets all it asks for loses 256 of its work in a ns
MAX_GROUPS = 2
TASKS = ("kernel", "copy", "memset", "host function")


@dataclass(eq=False)
class Command:
    """One entry of a stream; the fields up to ``reach`` are given, the last five are results."""

    kind: str
    stream: int  # slot
    issue: int = 0  # ns
    # marks
    depends: "Command | None" = None
    cell: int | None = None
    condition: str = ""  # "", "GE", "EQ", "AND" or "NOR"
    value: int = 0
    effect: str = ""  # "", "SET" or "ADD"
    value2: int = 0
    # tasks; the next seven are per block
    blocks: int = 1
    cube: int = 0
    vector: int = 0
    engine: str = ""  # "", "h2d", "d2h" or "d2d"
    mode: int = 0  # 0: blocks start as cores free up, 1: all at once
    head: int = 0  # ns, paid by the first group only
    block: int = 1  # ns
    hbm: int = 0  # 1/65536 of the pool
    l2: int = 0  # 1/65536 of the pool
    priority: int = 0
    # both
    timeout: int = 0  # ns, 0: never
    timeout_code: int = 0
    timeout_reach: str = "device"
    fault: int = 0
    reach: str = "stream"  # of the fault: "stream" or "device"
    # results
    ready: int = -1
    start: int = -1
    end: int = -1
    result: int = 0
    dropped: bool = False

    @property
    def is_task(self) -> bool:
        return self.kind in TASKS

    @property
    def needs(self) -> dict[str, int]:
        """Units of each resource that one block holds."""
        wanted = {"cube": self.cube, "vector": self.vector, self.engine: 1}
        return {unit: count for unit, count in wanted.items() if unit and count}


@dataclass(eq=False)
class Group:
    """Blocks of one task that started together and end together."""

    task: "Task"
    blocks: int
    work: int  # left at `since`, in 1/256 ns
    since: int
    rate: int = 0  # work lost in a ns since then
    end: int = -1  # projected
    over: bool = False


@dataclass(eq=False)
class Task:
    """How far a task at the head of its stream has come."""

    command: Command
    waiting: int
    groups: list[Group] = field(default_factory=list)


def is_met(command: Command, cell: int) -> bool:
    """Whether the condition of a mark holds for the content of its cell."""
    match command.condition:
        case "GE":
            return (cell - command.value) % WORD < WORD // 2
        case "EQ":
            return (cell - command.value) % WORD == 0
        case "AND":
            return (cell & command.value) % WORD != 0
        case "NOR":
            return ~(cell | command.value) % WORD != 0
    return True


def shared_rates(blocks: Mapping[Task, int], demand: Callable[[Task], int]) -> dict[Task, int]:
    """Max-min fair rates of one pool: blocks that ask for less than an even share get it, the others split the rest."""
    fill = {i: sum(n * min(demand(j), demand(i)) for j, n in blocks.items()) for i in blocks}
    satisfied = {i for i in blocks if demand(i) == 0 or fill[i] <= POOL}
    rest = POOL - sum(blocks[i] * demand(i) for i in satisfied)
    sharers = sum(n for i, n in blocks.items() if i not in satisfied)
    return {i: FULL_RATE if i in satisfied else max(1, FULL_RATE * rest // (sharers * demand(i))) for i in blocks}


class Scheduler:
    """One card with `slots` streams; a list of commands goes in, times come out.

    ``on_start`` and ``on_end`` are called as things happen. A mark starts and ends at once. A failed command ends too:
    its ``result`` is set then, and whoever listens leaves its data effects out. A dropped command never ends.
    """

    def __init__(
        self, capacity: Mapping[str, int], slots: int, cells: int, stop_on_failure: Iterable[int] = ()
    ) -> None:
        self.capacity = dict(capacity)
        self.now = 0
        self.cells = [0] * cells  # unsigned
        self.stream_error = dict.fromkeys(range(slots), 0)
        self.device_error = 0
        self.stop_on_failure = set(stop_on_failure)
        self.masters: dict[int, int] = {}  # slot of a side of a program -> slot of the stream whose failures are its
        self.on_start: Callable[[Command], None] | None = None
        self.on_end: Callable[[Command], None] | None = None
        self.queues: list[deque[Command]] = [deque() for _ in range(slots)]
        self.in_use = dict.fromkeys(self.capacity, 0)
        self._moments: list[tuple[int, int, str, Command | Group]] = []
        self._counter = itertools.count()
        self._order: dict[Command, int] = {}  # of enqueueing
        self._marks: dict[int, Command] = {}  # heads that are issued, by slot
        self._tasks: dict[int, Task] = {}
        self._over: set[int] = set()  # tasks without blocks left
        self._late: set[int] = set()  # heads whose deadline has come
        self._is_rated = True  # no group came or went since the rates were set

    def enqueue(self, command: Command) -> None:
        """Append a command to its stream now; a lost card and a stopped stream drop it."""
        if self.device_error or (command.stream in self.stop_on_failure and self.stream_error[self._of(command)]):
            command.dropped = True
            return
        self._order[command] = next(self._counter)
        self.queues[command.stream].append(command)
        if self._is_head(command):
            self._come_to_head(command)

    def advance_to(self, limit: int) -> None:
        """Let everything before `limit` happen, and time be `limit`, where tasks still end."""
        self.run_until(lambda: False, limit)

    def run_until(self, reached: Callable[[], bool], limit: int | None = None) -> str:
        """Go on one thing at a time; return "reached", "limit" or "stuck", whichever is true first.

        At `limit` itself tasks that are over end, and nothing else happens.
        """
        while not reached():
            if self._over:
                command = self._tasks[min(self._over)].command
                self._end(command, command.fault, command.reach)
            elif limit is not None and self.now >= limit:
                return "limit"
            elif not self._do_one_thing():
                self._dispatch()
                self._set_rates()
                if not self._move_time(limit):
                    return "stuck"
        return "reached"

    def drop_stream(self, stream: int) -> None:
        """Drop everything unfinished of a stream and its sides, blocks that run included; no error is set."""
        for side in [side for side, master in self.masters.items() if master == stream]:
            self._drop_own(side)
        self._drop_own(stream)

    def _drop_own(self, stream: int) -> None:
        for command in self.queues[stream]:
            command.dropped = True
        self._give_up(stream)
        self.queues[stream].clear()

    def _of(self, command: Command) -> int:
        return self.masters.get(command.stream, command.stream)

    # Steps 2 and 3.

    def _do_one_thing(self) -> bool:
        """Pass one mark or fail one head that is late; False if there is neither."""
        passing = [slot for slot, command in self._marks.items() if self._may_pass(command)]
        if passing:
            command = self._marks[min(passing)]
            self._end(command, command.fault, command.reach)
        elif self._late:
            command = self.queues[min(self._late)][0]
            self._end(command, command.timeout_code, command.timeout_reach)
        else:
            return False
        return True

    def _may_pass(self, mark: Command) -> bool:
        is_free = mark.depends is None or mark.depends.end >= 0
        return is_free and (mark.cell is None or is_met(mark, self.cells[mark.cell]))

    def _end(self, command: Command, code: int, reach: str) -> None:
        """End a head, with success if `code` is 0, and bring up its successor."""
        if not command.is_task:
            command.start = self.now
            if self.on_start:
                self.on_start(command)
        command.end, command.result = self.now, code
        if not code and command.cell is not None and command.effect:
            base = self.cells[command.cell] if command.effect == "ADD" else 0
            self.cells[command.cell] = (base + command.value2) % WORD
        self._give_up(command.stream)
        self.queues[command.stream].popleft()
        if self.on_end:
            self.on_end(command)
        if code and reach == "device":
            self.device_error = code
            for stream in range(len(self.queues)):
                self.drop_stream(stream)
        elif code:
            master = self._of(command)
            self.stream_error[master] = self.stream_error[master] or code
            if command.stream in self.stop_on_failure:
                self._drop_own(command.stream)
        if self.queues[command.stream]:
            self._come_to_head(self.queues[command.stream][0])

    # Step 4.

    def _dispatch(self) -> None:
        claimants = [task for task in self._tasks.values() if task.waiting]
        claimants.sort(key=lambda task: (task.command.priority, task.command.ready, task.command.stream))
        available = {unit: count - self.in_use[unit] for unit, count in self.capacity.items()}
        chosen = []
        for task in claimants:
            needs = task.command.needs
            fits = min((available[unit] // count for unit, count in needs.items()), default=task.waiting)
            blocks = min(task.waiting, max(fits, 0)) if len(task.groups) < MAX_GROUPS else 0
            if task.command.mode == 0 or blocks == task.waiting:
                chosen += [(task, blocks)] if blocks else []
            for unit, count in needs.items():
                available[unit] -= task.waiting * count  # the claim keeps those behind from overtaking
        for task, blocks in sorted(chosen, key=lambda choice: self._order[choice[0].command]):
            self._start_group(task, blocks)

    def _start_group(self, task: Task, blocks: int) -> None:
        command = task.command
        is_first = command.start < 0
        work = FULL_RATE * (command.block + (command.head if is_first else 0))
        task.groups.append(Group(task, blocks, work, self.now))
        task.waiting -= blocks
        self._hold(command, blocks)
        if is_first:
            command.start = self.now
            if command.timeout:
                self._foresee(self.now + command.timeout, "deadline", command)
            if self.on_start:
                self.on_start(command)

    # Step 5.

    def _set_rates(self) -> None:
        if self._is_rated:
            return
        self._is_rated = True
        blocks = {task: sum(group.blocks for group in task.groups) for task in self._tasks.values() if task.groups}
        hbm = shared_rates(blocks, lambda task: task.command.hbm)
        l2 = shared_rates(blocks, lambda task: task.command.l2)
        for task in blocks:
            rate = min(hbm[task], l2[task])
            for group in task.groups:
                if group.rate != rate:
                    group.work -= group.rate * (self.now - group.since)
                    group.since, group.rate = self.now, rate
                    group.end = self.now - (-group.work // rate)  # rounded up
                    self._foresee(group.end, "group", group)

    # Step 6.

    def _move_time(self, limit: int | None) -> bool:
        """Go to the next moment, or to `limit` if that is sooner; False if there is neither."""
        self._forget_void_moments()
        if not self._moments and limit is None:
            return False
        self.now = min([time for time, *_ in self._moments[:1]] + ([] if limit is None else [limit]))
        while self._moments and self._moments[0][0] <= self.now:
            *_, kind, subject = heapq.heappop(self._moments)
            if isinstance(subject, Group):
                self._finish_group(subject)
            elif kind == "issue":
                self._arrive(subject)
            else:
                self._late.add(subject.stream)
            self._forget_void_moments()
        return True

    def _foresee(self, time: int, kind: str, subject: Command | Group) -> None:
        heapq.heappush(self._moments, (time, next(self._counter), kind, subject))

    def _forget_void_moments(self) -> None:
        while self._moments and self._is_void(self._moments[0][0], self._moments[0][-1]):
            heapq.heappop(self._moments)

    def _is_void(self, time: int, subject: Command | Group) -> bool:
        if isinstance(subject, Group):
            return subject.over or subject.end != time
        return not self._is_head(subject)

    def _finish_group(self, group: Group) -> None:
        group.over = True
        group.task.groups.remove(group)
        self._hold(group.task.command, -group.blocks)
        if not group.task.groups and not group.task.waiting:
            self._over.add(group.task.command.stream)

    # Bookkeeping of heads.

    def _is_head(self, command: Command) -> bool:
        queue = self.queues[command.stream]
        return bool(queue) and queue[0] is command

    def _come_to_head(self, command: Command) -> None:
        if command.issue > self.now:
            self._foresee(command.issue, "issue", command)
        else:
            self._arrive(command)

    def _arrive(self, command: Command) -> None:
        """A head is issued: it may act from now on."""
        command.ready = self.now
        if command.is_task:
            self._tasks[command.stream] = Task(command, command.blocks)
            return
        self._marks[command.stream] = command
        if command.timeout:
            self._foresee(self.now + command.timeout, "deadline", command)

    def _give_up(self, slot: int) -> None:
        """The head of a stream leaves; blocks of it that still run give back their cores."""
        task = self._tasks.pop(slot, None)
        for group in list(task.groups) if task else []:
            self._finish_group(group)
        self._marks.pop(slot, None)
        self._over.discard(slot)
        self._late.discard(slot)

    def _hold(self, command: Command, blocks: int) -> None:
        for unit, count in command.needs.items():
            self.in_use[unit] += blocks * count
        self._is_rated = False
