"""Handles faults of a run: applies the recovery policy and reports its decisions."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import replace

from headrace.core.errors import LOST_PEER_CODE
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
"""Debounce time of a fault: the first of several simultaneous faults is their cause."""

MAX_HOLD_S = 4.0
"""Maximum debounce time while state polls are pending."""

_QUOTE_CHARS = 160
"""Characters of a task's last log line that are quoted in a decision."""

OnDecision = Callable[[Recovery, Decision], None]


class FailureHandler:
    """Applies the recovery policy to the faults of all attempts of a run.

    Attributes:
        state: State of the recovery policy.
        pending: Decision to apply once all tasks have ended, if any.
    """

    def __init__(self, state: Recovery, on_decision: OnDecision) -> None:
        self.state, self._on_decision = state, on_decision
        self.pending: Resume | GiveUp | None = None

    def handle(self, event: Event) -> Decision | None:
        """Apply an event; return the decision, if any."""
        self.state, decision = decide(self.state, event)
        if decision is not None:
            self._on_decision(self.state, decision)
        if isinstance(decision, Resume | GiveUp):
            self.pending = decision
        return decision

    def after(self, outcome: Outcome, tasks: tuple[Task, ...]) -> Resume | GiveUp | None:
        """The decision after all tasks have ended; None without a fault."""
        pending, self.pending = self.pending, None
        if outcome.fault is None or pending is not None:
            return pending if outcome.fault is not None else None
        decision = self.handle(event_of(outcome.fault, tasks))
        self.pending = None
        return decision if isinstance(decision, Resume | GiveUp) else None


def event_of(fault: Ended | Lost | Regroup, tasks: tuple[Task, ...]) -> Event:
    """Convert a fault to an event of the recovery policy."""
    by_name = {task.name: task for task in tasks}
    match fault:
        case Ended(name, code, how, output):
            what = f"{how}; last output: {output[:_QUOTE_CHARS]}" if output else how
            return TaskEnded(by_name[name], code, what)
        case Lost(name, why) if name in by_name:
            return TaskLost(by_name[name], why)
        case Lost(name, why):
            return MachineLost(name, why)
    raise AssertionError("a regroup is decided before the tasks end")


def shell_code(fault: Ended) -> int:
    """Exit code of a command whose script has ended so, as shells report it; 0 if it has none."""
    if fault.code == LOST_PEER_CODE:
        return 0
    return fault.code if fault.code >= 0 else 128 - fault.code


def blaming(outcome: Outcome, fault: Ended | Lost) -> Outcome:
    """The outcome with its cause: the loss of a task's machine is the cause of the task's."""
    before = outcome.fault
    if isinstance(fault, Lost) and not (isinstance(before, Lost) and before.name == fault.name):
        problem, remedy = f"{fault.name} is lost: {fault.why}", "check the machine, then run again"
        outcome = replace(outcome, problem=problem, remedy=remedy)
    return replace(outcome, fault=fault)


class FaultDebouncer:
    """Delays faults for a moment, so that the earliest is handled first.

    Attributes:
        unasked: Tasks whose state was not requested since the first fault.
    """

    def __init__(self) -> None:
        self.unasked: set[str] = set()
        self._held: dict[str, tuple[float, Ended | Lost]] = {}
        self._release_s = 0.0

    def hold(
        self, fault: Ended | Lost, happened_s: float, now_s: float, names: Iterable[str] = ()
    ) -> bool:
        """Add a fault of a task; return whether it is the first. `names` are those of all tasks.

        A fault may be added repeatedly: `happened_s` is too late by the way of the reply that told
        of it, so the earliest counts.
        """
        name = fault.task if isinstance(fault, Ended) else fault.name
        is_first = not self._held
        if is_first:
            self._release_s = now_s + HOLD_S
            self.unasked = set(names)
        told_s, told = self._held.get(name, (happened_s, fault))
        self._held[name] = (min(told_s, happened_s), told)
        return is_first

    def release(self, now_s: float, have_all_replied: bool = True) -> list[Ended | Lost]:
        """Faults in order of occurrence, once the debounce time has passed.

        A reply to a request from before the first fault may not tell of the cause.
        """
        is_known = have_all_replied and not self.unasked
        least_s = self._release_s if is_known else self._release_s + MAX_HOLD_S - HOLD_S
        if not self._held or now_s < least_s:
            return []
        held, self._held = sorted(self._held.values(), key=_order), {}
        return [fault for _, fault in held]


def _order(held: tuple[float, Ended | Lost]) -> tuple[int, float]:
    happened_s, fault = held
    if isinstance(fault, Lost) or fault.code == -signal.SIGKILL:
        # A cause, not a consequence of another task's failure.
        return 0, happened_s
    return 2 if fault.code == LOST_PEER_CODE else 1, happened_s
