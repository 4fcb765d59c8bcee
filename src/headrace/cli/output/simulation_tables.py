"""Output of `headrace simulate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli import console as terminal
from headrace.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.api.results.coflows import CoflowComparison, CoflowSimulation
    from headrace.api.simulate import Comparison, Simulation

MAX_MACHINES = 32
"""Maximum rows of the machine table; the busiest are shown."""

_HEADINGS = {"store": "stores", "sampler": "samplers", "trainer": "trainers", "ps": "servers"}


def show_simulation(simulation: Simulation) -> None:
    """Print the headline, a row per machine and the bottleneck."""
    console = terminal.console()
    figures = {
        "makespan": f"{format_seconds(simulation.makespan_s)} for "
        f"{simulation.instance.num_iterations} iterations",
        "time per iteration": f"{format_seconds(simulation.iteration_time_s)} in steady state "
        f"(mean of all: {format_seconds(simulation.mean_iteration_time_s)})",
        "policy": simulation.policy,
        "placement": simulation.placement_name,
        "window": str(simulation.window),
    }
    for name, figure in figures.items():
        console.print(f"{name:<20}{figure}", markup=False, soft_wrap=True)
    console.print()
    table, num_hidden = _machine_table(simulation)
    console.print(table)
    if num_hidden:
        console.print(f"... and {num_hidden} less busy machines (--json lists all)", markup=False)
    console.print()
    console.print(simulation.nics.sentence(), markup=False, soft_wrap=True)


def show_comparison(comparison: Comparison) -> None:
    """Print one row per policy."""
    from rich.table import Table

    console = terminal.console()
    first = comparison.simulations[0]
    console.print(
        f"{first.instance.num_iterations} iterations, window {first.window}, placement "
        f"{first.placement_name}",
        markup=False,
        soft_wrap=True,
    )
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("policy")
    for heading in ("makespan", "mean/iter", "steady/iter", "vs best"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("busiest NIC")
    table.add_column("busy", justify="right", no_wrap=True)
    best = comparison.best
    for each in comparison.simulations:
        excess = comparison.relative_makespan(each) - 1
        table.add_row(
            each.policy,
            format_seconds(each.makespan_s),
            format_seconds(each.mean_iteration_time_s),
            format_seconds(each.iteration_time_s),
            "best" if each is best else f"+{excess:.1%}",
            each.nics.busiest or "none",
            f"{each.nics.busiest_utilisation:.0%}",
            style="bold" if each is best else None,
        )
    console.print(table)


def show_coflows(simulation: CoflowSimulation) -> None:
    """Print the headline, a row per type of coflow and the bottleneck."""
    from rich.table import Table

    console = terminal.console()
    graph = simulation.graph
    console.print(
        f"{'makespan':<20}{format_seconds(simulation.makespan_s)} for {len(graph.tasks)} tasks\n"
        f"{'policy':<20}{simulation.policy}",
        markup=False,
        soft_wrap=True,
    )
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("type")
    for heading in ("coflows", "bytes", "mean time", "last end"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in graph.types:
        coflows = [coflow for coflow in graph.coflows if coflow.type == name]
        spans = [simulation.coflows[coflow.name] for coflow in coflows]
        if spans:
            table.add_row(
                name,
                str(len(spans)),
                format_bytes(sum(flow.bytes for coflow in coflows for flow in coflow.flows)),
                format_seconds(sum(span.duration_s for span in spans) / len(spans)),
                format_seconds(max(span.end_s for span in spans)),
            )
    console.print(table)
    console.print()
    console.print(simulation.nics.sentence(), markup=False, soft_wrap=True)


def show_coflow_comparison(comparison: CoflowComparison) -> None:
    """Print one row per policy."""
    from rich.table import Table

    graph = comparison.best.graph
    console = terminal.console()
    console.print(
        f"{len(graph.tasks)} tasks, {len(graph.coflows)} coflows, {graph.num_flows} flows",
        markup=False,
        soft_wrap=True,
    )
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("policy")
    for heading in ("makespan", "vs best"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("busiest NIC")
    table.add_column("busy", justify="right", no_wrap=True)
    best = comparison.best
    for each in comparison.simulations:
        table.add_row(
            each.policy,
            format_seconds(each.makespan_s),
            "best" if each is best else f"+{comparison.relative_makespan(each) - 1:.1%}",
            each.nics.busiest or "none",
            f"{each.nics.busiest_utilisation:.0%}",
            style="bold" if each is best else None,
        )
    console.print(table)


def _machine_table(simulation: Simulation) -> tuple[Table, int]:
    from rich.table import Table
    from rich.text import Text

    nics, counts = simulation.nics, simulation.num_tasks()
    roles = [role for role in _HEADINGS if any(role in tasks for tasks in counts)]
    table = Table(box=None, pad_edge=False)
    table.add_column("machine")
    for heading in (*(_HEADINGS[role] for role in roles), "NIC in", "NIC out"):
        table.add_column(heading, justify="right")
    machines = list(range(simulation.cluster.num_machines))
    if len(machines) > MAX_MACHINES:
        machines.sort(key=lambda m: -max(nics.in_utilisation[m], nics.out_utilisation[m]))
    for m in machines[:MAX_MACHINES]:
        table.add_row(
            Text(simulation.cluster.hosts[m].name),
            *(str(counts[m].get(role, 0)) for role in roles),
            f"{nics.in_utilisation[m]:.0%}",
            f"{nics.out_utilisation[m]:.0%}",
        )
    return table, max(0, len(machines) - MAX_MACHINES)
