"""Records a trainer's steps, if the run is traced."""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from headrace.rpc.call_meter import MeteredChannel
from headrace.rpc.client import Channel
from headrace.runtime.protocol.run_context import RunContext
from headrace.tracing.task_trace import StepRecorder, TraceWriter
from headrace.training.parameter_server.types import Exchange


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
