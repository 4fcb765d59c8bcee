"""Status of a run, read from its directory during or after the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.core.cluster import Cluster
from headrace.core.errors import RunError
from headrace.runtime.protocol.trainer_messages import line_of
from headrace.runtime.run_dir.run_dir import Driver, RunDirectory, find_run, list_runs, runs_folder
from headrace.runtime.run_dir.status import (
    MachineStatus,
    RunState,
    Status,
    TaskState,
    TaskStatus,
)

__all__ = [
    "Driver",
    "MachineStatus",
    "NicLimits",
    "RunDirectory",
    "RunState",
    "RunView",
    "Status",
    "TaskState",
    "TaskStatus",
    "find_run",
    "line_of",
    "list_runs",
    "nic_limits",
    "runs_folder",
    "view_run",
]

INTERRUPTED = 130

NicLimits = Mapping[str, tuple[float, float]]
"""Ingress and egress NIC bandwidth in bytes per second, by machine."""


@dataclass(frozen=True)
class RunView:
    """Status of a run at `now_s` (seconds since 1970); `limits` are NIC bandwidths."""

    folder: RunDirectory
    status: Status
    driver: Driver
    now_s: float
    limits: NicLimits = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.driver in (Driver.ENDED, Driver.DIED)

    @property
    def elapsed_s(self) -> float:
        """Duration of the run so far, or in total."""
        end_s = self.status.updated_s if self.is_over else self.now_s
        return max(0.0, end_s - self.status.since_s)

    @property
    def trouble(self) -> tuple[str, str] | None:
        """Problem and remedy, if any."""
        error = self.status.error
        if error is not None:
            return error.problem, error.remedy
        if self.driver is Driver.DIED:
            name = self.folder.run_id
            return (
                f"the driver ({self.folder.driver_name()}) is gone; the run ended with it in state "
                f"{self.status.state}",
                f"see `headrace logs {name} --errors`, then `headrace run --resume {name}`",
            )
        if self.driver is Driver.SILENT:
            silent_s = self.folder.status_age_s
            return (
                f"the driver ({self.folder.driver_name()}) is alive but wrote no status for "
                f"{silent_s:.0f} s",
                "check whether its machine is overloaded or its disk is full",
            )
        return None

    @property
    def exit_code(self) -> int:
        """Exit code that `headrace run` would return: 0 if there is no problem so far."""
        if self.status.state is RunState.INTERRUPTED:
            return INTERRUPTED
        is_broken = self.status.state is RunState.FAILED or self.driver is Driver.DIED
        return RunError.exit_code if is_broken else 0

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return self.status.model_dump(mode="json") | {
            "driver": self.driver.value,
            "elapsed_s": self.elapsed_s,
            "folder": str(self.folder.path),
        }


def view_run(folder: RunDirectory, now_s: float, limits: NicLimits | None = None) -> RunView:
    """Read the status of a run."""
    status = folder.read_status()
    driver = folder.driver(status)
    if driver is Driver.DIED:
        # It may have ended normally between the two reads.
        status = folder.read_status()
        driver = folder.driver(status)
    return RunView(folder, status, driver, now_s, nic_limits(folder) if limits is None else limits)


def nic_limits(folder: RunDirectory) -> NicLimits:
    """NIC bandwidths of the run's plan; empty if the plan cannot be read."""
    try:
        plan = json.loads(Path(folder.plan).read_bytes())
        cluster = Cluster.model_validate(plan["cluster"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return {}
    return {machine.name: (machine.nic_in, machine.nic_out) for machine in cluster.hosts}
