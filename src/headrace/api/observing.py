"""Watch runs with other people's tools: Prometheus and Grafana."""

from __future__ import annotations

from headrace.observability.grafana import dashboard as grafana_dashboard
from headrace.runtime.scraping import prometheus_config

__all__ = ["grafana_dashboard", "prometheus_config"]
