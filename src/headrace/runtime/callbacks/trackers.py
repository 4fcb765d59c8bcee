"""Figures of a run on their way to trackers, in a thread: no slow server holds up a run."""

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
from headrace.runtime.callbacks.base import RunListener
from headrace.runtime.run_dir.status import Status

_PATIENCE_S = 30.0
_SERVER = "MLFLOW_TRACKING_URI"

Work = Callable[[Tracker], None]


class Trackers(RunListener):
    """Tells trackers of a run; one that fails is left out, and the run goes on.

    Args:
        trackers: Whom to tell.
        say: Takes a line for the user.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._say, self._clock = say, clock
        self._num_reports = 0
        self._run: dict[str, float] = {}
        self._lanes = [_Queue(tracker, say) for tracker in trackers]

    def start(self, run: str, config: Mapping[str, Any]) -> None:
        """A run begins, or goes on."""
        at_s = self._clock()
        self._put(lambda tracker: tracker.start(run, config, at_s))

    def reported(self, figures: Mapping[str, Any]) -> None:
        """Track the numbers among figures of the script, beside those of the run."""
        self._num_reports += 1
        step, at_s = step_of(figures, self._num_reports), self._clock()
        numbers = {**numbers_of(figures), **self._run}
        self._put(lambda tracker: tracker.log(step, numbers, at_s))

    def noted(self, status: Status) -> None:
        """Remember how fast the run is."""
        known = {
            "run/iterations": status.iterations,
            "run/samples_per_s": status.samples_per_s,
            "run/idle_share": status.idle_share,
        }
        self._run = {name: value for name, value in known.items() if value is not None}

    def finished(self, status: Status) -> None:
        """Say how the run ended."""
        self.finish(status.state.value)

    def finish(self, state: str) -> None:
        """Say how the run ended, and wait until everybody knows; not for ever."""
        at_s = self._clock()
        self._put(lambda tracker: tracker.finish(state, at_s))
        end_s = time.monotonic() + _PATIENCE_S
        for lane in self._lanes:
            lane.close(max(0.0, end_s - time.monotonic()))

    def _put(self, work: Work) -> None:
        for lane in self._lanes:
            lane.put(work)


class _Queue:
    """One tracker and the thread that tells it."""

    def __init__(self, tracker: Tracker, say: Callable[[str], None]) -> None:
        self._tracker, self._say = tracker, say
        self._works: SimpleQueue[Work | None] = SimpleQueue()
        name = f"tell {tracker.name}"
        self._thread = threading.Thread(target=self._tell, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        self._works.put(work)

    def close(self, timeout_s: float) -> None:
        self._works.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._say(f"{self._tracker.name} does not answer: it may lack the last figures")

    def _tell(self) -> None:
        while (work := self._works.get()) is not None:
            try:
                work(self._tracker)
            except Exception as error:
                reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
                why = without_passwords(reason[0])
                self._say(f"{self._tracker.name} is told no more, since it failed: {why}")
                return


def check_trackers(wanted: Sequence[str]) -> None:
    """Refuse early what cannot be tracked.

    Raises:
        SpecError: There is no such tracker.
        MissingExtraError: Its package is not installed.
    """
    for each in wanted:
        make_tracker(each, Path(), "")


def make_tracking(
    wanted: Sequence[str], folder: Path, experiment: str, say: Callable[[str], None]
) -> Trackers:
    """Tracking as `--track` wants it.

    Args:
        wanted: See `make_tracker`.
        folder: Of the run.
        experiment: What the run belongs to.
        say: Takes a line for the user.
    """
    server = os.environ.get(_SERVER)
    trackers = [make_tracker(each, folder, experiment, server) for each in wanted]
    for tracker in trackers:
        say(f"figures go to {tracker.name}, {tracker.where}")
    return Trackers(trackers, say)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the user set for the script, by names that say so."""
    return {f"config.{name}": value for name, value in config.items()}
