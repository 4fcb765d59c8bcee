"""`headrace testbed`: a cluster of emulated machines on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import console as terminal
from headrace.cli.app import VerbApp
from headrace.cli.errors import INTERRUPTED_EXIT_CODE
from headrace.cli.options import AsJson

if TYPE_CHECKING:
    from headrace.testbed import Host, Testbed

app = VerbApp(
    help="A cluster of emulated machines on this machine.",
    epilog="Example: sudo headrace testbed up --cluster examples/testbed/cluster.yaml",
)

_Name = Annotated[str, typer.Option("--name", help="Name of the testbed.", metavar="NAME")]
_PLAIN_WIDTH = 120
_LIMITS = ("in", "out", "cores")


@app.command(epilog="Example: sudo headrace testbed up --cluster examples/testbed/cluster.yaml")
def up(
    cluster: Annotated[Path, typer.Option(help="Cluster file.", metavar="FILE")],
    name: _Name = "headrace",
    without_ray: Annotated[bool, typer.Option("--without-ray", help="Start no Ray nodes.")] = False,
    shaped: Annotated[
        bool, typer.Option("--shaped", help="Limit NICs and CPUs as in the cluster file.")
    ] = False,
    cores: Annotated[
        float | None,
        typer.Option(help="Cores to distribute by the machines' `cpu`; default all.", metavar="X"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start an emulated machine with a Ray node for each machine of the cluster file."""
    from headrace.api.documents.load import load_cluster
    from headrace.testbed import Testbed

    machines = load_cluster(cluster)
    begin_s = time.perf_counter()
    try:
        bed = _stoppable(
            lambda: Testbed.up(
                machines,
                name,
                with_ray=not without_ray,
                shaped=shaped,
                cores=cores,
                log=terminal.note,
            )
        )
    except KeyboardInterrupt:
        terminal.note("interrupted; the testbed was removed")
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    if as_json:
        elapsed = {"was_up": bed.was_up, "elapsed_s": time.perf_counter() - begin_s}
        typer.echo(json.dumps(_summary(bed) | elapsed))
        return
    typer.echo(f"testbed {name} was up already" if bed.was_up else f"testbed {name} is up")
    _show(bed)
    option = "" if name == "headrace" else f" --name {name}"
    typer.echo(f"try: headrace testbed exec{option} {bed.hosts[0].name} -- ip addr")


@app.command(epilog="Example: sudo headrace testbed down")
def down(name: _Name = "headrace", as_json: AsJson = False) -> None:
    """Remove a testbed, or the remains of a crash, if there is one."""
    from headrace.testbed import take_down

    begin_s = time.perf_counter()
    was_up = take_down(name)
    if as_json:
        elapsed_s = time.perf_counter() - begin_s
        typer.echo(json.dumps({"name": name, "was_up": was_up, "elapsed_s": elapsed_s}))
    else:
        typer.echo(f"testbed {name} is down" if was_up else f"there is no testbed {name}")


@app.command(
    name="exec",
    epilog="Example: sudo headrace testbed exec m0 -- python train.py",
    context_settings={"ignore_unknown_options": True},
)
def execute(
    host: Annotated[str, typer.Argument(help="Machine of the cluster file.", metavar="HOST")],
    command: Annotated[list[str], typer.Argument(help="Command to run.", metavar="-- CMD")],
    name: _Name = "headrace",
) -> None:
    """Run a command on a machine; exits with the command's exit code."""
    from headrace.testbed import Testbed

    words = Testbed.find(name).command(host, command)
    os.execv(words[0], words)


@app.command(epilog="Example: sudo headrace testbed nic m0 --out 100Mbps")
def nic(
    host: Annotated[str, typer.Argument(help="Machine of the cluster file.", metavar="HOST")],
    rate_in: Annotated[
        str | None, typer.Option("--in", help="Maximum receive rate.", metavar="RATE")
    ] = None,
    rate_out: Annotated[
        str | None, typer.Option("--out", help="Maximum send rate.", metavar="RATE")
    ] = None,
    name: _Name = "headrace",
) -> None:
    """Change the NIC rates of a machine of a shaped testbed, also while it is used."""
    from headrace.core.errors import SpecError
    from headrace.core.units import parse_bytes_per_s
    from headrace.testbed import Testbed

    if rate_in is None and rate_out is None:
        raise SpecError("no rate was given", "add --in 100Mbps, --out 100Mbps or both")
    bed = Testbed.find(name)
    limits = bed.layout.host(host).limits
    into = limits.in_bytes_per_s if limits else 1.0
    out = limits.out_bytes_per_s if limits else 1.0
    bed = bed.set_nic(
        host,
        into if rate_in is None else parse_bytes_per_s(rate_in),
        out if rate_out is None else parse_bytes_per_s(rate_out),
    )
    _show(bed)


@app.command(epilog="Example: sudo headrace testbed status")
def status(name: _Name = "headrace", as_json: AsJson = False) -> None:
    """Show a testbed's machines. Exits with 1 if it is down or broken."""
    from headrace.testbed import Testbed

    bed = Testbed.lookup(name)
    if bed is None:
        down: dict[str, Any] = {"name": name, "state": "down", "machines": []}
        typer.echo(json.dumps(down) if as_json else f"testbed {name} is down")
        raise typer.Exit(1)
    problems = bed.problems()
    if as_json:
        typer.echo(json.dumps(_summary(bed)))
    else:
        typer.echo(f"testbed {name} is {bed.state}")
        for problem in problems:
            typer.echo(f"  {problem}")
        _show(bed)
    if problems:
        raise typer.Exit(1)


def _stoppable(work: Callable[[], Testbed]) -> Testbed:
    """Run a function that SIGTERM interrupts like Ctrl-C, so that it can clean up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        return work()
    finally:
        signal.signal(signal.SIGTERM, before)


def _summary(bed: Testbed) -> dict[str, Any]:
    traffic = bed.traffic()
    machines = [
        {
            "name": host.name,
            "address": host.address,
            "namespace": host.namespace,
            "pid": host.init and host.init.pid,
            "received_bytes": traffic[host.name].received if host.name in traffic else None,
            "sent_bytes": traffic[host.name].sent if host.name in traffic else None,
            "nic_in_bytes_per_s": host.limits and host.limits.in_bytes_per_s,
            "nic_out_bytes_per_s": host.limits and host.limits.out_bytes_per_s,
            "cores": host.limits and host.limits.cores,
        }
        for host in bed.hosts
    ]
    return {
        "name": bed.layout.name,
        "state": bed.state,
        "shaped": bed.layout.is_shaped,
        "problems": bed.problems(),
        "ray_address": bed.ray_address,
        "machines": machines,
    }


def _show(bed: Testbed) -> None:
    from rich.table import Table

    from headrace.core.units import format_bytes

    summary = _summary(bed)
    table = Table(box=None, pad_edge=False)
    for heading in ("machine", "address", "namespace"):
        table.add_column(heading, no_wrap=heading != "namespace", overflow="fold")
    for heading in ("pid", "received", "sent", *(_LIMITS if summary["shaped"] else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for host, figures in zip(bed.hosts, summary["machines"], strict=True):
        shown = (("pid", str), ("received_bytes", format_bytes), ("sent_bytes", format_bytes))
        cells = ["-" if figures[each] is None else show(figures[each]) for each, show in shown]
        table.add_row(host.name, host.address, host.namespace, *cells, *_limits(host))
    console = terminal.console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    console.print(table)
    if summary["ray_address"]:
        console.print(f"Ray: {summary['ray_address']}", markup=False)


def _limits(host: Host) -> list[str]:
    from headrace.core.units import format_bytes_per_s

    limits = host.limits
    if limits is None:
        return []
    rates = limits.in_bytes_per_s, limits.out_bytes_per_s
    return [*map(format_bytes_per_s, rates), f"{limits.cores:.3g}"]
