"""Totals of the work of tasks, from their trace records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.core.job import Sync
from headrace.core.plan import Plan
from headrace.profiling.trace_assembly import read_records, ring_bytes
from headrace.runtime.callbacks.line_buffer import LineBuffer
from headrace.runtime.cluster.placement_group import TaskPlacement

_KINDS = {
    frozenset({"store", "sampler"}): "structure",
    frozenset({"sampler", "trainer"}): "batches",
}
"""Kind of the bytes between tasks of two roles, if they are not gradients."""


class WorkTotals:
    """Totals of a run; work repeated after a resume counts again.

    Attributes:
        steps: Iterations recorded by each task.
        busy_s: Busy seconds of each task.
        link_bytes: Bytes sent between machines.
        remote_bytes: The same by kind: `features`, `structure`, `batches` (sub-batches from
            samplers to trainers), `gradients` and `rows` (between trainers of the full graph).
        cached_rows: Rows of other machines that caches had, and had not.
        last_end_s: End of each task's latest step, on its machine's clock.
    """

    def __init__(self) -> None:
        self.steps: dict[str, int] = defaultdict(int)
        self.busy_s: dict[str, float] = defaultdict(float)
        self.link_bytes: dict[tuple[str, str], float] = defaultdict(float)
        self.remote_bytes: dict[str, float] = defaultdict(float)
        self.cached_rows = np.zeros(2)
        self.last_end_s: dict[str, float] = {}
        self._machines: dict[str, str] = {}
        self._followers: dict[str, str] = {}
        self._lines = LineBuffer()

    def place(self, plan: Plan, slots: Sequence[TaskPlacement]) -> None:
        """Record the machines of tasks and the ring order."""
        self._machines = {slot.task.name: slot.task.machine for slot in slots}
        # With parameter servers, "ring" records contain waiting times but no traffic.
        order = plan.placed.ring_order if plan.job.sync is Sync.RING else ()
        ring = [f"trainer{w}" for w in order]
        self._followers = dict(zip(ring, (*ring[1:], *ring[:1]), strict=True))
        self._lines.flush()

    def add(self, task: str, data: bytes) -> None:
        """Add records of a task; the last line may be incomplete."""
        for record in read_records(self._lines.add(task, data)):
            self._count(record)

    def _count(self, record: list[Any]) -> None:
        what, task = record[0], record[1]
        if what == "exec":
            start_s, end_s = record[3:5]
            self.steps[task] += 1
            # A sampler makes sub-batches concurrently; the sixth field is the busy time of each.
            self.busy_s[task] += record[5] if len(record) > 5 else end_s - start_s
            self.last_end_s[task] = end_s
        elif what == "flow":
            self._move(task, record[2], record[4], record[7] if len(record) > 7 else 0)
        elif what == "cache":
            self.cached_rows += record[3:5]
        elif what == "serve":
            self.busy_s[task] += record[4]
        elif what == "ring" and task in self._followers:
            self._move(task, self._followers[task], ring_bytes(record[5], len(self._followers)))
        elif what == "swap":
            for trainer, num_bytes in enumerate(record[9]):
                self._move(task, f"trainer{trainer}", num_bytes, kind="rows")

    def _move(
        self,
        source: str,
        target: str,
        num_bytes: float,
        feature_bytes: float = 0.0,
        kind: str | None = None,
    ) -> None:
        here, there = self._machines.get(source), self._machines.get(target)
        if here is None or there is None or here == there:
            return
        self.link_bytes[here, there] += num_bytes
        roles = {source.rstrip("0123456789."), target.rstrip("0123456789.")}
        kind = kind or _KINDS.get(frozenset(roles), "gradients")
        self.remote_bytes[kind] += num_bytes - feature_bytes
        if feature_bytes:
            self.remote_bytes["features"] += feature_bytes
