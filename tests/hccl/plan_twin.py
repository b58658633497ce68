"""A plain twin of plans: cards in step, ns by ns event, links shared in proportion to demand. Written from the rules.

Kernels take their time; a call begins when every rank has come to it (the n-th calls of a communicator are one), draws
``share`` / 256 of each of its links, and ends when the slowest rank is through. A rank whose links are asked for more
than there is goes at 256 * 256 // asked of 256.
"""

import dataclasses

FULL = 256


@dataclasses.dataclass
class Task:
    """A step of one card."""

    stream: int
    after: tuple
    duration: int
    call: object = None  # (communicator, group), or None for a kernel
    number: int = 0  # of the call in its communicator
    share: int = 0
    links: frozenset = frozenset()
    issue: int = 0  # when the host hands it over
    rest: int = -1  # work left; -1: not begun
    start: int = -1
    through: int = -1  # of a call: when this card's part is over
    end: int = -1


def links_of(card, group, per_server, pair=False):
    """Return a mesh card's links to the others of a group; every card has one port to the network."""
    rank = group.index(card)
    peers = {group[rank - 1], group[(rank + 1) % len(group)]} if pair else set(group)
    return frozenset(peer if peer // per_server == card // per_server else "network" for peer in peers if peer != card)


def rate_of(task, running):
    """Return how fast a running task of a card goes, in 1/256."""
    asked = sum(other.share for other in running if other.links & task.links)
    return max(FULL * FULL // asked, 1) if asked > FULL else FULL


def run(cards):
    """Fill in start and end of every task of lists of tasks, one list for each card."""
    now = 0
    while True:
        while _settle(cards, now):
            pass
        running = [[task for task in card if task.rest > 0] for card in cards]
        rates = [(task, rate_of(task, card)) for card in running for task in card]
        later = [task.issue - now for card in cards for task in card if task.issue > now]
        if not rates and not later:
            return
        wait = min([-(-task.rest // rate) for task, rate in rates] + later)
        now += wait
        for task, rate in rates:
            task.rest = max(task.rest - wait * rate, 0)
            task.through = now if task.rest == 0 else -1


def _heads(card, now):
    seen = set()
    for task in card:
        if task.end < 0 and task.stream not in seen:
            seen.add(task.stream)
            if task.issue <= now and all(card[before].end >= 0 for before in task.after):
                yield task


def _settle(cards, now):
    """Let what can happen at an instant happen; return whether anything did."""
    changed, here = False, {}
    for number, card in enumerate(cards):
        for task in _heads(card, now):
            if task.call is None and task.rest < 0:
                task.start, task.rest, changed = now, task.duration * FULL, True
            elif task.call is None and task.rest == 0:
                task.end, changed = now, True
            elif task.call is not None:
                here.setdefault((task.call, task.number), {})[number] = task
    for (call, _), tasks in here.items():
        if len(tasks) < len(call[1]):
            continue
        if all(task.rest < 0 for task in tasks.values()):
            for task in tasks.values():
                task.start, task.rest = now, task.duration * FULL
            changed = True
        elif all(task.rest == 0 for task in tasks.values()):
            for task in tasks.values():
                task.end = now
            changed = True
    return changed
