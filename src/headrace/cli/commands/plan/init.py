"""`headrace init`: write an initial cluster file and job file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import console
from headrace.cli.options import AsJson

if TYPE_CHECKING:
    from headrace.cli.commands.plan.init_templates import Machines

EXAMPLE = (
    "Example: headrace init\n\n"
    "Example: headrace init --machines 4 --gpus 2 --bandwidth 10Gbps\n\n"
    "Example: headrace init --cluster cluster.yaml"
)

NUM_MACHINES, NUM_GPUS, BANDWIDTH = 4, 0, "10Gbps"
"""Defaults without a terminal."""


def init(
    machines: Annotated[
        int | None, typer.Option(help="Number of machines.", metavar="N", min=1)
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs per machine.", metavar="N", min=0)] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Per machine, e.g. 10Gbps.", metavar="RATE")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(help="CPUs per machine; default 8 or more.", metavar="N", min=1)
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory per machine.", metavar="SIZE")] = "32GB",
    trainers: Annotated[
        int | None, typer.Option(help="Default one per GPU or machine.", metavar="N", min=1)
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="Existing cluster file for the job.", metavar="FILE")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the job.", metavar="NAME")] = "job",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Output directory.", metavar="DIR")
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write cluster.yaml and job.yaml, with a comment on every key.

    Prompts for three values, unless options give them or there is no terminal.
    """
    from headrace.cli.commands.plan.init_templates import cluster_text, job_text

    texts: dict[Path, str] = {}
    if cluster is None:
        found = _ask(machines, gpus, bandwidth, cpus, memory)
        cluster = output / "cluster.yaml"
        texts[cluster] = cluster_text(found)
        resources = found.resources()
    else:
        from headrace.api.documents.load import load_cluster

        _check_alone(machines=machines, gpus=gpus, bandwidth=bandwidth, cpus=cpus)
        resources = [dict(host.resources) for host in load_cluster(cluster).hosts]
    job = output / "job.yaml"
    texts[job] = job_text(name, resources, trainers)
    _write(texts, force)
    if as_json:
        typer.echo(json.dumps({"cluster": str(cluster), "job": str(job)}))
        return
    typer.echo(f"wrote {' and '.join(map(str, texts))}: comments explain every key")
    typer.echo(f"next: headrace plan --cluster {cluster} --job {job} -o plan.json")


def _ask(
    num: int | None, gpus: int | None, bandwidth: str | None, cpus: int | None, memory: str
) -> Machines:
    """Prompt for values that were not given."""
    from headrace.cli.commands.plan.init_templates import Machines
    from headrace.core.units import parse_bytes

    if can_ask():
        if num is None:
            num = typer.prompt("How many machines?", NUM_MACHINES, type=int, err=True)
        if gpus is None:
            gpus = typer.prompt("How many GPUs per machine?", NUM_GPUS, type=int, err=True)
        if bandwidth is None:
            bandwidth = typer.prompt("What bandwidth per machine?", BANDWIDTH, err=True)
    else:
        taken = (
            (num, f"--machines {NUM_MACHINES}"),
            (gpus, f"--gpus {NUM_GPUS}"),
            (bandwidth, f"--bandwidth {BANDWIDTH}"),
        )
        rest = [usual for given, usual in taken if given is None]
        if rest:
            console.note(f"note: no terminal, using {', '.join(rest)}")
        num = NUM_MACHINES if num is None else num
        gpus = NUM_GPUS if gpus is None else gpus
        bandwidth = BANDWIDTH if bandwidth is None else bandwidth
    _check(num, gpus, _rate(bandwidth), parse_bytes(memory))
    return Machines(num, gpus, max(8, 4 * gpus) if cpus is None else cpus, memory, bandwidth)


def _rate(bandwidth: str) -> float:
    """Bytes per second; a number without a unit is rejected as a likely mistake."""
    from headrace.core.errors import SpecError
    from headrace.core.units import parse_bytes_per_s

    rate = parse_bytes_per_s(bandwidth)
    if bandwidth.strip().replace(".", "", 1).isdecimal():
        raise SpecError(f"the bandwidth {bandwidth} has no unit", f"write {bandwidth.strip()}Gbps")
    return rate


def can_ask() -> bool:
    """Whether prompts are possible and wanted."""
    return sys.stdin.isatty() and not console.is_quiet()


def _check(num: int, gpus: int, bytes_per_s: float, memory_bytes: float) -> None:
    from headrace.core.errors import SpecError

    if num < 1 or gpus < 0:
        raise SpecError(f"invalid: {num} machines with {gpus} GPUs each", "give whole numbers")
    if bytes_per_s <= 0 or memory_bytes <= 0:
        raise SpecError("bandwidth and memory must be above 0", "write 10Gbps, or 32GB")


def _check_alone(**given: object) -> None:
    from headrace.core.errors import SpecError

    for option, value in given.items():
        if value is not None:
            raise SpecError(
                f"--cluster and --{option} both define the machines", "give one of them"
            )


def _write(texts: dict[Path, str], force: bool) -> None:
    from headrace.cli.paths import check_can_write
    from headrace.core.errors import SpecError

    for path in texts:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_can_write(path)
        if path.exists() and not force:
            raise SpecError(
                f"{path} exists already", "add --force to overwrite it, or -o for another directory"
            )
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
