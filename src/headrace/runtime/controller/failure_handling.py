"""Faults of a run and what is done about them: the policy decides, and everybody is told."""

from __future__ import annotations

import signal
from collections.abc import Callable

from headrace.policies.lifecycle.events import Ended, Lost, Outcome, Regroup, Task
from headrace.policies.recovery.deciding import Recovery, decide
from headrace.policies.recovery.events import (
    Decision,
    Event,
    GiveUp,
    MachineLost,
    Resume,
    TaskEnded,
    TaskLost,
)

HOLD_S = 0.7
"""How long a failure is kept until others had time to tell theirs: the first explains the rest."""

MOST_HOLD_S = 4.0
"""How long at most, if somebody who was asked has not answered."""

_WORDS = 160
"""How much of a task's last words is repeated with a decision."""

Tell = Callable[[Recovery, Decision], None]


class FailureHandler:
    """Asks the policy what to do about faults, in all attempts of a run.

    Args:
        state: What has befallen the run so far.
        tell: Told of every decision.

    Attributes:
        state: What has befallen the run so far.
        pending: What to do once all tasks have ended, if that is decided.
    """

    def __init__(self, state: Recovery, tell: Tell) -> None:
        self.state, self._tell = state, tell
        self.pending: Resume | GiveUp | None = None

    def take(self, event: Event) -> Decision | None:
        """Take an event; what is to be done, if anything."""
        self.state, decision = decide(self.state, event)
        if decision is not None:
            self._tell(self.state, decision)
        if isinstance(decision, Resume | GiveUp):
            self.pending = decision
        return decision

    def after(self, outcome: Outcome, tasks: tuple[Task, ...]) -> Resume | GiveUp | None:
        """What to do after all tasks have ended; nothing if that was the end.

        Args:
            outcome: How they ended.
            tasks: All of them.
        """
        pending, self.pending = self.pending, None
        if outcome.fault is None or pending is not None:
            return pending if outcome.fault is not None else None
        decision = self.take(event_of(outcome.fault, tasks))
        self.pending = None
        return decision if isinstance(decision, Resume | GiveUp) else None


def event_of(fault: Ended | Lost | Regroup, tasks: tuple[Task, ...]) -> Event:
    """A fault of a run, as the policy for recovery knows it."""
    by_name = {task.name: task for task in tasks}
    match fault:
        case Ended(name, code, how, said):
            what = f"{how}; it said: {said[:_WORDS]}" if said else how
            return TaskEnded(by_name[name], code, what)
        case Lost(name, why) if name in by_name:
            return TaskLost(by_name[name], why)
        case Lost(name, why):
            return MachineLost(name, why)
    raise AssertionError("who regroups has decided what to do")


class FaultDebouncer:
    """Keeps faults for a moment, so that the one that came first is told first."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[float, Ended | Lost]] = {}
        self._release_s = 0.0

    def hold(self, fault: Ended | Lost, happened_s: float, now_s: float) -> bool:
        """Keep a fault of a task; whether it is the first one."""
        name = fault.task if isinstance(fault, Ended) else fault.name
        is_first = not self._held
        if is_first:
            self._release_s = now_s + HOLD_S
        self._held.setdefault(name, (happened_s, fault))
        return is_first

    def release(self, now_s: float, have_all_told: bool = True) -> list[Ended | Lost]:
        """All faults, once they have been kept for long enough, in the order they happened in.

        Args:
            now_s: Now.
            have_all_told: Whether all tasks that were asked how they are have answered.
        """
        least_s = self._release_s if have_all_told else self._release_s + MOST_HOLD_S - HOLD_S
        if not self._held or now_s < least_s:
            return []
        held, self._held = sorted(self._held.values(), key=_order), {}
        return [fault for _, fault in held]


def _order(held: tuple[float, Ended | Lost]) -> tuple[bool, float]:
    # Nobody is killed by another task's failure, but many fail when one is killed.
    happened_s, fault = held
    return isinstance(fault, Ended) and fault.code != -signal.SIGKILL, happened_s
