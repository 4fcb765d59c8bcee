"""Metrics of a run for Prometheus, sent by the driver through Ray's metrics endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.core.plan import Plan
from headrace.observability import metrics
from headrace.observability.metrics import Labels, Metric, Values
from headrace.observability.trackers import numbers_of
from headrace.runtime.callbacks.base import RunCallback
from headrace.runtime.callbacks.progress import Progress
from headrace.runtime.callbacks.work_totals import WorkTotals
from headrace.runtime.cluster.placement_group import TaskPlacement
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    CheckpointWrite,
    Message,
    Resumed,
)
from headrace.runtime.run_dir.status import Status, TaskState

Sink = Callable[[Metric, Labels, float], None]
"""Receives a value of a metric."""

_SEND_INTERVAL_S = 2.0
# Sending a value takes 10 us (measured); this bounds sending to 1 % of the time.
_S_PER_TASK = 0.005


class RunMetrics(RunCallback):
    """Aggregates metrics of a run and sends them periodically to `sink`."""

    def __init__(self, sink: Sink, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink, self._clock = sink, clock
        self._work = WorkTotals()
        self._slots: dict[str, TaskPlacement] = {}
        self._first = ""
        self._progress: dict[str, Progress] = {}
        self._samples: dict[str, tuple[int, int]] = {}
        self._num_samples = 0
        self._nics: dict[tuple[str, str], int] = {}
        self._nic_bytes: dict[tuple[str, str], int] = {}
        self._num_checkpoints, self._checkpoints_s = 0, 0.0
        self._first_iteration, self._num_iterations = 0, 0
        self._first_attempt: int | None = None
        self._before: tuple[int, float] | None = None
        self._iteration_s: float | None = None
        self._next_s = 0.0

    def began(self, plan: Plan, slots: Sequence[TaskPlacement]) -> None:
        """Record the placements of an attempt."""
        self._slots = {slot.task.name: slot for slot in slots}
        self._first = f"trainer{plan.placed.ring_order[0]}"
        self._work.place(plan, slots)
        self._progress.clear()
        self._samples.clear()

    def polled(self, task: str, state: ActorState) -> None:
        """Update from messages of a trainer and NIC counters."""
        for message in state.messages:
            self._update(task, message)
        slot = self._slots.get(task)
        if state.nic is not None and slot is not None:
            for direction, count in zip(("in", "out"), state.nic, strict=True):
                card = slot.task.machine, direction
                before = self._nics.get(card, count)
                # Counters restart at 0 after a reboot.
                grown = count - before if count >= before else count
                self._nic_bytes[card] = self._nic_bytes.get(card, 0) + grown
                self._nics[card] = count

    def traced(self, task: str, data: bytes) -> None:
        """Add trace records of a task."""
        self._work.add(task, data)

    def updated(self, status: Status) -> None:
        """Send the metrics if due."""
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + max(_SEND_INTERVAL_S, _S_PER_TASK * len(self._slots))
            self._send(status)

    def finished(self, status: Status) -> None:
        """Send the final metrics."""
        self._send(status)

    def values(self, status: Status) -> Values:
        """Current values of all metrics."""
        # Iterations repeated after a resume are not counted twice.
        done = status.iterations - self._first_iteration
        self._num_iterations = max(self._num_iterations, done)
        found: dict[tuple[Metric, Labels], float] = {
            (metrics.ITERATIONS, ()): self._num_iterations,
            (metrics.SAMPLES, ()): self._num_samples,
            (metrics.CHECKPOINTS, ()): self._num_checkpoints,
            (metrics.CHECKPOINT_SECONDS, ()): self._checkpoints_s,
            (metrics.RESTARTS, ()): status.restarts,
            (metrics.RESUMES, ()): self._num_resumes(status.attempt),
            (metrics.EPOCH, ()): status.epoch,
        }
        for metric, value in (
            (metrics.ITERATION_SECONDS, self._iteration_s),
            (metrics.SPEED, status.samples_per_s),
        ):
            if value is not None:
                found[metric, ()] = value
        for name, value in numbers_of(status.figures).items():
            found[metrics.FIGURE, (name,)] = value
        for state in TaskState:
            found[metrics.TASKS, (state.value,)] = sum(task.state is state for task in status.tasks)
        for task in status.tasks:
            if task.rss_bytes is not None:
                found[metrics.MEMORY, self._labels(task.name)] = task.rss_bytes
        for name, progress in self._progress.items():
            found[metrics.IDLE_SHARE, self._labels(name)] = progress.idle_share
        for metric, totals in (
            (metrics.STEPS, self._work.steps),
            (metrics.BUSY, self._work.busy_s),
        ):
            for name, total in totals.items():
                found[metric, self._labels(name)] = total
        for link, num_bytes in self._work.link_bytes.items():
            found[metrics.LINK_BYTES, link] = num_bytes
        for card, num_bytes in self._nic_bytes.items():
            found[metrics.NIC_BYTES, card] = num_bytes
        return found

    def _num_resumes(self, attempt: int) -> int:
        """Resumes by this process, including its own start if that is one."""
        if self._first_attempt is None:
            self._first_attempt = attempt
        return attempt - self._first_attempt + (self._first_attempt > 1)

    def _update(self, task: str, message: Message) -> None:
        match message:
            case CheckpointWrite():
                self._num_checkpoints += message.problem is None
                self._checkpoints_s += message.stall_s
            case Resumed() if self._before is None:
                # Earlier iterations were counted by another process.
                self._first_iteration = message.iteration
            case BatchProgress(trains=True):
                self._progress[task] = self._progress.get(task, Progress()).after(message)
                before, counted = self._samples.get(task, (0, 0))
                # `num_samples` restarts at 0 in each epoch.
                self._num_samples += message.num_samples
                self._num_samples -= counted if message.batch > before else 0
                self._samples[task] = message.batch, message.num_samples

    def _labels(self, task: str) -> Labels:
        slot = self._slots.get(task)
        return (task, "", "") if slot is None else (task, slot.task.role.value, slot.task.machine)

    def _send(self, status: Status) -> None:
        steps, end_s = self._work.steps.get(self._first, 0), self._work.last_end_s.get(self._first)
        if end_s is not None:
            if self._before is not None and steps > self._before[0]:
                self._iteration_s = (end_s - self._before[1]) / (steps - self._before[0])
            self._before = steps, end_s
        for (metric, labels), value in self.values(status).items():
            self._sink(metric, labels, value)


class RaySink:
    """Sets Ray gauges, which Ray exports from this machine.

    Totals are gauges too: Ray's counters send increments, which may be lost or counted twice.
    """

    def __init__(self, run_id: str, job: str) -> None:
        from ray.util.metrics import Gauge

        always = dict(zip(metrics.RUN_LABELS, (run_id, job), strict=True))
        self._ray: dict[Metric, Any] = {}
        for metric in metrics.METRICS:
            made = Gauge(metric.name, metric.text, (*metrics.RUN_LABELS, *metric.labels))
            self._ray[metric] = made.set_default_tags(always)

    def __call__(self, metric: Metric, labels: Labels, value: float) -> None:
        """Set a value."""
        self._ray[metric].set(float(value), dict(zip(metric.labels, labels, strict=True)))
