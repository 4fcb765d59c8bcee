"""Memory of a job before it runs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headrace.api.graph import open_graph
from headrace.core.cluster import Cluster
from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.job import Job, JobKind
from headrace.core.memory import MEMORY, MemoryEstimate, TaskMemory
from headrace.core.plan import Fingerprints, Plan
from headrace.core.profile import Problem, Profile
from headrace.core.step_counts import StepCounts
from headrace.costs.memory import (
    check_fits,
    memory_beside_graph,
    memory_by_machine,
    other_memory,
    trainer_memory,
    with_demands,
)
from headrace.costs.memory_remedies import MemoryProblem, remedies, scaled
from headrace.costs.step_time import with_estimated_steps
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.planner.methods.bin_packing import can_fit
from headrace.planner.methods.infeasibility import check_stores_fit, explain
from headrace.prefork.client import ForkLease
from headrace.profiling.step_estimate.script import ScriptStep
from headrace.runtime.controller.local_plan import LOCAL_WINDOW
from headrace.runtime.controller.script_step import AssumedPart, trace_script

__all__ = ["REQUEST_FORMATS", "MemoryEstimate", "check_fits", "estimate", "resource_requests"]

REQUEST_FORMATS = ("ray", "kubernetes", "slurm")
"""Schedulers whose resource requests `resource_requests` writes."""

_TRAINS = {True: "trains on the full graph", False: "samples"}


def estimate(
    script: str | os.PathLike[str],
    graph: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    plan: Plan | None = None,
    batch_size: int | None = None,
    on_step: Callable[[str], None] = lambda name: None,
) -> MemoryEstimate:
    """Estimate the peak memory of every task without training.

    The script runs until its training loop asks for batches. 20 batches are sampled, and one step
    is traced with tensors without data, at the upper shape of these batches. A script that trains
    on the full graph gets the largest part of a trainer instead. If shapes of the model depend on
    values, one step runs for real.

    Args:
        script: The training script.
        graph: The partitioned graph.
        arguments: Arguments of the script.
        plan: Plan of the run: tasks by machine, and the batch size of its trainers. Without one, a
            trainer of the full graph has one partition.
        batch_size: Seeds of a trainer's batch; by default the plan's or the script's.
        on_step: Called with the name of each step before it starts.

    Raises:
        SpecError: The script fails, or does not take batches of a headrace loader; or the plan
            samples, and the script does not, or the reverse.

    Example:
        >>> import headrace
        >>> found = headrace.estimate("train.py", "parts")  # doctest: +SKIP
        >>> round(found.tasks[0].total_bytes / 1e6)  # doctest: +SKIP
        473
    """
    opened = open_graph(graph)
    job = Job(trainers=1, batch_size=1, window=LOCAL_WINDOW) if plan is None else plan.job
    trainers = None
    if plan is not None and job.kind is JobKind.FULL_GRAPH:
        trainers = trainers_of_parts(plan)
    elif plan is not None and batch_size is None:
        batch_size = _most_seeds(plan)
    inputs = script, Path(opened.folder), arguments, batch_size, on_step
    step = trace_step(*inputs, trainers=trainers, bins=job.bins)
    if plan is None:
        whole = {"is_full_graph": step.is_full_graph}
        job = job.model_copy(update={"trainers": opened.num_parts if step.is_full_graph else 1})
        trainer = trainer_memory(_sizes(step), job, step.is_real, shares_batches=True, **whole)
        return estimate_of(step, [trainer])
    parts = [float(opened.part(number).num_bytes) for number in range(opened.num_parts)]
    return estimate_of_plan(plan, step, parts)


def trace_step(
    script: str | os.PathLike[str],
    graph: Path,
    arguments: Sequence[str],
    batch_size: int | None,
    on_step: Callable[[str], None] = lambda name: None,
    config: Mapping[str, Any] | None = None,
    lease: ForkLease | None = None,
    trainers: Sequence[int] | None = None,
    bins: int | None = None,
) -> ScriptStep:
    """Trace the training step of a script; run one if it cannot be traced.

    Args:
        script: The training script.
        graph: Folder of the partitioned graph.
        arguments: Arguments of the script.
        batch_size: Seeds of a trainer's batch; None for the script's.
        on_step: Called with the name of each step before it starts.
        config: `ctx.config` of the script.
        lease: Fork server that starts the script; none to start a new process.
        trainers: Trainer of each graph partition, for a script that trains on the full graph; by
            default each has one.
        bins: Bins of its layers' messages, unless it sets them.

    Raises:
        SpecError: The script fails, or does not take batches of a headrace loader.
    """
    inputs = (Path(script), graph, arguments, batch_size)
    part = _largest_part(open_graph(graph), trainers, bins or 1)
    trace = partial(trace_script, *inputs, config=config, lease=lease, part=part)
    on_step("tracing a step")
    step = trace(is_real=False)
    if step is None:
        on_step("running a step, because its shapes depend on values")
        step = trace(is_real=True)
    assert step is not None
    return step


def _largest_part(
    graph: PartitionedGraph, trainers: Sequence[int] | None, bins: int
) -> AssumedPart:
    """Part of the trainer with the most nodes and edges."""
    of_parts = tuple(range(graph.num_parts) if trainers is None else trainers)
    sizes = [0] * (max(of_parts) + 1)
    for number, trainer in enumerate(of_parts):
        part = graph.part(number)
        sizes[trainer] += sum(map(part.num_nodes, graph.node_types))
        sizes[trainer] += sum(map(part.num_edges, graph.edge_types))
    return AssumedPart(of_parts, sizes.index(max(sizes)), bins)


def trainers_of_parts(plan: Plan) -> tuple[int, ...]:
    """Trainer of each graph partition: the one on the partition's machine."""
    of_machines = {machine: number for number, machine in enumerate(plan.placed.trainers)}
    return tuple(of_machines[machine] for machine in plan.part_machines)


def estimate_of_plan(
    plan: Plan, step: ScriptStep, part_bytes: Sequence[float], batch_ratio: float = 1.0
) -> MemoryEstimate:
    """Memory of all tasks and machines of a plan.

    Args:
        plan: The plan.
        step: The traced step.
        part_bytes: Bytes of each graph partition.
        batch_ratio: Size of the plan's largest batch, relative to that of the step.
    """
    is_full_graph = plan.job.kind is JobKind.FULL_GRAPH
    if step.is_full_graph != is_full_graph:
        raise SpecError(
            f"the script {_TRAINS[step.is_full_graph]}, the plan's job {_TRAINS[is_full_graph]}",
            "plan a job of the script's kind (`kind: full-graph` in the job file, or none)",
        )
    traffic = plan.profile.traffic
    on_machine = [0.0] * plan.cluster.num_machines
    for machine, num_bytes in zip(plan.part_machines, part_bytes, strict=True):
        # Trainers of the full graph read files once.
        on_machine[machine] += 0.0 if is_full_graph else num_bytes
    tasks = task_memory(plan.job, step, on_machine, 0.0 if traffic is None else traffic.cache_bytes)
    tasks = scaled(tasks, batch_ratio)
    machines = memory_by_machine(tasks, plan.cluster, plan.placed, on_machine)
    return estimate_of(step, tasks).model_copy(update={"machines": machines})


def task_memory(
    job: Job, step: ScriptStep, part_bytes: Sequence[float], cache_bytes: float
) -> list[TaskMemory]:
    """Memory of each role of a job."""
    measured = job.model_copy(update={"model_bytes": float(step.parameter_bytes)})
    return [
        trainer_memory(_sizes(step), job, step.is_real, is_full_graph=step.is_full_graph),
        *other_memory(measured, step.batch_bytes, part_bytes, cache_bytes),
    ]


def _sizes(step: ScriptStep) -> dict[str, float]:
    return {
        "base": step.base_bytes,
        "peak": step.peak_bytes,
        "resident": step.resident_bytes,
        **step.made_of,
        "batch": step.batch_bytes,
        "parameters": step.parameter_bytes,
    }


def estimate_of(step: ScriptStep, tasks: Sequence[TaskMemory]) -> MemoryEstimate:
    """Memory of tasks, without machines."""
    return MemoryEstimate(
        tasks=tuple(tasks),
        batch_size=step.batch_size,
        shape=step.shape,
        is_real=step.is_real,
        is_full_graph=step.is_full_graph,
    )


def _most_seeds(plan: Plan) -> int:
    """Seeds of the largest trainer's batch."""
    return math.ceil(float(plan.seeds.reshape(plan.job.trainers, -1).sum(axis=1).max()))


@dataclass(frozen=True)
class ScriptPlanner:
    """Makes plans whose tasks demand their estimated memory and take their estimated times.

    Attributes:
        step: The traced step, at the job's batch size.
        part_bytes: Bytes of each graph partition.
        make: Makes a plan; takes `shares` too.
        more_profiles: Profiles with steps from which trainer times are estimated, besides the
            problem's own.
        cache_bytes: Given memory of each sampler for rows of other machines; else the cache gets
            memory that is left.
    """

    step: ScriptStep
    part_bytes: Sequence[float]
    make: Callable[..., Plan]
    cache_bytes: float | None = None
    more_profiles: tuple[Profile, ...] = ()

    def plan(self, problem: Problem) -> Plan:
        """Make a plan.

        Raises:
            InfeasibleError: The tasks do not fit; the message has remedies in order of cost.
        """
        if self.step.counts is not None:
            counts = StepCounts(*self.step.counts)
            profile = with_estimated_steps(problem.profile, self.more_profiles, counts, problem.job)
            problem = problem._replace(profile=profile)
        if any(MEMORY not in host.resources for host in problem.cluster.hosts):
            # Demands of memory would exclude machines whose memory is not known.
            return self._estimated(self.make(problem), problem)
        tasks = task_memory(problem.job, self.step, self.part_bytes, self.cache_bytes or 0.0)
        room = memory_beside_graph(problem.cluster, self.part_bytes)
        job = with_demands(problem.job, tasks, self.part_bytes)
        if not can_fit(room, job) and can_fit(room, problem.job):
            raise _infeasible(problem, room, job, tasks, self.part_bytes)
        found = self.make(problem._replace(cluster=room, job=job))
        if found.shares is not None:
            larger = scaled(tasks, _batch_ratio(problem, max(found.shares)))
            needed = memory_by_machine(larger, problem.cluster, found.placed, self.part_bytes)
            if not all(machine.fits for machine in needed):
                found = self.make(problem._replace(cluster=room, job=job), shares="equal")
        known = problem._replace(job=job, profile=found.profile)
        inputs = {"cluster": problem.cluster, "fingerprints": Fingerprints.of(known)}
        return self._estimated(found.model_copy(update=inputs), problem)

    def _estimated(self, plan: Plan, problem: Problem) -> Plan:
        """The plan with its estimate; the problem's job has no estimated demands."""
        ratio = 1.0 if plan.shares is None else _batch_ratio(problem, max(plan.shares))
        estimated = estimate_of_plan(plan, self.step, self.part_bytes, ratio)
        demands = {
            role: demand[MEMORY]
            for role, demand in plan.job.demands.items()
            if MEMORY in demand and MEMORY not in problem.job.demand(role)
        }
        memory = estimated.model_copy(update={"demands": demands})
        return plan.model_copy(update={"memory": memory, "version": 2})


def _batch_ratio(problem: Problem, seeds: float) -> float:
    """Bytes of a trainer's batch of so many seeds, relative to the job's."""
    job, per_trainer = problem.job, problem.job.samplers_per_trainer
    sizes = np.array([seeds, job.batch_size]) / per_trainer
    equivalent = problem.profile.equivalent_seeds("batch_bytes", sizes, job)
    return float(equivalent[0] / equivalent[1])


def _infeasible(
    problem: Problem,
    room: Cluster,
    job: Job,
    tasks: Sequence[TaskMemory],
    part_bytes: Sequence[float],
) -> InfeasibleError:
    try:
        check_stores_fit(room, job)
        cause = explain(room, job)
    except InfeasibleError as error:
        cause = error
    ratio = partial(_batch_ratio, problem)
    ways = remedies(MemoryProblem(room, problem.job, tasks, part_bytes, ratio, can_fit))
    return InfeasibleError(f"by the estimate of the script, {cause.problem}", "; ".join(ways))


def resource_requests(
    found: MemoryEstimate, scheduler: Literal["ray", "kubernetes", "slurm"]
) -> str:
    """Resource requests of a scheduler: of each role, for Slurm of the fullest machine.

    Raises:
        SpecError: The scheduler is unknown, or Slurm's request needs a plan.
    """
    if scheduler == "ray":
        resources = {
            task.role.value: {"num_cpus": 1, "memory": math.ceil(task.total_bytes)}
            for task in found.tasks
        }
        return json.dumps(resources, indent=2)
    if scheduler == "kubernetes":
        lines = ["# resources of the containers of each role"]
        for task in found.tasks:
            size = f"{math.ceil(task.total_bytes / 2**20)}Mi"
            lines += [
                f"{task.role.value}:",
                "  resources:",
                f"    requests: {{cpu: 1, memory: {size}}}",
                f"    limits: {{memory: {size}}}",
            ]
        return "\n".join(lines)
    if scheduler != "slurm":
        raise SpecError(f"{scheduler!r} is unknown", f"use one of {', '.join(REQUEST_FORMATS)}")
    if not found.machines:
        raise SpecError("Slurm requests memory per machine", "estimate with --plan")
    most = max(machine.needed_bytes for machine in found.machines)
    return f"#SBATCH --nodes={len(found.machines)}\n#SBATCH --mem={math.ceil(most / 2**20)}M"
