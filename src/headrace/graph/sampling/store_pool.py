"""Store handles of remote graph partitions, and hops that query them concurrently."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

import numpy as np

from headrace.graph.sampling.hop import (
    EdgePart,
    Hop,
    HopRequest,
    hop_over,
    split_by_partition,
    stitch,
)
from headrace.graph.schema import EdgeType, TypeName
from headrace.rpc.errors import StoreError
from headrace.tracing.meter import current_meter

IDS = "ids"
"""Column of original ids; optional for edges."""


class StoreHandle(Protocol):
    """A store with non-blocking requests, such as `StoreClient`."""

    def sample_soon(self, request: HopRequest) -> Future[Hop]:
        """Sample neighbours of nodes in the store's graph partition."""
        ...

    def gather_soon(
        self, of: TypeName, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        """Read rows of a column as they are stored."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


Connect = Callable[[], StoreHandle]
"""Opens a connection to a store."""


class StorePool:
    """Stores of remote graph partitions, connected at first use.

    A forked process reconnects, because connections do not survive a fork.
    """

    def __init__(self, connect: Mapping[int, Connect] | None = None) -> None:
        self._connect = dict(connect or {})
        self._process = os.getpid()
        self._open: dict[int, StoreHandle] = {}
        self._serves: dict[tuple[int, TypeName, str], bool] = {}

    def __contains__(self, part: int) -> bool:
        return part in self._connect

    def __bool__(self) -> bool:
        return bool(self._connect)

    @property
    def parts(self) -> tuple[int, ...]:
        """Remote graph partitions."""
        return tuple(sorted(self._connect))

    @property
    def is_connected(self) -> bool:
        """Whether this process has an open connection."""
        return bool(self._open) and self._process == os.getpid()

    def handle(self, part: int) -> StoreHandle:
        """Handle of a partition's store; raise `StoreError` if it is unreachable."""
        if self._process != os.getpid():
            self._process, self._open = os.getpid(), {}
        if part not in self._open:
            self._open[part] = self._connect[part]()
        return self._open[part]

    def serve(self, of: TypeName, column: str) -> bool:
        """Whether all stores have a column, which older versions may lack."""
        return all(self._has(part, of, column) for part in self._connect)

    def close(self) -> None:
        """Close the connections of this process."""
        if self.is_connected:
            for handle in self._open.values():
                handle.close()
        self._open = {}

    def _has(self, part: int, of: TypeName, column: str) -> bool:
        key = (part, of, column)
        if key not in self._serves:
            try:
                self.handle(part).gather_soon(of, column, np.empty(0, np.int64)).result()
                self._serves[key] = True
            except StoreError:
                # If the store is unreachable, the next request fails.
                self._serves[key] = False
        return self._serves[key]


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
