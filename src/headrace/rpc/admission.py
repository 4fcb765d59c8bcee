"""Which connections may stay before they have proved that they belong to the run.

Their number is limited to a part of the process' file descriptors: the rest is for peers of the
run. For one more connection, the oldest of the host with the most is closed. So a crowd on some
hosts closes its own connections, and a peer of the run on another host keeps its own.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from functools import cache
from typing import Protocol

# Fewer would leave a peer of the run too little time beside a crowd on its own host.
_MIN_CONNECTIONS = 16
_MAX_CONNECTIONS = 1024
_DESCRIPTOR_SHARE = 4


class Unauthenticated(Protocol):
    """A connection without proof yet; hashable, and removed when it is closed."""

    def evict(self) -> None:
        """Close the connection; must not block. Called from any thread."""
        ...


class Admission:
    """Unauthenticated connections, oldest first; thread-safe.

    Args:
        max_connections: How many there may be; by default a quarter of the file descriptors that
            the process may have at the time.
    """

    def __init__(self, max_connections: int | None = None) -> None:
        self._max_connections: Callable[[], int] = max_unauthenticated
        if max_connections is not None:
            self._max_connections = lambda: max_connections
        self._lock = threading.Lock()
        self._hosts: dict[Unauthenticated, str] = {}
        self._by_host: dict[str, dict[Unauthenticated, None]] = {}
        self._evicted: set[Unauthenticated] = set()

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def is_behind(self) -> bool:
        """Whether many evicted connections still have their descriptors."""
        return len(self._evicted) > max(1, self._max_connections() // _DESCRIPTOR_SHARE)

    def add(self, connection: Unauthenticated, host: str) -> None:
        """Add a connection from a host; another one is closed if there are too many."""
        with self._lock:
            self._hosts[connection] = host
            self._by_host.setdefault(host, {})[connection] = None
            is_full = len(self._hosts) > self._max_connections()
        if is_full:
            self.evict()

    def remove(self, connection: Unauthenticated) -> bool:
        """Remove a connection that is authenticated or closed; whether it was not evicted."""
        with self._lock:
            self._evicted.discard(connection)
            return self._remove(connection)

    def evict(self) -> bool:
        """Close the oldest connection of the host with the most; whether there was one."""
        with self._lock:
            most = max(self._by_host.values(), key=len, default=None)
            if most is None:
                return False
            oldest = next(iter(most))
            self._remove(oldest)
            self._evicted.add(oldest)
        oldest.evict()
        return True

    def _remove(self, connection: Unauthenticated) -> bool:
        host = self._hosts.pop(connection, None)
        if host is None:
            return False
        del self._by_host[host][connection]
        if not self._by_host[host]:
            del self._by_host[host]
        return True


def max_unauthenticated() -> int:
    """How many unauthenticated connections this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(_MIN_CONNECTIONS, min(_MAX_CONNECTIONS, soft // _DESCRIPTOR_SHARE))


@cache
def _admission(process: int) -> Admission:
    return Admission()


def admission() -> Admission:
    """The unauthenticated connections of all listeners of this process."""
    return _admission(os.getpid())
