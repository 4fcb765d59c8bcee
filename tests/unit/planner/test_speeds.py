"""Plans for machines of different speed: the search sees computing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import InfeasibleError
from headrace.core.job import Job, Role, Sync
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic, TaskTime
from headrace.planner.cost.objective import evaluate
from headrace.planner.cost.speed_classes import speed_classes
from headrace.planner.explain import explain
from headrace.planner.methods import place
from headrace.planner.methods.by_speed import Found, search_by_speed
from headrace.planner.planner import make_plan
from tests.oracle.placements import all_placements


def problem_of(
    trainer_s: dict[str, float],
    nic: float,
    gpus: int,
    trainers: int,
    counts: tuple[int, int] = (2, 2),
    sync: Sync = Sync.RING,
) -> Problem:
    """Fast and slow machines."""
    machines = tuple(
        Machine(name=kind, count=num, kind=kind, resources={"gpu": gpus}, nic_in=nic, nic_out=nic)
        for kind, num in zip(("fast", "slow"), counts, strict=True)
    )
    profile = Profile(
        task_times={
            Role.STORE: {"default": TaskTime(mean=0.005)},
            Role.SAMPLER: {"default": TaskTime(mean=0.02)},
            Role.TRAINER: {kind: TaskTime(mean=mean) for kind, mean in trainer_s.items()},
            Role.SERVER: {"default": TaskTime(mean=0.001)},
        },
        store_traffic=StoreTraffic(bytes_per_seed=20_000),
        batch_traffic=BatchTraffic(bytes_per_seed=20_000),
    )
    job = Job(
        trainers=trainers,
        samplers_per_trainer=2,
        sync=sync,
        batch_size=1000,
        model_bytes=1e6,
        iterations=20,
        demands={Role.TRAINER: {"gpu": 1}},
    )
    return Problem(Cluster(machines=machines), job, profile)


SPEEDS = {"fast": 0.03, "slow": 0.09}


@pytest.mark.parametrize("method", ["anneal", "exact"])
def test_trainers_avoid_slow_machines_where_computing_binds(method: str) -> None:
    plan = make_plan(problem_of(SPEEDS, nic=25e9 / 8, gpus=4, trainers=8), method=method)
    assert {name.partition("-")[0] for name in plan.placement.trainers} == {"fast"}
    assert plan.terms.time_s < 0.035
    assert plan.bound_s <= plan.terms.time_s


def test_trainers_use_slow_machines_where_the_network_binds() -> None:
    plan = make_plan(problem_of(SPEEDS, nic=0.1e9, gpus=4, trainers=8))
    assert {name.partition("-")[0] for name in plan.placement.trainers} == {"fast", "slow"}


def test_trainers_use_slow_machines_where_others_are_full() -> None:
    problem = problem_of(SPEEDS, nic=25e9 / 8, gpus=2, trainers=8)
    plan = make_plan(problem, shares="equal")
    assert plan.terms.time_s >= 0.09
    # The class of fast machines alone is infeasible.
    assert all(
        each.limits_s[Role.TRAINER] == 0.09 for each in speed_classes(problem, local_seeds=False)
    )


def test_explain_says_why_a_slow_machine_is_idle() -> None:
    plan = make_plan(problem_of(SPEEDS, nic=25e9 / 8, gpus=4, trainers=8))
    explanation = explain(plan)
    (sentence,) = explanation.idle
    assert sentence.startswith(
        "No trainer runs on slow-0 and slow-1: a trainer takes 90 ms there and at most 30 ms "
    )
    assert "It would pay if a trainer took at most 3" in sentence
    assert sentence in repr(explanation)


def test_explain_does_not_blame_a_slow_machine_that_does_not_limit_the_plan() -> None:
    problem = problem_of({"fast": 0.03, "slow": 0.04}, nic=0.1e9, gpus=8, trainers=1)
    plan = make_plan(problem)
    assert plan.terms.time_s > 0.1
    assert explain(plan).idle == ()


def test_a_class_without_a_placement_is_skipped() -> None:
    problem = problem_of(SPEEDS, nic=25e9 / 8, gpus=4, trainers=8)
    placement = place("colocate", problem)

    def search(limited: Problem) -> Found:
        if limited != problem:
            raise InfeasibleError("no", "none")
        return Found([placement], 0.0)

    found = search_by_speed(problem, search, local_seeds=False)
    assert found.placements[0] == placement
    assert found.bound_s < 0.035


def test_a_job_that_does_not_fit_is_an_error_about_real_resources() -> None:
    with pytest.raises(InfeasibleError, match="gpu"):
        make_plan(problem_of(SPEEDS, nic=1e9, gpus=1, trainers=8))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_is_near_the_best_of_all_placements(seed: int) -> None:
    rng = random.Random(seed)
    problem = problem_of(
        {"fast": 0.02, "slow": 0.02 * rng.choice([1, 2, 4, 8])},
        nic=rng.choice([0.1e9, 0.4e9, 1.6e9, 6.4e9]),
        gpus=rng.randint(1, 3),
        trainers=rng.randint(1, 2),
        counts=(1, rng.randint(1, 2)),
        sync=rng.choice(list(Sync)),
    )
    times_s = [evaluate(problem, placement).time_s for placement in all_placements(problem)]
    best_s = min(times_s, default=np.inf)
    plan = make_plan(problem, policy="maxmin", seed_mix="uniform")
    assert plan.bound_s <= best_s * (1 + 1e-9)
    assert plan.terms.time_s <= best_s * 1.1
