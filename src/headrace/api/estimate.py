"""Memory of a job before it runs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from headrace.api.graph import open_graph
from headrace.core.errors import SpecError
from headrace.core.job import Job, Role
from headrace.core.plan import Plan
from headrace.core.step_counts import StepCounts
from headrace.costs.memory import (
    MachineMemory,
    MemoryEstimate,
    check_fits,
    other_memory,
    trainer_memory,
)
from headrace.costs.step_time import TYPICAL
from headrace.prefork.client import ForkLease
from headrace.profiling.step_estimate.script import ScriptStep
from headrace.runtime.controller.local_plan import LOCAL_WINDOW
from headrace.runtime.controller.script_step import trace_script

__all__ = [
    "REQUEST_FORMATS",
    "MemoryEstimate",
    "check_fits",
    "estimate",
    "estimate_trial",
    "resource_requests",
]

REQUEST_FORMATS = ("ray", "kubernetes", "slurm")
"""Schedulers whose resource requests `resource_requests` writes."""


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
    is traced with tensors without data, at the upper shape of these batches. If shapes of the model
    depend on values, one step runs for real.

    Args:
        script: The training script.
        graph: The partitioned graph.
        arguments: Arguments of the script.
        plan: Plan of the run: tasks by machine, and the batch size of its trainers.
        batch_size: Seeds of a trainer's batch; by default the plan's or the script's.
        on_step: Called with the name of each step before it starts.

    Raises:
        SpecError: The script fails, or does not take batches of a headrace loader.

    Example:
        >>> import headrace
        >>> found = headrace.estimate("train.py", "parts")  # doctest: +SKIP
        >>> round(found.tasks[0].total_bytes / 1e6)  # doctest: +SKIP
        473
    """
    opened = open_graph(graph)
    job = Job(trainers=1, batch_size=1, window=LOCAL_WINDOW) if plan is None else plan.job
    if batch_size is None and plan is not None:
        per_trainer = plan.seeds.reshape(job.trainers, -1).sum(axis=1)
        batch_size = math.ceil(per_trainer.max())
    step = _step_of(Path(script), Path(opened.folder), arguments, batch_size, on_step)
    traffic = None if plan is None else plan.profile.traffic
    parts = [float(opened.part(number).num_bytes) for number in range(opened.num_parts)]
    tasks = [trainer_memory(_sizes_of(step), job, step.is_real)]
    if plan is not None:
        measured = job.model_copy(update={"model_bytes": float(step.parameter_bytes)})
        cache_bytes = 0.0 if traffic is None else traffic.cache_bytes
        tasks += other_memory(measured, step.batch_bytes, parts, cache_bytes)
    found = MemoryEstimate(
        tasks=tuple(tasks),
        batch_size=step.batch_size,
        shape=step.shape,
        is_real=step.is_real,
    )
    if plan is None:
        return found
    return found.model_copy(update={"machines": tuple(_by_machine(found, plan, parts))})


def estimate_trial(
    script: Path,
    graph: Path,
    arguments: Sequence[str],
    config: Mapping[str, Any],
    lease: ForkLease | None = None,
) -> tuple[float, float | None]:
    """Peak memory of a run on this machine, and its time up to a factor that all trials share.

    The time is that of a step per seed, times the setting `epochs` if there is one; None if the
    step cannot be traced.

    Args:
        script: The training script.
        graph: The partitioned graph.
        arguments: Arguments of the script.
        config: Its settings.
        lease: Fork server that starts the script; none to start a new process.

    Raises:
        SpecError: The script fails, or does not take batches of a headrace loader.
    """
    opened = open_graph(graph)
    step = _step_of(script, Path(opened.folder), arguments, None, lambda name: None, config, lease)
    job = Job(trainers=1, batch_size=1, window=LOCAL_WINDOW)
    tasks = [
        trainer_memory(_sizes_of(step), job, step.is_real),
        *other_memory(job, step.batch_bytes, [0.0], 0.0),
    ]
    num_bytes = sum(
        task.total_bytes * (opened.num_parts if task.role is Role.STORE else 1) for task in tasks
    )
    if step.counts is None:
        return num_bytes, None
    epochs = config.get("epochs", 1)
    factor = epochs if isinstance(epochs, (int, float)) else 1
    return num_bytes, TYPICAL.seconds(StepCounts(*step.counts)) / step.batch_size * factor


def _step_of(
    script: Path,
    graph: Path,
    arguments: Sequence[str],
    batch_size: int | None,
    on_step: Callable[[str], None],
    config: Mapping[str, Any] | None = None,
    lease: ForkLease | None = None,
) -> ScriptStep:
    on_step("tracing a step")
    trace = partial(trace_script, script, graph, arguments, batch_size, config=config, lease=lease)
    step = trace(is_real=False)
    if step is None:
        on_step("running a step, because its shapes depend on values")
        step = trace(is_real=True)
    assert step is not None
    return step


def _sizes_of(step: ScriptStep) -> dict[str, float]:
    return {
        "base": step.base_bytes,
        "peak": step.peak_bytes,
        "resident": step.resident_bytes,
        **step.made_of,
        "batch": step.batch_bytes,
        "parameters": step.parameter_bytes,
    }


def _by_machine(found: MemoryEstimate, plan: Plan, parts: Sequence[float]) -> list[MachineMemory]:
    placed = plan.placed
    machines = []
    for number, host in enumerate(plan.cluster.hosts):
        tasks = {
            Role.STORE: 1,
            Role.SAMPLER: placed.samplers.count(number),
            Role.TRAINER: placed.trainers.count(number),
            Role.SERVER: placed.servers.count(number),
        }
        needed = sum(found.of(role).total_bytes * num for role, num in tasks.items() if num)
        # The table has the largest partition.
        needed += parts[number] - max(parts)
        machines.append(
            MachineMemory(
                machine=host.name,
                tasks={role: num for role, num in tasks.items() if num},
                needed_bytes=needed,
                memory_bytes=host.resources.get("memory"),
            )
        )
    return machines


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
