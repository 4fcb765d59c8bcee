"""Look at a run, while it runs or later, from what lies in its folder."""

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
    "look_at",
    "nic_limits",
    "runs_folder",
]

INTERRUPTED = 130

NicLimits = Mapping[str, tuple[float, float]]
"""Bytes per second in and out that each machine's network card can do, by machine."""


@dataclass(frozen=True)
class RunView:
    """A run as of one moment.

    Attributes:
        folder: Where its files are.
        status: What it said last.
        driver: What is known of the process that drives it.
        now_s: The moment, in seconds since 1970.
        limits: What network cards can do, as far as known.
    """

    folder: RunDirectory
    status: Status
    driver: Driver
    now_s: float
    limits: NicLimits = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.driver in (Driver.ENDED, Driver.DIED)

    @property
    def elapsed_s(self) -> float:
        """How long it runs, or ran."""
        end_s = self.status.updated_s if self.is_over else self.now_s
        return max(0.0, end_s - self.status.since_s)

    @property
    def trouble(self) -> tuple[str, str] | None:
        """What is wrong with the run, and what to try."""
        error = self.status.error
        if error is not None:
            return error.problem, error.remedy
        if self.driver is Driver.DIED:
            name = self.folder.run_id
            return (
                f"the driver ({self.folder.driver_name()}) is gone, the run ended with it while "
                f"{self.status.state}",
                f"see `headrace logs {name} --errors`, then `headrace run --resume {name}`",
            )
        if self.driver is Driver.SILENT:
            silent_s = self.now_s - self.status.updated_s
            return (
                f"the driver ({self.folder.driver_name()}) lives but said nothing for "
                f"{silent_s:.0f} s",
                "see whether its machine is overloaded or its disk is full",
            )
        return None

    @property
    def exit_code(self) -> int:
        """What `headrace run` would end with: 0 if all is well so far."""
        if self.status.state is RunState.INTERRUPTED:
            return INTERRUPTED
        is_broken = self.status.state is RunState.FAILED or self.driver is Driver.DIED
        return RunError.exit_code if is_broken else 0

    def summary(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return self.status.model_dump(mode="json") | {
            "driver": self.driver.value,
            "elapsed_s": self.elapsed_s,
            "folder": str(self.folder.path),
        }


def look_at(folder: RunDirectory, now_s: float, limits: NicLimits | None = None) -> RunView:
    """See how a run is doing.

    Raises:
        SpecError: Its status cannot be read.
    """
    status = folder.read_status()
    driver = folder.driver(status, now_s)
    if driver is Driver.DIED:
        # It may have ended as it should between the two looks.
        status = folder.read_status()
        driver = folder.driver(status, now_s)
    return RunView(folder, status, driver, now_s, nic_limits(folder) if limits is None else limits)


def nic_limits(folder: RunDirectory) -> NicLimits:
    """What network cards can do, as the run's plan has it; nothing if it cannot be read."""
    try:
        plan = json.loads(Path(folder.plan).read_bytes())
        cluster = Cluster.model_validate(plan["cluster"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return {}
    return {machine.name: (machine.nic_in, machine.nic_out) for machine in cluster.hosts}
