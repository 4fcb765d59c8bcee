"""Store handles of remote graph partitions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from headrace.graph.sampling.hop import Hop, HopRequest
from headrace.graph.schema import TypeName
from headrace.rpc.errors import StoreError

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
        """Read rows of a column in their stored dtype."""
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
