"""Batch shares: integers with a fixed sum, balanced on the curves, never slower than equal ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.api.documents.load import load_plan, save_plan
from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError
from headrace.core.growth import Growth
from headrace.core.job import Job, Role
from headrace.core.placement import Placement
from headrace.core.plan import Plan
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic, TaskTime
from headrace.planner.cost.objective import evaluate
from headrace.planner.cost.seed_mix import seeds_of
from headrace.planner.cost.shares import best_shares, share_bound_s, share_limits
from headrace.planner.explain import explain
from headrace.planner.planner import make_plan
from headrace.simulator import build_instance, simulate

NIC = 10e9 / 8
FAST_AND_SLOW = Placement(samplers=(0, 1, 2, 3), trainers=(0, 1, 2, 3))


def problem_of(
    ratio: float = 2.0,
    bytes_per_seed: float = 2_000.0,
    memory: float | None = None,
    growth: Growth | None = None,
    nic: float = NIC,
) -> Problem:
    """Two fast and two slow machines with a GPU each, and four trainers."""
    machines = tuple(
        Machine(
            name=kind,
            count=2,
            kind=kind,
            resources={"cpu": 8, "gpu": 1, "memory": 1000.0},
            nic_in=nic,
            nic_out=nic,
        )
        for kind in ("fast", "slow")
    )
    demand = {"gpu": 1.0} | ({} if memory is None else {"memory": memory})
    job = Job(trainers=4, batch_size=900, model_bytes=1e5, demands={Role.TRAINER: demand})
    profile = Profile(
        task_times={
            Role.STORE: {"default": TaskTime(mean=0.001)},
            Role.SAMPLER: {"default": TaskTime(mean=0.01)},
            Role.TRAINER: {"fast": TaskTime(mean=0.1), "slow": TaskTime(mean=0.1 * ratio)},
        },
        store_traffic=StoreTraffic(bytes_per_seed=bytes_per_seed),
        batch_traffic=BatchTraffic(bytes_per_seed=bytes_per_seed),
        seeds_per_sampler=900,
        **({} if growth is None else {"growth": growth}),
    )
    return Problem(Cluster(machines=machines), job, profile)


def objective_s(problem: Problem, shares: tuple[int, ...] | None, local: bool = False) -> float:
    seeds = seeds_of(problem, FAST_AND_SLOW, local_seeds=local, shares=shares)
    return evaluate(problem, FAST_AND_SLOW, seeds).time_s


@pytest.mark.parametrize(
    ("ratio", "expected"), [(2.0, (1200, 1200, 600, 600)), (8.0, (1600, 1600, 200, 200))]
)
def test_shares_are_proportional_to_speed_where_trainers_bind(
    ratio: float, expected: tuple[int, ...]
) -> None:
    problem = problem_of(ratio)
    found = best_shares(problem, FAST_AND_SLOW, local_seeds=False)
    assert found is not None
    np.testing.assert_allclose(found, expected, atol=15)
    assert sum(found) == 3600
    assert objective_s(problem, tuple(found)) == pytest.approx(
        0.1 * ratio * expected[-1] / 900, rel=0.02
    )
    assert share_bound_s(problem) <= objective_s(problem, tuple(found))


def test_equal_speeds_have_equal_shares() -> None:
    assert best_shares(problem_of(1.0), FAST_AND_SLOW, local_seeds=False) is None
    assert make_plan(problem_of(1.0)).shares is None


def test_equal_shares_stay_where_the_network_binds() -> None:
    # Every machine receives in proportion to its seeds: fast machines would receive more.
    problem = problem_of(2.0, bytes_per_seed=1e6)
    assert best_shares(problem, FAST_AND_SLOW, local_seeds=False) is None
    assert make_plan(problem).shares is None


def test_a_curve_that_saturates_gives_fast_machines_more() -> None:
    growth = Growth(
        seeds=[225, 900, 3600],
        sampler_time=[1, 2, 4],
        trainer_time=[1, 2, 4],
        store_bytes=[1, 2, 4],
    )
    straight = best_shares(problem_of(), FAST_AND_SLOW, local_seeds=False)
    curved = best_shares(problem_of(growth=growth), FAST_AND_SLOW, local_seeds=False)
    assert straight is not None
    assert curved is not None
    # Time grows with the root of seeds: half the time needs a quarter of the seeds.
    assert curved[0] / curved[2] == pytest.approx(4, rel=0.1)
    assert straight[0] / straight[2] == pytest.approx(2, rel=0.05)


def test_shares_fit_the_memory_of_each_machine() -> None:
    problem = problem_of(8.0, memory=800.0)
    assert share_limits(problem, FAST_AND_SLOW).tolist() == [1125] * 4
    found = best_shares(problem, FAST_AND_SLOW, local_seeds=False)
    assert found is not None
    assert max(found) <= 1125


@pytest.mark.parametrize("local", [False, True])
def test_seeds_follow_shares(local: bool) -> None:
    problem, shares = problem_of(), (1200, 1200, 600, 600)
    seeds = seeds_of(problem, FAST_AND_SLOW, local_seeds=local, shares=shares)
    np.testing.assert_allclose(seeds.sum(axis=1), shares)
    np.testing.assert_allclose(seeds.sum(axis=0), 900)
    equal = seeds_of(problem, FAST_AND_SLOW, local_seeds=local, shares=(900,) * 4)
    plain = seeds_of(problem, FAST_AND_SLOW, local_seeds=local)
    np.testing.assert_allclose(equal, plain)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(problem_of())


@pytest.mark.slow
def test_plan_has_shares_and_predicts_with_them(plan: Plan) -> None:
    assert plan.version == 2
    assert plan.shares is not None
    assert sum(plan.shares) == 3600
    equal = make_plan(problem_of(), shares="equal")
    assert (equal.version, equal.shares, equal.asked.shares) == (1, None, "equal")
    assert plan.time_s < 0.7 * equal.time_s
    assert plan.bound_s <= plan.terms.time_s
    assert plan.predicted is not None
    instance, _ = build_instance(
        problem_of(), plan.placed, seeds=plan.seeds, num_iterations=plan.predicted.iterations
    )
    assert simulate(instance, plan.policy).makespan_s == plan.predicted.makespan_s
    assert explain(plan).plan == plan


def test_plan_file_keeps_shares_and_refuses_wrong_ones(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    assert load_plan(path) == plan
    wrong = plan.model_dump(mode="json") | {"shares": [1, 2, 3, 4]}
    with pytest.raises(ValueError, match="10 seeds for 4 trainers"):
        Plan.model_validate(wrong)
    assert "shares" not in make_plan(problem_of(1.0)).model_dump(mode="json")


def test_unknown_shares_are_refused() -> None:
    with pytest.raises(SpecError, match="there are no shares 'fair'"):
        make_plan(problem_of(), shares="fair")


def test_shares_minimise_a_given_measure() -> None:
    wanted = np.array([1200.0, 1000.0, 800.0, 600.0])

    def measure(seeds: np.ndarray) -> float:
        return 1.0 + float(np.abs(seeds.sum(axis=1) - wanted).max())

    found = best_shares(problem_of(), FAST_AND_SLOW, local_seeds=False, measure=measure)
    assert found is not None
    assert sum(found) == 3600
    assert measure(np.array(found)[:, None]) < 20
    assert (
        best_shares(
            problem_of(), FAST_AND_SLOW, local_seeds=False, measure=lambda seeds: 1.0, start=found
        )
        is None
    )
