"""Options that `headrace run` and `headrace profile` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Address = Annotated[
    str | None, typer.Option(help="Of the Ray cluster; else RAY_ADDRESS.", metavar="HOST:PORT")
]
Config = Annotated[
    Path | None, typer.Option(help="YAML for ctx.config of the script.", metavar="FILE")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="One of it.", metavar="KEY=VALUE")
]
Runs = Annotated[Path | None, typer.Option(help="Where run folders lie.", metavar="DIR")]
NoTls = Annotated[bool, typer.Option("--no-tls", help="Encrypt nothing.")]
