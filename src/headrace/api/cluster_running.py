"""Run a plan on a Ray cluster."""

from __future__ import annotations

from headrace.runtime.cluster_run import ClusterRun, resumed, run_cluster
from headrace.runtime.dry_run import describe
from headrace.runtime.run_file import Traffic
from headrace.runtime.runs import find_run, runs_folder

__all__ = [
    "ClusterRun",
    "Traffic",
    "describe",
    "find_run",
    "resumed",
    "run_cluster",
    "runs_folder",
]
