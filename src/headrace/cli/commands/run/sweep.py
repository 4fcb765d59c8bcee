"""`headrace sweep`: many trials of one script, and a table of their results."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli import completions, console
from headrace.cli.commands.run.run import read_settings
from headrace.cli.errors import INTERRUPTED_EXIT_CODE
from headrace.cli.options import AsJson, Config, Runs, Settings
from headrace.cli.paths import check_script

if TYPE_CHECKING:
    from headrace.api.sweep import Event, SweepSettings

DEFAULT_TRIALS = 10
MEMORY_SHARE = 0.9
_PAUSE_S = 0.1

EXAMPLE = "Example: headrace sweep --local --graph parts --grid lr=0.1,0.01 train.py"


def sweep(
    script: Annotated[Path | None, typer.Argument(metavar="SCRIPT", hidden=True)] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- ARGS", hidden=True)] = None,
    graph: Annotated[Path | None, typer.Option(help="Partitioned graph.", metavar="DIR")] = None,
    plan: Annotated[Path | None, typer.Option(help="Plan of each trial.", metavar="FILE")] = None,
    stores: Annotated[
        str | None,
        typer.Option(help="Running stores.", metavar="NAME", autocompletion=completions.stores),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Only this machine, without Ray.")] = False,
    grid: Annotated[
        list[str] | None, typer.Option(help="NAME=V,V: try all values.", metavar="RANGE")
    ] = None,
    random: Annotated[
        list[str] | None,
        typer.Option(help="NAME=LOW:HIGH, =log:LOW:HIGH: draw.", metavar="RANGE"),
    ] = None,
    optuna: Annotated[
        list[str] | None,
        typer.Option(help="The same: let Optuna suggest.", metavar="RANGE"),
    ] = None,
    trials: Annotated[
        int, typer.Option(help="Of a grid all; default 10.", metavar="N", show_default=False)
    ] = DEFAULT_TRIALS,
    seed: Annotated[
        int, typer.Option(help="Seed of drawn values.", metavar="N", show_default=False)
    ] = 0,
    metric: Annotated[
        str, typer.Option(help="Figure to compare; default the first.", metavar="NAME")
    ] = "",
    mode: Annotated[
        str,
        typer.Option(
            help="max or min; default max.",
            metavar="MODE",
            show_default=False,
            autocompletion=completions.one_of("max", "min"),
        ),
    ] = "max",
    parallel: Annotated[int | None, typer.Option(help="Trials side by side.", metavar="N")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Default 90 % of what is free.", metavar="SIZE")
    ] = None,
    halving: Annotated[
        int, typer.Option(help="Stop trials not in the best 1/N.", metavar="N", show_default=False)
    ] = 0,
    first_rung: Annotated[
        int,
        typer.Option(
            help="Reports before the first rung.", metavar="N", show_default=False, hidden=True
        ),
    ] = 1,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate/--no-estimate", help="Estimate trials.", hidden=True, show_default=False
        ),
    ] = True,
    config: Config = None,
    settings: Settings = None,
    name: Annotated[str, typer.Option(help="Default the script's.", metavar="NAME")] = "",
    resume: Annotated[str, typer.Option(help="Continue a sweep.", metavar="NAME")] = "",
    runs: Runs = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="tensorboard[:DIR] or mlflow[:URI].",
            metavar="TOOL",
            autocompletion=completions.one_of(*completions.TRACKERS),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run many trials of SCRIPT with different settings; finished trials are never repeated."""
    from headrace.api.sweep import create_sweep, open_sweep, sweep_folder
    from headrace.core.errors import SpecError

    if resume:
        if script is not None or graph is not None or grid or random or optuna or name:
            raise SpecError(
                "--resume continues a sweep with its own script and space", "give only its name"
            )
        folder = sweep_folder(resume, runs)
        _run(folder, open_sweep(folder), as_json)
        return
    if script is None:
        raise SpecError("a sweep requires a script", "give a Python file that trains")
    check_script(script)
    words = ["--local"] if plan is None else ["--plan", str(plan.resolve())]
    if stores is not None:
        from headrace.api.stores import StoreSet, serving_state

        store_set = StoreSet.named(stores, runs)
        graph = graph or serving_state(store_set).graph
        words += ["--stores", str(store_set.path)]
    if graph is None:
        raise SpecError("a sweep requires a graph", "give --graph, a partitioned graph")
    if (plan is None) != local:
        raise SpecError("a sweep needs either --plan or --local", "give one of them")
    if min(trials, parallel or 1, first_rung) < 1 or halving < 0:
        raise SpecError("counts are at least 1", "give larger numbers")
    if mode not in ("max", "min"):
        raise SpecError(f"--mode {mode} is unknown", "use max or min")
    if halving == 1 or (halving and not metric):
        raise SpecError(
            "successive halving compares trials", "give --halving 2 or more, and --metric"
        )
    common = read_settings(config, settings or [])
    words += ["--graph", str(graph.resolve())]
    words += [word for tool in track or () for word in ("--track", tool)]
    words += [w for key, value in common.items() for w in ("--set", f"{key}={json.dumps(value)}")]
    words += [str(script.resolve()), *(["--", *arguments] if arguments else [])]
    made = _settings_of(
        _space(grid, random, optuna, trials, seed), words, plan, parallel, memory, script, graph
    )
    made = made.model_copy(
        update={
            "metric": metric,
            "mode": mode,
            "halving": halving,
            "first_rung": first_rung,
            "arguments": tuple(arguments or ()),
            "config": common,
            "is_estimated": estimate,
        }
    )
    folder = sweep_folder(name or script.stem, runs)
    create_sweep(folder, made)
    _run(folder, made, as_json)


def _space(
    grid: list[str] | None,
    random: list[str] | None,
    optuna: list[str] | None,
    num_trials: int,
    seed: int,
) -> Any:
    from headrace.api.sweep import Space
    from headrace.core.errors import SpecError

    kinds: dict[Literal["grid", "random", "optuna"], list[str] | None] = {
        "grid": grid,
        "random": random,
        "optuna": optuna,
    }
    given = [(kind, texts) for kind, texts in kinds.items() if texts]
    if len(given) != 1:
        raise SpecError(
            "a sweep has one kind of space", "give --grid, --random or --optuna, one or more times"
        )
    ((kind, texts),) = given
    return Space.of(kind, texts, num_trials, seed)


def _settings_of(
    space: Any,
    command: list[str],
    plan: Path | None,
    parallel: int | None,
    memory: str | None,
    script: Path,
    graph: Path,
) -> SweepSettings:
    from headrace.api.documents.load import load_plan
    from headrace.api.sweep import SweepSettings, free_memory_bytes, nic_share_of
    from headrace.core.units import parse_bytes

    if memory is not None:
        memory_bytes: float | None = parse_bytes(memory)
    else:
        # Machines of a cluster have memory of their own; the plan says whether a trial fits them.
        memory_bytes = MEMORY_SHARE * free_memory_bytes() if plan is None else None
    num_parallel = parallel or (max(1, (os.cpu_count() or 1) // 2) if plan is None else 1)
    return SweepSettings(
        space=space,
        command=tuple(command),
        working_dir=Path.cwd(),
        script=script.resolve(),
        graph=graph.resolve(),
        plan=None if plan is None else plan.resolve(),
        num_parallel=num_parallel,
        memory_bytes=memory_bytes,
        nic_share=0.0 if plan is None else nic_share_of(load_plan(plan)),
    )


def _run(folder: Path, settings: SweepSettings, as_json: bool) -> None:
    from headrace.api.sweep import draw_sweep, metric_of, ranked, run_sweep
    from headrace.cli.output.sweep_tables import row_of, show_trials
    from headrace.core.errors import MissingExtraError

    show = _Progress(settings.space.num_trials)
    try:
        found = run_sweep(folder, time.time, lambda: time.sleep(_PAUSE_S), os.environ, show.event)
    except KeyboardInterrupt:
        console.note(f"interrupted; continue with: headrace sweep --resume {folder.name}")
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    metric = metric_of(settings, found)
    best_first = ranked(found, metric, settings.mode)
    picture: Path | None = None
    try:
        picture = draw_sweep(folder, best_first, metric)
    except MissingExtraError:
        console.note("note: no picture without matplotlib: pip install 'headrace[report]'")
    if as_json:
        rows = [row_of(trial, metric) for trial in best_first]
        typer.echo(json.dumps({"sweep": str(folder), "metric": metric, "trials": rows}))
    else:
        show_trials(best_first, metric)
        typer.echo(f"{folder}" if picture is None else f"picture: {picture}")
    if all(trial.state == "failed" for trial in found):
        raise typer.Exit(1)


class _Progress:
    """One line per trial that starts or ends."""

    def __init__(self, num_trials: int) -> None:
        self._num_trials = num_trials
        self._num_over = 0
        self._settings: dict[int, Mapping[str, Any]] = {}

    def event(self, event: Event) -> None:
        """Print an event."""
        from headrace.api.sweep import TrialBegun, TrialMade
        from headrace.cli.output.sweep_tables import short
        from headrace.core.units import format_bytes

        if isinstance(event, TrialMade):
            self._settings[event.number] = event.settings
            if event.memory_bytes is not None:
                size = format_bytes(event.memory_bytes)
                console.note(f"{self._name(event.number)} needs {size} of memory")
            return
        name = self._name(event.number)
        if isinstance(event, TrialBegun):
            again = f" again, attempt {event.attempt}" if event.attempt > 1 else ""
            console.note(f"{name} starts{again}")
            return
        self._num_over += 1
        figures = " ".join(f"{key}={short(value)}" for key, value in event.figures.items())
        tail = event.problem or figures
        console.note(
            f"[{self._num_over}/{self._num_trials}] {name} {event.state}"
            + (f": {tail}" if tail else "")
        )

    def _name(self, number: int) -> str:
        words = " ".join(f"{key}={value}" for key, value in self._settings.get(number, {}).items())
        return f"trial {number}" + (f" ({words})" if words else "")
