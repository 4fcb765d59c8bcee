"""`headrace schema`: print the JSON schema of a file format."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import completions

EXAMPLE = "Example: headrace schema cluster > cluster.schema.json"


def schema(
    kind: Annotated[
        str,
        typer.Argument(
            help="cluster, job, profile, placement, plan, graph, status or report.",
            metavar="KIND",
            autocompletion=completions.one_of(*completions.KINDS),
        ),
    ],
) -> None:
    """Print the JSON schema of a file format.

    Editors use it to complete keys and to mark mistakes.
    """
    from headrace.api.documents.schema import schema_text

    typer.echo(schema_text(kind), nl=False)
