"""Compute a layer for a chunk: on mapped rows if possible, else on gathered rows."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.graph.format.partitioned_graph import PartitionedGraph, as_tensor
from headrace.training.inference.node_chunks import Chunk, Subgraph, SubgraphBuilder, cut

Inputs = Mapping[str, Tensor]
"""Memory-mapped input rows of all nodes, by node type."""

Tail = Callable[[Tensor], Tensor]
"""Per-node operations after a convolution."""

_FLOAT_BYTES = 4
# Values and intermediate values; ids are mapped.
_SPARSE_EDGE_BYTES = 16
_DEGREE_MEMORY_BYTES = 1 << 26


@dataclass(frozen=True)
class Setting:
    """Settings of all layers of an inference.

    Attributes:
        graph: The graph.
        is_homogeneous: Whether layers take tensors, not dictionaries by type.
        device: Device of gathered rows.
        edge_weight: Edge column passed to layers as `edge_weight`.
        edge_attr: Edge column passed to layers as `edge_attr`.
        widest: Largest size of a node's row in any layer.
    """

    graph: PartitionedGraph
    is_homogeneous: bool
    device: torch.device
    edge_weight: str | None = None
    edge_attr: str | None = None
    widest: int = 128


class Step(ABC):
    """One layer."""

    @abstractmethod
    def costs(self, width: int) -> tuple[int, int]:
        """Bytes per edge and per target of a chunk, for input rows of size `width`."""

    @abstractmethod
    def rows(self, chunk: Chunk, inputs: Inputs) -> Tensor | None:
        """Rows of the targets; None if the layer has no output for their type."""


class Summed(Step):
    """A convolution (`SAGEConv`, `GINConv`) that aggregates before all other operations.

    It reads mapped rows through a sparse matrix: nothing is gathered or computed twice.
    """

    def __init__(self, conv: nn.Module, tail: Tail, setting: Setting) -> None:
        self._conv = conv
        self._tail = tail
        self._setting = setting

    def costs(self, width: int) -> tuple[int, int]:
        """Memory of the matrix and of the targets' rows."""
        return _SPARSE_EDGE_BYTES, _FLOAT_BYTES * (2 * width + 4 * self._setting.widest)

    def rows(self, chunk: Chunk, inputs: Inputs) -> Tensor:
        """Rows of the targets."""
        x = inputs[chunk.node_type]
        indptr, indices = chunk.lists(chunk.edge_types[0])
        matrix = _sparse(indptr, indices, torch.ones(len(indices)), len(x))
        own = x[chunk.first : chunk.first + chunk.num_targets]
        return self._tail(self._conv((x, own), matrix))


class Normalized(Step):
    """PyG's `GCNConv`: edges are weighted by the degrees of both ends in the whole graph.

    Rows are aggregated before the multiplication by the layer's weights, which is equal up to
    rounding, so that mapped rows can be used. `roots` caches the inverse square roots of degrees
    for all layers.
    """

    def __init__(
        self, conv: Any, tail: Tail, setting: Setting, roots: dict[tuple[bool, bool], np.ndarray]
    ) -> None:
        self._conv = conv
        self._tail = tail
        self._setting = setting
        self._roots = roots

    def costs(self, width: int) -> tuple[int, int]:
        """Memory of the matrix, of the ends of its edges, and of the targets' rows."""
        return 3 * _SPARSE_EDGE_BYTES, _FLOAT_BYTES * (4 * width + 4 * self._setting.widest)

    def rows(self, chunk: Chunk, inputs: Inputs) -> Tensor:
        """Rows of the targets."""
        x = inputs[chunk.node_type]
        indptr, indices, weights, loops = self._weighed(chunk)
        own = slice(chunk.first, chunk.first + chunk.num_targets)
        if self._conv.normalize:
            roots = self._all_roots(chunk)
            weights = weights * roots[indices] * np.repeat(roots[own], np.diff(indptr))
            loops = loops * roots[own] ** 2
        matrix = _sparse(indptr, indices, torch.from_numpy(weights), len(x))
        out = torch.sparse.mm(matrix, x)
        if self._conv.add_self_loops:
            out += torch.from_numpy(loops)[:, None] * x[own]
        out = self._conv.lin(out.to(self._setting.device))
        return self._tail(out if self._conv.bias is None else out + self._conv.bias)

    def _weighed(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """CSR, edge weights, and weights of self-loops, which PyG replaces or adds."""
        edge_type, name = chunk.edge_types[0], self._setting.edge_weight
        indptr, indices = chunk.lists(edge_type)
        weights = np.ones(len(indices), np.float32)
        if name is not None:
            weights = chunk.edge_values(edge_type, name).reshape(-1).numpy().copy()
        # PyG ignores `improved` without edge weights.
        filling = 2.0 if self._conv.improved and name is not None else 1.0
        loops = np.full(chunk.num_targets, filling, np.float32)
        if self._conv.add_self_loops:
            ends = np.repeat(np.arange(chunk.num_targets), np.diff(indptr))
            is_loop = np.flatnonzero(indices == ends + chunk.first)
            loops[ends[is_loop]] = weights[is_loop]
            weights[is_loop] = 0
        return indptr, indices, weights, loops

    def _all_roots(self, chunk: Chunk) -> np.ndarray:
        kind = bool(self._conv.improved), bool(self._conv.add_self_loops)
        if kind not in self._roots:
            graph, node_type = self._setting.graph, chunk.node_type
            degrees = np.zeros(graph.num_nodes_of(node_type), np.float32)
            for each in cut(graph, node_type, 3 * _SPARSE_EDGE_BYTES, 16, _DEGREE_MEMORY_BYTES):
                indptr, _, weights, loops = self._weighed(each)
                ends = np.repeat(np.arange(each.num_targets), np.diff(indptr))
                own = np.bincount(ends, weights, each.num_targets)
                own += loops if self._conv.add_self_loops else 0
                degrees[each.first : each.first + each.num_targets] = own
            with np.errstate(divide="ignore", invalid="ignore"):
                roots = degrees**-0.5
            roots[np.isinf(roots)] = 0
            self._roots[kind] = roots
        return self._roots[kind]


class Gathered(Step):
    """Any layer, called with the subgraph of the targets and their neighbours.

    Args:
        call: Takes rows, edges, and those of `size`, `n_id`, `edge_weight` and `edge_attr` that its
            signature names.
        tail: Operations after it.
        setting: Settings of the inference.
        is_bipartite: Whether it takes rows of sources and of targets, and returns only the latter.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        tail: Tail,
        setting: Setting,
        is_bipartite: bool = False,
    ) -> None:
        self._call = call
        self._tail = tail
        self._setting = setting
        self._is_bipartite = is_bipartite
        self._wanted = _names_of(call)
        self._subgraphs = SubgraphBuilder(setting.graph)

    def costs(self, width: int) -> tuple[int, int]:
        """Memory of one source per edge, and of messages with intermediate values."""
        widest = max(width, self._setting.widest)
        return _FLOAT_BYTES * (width + 2 * widest) + 64, 4 * _FLOAT_BYTES * widest

    def rows(self, chunk: Chunk, inputs: Inputs) -> Tensor | None:
        """Rows of the targets."""
        device, found = self._setting.device, self._subgraphs.around(chunk)
        x = {
            name: inputs[name][torch.from_numpy(ids)].to(device)
            for name, ids in found.nodes.items()
            if name in inputs
        }
        edges = {edge_type: ends.to(device) for edge_type, ends in found.edges.items()}
        more = self._more(chunk, found)
        if not self._setting.is_homogeneous:
            out = self._call(x, edges, **more).get(chunk.node_type)
            return None if out is None else self._tail(out[: chunk.num_targets])
        rows: Any = x.get(chunk.node_type)
        if "size" in self._wanted:
            more["size"] = {chunk.node_type: (len(found.nodes[chunk.node_type]), chunk.num_targets)}
        if self._is_bipartite:
            rows = rows, rows[: chunk.num_targets]
        only = {keyword: value for keyword, named in more.items() for value in named.values()}
        out = self._call(rows, edges[chunk.edge_types[0]], **only)
        return self._tail(out[: chunk.num_targets])

    def _more(self, chunk: Chunk, found: Subgraph) -> dict[str, dict[Any, Any]]:
        """Further arguments of the layer, by type."""
        setting = self._setting
        more: dict[str, dict[Any, Any]] = {}
        if "n_id" in self._wanted:
            more["n_id"] = {
                name: torch.from_numpy(setting.graph.to_original(name, ids)).to(setting.device)
                for name, ids in found.nodes.items()
            }
        columns = {"edge_weight": setting.edge_weight, "edge_attr": setting.edge_attr}
        for keyword, column in columns.items():
            if column is not None and keyword in self._wanted:
                more[keyword] = {
                    edge_type: chunk.edge_values(edge_type, column).to(setting.device)
                    for edge_type in found.edges
                }
        return more


def _names_of(call: Callable[..., Any]) -> frozenset[str]:
    target = call.forward if isinstance(call, nn.Module) else call
    try:
        return frozenset(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return frozenset()


def _sparse(indptr: np.ndarray, indices: np.ndarray, values: Tensor, num_sources: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse ")  # torch warns that they are in beta
        return torch.sparse_csr_tensor(
            torch.from_numpy(indptr.astype(indices.dtype)),
            as_tensor(indices),
            values,
            size=(len(indptr) - 1, num_sources),
            check_invariants=False,
        )
