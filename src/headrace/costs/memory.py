"""Memory of the tasks of a job, from the step of its trainers and the sizes of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from headrace.core.errors import InfeasibleError
from headrace.core.job import Job, Role
from headrace.core.units import format_bytes
from headrace.core.values import Value

PROCESS_BYTES = {Role.STORE: 95e6, Role.SAMPLER: 110e6, Role.SERVER: 220e6}
"""Anonymous memory of a process without work, measured on Linux with Python 3.11."""

_SCRATCH_BATCHES = 3
"""Sub-batches that a sampler builds, copies and keeps freed."""

_MORE_SLOTS = 3
"""Sub-batches in shared memory besides the queued ones: one that is built, two in use."""

_EXCHANGE_COPIES = 2
"""Copies of all gradients that a trainer exchanges: in buckets, and of others."""

_ENDLESS = 8
"""Batches in flight of a job without a limit, as the runtime limits them."""

_SERVER_COPIES = 6
"""Shards of a parameter server: parameters, gradients, two of an optimizer, two in messages."""


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
    """

    version: int = Field(default=1, ge=1)
    tasks: tuple[TaskMemory, ...]
    machines: tuple[MachineMemory, ...] = ()
    batch_size: int
    shape: tuple[int, int]
    is_real: bool = False

    def of(self, role: Role) -> TaskMemory:
        """Memory of a role."""
        return next(task for task in self.tasks if task.role is role)

    def summary(self) -> dict[str, Any]:
        """Plain values, with sums."""
        found = self.model_dump(mode="json")
        for row, task in zip(found["tasks"], self.tasks, strict=True):
            row["total_bytes"] = task.total_bytes
        for row, machine in zip(found["machines"], self.machines, strict=True):
            row["fits"] = machine.fits
        return found


def trainer_memory(step: Mapping[str, float], job: Job, is_real: bool) -> TaskMemory:
    """Memory of a trainer.

    Args:
        step: Bytes of a step: `base`, `peak`, `resident`, `batch`, `parameters`, and what else its
            peak is made of.
        job: The job.
        is_real: Whether the step was run.
    """
    parts = {
        name: step[name]
        for name in ("parameters", "gradients", "optimizer", "batch", "activations")
        if name in step
    }
    if is_real:
        parts = {"step": step["peak"]}
    made_of = {
        "process": step["base"],
        **parts,
        "allocator": max(0.0, step["resident"] - sum(parts.values())),
        "batches in flight": step["batch"] * (job.window or _ENDLESS),
    }
    if job.trainers > 1 or job.num_servers:
        made_of["gradient exchange"] = _EXCHANGE_COPIES * step["parameters"]
    return TaskMemory(
        role=Role.TRAINER,
        made_of=made_of,
        note="one step was run, because its shapes depend on values" if is_real else "",
    )


def other_memory(
    job: Job, batch_bytes: float, part_bytes: Sequence[float], cache_bytes: float
) -> list[TaskMemory]:
    """Memory of stores, samplers and parameter servers.

    Args:
        job: The job.
        batch_bytes: Bytes of a trainer's batch.
        part_bytes: Bytes of each graph partition.
        cache_bytes: Memory of each sampler for rows of other machines.
    """
    sub_batch = batch_bytes / job.samplers_per_trainer
    window = job.window or _ENDLESS
    found = [
        TaskMemory(
            role=Role.STORE,
            made_of={
                "process": PROCESS_BYTES[Role.STORE],
                "replies": sub_batch * job.num_samplers,
                "graph files": max(part_bytes, default=0.0),
            },
            note="graph files are cached, not allocated",
        ),
        TaskMemory(
            role=Role.SAMPLER,
            made_of={
                "process": PROCESS_BYTES[Role.SAMPLER],
                "sampling": _SCRATCH_BATCHES * sub_batch,
                "queued": (window + _MORE_SLOTS) * sub_batch * 1.125,
                "cache": cache_bytes,
            },
            note="queued batches are shared with the trainer",
        ),
    ]
    if job.num_servers:
        shard = job.model_bytes / job.num_servers
        found.append(
            TaskMemory(
                role=Role.SERVER,
                made_of={
                    "process": PROCESS_BYTES[Role.SERVER],
                    "shards": _SERVER_COPIES * shard,
                },
            )
        )
    return found


def check_fits(machines: Sequence[MachineMemory]) -> None:
    """Check that the tasks of every machine fit its memory.

    Raises:
        InfeasibleError: They do not; the message has remedies in order of cost.
    """
    for machine in machines:
        if not machine.fits:
            assert machine.memory_bytes is not None
            raise InfeasibleError(
                f"{machine.machine} needs {format_bytes(machine.needed_bytes)} of memory and has "
                f"{format_bytes(machine.memory_bytes)}",
                "use a smaller batch, a smaller window, a smaller cache, gradient checkpointing, "
                "or another machine",
            )
