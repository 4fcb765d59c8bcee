"""Memory of the tasks of a job, from the step of its trainers and the sizes of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.core.cluster import Cluster
from headrace.core.errors import InfeasibleError
from headrace.core.job import Job, JobKind, Role
from headrace.core.memory import MEMORY, MachineMemory, TaskMemory
from headrace.core.placement import Placement
from headrace.core.units import format_bytes

PROCESS_BYTES = {Role.STORE: 95e6, Role.SAMPLER: 110e6, Role.SERVER: 220e6}
"""Anonymous memory of a process without work, measured on Linux with Python 3.11."""

_SCRATCH_BATCHES = 3
"""Sub-batches that a sampler builds, copies and keeps freed."""

MORE_SLOTS = 3
"""Sub-batches in shared memory besides the queued ones: one that is built, two in use."""

_SLOT_ROOM = 1.125
"""Memory of a slot over that of its sub-batch (`Segment.reserve`)."""

_EXCHANGE_COPIES = 2
"""Copies of all gradients that a trainer exchanges: in buckets, and of others."""

ENDLESS_WINDOW = 8
"""Batches in flight of a job without a limit, as the runtime limits them."""

_SERVER_COPIES = 6
"""Shards of a parameter server: parameters, gradients, two of an optimizer, two in messages."""


def queued_bytes(job: Job, sub_batch_bytes: float) -> float:
    """Shared memory of the sub-batches between a sampler and a trainer on its machine."""
    window = job.window or ENDLESS_WINDOW
    return (window + MORE_SLOTS) * sub_batch_bytes * _SLOT_ROOM


def trainer_memory(
    step: Mapping[str, float],
    job: Job,
    is_real: bool,
    shares_batches: bool = False,
    is_full_graph: bool = False,
) -> TaskMemory:
    """Memory of a trainer.

    Args:
        step: Bytes of a step: `base`, `peak`, `resident`, `batch`, `parameters`, and what else its
            peak is made of.
        job: The job.
        is_real: Whether the step was run.
        shares_batches: Whether its batches stay in the shared memory of a sampler, which is counted
            here; else each is a copy, and the sampler's memory has its queue.
        is_full_graph: Whether its batch is its part of the full graph, so that none is in flight.
    """
    parts = {
        name: step[name]
        for name in ("parameters", "gradients", "optimizer", "batch", "activations")
        if name in step
    }
    if is_real:
        parts = {"step": step["peak"]}
    in_flight = step["batch"] * (job.window or ENDLESS_WINDOW)
    if shares_batches:
        in_flight = queued_bytes(job, step["batch"]) - step["batch"]
    made_of = {
        "process": step["base"],
        **parts,
        "allocator": max(0.0, step["resident"] - sum(parts.values())),
    }
    if not is_full_graph:
        made_of["batches in flight"] = in_flight
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

    Trainers of a full-graph job read their parts from files: stores have no work, and the processes
    of samplers do not start.

    Args:
        job: The job.
        batch_bytes: Bytes of a trainer's batch.
        part_bytes: Bytes of each graph partition.
        cache_bytes: Memory of each sampler for rows of other machines.
    """
    sub_batch = batch_bytes / job.samplers_per_trainer
    if job.kind is JobKind.FULL_GRAPH:
        process = {"process": PROCESS_BYTES[Role.STORE]}
        return [TaskMemory(role=Role.STORE, made_of=process), *_server_memory(job)]
    return [
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
                "queued": queued_bytes(job, sub_batch),
                "cache": cache_bytes,
            },
            note="queued batches are shared with the trainer",
        ),
        *_server_memory(job),
    ]


def _server_memory(job: Job) -> list[TaskMemory]:
    if not job.num_servers:
        return []
    shard = job.model_bytes / job.num_servers
    made_of = {"process": PROCESS_BYTES[Role.SERVER], "shards": _SERVER_COPIES * shard}
    return [TaskMemory(role=Role.SERVER, made_of=made_of)]


def with_demands(job: Job, tasks: Sequence[TaskMemory], part_bytes: Sequence[float]) -> Job:
    """A job whose roles demand their estimated memory, unless the job states it.

    Stores demand the smallest graph partition; what a machine has more is not free there.
    """
    demands = dict(job.demands)
    for task in tasks:
        own = demands.get(task.role, {})
        if MEMORY not in own:
            spared = max(part_bytes) - min(part_bytes) if task.role is Role.STORE else 0.0
            demands[task.role] = {**own, MEMORY: task.total_bytes - spared}
    return job.model_copy(update={"demands": demands})


def memory_beside_graph(cluster: Cluster, part_bytes: Sequence[float]) -> Cluster:
    """A cluster without the memory that partitions take beyond the smallest one."""
    least = min(part_bytes)
    hosts = tuple(
        host.model_copy(
            update={
                "resources": {
                    **host.resources,
                    MEMORY: max(0.0, host.resources[MEMORY] - (num_bytes - least)),
                }
            }
        )
        for host, num_bytes in zip(cluster.hosts, part_bytes, strict=True)
    )
    return Cluster(machines=hosts)


def memory_by_machine(
    tasks: Sequence[TaskMemory],
    cluster: Cluster,
    placed: Placement,
    part_bytes: Sequence[float],
) -> tuple[MachineMemory, ...]:
    """Memory of all tasks of each machine.

    Args:
        tasks: Memory of each role; that of the store is for the largest machine's partitions.
        cluster: The machines.
        placed: Their tasks.
        part_bytes: Bytes of graph partitions by machine.
    """
    machines = []
    of = {task.role: task.total_bytes for task in tasks}
    for number, host in enumerate(cluster.hosts):
        counts = {
            Role.STORE: 1,
            Role.SAMPLER: placed.samplers.count(number),
            Role.TRAINER: placed.trainers.count(number),
            Role.SERVER: placed.servers.count(number),
        }
        counts = {role: num for role, num in counts.items() if num and role in of}
        needed = sum(of[role] * num for role, num in counts.items())
        needed += part_bytes[number] - max(part_bytes)
        machines.append(
            MachineMemory(
                machine=host.name,
                tasks=counts,
                needed_bytes=needed,
                memory_bytes=host.resources.get(MEMORY),
            )
        )
    return tuple(machines)


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
