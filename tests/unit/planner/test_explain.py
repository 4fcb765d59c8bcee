from __future__ import annotations

import pytest

from headrace.core.cluster import Cluster, Machine
from headrace.core.job import UNLIMITED_WINDOW, Role
from headrace.core.plan import Plan, Remedy
from headrace.core.profile import Problem, StoreTraffic, TaskTime
from headrace.planner.explain import explain, num_changes
from headrace.planner.planner import make_plan
from tests.unit.planner.small import CLUSTER, JOB, PROBLEM, PROFILE, cluster_of, profile_of


def remedies_of(plan: Plan) -> dict[str, float]:
    return {remedy.change: remedy.saving for remedy in explain(plan).remedies}


def test_the_slow_network_card_is_what_to_change() -> None:
    plan = make_plan(PROBLEM)
    found = explain(plan)
    assert found.limit == "nic"
    assert found.bottleneck.startswith("the network: ")
    assert found.is_rehearsed
    savings = [remedy.saving for remedy in found.remedies]
    assert savings == sorted(savings, reverse=True)
    assert {remedy.change for remedy in found.remedies} == {
        "doubling the NIC of m2",
        "doubling the NICs of m0 and m1",
        *(remedy.change for remedy in found.remedies if "alone" in remedy.change),
        *(remedy.change for remedy in found.remedies if "one more" in remedy.change),
        "a window of 4 instead of 2",
    }
    assert len(found.remedies) == num_changes(plan)


def test_a_remedy_is_a_plan_for_the_changed_cluster() -> None:
    plan = make_plan(PROBLEM)
    changed = make_plan(Problem(cluster_of(1.0, 1.0, 0.5), JOB, PROFILE), also=(plan.placed,))
    assert plan.predicted is not None
    assert changed.predicted is not None
    saving = 1 - changed.predicted.iteration_time_s / plan.predicted.iteration_time_s
    assert remedies_of(plan)["doubling the NIC of m2"] == saving > 0


@pytest.mark.slow
def test_explaining_twice_gives_the_same() -> None:
    plan = make_plan(Problem(CLUSTER, JOB, profile_of(0.5)), seed=2)
    assert explain(plan) == explain(Plan.model_validate_json(plan.model_dump_json()))


def test_steps_are_named_as_they_begin() -> None:
    plan, steps = make_plan(PROBLEM), list[str]()
    found = explain(plan, steps.append)
    assert sorted(steps) == sorted(remedy.change for remedy in found.remedies)


def test_a_new_machine_gets_a_name_of_its_own() -> None:
    twins = Cluster(
        machines=(
            Machine(name="a", resources={"cpu": 9, "gpu": 3}, nic_in=1e9, nic_out=1e9),
            Machine(name="a-more", resources={"cpu": 9, "gpu": 3}, nic_in=1e9, nic_out=1e9),
        )
    )
    plan = make_plan(Problem(twins, JOB, PROFILE))
    assert any(change.startswith("one more machine like a") for change in remedies_of(plan))


def test_an_unlimited_window_is_not_widened_and_a_matrix_keeps_its_parts() -> None:
    matrix = ((8e5, 1e5, 1e5), (1e5, 8e5, 1e5), (2e5, 2e5, 6e5))
    profile = PROFILE.model_copy(update={"store_traffic": StoreTraffic(matrix=matrix)})
    job = JOB.model_copy(update={"window": UNLIMITED_WINDOW})
    changes = remedies_of(make_plan(Problem(CLUSTER, job, profile)))
    assert changes
    assert not any("window" in change or "one more" in change for change in changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "limit", "words"),
    [
        ({"cycle_s": 9.0}, "cycle", "9 s from one update of the parameters to the next"),
        ({"task_s": 9.0}, "task", "the longest task takes 9 s"),
        ({"latency_s": 18.0}, "latency", "18 s between neighbouring stages, with a window of 2"),
    ],
)
def test_other_bottlenecks_have_names_too(
    changes: dict[str, float], limit: str, words: str
) -> None:
    plan = make_plan(PROBLEM)
    terms = plan.terms.model_copy(update=changes | {"time_s": 9.0})
    found = explain(plan.model_copy(update={"terms": terms}))
    assert found.limit == limit
    assert words in found.bottleneck


@pytest.mark.parametrize(
    ("saving", "sentence"),
    [
        (0.312, "it saves 31 %"),
        (-0.0712, "it costs 7.1 %"),
        (0.004, "it changes nothing"),
    ],
)
def test_sentences(saving: float, sentence: str) -> None:
    assert Remedy("it", 1.0, saving).sentence() == sentence


@pytest.mark.slow
def test_faster_trainers_help_where_computing_binds() -> None:
    times = {**PROFILE.task_times, Role.TRAINER: {"default": TaskTime(mean=1.0)}}
    plan = make_plan(Problem(CLUSTER, JOB, PROFILE.model_copy(update={"task_times": times})))
    found = explain(plan)
    assert found.limit in ("cycle", "task")
    assert found.remedies[0].change == "trainers that compute twice as fast"
    assert found.remedies[0].saving > 0.3
    cards = [remedy.change for remedy in found.remedies if "NIC" in remedy.change]
    assert cards == ["doubling the NICs of m0, m1 and m2"]
