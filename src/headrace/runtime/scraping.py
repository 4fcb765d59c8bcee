"""What Prometheus needs to know of a Ray cluster."""

from __future__ import annotations

from headrace.core.errors import SpecError
from headrace.runtime.connecting import connected
from headrace.runtime.metrics import endpoints

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
