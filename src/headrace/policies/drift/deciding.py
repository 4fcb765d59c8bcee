"""When to look closer at a run, and when another plan is worth going on with: nothing done here.

Every window of iterations is compared with what the plan was made for. What differs by more than a
threshold in some windows in a row is looked into: the network is measured, and the job is planned
anew for what was seen. The run goes on with that plan only if it saves enough of every iteration
and, over the iterations that are left, more than stopping and starting takes. If not, what was
seen is what is expected from then on, and the next look has to wait longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from headrace.core.units import format_seconds
from headrace.policies.drift.figures import Figures, NicChange, Window

_ITERATION = "an iteration"


@dataclass(frozen=True)
class Rules:
    """When something is done.

    Attributes:
        threshold: Relative difference from which on a figure has drifted ...
        num_windows: ... if it has in so many windows in a row.
        warm_up: First iterations after a start that do not count.
        matters: A task's time counts only if it differs by this share of an iteration.
        margin: Share of an iteration that another plan must save.
        payback: How many times the cost of a resume it must save in all.
        rest_s: How long nothing is looked into after a start; twice as long after each vain look,
            up to `most_rest_s`.
        most_rest_s: See `rest_s`.
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
        """Below this, a figure that has drifted is as expected again."""
        return self.threshold / 2


_USUAL = Rules()


@dataclass(frozen=True)
class Drift:
    """What is known of a run since its last start.

    Attributes:
        expected: What its plan was made for, or what was seen when it was last looked into.
        first: Its first iteration since the start.
        quiet_until_s: Nothing is looked into before.
        rest_s: How long the next rest will be.
        num_drifted: Windows in a row in which each figure has drifted, by its name.
        rules: When something is done.
    """

    expected: Figures
    first: int
    quiet_until_s: float
    rest_s: float
    num_drifted: dict[str, int] = field(default_factory=dict)
    rules: Rules = _USUAL


@dataclass(frozen=True)
class Examine:
    """Find out what has changed, and what a plan for it would be.

    Attributes:
        why: What has drifted, as people read it.
        window: Where that was seen.
    """

    why: str
    window: Window


@dataclass(frozen=True)
class Findings:
    """What came of an examination, all by rehearsals with what was measured.

    Attributes:
        why: What had drifted.
        current_s: Time per iteration of the plan that runs.
        replanned_s: Time per iteration of the plan that was found.
        num_moves: Tasks that it has elsewhere.
        nics: Network cards that are not what they were.
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
        """What has changed, as people read it."""
        return "; ".join([self.why, *map(str, self.nics)])


@dataclass(frozen=True)
class Replan:
    """Go on with the new plan."""

    why: str


@dataclass(frozen=True)
class Keep:
    """Go on with the plan that runs."""

    why: str


def begin(expected: Figures, first: int, now_s: float, rules: Rules = _USUAL) -> Drift:
    """All tasks run from now on.

    Args:
        expected: What the plan was made for.
        first: The first iteration.
        now_s: The time.
        rules: When something is done.
    """
    return Drift(expected, first, now_s + rules.rest_s, 2 * rules.rest_s, {}, rules)


def look(state: Drift, window: Window, now_s: float) -> tuple[Drift, Examine | None]:
    """What is known after another window, and whether to look closer."""
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
            # Not as expected again, so what was counted stays.
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
    """Whether to go on with the plan that an examination has found.

    Args:
        state: What is known.
        found: What came of it; none if nothing did.
        window: What was looked into.
        num_left: Iterations that are left.
        resume_s: What it costs to stop and to go on.
        now_s: The time.
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
        return state, Keep("what has changed cannot be told")
    if not found.num_moves or found.saving < rules.margin:
        saving = max(found.saving, 0.0) if found.num_moves else 0.0
        best = f"the best saves {saving:.0%} of an iteration" if saving else "none is better"
        return state, Keep(f"{found.what}: no other plan is worth it, {best}")
    saved_s = found.saving * window.figures.iteration_time_s * num_left
    if saved_s < rules.payback * resume_s:
        return state, Keep(
            f"{found.what}: another plan saves {format_seconds(saved_s)} until the end, and going "
            f"on with it takes {format_seconds(resume_s)}"
        )
    noun = "task moves" if found.num_moves == 1 else "tasks move"
    return state, Replan(
        f"{found.what}: {found.num_moves} {noun}, which saves {found.saving:.0%} of an iteration"
    )


def _compared(
    expected: Figures, measured: Figures, matters: float
) -> list[tuple[str, float, float]]:
    """Names of figures that matter, with what was measured and what was expected."""
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
    """How much larger the larger one is, as a share of the smaller."""
    low, high = sorted((one, other))
    if low <= 0:
        return math.inf if high > 0 else 0.0
    return high / low - 1
