"""`headrace trace`: show the measured trace of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import completions
from headrace.cli.options import AsJson, Runs
from headrace.cli.paths import check_can_write

EXAMPLE = "Example: headrace trace 20261115-0830-sage --perfetto t.json --gantt t.png"
TRACE = "trace.npz"


def trace(
    run: Annotated[
        str | None,
        typer.Argument(
            help="ID or directory of the run, or its trace.npz; default the newest.",
            metavar="RUN",
            autocompletion=completions.runs,
        ),
    ] = None,
    runs: Runs = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write a file for ui.perfetto.dev.", metavar="FILE")
    ] = None,
    gantt: Annotated[
        Path | None, typer.Option(help="Draw a Gantt chart (PNG).", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's trace as `headrace simulate` shows a simulation."""
    from headrace.api.profile import load_trace, trace_summary
    from headrace.core.units import format_seconds

    for path in (perfetto, gantt):
        check_can_write(path)
    if run is not None and (Path(run).is_file() or run.endswith(".npz")):
        file = Path(run)
    else:
        from headrace.api.report import find_folder

        file = find_folder(run, runs).path / TRACE
    seen = load_trace(file)
    if perfetto is not None:
        from headrace.observability.perfetto import write_perfetto

        write_perfetto(seen, perfetto)
    if gantt is not None:
        from headrace.observability.gantt import draw_gantt

        draw_gantt(seen, gantt, file.stem)
    summary = trace_summary(seen)
    if as_json:
        written = {"perfetto": perfetto and str(perfetto), "gantt": gantt and str(gantt)}
        typer.echo(json.dumps(summary | written))
        return
    typer.echo(f"{summary['num_iterations']} iterations in {format_seconds(seen.makespan_s)}")
    for machine in summary["machines"]:
        into, out_of = machine["in_bytes"] / 1e6, machine["out_bytes"] / 1e6
        typer.echo(f"{machine['name']:<12} {into:12,.2f} MB in {out_of:12,.2f} MB out")
    if perfetto is not None:
        typer.echo(f"The trace is in {perfetto}: open it at https://ui.perfetto.dev.")
    if gantt is not None:
        typer.echo(f"The Gantt chart is in {gantt}.")
