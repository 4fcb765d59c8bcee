"""Records a trainer's steps, if the run is traced, and reports its progress."""

from __future__ import annotations

import atexit
import time
from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from headrace.graph.sampler_worker.prefetcher import Prefetcher
from headrace.rpc.call_meter import MeteredChannel
from headrace.rpc.client import Channel
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    BatchRequested,
    LoopLeft,
    send,
)
from headrace.tracing.task_trace import StepRecorder, TraceWriter
from headrace.training.parameter_server.types import Exchange

_REPORT_INTERVAL_S = 0.2


class LoopHooks(Protocol):
    """Called in a loop over a loader."""

    def before_batch(self) -> None:
        """The next batch is about to be built."""

    def took(self) -> None:
        """A batch is passed to the script."""

    def after_step(self) -> None:
        """The script has used a batch, and there are more."""


def steps_of(run: RunContext) -> StepRecorder | None:
    """Return the step recorder of this process; none if the run is not traced."""
    return None if run.trace is None else _open(run.trace, run.task)


def metered_channel(
    run: RunContext, channel: Channel, sampler: str, batches_per_epoch: int, num_shards: int = 1
) -> Channel:
    """Return a channel to a remote sampler that records its sub-batches."""
    steps = steps_of(run)
    if steps is None:
        return channel
    record = steps.recording_from(sampler, batches_per_epoch, num_shards)
    return MeteredChannel(channel, steps.clock, lambda: record)


def record_exchanges(steps: StepRecorder, task: str, exchanges: Sequence[Exchange]) -> None:
    """Record the transfers of one step between a trainer and all parameter servers."""
    for each in exchanges:
        there_s, back_s = each.moving_s
        n, start_s, end_s = each.iteration, each.start_s, each.end_s
        steps.moved(task, each.server, n, each.sent_bytes, start_s, start_s + there_s)
        steps.moved(each.server, task, n, each.got_bytes, end_s - back_s, end_s)
    steps.exchange(
        min(each.start_s for each in exchanges),
        max(each.end_s for each in exchanges),
        sum(each.sent_bytes for each in exchanges),
    )


@lru_cache(maxsize=1)
def _open(path: Path, task: str) -> StepRecorder:
    steps = StepRecorder(TraceWriter(path, task, time.monotonic))
    atexit.register(steps.close)
    return steps


def watched(
    run: RunContext,
    batches: Iterator[Any],
    trains: bool,
    size: tuple[int, int, int],
    prefetcher: Prefetcher | None = None,
    first: int = 0,
    hooks: LoopHooks | None = None,
) -> Generator[Any, None, None]:
    """Yield the batches of one epoch from `first` on, and report progress to the display."""
    num_seeds, batch_size, num_steps = size
    send(run.messages, BatchRequested())
    began_s = reported_s = time.perf_counter()
    waited_s = 0.0
    steps = steps_of(run) if trains else None
    if prefetcher is not None:
        prefetcher.start_measuring()
    for number in range(first + 1, num_steps + 1):
        if hooks is not None:
            hooks.before_batch()
        before_s = time.perf_counter()
        batch = next(batches, None)
        waited_s += time.perf_counter() - before_s
        if batch is None:
            send(run.messages, LoopLeft())
            return
        if steps is not None:
            _end_if_enough(run, steps)
            steps.begin()
        if hooks is not None:
            hooks.took()
        try:
            yield batch
        except GeneratorExit:
            send(run.messages, LoopLeft())
            raise
        del batch
        if steps is not None:
            steps.end()
        # After the step: otherwise an epoch of few batches would consist of waiting only.
        now_s = time.perf_counter()
        if now_s - reported_s >= _REPORT_INTERVAL_S or number == num_steps:
            reported_s = now_s
            own = {"here_s": waited_s}
            progress = BatchProgress(
                trains,
                number,
                num_steps,
                num_samples=min((number - first) * batch_size, num_seeds),
                elapsed_s=now_s - began_s,
                waited_s=waited_s,
                stages=own if prefetcher is None else prefetcher.report().figures,
                steps=None if steps is None else steps.num_steps,
            )
            send(run.messages, progress)
        if hooks is not None and number < num_steps:
            hooks.after_step()
    # Let the iterator run its code after the last batch.
    next(batches, None)


def _end_if_enough(run: RunContext, steps: StepRecorder) -> None:
    """Exit the script after the run's number of iterations; all trainers do so at the same one.

    Exiting is safer than yielding epochs without batches, as scripts run other code between epochs.
    """
    if run.iterations is not None and steps.num_steps >= run.iterations:
        steps.close()
        raise SystemExit(0)
