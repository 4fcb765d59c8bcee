"""What a trainer's process records of its steps, if its run wants to know."""

from __future__ import annotations

import atexit
import time
from functools import lru_cache
from pathlib import Path

from headrace.graph.feeding.recording import Recorder, StepRecorder
from headrace.graph.service.channel import Channel
from headrace.graph.service.measuring import MeasuredChannel
from headrace.runtime.context import RunContext


def steps_of(run: RunContext) -> StepRecorder | None:
    """Records the steps of this process; none if the run records nothing."""
    return None if run.trace is None else _open(run.trace, run.task)


def measured_parts(
    run: RunContext, channel: Channel, sampler: str, batches_per_epoch: int
) -> Channel:
    """A channel to a sampler on another machine, whose parts are recorded."""
    steps = steps_of(run)
    if steps is None:
        return channel
    note = steps.taking_from(sampler, batches_per_epoch)
    return MeasuredChannel(channel, steps.clock, lambda: note)


@lru_cache(maxsize=1)
def _open(path: Path, task: str) -> StepRecorder:
    steps = StepRecorder(Recorder(path, task, time.monotonic))
    atexit.register(steps.close)
    return steps
