"""Drift in a simulated run: real decisions over times of steps; plans and peaks are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from headrace.core.cluster import Cluster
from headrace.core.errors import RunError, SpecError
from headrace.policies.drift.deciding import Rules
from headrace.policies.drift.figures import Figures, Peak, Window
from headrace.runtime.callbacks.drift_monitor import DriftMonitor
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.trainer_messages import BatchProgress
from tests.simulation.world import World

NUM_STEPS = 2
"""Steps of a window."""

RULES = Rules(warm_up=2, num_windows=2, rest_s=3.0, payback=0.05)
"""Runs are short, so little time has to be saved."""


@dataclass(frozen=True)
class Expectation:
    """What the plan of a run predicts, and what a new plan would.

    Attributes:
        step_s: Time per iteration of the first plan.
        better_s: Time per iteration of the next plan.
        num_moves: Tasks that it moves.
        error: How measuring fails: `raises`, `unreadable`, or not at all.
    """

    step_s: float
    better_s: float
    num_moves: int
    error: str = ""


@dataclass(frozen=True)
class MeasuredPlan:
    """Stands for a plan of the planner: what drift needs of it."""

    cluster: Cluster
    placement: Any
    expectation: Expectation

    job = SimpleNamespace(num_servers=0)
    profile = SimpleNamespace(
        source="simulated",
        task_time=lambda role, kind: SimpleNamespace(mean=0.0),
        seed_scale=lambda role, job: 1.0,
    )

    @property
    def predicted(self) -> Any:
        """The predicted time."""
        return SimpleNamespace(iteration_time_s=self.expectation.step_s)

    def model_copy(self, update: Mapping[str, Any]) -> MeasuredPlan:
        """A changed copy."""
        return replace(self, **update)


def plan_again(plan: MeasuredPlan, cluster: Cluster, profile: Any) -> Any:
    """Stands for `replan_measured`: a plan with some other trainers' machines."""
    expected, before = plan.expectation, plan.placement.trainers
    moved = tuple(
        machine + 1 if number < expected.num_moves else machine
        for number, machine in enumerate(before)
    )
    placement = SimpleNamespace(samplers=(), trainers=moved, servers=())
    better = replace(plan, cluster=cluster, placement=placement)
    return SimpleNamespace(plan=better, before_s=1.0, time_s=expected.better_s)


@dataclass(frozen=True)
class Steps:
    """Stands for the records of the steps `first` to `last`."""

    first: int
    last: int
    step_s: float
    is_unreadable: bool

    def measure(self, plan: Any, offsets_s: Mapping[str, float]) -> tuple[Window, Any]:
        """Their time per step."""
        if self.is_unreadable:
            raise SpecError("the records are not those of the plan", "report this as a bug")
        return Window(self.first, self.last, Figures(self.step_s)), plan.profile


class StepWindows:
    """Stands for `Windows`: the steps of the first trainer."""

    def __init__(self, is_unreadable: bool) -> None:
        self._steps: list[tuple[int, float]] = []
        self._is_unreadable = is_unreadable

    def note(self, step: int, at_s: float) -> None:
        """Add a step."""
        self._steps.append((step, at_s))

    def pop(self) -> Steps | None:
        """The next window, if it is complete."""
        if len(self._steps) <= NUM_STEPS:
            return None
        (first, begin_s), (last, end_s) = self._steps[0], self._steps[-1]
        self._steps = self._steps[-1:]
        step_s = (end_s - begin_s) / max(last - first, 1)
        return Steps(first, last - 1, step_s, self._is_unreadable)


class Drifting:
    """Watches one attempt of a run for drift.

    Args:
        adopt: Called when a new plan is taken.
        log: Shows a line to the user.
    """

    def __init__(
        self,
        world: World,
        plan: Any,
        expectation: Expectation,
        adopt: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self._world, self._expectation = world, expectation
        self._names = [host.name for host in plan.cluster.hosts]
        windows: Any = StepWindows(expectation.error == "unreadable")
        self._windows = windows
        trainers = tuple(w % len(self._names) for w in range(plan.num_trainers))
        placement = SimpleNamespace(samplers=(), trainers=trainers, servers=())
        measured: Any = MeasuredPlan(plan.cluster, placement, expectation)
        self.monitor = DriftMonitor(
            measured,
            self._measure,
            lambda: dict.fromkeys(self._names, 0.0),
            lambda better: adopt(),
            log,
            lambda name, **fields: None,
            rules=RULES,
            windows=windows,
        )

    def polled(self, task: str, state: ActorState) -> None:
        """Update with the state of a task."""
        self.monitor.polled(task, state)
        if task != "trainer0":
            return
        for message in state.messages:
            if isinstance(message, BatchProgress) and message.steps is not None:
                self._windows.note(message.steps, self._world.now_s)

    def _measure(self) -> Mapping[str, Peak]:
        world = self._world
        world.sleep(world.random.uniform(0.5, 4.0))
        for name in self._names:
            if not world.machines[name].is_alive:
                raise RunError(f"{name} did not answer", "check the machine")
        if self._expectation.error == "raises":
            raise RuntimeError("a measurement failed")
        return {name: Peak(1e9, world.random.choice((1e9, 5e8))) for name in self._names}
