"""Drift detection and replanning decisions, without side effects.

Every window of iterations is compared with the expected times. If a time differs by more than a
threshold in several consecutive windows, the network is measured and the job is replanned. The run
switches to the new plan only if it saves enough of each iteration and, over the remaining
iterations, more than the cost of a resume. Otherwise the measured times become the expected ones,
and the interval before the next examination doubles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from headrace.core.units import format_seconds
from headrace.policies.drift.figures import Figures, NicChange, Window

_ITERATION = "an iteration"


@dataclass(frozen=True)
class Rules:
    """Thresholds and intervals.

    Attributes:
        threshold: Relative difference above which a time has drifted.
        num_windows: Consecutive drifted windows that trigger an examination.
        warm_up: Ignored iterations after a start.
        matters: A task time counts only if it differs by this share of an iteration.
        margin: Share of an iteration that another plan must save.
        payback: Minimum ratio of total saving to resume cost.
        rest_s: Time without examinations after a start; doubles after each one without a new plan.
        most_rest_s: Upper limit of `rest_s`.
    """

    threshold: float = 0.3
    num_windows: int = 2
    warm_up: int = 10
    matters: float = 0.1
    margin: float = 0.1
    payback: float = 1.5
    rest_s: float = 20.0
    most_rest_s: float = 900.0

    @property
    def settled(self) -> float:
        """Relative difference below which a drifted time counts as expected again."""
        return self.threshold / 2


_DEFAULT_RULES = Rules()


@dataclass(frozen=True)
class Drift:
    """Drift state of a run since its last start.

    Attributes:
        expected: Times of the plan, or of the last examination.
        first: First iteration since the start.
        quiet_until_s: No examination before this time.
        rest_s: Length of the next interval without examinations.
        num_drifted: Consecutive drifted windows by name.
        rules: Thresholds and intervals.
    """

    expected: Figures
    first: int
    quiet_until_s: float
    rest_s: float
    num_drifted: dict[str, int] = field(default_factory=dict)
    rules: Rules = _DEFAULT_RULES


@dataclass(frozen=True)
class Examine:
    """Decision: measure the cluster and replan; `why` describes the drift in `window`."""

    why: str
    window: Window


@dataclass(frozen=True)
class Findings:
    """Result of an examination, simulated with measured values.

    Attributes:
        why: Description of the drift.
        current_s: Time per iteration of the current plan.
        replanned_s: Time per iteration of the new plan.
        num_moves: Tasks with another machine in the new plan.
        nics: NICs with changed bandwidth.
    """

    why: str
    current_s: float
    replanned_s: float
    num_moves: int
    nics: tuple[NicChange, ...] = ()

    @property
    def saving(self) -> float:
        """Share of an iteration that the new plan saves."""
        return 1 - self.replanned_s / self.current_s if self.current_s > 0 else 0.0

    @property
    def what(self) -> str:
        """Description of all changes."""
        return "; ".join([self.why, *map(str, self.nics)])


@dataclass(frozen=True)
class Replan:
    """Decision: resume with the new plan."""

    why: str


@dataclass(frozen=True)
class Keep:
    """Decision: keep the current plan."""

    why: str


def begin(expected: Figures, first: int, now_s: float, rules: Rules = _DEFAULT_RULES) -> Drift:
    """State after all tasks have started at iteration `first`."""
    return Drift(expected, first, now_s + rules.rest_s, 2 * rules.rest_s, {}, rules)


def evaluate(state: Drift, window: Window, now_s: float) -> tuple[Drift, Examine | None]:
    """Update the state with another window; decide whether to examine the drift."""
    rules = state.rules
    if window.first < state.first + rules.warm_up:
        return state, None
    num_drifted, lines = {}, {}
    for name, measured_s, expected_s in _compared(state.expected, window.figures, rules.matters):
        off = _difference(measured_s, expected_s)
        before = state.num_drifted.get(name, 0)
        if off > rules.threshold:
            num_drifted[name] = before + 1
            lines[name] = (
                f"{name} takes {format_seconds(measured_s)}, not {format_seconds(expected_s)}"
            )
        elif off > rules.settled and before:
            # Still above the lower threshold: keep the count.
            num_drifted[name] = before
    state = replace(state, num_drifted=num_drifted)
    long = [name for name in lines if num_drifted[name] >= rules.num_windows]
    if not long or now_s < state.quiet_until_s:
        return state, None
    return state, Examine("; ".join(lines[name] for name in long[:2]), window)


def weigh(
    state: Drift,
    found: Findings | None,
    window: Window,
    num_left: float,
    resume_s: float,
    now_s: float,
) -> tuple[Drift, Replan | Keep]:
    """Decide whether to resume with the plan of an examination.

    `found` is None if the examination failed, `num_left` the remaining iterations, `resume_s` the
    cost of a resume.
    """
    rules = state.rules
    state = replace(
        state,
        expected=window.figures,
        num_drifted={},
        quiet_until_s=now_s + state.rest_s,
        rest_s=min(2 * state.rest_s, rules.most_rest_s),
    )
    if found is None:
        return state, Keep("the cause of the drift could not be determined")
    if not found.num_moves or found.saving < rules.margin:
        saving = max(found.saving, 0.0) if found.num_moves else 0.0
        best = f"the best one saves {saving:.0%} of an iteration" if saving else "none is faster"
        return state, Keep(f"{found.what}: no other plan saves enough, {best}")
    saved_s = found.saving * window.figures.iteration_time_s * num_left
    if saved_s < rules.payback * resume_s:
        return state, Keep(
            f"{found.what}: another plan saves {format_seconds(saved_s)} until the end, but "
            f"resuming with it takes {format_seconds(resume_s)}"
        )
    noun = "task moves" if found.num_moves == 1 else "tasks move"
    return state, Replan(
        f"{found.what}: {found.num_moves} {noun}, saving {found.saving:.0%} of an iteration"
    )


def _compared(
    expected: Figures, measured: Figures, matters: float
) -> list[tuple[str, float, float]]:
    """Names of relevant times with their measured and expected values."""
    whole_s = measured.iteration_time_s
    found = [(_ITERATION, whole_s, expected.iteration_time_s)]
    for kind, time_s in measured.task_times_s.items():
        known_s = expected.task_times_s.get(kind)
        if known_s is not None and abs(time_s - known_s) >= matters * whole_s:
            role, machine_kind = kind
            where = "" if machine_kind == "default" else f" on {machine_kind}"
            found.append((f"a {role.value}{where}", time_s, known_s))
    return found


def _difference(one: float, other: float) -> float:
    """Relative difference of two values, based on the smaller one."""
    low, high = sorted((one, other))
    if low <= 0:
        return math.inf if high > 0 else 0.0
    return high / low - 1
