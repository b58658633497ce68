"""Insight: timelines, traces and text pictures, read from what the runtime recorded."""

from ascend_jax.insight.cores import CoreLanes, assign_cores
from ascend_jax.insight.extract import timeline
from ascend_jax.insight.gantt import gantt
from ascend_jax.insight.perfetto import HostSpan, to_perfetto
from ascend_jax.insight.timeline import Timeline

__all__ = ["CoreLanes", "HostSpan", "Timeline", "assign_cores", "gantt", "timeline", "to_perfetto"]
