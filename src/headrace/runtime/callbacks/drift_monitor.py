"""Watches whether a run is still what its plan was made for, and plans anew if it is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.core.plan import Plan
from headrace.planner.replan import replan_measured
from headrace.policies.drift.deciding import (
    Drift,
    Examine,
    Findings,
    Replan,
    Rules,
    begin,
    look,
    weigh,
)
from headrace.policies.drift.figures import Peak, with_peaks
from headrace.policies.recovery.events import Drifted
from headrace.profiling.by_machine import filled_in, told_apart
from headrace.runtime.callbacks.base import RunListener
from headrace.runtime.callbacks.drift_windows import Taken, Windows, expected_of
from headrace.runtime.run_dir.status import Status

STOP_S = 5.0
"""What it takes to stop all tasks and to bring a checkpoint home."""

_END_S = 10.0

Measure = Callable[[], Mapping[str, Peak]]
"""Finds out what network cards carry at most, by machine; takes seconds."""


class DriftMonitor(RunListener):
    """Compares one attempt of a run with its plan; looks closer in a thread of its own.

    Args:
        plan: What is run.
        measure: Measures the network.
        offsets: Says what to add to each machine's times.
        adopt: Takes a plan to go on with.
        say: Tells the user something.
        note: Keeps an event with its fields.
        iterations: After so many the run ends, as far as is known.
        rules: When something is done.
    """

    def __init__(
        self,
        plan: Plan,
        measure: Measure,
        offsets: Callable[[], Mapping[str, float]],
        adopt: Callable[[Plan], None],
        say: Callable[[str], None],
        note: Callable[..., None],
        iterations: int | None = None,
        rules: Rules | None = None,
        windows: Windows | None = None,
    ) -> None:
        self._plan, self._measure, self._offsets = plan, measure, offsets
        self._adopt, self._say, self._note = adopt, say, note
        self._iterations, self._rules = iterations, rules or Rules()
        self._windows = windows or Windows(plan)
        self._state: Drift | None = None
        self._examination: Replanner | None = None
        self._begin_s = time.monotonic()
        self._first_step_s: float | None = None
        self._num_epochs = self._num_batches = 0

    def looked(self, task: str, state: Mapping[str, Any]) -> None:
        """A task's shell said how its process is."""
        for message in state.get("messages", ()):
            if message.get("kind") == "epochs":
                self._num_epochs = message["num"] or 0
            if message.get("kind") == "batches" and message["trains"]:
                self._num_batches = message["num_batches"]
                if self._first_step_s is None:
                    self._first_step_s = time.monotonic()

    def traced(self, task: str, data: bytes) -> None:
        """A task's process measured something."""
        self._windows.add(task, data)

    def finished(self, status: Status) -> None:
        """The run is over: whoever still measures needs the cluster for a moment."""
        if self._examination is not None:
            self._examination.wait(_END_S)

    def look(self, now_s: float, can_resume: bool) -> Drifted | None:
        """Do what it is time for; whether the run is to go on with another plan.

        Args:
            now_s: The time.
            can_resume: Whether there is a checkpoint, or it would begin anew.
        """
        if self._examination is not None:
            return self._weigh(self._examination, now_s) if self._examination.is_done else None
        taken = self._windows.take()
        if taken is None:
            return None
        try:
            window, _ = taken.measure(self._plan, self._offsets())
        except HeadraceError as error:
            self._note("drift", what="window", problem=error.problem)
            return None
        if self._state is None:
            expected = expected_of(self._plan)
            self._state = begin(expected, taken.first, now_s, self._rules)
        self._state, asked = look(self._state, window, now_s)
        if asked is not None and can_resume:
            self._say(f"{asked.why}: measuring the network and planning anew")
            self._examination = Replanner(self._plan, taken, asked, self._offsets(), self._rules)
            self._examination.begin(self._measure)
        return None

    def _weigh(self, done: Replanner, now_s: float) -> Drifted | None:
        assert self._state is not None
        self._examination = None
        left, resume_s = self._num_left(done.asked.window.last + 1), self._resume_s()
        self._state, decision = weigh(
            self._state, done.findings, done.asked.window, left, resume_s, now_s
        )
        is_taken = isinstance(decision, Replan)
        found = done.findings
        if found is not None:
            self._note(
                "drift",
                what="replan" if is_taken else "keep",
                why=decision.why,
                measured_s=done.asked.window.figures.iteration_time_s,
                current_s=found.current_s,
                replanned_s=found.replanned_s,
                num_moves=found.num_moves,
                num_left=left,
                resume_s=resume_s,
                nics={change.nic: [change.before, change.now] for change in found.nics},
            )
        if not is_taken:
            self._say(f"{decision.why}: {done.problem}" if done.problem else decision.why)
            return None
        assert done.plan is not None
        self._adopt(done.plan)
        return Drifted(decision.why)

    def _num_left(self, num_done: int) -> int:
        """Iterations until the end; as many as there were if nobody knows."""
        known = [self._num_epochs * self._num_batches, self._iterations or 0]
        totals = [total for total in known if total]
        return max(0, min(totals) - num_done) if totals else num_done

    def _resume_s(self) -> float:
        """What a stop and a start take, as long as the last start took."""
        first_s = self._begin_s if self._first_step_s is None else self._first_step_s
        return first_s - self._begin_s + STOP_S


class Replanner:
    """Finds out what has changed, and plans for it.

    Args:
        plan: What is run.
        taken: Records of the window in which it was seen.
        asked: What was seen.
        offsets_s: What to add to each machine's times.
        rules: When a network card has changed.

    Attributes:
        asked: What was seen.
        findings: What came of it; none if nothing did.
        plan: The plan that was found.
        problem: Why nothing came of it.
    """

    def __init__(
        self, plan: Plan, taken: Taken, asked: Examine, offsets_s: Mapping[str, float], rules: Rules
    ) -> None:
        self._plan, self._taken, self._offsets_s, self._rules = plan, taken, offsets_s, rules
        self.asked = asked
        self.findings: Findings | None = None
        self.plan: Plan | None = None
        self.problem = ""
        self._thread: threading.Thread | None = None

    @property
    def is_done(self) -> bool:
        """Whether all that can be known is."""
        return self._thread is not None and not self._thread.is_alive()

    def begin(self, measure: Measure) -> None:
        """Find it out, while the run goes on."""
        self._thread = threading.Thread(
            target=self._run, args=(measure,), name="examine drift", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Until all that can be known is, or that long."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, measure: Measure) -> None:
        try:
            self.conclude(measure())
        except HeadraceError as error:
            self.problem = error.problem
        except Exception as error:
            # A run does not fail because of what it could have done better.
            self.problem = f"{type(error).__name__}: {error}"

    def conclude(self, peaks: Mapping[str, Peak]) -> None:
        """Plan for what was measured.

        Raises:
            HeadraceError: Nothing can be planned for it.
        """
        plan = self._plan
        cluster, nics = with_peaks(plan.cluster, peaks, self._rules.threshold)
        # One machine alone may have changed.
        cluster = told_apart(cluster)
        # What samplers waited for a slower network is not their own time.
        _, measured = self._taken.measure(
            plan.model_copy(update={"cluster": cluster}), self._offsets_s
        )
        found = replan_measured(plan, cluster, filled_in(measured, plan))
        before, after = plan.placement, found.plan.placement
        num_moves = sum(
            one != other
            for name in ("samplers", "trainers", "servers")
            for one, other in zip(getattr(before, name), getattr(after, name), strict=True)
        )
        self.plan = found.plan
        self.findings = Findings(self.asked.why, found.before_s, found.time_s, num_moves, nics)
