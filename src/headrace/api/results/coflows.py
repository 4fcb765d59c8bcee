"""Result of simulating a graph of coflows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headrace.core.coflows import CoflowGraph
from headrace.core.units import format_seconds
from headrace.observability.nics import NicSummary, nic_summary


@dataclass(frozen=True)
class Span:
    """When a task or a coflow started and ended, in seconds."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s


@dataclass(frozen=True, repr=False)
class CoflowSimulation:
    """Result of simulating a graph of coflows.

    Attributes:
        graph: Tasks and coflows.
        policy: Name of the flow policy.
        makespan_s: End of the last task.
        num_events: Completions of tasks and of flows between machines.
        tasks: Start and end of every task, by name.
        coflows: Start of the first and end of the last flow of every coflow, by name.
        in_bytes: Bytes received per machine.
        out_bytes: Bytes sent per machine.
    """

    graph: CoflowGraph
    policy: str
    makespan_s: float
    num_events: int
    tasks: dict[str, Span]
    coflows: dict[str, Span]
    in_bytes: np.ndarray
    out_bytes: np.ndarray

    @cached_property
    def nics(self) -> NicSummary:
        """Utilisation of every NIC."""
        cluster = self.graph.cluster
        return nic_summary(
            tuple(machine.name for machine in cluster.hosts),
            self.in_bytes,
            self.out_bytes,
            cluster.nic_in_bytes_per_s(),
            cluster.nic_out_bytes_per_s(),
            self.makespan_s,
        )

    @property
    def bottleneck(self) -> str:
        """The busiest NIC, e.g. `m2 in`; empty without network traffic."""
        return self.nics.busiest

    def summary(self) -> dict[str, Any]:
        """Plain values with stable names: the output of `headrace simulate --coflows --json`."""
        nics = self.nics
        return {
            "name": self.graph.name,
            "policy": self.policy,
            "makespan_s": self.makespan_s,
            "num_events": self.num_events,
            "bottleneck": {
                "nic": nics.busiest or None,
                "utilisation": float(nics.busiest_utilisation),
            },
            "machines": [
                {
                    "name": machine.name,
                    "in_bytes": float(self.in_bytes[m]),
                    "out_bytes": float(self.out_bytes[m]),
                    "in_utilisation": float(nics.in_utilisation[m]),
                    "out_utilisation": float(nics.out_utilisation[m]),
                }
                for m, machine in enumerate(self.graph.cluster.hosts)
            ],
            "coflows": [
                {
                    "name": coflow.name,
                    "type": coflow.type,
                    "bin": coflow.bin,
                    "layer": coflow.layer,
                    "rank": rank,
                    "num_flows": len(coflow.flows),
                    "bytes": sum(flow.bytes for flow in coflow.flows),
                    "start_s": self.coflows[coflow.name].start_s,
                    "end_s": self.coflows[coflow.name].end_s,
                }
                for coflow, rank in zip(self.graph.coflows, self.graph.ranks, strict=True)
            ],
            "tasks": [
                {
                    "name": task.name,
                    "machine": task.machine,
                    "start_s": self.tasks[task.name].start_s,
                    "end_s": self.tasks[task.name].end_s,
                }
                for task in self.graph.tasks
            ],
        }

    def __repr__(self) -> str:
        num = len(self.graph.coflows)
        return (
            f"{format_seconds(self.makespan_s)} for {len(self.graph.tasks)} tasks and "
            f"{num} coflow{'' if num == 1 else 's'} under {self.policy}.\n{self.nics.sentence()}"
        )


@dataclass(frozen=True, repr=False)
class CoflowComparison:
    """Simulations of one graph of coflows under several flow policies.

    Attributes:
        simulations: One per policy, in the given order.
    """

    simulations: tuple[CoflowSimulation, ...]

    @property
    def best(self) -> CoflowSimulation:
        """The simulation with the smallest makespan; the first of equal ones."""
        return min(self.simulations, key=lambda each: each.makespan_s)

    def relative_makespan(self, simulation: CoflowSimulation) -> float:
        """Makespan relative to the best one."""
        best_s = self.best.makespan_s
        return simulation.makespan_s / best_s if best_s > 0 else 1.0

    def summary(self) -> dict[str, Any]:
        """Plain values: the output of `headrace simulate --coflows --compare --json`."""
        keys = ("policy", "makespan_s", "num_events", "bottleneck")
        return {
            "name": self.best.graph.name,
            "best": self.best.policy,
            "policies": [
                {key: summary[key] for key in keys}
                | {"relative_makespan": self.relative_makespan(each)}
                for each, summary in ((each, each.summary()) for each in self.simulations)
            ],
        }
