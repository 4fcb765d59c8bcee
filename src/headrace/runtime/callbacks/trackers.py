"""Sends figures of a run to experiment trackers, in a thread per tracker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from headrace.observability.passwords import without_passwords
from headrace.observability.trackers import Tracker, make_tracker, numbers_of, step_of
from headrace.runtime.callbacks.base import RunCallback
from headrace.runtime.run_dir.status import Status

_FLUSH_TIMEOUT_S = 30.0
_SERVER = "MLFLOW_TRACKING_URI"

Work = Callable[[Tracker], None]


class Trackers(RunCallback):
    """Sends figures of a run to trackers; a tracker that fails is disabled."""

    def __init__(
        self,
        trackers: Sequence[Tracker],
        log: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log, self._clock = log, clock
        self._num_reports = 0
        self._run: dict[str, float] = {}
        self._queues = [_Queue(tracker, log) for tracker in trackers]

    def start(self, run: str, config: Mapping[str, Any]) -> None:
        """Start or resume a run."""
        at_s = self._clock()
        self._put(lambda tracker: tracker.start(run, config, at_s))

    def reported(self, figures: Mapping[str, Any]) -> None:
        """Log the numeric figures of the script and the run."""
        self._num_reports += 1
        step, at_s = step_of(figures, self._num_reports), self._clock()
        numbers = {**numbers_of(figures), **self._run}
        self._put(lambda tracker: tracker.log(step, numbers, at_s))

    def updated(self, status: Status) -> None:
        """Update the figures of the run."""
        known = {
            "run/iterations": status.iterations,
            "run/samples_per_s": status.samples_per_s,
            "run/idle_share": status.idle_share,
        }
        self._run = {name: value for name, value in known.items() if value is not None}

    def finished(self, status: Status) -> None:
        """Send the final state of the run."""
        self.finish(status.state.value)

    def finish(self, state: str) -> None:
        """Send the final state, and wait for the trackers with a timeout."""
        at_s = self._clock()
        self._put(lambda tracker: tracker.finish(state, at_s))
        end_s = time.monotonic() + _FLUSH_TIMEOUT_S
        for queue in self._queues:
            queue.close(max(0.0, end_s - time.monotonic()))

    def _put(self, work: Work) -> None:
        for queue in self._queues:
            queue.put(work)


class _Queue:
    """A tracker with its queue and thread."""

    def __init__(self, tracker: Tracker, log: Callable[[str], None]) -> None:
        self._tracker, self._log = tracker, log
        self._works: SimpleQueue[Work | None] = SimpleQueue()
        name = f"tracker {tracker.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        self._works.put(work)

    def close(self, timeout_s: float) -> None:
        self._works.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._log(f"{self._tracker.name} does not respond: it may lack the last figures")

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            try:
                work(self._tracker)
            except Exception as error:
                reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
                why = without_passwords(reason[0])
                self._log(f"{self._tracker.name} is disabled after an error: {why}")
                return


def check_trackers(wanted: Sequence[str]) -> None:
    """Check names and packages of the trackers; see `make_tracker`."""
    for each in wanted:
        make_tracker(each, Path(), "")


def make_tracking(
    wanted: Sequence[str], folder: Path, experiment: str, log: Callable[[str], None]
) -> Trackers:
    """Create the trackers given by `--track`; see `make_tracker`."""
    server = os.environ.get(_SERVER)
    trackers = [make_tracker(each, folder, experiment, server) for each in wanted]
    for tracker in trackers:
        log(f"figures are logged to {tracker.name}, {tracker.where}")
    return Trackers(trackers, log)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The user's config with `config.` prefixed to its names."""
    return {f"config.{name}": value for name, value in config.items()}
