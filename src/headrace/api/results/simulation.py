"""Results of simulations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.core.placement import Placement, PlacementFile
from headrace.core.profile import Profile
from headrace.core.tasks import ROLES, TaskGraph
from headrace.core.trace import Trace
from headrace.core.units import format_seconds
from headrace.core.views import Picture
from headrace.observability.cells import comparison_cell, simulation_cell
from headrace.observability.nics import NicSummary, nic_summary
from headrace.simulator import Instance, Outcome, trace_of
from headrace.simulator import simulate as simulate_instance

_SMALL = 10_000_000
"""Completions x task pairs up to which the general kernel, fast to compile, takes under 0.5 s."""


def run_simulator(instance: Instance, policy: str, planned: bool, record: bool = False) -> Outcome:
    """Simulate a placed job with the fastest kernel for its size."""
    # A plan's prediction is bit-exact, so plans use the kernel that made the prediction.
    work = instance.num_iterations * (instance.num_tasks + instance.num_edges) * instance.num_edges
    return simulate_instance(
        instance, policy, record=record, general=work <= _SMALL and not planned
    )


@dataclass(frozen=True, repr=False)
class Simulation:
    """Result of a simulation; a table in notebooks, else plain text.

    Attributes:
        cluster: The machines.
        job: The job as given; `instance` has the simulated iterations and window.
        profile: Times and volumes of the job.
        placement: Placement of the tasks.
        placement_name: The method or file of the placement, or `given`.
        policy: Name of the flow policy.
        instance: Input of the simulator.
        graph: Tasks and edges of the job.
        outcome: Output of the simulator.
        iteration_time_s: Marginal time per iteration of a long job: (T(N) - T(H)) / (N - H), where
            T is the makespan, N the number of iterations and H = N // 2. T(H) is simulated
            separately: iteration ends within one simulation are biased when queues build up and
            drain at the end.
    """

    cluster: Cluster
    job: Job
    profile: Profile
    placement: Placement
    placement_name: str
    policy: str
    instance: Instance
    graph: TaskGraph
    planned: bool
    """Whether a plan is simulated."""
    outcome: Outcome
    iteration_time_s: float

    @property
    def makespan_s(self) -> float:
        """End of the last task of the last iteration."""
        return self.outcome.makespan_s

    @property
    def mean_iteration_time_s(self) -> float:
        """Makespan per iteration, including pipeline fill."""
        return self.makespan_s / self.instance.num_iterations

    @property
    def window(self) -> int | str:
        """The simulated run-ahead window K, or `unlimited`."""
        return self.instance.window or "unlimited"

    @cached_property
    def nics(self) -> NicSummary:
        """Utilisation of every NIC."""
        return nic_summary(
            tuple(machine.name for machine in self.cluster.hosts),
            self.outcome.in_bytes,
            self.outcome.out_bytes,
            self.instance.nic_in_bytes_per_s,
            self.instance.nic_out_bytes_per_s,
            self.makespan_s,
        )

    @property
    def bottleneck(self) -> str:
        """The busiest NIC, e.g. `m2 in`; empty without network traffic."""
        return self.nics.busiest

    def trace(self) -> Trace:
        """Trace of all task executions and flows; simulates again if times were not recorded."""
        outcome = self.outcome
        if outcome.record is None:
            outcome = run_simulator(self.instance, self.policy, self.planned, record=True)
        found = trace_of(self.instance, self.graph, outcome, self.cluster)
        return replace(found, swaps=self.job.swaps)

    def gantt(self, first: int | None = None, last: int | None = None) -> Picture:
        """Draw iterations as a Gantt chart: HTML in a notebook, text in a terminal.

        Args:
            first: First iteration; without `first` and `last`, all of a short simulation,
                otherwise some typical ones.
            last: Last iteration.

        Raises:
            SpecError: There are no such iterations.
        """
        return self.trace().gantt(first, last)

    def num_tasks(self) -> list[dict[str, int]]:
        """Tasks per role for every machine; layers and ring steps are part of their trainer."""
        counts: list[dict[str, int]] = [{} for _ in range(self.cluster.num_machines)]
        for task in range(self.graph.first_layer):
            role = ROLES[self.graph.role[task]].value
            here = counts[self.instance.task_machine[task]]
            here[role] = here.get(role, 0) + 1
        return counts

    def summary(self) -> dict[str, Any]:
        """Plain values with stable names: the output of `headrace simulate --json`."""
        nics, outcome = self.nics, self.outcome
        file = PlacementFile.of(self.placement, self.cluster)
        return {
            "policy": self.policy,
            "placement": self.placement_name,
            "iterations": self.instance.num_iterations,
            "window": self.window,
            "seed": self.instance.seed,
            "makespan_s": self.makespan_s,
            "iteration_time_s": self.iteration_time_s,
            "mean_iteration_time_s": self.mean_iteration_time_s,
            "num_events": outcome.num_events,
            "bottleneck": {
                "nic": nics.busiest or None,
                "utilisation": float(nics.busiest_utilisation),
            },
            "machines": [
                {
                    "name": machine.name,
                    "tasks": tasks,
                    "in_bytes": float(outcome.in_bytes[m]),
                    "out_bytes": float(outcome.out_bytes[m]),
                    "in_utilisation": float(nics.in_utilisation[m]),
                    "out_utilisation": float(nics.out_utilisation[m]),
                }
                for m, (machine, tasks) in enumerate(
                    zip(self.cluster.hosts, self.num_tasks(), strict=True)
                )
            ],
            "tasks": {
                "samplers": list(file.samplers),
                "trainers": list(file.trainers),
                "servers": list(file.servers),
            },
            "profile": {"source": self.profile.source, "note": self.profile.note},
        }

    def __repr__(self) -> str:
        return (
            f"{format_seconds(self.iteration_time_s)} per iteration; "
            f"{format_seconds(self.makespan_s)} for {self.instance.num_iterations} under "
            f"{self.policy}.\n{self.nics.sentence()}"
        )

    def _repr_html_(self) -> str:
        return simulation_cell(self.summary(), self.nics.sentence())


@dataclass(frozen=True, repr=False)
class Comparison:
    """Simulations of one placed job under several flow policies, with the same random draws.

    Attributes:
        simulations: One per policy, in the given order.
    """

    simulations: tuple[Simulation, ...]

    @property
    def best(self) -> Simulation:
        """The simulation with the smallest makespan; the first of equal ones."""
        return min(self.simulations, key=lambda each: each.makespan_s)

    def relative_makespan(self, simulation: Simulation) -> float:
        """Makespan relative to the best one."""
        best_s = self.best.makespan_s
        return simulation.makespan_s / best_s if best_s > 0 else 1.0

    def summary(self) -> dict[str, Any]:
        """Plain values: the output of `headrace simulate --compare --json`."""
        summaries = [each.summary() for each in self.simulations]
        same = ("placement", "iterations", "window", "seed", "tasks", "profile")
        differing = (
            *("policy", "makespan_s", "iteration_time_s", "mean_iteration_time_s"),
            *("num_events", "bottleneck"),
        )
        return {
            **{key: summaries[0][key] for key in same},
            "best": self.best.policy,
            "policies": [
                {key: summary[key] for key in differing}
                | {"relative_makespan": self.relative_makespan(each)}
                for each, summary in zip(self.simulations, summaries, strict=True)
            ],
        }

    def __repr__(self) -> str:
        return "\n".join(
            f"{each.policy:<10} {format_seconds(each.makespan_s):>10} "
            f"{self.relative_makespan(each) - 1:+8.1%}"
            for each in self.simulations
        )

    def _repr_html_(self) -> str:
        return comparison_cell(self.summary())
