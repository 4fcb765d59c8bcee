"""Simulation of a graph of tasks and coflows."""

from __future__ import annotations

import numpy as np

from headrace.api.results.coflows import CoflowSimulation, Span
from headrace.api.results.simulation import run_simulator
from headrace.api.simulate import DEFAULT_POLICY, check_policy
from headrace.core.coflows import CoflowGraph
from headrace.simulator import build_coflow_instance

__all__ = ["CoflowSimulation", "Span", "simulate_coflows"]


def simulate_coflows(graph: CoflowGraph, policy: str = DEFAULT_POLICY) -> CoflowSimulation:
    """Simulate a graph of tasks and coflows.

    Nothing is drawn at random: equal graphs give bit-identical results.

    Args:
        graph: Tasks, coflows, machines and order; see `load_coflows`.
        policy: Name of a flow policy. `priority` and `matching` serve coflows by bin, then type,
            then layer; `maxmin` shares the network fairly.

    Raises:
        SpecError: The policy does not exist.

    Example:
        >>> import headrace
        >>> tasks = [{"name": f"send{m}", "machine": f"m-{m}"} for m in range(3)]
        >>> tasks += [{"name": f"receive{m}", "machine": f"m-{m}"} for m in range(3)]
        >>> sizes = [(0, 1, "3MB"), (0, 2, "1MB"), (1, 2, "2MB"), (2, 0, "1MB"), (2, 1, "1MB")]
        >>> flows = [{"src": f"send{a}", "dst": f"receive{b}", "bytes": c} for a, b, c in sizes]
        >>> graph = headrace.CoflowGraph(
        ...     machines=[headrace.Machine(name="m", count=3, nic="1Gbps")],
        ...     types=["expert"],
        ...     tasks=tasks,
        ...     coflows=[{"name": "all-to-all", "type": "expert", "flows": flows}],
        ... )
        >>> found = headrace.simulate_coflows(graph, "matching")
        >>> found
        32 ms for 6 tasks and 1 coflow under matching.
        The network is the bottleneck: m-1 receives at 100% of its 1 Gbps.
        >>> round(found.coflows["all-to-all"].end_s, 3)
        0.032
    """
    check_policy(policy)
    instance, coflow_of = build_coflow_instance(graph)
    outcome = run_simulator(instance, policy, planned=False, record=True)
    record = outcome.record
    assert record is not None
    start_s, end_s = record.task_start_s[:, 0], record.task_end_s[:, 0]
    # A flow within a machine takes no time.
    sent_s = end_s[instance.edge_src]
    begin_s, done_s = record.flow_start_s[:, 0], record.flow_end_s[:, 0]
    begin_s = np.where(np.isnan(begin_s), sent_s, begin_s)
    done_s = np.where(np.isnan(done_s), sent_s, done_s)
    bounds = np.searchsorted(coflow_of[: graph.num_flows], np.arange(len(graph.coflows) + 1))
    return CoflowSimulation(
        graph=graph,
        policy=policy,
        makespan_s=outcome.makespan_s,
        num_events=outcome.num_events,
        tasks={
            task.name: Span(float(start_s[i]), float(end_s[i]))
            for i, task in enumerate(graph.tasks)
        },
        coflows={
            coflow.name: Span(
                float(begin_s[bounds[i] : bounds[i + 1]].min()),
                float(done_s[bounds[i] : bounds[i + 1]].max()),
            )
            for i, coflow in enumerate(graph.coflows)
        },
        in_bytes=outcome.in_bytes,
        out_bytes=outcome.out_bytes,
    )
