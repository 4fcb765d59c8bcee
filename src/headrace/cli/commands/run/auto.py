"""`headrace run --auto`: profile, plan, run and report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli import console

if TYPE_CHECKING:
    from headrace.api.run import RunConfig
    from headrace.core.plan import Plan


def run_auto(
    run_of: Callable[[Plan], RunConfig],
    graph: Path,
    cluster: Path | None,
    job: Path | None,
    address: str | None,
    as_json: bool,
    run: Callable[[RunConfig], dict[str, Any]],
) -> None:
    """Profile, plan, run and report, with a line of output for each.

    Args:
        run_of: Creates a run of a plan.
        graph: Directory of the partitioned graph.
        cluster: Cluster file; None to discover the Ray cluster.
        job: Job file; None for a default job.
        address: Address of the Ray cluster.
        as_json: Whether to print one JSON object.
        run: Runs a plan and shows its progress.
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
