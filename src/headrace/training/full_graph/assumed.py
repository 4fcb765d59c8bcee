"""Trainers that are only assumed: one process estimates the step of any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.training.full_graph.part import GraphPart, Ownership

_PROBED_VALUES = 1024
"""A trace of a step leaves values to smaller tensors."""


class AssumedTrainers:
    """Stands for the process group of trainers that do not exist, in one process.

    What others send has the right size, and no values of theirs.

    Args:
        graph: The graph, with the files of all partitions.
        trainers: Trainer of each partition.
        rank: The trainer of this process.

    Attributes:
        ownership: Partitions of all trainers.
        rank: The trainer of this process.
    """

    def __init__(self, graph: PartitionedGraph, trainers: Sequence[int], rank: int) -> None:
        offsets = {name: graph.offsets(name) for name in graph.node_types}
        self.ownership, self.rank = Ownership(offsets, np.asarray(trainers)), rank
        self._graph = graph

    @property
    def num_trainers(self) -> int:
        """Number of trainers."""
        return self.ownership.num_trainers

    def needed(
        self, halo_of: Callable[[GraphPart], tuple[np.ndarray, np.ndarray]]
    ) -> list[np.ndarray]:
        """Rows of this trainer that each trainer needs.

        Args:
            halo_of: Trainers and rows that a part needs.
        """
        found = []
        for trainer in range(self.num_trainers):
            trainers, rows = halo_of(GraphPart(self._graph, self.ownership, trainer))
            found.append(rows[trainers == self.rank])
        return found


class Sent:
    """Stands for an exchange that has ended."""

    def wait(self) -> None:
        """Nothing is on its way."""


def is_assumed(group: Any) -> bool:
    """Whether there is no other trainer to talk to: collective calls have no effect."""
    return isinstance(group, AssumedTrainers)


def num_trainers(group: Any) -> int:
    """Trainers of a group, also if they are only assumed."""
    return group.num_trainers if isinstance(group, AssumedTrainers) else dist.get_world_size(group)


def is_traced() -> bool:
    """Whether tensors have no values, because a step is traced to estimate its memory."""
    return isinstance(torch.empty(_PROBED_VALUES), FakeTensor)


@dataclass(frozen=True)
class SizedMatrix:
    """A sparse matrix without values, in a trace.

    Attributes:
        tensors: The tensors that a compressed matrix has.
        shape: Its rows and columns.
    """

    tensors: tuple[torch.Tensor, ...]
    shape: tuple[int, int]


def multiply(matrix: torch.Tensor | SizedMatrix, rows: torch.Tensor) -> torch.Tensor:
    """The product of a compressed sparse matrix with dense rows; without values in a trace."""
    if isinstance(matrix, SizedMatrix) or is_traced():
        # The kernel has a tensor of zeros beside its result.
        zeros, found = (rows.new_empty(matrix.shape[0], *rows.shape[1:]) for _ in range(2))
        del zeros
        return found
    return matrix @ rows
