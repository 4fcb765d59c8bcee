"""Who has which part: this machine, whose files are mapped, or a store that is asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from headrace.graph.sampling.hop import Hop, HopRequest
from headrace.graph.schema import EdgeType
from headrace.rpc.errors import StoreError

Of = str | EdgeType
"""What has rows: a node type or an edge type."""

IDS = "ids"
"""The column of original ids, which every node type has and edges may have."""


class StoreHandle(Protocol):
    """A store that can be asked without waiting; `StoreClient` is one."""

    def sample_soon(self, request: HopRequest) -> Future[Hop]:
        """Choose neighbours of nodes that the store owns."""
        ...

    def gather_soon(
        self, of: Of, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        """Rows of values, in the type in which they are stored."""
        ...

    def close(self) -> None:
        """Give up the connection."""
        ...


Connect = Callable[[], StoreHandle]
"""Opens a connection to a store."""


class StorePool:
    """Stores of the parts that are not on this machine, connected when they are first asked.

    A process that was forked connects anew: connections do not survive that.

    Args:
        connect: How to reach the store of each such part.
    """

    def __init__(self, connect: Mapping[int, Connect] | None = None) -> None:
        self._connect = dict(connect or {})
        self._process = os.getpid()
        self._open: dict[int, StoreHandle] = {}
        self._serves: dict[tuple[int, Of, str], bool] = {}

    def __contains__(self, part: int) -> bool:
        return part in self._connect

    def __bool__(self) -> bool:
        return bool(self._connect)

    @property
    def parts(self) -> tuple[int, ...]:
        """Parts that others have."""
        return tuple(sorted(self._connect))

    @property
    def is_connected(self) -> bool:
        """Whether this process has asked anybody yet."""
        return bool(self._open) and self._process == os.getpid()

    def owner(self, part: int) -> StoreHandle:
        """The store of a part.

        Raises:
            StoreError: It cannot be reached.
        """
        if self._process != os.getpid():
            self._process, self._open = os.getpid(), {}
        if part not in self._open:
            self._open[part] = self._connect[part]()
        return self._open[part]

    def serve(self, of: Of, column: str) -> bool:
        """Whether all stores give a column that not every version does."""
        return all(self._has(part, of, column) for part in self._connect)

    def close(self) -> None:
        """Close what this process opened."""
        if self.is_connected:
            for owner in self._open.values():
                owner.close()
        self._open = {}

    def _has(self, part: int, of: Of, column: str) -> bool:
        key = (part, of, column)
        if key not in self._serves:
            try:
                self.owner(part).gather_soon(of, column, np.empty(0, np.int64)).result()
                self._serves[key] = True
            except StoreError:
                # If the store is gone instead, the next question says so.
                self._serves[key] = False
        return self._serves[key]
