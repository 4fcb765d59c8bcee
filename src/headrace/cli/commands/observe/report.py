"""`headrace report`: compare the prediction with the run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completions
from headrace.cli.options import AsJson, Runs
from headrace.cli.output.progress import Stages
from headrace.cli.paths import check_can_write

if TYPE_CHECKING:
    from headrace.api.run_status import RunDirectory

EXAMPLE = "Example: headrace report 20261115-0830-sage -o report.html --open"


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            help="ID or directory of the run; default the newest.",
            metavar="RUN",
            autocompletion=completions.runs,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Default report.html in the run's directory.", metavar="FILE"
        ),
    ] = None,
    runs: Runs = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    advise: Annotated[
        bool, typer.Option("--advice/--no-advice", help="Simulate improvements.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write an HTML report: predicted and measured times, and possible improvements."""
    from headrace.api.report import FILE_NAME, find_folder, report_on

    folder = find_folder(run, runs)
    _check_is_over(folder)
    path = output or folder.path / FILE_NAME
    check_can_write(path)
    with Stages(are_kept=False) as stages:
        found = report_on(folder.path, advise=advise, on_step=stages.begin)
    page, figures = found.save(path)
    if as_json:
        typer.echo(json.dumps(found.summary() | {"page": str(page), "figures": str(figures)}))
    else:
        typer.echo(f"{found.sentence}.")
        for line in found.verdict:
            typer.echo(line)
        typer.echo(f"The report is in {page}, its figures are in {figures}.")
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _check_is_over(folder: RunDirectory) -> None:
    """Refuse a running run: its tasks write their traces when they end."""
    from headrace.api.run_status import view_run
    from headrace.core.errors import SpecError

    if not view_run(folder, time.time(), {}).is_over:
        raise SpecError(
            f"run {folder.run_id} is not over yet",
            "watch it with `headrace top`, and create the report when it has ended",
        )
