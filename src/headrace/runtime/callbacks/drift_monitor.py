"""Detects drift of a run from its plan, and replans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

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
    evaluate,
    weigh,
)
from headrace.policies.drift.figures import Peak, with_peaks
from headrace.policies.recovery.events import Drifted
from headrace.profiling.by_machine import filled_in, told_apart
from headrace.runtime.callbacks.base import RunCallback
from headrace.runtime.callbacks.drift_windows import Span, Windows, expected_of
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.trainer_messages import BatchProgress, NumEpochs
from headrace.runtime.run_dir.status import Status

STOP_S = 5.0
"""Estimated time to stop all tasks and fetch a checkpoint."""

_END_S = 10.0

Measure = Callable[[], Mapping[str, Peak]]
"""Measures the peak rate of each machine's NIC; takes seconds."""


class DriftMonitor(RunCallback):
    """Compares one attempt of a run with its plan; measures and replans in a thread.

    Args:
        offsets: Returns the clock offset of each machine.
        adopt: Receives the plan to resume with.
        log_event: Writes an event with its fields.
        iterations: Number of iterations of the run, if limited.
        rules: Thresholds of the drift policy.
    """

    def __init__(
        self,
        plan: Plan,
        measure: Measure,
        offsets: Callable[[], Mapping[str, float]],
        adopt: Callable[[Plan], None],
        log: Callable[[str], None],
        log_event: Callable[..., None],
        iterations: int | None = None,
        rules: Rules | None = None,
        windows: Windows | None = None,
    ) -> None:
        self._plan, self._measure, self._offsets = plan, measure, offsets
        self._adopt, self._log, self._log_event = adopt, log, log_event
        self._iterations, self._rules = iterations, rules or Rules()
        self._windows = windows or Windows(plan)
        self._state: Drift | None = None
        self._examination: Replanner | None = None
        self._begin_s = time.monotonic()
        self._first_step_s: float | None = None
        self._num_epochs = self._num_batches = 0

    def polled(self, task: str, state: ActorState) -> None:
        """Update the progress from a task's state."""
        for message in state.messages:
            if isinstance(message, NumEpochs):
                self._num_epochs = message.num or 0
            if isinstance(message, BatchProgress) and message.trains:
                self._num_batches = message.num_batches
                if self._first_step_s is None:
                    self._first_step_s = time.monotonic()

    def traced(self, task: str, data: bytes) -> None:
        """Add trace records of a task."""
        self._windows.add(task, data)

    def finished(self, status: Status) -> None:
        """Wait for a pending measurement, which uses the cluster."""
        if self._examination is not None:
            self._examination.wait(_END_S)

    def poll(self, now_s: float, can_resume: bool) -> Drifted | None:
        """Run due checks; return an event if the run should resume with a new plan."""
        if self._examination is not None:
            return self._weigh(self._examination, now_s) if self._examination.is_done else None
        span = self._windows.pop()
        if span is None:
            return None
        try:
            window, _ = span.measure(self._plan, self._offsets())
        except HeadraceError as error:
            self._log_event("drift", what="window", problem=error.problem)
            return None
        if self._state is None:
            expected = expected_of(self._plan)
            self._state = begin(expected, span.first, now_s, self._rules)
        self._state, asked = evaluate(self._state, window, now_s)
        if asked is not None and can_resume:
            self._log(f"{asked.why}: measuring the network and replanning")
            self._examination = Replanner(self._plan, span, asked, self._offsets(), self._rules)
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
            self._log_event(
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
            self._log(f"{decision.why}: {done.problem}" if done.problem else decision.why)
            return None
        assert done.plan is not None
        self._adopt(done.plan)
        return Drifted(decision.why)

    def _num_left(self, num_done: int) -> int:
        """Remaining iterations; as many as are done if unknown."""
        known = [self._num_epochs * self._num_batches, self._iterations or 0]
        totals = [total for total in known if total]
        return max(0, min(totals) - num_done) if totals else num_done

    def _resume_s(self) -> float:
        """Estimated time of a stop and a start, from the last start."""
        first_s = self._begin_s if self._first_step_s is None else self._first_step_s
        return first_s - self._begin_s + STOP_S


class Replanner:
    """Measures what has changed, and replans.

    Attributes:
        asked: The detected drift.
        findings: The result; None if replanning failed.
        plan: The new plan.
        problem: Why replanning failed.
    """

    def __init__(
        self, plan: Plan, span: Span, asked: Examine, offsets_s: Mapping[str, float], rules: Rules
    ) -> None:
        self._plan, self._span, self._offsets_s, self._rules = plan, span, offsets_s, rules
        self.asked = asked
        self.findings: Findings | None = None
        self.plan: Plan | None = None
        self.problem = ""
        self._thread: threading.Thread | None = None

    @property
    def is_done(self) -> bool:
        """Whether the thread has finished."""
        return self._thread is not None and not self._thread.is_alive()

    def begin(self, measure: Measure) -> None:
        """Measure and replan in a thread."""
        self._thread = threading.Thread(
            target=self._run, args=(measure,), name="examine drift", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for the thread, up to `timeout_s`."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, measure: Measure) -> None:
        try:
            self.conclude(measure())
        except HeadraceError as error:
            self.problem = error.problem
        except Exception as error:
            # A failed optimization must not fail the run.
            self.problem = f"{type(error).__name__}: {error}"

    def conclude(self, peaks: Mapping[str, Peak]) -> None:
        """Replan for the measured peak rates; raises HeadraceError if there is no plan."""
        plan = self._plan
        cluster, nics = with_peaks(plan.cluster, peaks, self._rules.threshold)
        # Machines of one kind may differ now.
        cluster = told_apart(cluster)
        # Do not attribute waiting for a slower network to the samplers.
        _, measured = self._span.measure(
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
