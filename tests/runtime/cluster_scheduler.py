"""Clusters: several schedulers in step, each with a heap of its own, and marks at which their cards meet.

All cards have one time. At an instant, everything that can happen on any card happens; then each card whose head is
late fails one; when there is neither, blocks start on all cards and time moves to the next moment of any of them.
"""

from dataclasses import dataclass

from tests.runtime.scheduler import Command, Scheduler


@dataclass(eq=False)
class Rendezvous(Command):
    """A mark that happens when all cards of its channel have it at the head of a stream."""

    channel: int = 0


class Card(Scheduler):
    """One card of a cluster."""

    cluster: "ClusterScheduler"

    def waits_in(self, channel):
        """Return the rendezvous of a channel that has come to a head and is not open yet, or None."""
        marks = [mark for mark in self._marks.values() if isinstance(mark, Rendezvous) and mark.channel == channel]
        return next((mark for mark in marks if mark not in self.cluster.opened), None)

    def _may_pass(self, mark):
        if not isinstance(mark, Rendezvous):
            return super()._may_pass(mark)
        return self.cluster.is_open(mark)

    def pass_one(self):
        """Do one thing of steps 1 and 2; False if there is none."""
        if self._over:
            command = self._tasks[min(self._over)].command
        elif passing := [slot for slot, mark in self._marks.items() if self._may_pass(mark)]:
            command = self._marks[min(passing)]
        else:
            return False
        self._end(command, command.fault, command.reach)
        return True

    def fail_one(self):
        """Do one thing of step 3; False if there is none."""
        if not self._late:
            return False
        command = self.queues[min(self._late)][0]
        self._end(command, command.timeout_code, command.timeout_reach)
        return True

    def start(self):
        self._dispatch()
        self._set_rates()

    def next_moment(self):
        self._forget_void_moments()
        return self._moments[0][0] if self._moments else None


class ClusterScheduler:
    """Cards with one clock; ``channels[k]`` are the cards that meet in channel k."""

    def __init__(self, channels, cards):
        self.channels, self.cards, self.opened = channels, cards, set()
        for card in cards:
            card.cluster = self

    def is_open(self, mark):
        """Whether all cards of its channel stand there; once they do, it is open for each of them."""
        if mark not in self.opened:
            waiting = [self.cards[card].waits_in(mark.channel) for card in self.channels[mark.channel]]
            if all(waiting):
                self.opened.update(waiting)
        return mark in self.opened

    def run(self):
        while True:
            if sum(card.pass_one() for card in self.cards) or sum(card.fail_one() for card in self.cards):
                continue  # every card had its turn
            for card in self.cards:
                card.start()
            moments = [moment for card in self.cards if (moment := card.next_moment()) is not None]
            if not moments:
                return
            for card in self.cards:
                card._move_time(min(moments))
