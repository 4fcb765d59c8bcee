"""Layers that add up rows, divided by features instead of rows, for `full_graph.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.full_graph_trainers import (
    HIDDEN,
    alone,
    gradients_of,
    graph_of,
    in_double,
    in_trainers,
    make,
    shared,
    step,
)
from benchmarks.traffic import EDGE, NODE
from headrace.core.column_slices import busiest, column_values, columns_are_fewer
from headrace.graph.build.cover_sizes import cover_sizes
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.training.full_graph.full_graph import FullGraph

SUMS = ("GCN", "SAGE", "GIN")
GRADIENTS = "amazon_computers"
NUM_COUNTED = 4


def measure_features(
    names: Sequence[str], counts: Sequence[int], parts: Sequence[int], scratch: Path
) -> dict[str, Any]:
    """Rows and columns by graph and number of parts; bytes and gradients by columns.

    Args:
        names: Graphs.
        counts: Numbers of parts whose rows and columns are counted.
        parts: Numbers of trainers whose gradients are compared.
        scratch: Folder for partitioned graphs.
    """
    found: dict[str, Any] = {}
    for name in names:
        found[name] = {str(num): _compared(graph_of(name, num, scratch), num) for num in counts}
        graph = graph_of(name, NUM_COUNTED, scratch)
        found[name]["bytes"] = _bytes(graph)
        print(f"features {name}: {json.dumps(found[name])}", file=sys.stderr)
    errors = {
        model: {
            str(num): _error(
                graph_of(GRADIENTS if len(names) > 1 else names[0], num, scratch), model, num
            )
            for num in parts
        }
        for model in SUMS
    }
    print(f"features: gradients {json.dumps(errors)}", file=sys.stderr)
    kinds = [graph["bytes"] for graph in found.values()]
    return {
        "graphs": found,
        "errors": errors,
        "largest": max(error for each in errors.values() for error in each.values()),
        "is_exact": all(each["counted"] == each["computed"] for each in kinds),
    }


def _compared(graph: PartitionedGraph, num: int) -> dict[str, Any]:
    """What the busiest part sends or receives in a layer, in rows of `HIDDEN` values."""
    sizes, nodes = cover_sizes(graph, range(num), EDGE), np.diff(graph.offsets(NODE))
    columns = sum(map(busiest, column_values(nodes, nodes, HIDDEN))) / HIDDEN
    return {
        "halo": busiest(sizes.halo),
        "cover": busiest(sizes.total),
        "columns": columns,
        "cover_per_node": float(sizes.total.sum() / nodes.sum()),
        "features_win": columns_are_fewer(sizes.total, nodes, nodes, HIDDEN),
        "features_win_over_halo": columns_are_fewer(sizes.halo, nodes, nodes, HIDDEN),
    }


def _bytes(graph: PartitionedGraph) -> dict[str, int]:
    """Payload of the third epoch of GCN, counted by trainers and computed."""

    def work(data: FullGraph) -> int:
        made, sent = shared(make(graph, "GCN", 0), data), [0]
        for batch in [*data, *data, *data]:
            step(made, "GCN", batch)
            sent.append(data.sent_bytes)
        return sent[3] - sent[2]

    counted = sum(in_trainers(graph, NUM_COUNTED, work, parallelism="features"))
    return {"counted": counted, "computed": computed_bytes(graph)}


def computed_bytes(graph: PartitionedGraph) -> int:
    """Payload of an epoch of GCN."""
    # The first trainers have the largest parts, if all files are on one machine.
    nodes = np.sort(np.diff(graph.offsets(NODE)))[::-1]
    widths = (HIDDEN, graph.num_classes)
    values = sum(int(np.sum(column_values(nodes, nodes, width))) for width in widths)
    return 2 * 4 * values


def _error(graph: PartitionedGraph, model: str, num: int) -> float:
    """Largest relative error of a trainer's gradients in double precision."""
    exact = gradients_of(make(graph, model, 0), model, in_double(alone(graph)))

    def work(data: FullGraph, exact: torch.Tensor) -> float:
        (batch,) = data
        found = gradients_of(shared(make(graph, model, 0).double(), data), model, in_double(batch))
        return float((found - exact).norm() / exact.norm())

    errors: list[float] = in_trainers(
        graph, num, partial(work, exact=exact), parallelism="features"
    )
    return max(errors)
