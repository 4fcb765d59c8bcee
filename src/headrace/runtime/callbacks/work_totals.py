"""What tasks have done so far, added up from their records while they arrive."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from headrace.core.job import Sync
from headrace.core.plan import Plan
from headrace.profiling.trace_assembly import read_records, ring_bytes
from headrace.runtime.cluster.placement_group import TaskPlacement


class WorkTotals:
    """Totals of a run; what is done again after a resume counts again.

    Attributes:
        steps: Iterations that each task has recorded.
        busy_s: Seconds in which each task worked.
        link_bytes: Bytes from machine to machine.
        last_end_s: When each task's newest step ended, by its machine's clock.
    """

    def __init__(self) -> None:
        self.steps: dict[str, int] = defaultdict(int)
        self.busy_s: dict[str, float] = defaultdict(float)
        self.link_bytes: dict[tuple[str, str], float] = defaultdict(float)
        self.last_end_s: dict[str, float] = {}
        self._machines: dict[str, str] = {}
        self._followers: dict[str, str] = {}
        self._halves: dict[str, bytes] = {}

    def place(self, plan: Plan, slots: Sequence[TaskPlacement]) -> None:
        """Learn where tasks are, and who follows whom in the ring."""
        self._machines = {slot.task.name: slot.task.machine for slot in slots}
        # With parameter servers trainers record how long they waited, but nothing goes round.
        order = plan.placed.ring_order if plan.job.sync is Sync.RING else ()
        ring = [f"trainer{w}" for w in order]
        self._followers = dict(zip(ring, (*ring[1:], *ring[:1]), strict=True))
        self._halves.clear()

    def add(self, task: str, data: bytes) -> None:
        """Count what a task recorded; the end of the data may be half a line."""
        whole, newline, half = (self._halves.pop(task, b"") + data).rpartition(b"\n")
        self._halves[task] = half
        if newline:
            for record in _records(whole):
                self._count(record)

    def _count(self, record: list[Any]) -> None:
        what, task = record[0], record[1]
        if what == "exec":
            start_s, end_s = record[3:5]
            self.steps[task] += 1
            # A sampler makes several parts at once; its sixth entry is what each took of its time.
            self.busy_s[task] += record[5] if len(record) > 5 else end_s - start_s
            self.last_end_s[task] = end_s
        elif what == "flow":
            self._move(task, record[2], record[4])
        elif what == "serve":
            self.busy_s[task] += record[4]
        elif what == "ring" and task in self._followers:
            self._move(task, self._followers[task], ring_bytes(record[5], len(self._followers)))

    def _move(self, source: str, target: str, num_bytes: float) -> None:
        here, there = self._machines.get(source), self._machines.get(target)
        if here is not None and there is not None and here != there:
            self.link_bytes[here, there] += num_bytes


def _records(data: bytes) -> list[list[Any]]:
    """All records at once, which takes a third of the time; line by line if one is no JSON."""
    try:
        records: list[list[Any]] = json.loads(b"[" + data.replace(b"\n", b",") + b"]")
    except ValueError:
        records = read_records(data)
    return records
