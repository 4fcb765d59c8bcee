"""What was seen of a run."""

from __future__ import annotations

from typing import Any

from headrace.core.trace import Trace
from headrace.observability.trace_file import load_trace, save_trace
from headrace.profiling import num_iterations
from headrace.runtime.tracing import link_bytes

__all__ = ["link_bytes", "load_trace", "save_trace", "trace_summary"]


def trace_summary(trace: Trace) -> dict[str, Any]:
    """All figures as plain values: what `headrace trace --json` prints.

    Example:
        >>> import headrace
        >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
        >>> cluster = headrace.Cluster(machines=machines)
        >>> job = headrace.Job(trainers=2, batch_size=100, iterations=20)
        >>> headrace.save_trace(headrace.simulate(cluster, job).trace(), "trace.npz")
        >>> trace_summary(headrace.load_trace("trace.npz"))["num_iterations"]
        20
    """
    return {
        "num_iterations": num_iterations(trace),
        "makespan_s": trace.makespan_s,
        "num_executions": len(trace.executions.task),
        "num_flows": len(trace.flows.src),
        "machines": [
            {"name": name, "in_bytes": in_bytes, "out_bytes": out_bytes}
            for name, (in_bytes, out_bytes) in link_bytes(trace).items()
        ],
    }
