"""Output of `headrace partition` and `headrace graph info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.cli import console as terminal
from headrace.core.units import format_bytes

if TYPE_CHECKING:
    from headrace.graph.format.partitioned_graph import PartitionedGraph

MAX_PARTS = 32
"""Maximum rows of the partition table; the largest are shown."""

MAX_TYPES = 12
"""Node and edge types listed by name."""


def summary_of(graph: PartitionedGraph) -> dict[str, Any]:
    """All values as one JSON object."""
    manifest = graph.manifest
    per_part = []
    for part in range(graph.num_parts):
        row: dict[str, Any] = {
            "part": part,
            "share": manifest.shares[part],
            "nodes": sum(node.offsets[part + 1] - node.offsets[part] for node in manifest.nodes),
            "edges": sum(edge.offsets[part + 1] - edge.offsets[part] for edge in manifest.edges),
            "train": sum(
                node.splits.get("train", (0,) * graph.num_parts)[part] for node in manifest.nodes
            ),
            "bytes": sum(
                info.bytes
                for name, info in manifest.files.items()
                if name.startswith(f"part-{part}/")
            ),
        }
        per_part.append(row)
    remote = manifest.quality.get("remote")
    if isinstance(remote, list | tuple):
        for row, count in zip(per_part, remote, strict=True):
            row["remote"] = count
    return {
        "name": manifest.name,
        "folder": str(graph.folder),
        "num_parts": graph.num_parts,
        "method": manifest.method,
        "seed": manifest.seed,
        "num_nodes": {node.name: node.num_nodes for node in manifest.nodes},
        "num_edges": {" ".join(edge.edge_type): edge.num_edges for edge in manifest.edges},
        "columns": {
            node.name: {column.name: [column.dtype, *column.shape] for column in node.columns}
            for node in manifest.nodes
        },
        "encodings": {
            node.name: {
                column.name: column.encoding.kind
                for column in node.columns
                if column.encoding is not None
            }
            for node in manifest.nodes
        },
        "bytes": sum(info.bytes for info in manifest.files.values()),
        "quality": dict(manifest.quality),
        "splits": {
            node.name: {split: sum(counts) for split, counts in node.splits.items()}
            for node in manifest.nodes
            if node.splits
        },
        "note": manifest.note,
        "parts": per_part,
    }


def _splits(summary: dict[str, Any]) -> str:
    """Number of nodes of each split, and the source of the splits."""
    several = len(summary["num_nodes"]) > 1
    words = [
        f"{name + ' ' if several else ''}{split} {num:,}"
        for name, splits in summary["splits"].items()
        for split, num in splits.items()
    ]
    text = ", ".join(words) or "none: pass ids of input nodes to loaders"
    return text + (f"; {summary['note']}" if summary["note"] else "")


def show_graph(summary: dict[str, Any]) -> None:
    """Print the headline, a row per partition and the partition quality."""
    from rich.table import Table

    console = terminal.console()
    figures = {
        "graph": f"{summary['name']} in {summary['folder']}",
        "nodes": _counts(summary["num_nodes"]),
        "edges": _counts(summary["num_edges"]),
        "features": _features(summary["columns"], summary["encodings"]),
        "splits": _splits(summary),
        "parts": f"{summary['num_parts']} by {summary['method']} (seed {summary['seed']}), "
        f"{format_bytes(summary['bytes'])}",
    }
    for name, figure in figures.items():
        if figure:
            console.print(f"{name:<22}{figure}", markup=False, soft_wrap=True)
    console.print()
    table = Table(box=None, pad_edge=False)
    for heading in ("part", "share", "nodes", "edges", "train", "remote nodes", "size"):
        table.add_column(heading, justify="right")
    rows = sorted(summary["parts"], key=lambda row: -row["bytes"])[:MAX_PARTS]
    for row in sorted(rows, key=lambda row: row["part"]):
        table.add_row(
            str(row["part"]),
            f"{row['share']:.1%}",
            *(f"{row[key]:,}" for key in ("nodes", "edges", "train")),
            f"{row['remote']:,}" if "remote" in row else "",
            format_bytes(row["bytes"]),
        )
    console.print(table)
    if len(summary["parts"]) > MAX_PARTS:
        num_hidden = len(summary["parts"]) - MAX_PARTS
        console.print(f"... and {num_hidden} smaller partitions (--json lists all)", markup=False)
    if summary["quality"]:
        console.print()
        for name, figure in quality_lines(summary["quality"]).items():
            console.print(f"{name:<22}{figure}", markup=False, soft_wrap=True)


def quality_lines(quality: dict[str, Any]) -> dict[str, str]:
    """The partition quality in words."""
    balance = ", ".join(f"{name} {value:.3f}" for name, value in quality["balance"].items())
    return {
        "edge cut": f"{quality['edge_cut']:.1%} of the edges cross partitions",
        "communication": f"{quality['volume']:,} remote nodes in total; maximum per partition is "
        f"{quality['imbalance']:.3f} of the mean",
        "balance": f"{balance} (largest partition relative to its share)",
        "remote in a batch": f"{quality['remote_fraction']:.1%} of the nodes sampled with "
        "fan-out 15, 10",
    }


def _counts(counts: dict[str, int]) -> str:
    total = f"{sum(counts.values()):,}"
    if len(counts) == 1:
        return total
    listed = ", ".join(f"{name} {count:,}" for name, count in list(counts.items())[:MAX_TYPES])
    more = f", and {len(counts) - MAX_TYPES} more types" if len(counts) > MAX_TYPES else ""
    return f"{total} of {len(counts)} types: {listed}{more}"


def _features(
    columns: dict[str, dict[str, list[Any]]], encodings: dict[str, dict[str, str]]
) -> str:
    found = []
    for node_type, named in columns.items():
        if "x" in named:
            dtype, *shape = named["x"]
            width = " x ".join(str(size) for size in shape) or "1"
            kind = encodings[node_type].get("x")
            form = f"{width} {dtype}" + (f" stored as {kind}" if kind else "")
            found.append(form if len(columns) == 1 else f"{node_type} {form}")
    return ", ".join(found[:MAX_TYPES])
