"""Changes of a job with which its tasks would fit the memory of the machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role
from headrace.core.memory import MEMORY, TaskMemory
from headrace.core.units import format_bytes
from headrace.costs.memory import ENDLESS_WINDOW, MORE_SLOTS, with_demands

Tasks = Sequence[TaskMemory]

_BATCH_PARTS = (
    "batch", "activations", "allocator", "batches in flight", "step", "sampling", "queued",
    "replies",
)  # fmt: skip
"""Memory that grows with a batch."""

_NOT_ENOUGH = ", which is not enough alone"

_ROUNDS = 8
"""Bisections of the least memory: within 1 % of it."""


@dataclass(frozen=True)
class MemoryProblem:
    """A job whose tasks do not fit the memory of the machines.

    Attributes:
        cluster: The machines.
        job: The job, without estimated demands.
        tasks: Estimated memory of each role.
        part_bytes: Bytes of each graph partition.
        batch_ratio: Bytes of a batch of so many seeds, relative to the job's.
        fits: Whether there is a placement of a job.
    """

    cluster: Cluster
    job: Job
    tasks: Tasks
    part_bytes: Sequence[float]
    batch_ratio: Callable[[int], float]
    fits: Callable[[Cluster, Job], bool]

    def fits_with(self, tasks: Tasks) -> bool:
        """Whether there is a placement if tasks need this memory."""
        return self.fits(self.cluster, with_demands(self.job, tasks, self.part_bytes))


def remedies(problem: MemoryProblem) -> Iterator[str]:
    """Changes in order of their cost, with figures, and whether each is enough."""
    found = (
        _smaller_batch(problem),
        _smaller_window(problem),
        _no_cache(problem),
        _checkpointing(problem),
        _more_machines(problem),
    )
    return (text for text in found if text)


def scaled(tasks: Tasks, ratio: float, names: Sequence[str] = _BATCH_PARTS) -> list[TaskMemory]:
    """Memory of tasks if some of its parts change by a factor."""
    return [
        _with(task, {name: task.made_of.get(name, 0.0) * ratio for name in names}) for task in tasks
    ]


def _smaller_batch(problem: MemoryProblem) -> str:
    job, least = problem.job, problem.job.samplers_per_trainer
    sizes = [job.batch_size >> shift for shift in range(1, job.batch_size.bit_length())]
    sizes = [size for size in sizes if size >= least]
    if not sizes:
        return ""
    enough = [s for s in sizes if problem.fits_with(scaled(problem.tasks, problem.batch_ratio(s)))]
    size = enough[0] if enough else sizes[-1]
    smaller = scaled(problem.tasks, problem.batch_ratio(size))
    needs, now = (format_bytes(_bytes_of(each, Role.TRAINER)) for each in (smaller, problem.tasks))
    seeds = "1 seed" if size == 1 else f"{size} seeds"
    text = f"a batch of {seeds} needs {needs} per trainer instead of {now}"
    return text + (" and fits" if enough else _NOT_ENOUGH)


def _smaller_window(problem: MemoryProblem) -> str:
    now = problem.job.window or ENDLESS_WINDOW

    def changed(window: int) -> list[TaskMemory]:
        flying = scaled(problem.tasks, window / now, ("batches in flight",))
        return scaled(flying, (window + MORE_SLOTS) / (now + MORE_SLOTS), ("queued",))

    sizes = [now >> shift for shift in range(1, now.bit_length())]
    if not sizes:
        return ""
    enough = [size for size in sizes if problem.fits_with(changed(size))]
    size = enough[0] if enough else sizes[-1]
    counts = {Role.TRAINER: 1, Role.SAMPLER: problem.job.samplers_per_trainer}
    saved, before = _saved(problem, changed(size), counts), problem.job.window or "unlimited"
    text = f"a window of {size} instead of {before} saves {saved} per trainer"
    return text + (" and fits" if enough else _NOT_ENOUGH)


def _no_cache(problem: MemoryProblem) -> str:
    if not any(task.made_of.get("cache") for task in problem.tasks):
        return ""
    without = scaled(problem.tasks, 0.0, ("cache",))
    text = f"no cache saves {_saved(problem, without, {Role.SAMPLER: 1})} per sampler"
    return text + (" and fits" if problem.fits_with(without) else _NOT_ENOUGH)


def _checkpointing(problem: MemoryProblem) -> str:
    if not any(task.made_of.get("activations") for task in problem.tasks):
        return ""
    without = scaled(problem.tasks, 0.0, ("activations",))
    saved = _saved(problem, without, {Role.TRAINER: 1})
    text = f"gradient checkpointing saves at most {saved} per trainer"
    return text + (" and may fit" if problem.fits_with(without) else _NOT_ENOUGH)


def _more_machines(problem: MemoryProblem) -> str:
    hosts = problem.cluster.hosts
    job = with_demands(problem.job, problem.tasks, problem.part_bytes)
    largest = max(hosts, key=lambda host: host.resources[MEMORY])
    more = Cluster(machines=(*hosts, largest.model_copy(update={"name": f"{largest.name}-more"})))
    if problem.fits(more, job):
        return f"one more machine like {largest.name} fits"

    def roomy(num_bytes: float) -> Cluster:
        return Cluster(machines=tuple(_with_memory(host, num_bytes) for host in hosts))

    low, high = (
        0.0,
        sum(job.demand(role).get(MEMORY, 0.0) * num for role, num in _counts(job).items()),
    )
    if not problem.fits(roomy(high), job):
        return ""
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if problem.fits(roomy(middle), job) else (middle, high)
    return f"machines with at least {format_bytes(high)} of memory fit"


def _counts(job: Job) -> Mapping[Role, int]:
    return {
        Role.STORE: 1,
        Role.SAMPLER: job.num_samplers,
        Role.TRAINER: job.trainers,
        Role.SERVER: job.num_servers,
    }


def _with_memory(host: Machine, num_bytes: float) -> Machine:
    most = max(num_bytes, host.resources[MEMORY])
    return host.model_copy(update={"resources": {**host.resources, MEMORY: most}})


def _with(task: TaskMemory, parts: Mapping[str, float]) -> TaskMemory:
    changed = {name: parts.get(name, size) for name, size in task.made_of.items()}
    return task.model_copy(update={"made_of": changed})


def _bytes_of(tasks: Tasks, role: Role) -> float:
    return sum(task.total_bytes for task in tasks if task.role is role)


def _saved(problem: MemoryProblem, changed: Tasks, counts: Mapping[Role, int]) -> str:
    saved = sum(
        num * (_bytes_of(problem.tasks, role) - _bytes_of(changed, role))
        for role, num in counts.items()
    )
    return format_bytes(saved)
