from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.job import Job, Role, Sync
from headrace.core.placement import Placement
from headrace.core.plan import Plan, problem_of, uniform_seeds
from headrace.core.profile import Problem, StoreTraffic
from headrace.core.tasks import build_task_graph
from headrace.costs import edge_volumes, nic_loads, task_machines
from headrace.planner import planner
from headrace.planner.cost.seed_mix import local_first_seeds
from headrace.planner.cost.traffic_matrix import traffic_of
from headrace.planner.methods import place
from headrace.planner.planner import AUTO_POLICIES, PREDICTED_ITERATIONS, make_plan
from headrace.simulator import build_instance, simulate
from tests.unit.planner.small import CLUSTER, JOB, PROBLEM, PROFILE, cluster_of, profile_of

METHODS = ["anneal", "colocate", "exact", "ifs"]


def rehearse(plan: Plan) -> float:
    """Simulate a plan with nothing but what is written in it."""
    assert plan.predicted is not None
    instance, _ = build_instance(
        problem_of(plan),
        plan.placed,
        seeds=plan.seeds,
        num_iterations=plan.predicted.iterations,
        window=plan.predicted.window,
        seed=plan.predicted.seed,
    )
    return simulate(instance, plan.policy).makespan_s


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("locality", [0.0, 0.6])
def test_the_prediction_is_what_simulating_the_file_gives(method: str, locality: float) -> None:
    plan = make_plan(Problem(CLUSTER, JOB, profile_of(locality)), method=method, seed=3)
    again = Plan.model_validate_json(plan.model_dump_json())
    assert again == plan
    assert again.predicted is not None
    assert again.predicted.makespan_s == rehearse(again)
    assert again.predicted.iteration_time_s == again.predicted.makespan_s / JOB.iterations


@pytest.mark.slow
@given(
    nics=st.lists(st.sampled_from([0.25, 1.0, 2.0]), min_size=2, max_size=4),
    trainers=st.integers(1, 4),
    samplers=st.integers(1, 2),
    servers=st.integers(0, 1),
    window=st.integers(0, 3),
    locality=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 5),
)
@settings(max_examples=25)
def test_plans_fit_predict_exactly_and_repeat(
    nics: list[float],
    trainers: int,
    samplers: int,
    servers: int,
    window: int,
    locality: float,
    seed: int,
) -> None:
    job = Job(
        trainers=trainers,
        samplers_per_trainer=samplers,
        sync=Sync.PS if servers else Sync.RING,
        batch_size=100,
        model_bytes=1e6,
        iterations=6,
        window=window,
        demands=JOB.demands,
    )
    problem = Problem(cluster_of(*nics), job, profile_of(locality))
    try:
        plan = make_plan(problem, seed=seed, steps=2000)
    except InfeasibleError:
        assume(False)
    plan.placed.check(plan.cluster, plan.job)
    assert plan.predicted is not None
    assert plan.predicted.makespan_s == rehearse(plan)
    assert make_plan(problem, seed=seed, steps=2000) == plan
    assert plan.bound_s <= plan.terms.time_s
    assert plan.gap == pytest.approx(plan.terms.time_s / plan.bound_s - 1)
    assert plan.proven == (plan.gap <= 1e-9)


def test_the_policy_is_the_best_one_rehearsed() -> None:
    plan = make_plan(Problem(CLUSTER, JOB.model_copy(update={"window": 1}), PROFILE))
    assert plan.shortlist is not None
    candidates = plan.shortlist.candidates
    assert {each.policy for each in candidates} <= set(AUTO_POLICIES)
    assert plan.policy == candidates[0].policy
    makespans = [each.makespan_s for each in candidates]
    assert makespans == sorted(makespans)
    assert plan.asked.policy == "auto"


def test_a_policy_can_be_asked_for() -> None:
    plan = make_plan(PROBLEM, policy="fifo")
    assert (plan.policy, plan.asked.policy) == ("fifo", "fifo")
    alone = make_plan(PROBLEM, policy="fifo", method="colocate")
    assert alone.shortlist is None


def test_seeds_follow_placement_where_that_saves_traffic() -> None:
    plan = make_plan(Problem(CLUSTER, JOB, profile_of(0.8)))
    assert plan.seed_mix_name == "local-first"
    assert plan.network_bytes < 0.8 * plan.uniform_network_bytes
    assert np.array_equal(plan.seeds, local_first_seeds(problem_of(plan), plan.placed))
    uniform = make_plan(Problem(CLUSTER, JOB, profile_of(0.8)), seed_mix="uniform")
    assert uniform.seed_mix is None
    assert uniform.network_bytes == uniform.uniform_network_bytes
    assert plan.predicted is not None
    assert uniform.predicted is not None
    assert plan.predicted.makespan_s < uniform.predicted.makespan_s


def test_without_locality_all_seeds_are_alike() -> None:
    plan = make_plan(PROBLEM)
    assert (plan.seed_mix_name, plan.seed_mix) == ("uniform", None)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_uniform_seeds_says_nothing_of_others(method: str) -> None:
    matrix = ((1.1e5, 1.3e5, 0.7e5),) * 3
    profile = PROFILE.model_copy(update={"store_traffic": StoreTraffic(matrix=matrix)})
    plan = make_plan(Problem(CLUSTER, JOB, profile), method=method)
    assert (plan.seed_mix_name, plan.seed_mix) == ("uniform", None)


@pytest.mark.parametrize("method", METHODS)
def test_a_measured_matrix_is_planned_for(method: str) -> None:
    matrix = ((8e5, 1e5, 1e5), (1e5, 8e5, 1e5), (2e5, 2e5, 6e5))
    profile = PROFILE.model_copy(update={"store_traffic": StoreTraffic(matrix=matrix)})
    plan = make_plan(Problem(CLUSTER, JOB, profile), method=method)
    assert plan.seed_mix_name == "local-first"
    assert plan.predicted is not None
    assert plan.predicted.makespan_s == rehearse(plan)


def test_a_long_job_is_predicted_by_its_first_iterations() -> None:
    plan = make_plan(Problem(CLUSTER, JOB.model_copy(update={"iterations": 10_000}), PROFILE))
    assert plan.predicted is not None
    assert plan.predicted.iterations == PREDICTED_ITERATIONS


def test_a_huge_job_is_not_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_SHORTLIST_WORK", 50)
    monkeypatch.setattr(planner, "_PREDICTION_WORK", 50)
    plan = make_plan(Problem(CLUSTER, JOB, profile_of(0.5)))
    assert (plan.predicted, plan.shortlist) == (None, None)
    assert plan.seed_mix_name == "local-first"
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


class Rounds:
    """Says yes a few times."""

    def __init__(self, num: int) -> None:
        self.left = num

    def __call__(self) -> bool:
        self.left -= 1
        return self.left >= 0


def test_searching_longer_is_never_worse_and_ends_with_a_proof() -> None:
    tight = JOB.model_copy(update={"demands": {**JOB.demands, Role.SAMPLER: {"cpu": 1.9}}})
    once = make_plan(Problem(CLUSTER, tight, PROFILE), steps=5)
    longer = make_plan(Problem(CLUSTER, tight, PROFILE), steps=5, keep_searching=Rounds(3))
    assert once.rounds == 1
    assert longer.rounds <= 4
    assert longer.terms.nic_s <= once.terms.nic_s
    assert make_plan(Problem(CLUSTER, tight, PROFILE), steps=5, rounds=longer.rounds) == longer
    proven = make_plan(PROBLEM, keep_searching=lambda: True)
    assert proven.proven


def test_a_given_placement_is_considered() -> None:
    good = make_plan(PROBLEM).placed
    poor = place("ifs", PROBLEM)
    assert good != poor
    plan = make_plan(PROBLEM, method="ifs", also=(good,))
    assert plan.placed == good


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"method": "best"}, "no placement method 'best': use one of anneal"),
        ({"policy": "best"}, "no flow policy 'best': use auto or one of"),
        ({"seed_mix": "best"}, "no seed mix 'best': use auto, uniform or local-first"),
    ],
)
def test_unknown_names(asked: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_plan(PROBLEM, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_a_job_that_does_not_fit(method: str) -> None:
    with pytest.raises(InfeasibleError, match="the job needs 46 cpu, the cluster has 18 cpu"):
        make_plan(Problem(CLUSTER, JOB.model_copy(update={"trainers": 9}), PROFILE), method=method)


@given(
    machines=st.lists(st.integers(0, 2), min_size=10, max_size=10),
    ring=st.booleans(),
    local=st.booleans(),
)
@settings(max_examples=50)
def test_traffic_is_what_the_edges_carry(machines: list[int], ring: bool, local: bool) -> None:
    job = JOB.model_copy(update={"sync": Sync.RING if ring else Sync.PS, "demands": {}})
    placement = Placement(
        samplers=tuple(machines[:6]),
        trainers=tuple(machines[6:9]),
        servers=() if ring else tuple(machines[9:]),
    )
    problem = Problem(CLUSTER, job, profile_of(0.3))
    seeds = local_first_seeds(problem, placement) if local else uniform_seeds(job, 3)
    graph = build_task_graph(job, 3, placement.ring_order)
    where = task_machines(graph, placement)
    expected = nic_loads(graph, edge_volumes(graph, problem, seeds), where, CLUSTER)
    found = traffic_of(problem, placement, seeds).loads_s(CLUSTER)
    for loads, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(loads, others, rtol=1e-12, atol=1e-15)
