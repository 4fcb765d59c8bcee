"""`headrace doctor`: check the installation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from headrace.cli import console as terminal
from headrace.cli.options import AsJson

if TYPE_CHECKING:
    from headrace.api.doctor import Checkup

EXAMPLE = "Example: headrace doctor"


def doctor(
    as_json: AsJson = False,
) -> None:
    """Check which components are installed and work.

    The exit code is 0 if everything that `headrace simulate` requires works, else 1.
    """
    from headrace.api.doctor import check_parts

    checkup = check_parts()
    if as_json:
        typer.echo(json.dumps(checkup.summary()))
    else:
        _show(checkup)
    if not checkup.base_works:
        raise typer.Exit(1)


def _show(checkup: Checkup) -> None:
    from rich.table import Table
    from rich.text import Text

    colours = {"works": "green", "broken": "red"}
    table = Table(box=None, pad_edge=False)
    for heading in ("part", "status", "version", "what it does"):
        table.add_column(heading)
    for part in checkup.parts:
        is_alarming = part.group == "base" and part.status != "works"
        colour = "bold red" if is_alarming else colours.get(part.status, "yellow")
        table.add_row(part.name, Text(part.status, style=colour), part.version, part.purpose)
    console = terminal.console()
    console.print(table)
    console.print()
    for part in checkup.parts:
        if part.detail:
            console.print(f"{part.name}: {part.detail}", markup=False, soft_wrap=True)
    if checkup.base_works:
        console.print("The base works: `headrace simulate` will run.", markup=False)
    else:
        broken = [p.name for p in checkup.parts if p.group == "base" and p.status != "works"]
        console.print(f"The base does not work: see {', '.join(broken)}.", markup=False)
