"""What all services have in common."""

from __future__ import annotations

import threading
from collections import Counter


class RpcService:
    """Base of services: counts requests."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, what: str) -> None:
        """Increment a counter."""
        with self._lock:
            self._counts[what] += 1

    def end_stream(self, stream: int) -> None:
        """Ignore the end of a connection."""

    def close(self) -> None:
        """There is nothing to release."""
