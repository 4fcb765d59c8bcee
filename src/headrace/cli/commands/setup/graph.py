"""`headrace graph`: inspect a partitioned graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.app import VerbApp
from headrace.cli.options import AsJson
from headrace.cli.output.progress import Stages

app = VerbApp(
    help="Inspect a partitioned graph.",
    epilog="Example: headrace graph info parts",
)

_Folder = Annotated[Path, typer.Argument(help="Partitioned graph.", metavar="DIR")]


@app.command(epilog="Example: headrace graph info parts")
def info(folder: _Folder, as_json: AsJson = False) -> None:
    """Show the content of a partitioned graph and the quality of the partition."""
    from headrace.api.graph import open_graph
    from headrace.cli.output.graph_tables import show_graph, summary_of

    summary = summary_of(open_graph(folder))
    if as_json:
        typer.echo(json.dumps(summary))
        return
    show_graph(summary)


@app.command(epilog="Example: headrace graph verify parts")
def verify(folder: _Folder, as_json: AsJson = False) -> None:
    """Check checksums, sizes and ids of all files. Exits with 1 if there are problems."""
    from headrace.api.graph import verify as find_problems

    with Stages() as stages:
        problems = find_problems(folder, stages)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "problems": problems}))
    elif problems:
        for problem in problems:
            typer.echo(problem)
    else:
        typer.echo(f"{folder} has no errors.")
    if problems:
        raise typer.Exit(1)
