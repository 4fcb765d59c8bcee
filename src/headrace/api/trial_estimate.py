"""Memory and time of a trial before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.api.estimate import task_memory, trace_step
from headrace.api.graph import open_graph
from headrace.core.job import Job, JobKind
from headrace.core.step_counts import StepCounts
from headrace.costs.step_time import TYPICAL
from headrace.prefork.client import ForkLease
from headrace.runtime.controller.local_plan import LOCAL_WINDOW

DRIVER_BYTES = 60e6
"""Anonymous memory of the process that drives a local run: 59 MB at its peak with Python 3.11."""


def estimate_trial(
    script: Path,
    graph: Path,
    arguments: Sequence[str],
    config: Mapping[str, Any],
    lease: ForkLease | None = None,
) -> tuple[float, float | None]:
    """Peak memory of a run on this machine, and its time up to a factor that all trials share.

    The time is that of a step per seed, times the setting `epochs` if there is one; None if the
    step cannot be traced. Files of the graph do not count: all trials share them.

    Args:
        script: The training script.
        graph: The partitioned graph.
        arguments: Arguments of the script.
        config: Its settings.
        lease: Fork server that starts the script; none to start a new process.

    Raises:
        SpecError: The script fails, or does not take batches of a headrace loader.
    """
    opened = open_graph(graph)
    inputs = script, Path(opened.folder), arguments, None
    step = trace_step(*inputs, config=config, lease=lease, trainers=(0,) * opened.num_parts)
    job = Job(
        kind=JobKind.FULL_GRAPH if step.is_full_graph else JobKind.SAMPLED,
        trainers=1,
        batch_size=1,
        window=LOCAL_WINDOW,
    )
    tasks = task_memory(job, step, [0.0], 0.0)
    num_bytes = DRIVER_BYTES + sum(task.total_bytes for task in tasks)
    if step.counts is None:
        return num_bytes, None
    epochs = config.get("epochs", 1)
    factor = epochs if isinstance(epochs, (int, float)) else 1
    return num_bytes, TYPICAL.seconds(StepCounts(*step.counts)) / step.batch_size * factor
