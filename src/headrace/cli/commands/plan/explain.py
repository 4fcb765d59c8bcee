"""`headrace explain`: show a plan's bottleneck and possible improvements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import AsJson
from headrace.cli.output.progress import steps

EXAMPLE = "Example: headrace explain plan.json"


def explain(
    plan: Annotated[Path, typer.Argument(help="Plan file, written by `headrace plan -o`.")],
    graph: Annotated[
        Path | None,
        typer.Option(help="Partitioned graph: what would other traffic save?", metavar="DIR"),
    ] = None,
    fanout: Annotated[
        str | None,
        typer.Option(help="Neighbours per hop of the loader; default 10,5.", metavar="N,N"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a plan's bottleneck and the best improvements, each found by planning again."""
    from headrace.api.documents.load import load_plan

    loaded = load_plan(plan)
    from headrace.api.plan import explain as explain_plan
    from headrace.api.plan import explanation_summary, num_changes
    from headrace.cli.commands.plan.plan import read_fanout

    fanouts = None if fanout is None else read_fanout(fanout)
    with steps(num_changes(loaded, with_graph=graph is not None)) as begin:
        found = explain_plan(loaded, begin, graph=graph, num_neighbors=fanouts)
    if as_json:
        typer.echo(json.dumps(explanation_summary(found)))
        return
    from headrace.cli.output.plan_tables import show_explanation

    show_explanation(found)
