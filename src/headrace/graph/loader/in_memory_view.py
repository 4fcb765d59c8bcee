"""View of PyG objects in this process: not partitioned, features are not copied."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.build.csc import build_csc
from headrace.graph.format.manifest import ColumnInfo
from headrace.graph.loader.graph_view import GraphView
from headrace.graph.sampling.hop import EdgePart, HopSource, LocalSource
from headrace.graph.sampling.store_pool import IDS, StorePool
from headrace.graph.schema import SPLITS, EdgeType, NodeTable, TypeName
from headrace.graph.sources.pyg import from_pyg


class InMemoryView(GraphView):
    """View of a PyG `Data` or `HeteroData`; new ids are original ids.

    Node tensors are not copied. The CSC is built here, and edge columns are copied in its order.
    """

    def __init__(self, data: Any) -> None:
        from torch_geometric.data import HeteroData

        source = from_pyg(data)
        counts = {table.name: table.num_nodes for table in source.nodes}
        self._arrays: dict[tuple[TypeName, str], np.ndarray] = {}
        self._cscs: dict[EdgeType, tuple[np.ndarray, np.ndarray]] = {}
        self._splits = {table.name: table.splits for table in source.nodes}
        columns: dict[TypeName, dict[str, ColumnInfo]] = {}
        offsets: dict[TypeName, np.ndarray] = {}
        for table in source.nodes:
            offsets[table.name] = np.array([0, table.num_nodes])
            self._add_columns(table.name, _values(table))
        for edge in source.edges:
            ends = counts[edge.edge_type[0]], counts[edge.edge_type[2]]
            with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
                csc = build_csc(edge, *ends, Path(folder))
                indptr, indices, ids = (
                    np.array(part) for part in (csc.indptr, csc.indices, csc.edge_ids)
                )
            self._cscs[edge.edge_type] = indptr, indices
            self._add_columns(
                edge.edge_type,
                {c.name: c.read(0, edge.num_edges)[ids] for c in edge.columns},
            )
            self._arrays[edge.edge_type, IDS] = ids
            offsets[edge.edge_type] = np.array([0, edge.num_edges])
        for of in offsets:
            columns[of] = {
                name: ColumnInfo(name=name, dtype=array.dtype.name, shape=array.shape[1:])
                for (type_name, name), array in self._arrays.items()
                if type_name == of and name != IDS
            }
        extras = {} if isinstance(data, HeteroData) else _extras(data, columns)
        edge_types = [edge.edge_type for edge in source.edges]
        super().__init__(counts, edge_types, columns, offsets, StorePool(), extras)
        # In PyG the class decides whether a graph is heterogeneous, not its type names.
        self._is_hetero = isinstance(data, HeteroData)

    @property
    def is_homogeneous(self) -> bool:
        """Whether batches are `Data`, not `HeteroData`."""
        return not self._is_hetero

    def to_new(self, node_type: str, original_ids: np.ndarray) -> np.ndarray:
        """The same ids; raise `SpecError` for an unknown id."""
        ids = np.asarray(original_ids, np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.num_nodes[node_type]:
            raise SpecError(
                f"ids {ids.min()} to {ids.max()} of {node_type!r} were requested, there are "
                f"{self.num_nodes[node_type]} nodes",
                f"use 0 to {self.num_nodes[node_type] - 1}",
            )
        return ids

    def to_original(self, node_type: str, new_ids: np.ndarray) -> np.ndarray:
        """The same ids."""
        return new_ids

    def has_edge_ids(self, edge_type: EdgeType) -> bool:
        """Always; they are column numbers of `edge_index`."""
        return True

    def hops(self, weight: str | None, time: str | None) -> HopSource:
        """Source of neighbours, with optional weight and time columns."""
        for name in (weight, time):
            if name is not None and not any(name in named for named in self.columns.values()):
                raise SpecError(f"the data has no {name!r}", "name an existing attribute")
        parts = {}
        for edge_type, (indptr, indices) in self._cscs.items():
            times = None if time is None else self._arrays.get((edge_type, time))
            if times is None and time in self.columns[edge_type[0]]:
                times = self._arrays[edge_type[0], str(time)][indices]
            originals = np.arange(self.num_nodes[edge_type[2]])
            weights = None if weight is None else self._arrays.get((edge_type, weight))
            part = EdgePart(0, 0, indptr, indices, originals, weights, times)
            parts[edge_type] = [part]
        return LocalSource(parts)

    def split(self, node_type: str, split: str) -> np.ndarray:
        """Original ids of the `train`, `val` or `test` nodes, ascending."""
        if split not in self._splits[node_type]:
            raise SpecError(f"nodes of type {node_type!r} have no {split}_mask", "pass input nodes")
        return np.asarray(self._splits[node_type][split], np.int64)

    def links(self, edge_type: EdgeType, split: str) -> np.ndarray:
        """Raise `SpecError`: PyG objects have no held-out links."""
        raise SpecError(f"the data has no {split} links", "pass edge_label_index as a tensor")

    def part_array(self, of: TypeName, name: str, part: int) -> np.ndarray:
        """A column; there is one partition."""
        return self._arrays[of, name]

    def lists(self, edge_type: EdgeType, part: int) -> tuple[np.ndarray, np.ndarray]:
        """CSC of the graph: offsets, and ids of the sources."""
        return self._cscs[edge_type]

    def _add_columns(self, of: TypeName, values: Mapping[str, np.ndarray]) -> None:
        for name, array in values.items():
            self._arrays[of, name] = np.ascontiguousarray(array)


def _values(table: NodeTable) -> dict[str, np.ndarray]:
    """All columns of a table, and its splits as PyG masks."""
    values = {column.name: column.read(0, table.num_nodes) for column in table.columns}
    for split in SPLITS:
        if split in table.splits:
            values[f"{split}_mask"] = np.zeros(table.num_nodes, bool)
            values[f"{split}_mask"][table.splits[split]] = True
    return values


def _extras(data: Any, columns: Mapping[TypeName, Mapping[str, ColumnInfo]]) -> dict[str, Any]:
    known = {name for named in columns.values() for name in named}
    known |= {"edge_index", "num_nodes", "adj_t"}
    return {key: data[key] for key in data.keys() if key not in known}  # noqa: SIM118
