"""`headrace estimate`: memory of every task before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import completions
from headrace.cli.options import AsJson
from headrace.cli.output.progress import steps
from headrace.cli.paths import check_script

EXAMPLE = (
    "Example: headrace estimate --graph parts train.py\n\n"
    "Example: headrace estimate --graph parts --plan plan.json --as slurm train.py"
)


def estimate(
    script: Annotated[Path, typer.Argument(help="Training script.", metavar="SCRIPT")],
    graph: Annotated[Path, typer.Option(help="Partitioned graph.", metavar="DIR")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Script arguments, after --.", metavar="-- ARGS")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Plan: memory of all tasks.", metavar="FILE")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Seeds of a trainer's batch.", metavar="N", min=1)
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="Print requests of ray, kubernetes or slurm.",
            metavar="NAME",
            autocompletion=completions.one_of("ray", "kubernetes", "slurm"),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the peak memory of every task; exit code 3 if a machine has too little."""
    from headrace.api.documents.load import load_plan
    from headrace.core.errors import SpecError

    check_script(script)
    if scheduler not in (None, "ray", "kubernetes", "slurm"):
        raise SpecError(f"--as {scheduler} is unknown", "use ray, kubernetes or slurm")
    planned = None if plan is None else load_plan(plan)
    with steps(2) as begin:
        from headrace.api.estimate import check_fits, resource_requests
        from headrace.api.estimate import estimate as find_memory

        found = find_memory(
            script, graph, tuple(arguments or ()), planned, batch_size, on_step=begin
        )
    if scheduler is not None:
        typer.echo(resource_requests(found, scheduler))  # type: ignore[arg-type]  # checked above
    elif as_json:
        typer.echo(json.dumps(found.summary()))
    else:
        from headrace.cli.output.memory_tables import show_memory

        show_memory(found)
    check_fits(found.machines)
