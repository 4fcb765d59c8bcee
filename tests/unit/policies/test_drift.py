"""When a run is looked into, and when it goes on with another plan."""

from __future__ import annotations

import pytest

from headrace.core.job import Role
from headrace.policies.drift.deciding import (
    Drift,
    Examine,
    Findings,
    Keep,
    Replan,
    Rules,
    begin,
    evaluate,
    weigh,
)
from headrace.policies.drift.figures import Figures, NicChange, Peak, Window, with_peaks
from tests.unit.planner.small import cluster_of

TRAINER, SAMPLER = (Role.TRAINER, "default"), (Role.SAMPLER, "old")
EXPECTED = Figures(0.1, {TRAINER: 0.05, SAMPLER: 0.04})
RULES = Rules(rest_s=10.0)
SLOWER = NicChange("m2 in", 1e9, 0.5e9)


def window(number: int, time_s: float, sampler: float = 0.04) -> Window:
    figures = Figures(time_s, {TRAINER: 0.05, SAMPLER: sampler})
    return Window(20 * number, 20 * number + 19, figures)


def feed(state: Drift, *windows: Window, now_s: float = 100.0) -> tuple[Drift, list[Examine]]:
    asked = []
    for each in windows:
        state, examine = evaluate(state, each, now_s)
        if examine is not None:
            asked.append(examine)
    return state, asked


def test_what_is_as_planned_is_left_alone() -> None:
    state = begin(EXPECTED, 0, 0.0, RULES)
    assert feed(state, *(window(n, 0.1 + 0.002 * n) for n in range(1, 10)))[1] == []


def test_one_slow_window_is_not_enough_and_two_are() -> None:
    state = begin(EXPECTED, 0, 0.0, RULES)
    assert feed(state, window(1, 0.2), window(2, 0.1), window(3, 0.2))[1] == []
    (asked,) = feed(state, window(1, 0.2), window(2, 0.19))[1]
    assert asked.why == "an iteration takes 190 ms, not 100 ms"
    assert asked.window == window(2, 0.19)


def test_a_run_that_is_faster_has_drifted_too() -> None:
    assert len(feed(begin(EXPECTED, 0, 0.0, RULES), window(1, 0.06), window(2, 0.06))[1]) == 1


def test_what_comes_half_way_back_has_not_settled() -> None:
    state = begin(EXPECTED, 0, 0.0, RULES)
    # 20 % off is below the threshold, but not as expected again; 10 % is.
    assert len(feed(state, window(1, 0.14), window(2, 0.12), window(3, 0.14))[1]) == 1
    assert feed(state, window(1, 0.14), window(2, 0.11), window(3, 0.14))[1] == []


def test_first_iterations_and_first_seconds_do_not_count() -> None:
    state = begin(EXPECTED, 35, 95.0, RULES)
    assert feed(state, window(1, 0.5), window(2, 0.5), now_s=200.0)[1] == []
    state, asked = feed(state, window(3, 0.5), window(4, 0.5), now_s=104.0)
    assert asked == []
    assert len(feed(state, window(5, 0.5), now_s=106.0)[1]) == 1


def test_task_times_count_if_they_matter() -> None:
    state = begin(EXPECTED, 0, 0.0, RULES)
    (asked,) = feed(state, window(1, 0.11, sampler=0.07), window(2, 0.11, sampler=0.08))[1]
    assert asked.why == "a sampler on old takes 80 ms, not 40 ms"
    # The same factor, of an iteration that takes ten times as long.
    slow = begin(Figures(1.0, EXPECTED.task_times_s), 0, 0.0, RULES)
    assert feed(slow, window(1, 1.0, sampler=0.08), window(2, 1.0, sampler=0.08))[1] == []


def findings(**changes: object) -> Findings:
    known: dict[str, object] = {"why": "slow", "current_s": 0.2, "replanned_s": 0.12}
    return Findings(**{**known, "num_moves": 2, "nics": (SLOWER,), **changes})  # type: ignore[arg-type]


def judge(found: Findings | None, num_left: float = 1000, resume_s: float = 20.0) -> object:
    state = begin(EXPECTED, 0, 0.0, RULES)
    return weigh(state, found, window(2, 0.25), num_left, resume_s, 100.0)[1]


def test_a_plan_that_saves_enough_is_taken() -> None:
    decision = judge(findings())
    assert isinstance(decision, Replan)
    assert decision.why == (
        "slow; m2 in carries 4 Gbps, not 8 Gbps: 2 tasks move, saving 40% of an iteration"
    )


@pytest.mark.parametrize(
    ("found", "num_left", "why"),
    [
        (None, 1000, "could not be determined"),
        (findings(replanned_s=0.19), 1000, "the best one saves 5% of an iteration"),
        (findings(replanned_s=0.25), 1000, "none is faster"),
        (findings(num_moves=0), 1000, "none is faster"),
        # 40 % of a quarter of a second, a hundred times: less than a resume takes.
        (findings(), 100, "saves 10 s until the end, but resuming with it takes 20 s"),
    ],
)
def test_any_other_plan_is_not(found: Findings | None, num_left: float, why: str) -> None:
    decision = judge(found, num_left)
    assert isinstance(decision, Keep)
    assert why in decision.why


def test_what_was_looked_into_in_vain_is_expected_and_rests() -> None:
    state = begin(EXPECTED, 0, 0.0, RULES)
    slow = [window(n, 0.2) for n in range(1, 5)]
    state, (asked,) = feed(state, *slow[:2])
    state, _ = weigh(state, findings(num_moves=0), asked.window, 100, 20.0, 100.0)
    # As slow as before is not news, slower still is, but only after a rest.
    assert feed(state, *slow, now_s=900.0)[1] == []
    slower = [window(n, 0.3) for n in range(5, 7)]
    assert feed(state, *slower, now_s=119.0)[1] == []
    state, asked_again = feed(state, *slower, now_s=121.0)
    assert len(asked_again) == 1
    state, _ = weigh(state, None, slower[1], 100, 20.0, 121.0)
    assert state.quiet_until_s == 161.0


def test_a_card_that_carried_less_than_it_could_is_slower() -> None:
    cluster = cluster_of(1.0, 1.0, 1.0)
    peaks = {"m0": Peak(0.95e9, 0.97e9), "m1": Peak(0.98e9, 0.9e9), "m2": Peak(0.5e9, 0.96e9)}
    found, changes = with_peaks(cluster, peaks, 0.3)
    assert [str(change) for change in changes] == ["m2 in carries 4 Gbps, not 8 Gbps"]
    assert (found.hosts[2].nic_in, found.hosts[2].nic_out) == (0.5e9, 1e9)
    assert found.hosts[:2] == cluster.hosts[:2]


def test_a_fast_card_among_slow_ones_is_not_accused() -> None:
    cluster = cluster_of(5.0, 1.0, 2.0)
    peaks = {"m0": Peak(1.9e9, 1.95e9), "m1": Peak(0.95e9, 0.95e9), "m2": Peak(1.9e9, 1.9e9)}
    assert with_peaks(cluster, peaks, 0.3) == (cluster, ())


def test_a_faster_card_is_seen_and_an_unseen_one_stays() -> None:
    cluster = cluster_of(1.0, 1.0)
    found, changes = with_peaks(cluster, {"m0": Peak(2e9, 0.0)}, 0.3)
    assert [change.nic for change in changes] == ["m0 in"]
    assert found.hosts[0].nic_in == 2e9
    assert with_peaks(cluster_of(1.0), {"m0": Peak(9e9, 9e9)}, 0.3)[1] == ()
