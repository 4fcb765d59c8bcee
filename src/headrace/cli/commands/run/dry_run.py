"""Output of `headrace run --dry-run`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from headrace.api.run import RunConfig


def show_dry_run(wanted: RunConfig, as_json: bool) -> None:
    """Show the tasks that would start, and their machines."""
    from headrace.api.run import describe

    found = describe(wanted)
    if as_json:
        typer.echo(json.dumps(found))
        return
    for task in found["tasks"]:
        needs = ", ".join(f"{amount:g} {name}" for name, amount in task["needs"].items())
        typer.echo(f"{task['name']:<12} {task['machine']:<12} {task['address']:<16} {needs}")
    for machine in found["machines"]:
        typer.echo(f"{machine['name']}: {machine['graph']}")
    for line in found["notes"]:
        typer.echo(line)
