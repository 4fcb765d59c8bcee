"""The runner of a sweep, with trials that are killed and fail as told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import InfeasibleError
from headrace.jobs.journal import Journal, TrialEnded, read_journal
from headrace.jobs.runner import Figures, Outcome, SweepRunner
from headrace.jobs.space import Setting, Space
from headrace.jobs.sweep import SweepSettings, Trial, TrialState, ranked, trials_of


class FakeRun:
    """Reports once per poll."""

    def __init__(self, launcher: FakeLauncher, trial: Trial, num_polls: int) -> None:
        self._launcher, self._trial, self._left = launcher, trial, num_polls
        self._num = 0
        self._is_stopped = False

    def poll(self) -> Outcome | None:
        number = self._trial.number
        if self._is_stopped:
            return self._ended(Outcome("lost", {"score": -1.0}, "interrupted"))
        if self._num == self._left:
            fate = self._launcher.fates.get((number, self._trial.attempts + 1), "done")
            if fate == "done":
                self._launcher.finished.append(number)
                return self._ended(Outcome("done", {"score": float(number)}))
            if fate == "failed":
                return self._ended(Outcome("failed", problem="a bug"))
            return self._ended(Outcome("lost", problem="killed"))
        self._num += 1
        return None

    def reports(self) -> Sequence[Figures]:
        return [{"score": float(self._trial.number)} for _ in range(self._num)]

    def stop(self) -> None:
        self._is_stopped = True

    def _ended(self, outcome: Outcome) -> Outcome:
        self._launcher.running.discard(self._trial.number)
        return outcome


class FakeLauncher:
    def __init__(self, fates: Mapping[tuple[int, int], str] | None = None, polls: int = 3) -> None:
        self.fates = dict(fates or {})
        self.polls = polls
        self.running: set[int] = set()
        self.most = 0
        self.started: list[int] = []
        self.finished: list[int] = []
        self.memory_bytes = 1.0

    def start(self, trial: Trial) -> FakeRun:
        assert trial.number not in self.running
        self.running.add(trial.number)
        self.started.append(trial.number)
        self.most = max(self.most, len(self.running))
        return FakeRun(self, trial, self.polls)

    def load(self, settings: Mapping[str, Setting]) -> tuple[float | None, float | None]:
        return self.memory_bytes, -float(settings["x"])


def sweep_of(num: int = 6, **changes: Any) -> SweepSettings:
    values = ",".join(map(str, range(num)))
    fields: dict[str, Any] = {
        "space": Space.of("grid", [f"x={values}"], 0, 0),
        "command": ("train.py",),
        "working_dir": Path(),
        "script": Path("train.py"),
        "graph": Path("parts"),
        "metric": "score",
        "num_parallel": 2,
    }
    return SweepSettings(**(fields | changes))


def run(folder: Path, settings: SweepSettings, launcher: FakeLauncher) -> dict[int, Trial]:
    with Journal(folder / "journal.jsonl") as journal:
        runner = SweepRunner(settings, journal, launcher, lambda: 0.0)
        for _ in range(10_000):
            if runner.step():
                return runner.trials
    raise AssertionError("the sweep does not end")


def test_all_trials_run_side_by_side_shortest_first(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    trials = run(tmp_path, sweep_of(), launcher)
    assert launcher.started == [5, 4, 3, 2, 1, 0]
    assert launcher.most == 2
    assert {trial.state for trial in trials.values()} == {TrialState.DONE}
    assert [trial.number for trial in ranked(trials.values(), "score", "max")] == [5, 4, 3, 2, 1, 0]


def test_memory_limits_how_many_run(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    run(tmp_path, sweep_of(memory_bytes=1.5), launcher)
    assert launcher.most == 1


def test_a_trial_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    launcher.memory_bytes = 3e9
    with pytest.raises(InfeasibleError, match="x=0 needs 3 GB of memory, the sweep may use 2 GB"):
        run(tmp_path, sweep_of(memory_bytes=2e9), launcher)


def test_a_killed_trial_is_started_again_and_a_failed_one_is_not(tmp_path: Path) -> None:
    launcher = FakeLauncher({(1, 1): "lost", (1, 2): "lost", (2, 1): "failed"})
    trials = run(tmp_path, sweep_of(), launcher)
    assert (trials[1].state, trials[1].attempts) == (TrialState.DONE, 3)
    assert (trials[2].state, trials[2].problem) == (TrialState.FAILED, "a bug")
    assert launcher.started.count(2) == 1


def test_a_trial_that_is_killed_again_and_again_fails(tmp_path: Path) -> None:
    launcher = FakeLauncher({(0, n): "lost" for n in range(1, 9)})
    trials = run(tmp_path, sweep_of(max_attempts=3), launcher)
    assert trials[0].state is TrialState.FAILED
    assert launcher.started.count(0) == 3


def test_a_trial_that_ended_with_its_sweep_was_not_lost_by_itself(tmp_path: Path) -> None:
    settings = sweep_of(num=1, max_attempts=2)
    for _ in range(3):
        with Journal(tmp_path / "journal.jsonl") as journal:
            SweepRunner(settings, journal, FakeLauncher(), lambda: 0.0).step()
    trials = run(tmp_path, settings, FakeLauncher({(0, 4): "lost"}))
    assert (trials[0].state, trials[0].attempts) == (TrialState.DONE, 5)


def test_halving_stops_the_worse_trials(tmp_path: Path) -> None:
    launcher = FakeLauncher(polls=9)
    trials = run(tmp_path, sweep_of(num=9, halving=3, num_parallel=9), launcher)
    states = [trials[number].state for number in range(9)]
    assert states[8] is TrialState.DONE
    assert states.count(TrialState.STOPPED) >= 6
    assert all(trial.figures is not None for trial in trials.values())


@pytest.mark.parametrize("seed", range(20))
def test_a_sweep_killed_anywhere_finishes_every_trial_once(tmp_path: Path, seed: int) -> None:
    """A kill loses the processes, and what was not in the journal."""
    rng = np.random.default_rng(seed)
    path = tmp_path / "journal.jsonl"
    finished: list[int] = []
    settings = sweep_of()
    for _ in range(100):
        launcher = FakeLauncher()
        num_steps = int(rng.integers(1, 8))
        with Journal(path) as journal:
            runner = SweepRunner(settings, journal, launcher, lambda: 0.0)
            is_over = any(runner.step() for _ in range(num_steps))
        ended = [e.number for e in read_journal(path) if isinstance(e, TrialEnded)]
        finished = ended
        if is_over:
            break
        path.write_bytes(path.read_bytes()[: len(path.read_bytes()) - int(rng.integers(0, 30))])
    assert sorted(finished) == list(range(6))
    assert all(trial.state is TrialState.DONE for trial in trials_of(read_journal(path)).values())
