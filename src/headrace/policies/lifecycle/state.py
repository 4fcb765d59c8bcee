"""State of a run."""

from __future__ import annotations

import math
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
    """State of a run.

    Attributes:
        tasks: All tasks of the plan.
        deadlines: Time limits.
        phase: Current phase.
        since_s: Start of the phase, or time of its last progress.
        stages: Stage of each task.
        waits: What tasks wait for, by name.
        heard_s: Time of the last response of each task.
        outcome: Outcome of a run that stops or has ended; else None.
        blame: Rank of the known cause of a failure.
        told_s: Time of the last log line.
        is_urgent: Whether trainers of a stopping run have little time to save.
        unverified: Stores whose graph files are not verified yet.
        is_service: Whether the tasks run until they are stopped; else until all trainers exit.
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
    reported_s: float = 0.0
    is_urgent: bool = False
    unverified: frozenset[str] = frozenset()
    is_service: bool = False

    def of_role(self, role: Role) -> tuple[Task, ...]:
        """Tasks of a role."""
        return tuple(task for task in self.tasks if task.role is role)

    @property
    def deadline_s(self) -> float | None:
        """Latest time at which a `Tick` changes the phase; None once the run has ended."""
        limits = self.deadlines
        if self.phase is Phase.ENDED:
            return None
        if self.phase is Phase.STOPPING:
            if not self._trainers_save():
                return self.since_s + limits.stop_s
            return self.since_s + (limits.urgent_save_s if self.is_urgent else limits.save_s)
        if self.phase is Phase.RUNNING and self.is_service:
            # Clients of a machine that is silent wait for it.
            return math.inf
        if self.phase is Phase.RUNNING:
            heard = [self.heard_s.get(task.name, self.since_s) for task in self.watched()]
            return min(heard, default=self.since_s) + limits.silence_s
        limit_s = {Phase.PLACING: limits.place_s, Phase.SHIPPING: limits.ship_s}
        return self.since_s + limit_s.get(self.phase, limits.start_s)

    @property
    def is_training(self) -> bool:
        """Whether all tasks run and some trainer has not ended."""
        trainers = {self.stages[task.name] for task in self.of_role(Role.TRAINER)}
        return self.phase is Phase.RUNNING and bool(trainers & set(LIVE))

    def watched(self) -> tuple[Task, ...]:
        """Tasks that must respond."""
        return tuple(task for task in self.tasks if self.stages[task.name] in LIVE)

    def _trainers_save(self) -> bool:
        """Whether other tasks still serve the trainers, which have been stopped."""
        stages = {self.stages[task.name] for task in self.tasks if task.role is not Role.TRAINER}
        return bool(stages & set(LIVE))
