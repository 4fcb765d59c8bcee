"""`headrace top`: watch a run."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import console as terminal
from headrace.cli.options import AsJson, Runs, WantedRun

if TYPE_CHECKING:
    from headrace.api.run_status import RunDirectory, RunView

EXAMPLE = "Example: headrace top"
_PERIOD_S = 0.5
_PLAIN_WIDTH = 120


def top(
    run: WantedRun = None,
    once: Annotated[bool, typer.Option("--once", help="Print everything once.")] = False,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Watch a run: tasks, which task blocks which, network load.

    Exits with the run; Ctrl-C does not stop the run. Without a terminal it prints one table.
    """
    from headrace.api.run_status import find_run, runs_folder, view_run

    folder = find_run(runs_folder(runs), run)
    view = view_run(folder, time.time())
    if as_json:
        typer.echo(json.dumps(view.summary()))
    elif once or not sys.stdout.isatty():
        _show(view)
    else:
        view = _watch(folder, view)
        _show(view)
    raise typer.Exit(view.exit_code)


def _show(view: RunView) -> None:
    from headrace.cli.output.run_view import picture

    is_terminal = sys.stdout.isatty()
    console = terminal.console(width=None if is_terminal else _PLAIN_WIDTH)
    console.print(picture(view, bars=is_terminal), soft_wrap=not is_terminal)


def _watch(folder: RunDirectory, view: RunView) -> RunView:
    """Show a run until it ends or the user presses Ctrl-C; returns the last view."""
    from rich.live import Live

    from headrace.api.run_status import nic_limits, view_run
    from headrace.cli.output.run_view import picture

    console = terminal.console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(picture(view, (console.width, console.height)), refresh=True)
                if view.is_over:
                    break
                time.sleep(_PERIOD_S)
                view = view_run(folder, time.time(), view.limits or nic_limits(folder))
        except KeyboardInterrupt:
            pass
    return view
