"""What a run tells Prometheus: the names, once for whoever sends, draws and describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "ray_"
"""Ray puts it before every name that it exports."""

RUN_LABELS = ("run", "job")
"""Every metric has these: the id of the run, and what its job is called."""


@dataclass(frozen=True)
class Metric:
    """Something that is counted or measured.

    Attributes:
        name: As headrace calls it; what only grows ends with `_total`.
        text: What it is.
        labels: What tells its values apart, beside `RUN_LABELS`.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()

    @property
    def exported(self) -> str:
        """As Prometheus sees it."""
        return PREFIX + self.name


_TASK = ("task", "role", "machine")

ITERATIONS = Metric("headrace_iterations_total", "Iterations that all trainers have done")
SAMPLES = Metric("headrace_samples_total", "Seeds that trainers have learnt from")
STEPS = Metric(
    "headrace_task_steps_total",
    "Iterations in which a sampler, trainer or parameter server has done its part",
    _TASK,
)
BUSY = Metric(
    "headrace_task_busy_seconds_total",
    "Seconds in which a task worked; a trainer's include the exchange of gradients",
    _TASK,
)
LINK_BYTES = Metric(
    "headrace_link_bytes_total",
    "Bytes of graph data, batches and gradients from machine to machine, as the trace has them",
    ("source", "target"),
)
NIC_BYTES = Metric(
    "headrace_nic_bytes_total",
    "Bytes of a machine's network card since the run began, whoever sent them",
    ("machine", "direction"),
)
RESTARTS = Metric("headrace_restarts_total", "Tasks that were started again while the run went on")
RESUMES = Metric("headrace_resumes_total", "Times that the run went on from a checkpoint")
CHECKPOINTS = Metric("headrace_checkpoints_total", "Checkpoints that were kept")
CHECKPOINT_SECONDS = Metric(
    "headrace_checkpoint_seconds_total",
    "Seconds in which training stood still for checkpoints",
)
ITERATION_SECONDS = Metric(
    "headrace_iteration_seconds", "Seconds from iteration to iteration, of late"
)
SPEED = Metric("headrace_samples_per_second", "Seeds per second of all trainers, in this epoch")
IDLE_SHARE = Metric(
    "headrace_trainer_idle_share",
    "Share of this epoch in which a trainer waited for batches",
    _TASK,
)
EPOCH = Metric("headrace_epoch", "Epoch that the script reported last")
FIGURE = Metric("headrace_figure", "What the script reported last, e.g. its loss", ("figure",))
TASKS = Metric("headrace_tasks", "Tasks in each state", ("state",))
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
"""All of them."""

Labels = tuple[str, ...]
"""Values of a metric's own labels, in their order."""

Values = Mapping[tuple[Metric, Labels], float]
"""What is known at one moment."""
