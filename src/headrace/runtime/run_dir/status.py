"""`status.json` in the run folder: the current status of a run."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from headrace.core.job import Role
from headrace.core.units import Count, Number
from headrace.core.values import Value

_Share = Annotated[Number, Field(ge=0, le=1)]
_Amount = Annotated[Number, Field(ge=0)]
_Num = Annotated[Count, Field(ge=0)]


class RunState(StrEnum):
    """State of a run."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self in (RunState.DONE, RunState.FAILED, RunState.INTERRUPTED)


class TaskState(StrEnum):
    """State of a task."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


class MachineStatus(Value):
    """Status of a machine and its NIC.

    Attributes:
        name: Name in the cluster file.
        address: Address of its Ray node.
        nic_in_bytes_per_s: Recent receive rate; None if not measured yet.
        nic_out_bytes_per_s: Recent send rate.
    """

    name: str
    address: str = ""
    nic_in_bytes_per_s: _Amount | None = None
    nic_out_bytes_per_s: _Amount | None = None


class TaskStatus(Value):
    """Status of a task, as last reported by its actor.

    Attributes:
        name: `store0`, `sampler1.0`, `trainer2`.
        role: Role of the task.
        machine: Machine of the task.
        state: State of the task.
        pid: Process id on its machine.
        waits_for: What blocks the task, e.g. `sampler1.0`; empty if nothing does.
        iteration: Current iteration.
        busy_share: Recent share of time in which it computed.
        rss_bytes: Resident memory of its process.
        peak_bytes: Largest memory that its process itself has allocated in this attempt, without
            cached files and shared memory; polled.
    """

    name: str
    role: Role
    machine: str
    state: TaskState = TaskState.WAITING
    pid: int | None = None
    waits_for: str = ""
    iteration: _Num | None = None
    busy_share: _Share | None = None
    rss_bytes: _Amount | None = None
    peak_bytes: _Amount | None = None


class Failure(Value):
    """Why a run failed.

    Attributes:
        problem: What happened.
        remedy: What to try.
    """

    problem: str
    remedy: str


class Status(Value):
    """Status of a run.

    Attributes:
        version: Version of the file format.
        run_id: Name of the run folder.
        state: State of the run.
        since_s: Start time, in seconds since 1970.
        updated_s: Time of this status, in seconds since 1970.
        job: Name of the job.
        attempt: Number of the attempt, from 1; each resume adds one.
        restarts: Number of task restarts within attempts.
        last_decision: Latest decision of the recovery policy; empty if there was no fault.
        iterations: Completed iterations.
        epoch: Current epoch.
        figures: Latest figures reported by the script.
        samples_per_s: Seeds per second of all trainers.
        idle_share: Share of time in which trainers wait for batches.
        waits_for: Main cause of waiting; empty if there is none.
        epoch_bytes: Bytes between machines per epoch, by kind: `features`, `structure`, `batches`,
            `gradients`, `rows`; empty until they are known.
        cache_hit_rate: Share of the rows of other machines that samplers' caches had; None without
            caches.
        machines: Machines of the cluster, in order.
        tasks: Tasks of the plan, in order.
        error: Why the run failed, if it did.
    """

    version: Literal[1] = 1
    run_id: str
    state: RunState = RunState.STARTING
    since_s: float
    updated_s: float
    job: str = ""
    attempt: Annotated[Count, Field(ge=1)] = 1
    restarts: _Num = 0
    last_decision: str = ""
    iterations: _Num = 0
    epoch: _Num = 0
    figures: Mapping[str, bool | int | float | str] = Field(default_factory=dict)
    samples_per_s: _Amount | None = None
    idle_share: _Share | None = None
    waits_for: str = ""
    epoch_bytes: Mapping[str, _Amount] = Field(default_factory=dict)
    cache_hit_rate: _Share | None = None
    machines: tuple[MachineStatus, ...] = ()
    tasks: tuple[TaskStatus, ...] = ()
    error: Failure | None = None
