"""`headrace dashboard`: files for Grafana and Prometheus."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headrace.cli.options import Address

EXAMPLE = "Example: headrace dashboard > headrace-grafana.json"


def dashboard(
    prometheus: Annotated[
        bool,
        typer.Option("--prometheus", help="Print a Prometheus config instead."),
    ] = False,
    address: Address = None,
) -> None:
    """Print a Grafana dashboard, or with --prometheus a Prometheus configuration."""
    from headrace.api.cluster import grafana_dashboard, prometheus_config

    if prometheus:
        typer.echo(prometheus_config(address), nl=False)
    else:
        typer.echo(json.dumps(grafana_dashboard(), indent=2))
