"""How busy network cards and tasks were in the iterations that count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.job import Role
from headrace.core.trace import Trace
from headrace.observability.lanes import flow_ends
from headrace.observability.report.steady import Steady


@dataclass(frozen=True)
class NicSeries:
    """Share of its bandwidth that every network card used over time.

    Attributes:
        edges_s: Ends of the intervals, one more than there are.
        into: Incoming, by interval and machine.
        out_of: Outgoing.
    """

    edges_s: np.ndarray
    into: np.ndarray
    out_of: np.ndarray


def nic_series(trace: Trace, begin_s: float, end_s: float, num: int) -> NicSeries:
    """Spread the bytes of every flow evenly over its time, and sum them by interval.

    Args:
        trace: Of a run or a rehearsal.
        begin_s: First moment.
        end_s: Last moment.
        num: Intervals.
    """
    edges = np.linspace(begin_s, max(end_s, begin_s + 1e-9), num + 1)
    length_s = edges[1] - edges[0]
    received = np.diff(_carried(trace, trace.flows.dst, edges), axis=0)
    sent = np.diff(_carried(trace, trace.flows.src, edges), axis=0)
    return NicSeries(
        edges,
        received / (trace.nic_in_bytes_per_s * length_s),
        sent / (trace.nic_out_bytes_per_s * length_s),
    )


def nic_use(trace: Trace, steady: Steady) -> tuple[np.ndarray, np.ndarray]:
    """Share of its bandwidth that every network card used while iterations that count ran."""
    ends_s, counted = steady.timelines.ends_s, np.flatnonzero(steady.counted)
    moments = np.concatenate([ends_s[counted - 1], ends_s[counted]])
    span_s = steady.span_s or np.inf
    shares = []
    for ends, nic in (
        (trace.flows.dst, trace.nic_in_bytes_per_s),
        (trace.flows.src, trace.nic_out_bytes_per_s),
    ):
        before, after = np.split(_carried(trace, ends, moments), 2)
        shares.append((after - before).sum(axis=0) / (nic * span_s))
    return shares[0], shares[1]


def task_use(trace: Trace, steady: Steady) -> dict[str, float]:
    """Share of the time in which every task was busy in the iterations that count.

    Steps of a ring belong to trainers, whose time is told elsewhere, and are left out.
    """
    rows, num = trace.executions, len(trace.task_names)
    counted = np.zeros(max(int(rows.iteration.max(initial=-1)) + 1, len(steady.counted)), bool)
    counted[: len(steady.counted)] = steady.counted
    busy_s = np.bincount(
        rows.task, weights=(rows.end_s - rows.start_s) * counted[rows.iteration], minlength=num
    )
    span_s = steady.span_s or np.inf
    return {
        name: float(busy_s[task] / span_s)
        for task, (name, role) in enumerate(zip(trace.task_names, trace.task_roles, strict=True))
        if role != Role.RING
    }


def _carried(trace: Trace, ends: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """Bytes that every machine had carried at some moments, by moment and machine.

    Args:
        trace: Of a run or a rehearsal.
        ends: The flows' ends that count: those who send, or those who receive.
        at_s: The moments.
    """
    flows = trace.flows
    # A flow that took no time still needs some to be counted.
    end_s = np.maximum(flow_ends(trace), flows.start_s + 1e-9)
    rate = flows.num_bytes / (end_s - flows.start_s)
    machine = trace.task_machines[ends]
    carried = np.zeros((len(at_s), len(trace.machine_names)))
    for m in np.unique(machine).tolist():
        mine = machine == m
        moments = np.concatenate([flows.start_s[mine], end_s[mine]])
        order = np.argsort(moments, kind="stable")
        # Between moments at which flows begin or end, bytes grow linearly.
        rates = np.cumsum(np.concatenate([rate[mine], -rate[mine]])[order])
        moments = moments[order]
        sums = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(moments))])
        carried[:, m] = np.interp(at_s, moments, sums)
    return carried
