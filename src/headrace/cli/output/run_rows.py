"""Rows of a run's tasks: one per task, or per role or machine if space is limited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.api.run_status import Status, TaskStatus

_DOING = {"store": "serving", "sampler": "sampling", "trainer": "training", "ps": "serving"}
_STATES = {"waiting": "not yet"}
_MOSTLY = 0.5
"""A task with a larger busy share counts as working, even if it waits at times."""

_CALM = ("ended", "not yet", "ready")


@dataclass(frozen=True)
class Row:
    """A task, or several of one role on one machine.

    Attributes:
        machine: Name of the machine.
        name: Name of the task, or number and role.
        doing: Activity: `training`, `waiting`, `lost`, ...
        iteration: Current iteration; the minimum of several tasks.
        busy_share: Share of the time spent computing; the mean of several tasks.
        rss_bytes: Memory; the sum of several tasks.
        waits_for: What blocks it.
    """

    machine: str
    name: str
    doing: str
    iteration: str = ""
    busy_share: float | None = None
    rss_bytes: float | None = None
    waits_for: str = ""


def doing(task: TaskStatus) -> str:
    """Activity of a task, in a word."""
    if task.state != "running":
        return _STATES.get(task.state, str(task.state))
    is_idle = bool(task.waits_for) and (task.busy_share is None or task.busy_share <= _MOSTLY)
    return "waiting" if is_idle else _DOING.get(task.role, "computing")


def tone(word: str) -> str:
    """Severity of an activity: `bad`, `wait`, `calm` or `good`."""
    if "lost" in word:
        return "bad"
    if word in _CALM:
        return "calm"
    is_slow = "waiting" in word or "starting" in word
    return "wait" if is_slow else "good"


def task_rows(status: Status) -> list[Row]:
    """A row per task, ordered by machine."""
    return [
        Row(
            task.machine,
            task.name,
            doing(task),
            _number(task.iteration),
            task.busy_share,
            task.rss_bytes,
            task.waits_for,
        )
        for task in _by_machine(status)
    ]


def role_rows(status: Status) -> list[Row]:
    """A row per machine and role."""
    groups = groupby(_by_machine(status), key=lambda task: (task.machine, task.role))
    return [_merged(list(tasks)) for _, tasks in groups]


def machine_rows(status: Status) -> list[Row]:
    """A row per machine."""
    groups = groupby(_by_machine(status), key=lambda task: task.machine)
    return [_merged(list(tasks)) for _, tasks in groups]


def fitting_rows(status: Status, num_lines: int | None) -> tuple[list[Row], int]:
    """Rows that fit `num_lines` lines (None for no limit), and the number of omitted machines."""
    for rows in (task_rows(status), role_rows(status), machine_rows(status)):
        if num_lines is None or len(rows) <= num_lines:
            return rows, 0
    return rows[:num_lines], len(rows[num_lines:])


def _by_machine(status: Status) -> list[TaskStatus]:
    known = {machine.name: i for i, machine in enumerate(status.machines)}
    roles = list(_DOING)
    return sorted(
        status.tasks,
        key=lambda task: (
            known.get(task.machine, len(known)),
            task.machine,
            roles.index(task.role) if task.role in roles else len(roles),
        ),
    )


def _merged(tasks: Sequence[TaskStatus]) -> Row:
    roles = {str(task.role) for task in tasks}
    name = f"{len(tasks)} {roles.pop() if len(roles) == 1 else 'task'}s"
    iterations = [task.iteration for task in tasks if task.iteration is not None]
    waits = Counter(task.waits_for for task in tasks if task.waits_for)
    return Row(
        tasks[0].machine,
        tasks[0].name if len(tasks) == 1 else name,
        _activity_of_all([doing(task) for task in tasks]),
        _number(min(iterations, default=None)),
        _mean(task.busy_share for task in tasks),
        _sum(task.rss_bytes for task in tasks),
        waits.most_common(1)[0][0] if waits else "",
    )


def _activity_of_all(words: Sequence[str]) -> str:
    """Activity of several tasks; if they differ, the most severe one."""
    counts = Counter(words)
    if len(counts) == 1:
        return words[0]
    for mood in ("bad", "wait"):
        noticed = [(count, word) for word, count in counts.items() if tone(word) == mood]
        if noticed:
            count, word = max(noticed)
            return f"{count} of {len(words)} {word}"
    return "working"


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
