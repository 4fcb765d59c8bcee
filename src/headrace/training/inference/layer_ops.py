"""How a layer is computed for a chunk: in place where it can be, else from gathered rows."""

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
from headrace.training.inference.node_chunks import Chunk, Surroundings, Surveyor, cut

Inputs = Mapping[str, Tensor]
"""Rows of all nodes that go into a layer, by node type; mapped."""

Tail = Callable[[Tensor], Tensor]
"""What comes after a convolution, node by node."""

_FLOAT_BYTES = 4
# Values and what they are made of; ids are mapped.
_SPARSE_EDGE_BYTES = 16
_DEGREE_MEMORY_BYTES = 1 << 26


@dataclass(frozen=True)
class Setting:
    """What all layers of an inference share.

    Attributes:
        graph: The graph.
        is_homogeneous: Whether layers take tensors, not dictionaries by type.
        device: Where layers compute what was gathered.
        edge_weight: Edge column that layers get as `edge_weight`.
        edge_attr: Edge column that layers get as `edge_attr`.
        widest: Numbers per node that a layer may have on the way.
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
        """Bytes per edge and per target of a chunk.

        Args:
            width: Numbers per node that go in.
        """

    @abstractmethod
    def rows(self, chunk: Chunk, inputs: Inputs) -> Tensor | None:
        """Rows of the targets; none if the layer has none for their type."""


class Summed(Step):
    """A convolution that adds up the rows of neighbours before all else.

    It reads them where they are mapped: nothing is gathered, and nothing is computed twice.

    Args:
        conv: PyG's `SAGEConv` or `GINConv`, which take a sparse matrix.
        tail: What comes after it.
        setting: Of the inference.
    """

    def __init__(self, conv: nn.Module, tail: Tail, setting: Setting) -> None:
        self._conv = conv
        self._tail = tail
        self._setting = setting

    def costs(self, width: int) -> tuple[int, int]:
        """Only the matrix and the targets' own rows."""
        return _SPARSE_EDGE_BYTES, _FLOAT_BYTES * (2 * width + 4 * self._setting.widest)

    def rows(self, chunk: Chunk, inputs: Inputs) -> Tensor:
        """Rows of the targets."""
        x = inputs[chunk.node_type]
        indptr, indices = chunk.lists(chunk.edge_types[0])
        matrix = _sparse(indptr, indices, torch.ones(len(indices)), len(x))
        own = x[chunk.first : chunk.first + chunk.num_targets]
        return self._tail(self._conv((x, own), matrix))


class Normalized(Step):
    """PyG's `GCNConv`: edges are weighed by the degrees of both ends in the whole graph.

    Rows are added up before they are multiplied by the layer's weights, which is the same but for
    rounding, so that they are read where they are mapped.

    Args:
        conv: The layer.
        tail: What comes after it.
        setting: Of the inference.
        roots: One over the square root of every degree, kept for other layers like this one.
    """

    def __init__(
        self, conv: Any, tail: Tail, setting: Setting, roots: dict[tuple[bool, bool], np.ndarray]
    ) -> None:
        self._conv = conv
        self._tail = tail
        self._setting = setting
        self._roots = roots

    def costs(self, width: int) -> tuple[int, int]:
        """The matrix, the ends of its edges, and the targets' rows."""
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
        """Lists, weights of the edges, and weights of loops, which PyG keeps apart or adds."""
        edge_type, name = chunk.edge_types[0], self._setting.edge_weight
        indptr, indices = chunk.lists(edge_type)
        weights = np.ones(len(indices), np.float32)
        if name is not None:
            weights = chunk.edge_values(edge_type, name).reshape(-1).numpy().copy()
        # PyG forgets `improved` where edges have no weights.
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
    """Any layer: gets the targets and their neighbours as a small graph.

    Args:
        call: Takes rows, edges, and what else its signature names of `size`, `n_id`,
            `edge_weight` and `edge_attr`.
        tail: What comes after it.
        setting: Of the inference.
        is_bipartite: Whether it takes rows of sources and of targets, and gives the latter only.
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
        self._surveyor = Surveyor(setting.graph)

    def costs(self, width: int) -> tuple[int, int]:
        """A source of its own for every edge, and a message and what it is made of."""
        widest = max(width, self._setting.widest)
        return _FLOAT_BYTES * (width + 2 * widest) + 64, 4 * _FLOAT_BYTES * widest

    def rows(self, chunk: Chunk, inputs: Inputs) -> Tensor | None:
        """Rows of the targets."""
        device, found = self._setting.device, self._surveyor.around(chunk)
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

    def _more(self, chunk: Chunk, found: Surroundings) -> dict[str, dict[Any, Any]]:
        """What else the layer asks for, by type."""
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
        warnings.filterwarnings("ignore", "Sparse ")  # torch announces that they are new
        return torch.sparse_csr_tensor(
            torch.from_numpy(indptr.astype(indices.dtype)),
            as_tensor(indices),
            values,
            size=(len(indptr) - 1, num_sources),
            check_invariants=False,
        )
