"""How far a verb is: a bar on a terminal, else one plain line per step; always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer


@contextmanager
def steps(num_steps: int) -> Iterator[Callable[[str], None]]:
    """Show progress while a block runs.

    Args:
        num_steps: How many steps the block will take.

    Yields:
        What to call with a step's name before the step begins.
    """
    if not sys.stderr.isatty():
        yield _line_writer(num_steps)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    counted = (BarColumn(), MofNCompleteColumn()) if num_steps > 1 else ()
    with Progress(*columns, *counted, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=num_steps)
        num_begun = 0

        def begin(name: str) -> None:
            nonlocal num_begun
            progress.update(bar, description=name, completed=num_begun, refresh=True)
            num_begun += 1

        yield begin


def _line_writer(num_steps: int) -> Callable[[str], None]:
    num_begun = 0

    def begin(name: str) -> None:
        nonlocal num_begun
        num_begun += 1
        counter = f"[{num_begun}/{num_steps}] " if num_steps > 1 else ""
        typer.echo(f"{counter}{name}", err=True)

    return begin
