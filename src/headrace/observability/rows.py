"""Layout of a Gantt chart: bands, rows and lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from headrace.core.trace import Trace
from headrace.observability.lanes import (
    FLOW_KINDS,
    ROLE_ORDER,
    flow_ends,
    flow_kinds,
    stack,
    task_lanes,
)

MAX_TASK_ROWS = 60
"""With more tasks, a row contains all tasks of one role."""

MAX_MACHINES = 32
"""Maximum number of bands."""

_FLOW_GROUPS = (("graph", (0,)), ("batch", (1,)), ("swap", (6,)), ("sync", (2, 3, 4)))
"""Rows of flows and their indices into `FLOW_KINDS`; synchronisation is one row."""

_FLOW_LANE_HEIGHT = 0.22
_MAX_FLOW_HEIGHT = 2.2
_MIN_FLOW_HEIGHT = 0.85
_MAX_ROLE_HEIGHT = 2.0
_BAND_PADDING = 0.4
_GAP_TO_FLOWS = 0.25


@dataclass(frozen=True)
class Bars:
    """Rectangles of one row."""

    start_s: np.ndarray
    end_s: np.ndarray
    iteration: np.ndarray
    lane: np.ndarray


@dataclass(frozen=True)
class Row:
    """One labelled row with bars in `num_lanes` lanes; a task's lane has height 1."""

    label: str
    is_flow: bool
    top: float
    height: float
    num_lanes: int
    bars: Bars


def coarsen(row: Row, step_s: float, max_lanes: int) -> Row:
    """Drop bars that differ by less than a pixel, of `step_s` seconds and one lane."""
    bars, num_lanes = row.bars, min(row.num_lanes, max_lanes)
    cells = np.stack(
        [
            bars.start_s // step_s,
            bars.end_s // step_s,
            bars.lane * num_lanes // row.num_lanes,
            bars.iteration,
        ],
        axis=1,
    ).astype(np.int64)
    kept = np.sort(np.unique(cells, axis=0, return_index=True)[1])
    lane = cells[kept, 2]
    coarse = Bars(bars.start_s[kept], bars.end_s[kept], bars.iteration[kept], lane)
    return replace(row, num_lanes=num_lanes, bars=coarse)


@dataclass(frozen=True)
class Layout:
    """Layout of the whole chart; `bands` are machine, top and bottom of every band."""

    bands: list[tuple[int, float, float]]
    rows: list[Row]
    height: float
    num_hidden: int


def layout(trace: Trace) -> Layout:
    """Arrange a trace: per machine the ingress flows, its tasks, the egress flows."""
    machines = _machines_to_show(trace)
    finder = _Finder(trace, machines)
    bands: list[tuple[int, float, float]] = []
    rows: list[Row] = []
    top = 0.0
    for machine in machines.tolist():
        band_top = top
        top += _BAND_PADDING
        was_flow: bool | None = None
        for label, is_flow, bars in finder.rows_of(machine):
            if was_flow is not None and was_flow != is_flow:
                top += _GAP_TO_FLOWS
            was_flow = is_flow
            num_lanes = int(bars.lane.max(initial=0)) + 1
            height = _row_height(num_lanes, is_flow=is_flow)
            rows.append(Row(label, is_flow, top, height, num_lanes, bars))
            top += height
        top += _BAND_PADDING
        bands.append((machine, band_top, top))
    return Layout(bands, rows, top, len(trace.machine_names) - len(machines))


def _row_height(num_lanes: int, *, is_flow: bool) -> float:
    if is_flow:
        return min(max(_FLOW_LANE_HEIGHT * num_lanes, _MIN_FLOW_HEIGHT), _MAX_FLOW_HEIGHT)
    return min(float(num_lanes), _MAX_ROLE_HEIGHT)


def _machines_to_show(trace: Trace) -> np.ndarray:
    num = len(trace.machine_names)
    if num <= MAX_MACHINES:
        return np.arange(num)
    flows = trace.flows
    received = np.bincount(trace.task_machines[flows.dst], weights=flows.num_bytes, minlength=num)
    sent = np.bincount(trace.task_machines[flows.src], weights=flows.num_bytes, minlength=num)
    busy = np.maximum(received / trace.nic_in_bytes_per_s, sent / trace.nic_out_bytes_per_s)
    return np.sort(np.argsort(-busy, kind="stable")[:MAX_MACHINES])


class _Finder:
    """Finds the bars of a machine, with an index by machine."""

    def __init__(self, trace: Trace, shown: np.ndarray) -> None:
        self._trace = trace
        self._lanes, self._names = task_lanes(trace)
        num_lanes = len(np.unique(self._lanes[np.isin(trace.task_machines, shown)]))
        self._by_task = num_lanes <= MAX_TASK_ROWS
        self._kinds, self._flow_ends = flow_kinds(trace), flow_ends(trace)
        num = len(trace.machine_names)
        machines = trace.task_machines
        self._executions = _by_group(machines[trace.executions.task], num)
        self._received = _by_group(machines[trace.flows.dst], num)
        self._sent = _by_group(machines[trace.flows.src], num)
        self._roles = np.array([ROLE_ORDER.index(role) for role in trace.task_roles])

    def rows_of(self, machine: int) -> list[tuple[str, bool, Bars]]:
        """Label, whether flows, and bars of every row of a machine, from top to bottom."""
        return [
            *self._flow_rows(self._received[machine], "in"),
            *self._task_rows(self._executions[machine]),
            *self._flow_rows(self._sent[machine], "out"),
        ]

    def _task_rows(self, mine: np.ndarray) -> list[tuple[str, bool, Bars]]:
        runs = self._trace.executions
        mine = mine[runs.end_s[mine] > runs.start_s[mine]]
        groups = self._lanes if self._by_task else self._roles
        rows = []
        for group in np.unique(groups[runs.task[mine]]).tolist():
            here = mine[groups[runs.task[mine]] == group]
            if self._by_task:
                label = self._names[group]
            else:
                num = len(np.unique(self._lanes[runs.task[here]]))
                label = ROLE_ORDER[group] if num == 1 else f"{num} {ROLE_ORDER[group]}s"
            start_s, end_s = runs.start_s[here], runs.end_s[here]
            bars = Bars(start_s, end_s, runs.iteration[here], stack(start_s, end_s))
            rows.append((label, False, bars))
        return rows

    def _flow_rows(self, mine: np.ndarray, direction: str) -> list[tuple[str, bool, Bars]]:
        flows = self._trace.flows
        rows = []
        for name, kinds in _FLOW_GROUPS:
            here = mine[np.isin(self._kinds[mine], kinds)]
            if not len(here):
                continue
            label = name if len(kinds) == 1 else FLOW_KINDS[int(self._kinds[here].min())]
            if len(np.unique(self._kinds[here])) > 1:
                label = name
            start_s, end_s = flows.start_s[here], self._flow_ends[here]
            bars = Bars(start_s, end_s, flows.iteration[here], stack(start_s, end_s))
            rows.append((f"{label} {direction}", True, bars))
        return rows


def _by_group(group: np.ndarray, num_groups: int) -> list[np.ndarray]:
    """Indices of the entries of each group, ascending."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.searchsorted(group[order], np.arange(1, num_groups)))
