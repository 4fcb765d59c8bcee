"""What is special about each method."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role
from headrace.core.placement import Placement
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic
from headrace.planner.methods import place
from headrace.planner.methods.bin_packing import Counts, give_identities

PROFILE = Profile(
    task_times={}, store_traffic=StoreTraffic(), batch_traffic=BatchTraffic(bytes_per_seed=1)
)


def cluster_of(*cpus: float) -> Cluster:
    return Cluster(
        machines=tuple(
            Machine(name=f"m{i}", resources={"cpu": cpu}, nic_in=1e9, nic_out=1e9)
            for i, cpu in enumerate(cpus)
        )
    )


def job_of(trainers: int, samplers: int, trainer_cpu: float = 1, sampler_cpu: float = 2) -> Job:
    return Job(
        trainers=trainers,
        samplers_per_trainer=samplers,
        batch_size=100,
        demands={Role.TRAINER: {"cpu": trainer_cpu}, Role.SAMPLER: {"cpu": sampler_cpu}},
    )


def num_together(placement: Placement, job: Job) -> int:
    """Samplers that share a machine with their trainer."""
    trainers = np.repeat(placement.trainers, job.samplers_per_trainer)
    return int((trainers == np.array(placement.samplers)).sum())


def test_ifs_uses_the_first_machines_of_a_random_order_only() -> None:
    cluster, job = cluster_of(*[10.0] * 8), job_of(4, 2)
    used = [set(place("ifs", Problem(cluster, job, PROFILE), seed).trainers) for seed in range(20)]
    assert all(len(machines) == 2 for machines in used)
    assert len({tuple(sorted(machines)) for machines in used}) > 5


def test_ifs_finishes_on_the_first_machine_alone_if_it_can() -> None:
    placement = place("ifs", Problem(cluster_of(99.0, 99.0, 99.0), job_of(3, 2), PROFILE))
    assert len({*placement.trainers, *placement.samplers}) == 1


def test_colocate_spreads_whole_groups_by_free_capacity() -> None:
    placement = place("colocate", Problem(cluster_of(10.0, 5.0, 15.0), job_of(6, 2), PROFILE))
    assert sorted(placement.trainers) == [0, 0, 1, 2, 2, 2]
    assert num_together(placement, job_of(6, 2)) == 12


def test_colocate_spreads_tasks_without_demands_evenly() -> None:
    placement = place("colocate", Problem(cluster_of(1.0, 1.0, 1.0), job_of(6, 1, 0, 0), PROFILE))
    assert sorted(placement.trainers) == [0, 0, 1, 1, 2, 2]


def test_colocate_separates_only_the_samplers_that_do_not_fit() -> None:
    # A machine holds one whole group (5) and has 3 left: a trainer with one of its two samplers.
    job = job_of(6, 2)
    placement = place("colocate", Problem(cluster_of(8.0, 8.0, 8.0, 8.0), job, PROFILE))
    placement.check(cluster_of(8.0, 8.0, 8.0, 8.0), job)
    assert num_together(placement, job) == 10


def test_colocate_takes_back_as_few_groups_as_needed() -> None:
    # Whole groups of 4 on both machines leave 2 and 2: too small for the third trainer, which needs
    # 3. With one group taken back, its trainer and the third share a machine.
    cluster, job = cluster_of(6.0, 6.0), job_of(3, 1, trainer_cpu=3, sampler_cpu=1)
    placement = place("colocate", Problem(cluster, job, PROFILE))
    placement.check(cluster, job)
    assert num_together(placement, job) == 1


def test_identities_fill_one_trainer_after_the_other() -> None:
    counts = Counts(np.array([3, 0, 3]), np.array([2, 1, 0]), np.zeros(3, dtype=int))
    trainers, samplers = give_identities(counts, np.arange(3), samplers_per_trainer=2)
    assert trainers.tolist() == [0, 0, 1]
    assert samplers.tolist() == [[0, 0], [0, 2], [2, 2]]


@pytest.mark.parametrize("method", ["ifs", "colocate"])
def test_a_thousand_machines_are_no_trouble(method: str) -> None:
    cluster = Cluster(
        machines=tuple(
            Machine(name=f"g{cpu}", count=256, resources={"cpu": cpu}, nic_in=1e9, nic_out=1e9)
            for cpu in (16.0, 15.0, 12.0, 8.0)
        )
    )
    job = job_of(1280, 4)
    placement = place(method, Problem(cluster, job, PROFILE))
    placement.check(cluster, job)
    assert num_together(placement, job) > 0.6 * job.num_samplers
