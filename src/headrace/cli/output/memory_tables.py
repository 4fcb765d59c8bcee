"""Tables of estimated memory."""

from __future__ import annotations

from rich.table import Table

from headrace.cli import console as terminal
from headrace.core.memory import MemoryEstimate
from headrace.core.units import format_bytes


def show_memory(found: MemoryEstimate) -> None:
    """Print memory by role and by machine."""
    console = terminal.console()
    table = Table(box=None, pad_edge=False)
    for name in ("task", "peak memory", "made of"):
        table.add_column(name, justify="right" if name == "peak memory" else "left")
    for task in found.tasks:
        parts = [f"{name} {format_bytes(size)}" for name, size in task.made_of.items() if size]
        about = f" ({task.note})" if task.note else ""
        table.add_row(task.role.value, format_bytes(task.total_bytes), ", ".join(parts) + about)
    console.print(table)
    nodes, edges = found.shape
    batch = f"A batch of {found.batch_size} seeds has at most"
    if found.is_full_graph:
        batch = "The largest part of a trainer has"
    console.print(f"{batch} {nodes:,} nodes, {edges:,} edges.")
    if not found.machines:
        return
    table = Table(box=None, pad_edge=False)
    for name in ("machine", "needs", "has", "tasks"):
        table.add_column(name, justify="right" if name in ("needs", "has") else "left")
    for machine in found.machines:
        has = "-" if machine.memory_bytes is None else format_bytes(machine.memory_bytes)
        tasks = ", ".join(f"{num} {role.value}" for role, num in machine.tasks.items())
        table.add_row(machine.machine, format_bytes(machine.needed_bytes), has, tasks)
    console.print(table)
