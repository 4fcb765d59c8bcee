"""Growth curves meet their points, stay monotonous beyond them, and drive costs."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.core.growth import Growth
from headrace.core.job import Role
from headrace.core.placement import Placement
from headrace.core.profile import Problem, Profile
from headrace.core.tasks import build_task_graph
from headrace.costs import edge_volumes, nic_loads, task_machines, task_times
from headrace.planner.cost.nic_loads import build_load_model
from headrace.planner.cost.objective import evaluate
from headrace.planner.cost.traffic_matrix import traffic_of
from headrace.planner.planner import make_plan
from headrace.simulator import build_instance, simulate
from headrace.simulator.rehearser import Rehearser
from tests.unit.planner.small import CLUSTER, JOB, PROFILE

GROWTH = Growth(
    seeds=[12.5, 50, 200],
    nodes=[1000, 3000, 7000],
    edges=[1200, 4500, 15000],
    store_bytes=[1e6, 3e6, 7e6],
    batch_bytes=[1e6, 3.2e6, 8e6],
    sampler_time=[0.004, 0.012, 0.03],
    trainer_time=[0.003, 0.010, 0.036],
)


def grown(batch_size: int = JOB.batch_size, samplers: int = 2) -> Problem:
    """Profiled with 50 seeds per sampler, two samplers per trainer."""
    profile = Profile.model_validate(
        PROFILE.model_dump(exclude={"version"})
        | {"growth": GROWTH, "seeds_per_sampler": 50, "seeds_per_trainer": 100, "num_samplers": 6}
    )
    changes = {"batch_size": batch_size, "samplers_per_trainer": samplers}
    return Problem(CLUSTER, JOB.model_copy(update=changes), profile)


def test_curve_meets_its_points_and_grows_less_than_proportionally() -> None:
    for name in ("nodes", "edges", "store_bytes", "trainer_time"):
        np.testing.assert_allclose(GROWTH.values_at(name, GROWTH.seeds), getattr(GROWTH, name))
    sizes = np.geomspace(0.1, 1e6, 200)
    values = GROWTH.values_at("nodes", sizes)
    assert (np.diff(values) >= -1e-9).all()
    assert (np.diff(values / sizes) <= 1e-9).all()
    assert GROWTH.values_at("nodes", 0) == 0


def test_two_sizes_give_a_power_law() -> None:
    growth = Growth(seeds=[10, 40], nodes=[100, 200])
    np.testing.assert_allclose(
        growth.values_at("nodes", [5, 20, 160]), [100 / 2**0.5, 141.42, 400], 1e-4
    )


def test_a_quantity_that_was_not_measured_grows_like_nodes_or_edges() -> None:
    growth = Growth(seeds=[10, 40], nodes=[100, 200], edges=[100, 300])
    assert growth.values_at("store_bytes", 40) == pytest.approx(200)
    assert growth.values_at("trainer_time", 40) == pytest.approx(300)
    assert Growth(seeds=[10, 40]).values_at("trainer_time", 40) == 40


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"seeds": [10, 10]}, "at least two ascending sizes"),
        ({"seeds": [10]}, "at least two ascending sizes"),
        ({"seeds": [10, 20], "nodes": [1]}, "nodes has 1 values for 2 sizes"),
        ({"seeds": [10, 20], "nodes": [0, 1]}, "nodes"),
    ],
)
def test_a_wrong_curve_is_refused(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        Growth(**fields)


def test_growth_needs_version_2_and_is_written_only_if_known() -> None:
    assert "growth" not in PROFILE.model_dump()
    assert (PROFILE.version, grown().profile.version) == (1, 2)
    again = Profile.model_validate(grown().profile.model_dump(mode="json"))
    assert again == grown().profile
    with pytest.raises(SpecError, match="version 1 has no growth"):
        Profile(**{**PROFILE.model_dump(), "growth": GROWTH})


def test_nominal_seeds_have_the_nominal_costs() -> None:
    placement = make_plan(grown(), seed_mix="uniform").placed
    plain = grown()._replace(profile=PROFILE)
    assert evaluate(grown(), placement).nic_s == pytest.approx(evaluate(plain, placement).nic_s)
    for role in (Role.STORE, Role.SAMPLER, Role.TRAINER):
        assert grown().profile.seed_scale(role, JOB) == pytest.approx(1)


def test_twice_the_seeds_cost_less_than_twice_as_much() -> None:
    problem = grown(batch_size=200)
    assert problem.profile.seed_scale(Role.TRAINER, problem.job) == pytest.approx(
        float(GROWTH.values_at("trainer_time", 100)) / 0.010
    )
    one_sampler = grown(samplers=1)
    # One sampler has all seeds: fewer nodes in total, so less work for its trainer.
    assert one_sampler.profile.seed_scale(Role.TRAINER, one_sampler.job) < 1
    assert one_sampler.profile.seed_scale(Role.SAMPLER, one_sampler.job) == pytest.approx(
        float(GROWTH.values_at("sampler_time", 100)) / 0.012
    )


@pytest.mark.parametrize("batch_size", [30, 100, 400])
def test_all_models_agree_on_grown_volumes(batch_size: int) -> None:
    problem = grown(batch_size)
    placement = Placement(samplers=(0, 0, 1, 1, 2, 2), trainers=(0, 1, 2), servers=(1,))
    seeds = problem.uniform_seeds
    graph = build_task_graph(problem.job, CLUSTER.num_machines, placement.ring_order)
    machines = task_machines(graph, placement)
    loads = nic_loads(graph, edge_volumes(graph, problem, seeds), machines, CLUSTER)
    np.testing.assert_allclose(traffic_of(problem, placement, seeds).loads_s(CLUSTER), loads)
    model = build_load_model(problem, local_seeds=False)
    without_sync = [model.graph_in[m, 2] for m in range(3)]
    batches = problem.profile.store_bytes_per_seed(problem.job, 3)
    expected = [
        2 * batch_size / 2 * (batches.mean(axis=0).sum() - batches.mean(axis=0)[m])
        / CLUSTER.nic_in_bytes_per_s()[m]
        for m in range(3)
    ]  # fmt: skip
    np.testing.assert_allclose(without_sync, expected)


def test_unequal_seeds_are_simulated_alike_by_both_paths() -> None:
    problem = grown()
    placement = make_plan(problem, seed_mix="uniform").placed
    seeds = problem.uniform_seeds * np.array([0.5, 0.5, 1, 1, 1.5, 1.5])[:, None]
    instance, graph = build_instance(problem, placement, seeds=seeds, num_iterations=10)
    expected_s = simulate(instance, "maxmin").makespan_s
    assert Rehearser(problem, num_iterations=10).makespan_s(
        placement, "maxmin", seeds
    ) == pytest.approx(expected_s, rel=1e-12)
    times = task_times(graph, problem, task_machines(graph, placement), seeds)
    trainers = times[graph.first_trainer : graph.first_server]
    np.testing.assert_allclose(
        trainers, 0.01 * GROWTH.values_at("trainer_time", [25, 50, 75]) / 0.010
    )


def test_curves_are_equal_after_use() -> None:
    one, other = (Growth(seeds=(10, 40), nodes=(30, 90)) for _ in range(2))
    one.values_at("nodes", 20)
    other.values_at("nodes", 30)
    assert one == other
