"""NIC and task utilisation in steady iterations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.job import Role
from headrace.core.trace import Trace
from headrace.observability.lanes import flow_ends
from headrace.observability.report.steady import Steady


@dataclass(frozen=True)
class NicSeries:
    """NIC utilisation by interval and machine; `edges_s` are the interval boundaries."""

    edges_s: np.ndarray
    into: np.ndarray
    out_of: np.ndarray


def nic_series(trace: Trace, begin_s: float, end_s: float, num: int) -> NicSeries:
    """Spread the bytes of each flow evenly over its duration and sum them in `num` intervals."""
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
    """Ingress and egress utilisation per machine in steady iterations."""
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
    """Fraction of the time in which each task was busy in steady iterations.

    Layers count for their trainer; there are no ring steps.
    """
    rows, num = trace.executions, len(trace.task_names)
    counted = np.zeros(max(int(rows.iteration.max(initial=-1)) + 1, len(steady.counted)), bool)
    counted[: len(steady.counted)] = steady.counted
    number = {name: task for task, name in enumerate(trace.task_names)}
    counted_as = np.arange(num)
    for name, role in zip(trace.task_names, trace.task_roles, strict=True):
        if role == Role.LAYER:
            trainer = name.removeprefix(Role.LAYER).partition(".")[0]
            counted_as[number[name]] = number[f"{Role.TRAINER}{trainer}"]
    busy_s = np.bincount(
        counted_as[rows.task],
        weights=(rows.end_s - rows.start_s) * counted[rows.iteration],
        minlength=num,
    )
    span_s = steady.span_s or np.inf
    return {
        name: float(busy_s[task] / span_s)
        for task, (name, role) in enumerate(zip(trace.task_names, trace.task_roles, strict=True))
        if role not in (Role.RING, Role.LAYER)
    }


def _carried(trace: Trace, ends: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """Cumulative bytes by time and machine of `ends`: `flows.src` or `flows.dst`."""
    flows = trace.flows
    # Flows without duration get a minimal one, to be counted.
    end_s = np.maximum(flow_ends(trace), flows.start_s + 1e-9)
    rate = flows.num_bytes / (end_s - flows.start_s)
    machine = trace.task_machines[ends]
    carried = np.zeros((len(at_s), len(trace.machine_names)))
    for m in np.unique(machine).tolist():
        mine = machine == m
        moments = np.concatenate([flows.start_s[mine], end_s[mine]])
        order = np.argsort(moments, kind="stable")
        # Cumulative bytes are piecewise linear between starts and ends of flows.
        rates = np.cumsum(np.concatenate([rate[mine], -rate[mine]])[order])
        moments = moments[order]
        sums = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(moments))])
        carried[:, m] = np.interp(at_s, moments, sums)
    return carried
