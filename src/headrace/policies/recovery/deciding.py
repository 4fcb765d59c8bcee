"""Fault recovery: events in, decisions out, without side effects.

A store or sampler is restarted while all other tasks wait. After any other loss the run resumes
from its newest checkpoint on the remaining machines. Without a new checkpoint the number of
restarts and resumes is limited, and a script that fails repeatedly is not run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.core.errors import LOST_PEER_CODE
from headrace.core.job import Role
from headrace.policies.recovery.events import (
    Begun,
    Decision,
    Drifted,
    Event,
    GiveUp,
    Held,
    Limits,
    MachineLost,
    MachinesJoined,
    Released,
    Restart,
    Resume,
    Saved,
    Settled,
    Stepped,
    TaskEnded,
    TaskLost,
)

_DEFAULT_LIMITS = Limits()
_RESTARTABLE_ROLES = (Role.STORE, Role.SAMPLER)

# Exit codes of headrace errors: invalid input; failure of a store, a sampler, the run or a peer.
_INVALID_INPUT_CODE = 2
_DEPENDENCY_CODES = (5, 6, 7, LOST_PEER_CODE)
_INTERRUPTED = 130


@dataclass(frozen=True)
class Recovery:
    """Recovery state of a run.

    Attributes:
        machines: Machines in use.
        limits: Limits of restarts and resumes.
        elastic: Whether machines that join are used.
        needs_checkpoint: Whether a script that has begun and made no checkpoint is not run again.
        attempt: Number of starts of all tasks.
        restarts: Restarts per task since the last checkpoint.
        resumes: Resumes since the last checkpoint.
        num_restarts: Total restarts of all tasks.
        own_failures: Failures of tasks by their own error since the last checkpoint.
        has_begun: Whether trainers were told to run the script, in any attempt.
        has_stepped: Whether an iteration has completed.
        saved: Iteration of the newest checkpoint.
        held: Iteration of the checkpoint that is on hold.
        joined: New machines, used from the next checkpoint on.
    """

    machines: frozenset[str]
    limits: Limits = _DEFAULT_LIMITS
    elastic: bool = False
    needs_checkpoint: bool = False
    attempt: int = 1
    restarts: Mapping[str, int] = field(default_factory=dict)
    resumes: int = 0
    num_restarts: int = 0
    own_failures: int = 0
    has_begun: bool = False
    has_stepped: bool = False
    saved: int | None = None
    held: int | None = None
    joined: frozenset[str] = frozenset()


def decide(state: Recovery, event: Event) -> tuple[Recovery, Decision | None]:
    """Update the state with an event and decide what to do; None if nothing is to be done."""
    match event:
        case Begun():
            return (state if state.has_begun else replace(state, has_begun=True)), None
        case Stepped():
            return (state if state.has_stepped else replace(state, has_stepped=True)), None
        case Saved(iteration):
            return _saved(state, iteration)
        case Held(iteration):
            # The script makes checkpoints: it may be run again from the start.
            return replace(state, held=iteration, needs_checkpoint=False), None
        case Released():
            return (state, None) if state.held is None else _saved(state, state.held)
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
            if task.role in _RESTARTABLE_ROLES and can_restart:
                return _restart(state, event)
            if code <= 0 or code in (*_DEPENDENCY_CODES, _INTERRUPTED):
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
        # Without a checkpoint all work would be repeated.
        return state, None
    state, decision = _resume(state, why, counts=False)
    return state, replace(decision, replans=True) if isinstance(decision, Resume) else decision


def _settled(state: Recovery, machines: frozenset[str]) -> tuple[Recovery, Decision | None]:
    """Remove machines that were lost while the run was stopping.

    The next attempt drops the checkpoint that is on hold.
    """
    state = replace(state, held=None)
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
    """Handle a task that failed by its own error or as a consequence of another fault."""
    what = f"{event.task} {event.why}"
    if not state.limits.resumes:
        return state, GiveUp(what)
    if event.code == _INVALID_INPUT_CODE or not state.has_stepped:
        return state, GiveUp(what, "it would fail again")
    if state.own_failures:
        return state, GiveUp(what, "it failed again without a new checkpoint")
    return _resume(replace(state, own_failures=1), what)


def _resume(
    state: Recovery, why: str, without: frozenset[str] = frozenset(), counts: bool = True
) -> tuple[Recovery, Decision]:
    if state.needs_checkpoint and state.has_begun and state.saved is None:
        return state, GiveUp(why, "there is no checkpoint to resume from")
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
