"""Running a plan: when every step of every card starts and ends, and who waits for whom."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.mismatch import calls_of
from ascend_jax.hccl.plan import Plan
from ascend_jax.hccl.root_info import CONNECT_EXTRA_S
from ascend_jax.hccl.steps import Call, Work
from ascend_jax.hccl.timeouts import exec_timeout_s
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

    def steps(self, card: int) -> list[dict[str, Any]]:
        """Return each step of a card as a row of ``insight.Timeline.from_rows``."""
        rows = []
        for number, (step, row) in enumerate(zip(self.plan.steps_of(card), self.plan.rows_of(card), strict=True)):
            start, end = int(self.start_ns[card, row]), int(self.end_ns[card, row])
            entry = {
                "name": step.name if isinstance(step, Work) else step.title,
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
        pairs = zip(self.plan.steps_of(card), self.plan.rows_of(card), strict=True)
        rows = [row for step, row in pairs if isinstance(step, Work)]
        return int((self.end_ns[card, rows] - self.start_ns[card, rows]).sum())

    def exposed_ns(self, card: int) -> int:
        """Return the time in which a card computes nothing, up to its own end: communication that is not hidden."""
        return int(self.end_ns[card].max()) - _union(self, card)


def _none(time: int) -> int | None:
    return None if time == NONE else time


def _union(times: PlanTimes, card: int) -> int:
    pairs = zip(times.plan.steps_of(card), times.plan.rows_of(card), strict=True)
    spans = sorted(
        (int(times.start_ns[card, row]), int(times.end_ns[card, row])) for step, row in pairs if isinstance(step, Work)
    )
    total, reached = 0, 0
    for start, end in spans:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


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


def explain_plan(times: PlanTimes) -> list[str]:
    """Return what went wrong between the ranks, a line each; empty if nothing did.

    A call that does not agree is HCCL_E_PARA (EI0005), a rank that never comes HCCL_E_TIMEOUT: EI0006 for the first
    call of a communicator, which links up, EI0002 for later ones.
    """
    plan = times.plan
    lines = [str(wrong) for wrong in plan.mismatches]
    comms = {step.comm: None for card in range(plan.cards) for step in plan.steps_of(card) if isinstance(step, Call)}
    for comm in comms if len(plan.steps) > 1 else ():
        for group in comm.groups:
            calls = {card: calls_of(plan.steps_of(card), comm) for card in group}
            most = max(map(len, calls.values()))
            for number in range(most):
                line = _missing(times, comm, group, calls, number)
                if line is not None:
                    lines.append(line)
                    break
    return lines


def _missing(
    times: PlanTimes, comm: Communicator, group: tuple[int, ...], calls: dict[int, list[int]], number: int
) -> str | None:
    plan = times.plan
    came = [card for card in group if len(calls[card]) > number]
    missing = [group.index(card) for card in group if len(calls[card]) <= number]
    if not missing:
        return None
    title = plan.steps_of(came[0])[calls[came[0]][number]]
    assert isinstance(title, Call)
    waiting = [group.index(card) for card in came]
    config = comm.config
    seconds = config.connect_timeout_s + CONNECT_EXTRA_S
    if number:
        seconds = exec_timeout_s(plan.chip, config.exec_timeout_s)
    label = "EI0006" if number == 0 else "EI0002"
    end = f"after {seconds} s" if seconds else "never: HCCL_EXEC_TIMEOUT is 0"
    return (
        f"HCCL_E_TIMEOUT (9) [{label}]: call {number} of {comm.name}, {title.title}: rank(s) {missing} do not call; "
        f"rank(s) {waiting} wait for them and give up {end}"
    )
