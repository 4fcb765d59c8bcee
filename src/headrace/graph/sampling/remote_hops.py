"""Hops over local and remote graph partitions; all stores are queried concurrently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from headrace.graph.sampling.hop import (
    EdgePart,
    Hop,
    HopRequest,
    hop_over,
    split_by_partition,
    stitch,
)
from headrace.graph.sampling.store_pool import StorePool
from headrace.graph.schema import EdgeType
from headrace.tracing.meter import current_meter


class DistributedHopSource:
    """A `HopSource` that queries stores and samples local partitions meanwhile.

    Remote partitions are None in `parts`. Stores use the edge columns `weight` and `time`.
    """

    def __init__(
        self,
        parts: Mapping[EdgeType, Sequence[EdgePart | None]],
        offsets: Mapping[str, np.ndarray],
        stores: StorePool,
        weight: str | None = None,
        time: str | None = None,
    ) -> None:
        self._parts = {edge_type: tuple(each) for edge_type, each in parts.items()}
        self._offsets = dict(offsets)
        self._stores = stores
        self._weight, self._time = weight, time

    def hop(self, request: HopRequest) -> Hop:
        """Sample neighbours; raise `StoreError` if a store fails."""
        parts = self._parts[request.edge_type]
        request = replace(request, weight=self._weight, time=self._time)
        split = split_by_partition(request.nodes, self._offsets[request.edge_type[2]])
        pending = [
            (at, self._stores.handle(part).sample_soon(request.at(at)))
            for part, at in split
            if part in self._stores
        ]
        hops, meter = [], current_meter()
        for part, at in split:
            own = parts[part]
            if own is not None:
                hop = hop_over([own], request.at(at))
                if meter is not None:
                    arrays = (hop.counts, hop.neighbours, hop.edges)
                    meter.add_local(part, sum(array.nbytes for array in arrays))
                hops.append((at, hop))
        hops += [(at, future.result()) for at, future in pending]
        return stitch(len(request.nodes), hops)
