"""How busy the units of a card were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ascend_jax.insight.kinds import KERNEL

if TYPE_CHECKING:
    from ascend_jax.insight.timeline import Counts, Timeline, Times


def utilisation(log: Timeline) -> dict[str, float]:
    """Return busy fractions of the makespan; see ``Timeline.utilisation``."""
    span_ns, done = max(1, log.makespan_ns), log.finished
    fractions = {}
    for unit, cores in (("cube", log.cube_cores), ("vector", log.vector_cores)):
        held = np.where(done, getattr(log, f"held_{unit}"), 0)
        busy_ns = int((held.astype(np.int64) * getattr(log, f"{unit}_busy_ns")).sum())
        fractions[unit] = busy_ns / max(1, cores * span_ns)
        taken_ns = _taken_ns(log.start_ns[done], log.end_ns[done], held[done], cores)
        fractions[f"{unit} held"] = taken_ns / max(1, cores * span_ns)
    for engine in ("h2d", "d2h", "d2d"):
        used = done & (log.engine == engine)
        ones = np.ones(int(used.sum()), np.int32)
        fractions[engine] = _taken_ns(log.start_ns[used], log.end_ns[used], ones, 1) / span_ns
    return fractions


def _taken_ns(start_ns: Times, end_ns: Times, held: Counts, units: int) -> int:
    """Unit times ns that intervals take, of which together never more than ``units`` are taken at one time."""
    times, change = np.concatenate([start_ns, end_ns]), np.concatenate([held, -held])
    order = np.argsort(times, kind="stable")
    taken = np.minimum(np.cumsum(change[order], dtype=np.int64), units)
    return int((taken[:-1] * np.diff(times[order])).sum())


def max_concurrent_kernels(log: Timeline) -> int:
    """Return the largest number of kernels under way at one moment; see ``Timeline.max_concurrent_kernels``."""
    is_over = log.finished | (log.dropped_ns >= 0)
    until_ns = np.where(is_over, log.until_ns(), np.iinfo(np.int64).max)
    runs = (log.kind == KERNEL) & log.started & (until_ns > log.start_ns)
    times = np.concatenate([log.start_ns[runs], until_ns[runs]])
    change = np.repeat([1, -1], runs.sum())
    order = np.lexsort((change, times))  # at one time, ends go first
    return int(np.cumsum(change[order]).max(initial=0))
