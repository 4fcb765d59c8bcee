"""What tasks record while they run, cut into windows of whole iterations."""

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

MIN_ITERATIONS = 10
"""Of a window: a mean over fewer says little."""

MIN_S = 8.0
"""Of a window: what passes sooner is no drift."""

_MOST_RECORDS = 400_000
"""That wait for a window; a script whose trainers do not step together never fills one."""

_PAUSE = 4.0
"""Iterations that take so many times the usual one are pauses: an evaluation, a checkpoint."""

_COMPARED = (Role.STORE, Role.SAMPLER, Role.TRAINER, Role.SERVER)


@dataclass(frozen=True)
class Taken:
    """All records of some iterations.

    Attributes:
        first: The first iteration ...
        last: ... and the last one.
        records: Machine, and what one of its tasks recorded.
    """

    first: int
    last: int
    records: tuple[tuple[str, list[list[Any]]], ...]

    def measure(self, plan: Plan, offsets_s: Mapping[str, float]) -> tuple[Window, Profile]:
        """What they say.

        Args:
            plan: What is run; its network cards count as what was waited for.
            offsets_s: What to add to each machine's times.

        Raises:
            SpecError: They do not show what the plan says.
        """
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
    """Keeps records until all tasks have done enough iterations.

    Args:
        plan: What is run.
        min_iterations: Of a window.
        min_s: Of a window.
    """

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
        self._halves: dict[str, bytes] = {}
        self._records: dict[str, list[list[Any]]] = {}
        self._last: dict[str, int] = {}
        self._next = -1

    def add(self, task: str, data: bytes) -> None:
        """Keep what a task has recorded; the last line may not be whole yet."""
        whole, newline, half = (self._halves.get(task, b"") + data).rpartition(b"\n")
        self._halves[task] = half
        records = read_records(whole + newline)
        self._records.setdefault(task, []).extend(records)
        for record in records:
            if record[0] == "exec" and record[1] == task:
                self._last[task] = iteration_of(record)
        if sum(map(len, self._records.values())) > _MOST_RECORDS:
            self._records = {}

    def take(self) -> Taken | None:
        """The next window, once there is one; it is kept no longer."""
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
        return Taken(first, last, records)


def iteration_of(record: list[Any]) -> int:
    """Which iteration a record is about."""
    return int(record[2] if record[0] in ("exec", "ring") else record[3])


def iteration_time_s(trace: Trace) -> float:
    """The mean time from the end of an iteration to that of the next, without pauses."""
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
    """What a plan was made for."""
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
