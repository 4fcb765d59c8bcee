"""Output of `headrace plan` and `headrace explain`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from headrace.cli import console as terminal
from headrace.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from headrace.api.plan import Explanation, PlanDiff
    from headrace.core.memory import MemoryEstimate
    from headrace.core.plan import Plan

MAX_ROWS = 32
"""Maximum rows of a table of machines or moves."""

_LIMITS = {
    "nic": "NIC",
    "cycle": "parameter cycle",
    "task": "longest task",
    "latency": "latency / window",
}


def show_plan(plan: Plan) -> None:
    """Print the plan, its prediction and objective, and a row per machine."""
    console = terminal.console()
    _figures(console, _decision(plan) | _prediction(plan) | _certificate(plan))
    console.print()
    console.print(_terms_table(plan))
    console.print()
    if plan.candidates:
        console.print(_candidates_table(plan))
        console.print()
    table, num_hidden = _machines_table(plan)
    console.print(table)
    if num_hidden:
        console.print(f"... and {num_hidden} more machines (the plan file lists all)", markup=False)


def show_explanation(explanation: Explanation) -> None:
    """Print the bottleneck and the remedies, best first."""
    console, plan = terminal.console(), explanation.plan
    _figures(console, _decision(plan) | _prediction(plan) | _certificate(plan))
    console.print()
    console.print(_terms_table(plan))
    console.print()
    for sentence in (f"The bottleneck is {explanation.bottleneck}.", *explanation.idle):
        _print(console, sentence)
    if not explanation.remedies:
        return
    console.print()
    basis = "simulated time" if explanation.is_rehearsed else "objective"
    _print(console, f"Changes that would help, each planned again ({basis} per iteration):")
    for remedy in explanation.remedies:
        _print(console, f"  {remedy.sentence()} ({format_seconds(remedy.time_s)})")


def show_diff(diff: PlanDiff, before: str, after: str) -> None:
    """Print the differences of two plans."""
    from rich.table import Table
    from rich.text import Text

    console = terminal.console()
    table = Table(box=None, pad_edge=False)
    for heading in ("", before, after):
        table.add_column(Text(heading))
    old, new = (
        _decision(plan) | _prediction(plan) | _certificate(plan)
        for plan in (diff.before, diff.after)
    )
    for name in dict.fromkeys([*old, *new]):
        one, other = old.get(name, ""), new.get(name, "")
        table.add_row(name, Text(one), Text(other), style=None if one == other else "bold")
    console.print(table)
    console.print()
    if diff.changed_inputs:
        _print(console, f"They differ in their {' and '.join(diff.changed_inputs)}.")
    if diff.saving is not None:
        verb = "saves" if diff.saving >= 0 else "costs"
        _print(console, f"The second {verb} {abs(diff.saving):.1%} of the time per iteration.")
    if diff.epochs is not None:
        _print(console, diff.epochs)
    if not diff.moves:
        _print(console, "No task moves.")
        return
    _print(console, f"{len(diff.moves)} tasks move:")
    for move in diff.moves[:MAX_ROWS]:
        _print(console, f"  {move.task}: {move.before or 'nowhere'} -> {move.after or 'nowhere'}")
    if len(diff.moves) > MAX_ROWS:
        _print(console, f"  ... and {len(diff.moves) - MAX_ROWS} more (--json lists all)")


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _figures(console: Console, figures: dict[str, str]) -> None:
    for name, figure in figures.items():
        _print(console, f"{name:<20}{figure}")


def _decision(plan: Plan) -> dict[str, str]:
    searches = "" if plan.rounds == 1 else f", {plan.rounds} rounds"
    figures = {"method": f"{plan.method} (seed {plan.seed}{searches})", "policy": plan.policy}
    if plan.job.swaps:
        if plan.memory is not None:
            figures["memory"] = _memory(plan.memory)
        return figures | {"parallelism": _parallelism(plan), "rows of an epoch": _swaps(plan)}
    figures["seed mix"] = plan.seed_mix_name
    if plan.seed_mix_name != "uniform":
        saved = 1 - plan.network_bytes / plan.uniform_network_bytes
        figures["seed mix"] += (
            f": {format_bytes(plan.network_bytes)} per iteration on the network, {saved:.0%} less "
            "than a uniform mix"
        )
    if plan.profile.traffic is not None:
        figures["traffic"] = plan.profile.traffic.sentence()
    if plan.shares is not None:
        figures["batch shares"] = _shares(plan)
    if steps := _steps(plan):
        figures["trainer step"] = steps
    if plan.memory is not None:
        figures["memory"] = _memory(plan.memory)
    return figures


def _parallelism(plan: Plan) -> str:
    """What layers that add up rows divide."""
    divided = {True: set[float](), False: set[float]()}
    for swap in plan.job.swaps:
        divided[bool(swap.slices)].add(swap.row_bytes)
    sizes = ", ".join(f"{format_bytes(size)}" for size in sorted(divided[True]))
    if not sizes:
        return "rows"
    return f"features of rows of {sizes}" + ("; other layers rows" if divided[False] else "")


def _swaps(plan: Plan) -> str:
    """Swaps of an epoch, and their bytes."""
    from headrace.api.full_graph_plan import epoch_figures

    epoch = epoch_figures(plan)
    assert epoch is not None
    rows = epoch["row_bytes"].values()
    total = sum(each["sent_bytes"] for each in rows)
    most = max(max(each.values()) for each in rows)
    return (
        f"{format_bytes(total)} in {len(plan.job.swaps)} swaps; at most {format_bytes(most)} in "
        "one direction of a NIC"
    )


def _steps(plan: Plan) -> str:
    """Estimated times of trainer steps, with their limits, by machine class."""
    from headrace.api.plan import COVERAGE, estimated_steps

    found = []
    for kind, *times_s, num in estimated_steps(plan):
        mean, low, high = (format_seconds(float(f"{time_s:.3g}")) for time_s in times_s)
        name = "" if kind == "default" else f"{kind}: "
        sure = f"{low} to {high} with {COVERAGE:.0%} confidence, from {num} measured steps"
        found.append(f"{name}{mean}, {sure}")
    return "; ".join(found)


def _memory(memory: MemoryEstimate) -> str:
    """Estimated memory of a task of each role, and of the fullest machine."""
    roles = ", ".join(
        f"{task.role.value} {format_bytes(task.total_bytes)}" for task in memory.tasks
    )
    if not memory.machines:
        return roles
    fullest = max(memory.machines, key=lambda each: each.needed_bytes / (each.memory_bytes or 1.0))
    has = "" if fullest.memory_bytes is None else f" of {format_bytes(fullest.memory_bytes)}"
    return f"{roles}; {fullest.machine} needs {format_bytes(fullest.needed_bytes)}{has}"


def _shares(plan: Plan) -> str:
    """Seeds per trainer and machine class, largest first."""
    assert plan.shares is not None
    kinds = {host.name: host.kind for host in plan.cluster.hosts}
    seeds: dict[str, set[int]] = {}
    for machine, share in zip(plan.placement.trainers, plan.shares, strict=True):
        seeds.setdefault(kinds[machine], set()).add(share)
    ranked = sorted(seeds.items(), key=lambda item: -max(item[1]))
    listed = [
        f"{kind} {min(own)}" + (f" to {max(own)}" if len(own) > 1 else "") for kind, own in ranked
    ]
    return f"seeds per trainer: {', '.join(listed)}; {plan.job.batch_size} if equal"


def _prediction(plan: Plan) -> dict[str, str]:
    predicted, job = plan.predicted, plan.job
    if predicted is None:
        return {
            "makespan": "not simulated, the job is too large; "
            f"{format_seconds(plan.terms.time_s)} per iteration by the objective"
        }
    figures = {
        "makespan": f"{format_seconds(predicted.makespan_s)} for {predicted.iterations} "
        f"iterations, window {predicted.window or 'unlimited'}",
        "time per iteration": f"{format_seconds(predicted.iteration_time_s)} (mean of all)",
    }
    if job.iterations > predicted.iterations:
        whole_s = predicted.iteration_time_s * job.iterations
        figures["whole job"] = f"about {format_seconds(whole_s)} for {job.iterations} iterations"
    return figures


def _certificate(plan: Plan) -> dict[str, str]:
    objective = f"{format_seconds(plan.terms.time_s)} per iteration"
    if plan.proven:
        return {"objective": f"{objective}; no placement has a smaller one (proven)"}
    bound = format_seconds(plan.bound_s)
    return {"objective": f"{objective}, {plan.gap:.2%} above the bound of all placements ({bound})"}


def _terms_table(plan: Plan) -> Table:
    from rich.table import Table
    from rich.text import Text

    from headrace.api.plan import limit_of

    terms, window = plan.terms, plan.job.window
    largest = limit_of(plan)
    rows = {
        "nic": (terms.nic_s, terms.busiest_nic),
        "cycle": (terms.cycle_s, ""),
        "task": (terms.task_s, ""),
        "latency": (
            terms.latency_s / window if window else 0.0,
            "" if window else "the window is unlimited",
        ),
    }
    table = Table(box=None, pad_edge=False)
    table.add_column("limit")
    table.add_column("per iteration", justify="right")
    table.add_column("")
    for name, (time_s, note) in rows.items():
        style = "bold" if name == largest else None
        table.add_row(_LIMITS[name], format_seconds(time_s), Text(note), style=style)
    return table


def _candidates_table(plan: Plan) -> Table:
    """What a full-graph plan was chosen from, best first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("trainers", "sync", "bins", "trainer memory", "per epoch"):
        table.add_column(heading, justify="left" if heading == "sync" else "right")
    for number, each in enumerate(plan.candidates):
        cells = [str(each.trainers), each.sync, str(each.bins)]
        cells.append("-" if each.trainer_bytes is None else format_bytes(each.trainer_bytes))
        # No plan is made if a trainer has no room.
        cells.append("does not fit" if each.time_s is None else format_seconds(each.time_s))
        table.add_row(*map(Text, cells), style=None if number else "bold")
    return table


def _machines_table(plan: Plan) -> tuple[Table, int]:
    from rich.table import Table
    from rich.text import Text

    columns = {
        "samplers": Counter(plan.placement.samplers),
        "trainers": Counter(plan.placement.trainers),
    }
    if plan.placement.servers:
        columns["servers"] = Counter(plan.placement.servers)
    hosts = plan.cluster.hosts
    cells = {
        heading: {host.name: str(counts[host.name]) for host in hosts}
        for heading, counts in columns.items()
    }
    if plan.job.swaps:
        cells = _part_cells(plan)
    table = Table(box=None, pad_edge=False)
    table.add_column("machine")
    for heading in cells:
        table.add_column(heading, justify="right")
    for host in hosts[:MAX_ROWS]:
        table.add_row(Text(host.name), *(by_host.get(host.name, "") for by_host in cells.values()))
    return table, max(0, len(hosts) - MAX_ROWS)


def _part_cells(plan: Plan) -> dict[str, dict[str, str]]:
    """By heading and machine: the part of a full-graph job, and the rows that it exchanges."""
    from headrace.api.full_graph_plan import epoch_figures

    epoch = epoch_figures(plan)
    assert epoch is not None
    rows, hosts = epoch["row_bytes"], plan.cluster.hosts
    return {
        "part": {
            host.name: ", ".join(str(p) for p, m in enumerate(plan.part_machines) if m == number)
            for number, host in enumerate(hosts)
        },
        "sends": {name: format_bytes(each["sent_bytes"]) for name, each in rows.items()},
        "receives": {name: format_bytes(each["received_bytes"]) for name, each in rows.items()},
    }
