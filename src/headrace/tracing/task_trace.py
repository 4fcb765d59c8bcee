"""What a task did and when, as lines of a file: cheap to write, read by `runtime.tracing`.

A line is a JSON list; its first entry says what it is:

- `exec`: task, iteration, start_s, end_s; of samplers also taken_s, busy_s and the part's bytes
- `flow`: source, destination, iteration, bytes, start_s, end_s
- `serve`: store, sampler, iteration, service_s
- `local`: source, destination, iteration, bytes that stayed on the machine
- `ring`: trainer, iteration, start_s, end_s, bytes of gradients

Times are those of the machine's monotonic clock.
"""

from __future__ import annotations

import io
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.tracing.meter import Call, Meter, metering

Clock = Callable[[], float]
Record = tuple[str | int | float, ...]

MARK = struct.Struct("<q")
"""How an iteration is written to the mark's file."""

_FLUSH_EVERY_S = 1.0


class TraceWriter:
    """Appends records to a file, at most once a second and at the end; threads may share it.

    Args:
        path: The file.
        task: Whose records they are.
        clock: Seconds.
    """

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

    def note(self, *records: Record) -> None:
        """Keep records; write what is kept if the last time is long ago."""
        now_s = self.clock()
        with self._lock:
            self._records += records
            if now_s - self._flushed_s >= _FLUSH_EVERY_S:
                self._flushed_s = now_s
                self._write()

    def mark(self, iteration: int) -> None:
        """Show whoever looks at the mark's file which iteration the task is at."""
        with self._lock:
            if self._file.closed:
                return
            if self._mark is None:
                self._mark = self._mark_path.open("wb", buffering=0)
            os.pwrite(self._mark.fileno(), MARK.pack(iteration), 0)

    def flush(self) -> None:
        """Write what is kept."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Write what is kept and close the file; what is noted later is lost."""
        with self._lock:
            self._write()
            self._file.close()
            if self._mark is not None:
                self._mark.close()

    def _write(self) -> None:
        if self._records and not self._file.closed:
            lines = [json.dumps(record, separators=(",", ":")) for record in self._records]
            self._file.write(("\n".join(lines) + "\n").encode())
        self._records = []


def mark_path(trace: Path) -> Path:
    """Beside a task's trace: the file with the iteration that it is at, eight bytes."""
    return trace.with_suffix(".at")


class SharedTime:
    """Time in which anybody works, divided evenly among those who work at the same time.

    A sampler makes several parts at once. What each of them takes must add up to the time that
    the sampler was busy, or nobody could tell from it how many parts a second it makes.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._num = 0
        self._at_s = 0.0
        self._share_s = 0.0

    def enter(self) -> tuple[float, float]:
        """Begin to work: the time, and a count of which everybody gets the same."""
        return self._change(1)

    def leave(self) -> tuple[float, float]:
        """Stop working; the count has grown by what is one's own."""
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
    """What is noted of one part while it is made.

    Args:
        iteration: Of the part.
        shared: Time of all parts of the sampler.
        busy_clock: Seconds that the thread which asks has computed.
        meter: Of all parts of the sampler in this iteration.
    """

    def __init__(
        self, iteration: int, shared: SharedTime, busy_clock: Clock, meter: Meter | None = None
    ) -> None:
        self.iteration = iteration
        self.meter = meter or Meter()
        self.start_s = float("inf")
        self.end_s = 0.0
        self.taken_s = 0.0
        self.busy_s = 0.0
        self._shared = shared
        self._busy_clock = busy_clock

    @contextmanager
    def working(self) -> Iterator[None]:
        """This thread works on the part; waiting for a store counts, waiting for a credit not."""
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
    """Records the parts of a sampler.

    Args:
        recorder: Of the sampler.
        batches_per_epoch: To number iterations.
        busy_clock: Seconds that the thread which asks has computed.
        num_lanes: Parts that the sampler makes in an iteration; they are recorded as one.
    """

    def __init__(
        self,
        recorder: TraceWriter,
        batches_per_epoch: int,
        busy_clock: Clock,
        num_lanes: int = 1,
    ) -> None:
        self._recorder = recorder
        self._batches_per_epoch = batches_per_epoch
        self._busy_clock = busy_clock
        self._num_lanes = num_lanes
        self._shared = SharedTime(recorder.clock)
        self._lock = threading.Lock()
        self._meters: dict[int, Meter] = {}
        self._done: dict[int, list[tuple[SubBatchNotes, int]]] = {}

    def begin(self, epoch: int, batch: int) -> SubBatchNotes:
        """Notes of a new part."""
        iteration = epoch * self._batches_per_epoch + batch
        with self._lock:
            meter = self._meters.setdefault(iteration, Meter())
            self._recorder.mark(min(self._meters))
        return SubBatchNotes(iteration, self._shared, self._busy_clock, meter)

    def end(self, notes: SubBatchNotes, num_bytes: int) -> None:
        """Record a part that is done, once all of its iteration are.

        Args:
            notes: What was noted of it.
            num_bytes: Of what the trainer gets.
        """
        task, n = self._recorder.task, notes.iteration
        with self._lock:
            done = self._done.setdefault(n, [])
            done.append((notes, num_bytes))
            if len(done) < self._num_lanes:
                return
            del self._meters[n], self._done[n]
            self._recorder.mark(min(self._meters, default=n + 1))
        lanes = [each for each, _ in done]
        times = (_round(min(x.start_s for x in lanes)), _round(max(x.end_s for x in lanes)))
        taken = (_round(sum(x.taken_s for x in lanes)), _round(sum(x.busy_s for x in lanes)))
        total_bytes = sum(each for _, each in done)
        records: list[Record] = [("exec", task, n, *times, *taken, total_bytes)]
        for store, use in notes.meter.stores.items():
            asked = (_round(use.first_s), _round(use.last_s))
            records.append(("flow", store, task, n, use.reply_bytes, *asked))
            records.append(("flow", task, store, n, use.request_bytes, *asked))
            records.append(("serve", store, task, n, _round(use.service_s)))
        for part, local_bytes in notes.meter.local_bytes.items():
            records.append(("local", f"store{part}", task, n, local_bytes))
        self._recorder.note(*records)


class StepRecorder:
    """Records a trainer's steps, the parts it takes and the gradients it exchanges.

    Args:
        recorder: Of the trainer.
    """

    def __init__(self, recorder: TraceWriter) -> None:
        self._recorder = recorder
        self._next = 0
        self._begun_s: float | None = None

    @property
    def clock(self) -> Clock:
        """Seconds."""
        return self._recorder.clock

    @property
    def num_steps(self) -> int:
        """Steps that have ended."""
        return self._next

    def start_at(self, step: int) -> None:
        """Number steps from here on; one that was begun is not recorded."""
        self._next, self._begun_s = step, None

    def begin(self) -> None:
        """The trainer has got a batch; one that it left in the middle is not recorded."""
        self._next += self._begun_s is not None
        self._begun_s = self._recorder.clock()

    def end(self) -> None:
        """The trainer asks for the next batch, or has enough."""
        if self._begun_s is not None:
            times = (_round(self._begun_s), _round(self._recorder.clock()))
            self._recorder.note(("exec", self._recorder.task, self._next, *times))
            self._begun_s = None
            self._next += 1

    def exchange(self, start_s: float, end_s: float, num_bytes: int) -> None:
        """Gradients were exchanged, from when the last were ready to when all were there."""
        times = (_round(start_s), _round(end_s))
        self._recorder.note(("ring", self._recorder.task, self._next, *times, num_bytes))

    def moved(
        self, src: str, dst: str, n: int, num_bytes: int, start_s: float, end_s: float
    ) -> None:
        """Bytes went from a task to a task, one of them this trainer."""
        self._recorder.note(("flow", src, dst, n, num_bytes, _round(start_s), _round(end_s)))

    def taking_from(
        self, sampler: str, batches_per_epoch: int, num_lanes: int = 1
    ) -> Callable[[Call], None]:
        """What notes the parts that come from a sampler on another machine.

        Args:
            sampler: Its task.
            batches_per_epoch: To number iterations.
            num_lanes: Parts of an iteration; they are recorded as one.
        """
        came: dict[int, list[Call]] = {}

        def note(call: Call) -> None:
            part = call.fields.get("part")
            if part is None:
                return
            n = part["epoch"] * batches_per_epoch + part["batch"]
            came.setdefault(n, []).append(call)
            if len(came[n]) == num_lanes:
                calls, task = came.pop(n), self._recorder.task
                times = (_round(calls[0].start_s), _round(calls[-1].end_s))
                got = sum(each.reply_bytes for each in calls)
                asked = sum(each.request_bytes for each in calls)
                self._recorder.note(
                    ("flow", sampler, task, n, got, *times),
                    ("flow", task, sampler, n, asked, *times),
                )

        return note

    def close(self) -> None:
        """Write what is kept."""
        self.end()
        self._recorder.close()


def _round(seconds: float) -> float:
    # Microseconds are enough, and their text is short.
    return round(seconds, 6)
