"""Why commands did not start earlier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ascend_jax.insight.kinds import WAITS

if TYPE_CHECKING:
    from ascend_jax.insight.timeline import Timeline


def wait_reasons(log: Timeline) -> NDArray[Any]:
    """Return [N] str, what came last before each command could start, or is still missing; see ``Timeline``."""
    before = log.previous_end_ns()
    decided = [before >= log.issue_ns, log.issue_ns > log.begin_ns]
    reason = np.select(decided, ["stream order", "host"], "").astype(object)
    held_up = (log.ready_ns >= 0) & (~log.started | (log.start_ns > log.ready_ns))
    own = _own_reasons(log)
    reason = np.where(held_up & (own != ""), own, reason)
    previous = log.previous()
    behind_wait = (previous >= 0) & log.is_wait[previous] if len(log) else previous > 0
    for position in np.flatnonzero(behind_wait & (reason == "stream order")):
        reason[position] = reason[previous[position]]
    return reason


def _own_reasons(log: Timeline) -> NDArray[Any]:
    """[N] str: what a command at the head of its stream can wait for, "" for one that just happens."""
    on_cores = (log.held_cube > 0) | (log.held_vector > 0)
    task = np.where(log.engine != "", "copy engine", np.where(on_cores, "cores", ""))
    wait = np.array([WAITS.get(kind, "") for kind in log.kind], object)
    return np.where(wait != "", wait, task).astype(object)
