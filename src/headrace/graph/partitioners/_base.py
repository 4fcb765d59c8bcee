"""The partitioner interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.graph.adjacency import Adjacency


@dataclass(frozen=True)
class Constraint:
    """A quantity to balance over partitions.

    Attributes:
        name: `nodes`, `edges`, `train`, or in heterogeneous graphs `train paper`.
        weights: Non-negative weight per node: `uint8`, `int32` or `int64`; `None` if every node
            weighs one.
    """

    name: str
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Question:
    """A partitioning problem.

    Attributes:
        adjacency: The graph.
        shares: Target fraction of each constraint per partition; sums to one.
        constraints: Quantities to balance; the first one is `nodes`.
        tolerance: Allowed relative excess of a partition over its share, or one node if that is
            more.
        seed: Random seed.
    """

    adjacency: Adjacency
    shares: np.ndarray
    constraints: tuple[Constraint, ...] = (Constraint("nodes"),)
    tolerance: float = 0.05
    seed: int = 0

    @property
    def num_parts(self) -> int:
        """Number of partitions."""
        return len(self.shares)

    def weights(self, index: int) -> np.ndarray:
        """Weights of a constraint; ones if every node weighs one."""
        weights = self.constraints[index].weights
        return np.ones(self.adjacency.num_nodes, np.uint8) if weights is None else weights

    def caps(self) -> np.ndarray:
        """Maximum load of every partition: `(constraints, partitions)`."""
        caps = np.empty((len(self.constraints), self.num_parts))
        for c, constraint in enumerate(self.constraints):
            if constraint.weights is None:
                total, largest = self.adjacency.num_nodes, 1
            else:
                total = int(constraint.weights.sum(dtype=np.int64))
                largest = int(constraint.weights.max(initial=0))
            share = total * self.shares
            caps[c] = np.maximum(share * (1 + self.tolerance), share + largest)
        return caps


OnStep = Callable[[str], None]


class Partitioner(Protocol):
    """Assigns every node to a partition.

    The result is deterministic for equal input. Balance is best-effort: `repair` runs afterwards.
    """

    name: str

    def assign(self, question: Question, on_step: OnStep) -> np.ndarray:
        """Partition the graph.

        Args:
            question: The partitioning problem.
            on_step: Called with the name of every step before it begins.

        Returns:
            Partition of every node, `int32`.

        Raises:
            MissingExtraError: A required package is not installed.
        """
        ...
