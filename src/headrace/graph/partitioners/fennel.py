"""Fennel, streamed over the graph several times, for graphs that no other partitioner holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.graph.kernels.fennel import stream_nodes
from headrace.graph.partitioners._base import OnStep, Question

_BLOCK = 1 << 12


@dataclass(frozen=True)
class Fennel:
    """Streaming partitioning with caps on every constraint.

    Nodes come in blocks, in an order drawn from the seed, and go to the part where most of their
    neighbours are, as long as it has room. Later passes see where all neighbours went (Nishimura
    and Ugander, KDD 2013). Memory is a few numbers per node and per part; the graph is read in
    order from where it is mapped.

    Attributes:
        num_restreams: Passes after the first one.
        pull: What a part that is as full as its share counts for, in shares of a node's neighbours.
            The objective of Tsourakakis et al. (WSDM 2014) makes it 0.75 of the mean degree, for
            every node alike.
        looseness: How many times the tolerance the first pass may use; later ones less, the last
            two just the tolerance. Where all parts are full from the start, nothing can move.
    """

    num_restreams: int = 4
    pull: float = 1.0
    looseness: float = 3.0

    name = "fennel"

    def assign(self, question: Question, on_step: OnStep) -> np.ndarray:
        """Cut the graph; see `Partitioner`."""
        adjacency = question.adjacency
        num_nodes = adjacency.num_nodes
        weights = np.empty(0, np.int32) if adjacency.weights is None else adjacency.weights
        caps = np.ascontiguousarray(question.caps().T)
        # A constraint that weighs nothing, or a part without a share, must not divide by zero.
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
        """Falls in equal steps to one in the last pass but one."""
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
