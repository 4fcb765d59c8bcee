"""Collects the figures of a report from a run directory and records which are missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.api.run_status import view_run
from headrace.api.simulate import Simulation, simulate
from headrace.core.errors import HeadraceError
from headrace.core.plan import LOCAL_METHOD, Plan, problem_of
from headrace.core.profile import Profile
from headrace.core.report import Advice, Earlier, Pace, Report, TaskMemoryUse
from headrace.core.trace import Trace
from headrace.observability.report import (
    Seen,
    Steady,
    Stretch,
    assumptions_of,
    command_of,
    curve_over_bytes,
    curves_of,
    decisions_of,
    machines_of,
    phases_of,
    read_lines,
    steady_iterations,
    stretches_of,
    tasks_of,
    trainers_of,
    versions_of,
)
from headrace.observability.trace_file import load_trace
from headrace.planner.explain import plan_facts
from headrace.planner.planner import rehearsable_iterations
from headrace.planner.replan import replan
from headrace.planner.what_if import rehearse_changes
from headrace.prefork.identity import own_version
from headrace.profiling import default_skip, profile_trace
from headrace.profiling.trace_assembly import trace_of_folder
from headrace.runtime.run_dir.run_dir import RunDirectory
from headrace.runtime.run_dir.status import Status

NUM_SHOWN = 6
"""Iterations in each Gantt chart."""

_TRACE = "trace.npz"
_ITERATIONS = 200


@dataclass
class _State:
    """State of the collection."""

    folder: RunDirectory
    status: Status
    on_step: Callable[[str], None]
    missing: list[str] = field(default_factory=list)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Read the objects of a JSON lines file; empty if it is missing."""
        try:
            return read_lines((self.folder.path / name).read_bytes())
        except OSError:
            return []

    def plan(self) -> Plan | None:
        try:
            return Plan.model_validate_json(self.folder.plan.read_bytes())
        except (OSError, ValueError):
            self.missing.append(
                "The plan cannot be read, so the report has no predictions and cannot assign "
                "measurements to tasks."
            )
            return None

    def trace(self, plan: Plan | None) -> Trace | None:
        path = self.folder.path / _TRACE
        try:
            if path.is_file():
                return load_trace(path)
            if plan is not None:
                # Active runs, and runs whose driver died, only have the records of their tasks.
                found = trace_of_folder(self.folder.path, plan)
                if len(found.executions.task):
                    self.missing.append(
                        "The run has not written its complete trace: only the records written so "
                        "far are shown."
                    )
                    return found
        except (HeadraceError, OSError, ValueError, KeyError, TypeError):
            pass
        self.missing.append("The tasks recorded nothing, so there are no measurements.")
        return None


def found_in(
    folder: RunDirectory, advise: bool, on_step: Callable[[str], None]
) -> tuple[Report, Trace | None, tuple[tuple[str, Stretch], ...]]:
    """Collect the report of a run, its trace, and the iterations to compare."""
    state = _State(folder, folder.read_status(), on_step)
    on_step("reading task records")
    plan = state.plan()
    trace = state.trace(plan)
    plan = _plan_of(plan, trace, state)
    steady = None
    if trace is not None:
        window = 0 if plan is None else plan.job.window
        steady = steady_iterations(trace, default_skip(trace), window)
        if not steady.num:
            state.missing.append(
                f"{steady.timelines.num_iterations} iterations are too few to measure."
            )
            steady = None
    profile = _own_profile(trace, plan) if steady is not None else None
    predicted = simulated_s = None
    is_local = plan is not None and plan.method == LOCAL_METHOD
    if is_local:
        state.missing.append("A run on one machine has no prediction.")
    else:
        on_step("simulating the plan")
        predicted = _simulate(plan, None, state)
        simulated_s = _simulated_s(plan, profile)
    pace = _pace(None if is_local else plan, predicted, simulated_s, trace, steady)
    advice = None
    if plan is not None and advise and not is_local:
        advice = _advice(plan, profile, state)
    seen = None if predicted is None else _steady(predicted.trace())
    measured = None if trace is None or steady is None else Seen(trace, steady)
    if is_local:
        plan = profile = None
    report = _report(state, plan, profile, pace, seen, measured, advice)
    return report, trace, stretches_of(seen, measured, NUM_SHOWN)


def _steady(trace: Trace) -> Seen:
    return Seen(trace, steady_iterations(trace, default_skip(trace)))


def _plan_of(plan: Plan | None, trace: Trace | None, state: _State) -> Plan | None:
    """Return the plan of the trace: a run that lost machines continues with another plan."""
    if plan is None or trace is None:
        return plan
    if tuple(machine.name for machine in plan.cluster.hosts) == trace.machine_names:
        return plan
    try:
        changed = replan(plan, trace.machine_names)
    except HeadraceError:
        changed = None
    if changed is None or changed.cluster.num_machines != len(trace.machine_names):
        state.missing.append("The plan is omitted: the run ended on other machines.")
        return None
    state.missing.append(
        f"The run ended on {len(trace.machine_names)} of the plan's {plan.cluster.num_machines} "
        "machines: the report covers these machines and the plan for them."
    )
    return changed


def _own_profile(trace: Trace | None, plan: Plan | None) -> Profile | None:
    if trace is None or plan is None:
        return None
    try:
        return profile_trace(trace, plan)
    except (HeadraceError, ValueError, IndexError):
        return None


def _simulate(
    plan: Plan | None, profile: Profile | None, state: _State | None
) -> Simulation | None:
    """Simulate a plan with its own profile, or with the given one."""
    if plan is None:
        return None
    problem = problem_of(plan).with_profile(profile or plan.profile)
    iterations = rehearsable_iterations(problem, _ITERATIONS)
    try:
        if iterations >= 2:
            return simulate(
                *problem, plan, plan.policy, iterations=iterations, record=profile is None
            )
        reason = "the job is too large"
    except HeadraceError as error:
        reason = error.problem
    if state is not None:
        state.missing.append(f"The plan could not be simulated: {reason}.")
    return None


def _simulated_s(plan: Plan | None, profile: Profile | None) -> float | None:
    if profile is None:
        return None
    found = _simulate(plan, profile, None)
    return None if found is None else found.iteration_time_s


def _pace(
    plan: Plan | None,
    predicted: Simulation | None,
    rehearsed_s: float | None,
    trace: Trace | None,
    steady: Steady | None,
) -> Pace:
    counted: dict[str, Any] = {}
    if trace is not None and steady is not None:
        counted = {
            "measured_s": steady.time_s,
            "num_iterations": steady.timelines.num_iterations,
            "num_skipped": steady.num_skipped,
            "num_steady": steady.num,
            "num_pauses": len(steady.pauses),
            "pauses_s": steady.pauses_s,
        }
    return Pace(
        predicted_s=None if predicted is None else predicted.iteration_time_s,
        profile=None if plan is None else plan.profile.source,
        profile_note="" if plan is None else plan.profile.note,
        rehearsed_s=rehearsed_s,
        **counted,
    )


def _advice(plan: Plan, profile: Profile | None, state: _State) -> Advice | None:
    iterations = rehearsable_iterations(problem_of(plan), _ITERATIONS)
    if iterations < 2:
        return None
    try:
        time_s, tried = rehearse_changes(
            plan, profile or plan.profile, iterations, _part_shares(state, plan), state.on_step
        )
    except HeadraceError as error:
        state.missing.append(f"Changes could not be simulated: {error.problem}.")
        return None
    return Advice(time_s=time_s, profile="plan" if profile is None else "run", tried=tried)


def _part_shares(state: _State, plan: Plan) -> list[float]:
    """Fraction of the graph per machine; empty if unavailable, or if partitions were moved."""
    if plan.parts is not None:
        return []
    try:
        asked = json.loads((state.folder.path / "run.json").read_bytes())
        manifest = json.loads((Path(asked["graph"]) / "manifest.json").read_bytes())
        return [float(share) for share in manifest["shares"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _report(
    state: _State,
    plan: Plan | None,
    profile: Profile | None,
    pace: Pace,
    predicted: Seen | None,
    measured: Seen | None,
    advice: Advice | None,
) -> Report:
    status, events = state.status, state.lines("events.jsonl")
    view = view_run(state.folder, status.updated_s, {})
    problem, remedy = view.trouble or ("", "")
    lines = state.lines("reports.jsonl")
    reports = curves_of(lines)
    if measured is not None:
        flows = measured.trace.flows
        moved_bytes = np.bincount(flows.iteration, weights=flows.num_bytes)
        over_bytes = curve_over_bytes(lines, np.cumsum(moved_bytes).tolist())
        reports += [] if over_bytes is None else [over_bytes]
    if not reports:
        state.missing.append(
            "The script reported no metrics: call `headrace.report(loss=...)` to plot them here."
        )
    seeds = status.samples_per_s
    if plan is not None:
        seeds = float(plan.seeds.sum()) / pace.measured_s if pace.measured_s else None
    return Report(
        run_id=status.run_id,
        job=status.job,
        state=status.state.value,
        problem=problem,
        remedy=remedy,
        began_s=status.since_s,
        elapsed_s=max(0.0, status.updated_s - status.since_s),
        attempts=status.attempt,
        restarts=status.restarts,
        samples_per_s=seeds,
        epoch_bytes=status.epoch_bytes,
        pace=pace,
        phases=tuple(phases_of(events, status.since_s, status.updated_s)),
        trainers=trainers_of(predicted, measured),
        machines=machines_of(predicted, measured),
        tasks=tasks_of(predicted, measured),
        memory=_memory(plan, status),
        assumptions=tuple(
            []
            if plan is None or profile is None
            else assumptions_of(plan, profile, status.cache_hit_rate)
        ),
        curves=tuple(reports),
        decisions=tuple(decisions_of(events, status.since_s)),
        earlier=tuple(_earlier(state.folder.path)),
        advice=advice,
        plan=None if plan is None else plan_facts(plan),
        command=_command(state.folder.path),
        versions=versions_of(events),
        made_by=own_version(),
        missing=tuple(dict.fromkeys(state.missing)),
    )


def _memory(plan: Plan | None, status: Status) -> tuple[TaskMemoryUse, ...]:
    """Estimated and measured peaks of all tasks, if one of them is known."""
    estimated = (
        {}
        if plan is None or plan.memory is None
        else {task.role: task.anonymous_bytes for task in plan.memory.tasks}
    )
    found = (
        TaskMemoryUse(
            name=task.name,
            role=task.role,
            machine=task.machine,
            estimated_bytes=estimated.get(task.role),
            measured_bytes=task.peak_bytes,
        )
        for task in status.tasks
    )
    return tuple(each for each in found if each.estimated_bytes or each.measured_bytes)


def _earlier(folder: Path) -> Iterator[Earlier]:
    """Summarise archived attempts under other plans."""
    numbers = [path.name.removeprefix("attempt-") for path in folder.glob("attempt-*")]
    for number in sorted(int(each) for each in numbers if each.isdecimal()):
        path = folder / f"attempt-{number}"
        try:
            plan = Plan.model_validate_json((path / "plan.json").read_bytes())
            trace = trace_of_folder(path, plan)
        except (HeadraceError, OSError, ValueError, KeyError, TypeError):
            continue
        steady = steady_iterations(trace, default_skip(trace), plan.job.window)
        yield Earlier(
            attempt=number,
            num_machines=plan.cluster.num_machines,
            num_iterations=steady.timelines.num_iterations,
            measured_s=steady.time_s,
        )


def _command(folder: Path) -> str:
    try:
        asked = json.loads((folder / "run.json").read_bytes())
        return command_of(asked) if isinstance(asked, dict) else ""
    except (OSError, ValueError):
        return ""
