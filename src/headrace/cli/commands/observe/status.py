"""`headrace status`: show the state of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import console as terminal
from headrace.cli.options import AsJson, Runs, WantedRun

if TYPE_CHECKING:
    from headrace.api.run_status import RunView

EXAMPLE = (
    "Example: headrace status\n\n"
    "Exit code: 0 if the run is running or done, 7 if it failed, 130 if it was interrupted."
)


def status(
    run: WantedRun = None,
    all_runs: Annotated[bool, typer.Option("--all", help="List all runs.")] = False,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of a run, while it runs or after it has ended."""
    from headrace.api.run_status import find_run, list_runs, runs_folder, view_run

    place, now_s = runs_folder(runs), time.time()
    if all_runs:
        views = [view_run(find_run(place, each), now_s, {}) for each in list_runs(place)]
        _show_all(views, place, as_json)
        return
    view = view_run(find_run(place, run), now_s)
    if as_json:
        typer.echo(json.dumps(view.summary()))
    else:
        _show(view)
    raise typer.Exit(view.exit_code)


def _show(view: RunView) -> None:
    from headrace.cli.output.run_view import counts_of, headline

    console = terminal.console()
    for line in headline(view):
        console.print(line, soft_wrap=True)
    seen = view.status
    facts = {
        "tasks": f"{counts_of(view)}, on {len(seen.machines)} machines" if seen.tasks else "",
        "folder": str(view.folder.path),
    }
    console.print()
    for name, fact in facts.items():
        if fact:
            console.print(f"{name:<10}{fact}", markup=False, soft_wrap=True)
    for task in seen.tasks:
        if task.state == "lost" or (task.state in ("waiting", "starting") and task.waits_for):
            waits = f", waits for {task.waits_for}" if task.waits_for else ""
            text = f"{task.name} on {task.machine}: {task.state}{waits}"
            console.print(f"{'':<10}{text}", markup=False, soft_wrap=True)


def _show_all(views: list[RunView], place: Path, as_json: bool) -> None:
    if as_json:
        keys = ("run_id", "state", "driver", "since_s", "elapsed_s", "iterations", "figures")
        listed = [{key: view.summary()[key] for key in keys} for view in views]
        typer.echo(json.dumps({"runs": listed}))
        return
    if not views:
        typer.echo(f"There is no run in {place}.")
        return
    from rich.table import Table
    from rich.text import Text

    from headrace.api.run_status import line_of
    from headrace.cli.output.run_view import state_of
    from headrace.core.units import format_seconds

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("run", "state", "time", "iterations", "last figures"):
        is_number = heading in ("time", "iterations")
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
    for view in reversed(views):
        table.add_row(
            view.folder.run_id,
            state_of(view),
            format_seconds(view.elapsed_s),
            f"{view.status.iterations:,}",
            Text(line_of(view.status.figures)),
        )
    terminal.console().print(table)
