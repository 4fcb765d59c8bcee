"""Traces as Perfetto files and Gantt charts, reports, metrics and experiment trackers."""

from headrace.observability.gantt import draw_gantt
from headrace.observability.nics import NicSummary, nic_summary
from headrace.observability.perfetto import write_perfetto

__all__ = ["NicSummary", "draw_gantt", "nic_summary", "write_perfetto"]
