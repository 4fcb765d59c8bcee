"""General kernel: any flow policy; rates are recomputed whenever the set of open flows changes.

A policy may also limit how long its rates hold.

It is the reference for the faster pair kernel of `oes`, `maxmin` and `priority`, which takes far
longer to compile. The outer loop is plain Python, so that one compiled kernel serves all policies
and each policy is compiled separately; this costs about 10 us per rate change.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.policies.compiled import hot, hot_loop
from headrace.policies.flow import FLOW_DTYPE, FLOW_POLICIES
from headrace.policies.interpreted import CALLER
from headrace.simulator.progress_kernel import (
    EDGE_DST,
    EDGE_KIND,
    EDGE_SRC,
    END,
    EVENTS,
    HEAP,
    IN,
    LATEST_TIE,
    OUT,
    START,
    UNFINISHED,
    Fixed,
    Progress,
    deliver,
    draw_volume,
    finish_task,
    pop_task,
    start_ready,
)

_LATER = 1 + 2 * (LATEST_TIE - 1)
"""Factor by which a time differs from one of the same instant."""

_FLOW_S = 2e-6
"""Seconds per completed flow and open flow, if interpreted."""


class Live(NamedTuple):
    """Flows and clock; `slots`, `is_open` per edge; `flows`, `rates` per open flow."""

    slots: Any
    is_open: Any
    flows: Any
    rates: Any
    clock_s: Any
    """Current time, shape (1,)."""
    num_open: Any
    """Number of open flows, shape (1,)."""
    until_s: Any
    """Time until which the rates hold at most, shape (1,)."""


@hot
def _open_flow(fixed, progress, live, edge, now_s):
    """Open the next flow of an edge; empty flows complete at once."""
    slots = live.slots
    while progress.num_sent[edge] < progress.num_done[fixed.edges[EDGE_SRC, edge]]:
        n = progress.num_sent[edge]
        volume = draw_volume(fixed, edge, n)
        if progress.flow_times.shape[1] > 0:
            progress.flow_times[START, edge, n] = now_s
        if volume > 0.0:
            pair = fixed.edge_pair[edge]
            slots[edge]["src"] = pair // fixed.num_machines
            slots[edge]["dst"] = pair % fixed.num_machines
            slots[edge]["task"] = fixed.edges[EDGE_DST, edge]
            slots[edge]["edge"] = edge
            slots[edge]["kind"] = fixed.edges[EDGE_KIND, edge]
            slots[edge]["iteration"] = n
            slots[edge]["volume"] = volume
            slots[edge]["remaining"] = volume
            slots[edge]["opened"] = now_s
            live.is_open[edge] = True
            return True
        if progress.flow_times.shape[1] > 0:
            progress.flow_times[END, edge, n] = now_s
        progress.num_sent[edge] = n + 1
        deliver(fixed, progress, edge, n)
    return False


@hot
def _move_on(fixed, progress, live):
    """Advance to the next completion; return whether new rates are needed."""
    flows, rates, num_flows = live.flows, live.rates, live.num_open[0]
    now_s = live.clock_s[0]
    next_s = live.until_s[0]
    if progress.sizes[HEAP] > 0:
        next_s = min(next_s, progress.heap_time[0])
    for i in range(num_flows):
        if rates[i] > 0.0:
            next_s = min(next_s, now_s + flows[i]["remaining"] / rates[i])
    due_s = next_s * LATEST_TIE
    changed = live.until_s[0] <= due_s and next_s < np.inf
    for i in range(num_flows):
        edge = flows[i]["edge"]
        if rates[i] > 0.0 and now_s + flows[i]["remaining"] / rates[i] <= due_s:
            n = flows[i]["iteration"]
            if progress.flow_times.shape[1] > 0:
                progress.flow_times[END, edge, n] = next_s
            progress.num_sent[edge] = n + 1
            progress.sizes[EVENTS] += 1
            live.is_open[edge] = False
            deliver(fixed, progress, edge, n)
            _open_flow(fixed, progress, live, edge, next_s)
            changed = True
        else:
            flows[i]["remaining"] -= rates[i] * (next_s - now_s)
            live.slots[edge]["remaining"] = flows[i]["remaining"]
    live.clock_s[0] = next_s
    return changed


@hot_loop
def needs_rates(fixed, progress, live):
    """Simulate until new rates are needed.

    Returns:
        False at the end: all tasks are done, or no event is left and the clock is infinite.
    """
    changed = False
    while True:
        now_s = live.clock_s[0]
        start_ready(fixed, progress, now_s)
        if progress.sizes[HEAP] > 0 and progress.heap_time[0] <= now_s * LATEST_TIE:
            task = pop_task(progress)
            n = finish_task(fixed, progress, task, now_s)
            for k in range(fixed.starts[OUT, task], fixed.starts[OUT, task + 1]):
                edge = fixed.lists[OUT, k]
                if fixed.edge_pair[edge] >= 0 and progress.num_sent[edge] == n:
                    changed |= _open_flow(fixed, progress, live, edge, now_s)
            # Process all completions at this time first, including tasks of zero duration.
            continue
        if progress.sizes[UNFINISHED] == 0 or now_s == np.inf:
            return False
        if changed:
            num_flows = 0
            for edge in range(len(live.is_open)):
                if live.is_open[edge]:
                    live.flows[num_flows] = live.slots[edge]
                    num_flows += 1
            live.num_open[0] = num_flows
            return True
        changed = _move_on(fixed, progress, live)


def run_flows(
    fixed: Fixed,
    progress: Progress,
    policy: str,
    pace_s: float,
    record: bool,
) -> tuple[float, list[float], list[np.ndarray]]:
    """Simulate with any policy; `pace_s` is the period of `paced`.

    `progress` is updated in place.

    Returns:
        Makespan, or -1 on deadlock; if recorded, times of rate changes, and NIC throughput from
        then on (in, then out, per machine).
    """
    num_edges, num_machines = fixed.edges.shape[1], fixed.num_machines
    live = Live(
        slots=np.zeros(num_edges, FLOW_DTYPE),
        is_open=np.zeros(num_edges, np.bool_),
        flows=np.zeros(num_edges, FLOW_DTYPE),
        rates=np.zeros(num_edges),
        clock_s=np.zeros(1),
        num_open=np.zeros(1, np.int64),
        until_s=np.full(1, np.inf),
    )
    nic_out, nic_in = fixed.nics[OUT], fixed.nics[IN]
    estimate_s = _FLOW_S * fixed.num_iterations * num_edges * num_edges
    advance = CALLER.choose(needs_rates, (fixed, progress, live), estimate_s)
    rates_args = (live.flows, nic_out, nic_in, pace_s, live.rates)
    compute_rates = CALLER.choose(FLOW_POLICIES[policy].kernel, rates_args, estimate_s)
    use_time: list[float] = []
    use_rate: list[np.ndarray] = []
    while advance(fixed, progress, live):
        num_open, now_s = live.num_open[0], float(live.clock_s[0])
        flows, rates = live.flows[:num_open], live.rates[:num_open]
        hold_s = compute_rates(flows, nic_out, nic_in, pace_s, rates)
        # At least long enough to be a later time than now.
        live.until_s[0] = np.inf if hold_s is None else max(now_s + hold_s, now_s * _LATER)
        if record:
            use_time.append(now_s)
            received = np.bincount(flows["dst"], rates, num_machines)
            sent = np.bincount(flows["src"], rates, num_machines)
            use_rate.append(np.concatenate([received, sent]))
    makespan_s = float(live.clock_s[0])
    return makespan_s if makespan_s < np.inf else -1.0, use_time, use_rate
