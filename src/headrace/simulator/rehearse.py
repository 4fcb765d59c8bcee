"""Rehearse a placed job under a flow policy."""

from __future__ import annotations

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.tasks import ROLES, TaskGraph
from headrace.core.trace import Executions, Flows, NicUse, Trace
from headrace.policies.flow import FLOW_POLICIES
from headrace.simulator.flow_kernel import run_flows
from headrace.simulator.instance import Instance
from headrace.simulator.outcome import Outcome, Record
from headrace.simulator.progress_kernel import EVENTS, draw_volume, fix, start


def simulate(instance: Instance, policy: str, *, record: bool = False) -> Outcome:
    """Rehearse all iterations in virtual time.

    Args:
        instance: The placed job.
        policy: Name of a flow policy.
        record: Whether to keep the times of every task and flow.

    Raises:
        SpecError: There is no such policy.
    """
    if policy not in FLOW_POLICIES:
        raise SpecError(
            f"there is no flow policy {policy!r}", f"use one of {', '.join(FLOW_POLICIES)}"
        )
    fixed, progress = fix(instance), start(instance, record)
    nic_bytes = np.zeros((2, instance.num_machines))
    code = FLOW_POLICIES[policy].code
    makespan_s, use_time, use_rate = run_flows(
        fixed, progress, code, instance.pace_s, nic_bytes, record
    )
    if makespan_s < 0:
        raise AssertionError("the rehearsal stopped before all tasks were done; this is a bug")
    kept = None
    if record:
        num = instance.num_machines
        kept = Record(
            task_start_s=progress.task_start,
            task_end_s=progress.task_end,
            flow_start_s=progress.flow_start,
            flow_end_s=progress.flow_end,
            flow_bytes=_volumes(instance),
            nic_use=NicUse(use_time, use_rate[:, :num], use_rate[:, num:]),
        )
    return Outcome(
        makespan_s=float(makespan_s),
        num_events=int(progress.sizes[EVENTS]),
        iteration_end_s=progress.iteration_end,
        in_bytes=nic_bytes[0],
        out_bytes=nic_bytes[1],
        record=kept,
    )


def _volumes(instance: Instance) -> np.ndarray:
    fixed = fix(instance)
    return np.array(
        [
            [draw_volume(fixed, edge, n) for n in range(instance.num_iterations)]
            for edge in range(instance.num_edges)
        ]
    )


def trace_of(instance: Instance, graph: TaskGraph, outcome: Outcome, cluster: Cluster) -> Trace:
    """Turn a recorded rehearsal into the trace that a run would write.

    Raises:
        SpecError: The rehearsal was not recorded.
    """
    record = outcome.record
    if record is None:
        raise SpecError("this rehearsal kept no times", "simulate with record=True")
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
