"""Graphs that are PyG objects in this process: nothing is partitioned, features are not copied."""

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
from headrace.graph.sampling.store_pool import IDS, Of, StorePool
from headrace.graph.schema import SPLITS, EdgeType, NodeTable
from headrace.graph.sources.pyg import from_pyg


class InMemoryView(GraphView):
    """A PyG `Data` or `HeteroData`, whose tensors stay where they are; new ids are original ids.

    Neighbour lists are made here, and values of edges are copied into their order.

    Args:
        data: The graph.
    """

    def __init__(self, data: Any) -> None:
        from torch_geometric.data import HeteroData

        source = from_pyg(data)
        counts = {table.name: table.num_nodes for table in source.nodes}
        self._arrays: dict[tuple[Of, str], np.ndarray] = {}
        self._cscs: dict[EdgeType, tuple[np.ndarray, np.ndarray]] = {}
        self._splits = {table.name: table.splits for table in source.nodes}
        columns: dict[Of, dict[str, ColumnInfo]] = {}
        offsets: dict[Of, np.ndarray] = {}
        for table in source.nodes:
            offsets[table.name] = np.array([0, table.num_nodes])
            self._keep(table.name, _values(table))
        for edge in source.edges:
            ends = counts[edge.edge_type[0]], counts[edge.edge_type[2]]
            with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
                csc = build_csc(edge, *ends, Path(folder))
                indptr, indices, ids = (
                    np.array(part) for part in (csc.indptr, csc.indices, csc.edge_ids)
                )
            self._cscs[edge.edge_type] = indptr, indices
            self._keep(
                edge.edge_type,
                {c.name: c.read(0, edge.num_edges)[ids] for c in edge.columns},
            )
            self._arrays[edge.edge_type, IDS] = ids
            offsets[edge.edge_type] = np.array([0, edge.num_edges])
        for of in offsets:
            columns[of] = {
                name: ColumnInfo(name=name, dtype=array.dtype.name, shape=array.shape[1:])
                for (owner, name), array in self._arrays.items()
                if owner == of and name != IDS
            }
        extras = {} if isinstance(data, HeteroData) else _extras(data, columns)
        edge_types = [edge.edge_type for edge in source.edges]
        super().__init__(counts, edge_types, columns, offsets, StorePool(), extras)
        # PyG tells by its class what a graph is, whatever its types are called.
        self._is_hetero = isinstance(data, HeteroData)

    @property
    def is_homogeneous(self) -> bool:
        """Whether batches are `Data`, not `HeteroData`."""
        return not self._is_hetero

    def to_new(self, node_type: str, original_ids: np.ndarray) -> np.ndarray:
        """The same ids; SpecError for an id that no node has."""
        ids = np.asarray(original_ids, np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.num_nodes[node_type]:
            raise SpecError(
                f"ids {ids.min()} to {ids.max()} of {node_type!r} were asked for, there are "
                f"{self.num_nodes[node_type]} nodes",
                f"use 0 to {self.num_nodes[node_type] - 1}",
            )
        return ids

    def to_original(self, node_type: str, new_ids: np.ndarray) -> np.ndarray:
        """The same ids."""
        return new_ids

    def has_edge_ids(self, edge_type: EdgeType) -> bool:
        """They are column numbers of `edge_index`."""
        return True

    def hops(self, weight: str | None, time: str | None) -> HopSource:
        """Who knows the neighbours, drawn by an edge column and not later than another column."""
        for name in (weight, time):
            if name is not None and not any(name in named for named in self.columns.values()):
                raise SpecError(f"the data has no {name!r}", "name an attribute that it has")
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
            raise SpecError(f"nodes of type {node_type!r} have no {split}_mask", "give input nodes")
        return np.asarray(self._splits[node_type][split], np.int64)

    def links(self, edge_type: EdgeType, split: str) -> np.ndarray:
        """PyG's objects have none."""
        raise SpecError(f"the data has no {split} links", "give edge_label_index as a tensor")

    def part_array(self, of: Of, name: str, part: int) -> np.ndarray:
        """What the only part has of a column."""
        return self._arrays[of, name]

    def lists(self, edge_type: EdgeType, part: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the in-edges of all nodes begin, and ids of their sources."""
        return self._cscs[edge_type]

    def _keep(self, of: Of, values: Mapping[str, np.ndarray]) -> None:
        for name, array in values.items():
            self._arrays[of, name] = np.ascontiguousarray(array)


def _values(table: NodeTable) -> dict[str, np.ndarray]:
    """All columns of a table, and its splits as PyG's masks."""
    values = {column.name: column.read(0, table.num_nodes) for column in table.columns}
    for split in SPLITS:
        if split in table.splits:
            values[f"{split}_mask"] = np.zeros(table.num_nodes, bool)
            values[f"{split}_mask"][table.splits[split]] = True
    return values


def _extras(data: Any, columns: Mapping[Of, Mapping[str, ColumnInfo]]) -> dict[str, Any]:
    known = {name for named in columns.values() for name in named}
    known |= {"edge_index", "num_nodes", "adj_t"}
    return {key: data[key] for key in data.keys() if key not in known}  # noqa: SIM118
