"""Simulation results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.trace import NicUse


@dataclass(frozen=True)
class Record:
    """Times of all tasks and flows; `nan` for flows within one machine.

    Attributes:
        task_start_s: Shape (num_tasks, num_iterations).
        task_end_s: Shape (num_tasks, num_iterations).
        flow_start_s: Shape (num_edges, num_iterations); iteration of the producer.
        flow_end_s: Shape (num_edges, num_iterations); `nan` also for flows still open at the end.
        flow_bytes: Drawn volumes, shape (num_edges, num_iterations).
        nic_use: NIC throughput over time.
    """

    task_start_s: np.ndarray
    task_end_s: np.ndarray
    flow_start_s: np.ndarray
    flow_end_s: np.ndarray
    flow_bytes: np.ndarray
    nic_use: NicUse


@dataclass(frozen=True)
class Outcome:
    """Result of a simulation.

    Attributes:
        makespan_s: End of the last task of the last iteration (eq. 16).
        num_events: Task and flow completions.
        iteration_end_s: End of the last task per iteration.
        in_bytes: Bytes received per machine in completed flows.
        out_bytes: Bytes sent per machine in completed flows.
        record: All times, if recorded.
    """

    makespan_s: float
    num_events: int
    iteration_end_s: np.ndarray
    in_bytes: np.ndarray
    out_bytes: np.ndarray
    record: Record | None = None
