"""Graph interface of the loaders, and its implementation for partitioned graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.format.manifest import ColumnInfo, edges_have
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.format.row_codec import StoredRows
from headrace.graph.sampling.feature_gather import FeatureColumns, FeatureGather
from headrace.graph.sampling.hop import HopSource, LocalSource
from headrace.graph.sampling.local_edges import open_edge_parts
from headrace.graph.sampling.remote_scores import RemoteScores
from headrace.graph.sampling.store_pool import IDS, Connect, DistributedHopSource, StorePool
from headrace.graph.schema import EdgeType, TypeName
from headrace.graph.sources.arrays import EDGE, NODE
from headrace.graph.store.shard import open_shard


class GraphView(ABC):
    """Graph interface of the loaders; original node ids are external, new ids internal.

    Attributes:
        num_nodes: Nodes by node type.
        edge_types: Edge types, in the order in which a hop expands them.
        columns: Columns by node type or edge type.
        offsets: First id of each graph partition, and the end, by node type or edge type.
        stores: Stores of the remote partitions.
        extras: Graph-level attributes, copied to every batch.
    """

    def __init__(
        self,
        num_nodes: Mapping[str, int],
        edge_types: Sequence[EdgeType],
        columns: Mapping[TypeName, Mapping[str, ColumnInfo]],
        offsets: Mapping[TypeName, np.ndarray],
        stores: StorePool,
        extras: Mapping[str, Any],
    ) -> None:
        self.num_nodes = dict(num_nodes)
        self.edge_types = tuple(edge_types)
        self.columns = {of: dict(named) for of, named in columns.items()}
        self.offsets = dict(offsets)
        self.stores = stores
        self.extras = dict(extras)
        self._rows: dict[tuple[TypeName, str], FeatureColumns] = {}

    @property
    def node_types(self) -> tuple[str, ...]:
        """All node types."""
        return tuple(self.num_nodes)

    @property
    def node_offsets(self) -> dict[str, np.ndarray]:
        """First new id of each graph partition, and the end, by node type."""
        return {name: self.offsets[name] for name in self.node_types}

    @property
    def is_homogeneous(self) -> bool:
        """Whether batches are `Data`, not `HeteroData`."""
        return self.node_types == (NODE,) and self.edge_types == (EDGE,)

    @abstractmethod
    def to_new(self, node_type: str, original_ids: np.ndarray) -> np.ndarray:
        """New ids of nodes; raise `SpecError` for an unknown id."""

    @abstractmethod
    def to_original(self, node_type: str, new_ids: np.ndarray) -> np.ndarray:
        """Original ids of nodes."""

    @abstractmethod
    def has_edge_ids(self, edge_type: EdgeType) -> bool:
        """Whether original edge ids are available."""

    @abstractmethod
    def hops(self, weight: str | None, time: str | None) -> HopSource:
        """Source of neighbours, with optional weight and time columns."""

    @abstractmethod
    def split(self, node_type: str, split: str) -> np.ndarray:
        """Original ids of the `train`, `val` or `test` nodes, ascending."""

    @abstractmethod
    def links(self, edge_type: EdgeType, split: str) -> np.ndarray:
        """Held-out links by original ids, `(2, num_links)`."""

    @abstractmethod
    def part_array(self, of: TypeName, name: str, part: int) -> StoredRows:
        """A column of a local graph partition, as it is stored."""

    @abstractmethod
    def lists(self, edge_type: EdgeType, part: int) -> tuple[np.ndarray, np.ndarray]:
        """CSC of a local graph partition: offsets, and new ids of the sources."""

    def gather(
        self,
        of: TypeName,
        name: str,
        ids: np.ndarray,
        may_repeat: bool = False,
        scores: RemoteScores | None = None,
    ) -> FeatureGather:
        """Request rows by new node ids, or by edge ids as hops return them.

        With `scores`, only their dimensions of remote rows; see `FeatureGather`.
        """
        if (of, name) not in self._rows:
            offsets = self.offsets[of]
            parts = [
                None if part in self.stores else self.part_array(of, name, part)
                for part in range(len(offsets) - 1)
            ]
            info = self.columns[of].get(name)
            codec = None if info is None else info.codec
            self._rows[of, name] = FeatureColumns(of, name, offsets, parts, codec)
        return FeatureGather(self._rows[of, name], ids, self.stores, may_repeat, scores)

    def column(self, of: TypeName, name: str) -> ColumnInfo:
        """Metadata of a column; raise `SpecError` if it does not exist."""
        named = self.columns.get(of)
        if named is None:
            known = [*self.node_types, *self.edge_types]
            raise SpecError(f"the graph has no type {of!r}", f"it has {known}")
        if name not in named:
            raise SpecError(f"{of!r} has no column {name!r}", f"it has {', '.join(named)}")
        return named[name]

    def check_edges(self, edge_type: EdgeType, edges: np.ndarray) -> None:
        """Raise `SpecError` if edge ids are out of range."""
        num_edges = int(self.offsets[edge_type][-1])
        if len(edges) and not 0 <= edges.min() <= edges.max() < num_edges:
            raise SpecError(
                f"edges {edges.min()} to {edges.max()} of {edge_type} were requested, there are "
                f"{num_edges}",
                f"use 0 to {num_edges - 1}",
            )

    def edge_ids(self, edge_type: EdgeType, edges: np.ndarray) -> np.ndarray:
        """Original ids of edges, `int64`."""
        original = np.empty(len(edges), np.int64)
        self.gather(edge_type, IDS, edges).into(original)
        return original


class PartitionedGraphView(GraphView):
    """View of a partitioned graph.

    Args:
        graph: Manifest, id tables and the local graph partitions.
        connect: How to connect to the stores of all other partitions.
    """

    def __init__(
        self, graph: PartitionedGraph, connect: Mapping[int, Connect] | None = None
    ) -> None:
        manifest = graph.manifest
        infos = {node.name: node for node in manifest.nodes}
        edges = {edge.edge_type: edge for edge in manifest.edges}
        offsets: dict[TypeName, np.ndarray] = {name: graph.offsets(name) for name in infos}
        columns: dict[TypeName, dict[str, ColumnInfo]] = {
            name: {column.name: column for column in info.columns} for name, info in infos.items()
        }
        for edge_type, edge in edges.items():
            offsets[edge_type] = np.array(edge.offsets, np.int64)
            columns[edge_type] = {column.name: column for column in edge.columns}
        counts = {name: info.num_nodes for name, info in infos.items()}
        super().__init__(counts, graph.edge_types, columns, offsets, StorePool(connect), {})
        self.graph = graph

    def to_new(self, node_type: str, original_ids: np.ndarray) -> np.ndarray:
        """New ids of nodes; raise `SpecError` for an unknown id."""
        return self.graph.to_new(node_type, original_ids)

    def to_original(self, node_type: str, new_ids: np.ndarray) -> np.ndarray:
        """Original ids of nodes."""
        if self.stores and not self.stores.serve(node_type, IDS):
            # Stores without them.
            return np.asarray(self.graph.original_ids(node_type)[new_ids], np.int64)
        original = np.empty(len(new_ids), np.int64)
        self.gather(node_type, IDS, new_ids).into(original)
        return original

    def has_edge_ids(self, edge_type: EdgeType) -> bool:
        """Whether original edge ids are available."""
        manifest = self.graph.manifest
        has_ids = manifest.edges[manifest.edge_index(edge_type)].has_ids
        return has_ids and (not self.stores or self.stores.serve(edge_type, IDS))

    def hops(self, weight: str | None, time: str | None) -> HopSource:
        """Source of neighbours, with optional weight and time columns."""
        graph = self.graph
        if not self.stores:
            return LocalSource(open_edge_parts(graph, weight=weight, time=time))
        if not edges_have(graph.manifest, weight, time) and time is not None:
            raise SpecError(
                f"{time!r} is a time of nodes, which a store has only for its own partition",
                "use a time of edges, or map all partitions on this machine (--stores 0)",
            )
        shards = [
            None if part in self.stores else open_shard(graph, part)
            for part in range(graph.num_parts)
        ]
        parts = {
            edge_type: [
                None if shard is None else shard.edges_by(edge_type, weight, time)
                for shard in shards
            ]
            for edge_type in self.edge_types
        }
        offsets = {name: graph.offsets(name) for name in self.node_types}
        return DistributedHopSource(parts, offsets, self.stores, weight, time)

    def split(self, node_type: str, split: str) -> np.ndarray:
        """Original ids of the `train`, `val` or `test` nodes, ascending."""
        if self.stores:
            raise SpecError(
                f"the {split} nodes of partitions {self.stores.parts} are not on this machine",
                "pass the ids of input nodes",
            )
        parts = [self.graph.part(number) for number in range(self.graph.num_parts)]
        own = [part.original_ids(node_type)[part.split(node_type, split)] for part in parts]
        return np.sort(np.concatenate(own)).astype(np.int64)

    def links(self, edge_type: EdgeType, split: str) -> np.ndarray:
        """Held-out links by original ids, `(2, num_links)`."""
        src, dst = self.graph.links(split, edge_type).astype(np.int64)
        ends = ((edge_type[0], src), (edge_type[2], dst))
        return np.stack([self.to_original(name, ids) for name, ids in ends])

    def part_array(self, of: TypeName, name: str, part: int) -> StoredRows:
        """A column of a local graph partition, as it is stored."""
        own = self.graph.part(part)
        if isinstance(of, str):
            return own.original_ids(of) if name == IDS else own.stored_rows(of, name)
        values = own.edge_ids(of) if name == IDS else own.edge_column(of, name)
        assert values is not None
        return values

    def lists(self, edge_type: EdgeType, part: int) -> tuple[np.ndarray, np.ndarray]:
        """CSC of a local graph partition: offsets, and new ids of the sources."""
        own = self.graph.part(part)
        return own.indptr(edge_type), own.indices(edge_type)
