"""What Prometheus needs to know of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.errors import SpecError
from headrace.runtime.cluster.connection import connected

# Ray's processes tell their node every 10 s.
_EVERY = "10s"


def prometheus_config(address: str | None) -> str:
    """A configuration that scrapes every node of a Ray cluster, as YAML.

    Args:
        address: Of the head; else as `RAY_ADDRESS` says, else the cluster of this machine.

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
            "pip install 'headrace[metrics]' on every machine, and start Ray again",
        )
    scraped = {"job_name": "ray", "static_configs": [{"targets": targets}]}
    config = {"global": {"scrape_interval": _EVERY}, "scrape_configs": [scraped]}
    return str(yaml.safe_dump(config, sort_keys=False))


def endpoints(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Where each living Ray node exports metrics, by its id; nothing for a node that does not.

    Nodes export if Ray was installed as `ray[default]`.

    Args:
        nodes: As `ray.nodes()` gives them.
    """
    return {
        node["NodeID"]: f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
        for node in nodes
        if node.get("Alive") and node.get("MetricsExportPort", 0) > 0
    }


def endpoint_here() -> str | None:
    """Where this machine's Ray node exports metrics; Ray must be connected."""
    import ray

    return endpoints(ray.nodes()).get(ray.get_runtime_context().get_node_id())
