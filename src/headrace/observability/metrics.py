"""Definitions of the Prometheus metrics of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "ray_"
"""Prefix that Ray adds to exported names."""

RUN_LABELS = ("run", "job")
"""Labels of every metric: run id and job name."""


@dataclass(frozen=True)
class Metric:
    """A metric; counters end with `_total`, `labels` are in addition to `RUN_LABELS`."""

    name: str
    text: str
    labels: tuple[str, ...] = ()

    @property
    def exported(self) -> str:
        """Name in Prometheus."""
        return PREFIX + self.name


_TASK = ("task", "role", "machine")

ITERATIONS = Metric("headrace_iterations_total", "Iterations completed by all trainers")
SAMPLES = Metric("headrace_samples_total", "Seeds that trainers have processed")
STEPS = Metric(
    "headrace_task_steps_total",
    "Iterations completed by a sampler, trainer or parameter server",
    _TASK,
)
BUSY = Metric(
    "headrace_task_busy_seconds_total",
    "Busy seconds of a task; a trainer's include the gradient exchange",
    _TASK,
)
LINK_BYTES = Metric(
    "headrace_link_bytes_total",
    "Bytes of graph data, batches and gradients between machines, as in the trace",
    ("source", "target"),
)
NIC_BYTES = Metric(
    "headrace_nic_bytes_total",
    "Bytes of a machine's NIC since the start of the run, of all processes",
    ("machine", "direction"),
)
RESTARTS = Metric("headrace_restarts_total", "Task restarts during the run")
RESUMES = Metric("headrace_resumes_total", "Times that the run resumed from a checkpoint")
CHECKPOINTS = Metric("headrace_checkpoints_total", "Saved checkpoints")
CHECKPOINT_SECONDS = Metric(
    "headrace_checkpoint_seconds_total",
    "Seconds in which training was paused for checkpoints",
)
ITERATION_SECONDS = Metric("headrace_iteration_seconds", "Seconds per iteration, recent mean")
SPEED = Metric("headrace_samples_per_second", "Seeds per second of all trainers, in this epoch")
IDLE_SHARE = Metric(
    "headrace_trainer_idle_share",
    "Fraction of this epoch in which a trainer waited for batches",
    _TASK,
)
EPOCH = Metric("headrace_epoch", "Last epoch reported by the script")
FIGURE = Metric("headrace_figure", "Last value reported by the script, e.g. its loss", ("figure",))
TASKS = Metric("headrace_tasks", "Number of tasks per state", ("state",))
MEMORY = Metric("headrace_task_memory_bytes", "Memory of a task's process", _TASK)

METRICS = (
    ITERATIONS,
    SAMPLES,
    STEPS,
    BUSY,
    LINK_BYTES,
    NIC_BYTES,
    RESTARTS,
    RESUMES,
    CHECKPOINTS,
    CHECKPOINT_SECONDS,
    ITERATION_SECONDS,
    SPEED,
    IDLE_SHARE,
    EPOCH,
    FIGURE,
    TASKS,
    MEMORY,
)
"""All metrics."""

Labels = tuple[str, ...]
"""Values of a metric's own labels, in order."""

Values = Mapping[tuple[Metric, Labels], float]
"""Metric values at one moment."""
