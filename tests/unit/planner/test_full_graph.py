"""Plans of full-graph jobs: which part is where, and how long an epoch takes."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from headrace.core.cluster import Cluster
from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.full_graph import FullGraphFigures
from headrace.core.job import Job, Parallelism, Role
from headrace.core.plan import Plan, problem_of
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic, TaskTime
from headrace.planner import full_graph
from headrace.planner.explain import explain
from headrace.planner.parallelism import by_features, by_rows
from headrace.planner.planner import make_plan
from headrace.planner.replan import replan
from headrace.planner.what_if import rehearse_changes
from headrace.simulator import build_instance, simulate
from tests.unit.planner.small import cluster_of

ROWS = ((0, 4, 1), (2, 0, 1), (3, 5, 0))


def figures_of(**fields: object) -> FullGraphFigures:
    given: dict[str, object] = {
        "nodes": (100, 100, 100),
        "edges": (300, 300, 300),
        "halo": tuple(tuple(2 * row for row in rows) for rows in ROWS),
        "cover": ROWS,
    }
    return FullGraphFigures.model_validate(given | fields)


def profile_of(time_s: float = 0.0, **fields: object) -> Profile:
    times = dict.fromkeys((Role.STORE, Role.SAMPLER, Role.SERVER), 0.0)
    return Profile(
        task_times={
            role: {"default": TaskTime(mean=mean)}
            for role, mean in (times | {Role.TRAINER: time_s}).items()
        },
        store_traffic=StoreTraffic(),
        batch_traffic=BatchTraffic(bytes_per_seed=0.0),
        full_graph=figures_of(**fields),
    )


def problem_with(
    cluster: Cluster, profile: Profile, swaps: object = (25_000_000,), **fields: object
) -> Problem:
    given = {"kind": "full-graph", "trainers": 3, "iterations": 4, "swaps": swaps}
    return Problem(cluster, Job.model_validate(given | fields), profile)


def planned(problem: Problem) -> Plan:
    plan = make_plan(problem)
    assert Plan.model_validate_json(plan.to_text()) == plan
    return plan


def test_an_epoch_lasts_as_long_as_the_busiest_nic() -> None:
    # 100 MB per row: part 1 sends 9 rows.
    problem = problem_with(cluster_of(1.0, 1.0, 1.0), profile_of(), [{"row_bytes": 1e8}])
    plan = planned(problem)
    rows = np.array(ROWS)
    assert max(rows.sum(axis=0).max(), rows.sum(axis=1).max()) == 9
    assert plan.predicted is not None
    assert plan.predicted.iteration_time_s == pytest.approx(0.9)
    assert plan.network_bytes == pytest.approx(1e8 * rows.sum())
    assert plan.parts == (0, 1, 2)
    assert plan.terms.cycle_s == plan.bound_s == pytest.approx(0.9)


def test_gradients_of_early_trainers_compete_with_rows_of_late_ones() -> None:
    plan = planned(problem_with(cluster_of(1.0, 1.0, 1.0), profile_of()))
    assert plan.terms.cycle_s == pytest.approx(1.8)
    assert plan.time_s > 1.8


def test_computing_is_divided_by_work_and_added_to_swaps() -> None:
    profile = profile_of(0.8, nodes=(100, 100, 400), edges=(300, 300, 0))
    swaps = [{"row_bytes": 1e8}]
    plan = planned(problem_with(cluster_of(1.0, 1.0, 1.0), profile, swaps))
    assert plan.time_s == pytest.approx(0.4 + 0.9 + 0.4)


def test_what_is_computed_during_a_swap_is_hidden() -> None:
    swaps = [{"row_bytes": 1e8}]
    times_s = {}
    for shares in ((0.4, 0.6, 0.0), (0.4, 0.0, 0.6)):
        profile = profile_of(1.0, swaps=swaps, shares=shares, delays=(0.5,))
        problem = problem_with(cluster_of(1.0, 1.0, 1.0), profile, swaps)
        plan = planned(problem)
        assert plan.predicted is not None
        times_s[shares] = plan.predicted.iteration_time_s
    assert list(times_s.values()) == pytest.approx([0.4 + 0.9 + 0.5, 0.4 + 0.9 + 0.6 + 0.5])


def test_layers_that_make_messages_exchange_the_halo() -> None:
    swaps = [{"row_bytes": 1e8, "is_sum": False}]
    plan = planned(problem_with(cluster_of(1.0, 1.0, 1.0), profile_of(), swaps))
    assert plan.network_bytes == pytest.approx(1e8 * 2 * np.array(ROWS).sum())


@pytest.mark.parametrize("nics", [(0.25, 1.0, 1.0), (1.0, 0.25, 1.0), (1.0, 0.25, 1.0, 2.0)])
def test_parts_are_where_an_epoch_is_shortest(nics: tuple[float, ...]) -> None:
    problem = problem_with(cluster_of(*nics), profile_of())
    plan = planned(problem)
    times_s = []
    for parts in permutations(range(len(nics)), 3):
        changed, placement = full_graph.placed(problem, parts)
        instance, _ = build_instance(changed, placement)
        times_s.append(simulate(instance, "maxmin").makespan_s / 4)
    assert plan.predicted is not None
    assert plan.predicted.iteration_time_s == pytest.approx(min(times_s))
    assert plan.placement.trainers == tuple(f"m{m}" for m in sorted(plan.parts or ()))


def test_many_parts_are_moved_until_no_move_helps() -> None:
    num, rng = 9, np.random.default_rng(0)
    rows = rng.integers(0, 9, (num, num)) * (1 - np.eye(num, dtype=int))
    counts = {"nodes": (1,) * num, "edges": tuple(rng.integers(0, 9, num).tolist())}
    given = tuple(map(tuple, rows.tolist()))
    profile = profile_of(0.1, halo=given, cover=given, **counts)
    nics = rng.choice([0.25, 1.0], num).tolist()
    problem = problem_with(cluster_of(*nics), profile, trainers=num)
    (best, *_) = full_graph.shortlist(problem, 4)
    estimate = full_graph._Estimate(problem)
    assert sorted(best) == list(range(num))
    assert estimate.bound_s <= estimate.time_s(best) < estimate.time_s(range(num))


def test_trainers_have_the_numbers_of_their_machines() -> None:
    problem = problem_with(cluster_of(1.0, 1.0, 1.0), profile_of())
    changed, placement = full_graph.placed(problem, (2, 0, 1))
    assert placement.trainers == (0, 1, 2)
    # Machine 0 has part 1, which gets two rows of part 0 on machine 2.
    assert changed.full_graph.cover[0] == (0, 1, 2)


def test_parts_are_merged_evenly_and_where_they_need_most_rows() -> None:
    halo = ((0, 1, 5, 1), (1, 0, 1, 5), (5, 1, 0, 1), (1, 5, 1, 0))
    equal = {"nodes": (10, 10, 10, 10), "edges": (0, 0, 0, 0), "halo": halo, "cover": halo}
    assert full_graph.merged(figures_of(**equal), 2) == (0, 1, 0, 1)
    assert full_graph.merged(figures_of(**equal), 4) == (0, 1, 2, 3)
    assert full_graph.merged(figures_of(**equal), 1) == (0, 0, 0, 0)
    assert full_graph.merged(figures_of(**equal | {"nodes": (30, 10, 10, 10)}), 2) == (0, 1, 1, 1)


def test_a_single_trainer_exchanges_nothing() -> None:
    alone = {"nodes": (100,), "edges": (300,), "halo": ((0,),), "cover": ((0,),)}
    plan = planned(problem_with(cluster_of(1.0), profile_of(0.8, **alone), trainers=1))
    assert plan.time_s == pytest.approx(0.8)
    assert plan.network_bytes == 0


def test_bins_take_time() -> None:
    figures = figures_of(work=400.0)
    assert figures.with_bins(1) == figures
    binned = figures.with_bins(8)
    assert binned.work_factors() == pytest.approx(1.39 * figures.work_factors())
    assert binned.with_bins(32) is binned
    assert binned.with_bins(1).work_factors() == pytest.approx(figures.work_factors())


def test_each_trainer_has_a_machine_of_its_own() -> None:
    with pytest.raises(InfeasibleError, match="3 trainers of a full-graph job"):
        make_plan(problem_with(cluster_of(1.0, 1.0), profile_of()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trainers": 2}, "2 trainers, the profile parts of 3"),
        ({"swaps": ()}, "does not have the rows that its layers exchange"),
    ],
)
def test_problems_that_cannot_be_planned(fields: dict[str, object], message: str) -> None:
    problem = problem_with(cluster_of(1.0, 1.0, 1.0), profile_of(), **fields)
    with pytest.raises(SpecError, match=message):
        make_plan(problem)


def test_profiles_without_rows_are_refused() -> None:
    profile = profile_of().model_copy(update={"full_graph": None})
    with pytest.raises(SpecError, match="plan with the partitioned graph"):
        make_plan(problem_with(cluster_of(1.0, 1.0, 1.0), profile))


def test_explanations_plan_again() -> None:
    plan = planned(problem_with(cluster_of(1.0, 1.0, 1.0), profile_of(0.1)))
    found = {remedy.change: remedy.saving for remedy in explain(plan).remedies}
    assert found["doubling the NICs of m0, m1 and m2"] > 0.4
    assert not any("sampler" in change or "window" in change for change in found)


def test_reports_simulate_faster_machines_only() -> None:
    plan = planned(problem_with(cluster_of(1.0, 1.0, 1.0), profile_of(0.1)))
    time_s, changes = rehearse_changes(plan, plan.profile, 4)
    assert time_s == pytest.approx(plan.time_s)
    assert {"trainers that compute twice as fast"} <= {each.change for each in changes}
    assert not any("sampler" in each.change or "seed" in each.change for each in changes)


def test_a_run_that_loses_a_machine_goes_on_without_a_prediction_of_swaps() -> None:
    plan = planned(problem_with(cluster_of(1.0, 1.0, 1.0), profile_of(0.1)))
    smaller = replan(plan, ["m0", "m2"])
    assert set(smaller.part_machines) == {0, 1}
    assert problem_of(smaller).job.swaps == ()


def test_a_plan_of_servers_predicts_too() -> None:
    problem = problem_with(cluster_of(1.0, 1.0, 1.0), profile_of(0.1), sync="ps", model_bytes=1e6)
    assert planned(problem).time_s > 0.1


def test_layers_are_divided_by_features_where_a_part_has_many_rows() -> None:
    # Columns of 16 values: 2 * 100 * 16 * 2/3 through each NIC, either way.
    few, many = ((0, 66, 66), (66, 0, 66), (66, 66, 0)), ((0, 67, 67), (67, 0, 67), (67, 67, 0))
    for rows, slices in ((few, {""}), (many, {"columns", "rows"})):
        # Widths that three trainers divide evenly.
        profile = profile_of(halo=rows, cover=rows)
        plan = planned(problem_with(cluster_of(1.0, 1.0, 1.0), profile, [30_000, 300]))
        assert {swap.slices for swap in plan.job.swaps} == slices
        # As many bytes are planned again.
        assert planned(problem_of(plan)).job.swaps == plan.job.swaps
    assert [swap.slices for swap in plan.job.swaps] == ["columns", "rows"] * 2 + [
        "rows", "columns",
    ] * 2  # fmt: skip
    both = 2 * 2 * 2 * 100 * 4 * 30_300 * 3 * 2 / 3
    assert plan.network_bytes == pytest.approx(both / 2)
    job = plan.job.model_copy(update={"parallelism": Parallelism.ROWS})
    kept = planned(problem_of(plan)._replace(job=job))
    assert [swap.slices for swap in kept.job.swaps] == [""] * 4
    assert kept.time_s > plan.time_s


def test_measured_times_move_with_the_swaps() -> None:
    swaps = [{"row_bytes": 1e7}, {"row_bytes": 3e7, "is_sum": False}]
    about = {"swaps": swaps, "shares": (0.2, 0.1, 0.3, 0.0, 0.4), "delays": (0.5, 0.25)}
    problem = problem_with(cluster_of(1.0, 1.0, 1.0), profile_of(1.0, **about), swaps)
    divided = by_features(problem, {("", 1e7), ("", 3e7)})
    assert [swap.slices for swap in divided.job.swaps] == ["columns", "rows", ""]
    figures = divided.full_graph
    assert figures.shares == (0.2, 0.0, 0.1, 0.0, 0.3, 0.0, 0.4)
    assert figures.delays == (0.5, 0.5, 0.25)
    assert FullGraphFigures.model_validate(figures.model_dump()) == figures
    assert by_rows(divided) == problem


def test_jobs_can_ask_for_features() -> None:
    job = {"parallelism": "features"}
    plan = planned(problem_with(cluster_of(1.0, 1.0, 1.0), profile_of(), **job))
    assert {swap.slices for swap in plan.job.swaps} == {"columns", "rows"}
    assert "parallelism" not in problem_with(cluster_of(1.0), profile_of()).job.model_dump()
