"""Simulate a placed job under a flow policy."""

from __future__ import annotations

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.tasks import ROLES, TaskGraph
from headrace.core.trace import Executions, Flows, NicUse, Trace
from headrace.policies.flow import FLOW_POLICIES
from headrace.policies.interpreted import CALLER
from headrace.simulator.flow_kernel import run_flows
from headrace.simulator.instance import Instance
from headrace.simulator.network import idle_network
from headrace.simulator.outcome import Outcome, Record
from headrace.simulator.pair_kernel import MAXMIN, OES, PRIORITY, interpreted_s, run_pairs
from headrace.simulator.progress_kernel import (
    DRAW_S,
    END,
    EVENTS,
    START,
    draw_volumes,
    fix,
    start,
    sum_bytes,
)


def simulate(
    instance: Instance, policy: str, *, record: bool = False, general: bool = False
) -> Outcome:
    """Simulate all iterations of a placed job.

    Args:
        instance: The placed job.
        policy: Name of a flow policy.
        record: Whether to record the times of all tasks and flows.
        general: Whether to use the general kernel where a faster one exists; the result is the
            same.

    Raises:
        SpecError: The policy does not exist.
    """
    if policy not in FLOW_POLICIES:
        raise SpecError(
            f"there is no flow policy {policy!r}", f"use one of {', '.join(FLOW_POLICIES)}"
        )
    fixed, progress = fix(instance), start(instance, record)
    code = FLOW_POLICIES[policy].code
    num = instance.num_machines
    if code in (OES, MAXMIN, PRIORITY) and not general:
        # Rates change at most once per completed task or flow.
        num_rows = instance.num_iterations * (instance.num_tasks + instance.num_edges)
        use_time = np.empty(num_rows if record else 0)
        use_rate = np.empty((len(use_time), 2 * num))
        makespan_s, num_use = CALLER.call(
            run_pairs,
            fixed,
            progress,
            idle_network(fixed),
            code,
            True if code == OES else None,
            use_time,
            use_rate,
            estimate_s=interpreted_s(instance),
        )
    else:
        makespan_s, times, rates = run_flows(fixed, progress, policy, instance.pace_s, record)
        num_use, use_time = len(times), np.array(times)
        use_rate = np.array(rates).reshape(num_use, 2 * num)
    if makespan_s < 0:
        raise AssertionError("the simulation stopped before all tasks were done; this is a bug")
    kept = None
    if record:
        volumes = np.empty((instance.num_edges, instance.num_iterations))
        CALLER.call(draw_volumes, fixed, volumes, estimate_s=volumes.size * DRAW_S)
        kept = Record(
            task_start_s=progress.task_times[START],
            task_end_s=progress.task_times[END],
            flow_start_s=progress.flow_times[START],
            flow_end_s=progress.flow_times[END],
            flow_bytes=volumes,
            nic_use=NicUse(
                use_time[:num_use].copy(),
                use_rate[:num_use, :num].copy(),
                use_rate[:num_use, num:].copy(),
            ),
        )
    nic_bytes = np.zeros((2, num))
    estimate_s = instance.num_edges * instance.num_iterations * DRAW_S
    CALLER.call(sum_bytes, fixed, progress.num_sent, nic_bytes, estimate_s=estimate_s)
    return Outcome(
        makespan_s=float(makespan_s),
        num_events=int(progress.sizes[EVENTS]),
        iteration_end_s=progress.iteration_end,
        in_bytes=nic_bytes[0],
        out_bytes=nic_bytes[1],
        record=kept,
    )


def trace_of(instance: Instance, graph: TaskGraph, outcome: Outcome, cluster: Cluster) -> Trace:
    """Convert a recorded simulation to a trace as written by a run.

    Raises:
        SpecError: The simulation was not recorded.
    """
    record = outcome.record
    if record is None:
        raise SpecError("this simulation was not recorded", "simulate with record=True")
    task, iteration = np.nonzero(~np.isnan(record.task_end_s))
    order = np.lexsort((task, record.task_start_s[task, iteration]))
    task, iteration = task[order], iteration[order]
    executions = Executions(
        task, iteration, record.task_start_s[task, iteration], record.task_end_s[task, iteration]
    )
    moved = record.flow_bytes > 0
    edge, at = np.nonzero(moved & ~np.isnan(record.flow_end_s))
    order = np.lexsort((edge, record.flow_start_s[edge, at]))
    edge, at = edge[order], at[order]
    flows = Flows(
        src=graph.src[edge],
        dst=graph.dst[edge],
        iteration=at,
        num_bytes=record.flow_bytes[edge, at],
        start_s=record.flow_start_s[edge, at],
        end_s=record.flow_end_s[edge, at],
    )
    return Trace(
        task_names=graph.names,
        task_roles=tuple(ROLES[code].value for code in graph.role),
        task_machines=instance.task_machine,
        machine_names=tuple(machine.name for machine in cluster.hosts),
        nic_in_bytes_per_s=instance.nic_in_bytes_per_s,
        nic_out_bytes_per_s=instance.nic_out_bytes_per_s,
        executions=executions,
        flows=flows,
        nic_use=record.nic_use,
    )
