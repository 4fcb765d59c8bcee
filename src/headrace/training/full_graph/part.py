"""A trainer's part of a graph: its nodes, their in-edges, and which rows other trainers have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import PartitionedGraph, as_tensor
from headrace.graph.loader.collate import finish
from headrace.graph.loader.graph_view import PartitionedGraphView
from headrace.graph.sampling.store_pool import Connect
from headrace.graph.schema import SPLITS, EdgeType

RowsOfTrainers = tuple[np.ndarray, np.ndarray]
"""Trainers, and the row of each at its trainer."""


@dataclass(frozen=True)
class Ownership:
    """Which trainer has which partitions.

    A trainer numbers its nodes of a type by partition, then by id. If it counts all its nodes in
    one row, types follow each other in the order of `offsets`.

    Attributes:
        offsets: First new id of each partition, and the end, by node type.
        trainers: Trainer of each partition.
    """

    offsets: Mapping[str, np.ndarray]
    trainers: np.ndarray

    @classmethod
    def balanced(cls, graph: PartitionedGraph, is_here: np.ndarray) -> Ownership:
        """Assign each partition to a trainer that has its files: the one with the fewest nodes.

        Args:
            graph: The graph.
            is_here: Whether a trainer's machine has a partition, by trainer and partition.

        Raises:
            SpecError: There are fewer partitions than trainers, or one is on no trainer's machine.
        """
        num_trainers, num_parts = is_here.shape
        if num_parts < num_trainers:
            raise SpecError(
                f"full-graph training with {num_trainers} trainers needs as many partitions, "
                f"the graph has {num_parts}",
                f"partition the graph with `--parts {num_trainers}`, or use fewer trainers",
            )
        offsets = {name: graph.offsets(name) for name in graph.node_types}
        sizes = np.sum([np.diff(each) for each in offsets.values()], axis=0)
        num_nodes = np.zeros(num_trainers, np.int64)
        trainers = np.full(num_parts, -1)
        # Partitions with the fewest choices first, then the largest.
        for part in np.lexsort((np.arange(num_parts), -sizes, is_here.sum(0))):
            able = np.flatnonzero(is_here[:, part])
            if not len(able):
                raise SpecError(
                    f"graph partition {part} is not on the machine of a trainer",
                    "plan with a trainer on every machine that has a partition",
                )
            trainers[part] = able[np.argmin(num_nodes[able])]
            num_nodes[trainers[part]] += sizes[part]
        return cls(offsets, trainers)

    @property
    def num_trainers(self) -> int:
        """Number of trainers."""
        return int(self.trainers.max()) + 1

    def parts(self, trainer: int) -> list[int]:
        """Partitions of a trainer, ascending."""
        own: list[int] = np.flatnonzero(self.trainers == trainer).tolist()
        return own

    def num_nodes(self, node_type: str, trainer: int) -> int:
        """Nodes of a trainer."""
        return int(np.diff(self.offsets[node_type])[self.trainers == trainer].sum())

    def locate(self, node_type: str, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Trainer and row of nodes, by new id."""
        parts = np.searchsorted(self.offsets[node_type], ids, side="right") - 1
        trainers: np.ndarray = self.trainers[parts]
        return trainers, ids - self._starts[node_type][parts]

    def start(self, node_type: str, trainer: int) -> int:
        """Number of a trainer's first node of a type, if all types are counted in one row."""
        names = list(self.offsets)
        return sum(self.num_nodes(each, trainer) for each in names[: names.index(node_type)])

    @cached_property
    def _starts(self) -> dict[str, np.ndarray]:
        """New id less row, by node type and partition."""
        starts = {}
        for node_type, offsets in self.offsets.items():
            sizes = np.diff(offsets)
            rows = np.zeros(len(sizes), np.int64)
            for trainer in np.unique(self.trainers):
                own = self.trainers == trainer
                rows[own] = np.cumsum(sizes[own]) - sizes[own]
            starts[node_type] = offsets[:-1] - rows
        return starts


class GraphPart:
    """The nodes of one trainer and their in-edges.

    Args:
        graph: The graph.
        ownership: Partitions of all trainers.
        trainer: The trainer.
        connect: How to connect to stores of partitions whose files are not read.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        ownership: Ownership,
        trainer: int,
        connect: Mapping[int, Connect] | None = None,
    ) -> None:
        self._graph, self._ownership, self._trainer = graph, ownership, trainer
        own = ownership.parts(trainer)
        self._parts = [graph.part(number) for number in own]
        remote = {part: how for part, how in (connect or {}).items() if part not in own}
        self._view = PartitionedGraphView(graph, remote)
        self._halos: dict[EdgeType, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def is_homogeneous(self) -> bool:
        """Whether the batch is `Data`, not `HeteroData`."""
        return self._view.is_homogeneous

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """All edge types."""
        return self._graph.edge_types

    def num_nodes(self, node_type: str) -> int:
        """Nodes of the trainer."""
        return self._ownership.num_nodes(node_type, self._trainer)

    def halo(self, edge_type: EdgeType) -> tuple[np.ndarray, np.ndarray]:
        """Trainers and rows of the sources that other trainers have; by trainer, then row."""
        if edge_type not in self._halos:
            self._halos[edge_type] = self._find_halo(edge_type)
        return self._halos[edge_type]

    def _find_halo(self, edge_type: EdgeType) -> tuple[np.ndarray, np.ndarray]:
        source = edge_type[0]
        ids = np.unique(np.concatenate([part.halo(edge_type) for part in self._parts]))
        trainers, rows = self._ownership.locate(source, ids.astype(np.int64))
        far = trainers != self._trainer
        order = np.lexsort((rows[far], trainers[far]))
        return trainers[far][order], rows[far][order]

    def joined_halo(self) -> tuple[np.ndarray, np.ndarray]:
        """Halos of all edge types, one after the other; rows count all types of their trainers."""
        found = []
        for edge_type in self.edge_types:
            trainers, rows = self.halo(edge_type)
            starts = [
                self._ownership.start(edge_type[0], trainer)
                for trainer in range(self._ownership.num_trainers)
            ]
            found.append((trainers, rows + np.array(starts)[trainers]))
        return np.concatenate([each for each, _ in found]), np.concatenate(
            [row for _, row in found]
        )

    def halo_edges(self) -> Tensor:
        """Edges of each row of `joined_halo`."""
        counts = []
        for edge_type in self.edge_types:
            num, first = len(self.halo(edge_type)[0]), self.first_halo_row(edge_type)
            behind = self.edge_index(edge_type)[0] - first
            counts.append(torch.bincount(behind[behind >= 0], minlength=num))
        return torch.cat(counts)

    def first_halo_row(self, edge_type: EdgeType) -> int:
        """Number of the first halo row in `edge_index`.

        If nodes of all types are put in one row and their numbers shifted accordingly, halo rows
        of all edge types are behind all nodes, one edge type after the other.
        """
        before = self.edge_types[: self.edge_types.index(edge_type)]
        num_halo = sum(len(self.halo(each)[0]) for each in before)
        num_nodes = sum(map(self.num_nodes, self._graph.node_types))
        return num_nodes - self._ownership.start(edge_type[0], self._trainer) + num_halo

    def edge_index(self, edge_type: EdgeType) -> Tensor:
        """In-edges of all nodes: numbers of sources, those of the halo last, and destinations."""
        source, _, destination = edge_type
        indptrs = [part.indptr(edge_type) for part in self._parts]
        ids = np.concatenate([part.indices(edge_type) for part in self._parts]).astype(np.int64)
        trainers, rows = self._ownership.locate(source, ids)
        halo_trainers, halo_rows = self.halo(edge_type)
        # Orders rows of all trainers as the halo is ordered.
        stride = int(self._ownership.offsets[source][-1]) + 1
        far = trainers != self._trainer
        keys = trainers[far] * stride + rows[far]
        places = np.searchsorted(halo_trainers * stride + halo_rows, keys)
        rows[far] = self.first_halo_row(edge_type) + places
        degrees = np.concatenate([np.diff(indptr) for indptr in indptrs])
        ends = np.repeat(np.arange(self.num_nodes(destination)), degrees)
        return torch.from_numpy(np.stack([rows, ends]))

    def train_nodes(self) -> int:
        """Number of training nodes, or of all nodes of the first type if there is no such split."""
        for info in self._graph.manifest.nodes:
            if "train" in info.splits:
                return int(sum(len(part.split(info.name, "train")) for part in self._parts))
        return self.num_nodes(self._graph.node_types[0])

    def batch(self) -> Data | HeteroData:
        """The part as PyG's data: columns, `edge_index`, masks of the splits, original ids."""
        graph, view = self._graph, self._view
        data: Any = Data() if self.is_homogeneous else HeteroData()
        for info in graph.manifest.nodes:
            store = data if self.is_homogeneous else data[info.name]
            ids = self._ids(info.name)
            for name, column in view.columns[info.name].items():
                store[name] = finish(view.gather(info.name, name, ids), column, len(ids), False)
            own = [np.asarray(part.original_ids(info.name), np.int64) for part in self._parts]
            store.n_id = torch.from_numpy(np.concatenate(own))
            store.num_nodes = len(ids)
            for split in (split for split in SPLITS if split in info.splits):
                store[f"{split}_mask"] = self._mask(info.name, split)
        for edge_type in graph.edge_types:
            store = data if self.is_homogeneous else data[edge_type]
            store.edge_index = self.edge_index(edge_type)
            for name, column in view.columns[edge_type].items():
                values = [part.edge_column(edge_type, name) for part in self._parts]
                # Concatenation copies: mapped arrays cannot be written to.
                store[name] = as_tensor(np.concatenate(values), column.dtype)
        return data

    def _ids(self, node_type: str) -> np.ndarray:
        starts = [(part.start(node_type), part.num_nodes(node_type)) for part in self._parts]
        return np.concatenate([np.arange(start, start + num) for start, num in starts])

    def _mask(self, node_type: str, split: str) -> Tensor:
        masks = []
        for part in self._parts:
            mask = np.zeros(part.num_nodes(node_type), bool)
            mask[part.split(node_type, split)] = True
            masks.append(mask)
        return torch.from_numpy(np.concatenate(masks))


def halo_sizes(graph: PartitionedGraph, trainers: Sequence[int]) -> dict[EdgeType, np.ndarray]:
    """Rows of each edge type's sources that trainers get from each other.

    Args:
        graph: The graph, with all its partitions.
        trainers: Trainer of each partition.

    Returns:
        By edge type: rows by receiving and sending trainer.
    """
    offsets = {name: graph.offsets(name) for name in graph.node_types}
    ownership = Ownership(offsets, np.asarray(trainers))
    num = max(trainers) + 1
    parts = [GraphPart(graph, ownership, trainer) for trainer in range(num)]
    return {
        edge_type: np.stack([np.bincount(part.halo(edge_type)[0], minlength=num) for part in parts])
        for edge_type in graph.edge_types
    }
