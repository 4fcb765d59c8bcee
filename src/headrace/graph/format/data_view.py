"""The interface of PyG's `Data` and `HeteroData` for a partitioned graph.

Sizes come from the manifest. Masks and labels are read from all partitions, which must be on this
machine. Features are available only through loaders.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.format.manifest import (
    FEATURES,
    LABELS,
    ColumnInfo,
    Manifest,
    NodeInfo,
    node_path,
)
from headrace.graph.schema import EdgeType

if TYPE_CHECKING:
    import torch

MASKS = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}


class _Partition(Protocol):
    def original_ids(self, node_type: str) -> np.ndarray: ...

    def split(self, node_type: str, split: str) -> np.ndarray: ...

    def column(self, node_type: str, name: str) -> np.ndarray: ...


class _Graph(Protocol):
    folder: Path
    manifest: Manifest

    @property
    def num_parts(self) -> int: ...

    def part(self, number: int) -> _Partition: ...

    def check_values(self, path: str, ids: np.ndarray, end: int) -> None: ...


class NodeView:
    """Nodes of one type; the result of `data[node_type]`."""

    def __init__(self, graph: _Graph, node_type: str) -> None:
        self._graph, self._type = graph, node_type
        self._index = graph.manifest.node_index(node_type)

    def __repr__(self) -> str:
        return f"<{self.num_nodes} nodes of type {self._type!r} of {self._graph!r}>"

    @property
    def _info(self) -> NodeInfo:
        return self._graph.manifest.nodes[self._index]

    @property
    def num_nodes(self) -> int:
        """Number of nodes in all partitions."""
        return self._info.num_nodes

    @property
    def num_features(self) -> int:
        """Width of `x`; 0 without features."""
        column = self._column(FEATURES)
        if column is None:
            return 0
        return column.shape[0] if column.shape else 1

    num_node_features = num_features

    @property
    def num_classes(self) -> int:
        """Largest label plus one; for multi-dimensional labels their width.

        Raises:
            SpecError: Nodes have no labels, or a partition is not on this machine.
        """
        column = self._column(LABELS)
        if column is not None and column.shape:
            return column.shape[0]
        if self._info.num_classes is not None:
            return self._info.num_classes
        return int(self.y.numpy().max(initial=-1)) + 1

    @property
    def y(self) -> torch.Tensor:
        """Labels of all nodes, in the order of original ids.

        Raises:
            SpecError: Nodes have no labels, or a partition is not on this machine.
        """
        import torch

        column = self._column(LABELS)
        if column is None:
            raise SpecError(f"nodes of type {self._type!r} have no y", "add labels to the source")
        graph = self._graph
        values: np.ndarray | None = None
        for number in range(graph.num_parts):
            originals = self._originals(number)
            rows = graph.part(number).column(self._type, LABELS)
            if values is None:
                values = np.empty((self.num_nodes, *rows.shape[1:]), rows.dtype)
            values[originals] = rows
        assert values is not None
        return torch.from_numpy(values)

    def mask(self, split: str) -> torch.Tensor:
        """Boolean mask of a split, in the order of original ids.

        Raises:
            SpecError: The split does not exist, or a partition is not on this machine.
        """
        import torch

        mask = np.zeros(self.num_nodes, np.bool_)
        for number in range(self._graph.num_parts):
            originals = self._originals(number)
            mask[originals[self._graph.part(number).split(self._type, split)]] = True
        return torch.from_numpy(mask)

    def __getattr__(self, name: str) -> Any:
        if name in MASKS and MASKS[name] in self._info.splits:
            return self.mask(MASKS[name])
        raise AttributeError(_explain(self._graph.manifest, self._info, name))

    def _column(self, name: str) -> ColumnInfo | None:
        return next((column for column in self._info.columns if column.name == name), None)

    def _originals(self, number: int) -> np.ndarray:
        graph, path = self._graph, node_path(number, self._index, "ids")
        if not (graph.folder / path).exists():
            raise SpecError(
                f"graph partition {number} is not on this machine",
                "pass the name of a split to the loader (`input_nodes='train'`), and read "
                "features and labels from its batches",
            )
        ids = graph.part(number).original_ids(self._type)
        graph.check_values(path, ids, self.num_nodes)
        return ids


class EdgeView:
    """Edges of one type; the result of `data[edge_type]`.

    Attributes:
        num_edges: Number of edges in all partitions.
    """

    def __init__(self, manifest: Manifest, edge_type: EdgeType) -> None:
        self.num_edges = manifest.edges[manifest.edge_index(edge_type)].num_edges


class DataView:
    """Attributes of `Data` and `HeteroData`, for homogeneous and heterogeneous graphs."""

    manifest: Manifest

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(node.num_nodes for node in self.manifest.nodes)

    @property
    def num_edges(self) -> int:
        """Number of edges of all types."""
        return sum(edge.num_edges for edge in self.manifest.edges)

    @property
    def num_features(self) -> int | dict[str, int]:
        """Width of `x`; a dict by node type for heterogeneous graphs."""
        widths = {node.name: self[node.name].num_features for node in self.manifest.nodes}
        return widths if len(widths) > 1 else next(iter(widths.values()))

    num_node_features = num_features

    @property
    def num_classes(self) -> int:
        """Number of classes of the labelled node type.

        Raises:
            SpecError: Not exactly one node type has labels, or a partition is not on this machine.
        """
        return int(self._labelled.num_classes)

    @property
    def y(self) -> torch.Tensor:
        """Labels of the labelled node type, in the order of original ids.

        Raises:
            SpecError: Not exactly one node type has labels, or a partition is not on this machine.
        """
        return self._labelled.y

    def metadata(self) -> tuple[list[str], list[EdgeType]]:
        """Node types and edge types, as expected by `torch_geometric.nn.to_hetero`."""
        return [node.name for node in self.manifest.nodes], [
            edge.edge_type for edge in self.manifest.edges
        ]

    def __getitem__(self, key: Any) -> Any:
        """Nodes or edges of one type."""
        graph: Any = self
        if isinstance(key, str):
            return NodeView(graph, key)
        return EdgeView(self.manifest, tuple(key))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "manifest":
            raise AttributeError(name)
        only = self.manifest.nodes[0]
        if name in MASKS:
            having = [node.name for node in self.manifest.nodes if MASKS[name] in node.splits]
            if len(having) == 1:
                return self[having[0]].mask(MASKS[name])
        raise AttributeError(_explain(self.manifest, only, name))

    @property
    def _labelled(self) -> NodeView:
        having = [
            node.name
            for node in self.manifest.nodes
            if any(column.name == LABELS for column in node.columns)
        ]
        if len(having) != 1:
            raise SpecError(
                f"{len(having)} node types have labels", "use graph[node_type].y for one node type"
            )
        view: NodeView = self[having[0]]
        return view


def _explain(manifest: Manifest, node: NodeInfo, name: str) -> str:
    if name in MASKS:
        return f"the graph has no {MASKS[name]} split; {manifest.note or 'its source has no masks'}"
    if any(column.name == name for column in node.columns):
        return (
            f"{name} is not loaded as a whole: use `batch.{name}` of a loader; num_features is the "
            "width of features"
        )
    return f"a partitioned graph has no {name!r}"
