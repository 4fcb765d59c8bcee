"""Assembly of the trace of a run from the records of its tasks.

Mapping to the simulator's model: the volume of a pair of tasks is the sum of all responses in an
iteration; a store's time is its total service time; a sampler's time is its compute time (requests,
stitching, merging), because it processes other batches while it waits for stores.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.job import Job, JobKind
from headrace.core.plan import Plan
from headrace.core.tasks import ROLES, TaskGraph, build_task_graph
from headrace.core.trace import ClockOffset, Executions, Flows, Mark, Trace
from headrace.costs import task_machines
from headrace.profiling.swap_records import SwapRecords, SwapTimes

CLOCKS = "clocks.json"
"""File with clock offsets in the run directory."""

Pair = tuple[int, int, int]
"""Source, destination and iteration."""

# Overhead of gloo, TCP, IP and Ethernet per ring step of one chunk (gloo/allreduce.cc: `ring`),
# measured on a virtual link with 2 and 3 trainers and 1 kB to 4 MB of gradients.
_RING_STEP_BYTES = 800
_RING_SHARE = 1.001

_NUM_ENTRIES = {
    "exec": (5, 8, 9),
    "flow": (7, 8),
    "serve": (5,),
    "local": (5,),
    "cache": (5,),
    "ring": (6,),
    "swap": (10, 11, 12),
}


@dataclass
class _Rows:
    """Unordered rows of executions or flows."""

    rows: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, *row: float) -> None:
        self.rows.append(row)

    def columns(self, num: int, by: int) -> list[np.ndarray]:
        """All rows by column, sorted by start, then by task."""
        table = np.array(sorted(self.rows, key=lambda row: (row[by], *row)), dtype=np.float64)
        return list(table.reshape(-1, num).T)


def read_records(lines: Sequence[bytes]) -> list[list[Any]]:
    """Parse the records of one task, skipping incomplete lines of killed processes."""
    try:
        # Three times as fast as line by line.
        records = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        records = []
        for line in lines:
            with suppress(ValueError):
                records.append(json.loads(line))
    return [
        record
        for record in records
        if isinstance(record, list) and record and len(record) in _NUM_ENTRIES.get(record[0], ())
    ]


def merge_records(
    collected: Iterable[tuple[str, bytes]],
    offsets_s: Mapping[str, float],
    plan: Plan,
    marks: Iterable[Mark] = (),
) -> Trace:
    """Merge the raw records of all tasks, each with its machine, into one trace."""
    read = ((machine, read_records(data.splitlines())) for machine, data in collected)
    return merge_read(read, offsets_s, plan, marks)


def merge_read(
    collected: Iterable[tuple[str, Iterable[list[Any]]]],
    offsets_s: Mapping[str, float],
    plan: Plan,
    marks: Iterable[Mark] = (),
) -> Trace:
    """Same as `merge_records`, for parsed records."""
    merging = _Merging(plan)
    for machine, records in collected:
        for record in records:
            merging.add(record, offsets_s.get(machine, 0.0))
    return merging.trace(marks)


def link_bytes(trace: Trace) -> dict[str, tuple[float, float]]:
    """Bytes that each machine received and sent, for comparison with its NIC counters."""
    machines, num = trace.task_machines, len(trace.machine_names)
    src, dst = machines[trace.flows.src], machines[trace.flows.dst]
    received = np.bincount(dst, weights=trace.flows.num_bytes, minlength=num)
    sent = np.bincount(src, weights=trace.flows.num_bytes, minlength=num)
    return {
        name: (float(received[m]), float(sent[m])) for m, name in enumerate(trace.machine_names)
    }


def ring_bytes(model_bytes: float, num_trainers: int) -> float:
    """Bytes that a trainer sends to its ring successor per iteration."""
    chunk_bytes = _RING_SHARE * model_bytes / num_trainers + _RING_STEP_BYTES
    return 2 * (num_trainers - 1) * chunk_bytes


class _Merging:
    """Groups records by kind and converts them to rows of the trace."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Layers are known when all records have been added.
        self._graph, self._machines = self._tasks_of(plan.job.model_copy(update={"swaps": ()}))
        self._swaps = SwapRecords(plan.job.trainers)
        self._index = {name: task for task, name in enumerate(self._graph.names)}
        self._in, self._out = (
            plan.cluster.nic_in_bytes_per_s(),
            plan.cluster.nic_out_bytes_per_s(),
        )
        self._samplers: dict[tuple[int, int], list[float]] = {}
        self._trainers: dict[tuple[int, int], list[float]] = {}
        self._rings: dict[int, dict[int, list[float]]] = defaultdict(dict)
        self._moved: dict[Pair, list[float]] = {}
        self._served: dict[Pair, float] = {}
        self._stayed: dict[Pair, float] = {}
        self._executions, self._flows, self._local = _Rows(), _Rows(), _Rows()

    def _tasks_of(self, job: Job) -> tuple[TaskGraph, np.ndarray]:
        placed = self._plan.placed
        graph = build_task_graph(job, self._plan.cluster.num_machines, placed.ring_order)
        return graph, task_machines(graph, placed)

    def add(self, record: list[Any], offset_s: float) -> None:
        """Add a record; ignores tasks that are not in the plan."""
        what, task, *rest = record
        first = self._index.get(task)
        if first is None or what == "cache":
            return
        if what == "exec":
            n, start_s, end_s, *more = rest
            is_sampler = first < self._graph.first_trainer
            kept = self._samplers if is_sampler else self._trainers
            if not is_sampler or more:
                kept[first, int(n)] = [start_s + offset_s, end_s + offset_s, *more]
            return
        if what == "ring":
            n, start_s, end_s, num_bytes = rest
            self._rings[int(n)][first] = [start_s + offset_s, end_s + offset_s, num_bytes]
            return
        if what == "swap":
            self._swaps.add(first - self._graph.first_trainer, rest, offset_s)
            return
        second = self._index.get(rest[0])
        if second is None:
            return
        pair = (first, second, int(rest[1]))
        if what == "flow":
            num_bytes, start_s, end_s = rest[2:5]
            self._moved[pair] = [num_bytes, start_s + offset_s, end_s + offset_s]
        elif what == "serve":
            self._served[pair] = rest[2]
        else:
            self._stayed[pair] = rest[2]

    def trace(self, marks: Iterable[Mark] = ()) -> Trace:
        """Build the trace, starting at time 0."""
        swaps = self._swaps.usual()
        if swaps:
            about = {"kind": JobKind.FULL_GRAPH, "swaps": swaps}
            self._graph, self._machines = self._tasks_of(self._plan.job.model_copy(update=about))
        ends_s = self._add_samplers()
        self._add_stores()
        self._add_flows(ends_s)
        self._add_trainers()
        for (src, dst, n), num_bytes in self._stayed.items():
            at_s = ends_s.get((dst, n), 0.0)
            self._local.add(src, dst, n, num_bytes, at_s, at_s)
        task, iteration, *times = self._executions.columns(4, by=2)
        flows = [self._flows.columns(6, by=4), self._local.columns(6, by=4)]
        begin_s = min(
            (float(part.min()) for part in (times[0], flows[0][4]) if len(part)), default=0.0
        )
        made = [
            Flows(
                src.astype(np.int64),
                dst.astype(np.int64),
                n.astype(np.int64),
                num_bytes,
                start_s - begin_s,
                end_s - begin_s,
            )
            for src, dst, n, num_bytes, start_s, end_s in flows
        ]
        return Trace(
            task_names=self._graph.names,
            task_roles=tuple(ROLES[code].value for code in self._graph.role),
            task_machines=self._machines,
            machine_names=tuple(machine.name for machine in self._plan.cluster.hosts),
            nic_in_bytes_per_s=self._in,
            nic_out_bytes_per_s=self._out,
            executions=Executions(
                task.astype(np.int64),
                iteration.astype(np.int64),
                times[0] - begin_s,
                times[1] - begin_s,
            ),
            flows=made[0],
            local=made[1],
            marks=_since(marks, begin_s),
            seeds=self._seeds(),
            swaps=swaps,
        )

    def _seeds(self) -> np.ndarray | None:
        """Seeds by sampler and iteration; versions before 0.2 did not record them."""
        known = {key: row[5] for key, row in self._samplers.items() if len(row) > 5}
        if not known:
            return None
        num = self._graph.first_trainer - self._graph.first_sampler
        seeds = np.zeros((num, 1 + max(n for _, n in known)), np.int64)
        for (sampler, n), num_seeds in known.items():
            seeds[sampler - self._graph.first_sampler, n] = num_seeds
        return seeds

    def _are_apart(self, src: int, dst: int) -> bool:
        return bool(self._machines[src] != self._machines[dst])

    def _transfer_s(self, src: int, dst: int, num_bytes: float) -> float:
        if not self._are_apart(src, dst):
            return 0.0
        rate = min(self._out[self._machines[src]], self._in[self._machines[dst]])
        return float(num_bytes / rate)

    def _add_samplers(self) -> dict[tuple[int, int], float]:
        ends_s = {}
        per_trainer = self._plan.job.samplers_per_trainer
        for (sampler, n), (_, end_s, taken_s, busy_s, part_bytes, *_) in self._samplers.items():
            # Sub-batches built on several cores take less time than their compute time.
            time_s = min(busy_s, taken_s)
            self._executions.add(sampler, n, end_s - time_s, end_s)
            ends_s[sampler, n] = end_s
            number = sampler - self._graph.first_sampler
            trainer = self._graph.first_trainer + number // per_trainer
            if not self._are_apart(sampler, trainer):
                self._local.add(sampler, trainer, n, part_bytes, end_s, end_s)
        return ends_s

    def _add_stores(self) -> None:
        sums: dict[tuple[int, int], list[float]] = {}
        for pair, service_s in self._served.items():
            store, _, n = pair
            if pair in self._moved:
                known = sums.setdefault((store, n), [np.inf, 0.0])
                known[0] = min(known[0], self._moved[pair][1])
                known[1] += service_s
        for (store, n), (start_s, service_s) in sums.items():
            self._executions.add(store, n, start_s, start_s + service_s)

    def _add_flows(self, ends_s: Mapping[tuple[int, int], float]) -> None:
        first, last = self._graph.first_sampler, self._graph.first_trainer
        free_s: dict[tuple[int, int], float] = {}
        for (src, dst, n), (num_bytes, start_s, end_s) in sorted(self._moved.items()):
            if not self._are_apart(src, dst):
                self._local.add(src, dst, n, num_bytes, start_s, end_s)
                continue
            if first <= src < last <= dst:
                # Trainers request sub-batches early and record only their arrival.
                ready_s = max(ends_s.get((src, n), start_s), free_s.get((src, dst), start_s))
                start_s = min(max(start_s, ready_s), end_s)
                free_s[src, dst] = end_s
            self._flows.add(src, dst, n, num_bytes, start_s, end_s)

    def _add_trainers(self) -> None:
        steps = {}
        for (trainer, n), (start_s, end_s) in self._trainers.items():
            ring = self._rings.get(n, {}).get(trainer)
            waited_s = 0.0 if ring is None else min(max(ring[1] - ring[0], 0.0), end_s - start_s)
            steps[trainer, n] = (start_s, end_s - waited_s)
        first, num = self._graph.first_trainer, self._graph.num_trainers
        for n, epoch in self._swaps.epochs():
            if all((first + w, n) in steps for w in range(num)):
                self._add_epoch(n, epoch, [steps.pop((first + w, n)) for w in range(num)])
        for (trainer, n), (start_s, end_s) in steps.items():
            self._executions.add(trainer, n, start_s, end_s)
        if self._graph.num_tasks > self._graph.first_ring:
            work_s = min(map(self._ring_work_s, self._rings.values()), default=0.0)
            for n, rings in self._rings.items():
                self._add_ring(n, rings, work_s)

    def _add_epoch(
        self, n: int, epoch: list[list[SwapTimes]], steps: list[tuple[float, float]]
    ) -> None:
        """Add the layers between the swaps of an epoch, and what trainers sent each other."""
        graph, num = self._graph, self._graph.num_trainers
        for w, (swaps, (start_s, end_s)) in enumerate(zip(epoch, steps, strict=True)):
            before = graph.first_trainer + w
            for k, swap in enumerate(swaps):
                during = graph.first_layer + 2 * k * num + w
                self._executions.add(before, n, start_s, max(start_s, swap.start_s))
                self._executions.add(during, n, swap.start_s, swap.wait_s)
                for r, num_bytes in enumerate(swap.sent_bytes):
                    if r != w and num_bytes:
                        dst, there_s = during + num + r - w, epoch[r][k].end_s
                        rows = self._flows if self._are_apart(before, dst) else self._local
                        rows.add(before, dst, n, num_bytes, swap.start_s, there_s)
                before, start_s = during + num, swap.end_s
            self._executions.add(before, n, start_s, max(start_s, end_s))

    def _ring_step(self, rings: Mapping[int, list[float]]) -> tuple[float, float, float]:
        """Start of the ring (arrival of the last trainer), step duration, and bytes per step."""
        num_steps = 2 * (self._graph.num_trainers - 1)
        start_s = max(ring[0] for ring in rings.values())
        length_s = max(0.0, max(ring[1] for ring in rings.values()) - start_s)
        model_bytes = max(ring[2] for ring in rings.values())
        chunk_bytes = ring_bytes(model_bytes, self._graph.num_trainers) / num_steps
        return start_s, length_s / num_steps, chunk_bytes

    def _ring_work_s(self, rings: Mapping[int, list[float]]) -> float:
        """Duration of a step beyond its transfer time on an idle network."""
        _, step_s, chunk_bytes = self._ring_step(rings)
        order, first = self._plan.placed.ring_order, self._graph.first_trainer
        pairs = zip(order, (*order[1:], order[0]), strict=True)
        moving_s = max(self._transfer_s(first + a, first + b, chunk_bytes) for a, b in pairs)
        return max(0.0, step_s - moving_s)

    def _add_ring(self, n: int, rings: Mapping[int, list[float]], work_s: float) -> None:
        """Add equal steps of compute (minimum over iterations) and network transfer."""
        graph, order = self._graph, self._plan.placed.ring_order
        start_s, step_s, chunk_bytes = self._ring_step(rings)
        num_steps = 2 * (graph.num_trainers - 1)
        self._executions.add(graph.first_ring, n, start_s, start_s)
        follower = dict(zip(order, (*order[1:], order[0]), strict=True))
        for step in range(num_steps):
            begin_s = start_s + step * step_s
            here = graph.first_ring + 1 + step * graph.num_trainers
            for trainer in range(graph.num_trainers):
                then = here + graph.num_trainers + follower[trainer]
                if step == num_steps - 1:
                    then = graph.first_trainer + follower[trainer]
                sent_s = begin_s + min(work_s, step_s)
                self._executions.add(here + trainer, n, begin_s, sent_s)
                if self._are_apart(here + trainer, then):
                    self._flows.add(here + trainer, then, n, chunk_bytes, sent_s, begin_s + step_s)


def _since(marks: Iterable[Mark], begin_s: float) -> tuple[Mark, ...]:
    """Shift marks to trace time; the last one before the start is moved to the start."""
    known = sorted(marks, key=lambda mark: mark.at_s)
    num_before = sum(mark.at_s < begin_s for mark in known)
    return tuple(
        Mark(max(mark.at_s - begin_s, 0.0), mark.text) for mark in known[max(num_before - 1, 0) :]
    )


def trace_of_folder(folder: Path, plan: Plan) -> Trace:
    """Assemble the trace of a run from the task records and clock offsets in its directory."""
    placed, names = plan.placed, [machine.name for machine in plan.cluster.hosts]
    graph = build_task_graph(plan.job, plan.cluster.num_machines, placed.ring_order)
    machines = dict(zip(graph.names, task_machines(graph, placed), strict=True))
    collected = [
        (names[machines[task]], path.read_bytes())
        for path in sorted(folder.glob("trace-*.jsonl"))
        if (task := path.stem.removeprefix("trace-")) in machines
    ]
    return merge_records(collected, read_offsets(folder), plan, _decisions(folder))


def _decisions(folder: Path) -> list[Mark]:
    """Decisions logged in a run, in times of the driver's clock."""
    try:
        lines = (folder / "events.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    events = map(json.loads, lines)
    return [Mark(each["clock_s"], each["line"]) for each in events if each["kind"] == "decision"]


def write_offsets(folder: Path, offsets: Mapping[str, ClockOffset]) -> None:
    """Write the measured clock offsets."""
    kept = {name: [each.offset_s, each.uncertainty_s] for name, each in offsets.items()}
    (folder / CLOCKS).write_text(json.dumps(kept), encoding="utf-8")


def read_offsets(folder: Path) -> dict[str, float]:
    """Clock offset per machine; empty if not measured."""
    try:
        kept = json.loads((folder / CLOCKS).read_bytes())
    except FileNotFoundError:
        return {}
    return {name: offset_s for name, (offset_s, _) in kept.items()}
