"""Trials of a sweep as processes of `headrace run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.jobs.runner import Figures, Outcome
from headrace.jobs.space import Setting
from headrace.jobs.sweep import SweepSettings, Trial
from headrace.prefork.client import KEEP_VARIABLE
from headrace.runtime.run_dir.run_dir import Driver, RunDirectory, find_run, list_runs
from headrace.runtime.run_dir.status import RunState

Load = Callable[[Mapping[str, Setting]], tuple[float | None, float | None]]
"""Estimated peak memory of a trial in bytes, and its predicted time up to a common factor."""

_KEEP_S = "5"
"""Fork servers outlive the trials of a killed sweep by so many seconds."""


class RunLauncher:
    """Starts each trial as `headrace run`, with a folder of runs of its own.

    Args:
        folder: Folder of the sweep.
        settings: Its settings.
        load: Estimates what a trial needs.
        environment: Environment of the trials.
    """

    def __init__(
        self, folder: Path, settings: SweepSettings, load: Load, environment: Mapping[str, str]
    ) -> None:
        self._folder, self._settings, self._load = folder, settings, load
        self._environment = environment

    def load(self, settings: Mapping[str, Setting]) -> tuple[float | None, float | None]:
        """Estimated peak memory and predicted time."""
        return self._load(settings)

    def start(self, trial: Trial) -> _TrialRun:
        """Start a trial, or resume its run."""
        folder = self._folder / "trials" / f"{trial.number:04}"
        return _TrialRun(folder, trial, self._settings, self._environment)


class _TrialRun:
    """The run of a trial, in a process of its own."""

    def __init__(
        self, folder: Path, trial: Trial, settings: SweepSettings, environment: Mapping[str, str]
    ) -> None:
        self._folder, self._trial, self._settings = folder, trial, settings
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        folder.mkdir(parents=True, exist_ok=True)
        self._begin()

    def poll(self) -> Outcome | None:
        """How the run ended; None while it runs."""
        if self._process is None:
            self._begin()
            if self._process is None:
                return self._outcome_of_earlier()
        code = self._process.poll()
        if code is None:
            return None
        if code == 0:
            return Outcome("done", self._figures())
        problem = self._problem() or f"exit code {code}"
        is_lost = code < 0 or code > 128
        return Outcome("lost" if is_lost else "failed", self._figures(), problem)

    def reports(self) -> list[Figures]:
        """What the script has reported."""
        return reports_of(self._folder)

    def stop(self) -> None:
        """Interrupt the run."""
        self._is_stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def _begin(self) -> None:
        """Start or resume the run, unless an earlier one is done or has not ended yet."""
        earlier = self._run()
        words = [sys.executable, "-m", "headrace", "run", "--runs", str(self._folder)]
        if earlier is None:
            sets = [f"{name}={json.dumps(value)}" for name, value in self._trial.settings.items()]
            options = [word for each in sets for word in ("--set", each)]
            name = f"trial-{self._trial.number:04}"
            words += ["--name", name, *options, *self._settings.command]
        else:
            status = earlier.read_status()
            driver = earlier.driver(status)
            if status.state is RunState.DONE or driver in (Driver.ALIVE, Driver.SILENT):
                return
            words += ["--resume", earlier.run_id]
        guard = [sys.executable, "-m", "headrace.linux.parent_death", str(os.getpid())]
        with (self._folder / "output.log").open("ab") as log:
            self._process = subprocess.Popen(
                guard + words,
                cwd=self._settings.working_dir,
                env={KEEP_VARIABLE: _KEEP_S, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _outcome_of_earlier(self) -> Outcome | None:
        earlier = self._run()
        if earlier is not None and earlier.read_status().state is RunState.DONE:
            return Outcome("done", self._figures())
        if self._is_stopped:
            return Outcome("lost")
        return None

    def _run(self) -> RunDirectory | None:
        return find_run(self._folder) if list_runs(self._folder) else None

    def _figures(self) -> Figures:
        found: dict[str, bool | int | float | str] = {}
        for figures in self.reports():
            found.update(figures)
        return found

    def _problem(self) -> str:
        found = self._run()
        if found is not None:
            with suppress(HeadraceError):
                error = found.read_status().error
                if error is not None:
                    return error.problem
        with suppress(OSError):
            lines = (self._folder / "output.log").read_text(errors="replace").splitlines()
            own = [line for line in lines if line.startswith("error: ")]
            return (own or lines or [""])[-1].removeprefix("error: ")
        return ""


def reports_of(folder: Path) -> list[Figures]:
    """What the script of a trial has reported, in order; none before its run starts."""
    if not list_runs(folder):
        return []
    lines = []
    with suppress(OSError):
        lines = find_run(folder).reports.read_text(encoding="utf-8").splitlines()
    kept: list[dict[str, Any]] = []
    for line in lines:
        with suppress(ValueError):
            report = json.loads(line)
            # A resumed run repeats what it reported after its checkpoint.
            while kept and kept[-1]["iterations"] >= report["iterations"]:
                kept.pop()
            kept.append(report)
    return [report["figures"] for report in kept]
