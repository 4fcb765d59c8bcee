"""What is known of a run's times and network, from its plan or from looking at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Role
from headrace.core.units import format_bytes_per_s

TaskKind = tuple[Role, str]
"""What a task does, and the class of its machine."""


@dataclass(frozen=True)
class Figures:
    """Times of a run.

    Attributes:
        iteration_time_s: From the end of an iteration to the end of the next, in steady state.
        task_times_s: Mean time of each kind of task.
    """

    iteration_time_s: float
    task_times_s: Mapping[TaskKind, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Window:
    """Some iterations of a run, one after the other.

    Attributes:
        first: The first iteration ...
        last: ... and the last one.
        figures: What was measured of them.
    """

    first: int
    last: int
    figures: Figures


@dataclass(frozen=True)
class Peak:
    """The most that went through a machine's network card while it was put to the test."""

    in_bytes_per_s: float
    out_bytes_per_s: float


@dataclass(frozen=True)
class NicChange:
    """A direction of a network card that is not what the cluster file says.

    Attributes:
        nic: E.g. `m2 in`.
        before: Bytes per second that were known.
        now: Bytes per second that were measured.
    """

    nic: str
    before: float
    now: float

    def __str__(self) -> str:
        now, before = format_bytes_per_s(self.now), format_bytes_per_s(self.before)
        return f"{self.nic} carries {now}, not {before}"


def with_peaks(
    cluster: Cluster, peaks: Mapping[str, Peak], threshold: float
) -> tuple[Cluster, tuple[NicChange, ...]]:
    """A cluster with the bandwidth that its network cards were seen to have.

    A card that carried more than is known of it is faster. One that carried less is slower only if
    some other card could have taken or sent more: a fast card among slow ones never shows what it
    can do.

    Args:
        cluster: What is known.
        peaks: What was measured, by machine; those that are missing stay as they are.
        threshold: Up to which relative difference a card stays as it is.

    Returns:
        The cluster, and what has changed.
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
