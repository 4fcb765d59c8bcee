"""Trace files of tasks: cheap to write, read by `profiling.trace_assembly`.

A line is a JSON list; its first entry is the kind:

- `exec`: task, iteration, start_s, end_s; for samplers also taken_s, busy_s, sub-batch bytes, seeds
- `flow`: source, destination, iteration, bytes, start_s, end_s; from stores also bytes of features
- `serve`: store, sampler, iteration, service_s
- `local`: source, destination, iteration, bytes that stayed on the machine
- `cache`: sampler, iteration, rows of other machines that its cache had, and had not
- `ring`: trainer, iteration, start_s, end_s, bytes of gradients
- `swap`: trainer, iteration, start_s, begin of the wait, end_s, bytes of a row, whether sums may
  replace rows, whether these are gradients, bytes sent to each trainer, edge type, kind of slices

Times are those of the machine's monotonic clock.
"""

from __future__ import annotations

import io
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.tracing.meter import Call, Meter, metering

Clock = Callable[[], float]
Record = tuple[str | int | float | list[int], ...]

MARK = struct.Struct("<q")
"""Format of the iteration in the mark file."""

_FLUSH_EVERY_S = 1.0


class TraceWriter:
    """Appends records to a file, at most once a second and at the end; thread-safe."""

    def __init__(self, path: Path, task: str, clock: Clock) -> None:
        self.task = task
        self.clock = clock
        self._file = path.open("ab", buffering=0)
        self._mark_path = mark_path(path)
        self._mark: io.FileIO | None = None
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self._flushed_s = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def record(self, *records: Record) -> None:
        """Buffer records; write the buffer if the last write was over a second ago."""
        now_s = self.clock()
        with self._lock:
            self._records += records
            if now_s - self._flushed_s >= _FLUSH_EVERY_S:
                self._flushed_s = now_s
                self._write()

    def mark(self, iteration: int) -> None:
        """Write the task's current iteration to the mark file."""
        with self._lock:
            if self._file.closed:
                return
            with suppress(OSError):
                if self._mark is None:
                    self._mark = self._mark_path.open("wb", buffering=0)
                os.pwrite(self._mark.fileno(), MARK.pack(iteration), 0)

    def flush(self) -> None:
        """Write the buffer."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Write the buffer and close the file; later records are lost."""
        with self._lock:
            self._write()
            self._file.close()
            if self._mark is not None:
                self._mark.close()

    def _write(self) -> None:
        if self._records and not self._file.closed:
            lines = [json.dumps(record, separators=(",", ":")) for record in self._records]
            data = ("\n".join(lines) + "\n").encode()
            # A full disk costs whole records, and not the task.
            size = self._file.seek(0, os.SEEK_END)
            try:
                is_written = self._file.write(data) == len(data)
            except OSError:
                is_written = False
            if not is_written:
                self._file.truncate(size)
        self._records = []


def mark_path(trace: Path) -> Path:
    """Path of the mark file: 8 bytes with the task's current iteration."""
    return trace.with_suffix(".at")


class SharedTime:
    """Divides elapsed time evenly among threads that work at the same time.

    A sampler builds several sub-batches at once. Their times must add up to the sampler's busy
    time, so that its throughput can be computed from them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._num = 0
        self._at_s = 0.0
        self._share_s = 0.0

    def enter(self) -> tuple[float, float]:
        """Start to work; return the time, and the accumulated time per thread."""
        return self._change(1)

    def leave(self) -> tuple[float, float]:
        """Stop working; the accumulated time has grown by this thread's time."""
        return self._change(-1)

    def _change(self, by: int) -> tuple[float, float]:
        with self._lock:
            now_s = self._clock()
            if self._num:
                self._share_s += (now_s - self._at_s) / self._num
            self._at_s = now_s
            self._num += by
            return now_s, self._share_s


class SubBatchNotes:
    """Measurements of one sub-batch; `busy_clock` is the CPU time of the calling thread."""

    def __init__(
        self,
        iteration: int,
        num_seeds: int,
        shared: SharedTime,
        busy_clock: Clock,
        meter: Meter | None = None,
    ) -> None:
        self.iteration = iteration
        self.num_seeds = num_seeds
        self.meter = meter or Meter()
        self.start_s = float("inf")
        self.end_s = 0.0
        self.taken_s = 0.0
        self.busy_s = 0.0
        self._shared = shared
        self._busy_clock = busy_clock

    @contextmanager
    def working(self) -> Iterator[None]:
        """Measure this thread's work, including waits for stores but not for credits."""
        start_s, before_s = self._shared.enter()
        busy_s = self._busy_clock()
        try:
            with metering(self.meter):
                yield
        finally:
            self.end_s, after_s = self._shared.leave()
            self.start_s = min(self.start_s, start_s)
            self.taken_s += after_s - before_s
            self.busy_s += self._busy_clock() - busy_s


class SubBatchRecorder:
    """Records the sub-batches of a sampler; `num_shards` sub-batches of an iteration are one."""

    def __init__(
        self,
        recorder: TraceWriter,
        batches_per_epoch: int,
        busy_clock: Clock,
        num_shards: int = 1,
    ) -> None:
        self._recorder = recorder
        self._batches_per_epoch = batches_per_epoch
        self._busy_clock = busy_clock
        self._num_shards = num_shards
        self._shared = SharedTime(recorder.clock)
        self._lock = threading.Lock()
        self._meters: dict[int, Meter] = {}
        self._done: dict[int, list[tuple[SubBatchNotes, int]]] = {}

    def begin(self, epoch: int, batch: int, num_seeds: int) -> SubBatchNotes:
        """Start the measurements of a sub-batch."""
        iteration = epoch * self._batches_per_epoch + batch
        with self._lock:
            meter = self._meters.setdefault(iteration, Meter())
            self._recorder.mark(min(self._meters))
        return SubBatchNotes(iteration, num_seeds, self._shared, self._busy_clock, meter)

    def end(self, notes: SubBatchNotes, num_bytes: int) -> None:
        """Record an iteration once all its sub-batches, of `num_bytes` each, are done."""
        task, n = self._recorder.task, notes.iteration
        with self._lock:
            done = self._done.setdefault(n, [])
            done.append((notes, num_bytes))
            if len(done) < self._num_shards:
                return
            del self._meters[n], self._done[n]
            self._recorder.mark(min(self._meters, default=n + 1))
        measured = [each for each, _ in done]
        times = (_round(min(x.start_s for x in measured)), _round(max(x.end_s for x in measured)))
        taken = (_round(sum(x.taken_s for x in measured)), _round(sum(x.busy_s for x in measured)))
        total_bytes = sum(each for _, each in done)
        num_seeds = sum(each.num_seeds for each in measured)
        records: list[Record] = [("exec", task, n, *times, *taken, total_bytes, num_seeds)]
        for store, use in notes.meter.stores.items():
            asked = (_round(use.first_s), _round(use.last_s))
            records.append(("flow", store, task, n, use.reply_bytes, *asked, use.feature_bytes))
            records.append(("flow", task, store, n, use.request_bytes, *asked))
            records.append(("serve", store, task, n, _round(use.service_s)))
        for part, local_bytes in notes.meter.local_bytes.items():
            records.append(("local", f"store{part}", task, n, local_bytes))
        if notes.meter.num_hits or notes.meter.num_misses:
            records.append(("cache", task, n, notes.meter.num_hits, notes.meter.num_misses))
        self._recorder.record(*records)


class SwapNotes:
    """Measurement of one swap of rows in a full-graph step, which starts now."""

    def __init__(self, recorder: TraceWriter, iteration: int, about: Record) -> None:
        self._recorder, self._iteration, self._about = recorder, iteration, about
        self._start_s = self._wait_s = recorder.clock()

    def wait(self) -> None:
        """The trainer needs the rows."""
        self._wait_s = self._recorder.clock()

    def end(self) -> None:
        """The rows are here."""
        times = map(_round, (self._start_s, self._wait_s, self._recorder.clock()))
        self._recorder.record(("swap", self._recorder.task, self._iteration, *times, *self._about))


class StepRecorder:
    """Records a trainer's steps, received sub-batches and gradient exchanges."""

    def __init__(self, recorder: TraceWriter) -> None:
        self._recorder = recorder
        self._next = 0
        self._begun_s: float | None = None

    @property
    def clock(self) -> Clock:
        """Clock of the trace."""
        return self._recorder.clock

    @property
    def num_steps(self) -> int:
        """Number of finished steps."""
        return self._next

    def start_at(self, step: int) -> None:
        """Continue with this step number; a started step is dropped."""
        self._next, self._begun_s = step, None

    def begin(self) -> None:
        """Start a step with a new batch; an unfinished step is not recorded."""
        self._next += self._begun_s is not None
        self._begun_s = self._recorder.clock()

    def end(self) -> None:
        """End the step."""
        if self._begun_s is not None:
            times = (_round(self._begun_s), _round(self._recorder.clock()))
            self._recorder.record(("exec", self._recorder.task, self._next, *times))
            self._begun_s = None
            self._next += 1

    def exchange(self, start_s: float, end_s: float, num_bytes: int) -> None:
        """Record a gradient exchange, from the last gradient's readiness to completion."""
        times = (_round(start_s), _round(end_s))
        self._recorder.record(("ring", self._recorder.task, self._next, *times, num_bytes))

    def swap(
        self,
        row_bytes: int,
        is_sum: bool,
        is_back: bool,
        sent_bytes: list[int],
        edges: str = "",
        slices: str = "",
    ) -> SwapNotes | None:
        """Start the measurement of a swap of rows; None outside of a step."""
        if self._begun_s is None:
            return None
        more = [edges, slices] if slices else [edges] if edges else []
        about: Record = (row_bytes, int(is_sum), int(is_back), sent_bytes, *more)
        return SwapNotes(self._recorder, self._next, about)

    def moved(
        self, src: str, dst: str, n: int, num_bytes: int, start_s: float, end_s: float
    ) -> None:
        """Record a transfer between this trainer and another task."""
        self._recorder.record(("flow", src, dst, n, num_bytes, _round(start_s), _round(end_s)))

    def recording_from(
        self, sampler: str, batches_per_epoch: int, num_shards: int = 1
    ) -> Callable[[Call], None]:
        """Return a callback that records the sub-batches of a remote sampler."""
        arrived: dict[int, list[Call]] = {}

        def record(call: Call) -> None:
            part = call.fields.get("part")
            if part is None:
                return
            n = part["epoch"] * batches_per_epoch + part["batch"]
            arrived.setdefault(n, []).append(call)
            if len(arrived[n]) == num_shards:
                calls, task = arrived.pop(n), self._recorder.task
                times = (_round(calls[0].start_s), _round(calls[-1].end_s))
                got = sum(each.reply_bytes for each in calls)
                asked = sum(each.request_bytes for each in calls)
                self._recorder.record(
                    ("flow", sampler, task, n, got, *times),
                    ("flow", task, sampler, n, asked, *times),
                )

        return record

    def close(self) -> None:
        """End the step, write the buffer and close the file."""
        self.end()
        self._recorder.close()


def _round(seconds: float) -> float:
    # Microseconds suffice and are short as text.
    return round(seconds, 6)
