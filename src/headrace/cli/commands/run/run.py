"""`headrace run`: train with stores, samplers and trainers, on a cluster or on this machine."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from headrace.cli import completions, console
from headrace.cli.commands.run.dry_run import show_dry_run
from headrace.cli.errors import INTERRUPTED_EXIT_CODE
from headrace.cli.options import (
    Address,
    AsJson,
    Config,
    NoTls,
    Runs,
    Settings,
    TrafficOption,
    traffic_of,
)
from headrace.cli.paths import check_script
from headrace.core.errors import DOCS_URL

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from headrace.api.run import Message, RunConfig
    from headrace.core.plan import Plan

CHECKPOINT_EVERY = 100
MAX_RESTARTS = 3
LOADERS_PAGE = "howto/training.md#from-a-pyg-script-to-a-headrace-script"

EXAMPLE = (
    "Example: headrace run --plan plan.json --graph parts train.py -- --epochs 10\n\n"
    "Example: headrace run --local --graph parts train.py"
)


def run(
    script: Annotated[Path | None, typer.Argument(metavar="SCRIPT", hidden=True)] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- ARGS", hidden=True)] = None,
    plan: Annotated[Path | None, typer.Option(help="Plan to run on Ray.", metavar="FILE")] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Profile, plan, run and report.")] = False,
    cluster: Annotated[
        Path | None, typer.Option(help="With --auto; default from Ray.", metavar="FILE")
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(help="With --auto; default by cluster.", metavar="FILE"),
    ] = None,
    graph: Annotated[Path | None, typer.Option(help="Partitioned graph.", metavar="DIR")] = None,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show tasks, start nothing.")] = False,
    config: Config = None,
    settings: Settings = None,
    name: Annotated[str, typer.Option(help="Run name; default the job's.", metavar="NAME")] = "",
    runs: Runs = None,
    working_dir: Annotated[
        Path | None, typer.Option(help="Directory of your code.", metavar="DIR", hidden=True)
    ] = None,
    pip: Annotated[
        Path | None, typer.Option(help="Requirements of the script.", metavar="FILE")
    ] = None,
    cache: Annotated[
        str | None, typer.Option(help="Directory for shipped graphs.", metavar="DIR", hidden=True)
    ] = None,
    no_tls: NoTls = False,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(help="Steps; default 100, 0 is off.", metavar="N", min=0),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="Resume from the last checkpoint.", metavar="RUN", autocompletion=completions.runs
        ),
    ] = None,
    max_restarts: Annotated[
        int | None, typer.Option(help="Per lost task; default 3, 0 is off.", metavar="N", min=0)
    ] = None,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="Add machines when available.")
    ] = False,
    replan: Annotated[bool, typer.Option("--replan", help="Replan when machines change.")] = False,
    independent: Annotated[
        bool, typer.Option("--independent", help="One model per trainer.")
    ] = False,
    allow_nan: Annotated[
        bool, typer.Option("--allow-nan", help="Allow non-finite gradients.")
    ] = False,
    traffic: TrafficOption = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="tensorboard[:DIR] or mlflow[:URI].",
            metavar="TOOL",
            autocompletion=completions.one_of(*completions.TRACKERS),
        ),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Only this machine, without Ray.")] = False,
    parts: Annotated[
        Path | None, typer.Option(help="Alias of --graph.", metavar="DIR", hidden=True)
    ] = None,
    stores: Annotated[
        str | None,
        typer.Option(
            help="Running stores; or how many.",
            metavar="NAME|N",
            autocompletion=completions.stores,
        ),
    ] = None,
    samplers: Annotated[
        int | None, typer.Option(help="With --local: samplers.", metavar="S", min=0)
    ] = None,
    trainers: Annotated[
        int | None, typer.Option(help="With --local: trainers.", metavar="T", min=1, hidden=True)
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", hidden=True)] = False,
    as_json: AsJson = False,
) -> None:
    """Train with your PyG SCRIPT, which gets ARGS, on Ray or on this machine."""
    from headrace.core.errors import SpecError

    if graph is not None and parts is not None:
        raise SpecError("--parts is an alias of --graph", "give one of them")
    graph = graph or parts
    wanted_config = read_settings(config, settings or [])
    if resume is not None:
        changes = {
            "plan": plan,
            "graph": graph,
            "script": script,
            "arguments": None if script is None else tuple(arguments or ()),
            "address": address,
            "working_dir": working_dir,
            "pip": pip,
            "cache": cache,
            "checkpoint_every": checkpoint_every,
            "max_restarts": max_restarts,
            "elastic": elastic or None,
            "replan": replan or None,
            "independent": independent or None,
            "allow_nan": allow_nan or None,
            "traffic": traffic_of(traffic),
            "track": None if track is None else tuple(track),
        }
        fixed = {
            "--local": local,
            "--dry-run": dry_run,
            "--name": name,
            "--auto": auto,
            "--stores": stores is not None,
            "--samplers": samplers is not None,
            "--trainers": trainers is not None,
            "--tls": tls,
        }
        _refuse(fixed, "--resume continues a run with its options")
        _resume(resume, runs, changes, wanted_config, as_json)
        return
    if script is None:
        raise SpecError("a run requires a script", "give a Python file that trains")
    check_script(script)
    num_stores = int(stores) if stores is not None and stores.isdecimal() else None
    attached: dict[str, Any] = {}
    if stores is not None and num_stores is None:
        _refuse(
            {
                "--auto": auto,
                "--dry-run": dry_run,
                "--cache": cache,
                "--no-tls": no_tls,
                "--tls": tls,
            },
            "--stores uses stores that run already",
        )
        graph, attached = _running_stores(stores, graph, runs)
    common: dict[str, Any] = {
        "arguments": tuple(arguments or ()),
        "config": wanted_config,
        "name": name,
        "runs": runs,
        "checkpoint_every": CHECKPOINT_EVERY if checkpoint_every is None else checkpoint_every,
        "max_restarts": MAX_RESTARTS if max_restarts is None else max_restarts,
        "allow_nan": allow_nan,
        "track": tuple(track or ()),
    }
    if local and plan is None:
        from headrace.api.run import local_config

        planned = {
            "--dry-run": dry_run,
            "--auto": auto,
            "--address": address,
            "--working-dir": working_dir,
            "--pip": pip,
            "--cache": cache,
            "--elastic": elastic,
            "--replan": replan,
            "--independent": independent,
            "--traffic": traffic,
        }
        _refuse(planned, "--local runs without a plan")
        num_samplers = 1 if samplers is None else samplers
        settings_here = {"num_trainers": trainers or 1, "tls": tls, **common, **attached}
        _run(local_config(script, graph, num_stores, num_samplers, **settings_here), as_json)
        return
    if auto and (plan is not None or local or dry_run):
        raise SpecError(
            "--auto creates and runs its own plan", "omit --plan, --local and --dry-run"
        )
    if (plan is None or local) and not auto:
        raise SpecError(
            "a run needs either --plan or --local",
            "give one of them; --local uses only this machine",
        )
    if graph is None:
        raise SpecError("a run requires a graph", "give --graph, a partitioned graph")
    if not auto and (cluster or job):
        raise SpecError("a plan has its own cluster and job", "omit both, or use --auto")
    from headrace.api.documents.load import load_plan
    from headrace.api.run import RunConfig

    def run_of(plan: Plan) -> RunConfig:
        return RunConfig(
            plan=plan,
            graph=graph,
            script=script,
            address=address,
            working_dir=working_dir,
            pip=pip,
            cache=cache,
            elastic=elastic,
            replan=replan or auto,
            independent=independent,
            traffic=traffic_of(traffic) or "none",
            **{"tls": not no_tls, **common, **attached},
        )

    if plan is None:
        from headrace.cli.commands.run.auto import run_auto

        shown = partial(run_shown, as_json=as_json)
        run_auto(run_of, graph, cluster, job, address, as_json, shown)
    elif dry_run:
        show_dry_run(run_of(load_plan(plan)), as_json)
    else:
        _run(run_of(load_plan(plan)), as_json)


def _running_stores(
    name: str, graph: Path | None, runs: Path | None
) -> tuple[Path, dict[str, Any]]:
    """Graph and settings of a run that uses running stores."""
    from headrace.api.stores import StoreSet, serving_state

    store_set = StoreSet.named(name, runs)
    state = serving_state(store_set)
    return graph or state.graph, {"store_set": store_set.path, "tls": state.tls}


def _refuse(options: dict[str, Any], problem: str) -> None:
    from headrace.core.errors import SpecError

    given = [name for name, value in options.items() if value]
    if given:
        raise SpecError(problem, f"omit {', '.join(given)}")


def _resume(
    run_id: str, runs: Path | None, changes: dict[str, Any], config: dict[str, Any], as_json: bool
) -> None:
    from headrace.api.documents.load import load_plan
    from headrace.api.run import RunConfig, find_run, runs_folder

    given = {name: value for name, value in changes.items() if value is not None}
    if "plan" in given:
        given["plan"] = load_plan(given["plan"])
    folder = find_run(runs_folder(runs), run_id)
    _run(RunConfig.resumed(folder, config=config, **given), as_json)


def _run(wanted: RunConfig, as_json: bool) -> None:
    summary = run_shown(wanted, as_json)
    if as_json:
        typer.echo(json.dumps(summary))


def run_shown(wanted: RunConfig, as_json: bool) -> dict[str, Any]:
    """Run a plan or a script and show its progress; returns its metrics."""
    from headrace.api.run import run_job
    from headrace.core.errors import RunError

    with Display(as_json) as display:
        try:
            summary = run_job(wanted, display)
        except KeyboardInterrupt:
            display.log("interrupted; all tasks of the run have ended")
            raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
        except RunError as error:
            if as_json:
                problem = {"exit_code": error.exit_code, "problem": error.problem}
                typer.echo(json.dumps(problem | _figures(display)))
            raise
    if wanted.is_local and not display.progress.has_asked:
        console.note(
            "note: the script requested no batch from a headrace loader; headrace did not sample"
        )
        console.note(f"  see: {DOCS_URL}{LOADERS_PAGE}")
    return summary | {"exit_code": 0} | _figures(display)


def _figures(display: Display) -> dict[str, Any]:
    progress = display.progress
    return {
        "reports": list(progress.reports),
        "samples_per_s": progress.samples_per_s,
        "idle_share": progress.idle_share,
        "waits_for": progress.waits_for,
    }


def read_settings(path: Path | None, settings: list[str]) -> dict[str, Any]:
    """Config of the script: a YAML file, and single values that override it."""
    import yaml

    from headrace.core.errors import SpecError

    found: dict[str, Any] = {}
    try:
        read = yaml.safe_load(path.read_bytes()) if path is not None else {}
        if not isinstance(read, dict) or not all(isinstance(key, str) for key in read):
            raise SpecError(f"{path} has no settings", "write `key: value` on every line")
        found.update(read)
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not key or not equals:
                raise SpecError(f"{setting!r} is not a setting", "write --set key=value")
            found[key] = yaml.safe_load(value)
        json.dumps(found)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}", "give a YAML file") from None
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise SpecError(f"settings are not YAML: {reason}", "write key=value") from None
    except TypeError as error:
        raise SpecError(f"settings are not JSON: {error}", "use numbers and strings") from None
    return found


class Display:
    """Shows a run: on a terminal a progress bar, else a line per report.

    Args:
        as_json: Whether standard output is reserved for the summary.
    """

    def __init__(self, as_json: bool) -> None:
        from headrace.api.run import Progress

        self.progress = Progress()
        self._bars: Bars | None = None
        self._bar: TaskID | None = None
        self._as_json = as_json

    def __enter__(self) -> Self:
        if console.has_bars():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            text = TextColumn("{task.description}", markup=False)
            speed = TextColumn("{task.fields[speed]}", markup=False)
            columns = (text, BarColumn(), MofNCompleteColumn(), speed)
            self._bars = Progress(*columns, console=console.console(stderr=True), transient=True)
            self._bars.start()
            self._bar = self._bars.add_task("starting", total=None, speed="")
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def log(self, line: str) -> None:
        """Print a line of progress."""
        self._write(line)

    def show(self, line: str) -> None:
        """Print a line of the script's output."""
        if self._bars is None:
            typer.echo(line, err=self._as_json)
        else:
            self._write(line)

    def notify(self, message: Message) -> None:
        """Show metrics sent by a trainer."""
        from headrace.api.run import Report, line_of

        self.progress = progress = self.progress.after(message)
        line = line_of(progress.figures)
        if self._bars is not None and self._bar is not None:
            self._bars.update(
                self._bar,
                description=line or "training",
                completed=progress.batch,
                total=progress.num_batches or None,
                speed=progress.speed,
            )
        if isinstance(message, Report):
            self._write("  ".join(each for each in (line, progress.speed) if each))

    def _write(self, line: str) -> None:
        if self._bars is not None:
            self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            console.note(line)
