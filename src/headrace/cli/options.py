"""Options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completions

if TYPE_CHECKING:
    from headrace.api.run import Traffic

Address = Annotated[
    str | None, typer.Option(help="Ray cluster; default RAY_ADDRESS.", metavar="HOST:PORT")
]
Config = Annotated[Path | None, typer.Option(help="YAML file for ctx.config.", metavar="FILE")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Set one config value.", metavar="KEY=VALUE")
]
Runs = Annotated[
    Path | None,
    typer.Option(help="Default $HEADRACE_RUNS or ~/.headrace/runs.", metavar="DIR"),
]
WantedRun = Annotated[
    str | None,
    typer.Argument(
        help="ID of the run or a prefix; default the newest.",
        metavar="RUN",
        autocompletion=completions.runs,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
NoTls = Annotated[bool, typer.Option("--no-tls", help="Disable TLS.")]
TrafficOption = Annotated[
    str | None,
    typer.Option(
        "--traffic",
        help="plan: enforce its flow policy; or none.",
        metavar="HOW",
        autocompletion=completions.one_of(*completions.TRAFFIC),
        hidden=True,
    ),
]


def traffic_of(given: str | None) -> Traffic | None:
    """Parse --traffic; raises `SpecError` for other values."""
    from headrace.core.errors import SpecError

    if given is None:
        return None
    if given == "none":
        return "none"
    if given == "plan":
        return "plan"
    raise SpecError(f"--traffic {given} is not supported", "use --traffic plan or --traffic none")
