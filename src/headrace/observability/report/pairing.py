"""Pairing of predicted and measured figures: trainers, NICs, tasks and iterations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.core.report import MachineUse, TaskUse, TrainerTime
from headrace.core.trace import Trace
from headrace.observability.report.gantt import Stretch
from headrace.observability.report.steady import Steady
from headrace.observability.report.use import nic_use, task_use


@dataclass(frozen=True)
class Seen:
    """A trace and its steady iterations."""

    trace: Trace
    steady: Steady


def trainers_of(predicted: Seen | None, measured: Seen | None) -> tuple[TrainerTime, ...]:
    """Time components of every trainer."""
    found: dict[str, dict[str, Any]] = {}
    for kind, seen in _both(predicted, measured):
        lines = seen.steady.timelines
        for trainer, name in enumerate(lines.names):
            machine = seen.trace.machine_names[lines.machines[trainer]]
            known = found.setdefault(name, {"name": name, "machine": machine})
            known[kind] = lines.split(trainer, seen.steady.counted)
    return tuple(TrainerTime(**each) for each in found.values())


def machines_of(predicted: Seen | None, measured: Seen | None) -> tuple[MachineUse, ...]:
    """Utilisation of every NIC."""
    found: dict[str, dict[str, Any]] = {}
    for kind, seen in _both(predicted, measured):
        into, out_of = nic_use(seen.trace, seen.steady)
        for machine, name in enumerate(seen.trace.machine_names):
            known = found.setdefault(name, {"name": name})
            known[f"{kind}_in"] = max(0.0, float(into[machine]))
            known[f"{kind}_out"] = max(0.0, float(out_of[machine]))
    return tuple(MachineUse(**each) for each in found.values())


def tasks_of(predicted: Seen | None, measured: Seen | None) -> tuple[TaskUse, ...]:
    """Utilisation of every task."""
    found: dict[str, dict[str, Any]] = {}
    for kind, seen in _both(predicted, measured):
        trace = seen.trace
        places = dict(zip(trace.task_names, trace.task_machines.tolist(), strict=True))
        roles = dict(zip(trace.task_names, trace.task_roles, strict=True))
        for name, share in task_use(trace, seen.steady).items():
            machine = trace.machine_names[places[name]]
            known = found.setdefault(name, {"name": name, "role": roles[name], "machine": machine})
            known[kind] = max(0.0, share)
    return tuple(TaskUse(**each) for each in found.values())


def stretches_of(
    predicted: Seen | None, measured: Seen | None, num: int
) -> tuple[tuple[str, Stretch], ...]:
    """Choose up to `num` consecutive iterations, the same of both traces where possible."""
    last_simulated = None
    if predicted is not None:
        last_simulated = predicted.steady.timelines.num_iterations - 1
    shown = []
    wanted = None if measured is None else measured.steady.stretch(num, last_simulated)
    if predicted is not None and last_simulated is not None:
        first, last = wanted or predicted.steady.stretch(num) or (0, -1)
        if last > last_simulated:
            first, last = last_simulated - (last - first), last_simulated
        shown.append(("Predicted", _stretch(predicted, first, last)))
    if measured is not None and wanted is not None:
        shown.append(("Measured", _stretch(measured, *wanted)))
    return tuple((name, each) for name, each in shown if each is not None)


def _both(predicted: Seen | None, measured: Seen | None) -> Iterator[tuple[str, Seen]]:
    for kind, seen in (("predicted", predicted), ("measured", measured)):
        if seen is not None:
            yield kind, seen


def _stretch(seen: Seen, first: int, last: int) -> Stretch | None:
    ends_s = seen.steady.timelines.ends_s
    if not 1 <= first <= last < len(ends_s):
        return None
    return Stretch(seen.trace, first, last, float(ends_s[first - 1]), float(ends_s[last]))
