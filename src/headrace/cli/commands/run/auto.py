"""`headrace run --auto`: profile, plan, run and report, a line for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli import console

if TYPE_CHECKING:
    from headrace.api.run import ClusterRun
    from headrace.core.plan import Plan


def run_auto(
    run_of: Callable[[Plan], ClusterRun],
    graph: Path,
    cluster: Path | None,
    job: Path | None,
    address: str | None,
    as_json: bool,
    run: Callable[[ClusterRun], dict[str, Any]],
) -> None:
    """Do all of it.

    Args:
        run_of: How a plan is to be run.
        graph: Directory of parts.
        cluster: Cluster file; none for what Ray has.
        job: Job file; none for a usual job.
        address: Of the Ray cluster.
        as_json: Whether to print one JSON object.
        run: Runs a plan and shows the run.
    """
    from headrace.api.auto import Loop, run_loop
    from headrace.api.documents.load import load_cluster, load_job

    wanted = Loop(
        graph=graph,
        run_of=run_of,
        address=address,
        cluster=None if cluster is None else load_cluster(cluster),
        job=None if job is None else load_job(job),
    )
    found = run_loop(wanted, run, console.note)
    if as_json:
        typer.echo(json.dumps(found))
