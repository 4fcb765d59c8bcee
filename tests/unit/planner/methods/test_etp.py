"""ETP: what it finds is feasible, reproducible, and as good as it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role, Sync
from headrace.core.placement import Placement, resource_names
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic, TaskTime, Variation
from headrace.planner.methods import place
from headrace.planner.methods.critical_path import CriticalPath
from headrace.planner.methods.etp import BETAS, Etp, EtpResult, etp_betas
from headrace.simulator import build_instance, simulate
from tests.support.examples import examples
from tests.support.path_cost import path_cost_s

PROFILE = Profile(
    task_times={
        role: {"slow": TaskTime(mean=0.02), "default": TaskTime(mean=0.01)} for role in Role
    },
    store_traffic=StoreTraffic(bytes_per_seed=1e5, variation=Variation(peak_to_mean=1.5)),
    batch_traffic=BatchTraffic(bytes_per_seed=1e5),
)


def cluster_of(num_machines: int, cores: int = 8) -> Cluster:
    return Cluster(
        machines=tuple(
            Machine(
                name=f"m{i}",
                kind="slow" if i % 2 else "default",
                resources={"cpu": float(cores), "gpu": 2.0},
                nic_in=1e9 if i % 3 else 4e9,
                nic_out=1e9 if i % 3 else 4e9,
            )
            for i in range(num_machines)
        )
    )


def etp_search(problem: Problem, *, beta: float, seed: int, **settings: Any) -> EtpResult:
    return etp_betas(problem, betas=(beta,), seed=seed, **settings)[beta]


def job_of(trainers: int, samplers: int, sync: Sync) -> Job:
    return Job(
        trainers=trainers,
        samplers_per_trainer=samplers,
        sync=sync,
        batch_size=100,
        model_bytes=1e6,
        demands={
            Role.TRAINER: {"cpu": 1.0, "gpu": 1.0},
            Role.SAMPLER: {"cpu": 2.0},
            Role.SERVER: {"cpu": 1.0},
        },
    )


@pytest.mark.slow
@given(
    sync=st.sampled_from(Sync),
    beta=st.sampled_from(BETAS),
    seed=st.integers(0, 2**31),
    cores=st.integers(6, 9),
)
@examples(20, 60)
def test_result_is_feasible_reproducible_and_worth_its_makespan(
    sync: Sync, beta: float, seed: int, cores: int
) -> None:
    cluster, job = cluster_of(4, cores), job_of(5, 1, sync)
    problem = Problem(cluster, job, PROFILE)
    found = etp_search(problem, beta=beta, steps=300, seed=seed, num_iterations=4)
    found.placement.check(cluster, job)
    instance, _ = build_instance(problem, found.placement, num_iterations=4, window=0, seed=seed)
    assert found.makespan_s == simulate(instance, "oes").makespan_s
    first, _ = build_instance(
        problem, place("ifs", problem, seed), num_iterations=4, window=0, seed=seed
    )
    assert found.makespan_s <= simulate(first, "oes").makespan_s
    again = etp_search(problem, beta=beta, steps=300, seed=seed, num_iterations=4)
    assert again == found


class Draws:
    """The chain's generator in plain Python."""

    def __init__(self, seed: int) -> None:
        self.state = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])

    def bits(self) -> int:
        mask = 2**64 - 1
        self.state = self.state + 0x9E3779B97F4A7C15 & mask
        x = self.state
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    def below(self, num: int) -> int:
        return (self.bits() >> 32) * num >> 32

    def uniform(self) -> float:
        return float(self.bits() >> 11) * 2.0**-53


def naive_etp(
    cluster: Cluster, job: Job, beta: float, steps: int, seed: int, num_iterations: int
) -> EtpResult:
    """Alg. 3 line by line, every placement judged from scratch."""
    path = CriticalPath(Problem(cluster, job, PROFILE), num_iterations=num_iterations, seed=seed)
    names = resource_names(cluster, job)
    capacities = cluster.capacities(names)
    draws = Draws(seed)

    def placed(machines: list[int]) -> Placement:
        after = job.num_samplers + job.trainers
        return Placement(
            samplers=tuple(machines[: job.num_samplers]),
            trainers=tuple(machines[job.num_samplers : after]),
            servers=tuple(machines[after:]),
        )

    def moved(machines: list[int], task: int, machine: int) -> list[int]:
        return [*machines[:task], machine, *machines[task + 1 :]]

    def makespan_s(machines: list[int]) -> float:
        instance, _ = build_instance(
            Problem(cluster, job, PROFILE),
            placed(machines),
            num_iterations=num_iterations,
            window=0,
            seed=seed,
        )
        return simulate(instance, "oes").makespan_s

    def available(machines: list[int], task: int) -> list[int]:
        return [
            m
            for m in range(cluster.num_machines)
            if m != machines[task]
            and (placed(moved(machines, task, m)).usage(cluster, job)[m] <= 2 * capacities[m]).all()
        ]

    start = place("ifs", Problem(cluster, job, PROFILE), seed)
    now = [*start.samplers, *start.trainers, *start.servers]
    cost = first_cost = min_cost = path_cost_s(path, cluster, job, start)
    best, best_s = now, makespan_s(now)
    seen = {tuple(now)}
    for _ in range(steps):
        where: list[int] = []
        while not where:
            task = draws.below(len(now))
            where = available(now, task)
        new = moved(now, task, where[draws.below(len(where))])
        new_cost = path_cost_s(path, cluster, job, placed(new))
        if draws.uniform() <= min(1.0, np.exp(-beta * (new_cost - cost) / first_cost)):
            now, cost = new, new_cost
            fits = (placed(now).usage(cluster, job) <= capacities).all()
            if fits and cost <= 1.1 * min_cost:
                min_cost = min(min_cost, cost)
                seen.add(tuple(now))
                if makespan_s(now) < best_s:
                    best, best_s = now, makespan_s(now)
    return EtpResult(placed(best), best_s, len(seen), 0, min_cost)


@pytest.mark.parametrize("sync", list(Sync))
@pytest.mark.parametrize("beta", BETAS)
def test_follows_the_algorithm_line_by_line(sync: Sync, beta: float) -> None:
    cluster, job = cluster_of(4, cores=8), job_of(5, 2, sync)
    problem = Problem(cluster, job, PROFILE)
    found = etp_search(problem, beta=beta, steps=400, seed=1, num_iterations=3)
    expected = naive_etp(cluster, job, beta, 400, 1, 3)
    assert found.placement == expected.placement
    assert found.makespan_s == expected.makespan_s
    assert found.num_simulated + found.num_hopeless == expected.num_simulated
    assert found.min_cost == pytest.approx(expected.min_cost, rel=1e-12)


@pytest.mark.parametrize("sync", list(Sync))
@pytest.mark.parametrize("beta", BETAS)
def test_rehearsals_left_out_change_nothing(sync: Sync, beta: float) -> None:
    cluster, job = cluster_of(4, cores=8), job_of(5, 2, sync)
    heavy = PROFILE.model_copy(update={"batch_traffic": BatchTraffic(bytes_per_seed=1e6)})
    problem = Problem(cluster, job, heavy)
    left_out = 0
    for seed in range(5):
        some = etp_search(problem, beta=beta, steps=1000, seed=seed)
        every = etp_search(problem, beta=beta, steps=1000, seed=seed, rehearse_all=True)
        assert every.num_hopeless == 0
        assert some.num_simulated + some.num_hopeless == every.num_simulated
        assert (some.placement, some.makespan_s) == (every.placement, every.makespan_s)
        assert some.min_cost == every.min_cost
        left_out += some.num_hopeless
    assert left_out > 0


def test_a_single_machine_leaves_nothing_to_move() -> None:
    cluster, job = cluster_of(1, cores=20), job_of(2, 2, Sync.RING)
    found = etp_search(Problem(cluster, job, PROFILE), beta=1, seed=0)
    assert found.num_simulated == 1
    assert set(found.placement.samplers) == {0}


def test_the_method_takes_the_best_beta() -> None:
    cluster, job = cluster_of(4), job_of(5, 1, Sync.PS)
    found = etp_betas(Problem(cluster, job, PROFILE), steps=500, seed=3)
    assert tuple(found) == BETAS
    best = min(found.values(), key=lambda result: result.makespan_s)
    assert Etp(steps=500).place(Problem(cluster, job, PROFILE), 3) == best.placement


@pytest.mark.parametrize("seed", range(3))
def test_another_seed_walks_another_way(seed: int) -> None:
    cluster, job = cluster_of(4, cores=40), job_of(5, 2, Sync.PS)
    one = etp_search(Problem(cluster, job, PROFILE), beta=10, steps=200, seed=seed)
    other = etp_search(Problem(cluster, job, PROFILE), beta=10, steps=200, seed=seed + 100)
    assert one != other
