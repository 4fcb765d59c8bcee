"""Algorithm 1 (OES) of the DGTP paper, slot by slot, as printed but for its known slips.

Corrected: only tasks without inputs start by themselves; finished flows leave `F_act`; the last
slot of a flow carries only what is left. Slots count from 1; "at t - 1" is the slot before.
"""

from __future__ import annotations

import math

from headrace.simulator.instance import Instance
from tests.oracle.naive import is_flow

Pair = tuple[int, int]
"""An edge and the iteration of its producer."""


def oes_makespan_s(instance: Instance, slot_s: float) -> float:
    """T_OES times the slot length: when the last task of the last iteration is done.

    Times and volumes are the means; the run-ahead window is unlimited, as in the paper. A task
    takes its time in slots, rounded up; one without time is done in the moment it starts, and so is
    a flow without bytes.
    """
    num_tasks, num_iterations = instance.num_tasks, instance.num_iterations
    machine = [int(m) for m in instance.task_machine]
    nic_out = [float(b) for b in instance.nic_out_bytes_per_s]
    nic_in = [float(b) for b in instance.nic_in_bytes_per_s]
    # The tolerance keeps 0.3 / 0.1 at three slots.
    task_slots = [math.ceil(float(time_s) / slot_s - 1e-9) for time_s in instance.task_time_s]
    src = [int(j) for j in instance.edge_src]
    dst = [int(j) for j in instance.edge_dst]
    crosses = [is_flow(instance, e) for e in range(instance.num_edges)]
    out_edges = [[e for e in range(instance.num_edges) if src[e] == j] for j in range(num_tasks)]
    in_edges = [[e for e in range(instance.num_edges) if dst[e] == j] for j in range(num_tasks)]

    active: dict[Pair, float] = {}  # F_act, with the bytes that are left
    pending: set[Pair] = set()  # F_pend
    received: set[Pair] = set()
    started: dict[tuple[int, int], int] = {}
    done: set[tuple[int, int]] = set()
    next_iteration = [0] * num_tasks

    def is_available(j: int, n: int) -> bool:
        if n == num_iterations or (n > 0 and (j, n - 1) not in done):
            return False
        lags = ((e, n - int(instance.edge_lag[e])) for e in in_edges[j])
        return all(at < 0 or (e, at) in received for e, at in lags)

    def activate(flow: Pair) -> None:
        """Add to F_act; without bytes there is nothing to wait for, so the next may follow."""
        edge, n = flow
        if instance.edge_bytes[edge] > 0:
            active[flow] = float(instance.edge_bytes[edge])
            return
        received.add(flow)
        if (edge, n + 1) in pending:
            pending.remove((edge, n + 1))
            activate((edge, n + 1))

    def finish_task(j: int, n: int) -> None:
        done.add((j, n))
        for e in out_edges[j]:
            if not crosses[e]:
                received.add((e, n))
            elif (e, n - 1) in active or (e, n - 1) in pending:
                pending.add((e, n))
            else:
                activate((e, n))

    finished_flows: list[Pair] = []
    t = 0
    while True:
        t += 1
        for j, n in [task for task in started if started[task] + task_slots[task[0]] == t]:
            if (j, n) not in done:
                finish_task(j, n)
        for edge, n in finished_flows:
            if (edge, n + 1) in pending:
                pending.remove((edge, n + 1))
                activate((edge, n + 1))
        progress = True
        while progress:
            progress = False
            for j in range(num_tasks):
                n = next_iteration[j]
                if is_available(j, n):
                    started[j, n] = t
                    next_iteration[j] += 1
                    progress = True
                    if task_slots[j] == 0:
                        finish_task(j, n)
        if all((j, num_iterations - 1) in done for j in range(num_tasks)):
            return (t - 1) * slot_s
        deg_out, deg_in = [0] * len(nic_out), [0] * len(nic_in)  # eqs (19), (20)
        for edge, _ in active:
            deg_out[machine[src[edge]]] += 1
            deg_in[machine[dst[edge]]] += 1
        finished_flows = []
        for (edge, n), left in active.items():
            m, m2 = machine[src[edge]], machine[dst[edge]]
            sent = slot_s * min(nic_in[m2] / deg_in[m2], nic_out[m] / deg_out[m])
            active[edge, n] = left - min(sent, left)
            # What rounding leaves of a flow that ends with its slot is not worth another slot.
            if active[edge, n] <= 1e-9 * instance.edge_bytes[edge]:
                finished_flows.append((edge, n))
        for flow in finished_flows:
            del active[flow]
            received.add(flow)
        started = {task: at for task, at in started.items() if task not in done}
