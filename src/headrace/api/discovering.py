"""Describe a live Ray cluster."""

from __future__ import annotations

from headrace.runtime.discovering import Discovery
from headrace.runtime.discovering import discover as discover_cluster
from headrace.runtime.survey import cluster_text

__all__ = ["Discovery", "cluster_text", "discover_cluster"]
