"""Converts discovered nodes to a cluster file; independent of Ray."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError

_NAMES = {"CPU": "cpu", "GPU": "gpu", "memory": "memory"}
# Resources added by Ray: node addresses, object store, GPU types, placement groups.
_OF_RAY = re.compile(r"node:|object_store_memory$|accelerator_type:|bundle_group_|.*_group_\w+$")
_GIB, _MIB = 2.0**30, 2.0**20


@dataclass(frozen=True)
class DiscoveredNode:
    """A node of a Ray cluster.

    Attributes:
        host_label: Its label `host`, if any.
        resources: Ray resources by name.
        num_cores: Cores of the machine, which may differ from Ray's CPUs.
        link_bytes_per_s: Link speed of its NIC; 0 if unknown.
    """

    node_id: str
    hostname: str
    address: str
    host_label: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    cpu_model: str = ""
    num_cores: int = 1
    gpu_model: str = ""
    link_bytes_per_s: float = 0.0

    @property
    def kind(self) -> str:
        """Machine class, derived from CPU and GPU model."""
        words = [_slug(self.cpu_model), f"{self.num_cores}c"]
        if self.gpu_model and self.resources.get("GPU", 0) > 0:
            words.append(_slug(self.gpu_model))
        return "-".join(word for word in words if word)

    @property
    def can_work(self) -> bool:
        """Whether tasks can run there; the head of a managed cluster often has no CPUs."""
        return self.resources.get("CPU", 0) > 0 or self.resources.get("GPU", 0) > 0


@dataclass(frozen=True)
class Bandwidth:
    """Bandwidth of a machine's NIC, in bytes per second."""

    in_bytes_per_s: float
    out_bytes_per_s: float


def names_of(nodes: Sequence[DiscoveredNode]) -> list[str]:
    """Unique machine names: label `host`, else the host name; with the address if ambiguous."""
    # `find_nodes` matches machines by the same rule.
    wanted = [node.host_label or node.hostname or node.address for node in nodes]
    shared = {name for name, count in Counter(wanted).items() if count > 1}
    return [
        f"{name}-{node.address}" if name in shared else name
        for name, node in zip(wanted, nodes, strict=True)
    ]


def in_order(nodes: Sequence[DiscoveredNode]) -> list[DiscoveredNode]:
    """Nodes in natural order of their names: m2 before m10."""
    named = zip(names_of(nodes), nodes, strict=True)
    return [node for _, node in sorted(named, key=lambda each: _natural(each[0]))]


def tournament(num_players: int, max_rounds: int | None = None) -> Iterator[list[tuple[int, int]]]:
    """Round-robin schedule: rounds of disjoint pairs that cover every pair once."""
    # The circle method: one player is fixed, the others rotate.
    circle: list[int | None] = list(range(num_players))
    if num_players % 2:
        circle.append(None)
    half = len(circle) // 2
    num_rounds = max(0, len(circle) - 1)
    for _ in range(num_rounds if max_rounds is None else min(max_rounds, num_rounds)):
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(a, b) for a, b in pairs if a is not None and b is not None]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def cluster_of(nodes: Sequence[DiscoveredNode], bandwidths: Sequence[Bandwidth]) -> Cluster:
    """The cluster of discovered nodes; raises SpecError if there are none."""
    if not nodes:
        raise SpecError("no node of the Ray cluster has a CPU", "start Ray nodes with --num-cpus")
    return Cluster(
        machines=tuple(
            Machine(
                name=name,
                kind=node.kind,
                resources=_resources(node.resources),
                nic_in=_rounded(bandwidth.in_bytes_per_s),
                nic_out=_rounded(bandwidth.out_bytes_per_s),
                labels={"address": node.address},
            )
            for name, node, bandwidth in zip(names_of(nodes), nodes, bandwidths, strict=True)
        )
    )


def cluster_text(cluster: Cluster, comments: Sequence[str]) -> str:
    """A cluster file as YAML with units."""
    import yaml

    machines = [
        {
            "name": machine.name,
            "kind": machine.kind,
            "resources": {
                name: _size(amount) if name == "memory" else _plain(amount)
                for name, amount in machine.resources.items()
            },
            "nic_in": _rate(machine.nic_in),
            "nic_out": _rate(machine.nic_out),
            "labels": dict(machine.labels),
        }
        for machine in cluster.machines
    ]
    written: dict[str, Any] = {"version": cluster.version, "machines": machines}
    head = "".join(f"# {line}\n" for line in comments)
    return head + yaml.safe_dump(written, sort_keys=False, allow_unicode=True)


def _resources(resources: Mapping[str, float]) -> dict[str, float]:
    kept = {name: amount for name, amount in resources.items() if not _OF_RAY.match(name)}
    ordered = [*(name for name in _NAMES if name in kept), *sorted(kept.keys() - _NAMES.keys())]
    amounts = {_NAMES.get(name, name): float(kept[name]) for name in ordered}
    if "memory" in amounts:
        amounts["memory"] = amounts["memory"] // _MIB * _MIB  # round down
    return amounts


def _rounded(bytes_per_s: float) -> float:
    """Round to three digits of bits per second, the precision of a measurement."""
    return float(f"{bytes_per_s * 8:.3g}") / 8


def _rate(bytes_per_s: float) -> str:
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.4g}Gbps" if bits >= 1e9 else f"{bits / 1e6:.4g}Mbps"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / _MIB:.0f}MiB" if num_bytes % _GIB else f"{num_bytes / _GIB:.0f}GiB"


def _plain(amount: float) -> float | int:
    return int(amount) if amount == int(amount) else amount


def _slug(text: str) -> str:
    text = re.sub(r"\((r|tm)\)|@.*$|\b(cpu|processor|nvidia|\d+-core)\b", " ", text.lower())
    return re.sub(r"[^a-z0-9.]+", "-", text).strip("-.")


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", name)]
