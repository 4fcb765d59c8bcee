"""Estimated memory of a job's tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from headrace.core.job import Job, Role
from headrace.core.values import Value

MEMORY = "memory"
"""Name of the resource."""

_NOT_ANONYMOUS = ("graph files", "queued")
"""Memory that is mapped from files or shared, and so not counted as a process' own."""


class TaskMemory(Value):
    """Peak memory of one task of a role.

    Attributes:
        role: The role.
        made_of: Bytes by what they are for.
        note: How sure the figures are.
    """

    role: Role
    made_of: Mapping[str, float]
    note: str = ""

    @property
    def total_bytes(self) -> float:
        """All of them."""
        return sum(self.made_of.values())

    @property
    def anonymous_bytes(self) -> float:
        """Those that the process allocates: without cached files and shared memory."""
        return sum(size for name, size in self.made_of.items() if name not in _NOT_ANONYMOUS)


class MachineMemory(Value):
    """Memory of all tasks of a machine.

    Attributes:
        machine: Name of the machine.
        tasks: Number of tasks by role.
        needed_bytes: What they need at their peaks.
        memory_bytes: What the cluster file says that the machine has; None if it does not.
    """

    machine: str
    tasks: Mapping[Role, int]
    needed_bytes: float
    memory_bytes: float | None = None

    @property
    def fits(self) -> bool:
        """Whether the machine has enough memory, or it is not known."""
        return self.memory_bytes is None or self.needed_bytes <= self.memory_bytes


class MemoryEstimate(Value):
    """Peak memory of a job's tasks.

    Attributes:
        tasks: One entry per role.
        machines: Sums by machine; empty without a plan.
        batch_size: Seeds of a trainer's batch.
        shape: Nodes and edges of the largest batch to expect.
        is_real: Whether a step was run because its shapes depend on values.
        is_full_graph: Whether the batch is the largest part of the full graph, without seeds.
        demands: Demands of the plan's job that are estimates, in bytes by role; empty without a
            plan, and if the cluster file has no memory.
    """

    version: int = Field(default=1, ge=1)
    tasks: tuple[TaskMemory, ...]
    machines: tuple[MachineMemory, ...] = ()
    batch_size: int
    shape: tuple[int, int]
    is_real: bool = False
    is_full_graph: bool = False
    demands: Mapping[Role, float] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _omit_unset_fields(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Plans of earlier versions do not have it.
        return {k: v for k, v in write(self).items() if (k, v) != ("is_full_graph", False)}

    def of(self, role: Role) -> TaskMemory:
        """Memory of a role."""
        return next(task for task in self.tasks if task.role is role)

    def without_estimates(self, job: Job) -> Job:
        """The job without the demands that are estimates."""
        demands = {
            role: {k: v for k, v in demand.items() if k != MEMORY or role not in self.demands}
            for role, demand in job.demands.items()
        }
        return job.model_copy(update={"demands": demands})

    def summary(self) -> dict[str, Any]:
        """Plain values, with sums."""
        found = self.model_dump(mode="json")
        for row, task in zip(found["tasks"], self.tasks, strict=True):
            row["total_bytes"] = task.total_bytes
        for row, machine in zip(found["machines"], self.machines, strict=True):
            row["fits"] = machine.fits
        return found
