"""Splits trace records into windows of complete iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.core.profile import Profile
from headrace.core.tasks import ROLES, build_task_graph
from headrace.core.trace import Trace
from headrace.costs import task_machines
from headrace.policies.drift.figures import Figures, Window
from headrace.profiling import profile_trace
from headrace.profiling.trace_assembly import merge_read, read_records
from headrace.runtime.callbacks.line_buffer import LineBuffer

MIN_ITERATIONS = 10
"""Minimum iterations per window."""

MIN_S = 8.0
"""Minimum duration of a window; shorter changes are not drift."""

_MAX_RECORDS = 400_000
"""Buffer limit; trainers that do not step together never complete a window."""

_PAUSE = 4.0
"""Iterations longer than this multiple of the median are pauses (evaluation, checkpoint)."""

_COMPARED = (Role.STORE, Role.SAMPLER, Role.TRAINER, Role.SERVER)


@dataclass(frozen=True)
class Span:
    """Records of the iterations `first` to `last`: pairs of a machine and a task's records."""

    first: int
    last: int
    records: tuple[tuple[str, list[list[Any]]], ...]

    def measure(self, plan: Plan, offsets_s: Mapping[str, float]) -> tuple[Window, Profile]:
        """Measured figures of the window; raises SpecError if the records do not match the plan."""
        trace = merge_read(self.records, offsets_s, plan)
        profile = profile_trace(trace, plan, self.first)
        times_s = {
            (role, kind): time.mean
            for role, kinds in profile.task_times.items()
            if role in _COMPARED
            for kind, time in kinds.items()
        }
        figures = Figures(iteration_time_s(trace), times_s)
        return Window(self.first, self.last, figures), profile


class Windows:
    """Buffers records until all tasks have completed a window."""

    def __init__(
        self, plan: Plan, min_iterations: int = MIN_ITERATIONS, min_s: float = MIN_S
    ) -> None:
        graph = build_task_graph(plan.job, plan.cluster.num_machines, plan.placed.ring_order)
        hosts = [host.name for host in plan.cluster.hosts]
        places = task_machines(graph, plan.placed)
        self._machines = {
            name: hosts[m] for name, m in zip(graph.names, places, strict=True) if m >= 0
        }
        roles = {name: ROLES[code] for name, code in zip(graph.names, graph.role, strict=True)}
        self._trainers = [name for name, role in roles.items() if role is Role.TRAINER]
        self._counted = [name for name, role in roles.items() if role in _COMPARED[1:3]]
        self._min_iterations, self._min_s = min_iterations, min_s
        self._lines = LineBuffer()
        self._records: dict[str, list[list[Any]]] = {}
        self._last: dict[str, int] = {}
        self._next = -1

    def add(self, task: str, data: bytes) -> None:
        """Add records of a task; the last line may be incomplete."""
        records = read_records(self._lines.add(task, data))
        self._records.setdefault(task, []).extend(records)
        for record in records:
            if record[0] == "exec" and record[1] == task:
                self._last[task] = iteration_of(record)
        if sum(map(len, self._records.values())) > _MAX_RECORDS:
            self._records = {}

    def pop(self) -> Span | None:
        """Pop the next complete window, if any."""
        if any(task not in self._last for task in self._counted):
            return None
        own = self._records.get(self._trainers[0], [])
        steps = {iteration_of(each): each[3:5] for each in own if each[0] == "exec"}
        last = min(self._last[task] for task in self._counted)
        if not steps:
            return None
        first = max(self._next, min(steps))
        if last - first + 1 < self._min_iterations or last not in steps or first not in steps:
            return None
        if steps[last][1] - steps[first][0] < self._min_s:
            return None
        records = tuple(
            (
                self._machines[task],
                [each for each in kept if first <= iteration_of(each) <= last],
            )
            for task, kept in self._records.items()
            if task in self._machines
        )
        self._records = {
            task: [each for each in kept if iteration_of(each) > last]
            for task, kept in self._records.items()
        }
        self._next = last + 1
        return Span(first, last, records)


def iteration_of(record: list[Any]) -> int:
    """Iteration of a record."""
    return int(record[2] if record[0] in ("exec", "ring", "swap") else record[3])


def iteration_time_s(trace: Trace) -> float:
    """Mean time between the ends of iterations, without pauses."""
    rows = trace.executions
    is_trainer = np.array(trace.task_roles)[rows.task] == Role.TRAINER
    iterations, number = np.unique(rows.iteration[is_trainer], return_inverse=True)
    ends_s = np.full(len(iterations), -np.inf)
    np.maximum.at(ends_s, number, rows.end_s[is_trainer])
    gaps_s = np.diff(ends_s)
    if not len(gaps_s):
        return 0.0
    usual = gaps_s[gaps_s <= _PAUSE * np.median(gaps_s)]
    return float(usual.mean()) if len(usual) else float(gaps_s.mean())


def expected_of(plan: Plan) -> Figures:
    """Figures that a plan expects."""
    profile, job = plan.profile, plan.job
    kinds = {host.kind for host in plan.cluster.hosts}
    roles = [role for role in _COMPARED if role is not Role.SERVER or job.num_servers]
    times_s = {
        (role, kind): profile.task_time(role, kind).mean * profile.seed_scale(role, job)
        for role in roles
        for kind in kinds
    }
    predicted = plan.predicted
    return Figures(plan.terms.time_s if predicted is None else predicted.iteration_time_s, times_s)
