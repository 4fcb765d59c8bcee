"""PyG's `FeatureStore` and `GraphStore` for partitioned graphs; ids are original ids."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, EdgeAttr, FeatureStore, GraphStore, HeteroData, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.graph.loader.collate import finish
from headrace.graph.loader.graph_view import GraphView, PartitionedGraphView
from headrace.graph.loader.in_memory_view import InMemoryView
from headrace.graph.loader.inputs import whole_csc
from headrace.graph.sampling.store_pool import Connect
from headrace.graph.schema import TypeName


class PartitionedFeatureStore(FeatureStore):  # type: ignore[misc]
    """Columns of nodes and edges.

    `group_name` is a node type or an edge type; None for the nodes of a homogeneous graph. Edges
    are indexed in storage order, not by original ids. 16-bit features are cast to `float32` unless
    `keep_dtype` is set.
    """

    def __init__(self, access: GraphView, keep_dtype: bool = False) -> None:
        super().__init__()
        self.access = access
        self.keep_dtype = keep_dtype

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """All node columns."""
        return [
            TensorAttr(None if self.access.is_homogeneous else node_type, name)
            for node_type in self.access.node_types
            for name in self.access.columns[node_type]
        ]

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        of, column = self._find(attr)
        ids = _ids(attr.index, int(self.access.offsets[of][-1]))
        if isinstance(of, str):
            ids = self.access.to_new(of, ids)
        else:
            self.access.check_edges(of, ids)
        gathering = self.access.gather(of, attr.attr_name, ids, may_repeat=True)
        rows = finish(gathering, column, len(ids), self.keep_dtype)
        return rows[0] if isinstance(attr.index, int) else rows

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        of, column = self._find(attr)
        return int(self.access.offsets[of][-1]), *column.shape

    def _find(self, attr: TensorAttr) -> tuple[TypeName, Any]:
        of = self.access.node_types[0] if attr.group_name is None else attr.group_name
        return of, self.access.column(of, attr.attr_name)

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> NoReturn:
        raise _read_only()

    def _remove_tensor(self, attr: TensorAttr) -> NoReturn:
        raise _read_only()


class PartitionedGraphStore(GraphStore):  # type: ignore[misc]
    """Edges of all types; a whole edge type requires all graph partitions on this machine."""

    def __init__(self, access: GraphView) -> None:
        super().__init__()
        self.access = access

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """All edge types, in CSC layout."""
        sizes = self.access.num_nodes
        return [
            EdgeAttr(
                None if self.access.is_homogeneous else edge_type,
                EdgeLayout.CSC,
                is_sorted=True,
                size=(sizes[edge_type[0]], sizes[edge_type[2]]),
            )
            for edge_type in self.access.edge_types
        ]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        edge_type = edge_attr.edge_type or self.access.edge_types[0]
        if edge_attr.layout == EdgeLayout.CSR or edge_type not in self.access.edge_types:
            return None
        row, colptr = whole_csc(self.access, edge_type)
        if edge_attr.layout == EdgeLayout.CSC:
            return torch.from_numpy(row), torch.from_numpy(colptr)
        col = np.repeat(np.arange(len(colptr) - 1), np.diff(colptr))
        return torch.from_numpy(row), torch.from_numpy(col)

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> NoReturn:
        raise _read_only()

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> NoReturn:
        raise _read_only()


def open_stores(
    graph: PartitionedGraph | str | os.PathLike[str],
    connect: Mapping[int, Connect] | None = None,
    keep_dtype: bool = False,
) -> tuple[PartitionedFeatureStore, PartitionedGraphStore]:
    """Open a partitioned graph as a PyG remote backend.

    Args:
        graph: The graph or its folder, with the manifest, the id tables and the local partitions.
        connect: How to connect to the stores of all other partitions.
        keep_dtype: Whether 16-bit features are kept, not cast to `float32`.
    """
    access = find_access(graph, connect)
    return PartitionedFeatureStore(access, keep_dtype), PartitionedGraphStore(access)


def find_access(data: Any, connect: Mapping[int, Connect] | None = None) -> GraphView:
    """Graph view of the `data` argument of a loader.

    Raises:
        SpecError: It is not a graph.
    """
    if isinstance(data, str | os.PathLike):
        data = open_graph(data)
    if isinstance(data, PartitionedGraph):
        return PartitionedGraphView(data, connect)
    if connect:
        raise SpecError("only a partitioned graph has stores", "pass the folder of its manifest")
    if isinstance(data, GraphView):
        return data
    if isinstance(data, Data | HeteroData):
        return InMemoryView(data)
    if isinstance(data, tuple | list) and len(data) == 2:
        access: GraphView | None = getattr(data[0], "access", None)
        if isinstance(access, GraphView):
            return access
    raise SpecError(
        f"a {type(data).__name__} is not a graph",
        "pass a folder, a PartitionedGraph, a Data or HeteroData, or the pair of open_stores()",
    )


def _ids(index: Any, num_rows: int) -> np.ndarray:
    """Row numbers of any PyG index."""
    if index is None:
        return np.arange(num_rows)
    if isinstance(index, slice):
        return np.arange(num_rows)[index]
    ids = np.asarray(index.cpu() if isinstance(index, Tensor) else index)
    if ids.dtype == np.bool_:
        ids = np.flatnonzero(ids)
    return np.atleast_1d(ids).astype(np.int64, copy=False)


def _read_only() -> SpecError:
    return SpecError("a partitioned graph is read-only", "change its source and partition it again")
