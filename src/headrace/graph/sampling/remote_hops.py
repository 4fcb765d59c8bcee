"""Hops over parts some of which others have: all owners are asked at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from headrace.graph.sampling.hop import EdgePart, Hop, HopRequest, hop_over, split_by_owner, stitch
from headrace.graph.sampling.store_pool import StorePool
from headrace.graph.schema import EdgeType
from headrace.tracing.meter import current_meter


class DistributedHopSource:
    """A `HopSource` that asks stores for their nodes, and looks at its own meanwhile.

    Args:
        parts: Per edge type what each part has of it; none where a store has it.
        offsets: Per node type, where the new ids of each part begin; one more than parts.
        owners: Stores of parts that are not here.
        weight: Edge column by which stores draw, as the parts that are here do.
        time: Edge column that says when an edge came to be, likewise.
    """

    def __init__(
        self,
        parts: Mapping[EdgeType, Sequence[EdgePart | None]],
        offsets: Mapping[str, np.ndarray],
        owners: StorePool,
        weight: str | None = None,
        time: str | None = None,
    ) -> None:
        self._parts = {edge_type: tuple(each) for edge_type, each in parts.items()}
        self._offsets = dict(offsets)
        self._owners = owners
        self._weight, self._time = weight, time

    def hop(self, request: HopRequest) -> Hop:
        """Choose neighbours.

        Raises:
            StoreError: A store did not answer.
        """
        parts = self._parts[request.edge_type]
        request = replace(request, weight=self._weight, time=self._time)
        split = split_by_owner(request.nodes, self._offsets[request.edge_type[2]])
        asked = [
            (at, self._owners.owner(part).sample_soon(request.at(at)))
            for part, at in split
            if part in self._owners
        ]
        answers, meter = [], current_meter()
        for part, at in split:
            own = parts[part]
            if own is not None:
                hop = hop_over([own], request.at(at))
                if meter is not None:
                    arrays = (hop.counts, hop.neighbours, hop.edges)
                    meter.add_local(part, sum(array.nbytes for array in arrays))
                answers.append((at, hop))
        answers += [(at, future.result()) for at, future in asked]
        return stitch(len(request.nodes), answers)
