"""Runs the trials of a sweep: starts, watches, stops and restarts them, and keeps the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from headrace.core.errors import InfeasibleError
from headrace.core.units import format_bytes
from headrace.jobs.journal import Event, Journal, TrialBegun, TrialEnded, TrialMade
from headrace.jobs.space import Setting, suggester
from headrace.jobs.sweep import SweepSettings, Trial, TrialState, first_metric, trials_of
from headrace.policies.trials import TRIAL_ORDERS, Queue, Room, TrialLoad, fits_alone
from headrace.policies.trials.halving import Halving

Figures = Mapping[str, bool | int | float | str]


@dataclass(frozen=True)
class Outcome:
    """How a trial's run ended.

    Attributes:
        state: `done`; `failed`, which another attempt would repeat; or `lost`, e.g. killed.
        figures: Last reported figures.
        problem: What happened, if it is not done.
    """

    state: Literal["done", "failed", "lost"]
    figures: Figures = field(default_factory=dict)
    problem: str = ""


class RunningTrial(Protocol):
    """A trial that runs."""

    def poll(self) -> Outcome | None:
        """How it ended; None while it runs."""
        ...

    def reports(self) -> Sequence[Figures]:
        """What it has reported so far."""
        ...

    def stop(self) -> None:
        """Request its end; `poll` tells when it has ended."""
        ...


class Launcher(Protocol):
    """Starts trials."""

    def start(self, trial: Trial) -> RunningTrial:
        """Start a trial, or resume one that an earlier process started."""
        ...

    def load(self, settings: Mapping[str, Setting]) -> tuple[float | None, float | None]:
        """Estimated peak memory in bytes, and predicted time up to a common factor."""
        ...


class SweepRunner:
    """Runs a sweep to its end.

    Args:
        settings: Settings of the sweep.
        journal: Its journal.
        launcher: Starts trials.
        now_s: Reads the time, in seconds since 1970.
        on_event: Called with each event after it is in the journal.
    """

    def __init__(
        self,
        settings: SweepSettings,
        journal: Journal,
        launcher: Launcher,
        now_s: Callable[[], float],
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._settings, self._journal, self._launcher = settings, journal, launcher
        self._now_s, self._on_event = now_s, on_event
        self._order = TRIAL_ORDERS[settings.order]
        memory = float("inf") if settings.memory_bytes is None else settings.memory_bytes
        self._room = Room(settings.num_parallel, memory)
        self._running: dict[int, RunningTrial] = {}
        self._num_begun: Counter[int] = Counter()
        self._stopping: set[int] = set()
        self._values: dict[int, list[float]] = {}
        trials = self.trials
        self._suggester = suggester(settings.space, {n: t.settings for n, t in trials.items()})
        for trial in trials.values():
            if trial.state.is_over:
                self._suggester.tell(trial.number, self._value_of(trial))

    @property
    def trials(self) -> dict[int, Trial]:
        """All trials so far, by number."""
        return trials_of(self._journal.events, self._settings.nic_share)

    @property
    def metric(self) -> str:
        """Name of the compared figure: as given, else the first that a trial reported."""
        return self._settings.metric or first_metric(self.trials.values())

    def run(self, pause: Callable[[], None]) -> None:
        """Run all trials that have not ended.

        Args:
            pause: Called between two looks at the running trials.

        Raises:
            InfeasibleError: A trial needs more memory than there is.
        """
        while not self.step():
            pause()

    def step(self) -> bool:
        """Do what can be done now; returns whether all trials have ended."""
        self._make()
        self._poll()
        self._halve()
        trials = self.trials
        self._start(trials)
        made_all = len(trials) == self._settings.space.num_trials
        return made_all and not self._running and all(t.state.is_over for t in trials.values())

    def interrupt(self, pause: Callable[[], None]) -> None:
        """Request the end of all running trials and wait; they can be resumed."""
        for running in self._running.values():
            running.stop()
        while any(running.poll() is None for running in self._running.values()):
            pause()

    def _make(self) -> None:
        trials = self.trials
        is_adaptive = self._settings.space.kind == "optuna"
        for number in range(len(trials), self._settings.space.num_trials):
            if is_adaptive:
                num_open = sum(not t.state.is_over for t in self.trials.values())
                if num_open >= self._settings.num_parallel:
                    return
            settings = self._suggester.suggest(number)
            if settings is None:
                return
            memory_bytes, time_s = self._launcher.load(settings)
            load = TrialLoad(number, memory_bytes or 0.0, time_s or 0.0)
            if not fits_alone(load, self._room):
                words = " ".join(f"{name}={value}" for name, value in settings.items())
                raise InfeasibleError(
                    f"a trial with {words} needs {format_bytes(load.memory_bytes)} of memory, the "
                    f"sweep may use {format_bytes(self._room.memory_bytes)}",
                    "give more with --memory, use a smaller batch, or leave this setting out",
                )
            self._log(
                TrialMade(
                    number=number, settings=settings, memory_bytes=memory_bytes, time_s=time_s
                )
            )

    def _start(self, trials: Mapping[int, Trial]) -> None:
        for trial in trials.values():
            # An earlier process started it.
            if trial.state is TrialState.RUNNING and trial.number not in self._running:
                self._begin(trial)
        trials = self.trials
        queue = Queue(
            [t.load for t in trials.values() if t.state is TrialState.WAITING],
            [trials[number].load for number in self._running],
            sum(t.attempts > 0 for t in trials.values()),
        )
        for load in self._order(queue, self._room):
            self._begin(trials[load.number])

    def _begin(self, trial: Trial) -> None:
        attempt = trial.attempts + 1
        # A trial that ended with its sweep was not lost by itself.
        self._num_begun[trial.number] += 1
        self._log(TrialBegun(number=trial.number, attempt=attempt, at_s=self._now_s()))
        self._running[trial.number] = self._launcher.start(trial)

    def _poll(self) -> None:
        for number, running in list(self._running.items()):
            outcome = running.poll()
            self._read(number, running)
            if outcome is None:
                continue
            del self._running[number]
            trial = self.trials[number]
            if number in self._stopping and outcome.state != "done":
                self._end(trial, "stopped", outcome)
            elif outcome.state == "lost" and self._num_begun[number] < self._settings.max_attempts:
                self._begin(trial)
            else:
                self._end(trial, "done" if outcome.state == "done" else "failed", outcome)

    def _end(
        self, trial: Trial, state: Literal["done", "stopped", "failed"], outcome: Outcome
    ) -> None:
        self._log(
            TrialEnded(
                number=trial.number,
                state=state,
                figures=outcome.figures,
                problem=outcome.problem if state == "failed" else "",
                at_s=self._now_s(),
            )
        )
        self._suggester.tell(trial.number, self._value_of(self.trials[trial.number]))

    def _read(self, number: int, running: RunningTrial) -> None:
        """Values of the metric that a trial has reported, larger ones being better."""
        if not self._settings.halving:
            return
        reports = running.reports()
        metric = self._settings.metric
        self._values[number] = [
            self._sign * float(figures[metric])
            for figures in reports
            if metric in figures and not isinstance(figures[metric], str)
        ]

    def _halve(self) -> None:
        if not self._settings.halving:
            return
        rule = Halving(self._settings.halving, self._settings.first_rung)
        for number, running in self._running.items():
            if number in self._stopping or not self._values.get(number):
                continue
            if rule.stops(number, self._values) is not None:
                self._stopping.add(number)
                running.stop()

    @property
    def _sign(self) -> float:
        return 1.0 if self._settings.mode == "max" else -1.0

    def _value_of(self, trial: Trial) -> float | None:
        value = trial.value(self.metric)
        return None if value is None else self._sign * value

    def _log(self, event: Event) -> None:
        self._journal.append(event)
        self._on_event(event)
