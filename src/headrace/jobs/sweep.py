"""A sweep: its settings, and the state that follows from its journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from headrace.core.errors import SpecError
from headrace.core.validation_errors import first_problem
from headrace.core.values import CheckedFile
from headrace.jobs.journal import Event, TrialBegun, TrialEnded, TrialMade
from headrace.jobs.space import Setting, Space
from headrace.linux.atomic_write import atomic_write
from headrace.policies.trials import TrialLoad

SETTINGS_FILE = "sweep.json"
JOURNAL_FILE = "journal.jsonl"


class SweepSettings(CheckedFile):
    """Settings of a sweep, which a resumed sweep keeps; `sweep.json` in its folder.

    Attributes:
        space: The trials.
        command: Arguments of `headrace run` for every trial, without its settings.
        working_dir: Folder in which trials run.
        script: The training script.
        arguments: Its arguments.
        config: Settings that all trials share.
        graph: The partitioned graph.
        plan: Plan of each trial; None for runs on this machine.
        is_estimated: Whether memory and time of each trial are estimated before it starts.
        metric: Name of the figure that is compared; empty for the first one that trials report.
        mode: Whether larger or smaller values are better.
        num_parallel: Trials that may run side by side.
        memory_bytes: Memory of trials that run side by side; None without a limit.
        nic_share: Share of the busiest NIC that a trial uses, from the plan.
        order: Name of the order of trials.
        halving: Factor of successive halving; 0 for none.
        first_rung: Reports of a trial before it can be stopped.
        max_attempts: How often a trial is started before it counts as failed; a sweep that is
            resumed counts again.
    """

    version: Literal[1] = 1
    space: Space
    command: tuple[str, ...]
    working_dir: Path
    script: Path
    arguments: tuple[str, ...] = ()
    config: Mapping[str, Any] = Field(default_factory=dict)
    graph: Path
    plan: Path | None = None
    is_estimated: bool = True
    metric: str = ""
    mode: Literal["max", "min"] = "max"
    num_parallel: Annotated[int, Field(ge=1)] = 1
    memory_bytes: Annotated[float, Field(gt=0)] | None = None
    nic_share: Annotated[float, Field(ge=0)] = 0.0
    order: str = "shortest"
    halving: Annotated[int, Field(ge=0)] = 0
    first_rung: Annotated[int, Field(ge=1)] = 1
    max_attempts: Annotated[int, Field(ge=1)] = 4

    def save(self, folder: Path) -> None:
        """Write the file atomically."""
        atomic_write(folder / SETTINGS_FILE, self.to_text(indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the file; raises SpecError if it is missing or invalid."""
        path = folder / SETTINGS_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError:
            raise SpecError(
                f"{folder} is no sweep: it has no {SETTINGS_FILE}", "name a sweep that was started"
            ) from None
        except ValidationError as error:
            raise SpecError(
                f"{path}: {first_problem(error)}", "use the headrace version that wrote it"
            ) from None


class TrialState(StrEnum):
    """State of a trial."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether the trial has ended."""
        return self in (TrialState.DONE, TrialState.STOPPED, TrialState.FAILED)


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep.

    Attributes:
        number: From 0.
        settings: Its settings.
        load: What it needs.
        state: Its state; a trial that runs when the sweep is killed stays `running`.
        attempts: How often it was started.
        figures: Last reported figures; empty until it ends.
        problem: Why it failed.
        begun_s: When it was first started, in seconds since 1970.
        wall_s: Seconds from its first start to its end.
    """

    number: int
    settings: Mapping[str, Setting]
    load: TrialLoad
    state: TrialState = TrialState.WAITING
    attempts: int = 0
    figures: Mapping[str, bool | int | float | str] | None = None
    problem: str = ""
    begun_s: float = 0.0
    wall_s: float | None = None

    def value(self, metric: str) -> float | None:
        """The figure that is compared, if the trial reported it as a number."""
        found = (self.figures or {}).get(metric)
        return None if isinstance(found, str) or found is None else float(found)


def trials_of(events: Iterable[Event], nic_share: float = 0.0) -> dict[int, Trial]:
    """Trials of a sweep, by number."""
    found: dict[int, Trial] = {}
    for event in events:
        if isinstance(event, TrialMade):
            load = TrialLoad(
                event.number, event.memory_bytes or 0.0, event.time_s or 0.0, nic_share
            )
            found[event.number] = Trial(event.number, event.settings, load)
        elif isinstance(event, TrialBegun):
            trial = found[event.number]
            found[event.number] = replace(
                trial,
                state=TrialState.RUNNING,
                attempts=event.attempt,
                begun_s=trial.begun_s or event.at_s,
            )
        elif isinstance(event, TrialEnded):
            trial = found[event.number]
            found[event.number] = replace(
                trial,
                state=TrialState(event.state),
                figures=event.figures,
                problem=event.problem,
                wall_s=event.at_s - trial.begun_s,
            )
    return found


def first_metric(trials: Iterable[Trial]) -> str:
    """Name of the first number that a trial reported; empty if there is none."""
    for trial in trials:
        for name, value in (trial.figures or {}).items():
            if not isinstance(value, str):
                return name
    return ""


def ranked(trials: Iterable[Trial], metric: str, mode: str) -> list[Trial]:
    """Trials from best to worst; those without a value are last, by number."""
    sign = -1.0 if mode == "max" else 1.0

    def key(trial: Trial) -> tuple[bool, float, int]:
        value = trial.value(metric)
        missing = value is None or value != value
        return (missing, 0.0 if missing or value is None else sign * value, trial.number)

    return sorted(trials, key=key)
