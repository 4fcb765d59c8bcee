"""Sampling in one process, for tests that compare it with stores and samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampling.hop import (
    Hop,
    HopRequest,
    HopSource,
    LocalSource,
    Rule,
    split_by_owner,
    stitch,
)
from headrace.graph.sampling.local_edges import open_edge_parts
from headrace.graph.sampling.neighbor_sampler import Sampler


class StitchedSource:
    """A `HopSource` over one source per partition; gives the same as `LocalSource`."""

    def __init__(self, owners: Sequence[HopSource], offsets: Mapping[str, np.ndarray]) -> None:
        self._owners, self._offsets = owners, offsets

    def hop(self, request: HopRequest) -> Hop:
        """Sample neighbours."""
        split = split_by_owner(request.nodes, self._offsets[request.edge_type[2]])
        hops = [(at, self._owners[part].hop(request.at(at))) for part, at in split]
        return stitch(len(request.nodes), hops)


def local_sampler(
    graph: PartitionedGraph,
    rule: Rule | None = None,
    *,
    weight: str | None = None,
    time: str | None = None,
) -> Sampler:
    """A sampler over all graph partitions in this process."""
    source = LocalSource(open_edge_parts(graph, weight=weight, time=time))
    num_nodes = {name: graph.num_nodes_of(name) for name in graph.node_types}
    return Sampler(source, num_nodes, graph.edge_types, rule)
