"""`headrace run`: train with stores, samplers and a trainer as processes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

EXAMPLE = (
    "Example: headrace run --local train.py --parts parts --samplers 2 -- --epochs 10\n\n"
    "What stands after -- is for the script."
)
INTERRUPTED = 130


def run(
    script: Annotated[Path, typer.Argument(help="Python script that trains.", metavar="SCRIPT")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Of the script, after --.", metavar="-- ARGS")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="All on this machine.")] = False,
    parts: Annotated[
        Path | None, typer.Option(help="Made by headrace partition.", metavar="DIR")
    ] = None,
    stores: Annotated[
        int | None, typer.Option(help="Parts behind a store; all if not given.", metavar="N", min=0)
    ] = None,
    samplers: Annotated[
        int, typer.Option(help="Processes that make batches.", metavar="S", min=0)
    ] = 1,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt, even on one machine.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train on this machine: graph stores, samplers and your PyG script as processes."""
    from headrace.core.errors import SpecError

    if not local:
        raise SpecError("a run needs machines", "say --local to use this one alone")
    from headrace.api.running import LocalRun, Progress, run_local

    wanted = LocalRun(script, tuple(arguments or ()), parts, stores, samplers, tls)
    begin_s = time.perf_counter()
    with Display(Progress().after, as_json) as display:
        try:
            code = run_local(wanted, display)
        except KeyboardInterrupt:
            display.say("interrupted; all processes of the run have ended")
            raise typer.Exit(INTERRUPTED) from None
    if as_json:
        progress = display.progress
        summary = {
            "script": str(script),
            "exit_code": code,
            "elapsed_s": time.perf_counter() - begin_s,
            "num_samplers": samplers,
            "reports": list(progress.reports),
            "samples_per_s": progress.samples_per_s,
            "idle_share": progress.idle_share,
            "waits_for": progress.waits_for,
        }
        typer.echo(json.dumps(summary))
    raise typer.Exit(code)


class Display:
    """Shows a run: on a terminal a bar that moves, else a line per report.

    Args:
        after: What is known with the first message; see `Progress.after`.
        as_json: Whether standard output is for the summary alone.

    Attributes:
        output: See `RunWatcher`.
        progress: What is known of the run.
    """

    def __init__(self, after: Callable[[Mapping[str, Any]], Any], as_json: bool) -> None:
        self.output: int | None = None if sys.stderr.isatty() else 2 if as_json else 1
        self.progress = after({})
        self._bars: Bars | None = None
        self._bar: TaskID | None = None
        self._as_json = as_json

    def __enter__(self) -> Self:
        if self.output is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            text = TextColumn("{task.description}", markup=False)
            speed = TextColumn("{task.fields[speed]}", markup=False)
            columns = (text, BarColumn(), MofNCompleteColumn(), speed)
            self._bars = Progress(*columns, console=Console(stderr=True))
            self._bars.start()
            self._bar = self._bars.add_task("starting", total=None, speed="")
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, line: str) -> None:
        """Something began."""
        self._write(line)

    def show(self, line: str) -> None:
        """The script printed a line."""
        self._write(line)

    def tell(self, message: Mapping[str, Any]) -> None:
        """The trainer has sent figures."""
        from headrace.api.running import line_of

        self.progress = progress = self.progress.after(message)
        is_report = message.get("kind") == "report"
        line = line_of(progress.figures)
        if self._bars is not None and self._bar is not None:
            self._bars.update(
                self._bar,
                description=line or "training",
                completed=progress.batch,
                total=progress.num_batches or None,
                speed=progress.speed,
            )
        if is_report:
            self._write("  ".join(each for each in (line, progress.speed) if each))

    def _write(self, line: str) -> None:
        if self._bars is not None:
            self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(line, err=True)
