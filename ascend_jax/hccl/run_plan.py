"""Running a plan: when every step of every card starts and ends."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ascend_jax.hccl.plan import Plan
from ascend_jax.hccl.steps import Step, Work
from ascend_jax.runtime.clock import to_ns
from ascend_jax.runtime.layout import NONE, Phase
from ascend_jax.runtime.simulate import simulate


@dataclasses.dataclass(frozen=True, eq=False)
class PlanTimes:
    """Times of all rows of all cards, ns; NONE where a row never got there."""

    plan: Plan
    ready_ns: np.ndarray  # int64 [C, N]
    start_ns: np.ndarray  # int64 [C, N]
    end_ns: np.ndarray  # int64 [C, N]
    phase: np.ndarray  # int32 [C, N], Phase
    code: np.ndarray  # int32 [C, N]

    @property
    def makespan_ns(self) -> int:
        """End of the last row that ended."""
        return int(self.end_ns.max())

    def span_ns(self, card: int, number: int) -> tuple[int, int]:
        """Return start and end of a step; NONE for what never came. A collective ends once all ranks are through."""
        rows = self.plan.rows_of(card)
        return int(self.start_ns[card, rows.task_of[number]]), int(self.end_ns[card, rows.end_of[number]])

    def steps(self, card: int) -> list[dict[str, Any]]:
        """Return each step of a card as a row of ``insight.Timeline.from_rows``."""
        rows = []
        layout = self.plan.rows_of(card)
        for number, step in enumerate(self.plan.steps_of(card)):
            row = layout.task_of[number]
            start, end = self.span_ns(card, number)
            entry = {
                "name": step.title,
                "command": number,
                "stream": step.stream,
                "ready_ns": _none(int(self.ready_ns[card, row])),
                "start_ns": _none(start),
                "end_ns": _none(end),
                "code": int(self.code[card, row]),
                "held_cube": step.cube_cores if isinstance(step, Work) else 0,
            }
            rows.append(entry)
        return rows

    def busy_ns(self, card: int) -> int:
        """Return the time that the kernels of a card, without collectives, take."""
        return sum(end - start for start, end in self._spans(card, lambda step: isinstance(step, Work)))

    def communication_ns(self, card: int) -> int:
        """Return the time that the collectives of a card take once all ranks are there."""
        return sum(end - start for start, end in self._spans(card, lambda step: not isinstance(step, Work)))

    def exposed_ns(self, card: int) -> int:
        """Return the time in which a card computes nothing, up to its own end: communication that is not hidden."""
        total, reached = 0, 0
        for start, end in sorted(self._spans(card, lambda step: isinstance(step, Work))):
            total += max(0, end - max(start, reached))
            reached = max(reached, end)
        return int(self.end_ns[card].max()) - total

    def _spans(self, card: int, is_wanted: Callable[[Step], bool]) -> list[tuple[int, int]]:
        """Return start and end of those steps that ended."""
        steps = [number for number, step in enumerate(self.plan.steps_of(card)) if is_wanted(step)]
        return [span for span in (self.span_ns(card, number) for number in steps) if span[1] != NONE]


def _none(time: int) -> int | None:
    return None if time == NONE else time


def run_plan(plan: Plan) -> PlanTimes:
    """Simulate a plan on the exact engine; a stream takes no more commands after one has failed.

    >>> from ascend_jax.chip import chip
    >>> from ascend_jax.hccl import Call, Collective, Topology, Work, comm_world, make_plan
    >>> steps = [Work("matmul", [1000, 5000]), Call(Collective.ALL_REDUCE, comm_world(2), 1 << 20)]
    >>> times = run_plan(make_plan(chip("Ascend910B2"), steps, Topology(2, 8)))
    >>> [times.steps(card)[1]["start_ns"] for card in (0, 1)]
    [5000, 5000]
    """
    found = jax.device_get(simulate(plan.program, plan.chip, cells=1, stops=True, coupling=plan.coupling))
    has_ended = np.isin(found.phase, (Phase.DONE, Phase.FAULTED, Phase.EXPIRED))
    ready, start, end = (np.where(has_ended, to_ns(*time), NONE) for time in (found.ready, found.start, found.end))
    return PlanTimes(plan, ready, start, end, found.phase, found.code)
