"""Run a plan on a Ray cluster, or a script on this machine."""

from __future__ import annotations

from headrace.runtime.callbacks.base import RunWatcher
from headrace.runtime.callbacks.progress import Progress
from headrace.runtime.controller.dry_run import describe
from headrace.runtime.controller.local_plan import local_config
from headrace.runtime.controller.run import run_job
from headrace.runtime.protocol.trainer_messages import Message, Report, line_of
from headrace.runtime.run_dir.run_config import RunConfig, Traffic
from headrace.runtime.run_dir.run_dir import find_run, runs_folder
from headrace.runtime.trainer.report import report

__all__ = [
    "Message",
    "Progress",
    "Report",
    "RunConfig",
    "RunWatcher",
    "Traffic",
    "describe",
    "find_run",
    "line_of",
    "local_config",
    "report",
    "run_job",
    "runs_folder",
]
