"""A run, as of one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.job import Role
from headrace.policies.lifecycle.events import Deadlines, Outcome, Phase, Stage, Task

STARTS = {
    Phase.STORES: Role.STORE,
    Phase.SAMPLERS: Role.SAMPLER,
    Phase.SERVERS: Role.SERVER,
    Phase.TRAINERS: Role.TRAINER,
}
LIVE = (Stage.STARTING, Stage.READY)


@dataclass(frozen=True)
class Lifecycle:
    """A run, as of one moment.

    Attributes:
        tasks: All tasks of the plan.
        deadlines: How long things may take.
        phase: How far the run is.
        since_s: When the phase began, or made its last step ahead.
        stages: How far each task is.
        waits: What tasks wait for, by name.
        heard_s: When each task was heard last.
        outcome: How the run will have ended; none while all is well.
        blame: How deep the known cause of a failure lies.
        told_s: When the user was told last how it goes.
        is_urgent: Whether a run that stops has little time to save.
        unverified: Stores whose files have not been found intact yet.
    """

    tasks: tuple[Task, ...]
    deadlines: Deadlines
    phase: Phase
    since_s: float
    stages: Mapping[str, Stage]
    waits: Mapping[str, str] = field(default_factory=dict)
    heard_s: Mapping[str, float] = field(default_factory=dict)
    outcome: Outcome | None = None
    blame: int = 0
    told_s: float = 0.0
    is_urgent: bool = False
    unverified: frozenset[str] = frozenset()

    def of_role(self, role: Role) -> tuple[Task, ...]:
        """Tasks that do the same."""
        return tuple(task for task in self.tasks if task.role is role)

    @property
    def deadline_s(self) -> float | None:
        """When a `Tick` will change the phase at the latest; none once the run has ended."""
        limits = self.deadlines
        if self.phase is Phase.ENDED:
            return None
        if self.phase is Phase.STOPPING:
            if not self._trainers_save():
                return self.since_s + limits.stop_s
            return self.since_s + (limits.urgent_save_s if self.is_urgent else limits.save_s)
        if self.phase is Phase.RUNNING:
            heard = [self.heard_s.get(task.name, self.since_s) for task in self.watched()]
            return min(heard, default=self.since_s) + limits.silence_s
        limit_s = {Phase.PLACING: limits.place_s, Phase.SHIPPING: limits.ship_s}
        return self.since_s + limit_s.get(self.phase, limits.start_s)

    @property
    def is_training(self) -> bool:
        """Whether all tasks run, and some trainer has not ended."""
        trainers = {self.stages[task.name] for task in self.of_role(Role.TRAINER)}
        return self.phase is Phase.RUNNING and bool(trainers & set(LIVE))

    def watched(self) -> tuple[Task, ...]:
        """Tasks that should answer."""
        return tuple(task for task in self.tasks if self.stages[task.name] in LIVE)

    def _trainers_save(self) -> bool:
        """Whether those who serve trainers are still there while these have been told to stop."""
        stages = {self.stages[task.name] for task in self.tasks if task.role is not Role.TRAINER}
        return bool(stages & set(LIVE))
