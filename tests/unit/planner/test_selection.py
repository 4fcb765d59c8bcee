"""Selection by simulation: small jobs are never slower than the published methods."""

from __future__ import annotations

import pytest

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
