"""The general kernel: any flow policy, rates recomputed whenever the open flows change.

It is the reference among the compiled kernels; `oes`, `maxmin` and `priority` have a faster one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.policies.compiled import hot
from headrace.policies.flow.fifo import fifo_rates
from headrace.policies.flow.maxmin import maxmin_rates
from headrace.policies.flow.mrtf import mrtf_exclusive_rates, mrtf_rates
from headrace.policies.flow.oes import oes_rates
from headrace.policies.flow.omcoflow import omcoflow_rates
from headrace.policies.flow.paced import paced_rates
from headrace.policies.flow.priority import priority_rates
from headrace.simulator.progress_kernel import (
    EDGE_DST,
    EDGE_KIND,
    EDGE_SRC,
    END,
    EVENTS,
    HEAP,
    IN,
    OUT,
    START,
    UNFINISHED,
    deliver,
    draw_volume,
    finish_task,
    pop_task,
    start_ready,
)


@njit(cache=True)
def _rates(code, flows, nic_out, nic_in, pace_s, rates):
    if code == 0:
        oes_rates(flows, nic_out, nic_in, pace_s, rates)
    elif code == 1:
        maxmin_rates(flows, nic_out, nic_in, pace_s, rates)
    elif code == 2:
        priority_rates(flows, nic_out, nic_in, pace_s, rates)
    elif code == 3:
        paced_rates(flows, nic_out, nic_in, pace_s, rates)
    elif code == 4:
        mrtf_rates(flows, nic_out, nic_in, pace_s, rates)
    elif code == 5:
        mrtf_exclusive_rates(flows, nic_out, nic_in, pace_s, rates)
    elif code == 6:
        omcoflow_rates(flows, nic_out, nic_in, pace_s, rates)
    else:
        fifo_rates(flows, nic_out, nic_in, pace_s, rates)


@hot
def _open_flow(fixed, progress, slots, is_open, edge, now_s):
    """Open the next flow of an edge; flows without bytes complete at once."""
    while progress.num_sent[edge] < progress.num_done[fixed.edges[EDGE_SRC, edge]]:
        n = progress.num_sent[edge]
        volume = draw_volume(fixed, edge, n)
        if progress.flow_times.shape[1] > 0:
            progress.flow_times[START, edge, n] = now_s
        if volume > 0.0:
            pair = fixed.edge_pair[edge]
            slots[edge].src = pair // fixed.num_machines
            slots[edge].dst = pair % fixed.num_machines
            slots[edge].task = fixed.edges[EDGE_DST, edge]
            slots[edge].edge = edge
            slots[edge].kind = fixed.edges[EDGE_KIND, edge]
            slots[edge].iteration = n
            slots[edge].volume = volume
            slots[edge].remaining = volume
            slots[edge].opened = now_s
            is_open[edge] = True
            return True
        if progress.flow_times.shape[1] > 0:
            progress.flow_times[END, edge, n] = now_s
        progress.num_sent[edge] = n + 1
        deliver(fixed, progress, edge, n)
    return False


@njit(cache=True, error_model="numpy")
def run_flows(fixed, progress, code, pace_s, slots, flows, is_open, rates, use_time, use_rate):
    """Rehearse with any policy.

    Args:
        fixed: The instance.
        progress: Counters at time 0; left as they are at the end.
        code: Which policy.
        pace_s: Period of `paced`.
        slots: Scratch, one `FLOW_DTYPE` per edge.
        flows: Scratch likewise.
        is_open: Scratch, one flag per edge, all false.
        rates: Scratch, one float per edge.
        use_time: Filled with the times at which rates changed; empty if nobody wants to know.
        use_rate: Filled with NIC throughput from then on: in, then out, per machine.

    Returns:
        Makespan, or -1 if nothing could go on; and the number of rows in `use_time`.
    """
    num_edges, num_machines = fixed.edges.shape[1], fixed.num_machines
    num_flows = 0
    num_use = 0
    changed = False
    now_s = 0.0
    while True:
        start_ready(fixed, progress, now_s)
        # Everything that ends at this instant, also what was started at this instant without
        # duration.
        while progress.sizes[HEAP] > 0 and progress.heap_time[0] <= now_s:
            task = pop_task(progress)
            n = finish_task(fixed, progress, task, now_s)
            for k in range(fixed.starts[OUT, task], fixed.starts[OUT, task + 1]):
                edge = fixed.lists[OUT, k]
                if fixed.edge_pair[edge] >= 0 and progress.num_sent[edge] == n:
                    changed |= _open_flow(fixed, progress, slots, is_open, edge, now_s)
            start_ready(fixed, progress, now_s)
        if progress.sizes[UNFINISHED] == 0:
            return now_s, num_use
        if changed:
            num_flows = 0
            for edge in range(num_edges):
                if is_open[edge]:
                    flows[num_flows] = slots[edge]
                    num_flows += 1
            _rates(
                code, flows[:num_flows], fixed.nics[OUT], fixed.nics[IN], pace_s, rates[:num_flows]
            )
            changed = False
            if len(use_time) > 0:
                use_time[num_use] = now_s
                for p in range(2 * num_machines):
                    use_rate[num_use, p] = 0.0
                for i in range(num_flows):
                    use_rate[num_use, flows[i].dst] += rates[i]
                    use_rate[num_use, num_machines + flows[i].src] += rates[i]
                num_use += 1
        next_s = np.inf
        if progress.sizes[HEAP] > 0:
            next_s = progress.heap_time[0]
        for i in range(num_flows):
            if rates[i] > 0.0:
                next_s = min(next_s, now_s + flows[i].remaining / rates[i])
        if next_s == np.inf:
            return -1.0, num_use
        for i in range(num_flows):
            edge = flows[i].edge
            if rates[i] > 0.0 and now_s + flows[i].remaining / rates[i] <= next_s:
                n = flows[i].iteration
                if progress.flow_times.shape[1] > 0:
                    progress.flow_times[END, edge, n] = next_s
                progress.num_sent[edge] = n + 1
                progress.sizes[EVENTS] += 1
                is_open[edge] = False
                deliver(fixed, progress, edge, n)
                _open_flow(fixed, progress, slots, is_open, edge, next_s)
                changed = True
            else:
                flows[i].remaining -= rates[i] * (next_s - now_s)
                slots[edge].remaining = flows[i].remaining
        now_s = next_s
