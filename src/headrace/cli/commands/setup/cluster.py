"""`headrace cluster`: write the cluster file of a running Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import console
from headrace.cli.app import VerbApp
from headrace.cli.options import Address, AsJson

EXAMPLE = "Example: headrace cluster discover -o cluster.yaml"

app = VerbApp(help="Describe a running Ray cluster.", epilog=EXAMPLE)


@app.callback(epilog=EXAMPLE)
def _cluster() -> None:
    """Describe a running Ray cluster."""


@app.command(epilog=EXAMPLE)
def discover(
    address: Address = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write.", metavar="FILE")
    ] = None,
    no_bandwidth: Annotated[
        bool, typer.Option("--no-bandwidth", help="Use the NICs' nominal speed; measure nothing.")
    ] = False,
    bandwidth: Annotated[
        str | None, typer.Option(help="Bandwidth of every machine, e.g. 10Gbps.", metavar="RATE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a cluster file: machines, their resources and classes, and measured bandwidth.

    Without --output the file is printed.
    """
    from headrace.api.cluster import cluster_text, discover_cluster
    from headrace.cli.paths import check_can_write
    from headrace.core.errors import SpecError
    from headrace.core.units import parse_bytes_per_s

    check_can_write(output)
    rate = None if bandwidth is None else parse_bytes_per_s(bandwidth)
    if rate is not None and rate <= 0:
        raise SpecError(f"{bandwidth} is not a bandwidth", "write one like 10Gbps")
    found = discover_cluster(address, console.note, not no_bandwidth, rate)
    text = cluster_text(found.cluster, ("Written by headrace cluster discover.", *found.notes))
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if as_json:
        cluster = found.cluster.model_dump(mode="json")
        typer.echo(json.dumps({"cluster": cluster, "notes": list(found.notes)}))
    elif output is None:
        typer.echo(text, nl=False)
    else:
        for note in found.notes:
            typer.echo(note)
        typer.echo(f"wrote {output}: {found.cluster.num_machines} machines")
