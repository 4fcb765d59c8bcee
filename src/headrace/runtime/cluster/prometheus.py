"""Prometheus configuration for a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.errors import SpecError
from headrace.runtime.cluster.connection import connected

# Ray's processes report to their node every 10 s.
_EVERY = "10s"


def prometheus_config(address: str | None) -> str:
    """A configuration that scrapes every node of a Ray cluster, as YAML.

    Args:
        address: Address of the head; else `RAY_ADDRESS`, else the cluster of this machine.

    Raises:
        SpecError: There is no cluster, or no node of it exports metrics.
        MissingExtraError: Ray is not installed.
    """
    import yaml

    with connected(address) as ray:
        targets = sorted(endpoints(ray.nodes()).values())
    if not targets:
        raise SpecError(
            "no node of this Ray cluster exports metrics",
            "pip install 'headrace[metrics]' on every machine, and restart Ray",
        )
    scraped = {"job_name": "ray", "static_configs": [{"targets": targets}]}
    config = {"global": {"scrape_interval": _EVERY}, "scrape_configs": [scraped]}
    return str(yaml.safe_dump(config, sort_keys=False))


def endpoints(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Metrics endpoints in `ray.nodes()`, by node id; only `ray[default]` exports metrics."""
    return {
        node["NodeID"]: f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
        for node in nodes
        if node.get("Alive") and node.get("MetricsExportPort", 0) > 0
    }


def endpoint_here() -> str | None:
    """Metrics endpoint of this machine's Ray node; Ray must be connected."""
    import ray

    return endpoints(ray.nodes()).get(ray.get_runtime_context().get_node_id())
