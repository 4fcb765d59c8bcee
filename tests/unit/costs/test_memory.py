"""Memory of tasks and machines."""

from __future__ import annotations

import pytest

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import InfeasibleError
from headrace.core.job import Job, Role, Sync
from headrace.core.memory import MachineMemory
from headrace.core.placement import Placement
from headrace.costs.memory import (
    check_fits,
    memory_beside_graph,
    memory_by_machine,
    other_memory,
    trainer_memory,
    with_demands,
)

STEP = {
    "base": 300e6,
    "peak": 100e6,
    "resident": 120e6,
    "batch": 10e6,
    "parameters": 5e6,
    "gradients": 0.0,
    "optimizer": 10e6,
    "activations": 75e6,
}


def test_a_trainer_needs_its_process_the_step_and_batches_in_flight() -> None:
    job = Job(trainers=1, batch_size=100, window=4)
    found = trainer_memory(STEP, job, is_real=False)
    assert found.made_of["allocator"] == 20e6
    assert found.total_bytes == 300e6 + 120e6 + 4 * 10e6
    more = trainer_memory(STEP, job.model_copy(update={"trainers": 2}), is_real=False)
    assert more.total_bytes - found.total_bytes == 2 * 5e6


def test_batches_in_shared_memory_are_those_of_the_sampler() -> None:
    job = Job(trainers=1, batch_size=100, window=4)
    found = trainer_memory(STEP, job, is_real=False, shares_batches=True).made_of
    sampler = next(task for task in other_memory(job, 10e6, [5e6], 0.0) if task.role == "sampler")
    assert found["batch"] + found["batches in flight"] == sampler.made_of["queued"]


def test_a_step_that_ran_has_no_parts() -> None:
    found = trainer_memory(STEP, Job(trainers=1, batch_size=100), is_real=True)
    assert found.made_of["step"] == 100e6
    assert "activations" not in found.made_of
    assert "values" in found.note


def test_memory_grows_with_cache_and_window_and_shrinks_with_samplers() -> None:
    def sampler(cache_bytes: float = 0.0, window: int = 2, samplers: int = 1) -> float:
        job = Job(trainers=1, batch_size=100, window=window, samplers_per_trainer=samplers)
        tasks = other_memory(job, 10e6, [5e6, 7e6], cache_bytes)
        return next(task for task in tasks if task.role is Role.SAMPLER).total_bytes

    assert sampler(cache_bytes=1e6) == sampler() + 1e6
    assert sampler(window=8) > sampler() > sampler(samplers=2)


def test_servers_hold_their_shards() -> None:
    job = Job(trainers=2, batch_size=10, sync=Sync.PS, parameter_servers=2, model_bytes=100e6)
    roles = {task.role: task for task in other_memory(job, 1e6, [5e6], 0.0)}
    assert roles[Role.SERVER].made_of["shards"] == 6 * 50e6
    assert roles[Role.STORE].made_of["graph files"] == 5e6


def test_machines_keep_their_own_partitions() -> None:
    machine = Machine(name="m", count=2, nic_in=1, nic_out=1, resources={"memory": 1e9})
    cluster, parts = Cluster(machines=(machine,)), (7e6, 5e6)
    job = Job(trainers=1, batch_size=100)
    tasks = [trainer_memory(STEP, job, is_real=False), *other_memory(job, 10e6, parts, 0.0)]
    of = {task.role: task.total_bytes for task in tasks}
    demanding = with_demands(job, tasks, parts)
    assert demanding.demand(Role.STORE)["memory"] == of[Role.STORE] - 2e6
    room = memory_beside_graph(cluster, parts)
    assert [host.resources["memory"] for host in room.hosts] == [1e9 - 2e6, 1e9]
    placed = Placement(samplers=(1,), trainers=(1,))
    first, second = memory_by_machine(tasks, cluster, placed, parts)
    assert first.needed_bytes == of[Role.STORE]
    assert second.needed_bytes == sum(of.values()) - 2e6
    assert second.tasks == {Role.STORE: 1, Role.SAMPLER: 1, Role.TRAINER: 1}
    used = placed.usage(room, demanding)[:, 0]
    assert used[1] == second.needed_bytes


def test_a_machine_with_too_little_memory_is_named() -> None:
    full = MachineMemory(machine="m1", tasks={Role.STORE: 1}, needed_bytes=2e9, memory_bytes=1e9)
    roomy = MachineMemory(machine="m0", tasks={Role.STORE: 1}, needed_bytes=2e9)
    check_fits([roomy])
    with pytest.raises(InfeasibleError, match="m1 needs 2 GB of memory and has 1 GB") as error:
        check_fits([roomy, full])
    assert error.value.remedy.startswith("use a smaller batch")
