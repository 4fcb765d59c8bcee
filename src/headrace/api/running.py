"""Run a training script with its stores and samplers; figures that it reports.

Example:
    >>> import headrace
    >>> headrace.report(epoch=3, loss=0.25)
    epoch 3  loss 0.25
"""

from __future__ import annotations

from headrace.runtime.local import LocalRun, RunWatcher
from headrace.runtime.messages import line_of
from headrace.runtime.progress import Progress
from headrace.runtime.script_report import report
from headrace.runtime.tracking import run_local_tracked as run_local

__all__ = ["LocalRun", "Progress", "RunWatcher", "line_of", "report", "run_local"]
