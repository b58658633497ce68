"""What went wrong between the ranks of a plan: who waits for whom, in which call, and where that was made."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ascend_jax.chip.spec import ChipSpec
from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.mismatch import calls_of
from ascend_jax.hccl.root_info import CONNECT_EXTRA_S
from ascend_jax.hccl.run_plan import PlanTimes
from ascend_jax.hccl.steps import Call
from ascend_jax.hccl.timeouts import S, exec_timeout_s
from ascend_jax.runtime import callsite
from ascend_jax.runtime.layout import NONE, Phase


class _Meeting(NamedTuple):
    """The ``number``-th call of a group, and which step of each rank it is; NONE if a rank does not call."""

    comm: Communicator
    group: tuple[int, ...]
    number: int
    steps: tuple[int, ...]


def explain_plan(times: PlanTimes) -> list[str]:
    """Return what went wrong between the ranks, a line each; empty if nothing did.

    A call that does not agree is HCCL_E_PARA (EI0005), a rank that does not come in time HCCL_E_TIMEOUT: EI0006 for the
    first call of a communicator, which links up, EI0002 for later ones. A rank that has not come is said to be missing
    (it never calls), late (it came after the others had given up) or held (with the step that holds it, and where the
    call was made), so that ranks that wait for each other in two communicators are seen to do so.
    """
    plan = times.plan
    lines = [str(wrong) for wrong in plan.mismatches]
    told = {(wrong.comm, wrong.group): wrong.number for wrong in plan.mismatches}
    comms = dict.fromkeys(step.comm for steps in plan.steps for step in steps if isinstance(step, Call))
    for comm in comms:
        own = [calls_of(steps, comm) for steps in plan.steps]
        for group in comm.groups:
            calls = [own[card if len(own) > 1 else 0] for card in group]
            most = max(map(len, calls))
            for number in range(most):
                steps = tuple(one[number] if number < len(one) else NONE for one in calls)
                meeting = _Meeting(comm, group, number, steps)
                if told.get((comm, group), most) <= number:
                    break  # what comes after a mismatch is dropped
                if not _has_met(times, meeting):
                    lines.append(_line(times, meeting))
                    break
    return lines


def _has_met(times: PlanTimes, meeting: _Meeting) -> bool:
    return all(
        step != NONE and times.phase[card, times.plan.rows_of(card).meet_of[step]] == Phase.DONE
        for card, step in zip(meeting.group, meeting.steps, strict=True)
    )


def _line(times: PlanTimes, meeting: _Meeting) -> str:
    missing, waiting, held = [], [], []
    for rank, (card, step) in enumerate(zip(meeting.group, meeting.steps, strict=True)):
        if step == NONE:
            missing.append(rank)
        elif (obstacle := _obstacle(times, card, step)) is None:
            waiting.append(rank)
        else:
            held.append(f"rank {rank} is held by {_name(times, card, obstacle)}")
    if not waiting:
        first = next(rank for rank, step in enumerate(meeting.steps) if step != NONE)
        return f"HCCL_E_TIMEOUT (9): {_title(times, meeting, first)}: nobody comes to it; {'; '.join(held)}"
    came = [_came_ns(times, meeting, rank) for rank in waiting]
    seconds = _timeout_s(times, meeting)
    first_ns = min(came)
    late = [rank for rank, at in zip(waiting, came, strict=True) if seconds and at >= first_ns + seconds * S]
    waiting = [rank for rank in waiting if rank not in late]
    waits = [(rank, _came_ns(times, meeting, rank) - first_ns) for rank in late]
    return timeout_line(_title(times, meeting, waiting[0]), meeting.number, seconds, missing, held, waits, waiting)


def timeout_line(
    title: str,
    number: int,
    seconds: int,
    missing: Sequence[int],
    held: Sequence[str],
    late: Sequence[tuple[int, int]],
    waiting: Sequence[int],
) -> str:
    """Return what is said of ranks that wait for others in call ``number`` of a communicator; ``late`` in ns."""
    parts = [f"rank(s) {list(missing)} do not call"] * bool(missing) + list(held)
    parts += [f"rank {rank} comes {_seconds(after)} s after rank {waiting[0]}" for rank, after in late]
    label = "EI0006" if number == 0 else "EI0002"
    end = f"after {seconds} s" if seconds else "never: HCCL_EXEC_TIMEOUT is 0"
    return (
        f"HCCL_E_TIMEOUT (9) [{label}]: {title}: {'; '.join(parts)}; "
        f"rank(s) {list(waiting)} wait for them and give up {end}"
    )


def _seconds(ns: int) -> str:
    return f"{ns / S:.3f}".rstrip("0").rstrip(".")


def _title(times: PlanTimes, meeting: _Meeting, rank: int) -> str:
    return _name(times, meeting.group[rank], meeting.steps[rank])


def _name(times: PlanTimes, card: int, number: int) -> str:
    step = times.plan.steps_of(card)[number]
    if not isinstance(step, Call):
        return f"step {number}, {step.title}"
    call = calls_of(times.plan.steps_of(card), step.comm).index(number)
    return f"call {call} of {step.comm.name}, {step.title} at {callsite.text(int(step.site))}"


def _obstacle(times: PlanTimes, card: int, number: int) -> int | None:
    """Return the step for which a card has not come to a call, or None if it has."""
    plan = times.plan
    steps, layout = plan.steps_of(card), plan.rows_of(card)
    before = [*steps[number].after, *(one for one in range(number) if steps[one].stream == steps[number].stream)]
    for step in sorted(before):
        if times.phase[card, layout.end_of[step]] != Phase.DONE:
            deeper = _obstacle(times, card, step)
            return step if deeper is None else deeper
    return None


def _came_ns(times: PlanTimes, meeting: _Meeting, rank: int) -> int:
    """Return when a rank came to a call: when the last step before it was over."""
    card, number = meeting.group[rank], meeting.steps[rank]
    steps, layout = times.plan.steps_of(card), times.plan.rows_of(card)
    before = [*steps[number].after, *(one for one in range(number) if steps[one].stream == steps[number].stream)]
    return int(times.end_ns[card, layout.end_of[np.array(before, int)]].max(initial=0))


def _timeout_s(times: PlanTimes, meeting: _Meeting) -> int:
    return wait_s(times.plan.chip, meeting.comm, meeting.number)


def wait_s(chip: ChipSpec, comm: Communicator, number: int) -> int:
    """Return how long ranks wait in call ``number`` of a communicator, 0 for ever."""
    if number == 0:
        return comm.config.connect_timeout_s + CONNECT_EXTRA_S
    return exec_timeout_s(chip, comm.config.exec_timeout_s)
