"""Insight: timelines, traces, text pictures and deadlock reports, read from what the runtime recorded."""

from ascend_jax.insight.cores import CoreLanes, assign_cores
from ascend_jax.insight.deadlock import DeadlockReport, deadlock_report
from ascend_jax.insight.extract import timeline
from ascend_jax.insight.gantt import gantt
from ascend_jax.insight.perfetto import HostSpan, to_perfetto
from ascend_jax.insight.timeline import Timeline

__all__ = [
    "CoreLanes",
    "DeadlockReport",
    "HostSpan",
    "Timeline",
    "assign_cores",
    "deadlock_report",
    "gantt",
    "timeline",
    "to_perfetto",
]
