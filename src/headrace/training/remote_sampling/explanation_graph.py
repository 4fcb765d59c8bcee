"""Explanation graph of a partition: its nodes pooled into one, with links from remote nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import as_tensor
from headrace.graph.loader.graph_view import GraphView

_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class ExplanationGraph:
    """A star: node 0 is the partition, with a self-loop and an edge from every remote node.

    Attributes:
        remote: New ids of the remote nodes, which have edges to nodes of the partition; row
            `i + 1` of `x` belongs to `remote[i]`.
        x: Features; row 0 is the mean of the partition's rows.
        edge_index: The self-loop, then the edges from the remote nodes.
        part_x: Features of the partition's nodes and then of the remote nodes.
        part_edge_index: Edges to the partition's nodes.
        num_local: Number of the partition's nodes.
    """

    remote: np.ndarray
    x: Tensor
    edge_index: Tensor
    part_x: Tensor
    part_edge_index: Tensor
    num_local: int

    @torch.no_grad()
    def predict(self, model: nn.Module) -> Tensor:
        """Mean of the model's class probabilities over the partition's nodes."""
        out: Tensor = model(self.part_x, self.part_edge_index)[: self.num_local]
        return out.softmax(dim=-1).mean(dim=0)


def build(access: GraphView, home: int, column: str) -> ExplanationGraph:
    """Build the explanation graph of a local partition; fetches the rows of its remote nodes.

    Raises:
        SpecError: The graph has several node types or edge types.
        StoreError: A store failed.
    """
    if not access.is_homogeneous:
        raise SpecError(
            "scores of remote nodes need a graph with one node type and one edge type",
            "use `far` instead",
        )
    (node_type,), (edge_type,) = access.node_types, access.edge_types
    low, high = (int(end) for end in access.offsets[node_type][home : home + 2])
    indptr, indices = access.lists(edge_type, home)
    sources = np.asarray(indices).astype(np.int64)
    is_local = (sources >= low) & (sources < high)
    remote = np.unique(sources[~is_local])
    num_local = high - low
    rows = np.where(is_local, sources - low, num_local + np.searchsorted(remote, sources))
    destinations = np.repeat(np.arange(num_local), np.diff(indptr))
    part_x = _features(access, node_type, column, np.concatenate([np.arange(low, high), remote]))
    leaves = torch.arange(len(remote) + 1)
    return ExplanationGraph(
        remote,
        torch.cat([part_x[:num_local].mean(dim=0, keepdim=True), part_x[num_local:]]),
        torch.stack([leaves, torch.zeros_like(leaves)]),
        part_x,
        torch.from_numpy(np.stack([rows, destinations])),
        num_local,
    )


def _features(access: GraphView, node_type: str, column: str, ids: np.ndarray) -> Tensor:
    info = access.column(node_type, column)
    rows = np.empty((len(ids), *info.shape), np.uint16 if info.dtype == "bfloat16" else info.dtype)
    # Small enough for the time limit of a request on a slow NIC.
    step = max(1, math.ceil(_MOST_BYTES / max(info.value_bytes, 1)))
    for begin in range(0, len(ids), step):
        some = slice(begin, begin + step)
        access.gather(node_type, column, ids[some]).into(rows[some])
    return as_tensor(rows, info.dtype).float()
