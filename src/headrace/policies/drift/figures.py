"""Task times and network bandwidths of a run, from its plan or measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Role
from headrace.core.units import format_bytes_per_s

TaskKind = tuple[Role, str]
"""Role of a task and class of its machine."""


@dataclass(frozen=True)
class Figures:
    """Steady-state time per iteration, and mean time per kind of task."""

    iteration_time_s: float
    task_times_s: Mapping[TaskKind, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Window:
    """Consecutive iterations of a run, from `first` to `last`, and their measured times."""

    first: int
    last: int
    figures: Figures


@dataclass(frozen=True)
class Peak:
    """Highest measured throughput of a machine's NIC under load."""

    in_bytes_per_s: float
    out_bytes_per_s: float


@dataclass(frozen=True)
class NicChange:
    """A NIC direction, e.g. `m2 in`, whose bandwidth differs from the cluster file."""

    nic: str
    before: float
    now: float

    def __str__(self) -> str:
        now, before = format_bytes_per_s(self.now), format_bytes_per_s(self.before)
        return f"{self.nic} carries {now}, not {before}"


def with_peaks(
    cluster: Cluster, peaks: Mapping[str, Peak], threshold: float
) -> tuple[Cluster, tuple[NicChange, ...]]:
    """Cluster with measured NIC bandwidths, and the changes.

    A NIC with a higher throughput than known is faster. One with a lower throughput is slower only
    if some other NIC could have sent or received more: a fast NIC among slow ones never reaches its
    limit. Relative differences up to `threshold` are ignored.
    """
    changes: list[NicChange] = []
    hosts = cluster.hosts

    def bandwidth(host: Machine, way: str, known: float, seen: float, others: float) -> float:
        expected = min(known, others)
        if seen <= 0 or expected / (1 + threshold) <= seen <= known * (1 + threshold):
            return known
        changes.append(NicChange(f"{host.name} {way}", known, seen))
        return seen

    def changed(host: Machine) -> Machine:
        peak = peaks.get(host.name)
        others = [other for other in hosts if other is not host]
        if peak is None or not others:
            return host
        most_out = max(other.nic_out for other in others)
        most_in = max(other.nic_in for other in others)
        nics = {
            "nic_in": bandwidth(host, "in", host.nic_in, peak.in_bytes_per_s, most_out),
            "nic_out": bandwidth(host, "out", host.nic_out, peak.out_bytes_per_s, most_in),
        }
        return host.model_copy(update=nics)

    found = Cluster(machines=tuple(map(changed, hosts)))
    return (found if changes else cluster), tuple(changes)
