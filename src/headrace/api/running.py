"""Run a training script with its stores and samplers; figures that it reports."""

from __future__ import annotations

from headrace.runtime.local import LocalRun, RunWatcher
from headrace.runtime.messages import line_of, report
from headrace.runtime.progress import Progress
from headrace.runtime.tracking import run_local_tracked as run_local

__all__ = ["LocalRun", "Progress", "RunWatcher", "line_of", "report", "run_local"]
