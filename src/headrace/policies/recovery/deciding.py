"""What to do about faults: events in, decisions out, nothing done here.

A store or a sampler is started again, and all others wait for it. Whoever else is lost, the run
goes on from its newest checkpoint, on the machines that are left. What does not help is not done
for ever: without a new checkpoint every means is used a few times only, and a script that fails by
itself is not run again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.core.job import Role
from headrace.policies.recovery.events import (
    Decision,
    Drifted,
    Event,
    GiveUp,
    Limits,
    MachineLost,
    MachinesJoined,
    Restart,
    Resume,
    Saved,
    Settled,
    Stepped,
    TaskEnded,
    TaskLost,
)

_USUAL = Limits()
_MENDED = (Role.STORE, Role.SAMPLER)

# Exit codes of our own errors (the errors.py of each floor): what the user gave is wrong ...
_WRONG = 2
# ... or a store, a sampler or the run around a task broke, and the task says so.
_BROKE = (5, 6, 7)
_INTERRUPTED = 130


@dataclass(frozen=True)
class Recovery:
    """What has befallen a run so far.

    Attributes:
        machines: Those that it uses.
        limits: How often it may be mended.
        elastic: Whether machines that join are used.
        attempt: The how manieth start of all tasks this is.
        restarts: Of each task since the last checkpoint.
        resumes: Since the last checkpoint.
        num_restarts: Of all tasks, ever.
        own_failures: How often a task has failed by itself since the last checkpoint.
        has_stepped: Whether an iteration was ever done.
        saved: Iteration of the newest checkpoint.
        joined: Machines that are there and wait for the next checkpoint.
    """

    machines: frozenset[str]
    limits: Limits = _USUAL
    elastic: bool = False
    attempt: int = 1
    restarts: Mapping[str, int] = field(default_factory=dict)
    resumes: int = 0
    num_restarts: int = 0
    own_failures: int = 0
    has_stepped: bool = False
    saved: int | None = None
    joined: frozenset[str] = frozenset()


def decide(state: Recovery, event: Event) -> tuple[Recovery, Decision | None]:
    """What is known after an event, and what is to be done; nothing if all may go on as it does."""
    match event:
        case Stepped():
            return (state if state.has_stepped else replace(state, has_stepped=True)), None
        case Saved(iteration):
            return _saved(state, iteration)
        case MachinesJoined(machines):
            joined = machines - state.machines if state.elastic else frozenset[str]()
            return (state if joined == state.joined else replace(state, joined=joined)), None
        case Settled(machines):
            return _settled(state, machines)
        case Drifted(why):
            return _drifted(state, why)
        case MachineLost(machine, why):
            return _resume(state, f"{machine} is lost: {why}", frozenset({machine}))
        case TaskLost(task, why):
            return _resume(state, f"{task} is lost: {why}")
        case TaskEnded(task, code, why, can_restart):
            if task.role in _MENDED and can_restart:
                return _restart(state, event)
            if code <= 0 or code in (*_BROKE, _INTERRUPTED):
                return _resume(state, f"{task} {why}")
            return _failed(state, event)


def _saved(state: Recovery, iteration: int) -> tuple[Recovery, Decision | None]:
    if state.saved is not None and iteration <= state.saved:
        return state, None
    state = replace(
        state, saved=iteration, restarts={}, resumes=0, own_failures=0, has_stepped=True
    )
    if not state.joined:
        return state, None
    names = ", ".join(sorted(state.joined))
    verb = "has" if len(state.joined) == 1 else "have"
    return _resume(state, f"{names} {verb} joined", counts=False)


def _drifted(state: Recovery, why: str) -> tuple[Recovery, Decision | None]:
    if state.saved is None:
        # All would be done again.
        return state, None
    state, decision = _resume(state, why, counts=False)
    return state, replace(decision, replans=True) if isinstance(decision, Resume) else decision


def _settled(state: Recovery, machines: frozenset[str]) -> tuple[Recovery, Decision | None]:
    """Do without machines that went while others were mourned."""
    left = state.machines & machines
    if not left:
        return state, GiveUp("all machines are lost", "no machine is left")
    return (state if left == state.machines else replace(state, machines=left)), None


def _restart(state: Recovery, event: TaskEnded) -> tuple[Recovery, Decision]:
    what, name = f"{event.task} {event.why}", event.task.name
    number = state.restarts.get(name, 0) + 1
    if number > state.limits.restarts:
        return state, GiveUp(what, _spent(state.limits.restarts, f"restarts of {name}"))
    state = replace(
        state, restarts={**state.restarts, name: number}, num_restarts=state.num_restarts + 1
    )
    return state, Restart(event.task, what, number, state.limits.restarts)


def _failed(state: Recovery, event: TaskEnded) -> tuple[Recovery, Decision]:
    """A task failed by itself: its own mistake, or what it makes of a fault elsewhere."""
    what = f"{event.task} {event.why}"
    if not state.limits.resumes:
        return state, GiveUp(what)
    if event.code == _WRONG or not state.has_stepped:
        return state, GiveUp(what, "it would fail again")
    if state.own_failures:
        return state, GiveUp(what, "it failed by itself again without a checkpoint in between")
    return _resume(replace(state, own_failures=1), what)


def _resume(
    state: Recovery, why: str, without: frozenset[str] = frozenset(), counts: bool = True
) -> tuple[Recovery, Decision]:
    num = state.resumes + counts
    if num > state.limits.resumes:
        return state, GiveUp(why, _spent(state.limits.resumes, "resumes"))
    joined = state.joined - without
    left = (state.machines | joined) - without
    if not left:
        return state, GiveUp(why, "no machine is left")
    state = replace(
        state,
        machines=left,
        joined=frozenset(),
        resumes=num,
        attempt=state.attempt + 1,
    )
    return state, Resume(why, state.attempt, state.saved, without, joined, left)


def _spent(limit: int, what: str) -> str:
    return f"there were {limit} {what} since the last checkpoint" if limit else ""
