"""The contract of a partitioner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.graph.adjacency import Adjacency


@dataclass(frozen=True)
class Constraint:
    """Something that every part should have its share of.

    Attributes:
        name: `nodes`, `edges`, `train`, or with several node types `train paper`.
        weights: A weight per node, not negative: `uint8`, `int32` or `int64`; or none if every node
            weighs one.
    """

    name: str
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Question:
    """A graph to be cut.

    Attributes:
        adjacency: The graph.
        shares: What part of each constraint each part should get; sums to one. Equal shares for
            equal machines.
        constraints: What to balance; the first one is `nodes`.
        tolerance: How far above its share a part may be, relatively, or by one node if that is
            more.
        seed: Of all choices.
    """

    adjacency: Adjacency
    shares: np.ndarray
    constraints: tuple[Constraint, ...] = (Constraint("nodes"),)
    tolerance: float = 0.05
    seed: int = 0

    @property
    def num_parts(self) -> int:
        """How many parts."""
        return len(self.shares)

    def weights(self, index: int) -> np.ndarray:
        """Weights of a constraint, also where every node weighs one."""
        weights = self.constraints[index].weights
        return np.ones(self.adjacency.num_nodes, np.uint8) if weights is None else weights

    def caps(self) -> np.ndarray:
        """The most that a part may have, by constraint and part: `(constraints, parts)`."""
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
    """Assigns every node to a part.

    The same question gives the same answer. Balance is aimed at and not promised: `repair` comes
    afterwards.
    """

    name: str

    def assign(self, question: Question, on_step: OnStep) -> np.ndarray:
        """Cut the graph.

        Args:
            question: What to cut and what to balance.
            on_step: Called with the name of every step before it begins.

        Returns:
            The part of every node, `int32`.

        Raises:
            MissingExtraError: What it needs is not installed.
        """
        ...
