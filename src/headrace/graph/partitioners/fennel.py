"""Re-streamed Fennel, for graphs that exceed the memory of other partitioners."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.graph.kernels.fennel import stream_nodes
from headrace.graph.partitioners._base import OnStep, Question

_BLOCK = 1 << 12


@dataclass(frozen=True)
class Fennel:
    """Streaming partitioning with caps on every constraint.

    Blocks of nodes are streamed in a random order; each node is assigned to the partition with most
    of its neighbours that has capacity. Later passes use the assignment of the previous pass
    (Nishimura and Ugander, KDD 2013). Memory is a few numbers per node and partition; the
    memory-mapped graph is read in order.

    Attributes:
        num_restreams: Passes after the first one.
        pull: Penalty of a partition at its share, as a fraction of a node's degree. The objective
            of Tsourakakis et al. (WSDM 2014) uses 0.75 of the mean degree for every node.
        looseness: Tolerance of the first pass, as a multiple of the tolerance; it decreases to one
            in the last two passes. With tight caps from the start, full partitions block all moves.
    """

    num_restreams: int = 4
    pull: float = 1.0
    looseness: float = 3.0

    name = "fennel"

    def assign(self, question: Question, on_step: OnStep) -> np.ndarray:
        """Partition the graph; see `Partitioner`."""
        adjacency = question.adjacency
        num_nodes = adjacency.num_nodes
        weights = np.empty(0, np.int32) if adjacency.weights is None else adjacency.weights
        caps = np.ascontiguousarray(question.caps().T)
        # Avoid division by zero for constraints without weight and partitions without a share.
        caps = np.maximum(caps, 1e-9)
        shares = caps / (1 + question.tolerance)
        loads = np.zeros_like(caps)
        parts = np.full(num_nodes, -1, np.int32)
        gains = np.zeros(question.num_parts, np.int64)
        starts = np.arange(0, num_nodes, _BLOCK)
        order = np.random.default_rng(question.seed).permutation(starts)
        for turn in range(1 + self.num_restreams):
            on_step(f"stream {turn + 1} of {1 + self.num_restreams}")
            turn_caps = shares + (caps - shares) * self._looseness(turn)
            for start in order:
                stop = min(start + _BLOCK, num_nodes)
                stream_nodes(
                    adjacency.indptr,
                    adjacency.indices,
                    weights,
                    start,
                    stop,
                    _node_weights(question, start, stop),
                    parts,
                    loads,
                    turn_caps,
                    shares,
                    self.pull,
                    gains,
                )
        return parts

    def _looseness(self, turn: int) -> float:
        """Decreases linearly to one in the last pass but one."""
        if self.num_restreams < 2:
            return 1.0
        done = turn / (self.num_restreams - 1)
        return max(1.0, self.looseness + (1 - self.looseness) * done)


def _node_weights(question: Question, start: int, stop: int) -> np.ndarray:
    """Weights of a block of nodes, by node and constraint."""
    block = np.ones((stop - start, len(question.constraints)))
    for c, constraint in enumerate(question.constraints):
        if constraint.weights is not None:
            block[:, c] = constraint.weights[start:stop]
    return block
