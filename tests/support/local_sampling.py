"""Sampling in one process, for tests that compare it with stores and samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampling.hop import (
    Hop,
    HopRequest,
    HopSource,
    LocalSource,
    Rule,
    split_by_partition,
    stitch,
)
from headrace.graph.sampling.local_edges import open_edge_parts
from headrace.graph.sampling.neighbor_sampler import BatchKey, Sampler


class StitchedSource:
    """A `HopSource` over one source per partition; gives the same as `LocalSource`."""

    def __init__(self, owners: Sequence[HopSource], offsets: Mapping[str, np.ndarray]) -> None:
        self._owners, self._offsets = owners, offsets

    def hop(self, request: HopRequest) -> Hop:
        """Sample neighbours."""
        split = split_by_partition(request.nodes, self._offsets[request.edge_type[2]])
        hops = [(at, self._owners[part].hop(request.at(at))) for part, at in split]
        return stitch(len(request.nodes), hops)


@dataclass(frozen=True)
class Sampled:
    """A batch of a homogeneous graph; see `HeteroSampled`."""

    node: np.ndarray
    row: np.ndarray
    col: np.ndarray
    edge: np.ndarray | None
    tree: np.ndarray | None
    num_sampled_nodes: list[int]
    num_sampled_edges: list[int]


class HomogeneousSampler(Sampler):
    """A sampler with batches of a graph of one node type and one edge type."""

    def sample(
        self,
        seeds: np.ndarray,
        num_neighbors: Sequence[int],
        key: BatchKey,
        seed_times: np.ndarray | None = None,
    ) -> Sampled:
        """Sample a batch; see `sample_hetero`."""
        (name,) = self._num_nodes
        (edge_type,) = self._edge_types
        times = None if seed_times is None else {name: seed_times}
        out = self.sample_hetero({name: seeds}, num_neighbors, key, times)
        return Sampled(
            out.node[name],
            out.row[edge_type],
            out.col[edge_type],
            None if out.edge is None else out.edge[edge_type],
            None if out.tree is None else out.tree[name],
            out.num_sampled_nodes[name],
            out.num_sampled_edges[edge_type],
        )


def local_sampler(
    graph: PartitionedGraph,
    rule: Rule | None = None,
    *,
    weight: str | None = None,
    time: str | None = None,
) -> HomogeneousSampler:
    """A sampler over all graph partitions in this process."""
    source = LocalSource(open_edge_parts(graph, weight=weight, time=time))
    num_nodes = {name: graph.num_nodes_of(name) for name in graph.node_types}
    return HomogeneousSampler(source, num_nodes, graph.edge_types, rule)
