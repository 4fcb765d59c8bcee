"""Trace of a simulation or run: task executions and network flows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.full_graph import RowSwap
from headrace.core.units import format_seconds
from headrace.core.views import Picture, view

TRACE_VERSION = 1
"""Version of the trace file format."""


@dataclass(frozen=True)
class Executions:
    """Task executions, one row each, sorted by start."""

    task: np.ndarray
    iteration: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray


@dataclass(frozen=True)
class Flows:
    """Flows between machines, one row each, sorted by start; excludes traffic within a machine."""

    src: np.ndarray
    dst: np.ndarray
    iteration: np.ndarray
    num_bytes: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray


@dataclass(frozen=True)
class NicUse:
    """Throughput per NIC over time: row i holds from `time_s[i]` to `time_s[i + 1]`."""

    time_s: np.ndarray
    in_bytes_per_s: np.ndarray
    out_bytes_per_s: np.ndarray


@dataclass(frozen=True)
class Mark:
    """A decision logged during a run, such as restarting a lost task."""

    at_s: float
    text: str


@dataclass(frozen=True, repr=False)
class Trace:
    """Trace of one simulation or run; displayed as a Gantt chart in notebooks.

    Attributes:
        task_names: Name per task.
        task_roles: Role name per task.
        task_machines: Machine index per task.
        machine_names: Name per machine.
        nic_in_bytes_per_s: Incoming bandwidth per machine.
        nic_out_bytes_per_s: Outgoing bandwidth per machine.
        executions: Task executions.
        flows: Flows between machines.
        nic_use: NIC throughput over time, if recorded.
        local: Transfers within a machine, if recorded; their times are those of use.
        marks: Logged decisions.
        seeds: Seeds by sampler and iteration, if recorded; 0 where unknown.
        swaps: Swaps of rows in an epoch of a full-graph run.
    """

    task_names: tuple[str, ...]
    task_roles: tuple[str, ...]
    task_machines: np.ndarray
    machine_names: tuple[str, ...]
    nic_in_bytes_per_s: np.ndarray
    nic_out_bytes_per_s: np.ndarray
    executions: Executions
    flows: Flows
    nic_use: NicUse | None = None
    local: Flows | None = None
    marks: tuple[Mark, ...] = ()
    seeds: np.ndarray | None = None
    swaps: tuple[RowSwap, ...] = ()

    @property
    def makespan_s(self) -> float:
        """End of the last task execution (eq. 16)."""
        return float(self.executions.end_s.max(initial=0.0))

    def gantt(self, first: int | None = None, last: int | None = None) -> Picture:
        """Draw iterations as a Gantt chart: HTML in a notebook, text in a terminal.

        Args:
            first: First iteration; without `first` and `last`, all of a short trace, otherwise
                some typical ones.
            last: Last iteration.

        Raises:
            SpecError: The trace has no such iterations.

        Example:
            >>> import headrace
            >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
            >>> cluster = headrace.Cluster(machines=machines)
            >>> job = headrace.Job(trainers=2, batch_size=100, iterations=20)
            >>> trace = headrace.simulate(cluster, job).trace()
            >>> print(trace.gantt(2, 3).text(60))
            Iterations 2 to 3 in 99.1 ms (digits: iterations, blocks: network use)
            m-0
                       in |████████████████████████████████████████████
                   store0 |333333333333           4444444444444       5
               sampler0.0 |                      22                 33
                 trainer0 |                       22                  3
                      out |▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▄▅▅▅▅▅▅▅
            m-1
                       in |████████████████████████████████████████████
                   store1 |333333333333           4444444444444       5
               sampler1.0 |                  22                  33
                 trainer1 |                    2                   3
                      out |▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄
            m-2
                       in |
                   store2 |333333333333           4444444444444       5
                      out |████████████████████████████████████████████
                          |0                                    99.1 ms
        """
        picture: Picture = view("gantt")(self, first, last)
        return picture

    def __repr__(self) -> str:
        num = int(self.executions.iteration.max(initial=-1)) + 1
        return (
            f"<Trace of {num} iterations on {len(self.machine_names)} machines: "
            f"{len(self.executions.task):,} executions and {len(self.flows.src):,} flows in "
            f"{format_seconds(self.makespan_s)}>"
        )

    def _repr_html_(self) -> str:
        return str(view("html")(self))


@dataclass(frozen=True)
class ClockOffset:
    """Seconds to add to remote times to get local times, and the maximum error."""

    offset_s: float
    uncertainty_s: float
