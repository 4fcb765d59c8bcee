"""Sweeps: many trials of one script, each a run of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from headrace.api.trial_estimate import estimate_trial
from headrace.api.trial_run import Load, RunLauncher, reports_of
from headrace.core.errors import SpecError
from headrace.core.plan import Plan
from headrace.jobs.journal import Event, Journal, TrialBegun, TrialEnded, TrialMade, read_journal
from headrace.jobs.runner import SweepRunner
from headrace.jobs.space import Setting, Space
from headrace.jobs.sweep import (
    JOURNAL_FILE,
    SETTINGS_FILE,
    SweepSettings,
    Trial,
    TrialState,
    first_metric,
    ranked,
    trials_of,
)
from headrace.linux.memory import available_bytes
from headrace.observability.trials_picture import TrialCurve, draw_trials
from headrace.policies.trials import TRIAL_ORDERS
from headrace.prefork.client import ForkLease
from headrace.runtime.run_dir.run_dir import runs_folder

__all__ = [
    "TRIAL_ORDERS",
    "Event",
    "Space",
    "SweepSettings",
    "Trial",
    "TrialBegun",
    "TrialEnded",
    "TrialMade",
    "TrialState",
    "create_sweep",
    "draw_sweep",
    "free_memory_bytes",
    "metric_of",
    "nic_share_of",
    "open_sweep",
    "ranked",
    "read_trials",
    "run_sweep",
    "sweep_folder",
]


def sweep_folder(name: str, runs: Path | None = None) -> Path:
    """Folder of a sweep: `sweeps/NAME` in the folder of all runs."""
    if not name or Path(name).name != name or name.startswith("."):
        raise SpecError(f"{name!r} is no name of a sweep", "use letters, digits, - and _")
    return runs_folder(runs) / "sweeps" / name


def create_sweep(folder: Path, settings: SweepSettings) -> None:
    """Create the folder of a new sweep; raises SpecError if it exists."""
    if (folder / SETTINGS_FILE).exists():
        raise SpecError(
            f"the sweep {folder.name} exists",
            f"continue it with --resume {folder.name}, or give another --name",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settings.save(folder)
    except OSError as error:
        raise SpecError(
            f"{folder} cannot be written: {error.strerror}", "give another folder with --runs"
        ) from None


def open_sweep(folder: Path) -> SweepSettings:
    """Settings of an existing sweep; raises SpecError if there is none."""
    return SweepSettings.load(folder)


def read_trials(folder: Path) -> list[Trial]:
    """Trials of a sweep, by number; also while it runs."""
    settings = SweepSettings.load(folder)
    return list(trials_of(read_journal(folder / JOURNAL_FILE), settings.nic_share).values())


def nic_share_of(plan: Plan) -> float:
    """Share of an iteration in which the busiest NIC of a plan is busy."""
    return min(1.0, plan.terms.nic_s / plan.terms.time_s) if plan.terms.time_s else 0.0


def run_sweep(
    folder: Path,
    now_s: Callable[[], float],
    pause: Callable[[], None],
    environment: Mapping[str, str],
    on_event: Callable[[Event], None] = lambda event: None,
) -> list[Trial]:
    """Run the trials of a sweep that have not ended; returns all of them.

    If this process is interrupted or killed, its trials end too; called again, it resumes them from
    their checkpoints.

    Args:
        folder: Folder of the sweep.
        now_s: Reads the time, in seconds since 1970.
        pause: Waits a little.
        environment: Environment of the trials.
        on_event: Called with each event.

    Raises:
        SpecError: The sweep does not exist, is damaged, or is run by another process.
        InfeasibleError: A trial needs more memory than there is.
    """
    settings = SweepSettings.load(folder)
    with Journal(folder / JOURNAL_FILE) as journal, ExitStack() as leases:
        # Processes of all trials are forks of these servers.
        lease, _ = (leases.enter_context(closing(ForkLease(kind))) for kind in ("train", "graph"))
        launcher = RunLauncher(folder, settings, _load_of(settings, lease), environment)
        runner = SweepRunner(settings, journal, launcher, now_s, on_event)
        try:
            runner.run(pause)
        except BaseException:
            runner.interrupt(pause)
            raise
        return list(runner.trials.values())


def free_memory_bytes() -> float:
    """Memory that this machine has available; infinite if it does not say."""
    return float(available_bytes() or "inf")


def metric_of(settings: SweepSettings, trials: Sequence[Trial]) -> str:
    """Name of the compared figure: as given, else the first number that a trial reported."""
    return settings.metric or first_metric(trials)


def draw_sweep(folder: Path, best_first: Sequence[Trial], metric: str) -> Path:
    """Draw the trials of a sweep into its folder; returns the picture.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    curves = []
    for trial in best_first:
        reports = reports_of(folder / "trials" / f"{trial.number:04}")
        values = [each.get(metric) for each in reports]
        words = " ".join(f"{name}={value}" for name, value in trial.settings.items())
        curves.append(
            TrialCurve(
                f"{trial.number}: {words}",
                [float(v) for v in values if v is not None and not isinstance(v, str)],
                str(trial.state),
            )
        )
    path = folder / "sweep.png"
    draw_trials(curves, metric or "value", path, f"{folder.name}: {len(curves)} trials")
    return path


def _load_of(settings: SweepSettings, lease: ForkLease) -> Load:
    """Estimate trials by tracing a step of each; trials of a cluster are estimated by its plan."""

    def load(own: Mapping[str, Setting]) -> tuple[float | None, float | None]:
        if not settings.is_estimated:
            return None, None
        return estimate_trial(
            settings.script,
            settings.graph,
            settings.arguments,
            {**settings.config, **own},
            lease,
        )

    return load
