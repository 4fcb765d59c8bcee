"""`headrace profile`: run a job for some iterations and measure its times and volumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import console
from headrace.cli.options import Address, AsJson, Config, NoTls, Runs, Settings
from headrace.cli.paths import check_can_write, check_script

if TYPE_CHECKING:
    from headrace.api.profile import Outlook
    from headrace.core.plan import Plan
    from headrace.core.profile import Profile

EXAMPLE = (
    "Example: headrace profile --plan plan.json --graph parts train.py -o profile.yaml\n\n"
    "Example: headrace profile --plan plan.json --trace trace.npz -o profile.yaml"
)


def profile(
    plan: Annotated[Path, typer.Option(help="Plan to run, or of the trace.", metavar="FILE")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Profile to write.", metavar="FILE")
    ],
    script: Annotated[
        Path | None, typer.Argument(help="Training script.", metavar="SCRIPT")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Script arguments, after --.", metavar="-- ARGS"),
    ] = None,
    graph: Annotated[Path | None, typer.Option(help="Partitioned graph.", metavar="DIR")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Use the trace of an ended run.", metavar="FILE")
    ] = None,
    iterations: Annotated[int, typer.Option(help="Iterations to run.", metavar="N", min=2)] = 50,
    skip: Annotated[
        int | None,
        typer.Option(help="Iterations to skip; default a fifth.", metavar="N", min=0),
    ] = None,
    sizes: Annotated[
        str,
        typer.Option(help="Batch sizes to measure, times the plan's.", metavar="FACTORS"),
    ] = "1,0.5,0.25",
    address: Address = None,
    config: Config = None,
    settings: Settings = None,
    runs: Runs = None,
    no_tls: NoTls = False,
    as_json: AsJson = False,
) -> None:
    """Measure task times and volumes of a job, with confidence intervals."""
    from headrace.api.documents.load import load_plan
    from headrace.api.profile import compare, load_trace, profile_trace, save_profile, with_steps
    from headrace.cli.commands.run.run import read_settings
    from headrace.core.errors import SpecError
    from headrace.core.job import JobKind

    check_can_write(output)
    known = load_plan(plan)
    is_sampled = known.job.kind is JobKind.SAMPLED
    if (trace is None) == (script is None):
        raise SpecError("exactly one of SCRIPT and --trace is required", "give SCRIPT or --trace")
    if trace is None:
        assert script is not None
        if graph is None:
            raise SpecError("a run requires a graph", "give --graph, a partitioned graph")
        check_script(script)
        wanted = {
            "plan": known,
            "graph": graph,
            "script": script,
            "arguments": tuple(arguments or ()),
            "address": address,
            "runs": runs,
            "tls": not no_tls,
            "iterations": iterations,
            "sizes": _read_sizes(sizes) if is_sampled else (),
        }
        trace = _run(wanted, config, settings or [], as_json)
    seen = load_trace(trace)
    found = profile_trace(seen, known, skip)
    outlook = compare(seen, known, found, skip=skip)
    if script is not None and graph is not None and is_sampled:
        given = read_settings(config, settings or [])
        try:
            found = with_steps(found, seen, known, script, graph, tuple(arguments or ()), given)
        except SpecError as error:
            console.note(f"note: the profile has no counts of steps: {error.problem}")
    save_profile(found, output)
    if as_json:
        written = {"output": str(output), "trace": str(trace), "skipped": found.skipped}
        typer.echo(json.dumps(outlook.summary() | written))
        return
    _show(found, known, outlook)
    typer.echo(f"The profile is in {output}, the trace in {trace}.")


def _read_sizes(text: str) -> tuple[float, ...]:
    from headrace.core.errors import SpecError

    try:
        sizes = tuple(float(each) for each in text.split(","))
    except ValueError:
        sizes = (0.0,)
    if sizes[0] != 1 or not all(0 < size < 100 for size in sizes):
        raise SpecError(
            f"--sizes {text} are not batch sizes",
            "give factors of the plan's size separated by commas, 1 first, such as 1,0.5,0.25",
        )
    return () if len(sizes) == 1 else sizes


def _run(wanted: dict[str, Any], config: Path | None, settings: list[str], as_json: bool) -> Path:
    """Run the job; returns the path of its trace."""
    from headrace.api.run import RunConfig
    from headrace.cli.commands.run.run import read_settings, run_shown

    asked = RunConfig(**wanted, config=read_settings(config, settings))
    return Path(run_shown(asked, as_json)["folder"]) / "trace.npz"


def _show(profile: Profile, plan: Plan, outlook: Outlook) -> None:
    from rich.table import Table

    from headrace.core.units import format_bytes, format_seconds

    table = Table("task", "machine class", "mean", "95 %", "samples", box=None)
    for role, kinds in profile.task_times.items():
        for kind, time in kinds.items():
            error = "" if time.relative_error is None else f"±{time.relative_error:.1%}"
            samples = str(time.num_samples or "")
            table.add_row(role.value, kind, format_seconds(time.mean), error, samples)
    console.console().print(table)
    if profile.full_graph is not None:
        _show_full_graph(profile, outlook)
        return
    matrix = profile.store_traffic.bytes_per_seed_matrix(plan.cluster.num_machines)
    per_seed = float(matrix.sum(axis=1).mean())
    typer.echo(
        f"Stores send {per_seed:,.0f} bytes per seed, samplers "
        f"{profile.batch_traffic.bytes_per_seed:,.0f}; the first {profile.skipped} iterations "
        "were skipped."
    )
    if profile.growth is not None and profile.growth.store_bytes:
        sizes = ", ".join(f"{seeds:g}" for seeds in profile.growth.seeds)
        volumes = ", ".join(map(format_bytes, profile.growth.store_bytes))
        typer.echo(f"Sub-batches of {sizes} seeds take {volumes} from stores.")
    if profile.steps:
        seeds = ", ".join(f"{step.seeds:g}" for step in profile.steps)
        typer.echo(f"It has steps of {seeds} seeds, from which other settings are estimated.")
    _show_outlook(outlook, "An iteration")


def _show_full_graph(profile: Profile, outlook: Outlook) -> None:
    from headrace.core.units import format_bytes

    assert profile.full_graph is not None
    typer.echo(
        f"Trainers send each other {format_bytes(profile.full_graph.epoch_bytes or 0.0)} in "
        f"{len(profile.full_graph.swaps)} swaps per epoch; the first {profile.skipped} epochs "
        "were skipped."
    )
    _show_outlook(outlook, "An epoch")


def _show_outlook(outlook: Outlook, what: str) -> None:
    from headrace.core.units import format_seconds

    typer.echo(
        f"{what} took {format_seconds(outlook.measured_s)}; simulated with this profile: "
        f"{format_seconds(outlook.predicted_s)}, {outlook.ratio:.2f} times as long."
    )
