"""Options that several commands have: the same name, the same words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completions

if TYPE_CHECKING:
    from headrace.api.run import Traffic

Address = Annotated[
    str | None, typer.Option(help="Of the Ray cluster; else RAY_ADDRESS.", metavar="HOST:PORT")
]
Config = Annotated[
    Path | None, typer.Option(help="YAML for ctx.config of the script.", metavar="FILE")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="One of it.", metavar="KEY=VALUE")
]
Runs = Annotated[
    Path | None,
    typer.Option(help="Where runs lie; else $HEADRACE_RUNS or ~/.headrace/runs.", metavar="DIR"),
]
WantedRun = Annotated[
    str | None,
    typer.Argument(
        help="Id of the run, or its beginning; the newest if not given.",
        metavar="RUN",
        autocompletion=completions.runs,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
NoTls = Annotated[bool, typer.Option("--no-tls", help="Encrypt nothing.")]
TrafficOption = Annotated[
    str | None,
    typer.Option(
        "--traffic",
        help="plan: its policy shares the network; or none.",
        metavar="HOW",
        autocompletion=completions.one_of(*completions.TRAFFIC),
        hidden=True,
    ),
]


def traffic_of(given: str | None) -> Traffic | None:
    """Who shares the network, if the user says so.

    Raises:
        SpecError: It is neither of the two.
    """
    from headrace.core.errors import SpecError

    if given is None:
        return None
    if given == "none":
        return "none"
    if given == "plan":
        return "plan"
    raise SpecError(f"--traffic {given} is not known", "say --traffic plan, or none")
