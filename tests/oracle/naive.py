"""A naive event simulator in plain Python: what a rehearsal means, written to be read.

Whenever the set of open flows changed, or the rates of a policy no longer hold, all rates are
computed anew. Time advances to the next end of a task or a flow. It shares nothing with the
package's kernel but the input, `Instance`.

With exact fractions instead of floats there are no rounding errors, and simultaneous events are
simultaneous without a tolerance.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from headrace.simulator.instance import Instance
from tests.oracle.policies import POLICIES, OpenFlow, capacities, matchings

ORDER = 5
SIMULTANEOUS = 1e-12
"""Completions this close, relative to the time, are one instant."""

_MASK = 2**64 - 1


def draw_index(seed: int, stream: int, iteration: int, length: int) -> int:
    """Index drawn for an edge or task and an iteration: SplitMix64 on plain integers."""
    x = seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03 + iteration * 0x8CB92BA72F3D8DD7
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    x ^= x >> 31
    return ((x >> 32) * length) >> 32


def factor(instance: Instance, table: int, stream: int, iteration: int) -> float:
    """Factor of mean 1 by which a time or a volume differs from its mean."""
    start, end = int(instance.table_start[table]), int(instance.table_start[table + 1])
    return float(instance.tables[start + draw_index(instance.seed, stream, iteration, end - start)])


@dataclass(frozen=True)
class Segment:
    """A flow at a constant rate."""

    edge: int
    iteration: int
    start_s: float
    end_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class NaiveOutcome:
    """The arrays of `Record` and the figures of `Outcome`, and all rates as segments."""

    makespan_s: float
    num_events: int
    iteration_end_s: np.ndarray
    in_bytes: np.ndarray
    out_bytes: np.ndarray
    task_start_s: np.ndarray
    task_end_s: np.ndarray
    flow_start_s: np.ndarray
    flow_end_s: np.ndarray
    flow_bytes: np.ndarray
    segments: list[Segment]


def durations(instance: Instance) -> np.ndarray:
    """Seconds per task and iteration."""
    return np.array(
        [
            [
                float(instance.task_time_s[j])
                * factor(instance, int(instance.task_table[j]), instance.num_edges + j, n)
                for n in range(instance.num_iterations)
            ]
            for j in range(instance.num_tasks)
        ]
    )


def volumes(instance: Instance) -> np.ndarray:
    """Bytes per edge and iteration; edges that only order carry none."""
    return np.array(
        [
            [
                0.0
                if instance.edge_kind[e] == ORDER
                else float(instance.edge_bytes[e])
                * factor(instance, int(instance.edge_table[e]), e, n)
                for n in range(instance.num_iterations)
            ]
            for e in range(instance.num_edges)
        ]
    )


def is_flow(instance: Instance, edge: int) -> bool:
    """Whether an edge crosses machines and carries bytes."""
    src = instance.task_machine[instance.edge_src[edge]]
    dst = instance.task_machine[instance.edge_dst[edge]]
    return bool(src != dst and instance.edge_kind[edge] != ORDER)


@dataclass(eq=False)
class _Edge:
    """One task pair: what was delivered, what is in transit, what waits for its turn (eq. 12)."""

    id: int
    src: int
    dst: int
    lag: int
    kind: int
    is_flow: bool
    num_delivered: int = 0
    open: OpenFlow | None = None
    waiting: deque[int] = field(default_factory=deque)


@dataclass(eq=False)
class _Task:
    """One task: how many iterations it started and finished, and when the running one ends."""

    id: int
    machine: int
    num_started: int = 0
    num_finished: int = 0
    end_s: float = math.nan
    in_edges: list[_Edge] = field(default_factory=list)
    out_edges: list[_Edge] = field(default_factory=list)


class _Rehearsal:
    def __init__(self, instance: Instance, policy: str, exact: bool) -> None:
        self.instance = instance
        self.rule = POLICIES[policy]
        self.has_hold = policy == "matching"
        number: Any = Fraction if exact else float
        self.number: Callable[[float], Any] = number
        self.latest = 1 if exact else 1 + SIMULTANEOUS
        self.ports = capacities(
            [self.number(float(x)) for x in instance.nic_out_bytes_per_s],
            [self.number(float(x)) for x in instance.nic_in_bytes_per_s],
        )
        self.tasks = [_Task(j, int(machine)) for j, machine in enumerate(instance.task_machine)]
        self.edges = [
            _Edge(
                e,
                int(instance.edge_src[e]),
                int(instance.edge_dst[e]),
                int(instance.edge_lag[e]),
                int(instance.edge_kind[e]),
                is_flow(instance, e),
            )
            for e in range(instance.num_edges)
        ]
        self.idle = list(self.tasks)
        self.running: list[_Task] = []
        for edge in self.edges:
            self.tasks[edge.src].out_edges.append(edge)
            self.tasks[edge.dst].in_edges.append(edge)
        self.duration = durations(instance)
        self.volume = volumes(instance)
        tasks_shape = (instance.num_tasks, instance.num_iterations)
        edges_shape = (instance.num_edges, instance.num_iterations)
        self.task_start = np.full(tasks_shape, np.nan)
        self.task_end = np.full(tasks_shape, np.nan)
        self.flow_start = np.full(edges_shape, np.nan)
        self.flow_end = np.full(edges_shape, np.nan)
        self.in_bytes = np.zeros(instance.num_machines)
        self.out_bytes = np.zeros(instance.num_machines)
        self.segments: list[Segment] = []
        self.rates: dict[int, float] = {}
        self.rated: set[tuple[int, int]] = set()
        self.holds_until: Any = math.inf
        self.num_events = 0
        self.now: Any = self.number(0)

    def may_start(self, task: _Task) -> bool:
        n = task.num_started
        for edge in task.in_edges:
            if edge.num_delivered < n - edge.lag + 1:
                return False
        window = self.instance.window
        return window == 0 or all(
            self.tasks[edge.dst].num_finished >= n - window + 1 for edge in task.out_edges
        )

    def start_ready_tasks(self) -> bool:
        ready = [task for task in self.idle if self.may_start(task)]
        for task in ready:
            n = task.num_started
            task.num_started += 1
            self.task_start[task.id, n] = self.now
            task.end_s = self.now + self.number(float(self.duration[task.id, n]))
            self.idle.remove(task)
            self.running.append(task)
        return bool(ready)

    def finish_due_tasks(self) -> bool:
        due = [task for task in self.running if self.is_now(task.end_s)]
        for task in due:
            n = task.num_finished
            task.num_finished += 1
            self.task_end[task.id, n] = self.now
            self.num_events += 1
            self.running.remove(task)
            if task.num_finished < self.instance.num_iterations:
                self.idle.append(task)
            for edge in task.out_edges:
                if not edge.is_flow:
                    edge.num_delivered += 1
                    continue
                edge.waiting.append(n)
                self.open_next_flow(edge)
        return bool(due)

    def open_next_flow(self, edge: _Edge) -> None:
        """Open the flow whose turn it is; flows without bytes are through at once."""
        while edge.open is None and edge.waiting:
            n = edge.waiting.popleft()
            volume = self.number(float(self.volume[edge.id, n]))
            self.flow_start[edge.id, n] = self.now
            if volume > 0:
                edge.open = OpenFlow(
                    src=self.tasks[edge.src].machine,
                    dst=self.tasks[edge.dst].machine,
                    task=edge.dst,
                    edge=edge.id,
                    kind=edge.kind,
                    iteration=n,
                    volume=volume,
                    remaining=volume,
                    opened=self.now,
                )
            else:
                self.flow_end[edge.id, n] = self.now
                edge.num_delivered += 1

    def finish_flow(self, edge: _Edge) -> None:
        flow = edge.open
        assert flow is not None
        self.flow_end[edge.id, flow.iteration] = self.now
        self.in_bytes[flow.dst] += flow.volume
        self.out_bytes[flow.src] += flow.volume
        self.num_events += 1
        edge.num_delivered += 1
        edge.open = None
        self.open_next_flow(edge)

    def is_now(self, time_s: float) -> bool:
        return bool(time_s <= self.now * self.latest)

    def settle(self) -> None:
        """Everything that happens at this instant, in as many rounds as it takes."""
        busy = True
        while busy:
            finished = self.finish_due_tasks()
            busy = self.start_ready_tasks() or finished

    def is_over(self) -> bool:
        return not self.idle and not self.running

    def advance(self) -> None:
        """Move to the next event; flows keep their rates until the set of open flows changes."""
        flows = [edge.open for edge in self.edges if edge.open is not None]
        opened = {(f.edge, f.iteration) for f in flows}
        if opened != self.rated or self.is_now(self.holds_until):
            if self.has_hold:
                self.rates, hold_s = matchings(flows, self.ports)
                self.holds_until = max(self.now + hold_s, self.now * (1 + 2 * SIMULTANEOUS))
            else:
                self.rates = self.rule(flows, self.ports, self.instance.pace_s)
            self.rated = opened
        rates = self.rates
        flow_end = {
            f.edge: self.now + f.remaining / rates[f.edge] for f in flows if rates[f.edge] > 0
        }
        task_ends = [task.end_s for task in self.running]
        next_s = min([*flow_end.values(), *task_ends, self.holds_until])
        for f in flows:
            f.remaining -= rates[f.edge] * (next_s - self.now)
            if rates[f.edge] > 0:
                segment = Segment(f.edge, f.iteration, self.now, next_s, rates[f.edge])
                self.segments.append(segment)
        self.now = next_s
        for edge_id, end_s in flow_end.items():
            if self.is_now(end_s):
                self.finish_flow(self.edges[edge_id])

    def run(self) -> NaiveOutcome:
        self.settle()
        while not self.is_over():
            self.advance()
            self.settle()
        return NaiveOutcome(
            makespan_s=float(self.task_end[:, -1].max()),
            num_events=self.num_events,
            iteration_end_s=self.task_end.max(axis=0),
            in_bytes=self.in_bytes,
            out_bytes=self.out_bytes,
            task_start_s=self.task_start,
            task_end_s=self.task_end,
            flow_start_s=self.flow_start,
            flow_end_s=self.flow_end,
            flow_bytes=self.volume,
            segments=self.segments,
        )


def rehearse(instance: Instance, policy: str, *, exact: bool = False) -> NaiveOutcome:
    """Simulate an instance under a policy, with floats or with exact fractions."""
    return _Rehearsal(instance, policy, exact).run()
