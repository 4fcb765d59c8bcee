from __future__ import annotations

import json
from pathlib import Path

import pytest

import headrace
from headrace.api.plan import (
    diff_plans,
    explain,
    explanation_summary,
    plan,
    plan_summary,
)
from headrace.core.errors import SpecError
from tests.unit.planner.small import CLUSTER, JOB, PROFILE, cluster_of, profile_of


class Clock:
    """Ticks once whenever it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def test_the_package_plans() -> None:
    found = headrace.plan(CLUSTER, JOB, PROFILE)
    assert isinstance(found, headrace.Plan)
    assert headrace.explain(found).plan == found
    assert plan_summary(found)["proven"] == found.proven


def test_a_plan_can_be_saved_and_simulated(tmp_path: Path) -> None:
    found = plan(CLUSTER, JOB, profile_of(0.7), seed=4)
    assert found.seed_mix is not None
    assert found.predicted is not None
    headrace.save_plan(found, tmp_path / "plan.json")
    assert headrace.load_plan(tmp_path / "plan.json") == found
    for placement in (found, tmp_path / "plan.json"):
        again = headrace.simulate(CLUSTER, JOB, profile_of(0.7), placement, seed=4)
        assert again.makespan_s == found.predicted.makespan_s
        assert again.policy == found.policy
    other = headrace.simulate(CLUSTER, JOB, profile_of(0.7), tmp_path / "plan.json", "fifo")
    assert other.policy == "fifo"
    assert headrace.load_placement(tmp_path / "plan.json", CLUSTER) == found.placed


def test_a_plan_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be written"):
        headrace.save_plan(plan(CLUSTER, JOB, PROFILE), tmp_path / "no" / "plan.json")


def test_a_plan_for_another_cluster_names_the_line(tmp_path: Path) -> None:
    headrace.save_plan(plan(CLUSTER, JOB, PROFILE), tmp_path / "plan.json")
    with pytest.raises(SpecError, match=r"plan\.json, line \d+: placement\."):
        headrace.load_placement(tmp_path / "plan.json", cluster_of(1.0, 1.0))


def test_a_changed_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    headrace.save_plan(plan(CLUSTER, JOB, PROFILE), path)
    path.write_text(path.read_text().replace('"batch_size": 100', '"batch_size": 200'))
    with pytest.raises(SpecError, match="the file was changed after it was written"):
        headrace.load_plan(path)
    document = json.loads(path.read_text())
    del document["checksum"]
    path.write_text(json.dumps(document))
    with pytest.raises(SpecError, match="plan again for the changed job"):
        headrace.load_plan(path)


def test_a_budget_is_measured_by_the_clock_given() -> None:
    clock = Clock()
    found = plan(CLUSTER, JOB, PROFILE, budget_s=3.0, clock=clock)
    assert found.proven or found.rounds >= 2
    assert found.rounds <= 4


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"budget_s": 1.0}, "a budget needs a clock"),
        ({"rounds": 0}, "request at least 1"),
        ({"rounds": 2, "method": "colocate"}, "colocate does not support a longer search"),
    ],
)
def test_impossible_budgets(asked: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        plan(CLUSTER, JOB, PROFILE, **asked)  # type: ignore[arg-type]


def test_without_a_profile_the_synthetic_one() -> None:
    assert plan(CLUSTER, JOB).profile == headrace.default_profile()


def test_a_plan_differs_from_itself_in_nothing() -> None:
    found = plan(CLUSTER, JOB, PROFILE)
    diff = diff_plans(found, found)
    assert (diff.moves, diff.changed_inputs, diff.saving) == ((), (), 0.0)


def test_moved_tasks_are_named() -> None:
    before, after = plan(CLUSTER, JOB, PROFILE, method="ifs"), plan(CLUSTER, JOB, PROFILE)
    diff = diff_plans(before, after)
    assert diff.changed_inputs == ()
    assert diff.saving is not None
    assert diff.saving > 0
    for move in diff.moves:
        assert move.task[:7] in {"sampler", "trainer", "ps0"}
        assert move.before != move.after
    small = JOB.model_copy(update={"trainers": 2})
    shrunk = diff_plans(before, plan(CLUSTER, small, PROFILE))
    assert shrunk.changed_inputs == ("job",)
    assert {move.after for move in shrunk.moves if move.task in ("trainer2", "sampler2.1")} == {""}


def test_explanations_are_plain_values() -> None:
    found = explanation_summary(explain(plan(CLUSTER, JOB, PROFILE)))
    assert found["limit"] == "nic"
    assert all(
        set(remedy) == {"change", "time_s", "saving", "sentence"} for remedy in found["remedies"]
    )
