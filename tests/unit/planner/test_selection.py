"""Selection by simulation: small jobs are never slower than the published methods."""

from __future__ import annotations

import pytest

from headrace.core.cluster import Cluster, Machine
from headrace.core.growth import Growth
from headrace.core.job import Role
from headrace.core.profile import Problem
from headrace.planner.methods import place
from headrace.planner.planner import make_plan, policies_to_try
from headrace.planner.selection import most_promising, option_of
from headrace.simulator import build_instance, simulate
from tests.unit.planner.small import CLUSTER, JOB, PROFILE, cluster_of, profile_of

ITERATIONS = 30


def time_s(problem: Problem, method: str) -> float:
    placement = place(method, problem).numbered_by_ring()
    instance, _ = build_instance(problem, placement, num_iterations=ITERATIONS)
    return min(simulate(instance, policy).makespan_s for policy in policies_to_try("auto", problem))


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("nics", [(1.0, 1.0, 0.25), (1.0, 0.5, 0.1)])
def test_a_plan_is_not_slower_than_published_methods(nics: tuple[float, ...], window: int) -> None:
    job = JOB.model_copy(
        update={
            "trainers": 2,
            "samplers_per_trainer": 1,
            "iterations": ITERATIONS,
            "window": window,
        }
    )
    problem = Problem(cluster_of(*nics), job, profile_of(bytes_per_seed=1e5))
    plan = make_plan(problem, seed_mix="uniform", shares="equal")
    assert plan.shortlist is not None
    fastest_s = min(time_s(problem, method) for method in ("colocate", "ifs", "etp"))
    assert plan.shortlist.candidates[0].makespan_s <= fastest_s * (1 + 1e-9)


def test_options_far_from_the_best_objective_are_not_simulated() -> None:
    problem = Problem(CLUSTER, JOB, PROFILE)
    near, far = (option_of(problem, place(name, problem), "uniform") for name in ("anneal", "ifs"))
    assert far.objective.time_s > 1.05 * near.objective.time_s
    assert most_promising([far, near]) == [near]


def test_trainers_behind_slow_cards_get_other_shares_within_limits() -> None:
    machines = tuple(
        Machine(name=f"m{m}", resources={"cpu": 3, "gpu": gpus}, nic_in=nic, nic_out=nic)
        for m, (gpus, nic) in enumerate(((3, 0.125e9), (1, 3.1e9)))
    )
    demands = {Role.TRAINER: {"gpu": 1, "cpu": 1}, Role.SAMPLER: {"cpu": 1}, Role.SERVER: {}}
    job = JOB.model_copy(
        update={
            "samplers_per_trainer": 1,
            "parameter_servers": 2,
            "batch_size": 1000,
            "model_bytes": 1e7,
            "window": 4,
            "demands": demands,
        }
    )
    growth = Growth(seeds=(125, 500, 2000), nodes=(1.0, 3.0, 7.5), edges=(1.0, 3.6, 12.0))
    profile = profile_of(bytes_per_seed=2e4).model_copy(
        update={"growth": growth, "version": 2, "seeds_per_sampler": 1000.0}
    )
    problem = Problem(Cluster(machines=machines), job, profile)
    plan = make_plan(problem, seed_mix="uniform")
    equal = make_plan(problem, seed_mix="uniform", shares="equal")
    assert plan.shares is not None
    assert sum(plan.shares) == 3000
    assert all(250 <= share <= 2000 for share in plan.shares)
    by_machine = dict(zip(plan.placement.trainers, plan.shares, strict=True))
    assert [by_machine[name] for name in plan.placement.trainers] == list(plan.shares)
    assert plan.time_s < 0.95 * equal.time_s


def test_local_seeds_win_ties() -> None:
    # The slow card receives batches only, so seeds do not change the time.
    problem = Problem(cluster_of(1.0, 1.0, 1.0), JOB, profile_of(locality=0.5, bytes_per_seed=1.0))
    assert make_plan(problem).seed_mix_name == "local-first"


def test_a_given_policy_is_compared_with_published_methods_too() -> None:
    job = JOB.model_copy(update={"trainers": 2, "samplers_per_trainer": 1})
    problem = Problem(CLUSTER, job, PROFILE)
    plan = make_plan(problem, policy="maxmin", seed_mix="uniform", shares="equal")
    assert plan.shortlist is not None
    assert {each.policy for each in plan.shortlist.candidates} == {"maxmin"}
