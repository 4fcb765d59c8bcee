"""Discovers the machines of a live Ray cluster and measures its network.

Bandwidth is measured over TCP between actors, one per node. In each round a machine is in at most
one pair, first in one direction, then in the other. The result of a machine is its best rate with
any peer, because a slow peer limits the pair.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.cluster import Cluster
from headrace.core.errors import RunError, SpecError
from headrace.core.units import format_bytes_per_s
from headrace.policies.drift.figures import Peak
from headrace.runtime.cluster import bandwidth_probe
from headrace.runtime.cluster.cluster_file import (
    Bandwidth,
    DiscoveredNode,
    cluster_of,
    in_order,
    names_of,
    tournament,
)
from headrace.runtime.cluster.connection import connected
from headrace.runtime.cluster.nodes import Node

NUM_STREAMS = 4
"""TCP streams per measurement: one does not saturate a fast NIC."""

DURATION_S = 0.6
"""Duration of a measurement; the first quarter is discarded."""

MAX_ROUNDS = 15
"""Maximum peers per machine: all of them in clusters of up to 16 machines."""

_START_S = 240.0
_CALL_S = 90.0

Log = Callable[[str], None]


@dataclass(frozen=True)
class Discovery:
    """A discovered cluster, with notes on how its bandwidth was determined."""

    cluster: Cluster
    notes: tuple[str, ...]


def discover(
    address: str | None, log: Log, measure: bool = True, bandwidth_bytes_per_s: float | None = None
) -> Discovery:
    """Discover the machines of a live Ray cluster.

    Args:
        address: Address of the head; the cluster of this machine by default.
        log: Receives progress lines.
        measure: Whether to measure bandwidth; else the NICs' link speeds are used.
        bandwidth_bytes_per_s: Bandwidth of every machine, instead of measuring.

    Raises:
        MissingExtraError: Ray is not installed.
        RunError: A machine does not respond.
        SpecError: There is no cluster, or the bandwidth of a machine is unknown.
    """
    with connected(address) as ray:
        all_nodes = [_found(node) for node in ray.nodes() if node["Alive"]]
        nodes = in_order([node for node in all_nodes if node.can_work])
        notes = [
            f"{node.hostname} ({node.address}) is excluded: its Ray node has no CPU or GPU"
            for node in all_nodes
            if not node.can_work
        ]
        log(f"found {len(nodes)} machines")
        probes = _Probes(ray, nodes)
        try:
            nodes = probes.facts()
            if bandwidth_bytes_per_s is not None:
                bandwidths = [Bandwidth(bandwidth_bytes_per_s, bandwidth_bytes_per_s)] * len(nodes)
                notes.append("bandwidth: as given, not measured")
            elif measure and len(nodes) > 1:
                bandwidths, more = probes.measure(log)
                notes += more
            else:
                bandwidths = [_link_bandwidth(node, name) for name, node in _named(nodes)]
                notes.append("bandwidth: link speed of the NICs, not measured")
        finally:
            probes.end()
    return Discovery(cluster_of(nodes, bandwidths), tuple(notes))


def measure_peaks(nodes: Sequence[Node], max_rounds: int = 3) -> dict[str, Peak]:
    """Measure the peak rates of the NICs of a running Ray cluster, by machine.

    Pairs of machines send at full speed beside the other traffic, and every machine counts all
    bytes of its NIC. Raises RunError if a machine does not respond.
    """
    import ray

    probes = _Probes(
        ray, [DiscoveredNode(node.node_id, node.machine, node.address) for node in nodes]
    )
    try:
        peaks = probes.peaks(max_rounds)
    finally:
        probes.end()
    return {node.machine: peak for node, peak in zip(nodes, peaks, strict=True)}


class _Probes:
    """Probe actors, one per node."""

    def __init__(self, ray: Any, nodes: Sequence[DiscoveredNode]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, self._nodes = ray, list(nodes)
        self._names = names_of(nodes)
        # By value, so that nodes do not need headrace.
        ray.cloudpickle.register_pickle_by_value(bandwidth_probe)
        actor = ray.remote(num_cpus=0, max_concurrency=4, max_restarts=0)(bandwidth_probe.Probe)
        self._actors = [
            actor.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)
            ).remote(node.address)
            for node in nodes
        ]

    def end(self) -> None:
        """Kill the actors."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.cloudpickle.unregister_pickle_by_value(bandwidth_probe)

    def facts(self) -> list[DiscoveredNode]:
        """Query the hardware of every machine."""
        refs = [actor.facts.remote() for actor in self._actors]
        for name, node, answer in zip(self._names, self._nodes, refs, strict=True):
            self._get(answer, f"machine {name} ({node.address}) did not respond", _START_S)
        self._nodes = [
            replace(node, **self._ray.get(answer))
            for node, answer in zip(self._nodes, refs, strict=True)
        ]
        return self._nodes

    def measure(self, log: Log) -> tuple[list[Bandwidth], list[str]]:
        """Measure all pairs; return bandwidths and notes on failures."""
        best_in, best_out = ([0.0] * len(self._nodes) for _ in range(2))
        notes: list[str] = []
        rounds = list(tournament(len(self._nodes), MAX_ROUNDS))
        for number, pairs in enumerate(rounds, 1):
            for turned in (False, True):
                flows = [(b, a) if turned else (a, b) for a, b in pairs]
                for (src, dst), (rate, problem) in zip(flows, self._flows(flows), strict=True):
                    best_out[src] = max(best_out[src], rate)
                    best_in[dst] = max(best_in[dst], rate)
                    if problem:
                        way = f"{self._names[src]} to {self._names[dst]}"
                        notes.append(f"not measured from {way}: {problem}")
            fastest = max(*best_in, *best_out)
            log(
                f"round {number} of {len(rounds)}: {len(pairs)} pairs, both directions; "
                f"best so far {format_bytes_per_s(fastest)}"
            )
        notes.insert(
            0,
            f"bandwidth: measured, best over up to {len(rounds)} peers, one direction at a time, "
            f"{NUM_STREAMS} TCP streams for {DURATION_S:g} s",
        )
        bandwidths = []
        for (name, node), into, out in zip(_named(self._nodes), best_in, best_out, strict=True):
            if into and out:
                bandwidths.append(Bandwidth(into, out))
            else:
                bandwidths.append(_link_bandwidth(node, name))
                notes.append(f"bandwidth of {name}: link speed of its NIC")
        return bandwidths, notes

    def peaks(self, max_rounds: int) -> list[Peak]:
        """Saturate the NICs and return their peak rates."""
        begun = [actor.count.remote() for actor in self._actors]
        for name, answer in zip(self._names, begun, strict=True):
            self._get(answer, f"machine {name} did not start counting", _START_S)
        for pairs in tournament(len(self._nodes), max_rounds):
            self._flows(pairs)
            self._flows([(b, a) for a, b in pairs])
        counted = [actor.peaks.remote() for actor in self._actors]
        return [
            Peak(*self._get(answer, f"machine {name} did not report its counters", _CALL_S))
            for name, answer in zip(self._names, counted, strict=True)
        ]

    def _flows(self, flows: Sequence[tuple[int, int]]) -> list[tuple[float, str]]:
        """Rates of concurrent flows between distinct machines."""
        setting = (NUM_STREAMS, DURATION_S)
        tokens = [secrets.token_bytes(bandwidth_probe.TOKEN_BYTES) for _ in flows]
        listening = [
            self._actors[dst].listen.remote(token, *setting)
            for (_, dst), token in zip(flows, tokens, strict=True)
        ]
        ports = [
            self._get(port, f"machine {self._names[dst]} did not open a port", _CALL_S)
            for (_, dst), port in zip(flows, listening, strict=True)
        ]
        rates = [self._actors[dst].bytes_per_s.remote() for _, dst in flows]
        sent = [
            self._actors[src].send.remote(self._nodes[dst].address, port, token, *setting)
            for (src, dst), port, token in zip(flows, ports, tokens, strict=True)
        ]
        found = []
        for (src, dst), rate, problem in zip(flows, rates, sent, strict=True):
            what = f"measuring from {self._names[src]} to {self._names[dst]} did not complete"
            found.append((self._get(rate, what, _CALL_S), self._get(problem, what, _CALL_S)))
        return found

    def _get(self, answer: Any, problem: str, timeout_s: float) -> Any:
        from ray.exceptions import GetTimeoutError, RayError

        try:
            return self._ray.get(answer, timeout=timeout_s)
        except GetTimeoutError:
            raise RunError(
                f"{problem} within {timeout_s:g} s", "see `ray status`, or use --no-bandwidth"
            ) from None
        except RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise RunError(f"{problem}: {reason}", "see `ray status` and Ray's logs") from None


def _found(node: dict[str, Any]) -> DiscoveredNode:
    return DiscoveredNode(
        node_id=node["NodeID"],
        hostname=node["NodeManagerHostname"],
        address=node["NodeManagerAddress"],
        host_label=node.get("Labels", {}).get("host", ""),
        resources=dict(node["Resources"]),
    )


def _named(nodes: Sequence[DiscoveredNode]) -> list[tuple[str, DiscoveredNode]]:
    return list(zip(names_of(nodes), nodes, strict=True))


def _link_bandwidth(node: DiscoveredNode, name: str) -> Bandwidth:
    if not node.link_bytes_per_s:
        raise SpecError(
            f"the NIC of {name} ({node.address}) does not report its link speed",
            "give the bandwidth of all machines: --bandwidth 10Gbps",
        )
    return Bandwidth(node.link_bytes_per_s, node.link_bytes_per_s)
