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
    as_json: AsJson = False,
) -> None:
    """Show a plan's bottleneck and the best improvements, each found by planning again."""
    from headrace.api.documents.load import load_plan

    loaded = load_plan(plan)
    from headrace.api.plan import explain as explain_plan
    from headrace.api.plan import explanation_summary, num_changes

    with steps(num_changes(loaded)) as begin:
        found = explain_plan(loaded, begin)
    if as_json:
        typer.echo(json.dumps(explanation_summary(found)))
        return
    from headrace.cli.output.plan_tables import show_explanation

    show_explanation(found)
