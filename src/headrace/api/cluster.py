"""Describe a live Ray cluster."""

from __future__ import annotations

from headrace.observability.grafana import dashboard as grafana_dashboard
from headrace.runtime.cluster.cluster_file import cluster_text
from headrace.runtime.cluster.discovery import Discovery
from headrace.runtime.cluster.discovery import discover as discover_cluster
from headrace.runtime.cluster.prometheus import prometheus_config

__all__ = [
    "Discovery",
    "cluster_text",
    "discover_cluster",
    "grafana_dashboard",
    "prometheus_config",
]
