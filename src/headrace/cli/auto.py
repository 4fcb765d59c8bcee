"""`headrace run --auto`: profile, plan, run and report, a line for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headrace.cli.run import run_shown

if TYPE_CHECKING:
    from headrace.api.cluster_running import ClusterRun
    from headrace.core.plan import Plan


def run_auto(
    run_of: Callable[[Plan], ClusterRun],
    graph: Path,
    cluster: Path | None,
    job: Path | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Do all of it.

    Args:
        run_of: How a plan is to be run.
        graph: Directory of parts.
        cluster: Cluster file; none for what Ray has.
        job: Job file; none for a usual job.
        address: Of the Ray cluster.
        as_json: Whether to print one JSON object.
    """
    from headrace.api.files import load_cluster, load_job
    from headrace.api.looping import Loop, run_loop

    wanted = Loop(
        graph=graph,
        run_of=run_of,
        address=address,
        cluster=None if cluster is None else load_cluster(cluster),
        job=None if job is None else load_job(job),
    )
    found = run_loop(
        wanted, partial(run_shown, as_json=as_json), lambda line: typer.echo(line, err=True)
    )
    if as_json:
        typer.echo(json.dumps(found))
