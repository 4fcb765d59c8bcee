"""The command line: one module per command; no other package prints.

Modules here import heavy ones inside their functions, so that `headrace --help` is fast.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from headrace import __version__
from headrace.cli import errors
from headrace.cli.app import VerbApp
from headrace.cli.commands.observe import dashboard, logs, report, status, top, trace
from headrace.cli.commands.plan import estimate, explain, init, plan, profile, schema, simulate
from headrace.cli.commands.run import export, infer, run, sweep
from headrace.cli.commands.setup import cluster, doctor, graph, partition, stores, testbed
from headrace.core.errors import DOCS_URL, ERRORS_PAGE

EPILOG = (
    "Exit codes: 0 success, 1 failure, 2 invalid input, 3 infeasible, 4 missing package, 5 to 7 "
    f"task failure, 8 damaged file, 70 bug, 130 interrupted. See {DOCS_URL}{ERRORS_PAGE}"
)

ABOUT = "Trains GNNs on many machines. Example: headrace run --local train.py"

app = VerbApp(
    name="headrace",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)
# Short texts, so that the list of all commands fits a screen.
app.command("init", short_help="Write a job file and a cluster file.", epilog=init.EXAMPLE)(
    init.init
)
app.command("simulate", epilog=simulate.EXAMPLE)(simulate.simulate)
app.command("plan", short_help="Place every task on a machine.", epilog=plan.EXAMPLE)(plan.plan)
app.command(
    "estimate",
    short_help="Estimate the memory of every task.",
    epilog=estimate.EXAMPLE,
)(estimate.estimate)
app.command(
    "explain",
    short_help="Show a plan's bottleneck and the best improvements.",
    epilog=explain.EXAMPLE,
)(explain.explain)
app.command(
    "partition", short_help="Partition a graph into memory-mapped files.", epilog=partition.EXAMPLE
)(partition.partition)
app.add_typer(graph.app, name="graph")
app.command(
    "run",
    short_help="Train with your PyG script, on Ray or on this machine.",
    epilog=run.EXAMPLE,
)(run.run)
app.command("sweep", short_help="Run many trials of a script.", epilog=sweep.EXAMPLE)(sweep.sweep)
app.command(
    "infer", short_help="Predict for all nodes with a trained model.", epilog=infer.EXAMPLE
)(infer.infer)
app.command(
    "export",
    short_help="Write a trained model as safetensors or state_dict.",
    epilog=export.EXAMPLE,
)(export.export)
app.command("status", epilog=status.EXAMPLE)(status.status)
app.command(
    "top",
    short_help="Watch a run: tasks, what blocks them, network load.",
    epilog=top.EXAMPLE,
)(top.top)
app.command("logs", short_help="Print the logs of a run's tasks.", epilog=logs.EXAMPLE)(logs.logs)
app.command(
    "report",
    short_help="Write a report: predicted and measured times, advice.",
    epilog=report.EXAMPLE,
)(report.report)
app.command(
    "dashboard",
    short_help="Print files for Grafana and Prometheus.",
    epilog=dashboard.EXAMPLE,
)(dashboard.dashboard)
app.add_typer(stores.app, name="stores")
app.add_typer(testbed.app, name="testbed")
app.add_typer(cluster.app, name="cluster")
app.command(
    "profile", short_help="Measure task times and volumes of a job.", epilog=profile.EXAMPLE
)(profile.profile)
app.command("trace", epilog=trace.EXAMPLE)(trace.trace)
# Documented in docs/reference/files.md.
app.command("schema", epilog=schema.EXAMPLE, hidden=True)(schema.schema)
app.command("doctor", epilog=doctor.EXAMPLE)(doctor.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback(help=ABOUT)
def _headrace(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Handle the options that all commands have."""


def main() -> None:
    """Run the command line; entry point of the console script `headrace`."""
    try:
        app(prog_name="headrace")
    except Exception as error:
        if os.environ.get("HEADRACE_DEBUG"):
            raise
        found = errors.bug(error)
        found.__cause__ = error
        errors.print_error(found, "")
        sys.exit(errors.BUG_EXIT_CODE)
