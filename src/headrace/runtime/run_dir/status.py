"""What a run says of itself while it runs: `status.json` in its folder."""

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
    """How far a run is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self in (RunState.DONE, RunState.FAILED, RunState.INTERRUPTED)


class TaskState(StrEnum):
    """How far a task is."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


class MachineStatus(Value):
    """A machine, as its network card was seen last.

    Attributes:
        name: As in the cluster file.
        address: Of its Ray node.
        nic_in_bytes_per_s: What came in of late; nothing if not measured yet.
        nic_out_bytes_per_s: What went out of late.
    """

    name: str
    address: str = ""
    nic_in_bytes_per_s: _Amount | None = None
    nic_out_bytes_per_s: _Amount | None = None


class TaskStatus(Value):
    """A task, as its shell saw it last.

    Attributes:
        name: `store0`, `sampler1.0`, `trainer2`.
        role: What it does.
        machine: Where it is.
        state: How far it is.
        pid: Of its process, on its machine.
        waits_for: Whom or what it waits for, e.g. `sampler1.0`; empty if it does not wait.
        iteration: The one that it works on.
        busy_share: Share of the time of late in which it computed.
        rss_bytes: Memory of its process.
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


class Failure(Value):
    """Why a run failed.

    Attributes:
        problem: What was asked and what was found.
        remedy: What to try.
    """

    problem: str
    remedy: str


class Status(Value):
    """A run as of one moment.

    Attributes:
        version: Of the file format.
        run_id: Name of the run's folder.
        state: How far the run is.
        since_s: When it began, in seconds since 1970.
        updated_s: When this was written, in seconds since 1970.
        job: What the job is called.
        attempt: From 1; how often it was begun or gone on with.
        restarts: How often a task was started again, all others waiting.
        last_decision: What was done about the last fault; empty if there was none.
        iterations: How many are done.
        epoch: The one that it is in.
        figures: What the script reported last.
        samples_per_s: Seeds per second of all trainers together.
        idle_share: Share of the time in which trainers wait for batches.
        waits_for: What they wait for most; empty if for nothing.
        machines: Those of the cluster, in order.
        tasks: Those of the plan, in order.
        error: Why it failed, if it did.
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
    machines: tuple[MachineStatus, ...] = ()
    tasks: tuple[TaskStatus, ...] = ()
    error: Failure | None = None
