"""Run a plan on a Ray cluster."""

from __future__ import annotations

from headrace.runtime.cluster_run import ClusterRun, run_cluster
from headrace.runtime.dry_run import describe

__all__ = ["ClusterRun", "describe", "run_cluster"]
