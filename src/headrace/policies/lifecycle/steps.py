"""State machine of a run: events in, commands out, without side effects.

Phases: place tasks, ship the graph, start stores, samplers, parameter servers and trainers, run,
stop, end. Every phase except the last has a deadline; when it passes, the run stops and reports
which task on which machine waited for what. The caller calls `begin` once and `step` with every
event and regularly with a `Tick`, and executes the returned commands.
"""

from __future__ import annotations

import re
from dataclasses import replace

from headrace.core.job import Role
from headrace.policies.lifecycle.events import (
    Command,
    Deadlines,
    Ended,
    Event,
    Failed,
    Finish,
    Heard,
    Interrupted,
    Log,
    Lost,
    Outcome,
    Phase,
    Place,
    Placed,
    Ready,
    Regroup,
    Ship,
    Shipped,
    Stage,
    Start,
    Stop,
    Task,
    Tick,
    Verified,
    Waits,
)
from headrace.policies.lifecycle.state import LIVE, STARTS, Lifecycle

_NEXT = {
    Phase.PLACING: Phase.SHIPPING,
    Phase.SHIPPING: Phase.STORES,
    Phase.STORES: Phase.SAMPLERS,
    Phase.SAMPLERS: Phase.SERVERS,
    Phase.SERVERS: Phase.TRAINERS,
    Phase.TRAINERS: Phase.RUNNING,
}
_TRAIN_MODULES = ("torch", "torch_geometric", "pyarrow", "ray")
"""Modules of the extra `train` that scripts import."""

# A fault causes others: the cause with the higher rank is reported.
_BLAME = {Role.STORE: 3, Role.SAMPLER: 2, Role.SERVER: 2, Role.TRAINER: 1}
_MACHINE_BLAME = 4


def begin(
    tasks: tuple[Task, ...],
    now_s: float,
    deadlines: Deadlines | None = None,
    is_service: bool = False,
) -> tuple[Lifecycle, list[Command]]:
    """Initial state and commands of a run, or of a service without trainers."""
    stages = dict.fromkeys((task.name for task in tasks), Stage.WAITING)
    limits = deadlines or Deadlines()
    stores = frozenset(task.name for task in tasks if task.role is Role.STORE)
    state = Lifecycle(
        tasks,
        limits,
        Phase.PLACING,
        now_s,
        stages,
        reported_s=now_s,
        unverified=stores,
        is_service=is_service,
    )
    return state, [Place()]


def step(state: Lifecycle, event: Event, now_s: float) -> tuple[Lifecycle, list[Command]]:
    """Update the state with an event at a monotonic time; return the commands to execute."""
    if state.phase is Phase.ENDED:
        return state, []
    match event:
        case Tick():
            return _tick(state, now_s)
        case Heard(tasks):
            return replace(state, heard_s={**state.heard_s, **dict.fromkeys(tasks, now_s)}), []
        case Waits(task, for_what):
            if state.phase is Phase.STOPPING or state.waits.get(task) == for_what:
                return state, []
            waits = {**state.waits, task: for_what}
            is_step = state.phase is Phase.SHIPPING
            return replace(state, waits=waits, since_s=now_s if is_step else state.since_s), []
        case Placed() if state.phase is Phase.PLACING:
            return _enter(state, now_s)
        case Shipped() if state.phase is Phase.SHIPPING:
            return _enter(state, now_s)
        case Ready(task):
            return _ready(state, task, now_s)
        case Verified(task) if task in state.unverified:
            state = replace(state, unverified=state.unverified - {task})
            return _finished(state, now_s) if state.phase is Phase.RUNNING else (state, [])
        case Ended():
            return _ended(state, event, now_s)
        case Lost(name, why):
            return _lost(state, name, why, now_s)
        case Failed(problem, remedy):
            return _stop(state, Outcome(problem=problem, remedy=remedy), _MACHINE_BLAME, now_s)
        case Regroup(why):
            outcome = Outcome(problem=why, remedy="run again", fault=event)
            return _stop(state, outcome, 0, now_s)
        case Interrupted():
            return _stop(state, Outcome(is_interrupted=True), _MACHINE_BLAME + 1, now_s)
    return state, []


def _enter(state: Lifecycle, now_s: float) -> tuple[Lifecycle, list[Command]]:
    """Enter the next phase; skip phases without tasks to start."""
    state = replace(state, phase=_NEXT[state.phase], since_s=now_s, waits={}, reported_s=now_s)
    if state.phase is Phase.SHIPPING:
        return state, [Ship()]
    role = STARTS.get(state.phase)
    if role is None:
        heard_s = dict.fromkeys((task.name for task in state.tasks), now_s)
        return _finished(replace(state, heard_s=heard_s), now_s)
    tasks = state.of_role(role)
    if not tasks:
        return _enter(state, now_s)
    stages = {**state.stages, **{task.name: Stage.STARTING for task in tasks}}
    return replace(state, stages=stages), [Start(task.name) for task in tasks]


def _ready(state: Lifecycle, name: str, now_s: float) -> tuple[Lifecycle, list[Command]]:
    role = STARTS.get(state.phase)
    if role is None or state.stages.get(name) is not Stage.STARTING:
        return state, []
    state = _with_stage(state, name, Stage.READY)
    return _advance(state, now_s)


def _advance(state: Lifecycle, now_s: float) -> tuple[Lifecycle, list[Command]]:
    role = STARTS[state.phase]
    if any(state.stages[task.name] is Stage.STARTING for task in state.of_role(role)):
        return state, []
    return _enter(state, now_s)


def _ended(state: Lifecycle, event: Ended, now_s: float) -> tuple[Lifecycle, list[Command]]:
    task = _find(state, event.task)
    if task is None or state.stages[task.name] in (Stage.WAITING, Stage.ENDED, Stage.LOST):
        return state, []
    was = state.stages[task.name]
    if task.role is Role.SAMPLER and event.code == 0 and was is not Stage.STOPPING:
        # The sampler served a loader to the end; its task actor waits for the next one.
        return state, []
    state = _with_stage(state, task.name, Stage.ENDED)
    if was is Stage.STOPPING:
        return _after_stop(state, now_s)
    if task.role is Role.TRAINER and event.code == 0:
        if state.phase is Phase.TRAINERS:
            return _advance(state, now_s)
        return _finished(state, now_s)
    output = f"; last output: {event.output}" if event.output else ""
    remedy = _remedy(task, event.output)
    outcome = Outcome(problem=f"{task} {event.how}{output}", remedy=remedy, fault=event)
    return _stop(state, outcome, _BLAME[task.role], now_s)


def _remedy(task: Task, output: str) -> str:
    missing = re.search(r"No module named '(\w+)'$", output)
    if missing is not None and missing[1] in _TRAIN_MODULES:
        return f"pip install 'headrace[train]' on {task.machine}"
    return f"see `headrace logs --task {task.name}`, and run again"


def _lost(state: Lifecycle, name: str, why: str, now_s: float) -> tuple[Lifecycle, list[Command]]:
    task = _find(state, name)
    gone = [each for each in state.tasks if name in (each.name, each.machine)]
    fault = Lost(name, why)
    if task is not None:
        outcome = Outcome(problem=f"{task} is lost: {why}", remedy="run again", fault=fault)
        blame = _BLAME[task.role]
    else:
        names = ", ".join(each.name for each in gone)
        problem = f"{name} is lost with {names}: {why}"
        remedy = "check the machine, then run again"
        outcome = Outcome(problem=problem, remedy=remedy, fault=fault)
        blame = _MACHINE_BLAME
    gone = [each for each in gone if state.stages[each.name] < Stage.ENDED]
    was_stopping = all(state.stages[each.name] is Stage.STOPPING for each in gone)
    for each in gone:
        state = _with_stage(state, each.name, Stage.LOST)
    if not gone or was_stopping:
        state, commands = _shorten_save(state, now_s)
        state, more = _after_stop(state, now_s)
        return state, commands + more
    return _stop(state, outcome, blame, now_s)


def _finished(state: Lifecycle, now_s: float) -> tuple[Lifecycle, list[Command]]:
    trainers = state.of_role(Role.TRAINER)
    if state.is_service:
        return state, []
    if state.unverified or any(state.stages[task.name] is not Stage.ENDED for task in trainers):
        return state, []
    return _stop(state, Outcome(is_success=True), 0, now_s)


def _stop(
    state: Lifecycle, outcome: Outcome, blame: int, now_s: float
) -> tuple[Lifecycle, list[Command]]:
    """Stop trainers, then all other tasks; a deeper cause replaces a known outcome."""
    if state.phase is Phase.STOPPING:
        known = state.outcome
        if known is not None and known.problem and blame > state.blame and outcome.problem:
            state = replace(state, outcome=outcome, blame=blame)
        commands: list[Command] = []
        if outcome.problem or (known is not None and known.is_interrupted):
            state, commands = _shorten_save(state, now_s)
        state, more = _after_stop(state, now_s)
        return state, commands + more
    is_urgent = bool(outcome.problem) and not isinstance(outcome.fault, Regroup)
    state = replace(
        state,
        phase=Phase.STOPPING,
        since_s=now_s,
        waits={},
        outcome=outcome,
        blame=blame,
        reported_s=now_s,
        is_urgent=is_urgent,
    )
    commands = []
    for task in state.of_role(Role.TRAINER):
        if state.stages[task.name] in LIVE:
            state = _with_stage(state, task.name, Stage.STOPPING)
            commands.append(Stop(task.name, is_urgent))
    if commands and outcome.is_interrupted and state.phase is Phase.STOPPING:
        commands.append(Log("stopping: trainers save after this step; Ctrl-C again ends them now"))
    state, more = _after_stop(state, now_s)
    return state, commands + more


def _shorten_save(state: Lifecycle, now_s: float) -> tuple[Lifecycle, list[Command]]:
    """Shorten the time for trainers to save, because they may block on a lost task."""
    if state.phase is not Phase.STOPPING or state.is_urgent:
        return state, []
    trainers = [task.name for task in state.of_role(Role.TRAINER)]
    slow = [name for name in trainers if state.stages[name] is Stage.STOPPING]
    since_s = now_s if slow else state.since_s
    return replace(state, is_urgent=True, since_s=since_s), [Stop(name) for name in slow]


def _after_stop(
    state: Lifecycle, now_s: float, is_late: bool = False
) -> tuple[Lifecycle, list[Command]]:
    """Stop the other tasks once trainers have ended; finish once all have."""
    if state.phase is not Phase.STOPPING:
        return state, []
    trainers = [state.stages[task.name] for task in state.of_role(Role.TRAINER)]
    if Stage.STOPPING in trainers and not is_late:
        return state, []
    rest = [task.name for task in state.tasks if state.stages[task.name] in LIVE]
    if rest:
        stages = {**state.stages, **dict.fromkeys(rest, Stage.STOPPING)}
        state = replace(state, stages=stages, since_s=now_s)
        return state, [Stop(name) for name in rest]
    if Stage.STOPPING in state.stages.values() and not is_late:
        return state, []
    assert state.outcome is not None
    return replace(state, phase=Phase.ENDED, since_s=now_s), [Finish(state.outcome)]


def _tick(state: Lifecycle, now_s: float) -> tuple[Lifecycle, list[Command]]:
    deadline_s = state.deadline_s
    assert deadline_s is not None
    if now_s >= deadline_s:
        return _late(state, now_s)
    if now_s < state.reported_s + state.deadlines.slow_s:
        return state, []
    line = _describe_silence(state, now_s)
    if state.phase in _NEXT:
        line = _describe_wait(state, now_s)
    return (replace(state, reported_s=now_s), [Log(line)]) if line else (state, [])


def _late(state: Lifecycle, now_s: float) -> tuple[Lifecycle, list[Command]]:
    if state.phase is Phase.STOPPING:
        return _after_stop(state, now_s, is_late=True)
    if state.phase is not Phase.RUNNING:
        remedy = {
            Phase.PLACING: "free resources on the cluster, or plan for fewer",
            Phase.SHIPPING: "check the network, or copy the graph to every machine",
        }.get(state.phase, "see the logs of the task with `headrace logs`")
        outcome = Outcome(problem=_describe_wait(state, now_s), remedy=remedy)
        return _stop(state, outcome, 0, now_s)
    limit_s = state.deadlines.silence_s
    silent = {
        task.name
        for task in state.watched()
        if now_s - state.heard_s.get(task.name, state.since_s) >= limit_s
    }
    why = f"it has not answered for {limit_s:.0f} s"
    for machine in dict.fromkeys(task.machine for task in state.tasks if task.name in silent):
        there = {task.name for task in state.watched() if task.machine == machine}
        if there <= silent:
            return _lost(state, machine, why, now_s)
    first = next(task.name for task in state.tasks if task.name in silent)
    return _lost(state, first, why, now_s)


def _describe_wait(state: Lifecycle, now_s: float) -> str:
    """Which task on which machine waits for what, and for how long."""
    role = STARTS.get(state.phase)
    waiting = [
        task
        for task in state.tasks
        if (state.stages[task.name] is Stage.STARTING if role else task.name in state.waits)
    ]
    usual = {
        Phase.PLACING: "its placement",
        Phase.SHIPPING: "its graph partition",
    }.get(state.phase, "its process")
    first = waiting[0] if waiting else state.tasks[0]
    others = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    for_what = state.waits.get(first.name, usual)
    return f"{first} waits for {for_what} after {now_s - state.since_s:.0f} s{others}"


def _describe_silence(state: Lifecycle, now_s: float) -> str:
    """Machines that have not responded for long, stores not verified, or tasks that end."""
    if state.phase is Phase.STOPPING:
        late = [task for task in state.tasks if state.stages[task.name] is Stage.STOPPING]
        others = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
        what = f"waiting for {late[0]}{others} to " if late else ""
        return what and f"{what}{'save' if late[0].role is Role.TRAINER else 'end'}"
    if state.phase is not Phase.RUNNING:
        return ""
    if not state.is_training and not state.is_service:
        where = [task.machine for task in state.tasks if task.name in state.unverified]
        return f"waiting for verification of the graph files on {', '.join(where[:3])}"
    quiet = {
        task.machine: now_s - state.heard_s.get(task.name, state.since_s)
        for task in state.watched()
        if now_s - state.heard_s.get(task.name, state.since_s) >= state.deadlines.slow_s
    }
    parts = [
        f"{machine} has not answered for {passed_s:.0f} s" for machine, passed_s in quiet.items()
    ]
    return ", ".join(parts[:3])


def _find(state: Lifecycle, name: str) -> Task | None:
    return next((task for task in state.tasks if task.name == name), None)


def _with_stage(state: Lifecycle, name: str, stage: Stage) -> Lifecycle:
    return replace(state, stages={**state.stages, name: stage})
