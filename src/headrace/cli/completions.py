"""Shell completion of option values; literal lists, since importing the definitions is slow.

A test compares every list with the code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import typer

POLICIES = (
    "oes",
    "maxmin",
    "priority",
    "paced",
    "matching",
    "mrtf",
    "mrtf-exclusive",
    "omcoflow",
    "fifo",
)
METHODS = ("anneal", "colocate", "etp", "exact", "ifs")
SEED_MIXES = ("auto", "uniform", "local-first")
SHARES = ("auto", "equal")
LESS_TRAFFIC = ("exact", "safe", "least")
PARTITIONERS = ("metis", "kaminpar", "fennel", "hash", "range")
BALANCED = ("nodes", "edges", "train", "val", "test")
FEATURE_TYPES = ("auto", "float32", "float16", "bfloat16", "int8", "int4")
MODELS = ("sage", "gcn", "gat")
WRITABLE = ("prediction", "output", "embedding")
KINDS = (
    "cluster",
    "job",
    "profile",
    "placement",
    "plan",
    "graph",
    "status",
    "report",
    "stores",
    "sweep",
    "coflows",
)
TRACKERS = ("tensorboard", "mlflow")
TRAFFIC = ("plan", "none")
WINDOWS = ("1", "2", "4", "unlimited")

Completer = Callable[[str], list[str]]


def one_of(*names: str) -> Completer:
    """Completes one of several names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def some_of(*names: str) -> Completer:
    """Completes the last name of a comma-separated list."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        fitting = [name for name in names if name.startswith(last) and name not in given]
        return [f"{before}{comma}{name}" for name in fitting]

    return complete


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes run IDs, the newest first; without slow imports."""
    names = [name for name in _folders(_runs_folder(ctx)) if name != "stores"]
    return [name for name in names if name.startswith(incomplete)]


def stores(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes names of stores that outlive runs."""
    names = _folders(_runs_folder(ctx) / "stores")
    return [name for name in reversed(names) if name.startswith(incomplete)]


def _runs_folder(ctx: typer.Context) -> Path:
    given = ctx.params.get("runs") or os.environ.get("HEADRACE_RUNS")
    return Path(given) if given else Path.home() / ".headrace" / "runs"


def _folders(place: Path) -> list[str]:
    if not place.is_dir():
        return []
    return sorted((each.name for each in place.iterdir() if each.is_dir()), reverse=True)
