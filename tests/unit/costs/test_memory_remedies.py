"""Remedies for jobs that do not fit the memory of the machines."""

from __future__ import annotations

from dataclasses import replace

from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role
from headrace.core.memory import TaskMemory
from headrace.costs.memory_remedies import MemoryProblem, remedies
from headrace.planner.methods.bin_packing import can_fit

TASKS = (
    TaskMemory(
        role=Role.TRAINER,
        made_of={"process": 1e9, "batch": 1e9, "activations": 2e9, "batches in flight": 2e9},
    ),
    TaskMemory(role=Role.STORE, made_of={"process": 0.1e9, "graph files": 0.4e9}),
    TaskMemory(role=Role.SAMPLER, made_of={"process": 0.1e9, "queued": 1e9, "cache": 0.4e9}),
)
"""8 GB with a trainer, a sampler and a store."""


def machines(memory: float) -> Cluster:
    machine = Machine(name="m", count=2, nic_in=1, nic_out=1, resources={"memory": memory})
    return Cluster(machines=(machine,))


def problem_with(memory: float) -> MemoryProblem:
    return MemoryProblem(
        cluster=machines(memory),
        job=Job(trainers=2, batch_size=400, window=2),
        tasks=TASKS,
        part_bytes=(0.4e9, 0.4e9),
        batch_ratio=lambda seeds: seeds / 400,
        fits=can_fit,
    )


def test_remedies_are_in_order_of_cost_with_figures() -> None:
    assert not problem_with(7.7e9).fits_with(TASKS)
    assert list(remedies(problem_with(7.7e9))) == [
        "a batch of 200 seeds needs 3.5 GB per trainer instead of 6 GB and fits",
        "a window of 1 instead of 2 saves 1.2 GB per trainer and fits",
        "no cache saves 400 MB per sampler and fits",
        "gradient checkpointing saves at most 2 GB per trainer and may fit",
        "one more machine like m-0 fits",
    ]


def test_remedies_that_are_not_enough_say_so() -> None:
    found = list(remedies(problem_with(5e9)))
    assert found[0] == "a batch of 200 seeds needs 3.5 GB per trainer instead of 6 GB and fits"
    assert found[1].endswith("saves 1.2 GB per trainer, which is not enough alone")
    assert found[2].endswith("which is not enough alone")
    # No machine has room for a trainer.
    assert found[4].startswith("machines with at least 8")
    least = list(remedies(problem_with(1.2e9)))
    assert "a batch of 1 seed needs" in least[0]
    assert least[0].endswith("which is not enough alone")


def test_there_is_no_remedy_for_what_is_already_least() -> None:
    problem = problem_with(1.2e9)
    job = problem.job.model_copy(update={"batch_size": 1, "window": 1})
    step = TaskMemory(role=Role.TRAINER, made_of={"process": 1e9, "step": 3e9})
    found = list(remedies(replace(problem, job=job, tasks=(step,), part_bytes=(0.0, 0.0))))
    assert len(found) == 1
    assert found[0].startswith("machines with at least 4")


def test_demands_of_the_job_file_stay() -> None:
    problem = problem_with(7.7e9)
    demands = {Role.TRAINER: {"memory": 1e9}}
    stated = replace(problem, job=problem.job.model_copy(update={"demands": demands}))
    assert stated.fits_with(TASKS)
