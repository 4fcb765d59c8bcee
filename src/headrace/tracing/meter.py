"""Measures the store traffic of each sub-batch.

Several threads build sub-batches at the same time, so each thread has the meter of its sub-batch in
a context variable.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass
class StoreUse:
    """Requests to one store for one sub-batch; bytes are those on the network.

    `feature_bytes` is the part of `reply_bytes` that carries rows; the rest is structure.
    """

    num_calls: int = 0
    request_bytes: int = 0
    reply_bytes: int = 0
    feature_bytes: int = 0
    service_s: float = 0.0
    first_s: float = float("inf")
    last_s: float = float("-inf")


class Meter:
    """Sums the store traffic of one sub-batch; thread-safe.

    Attributes:
        stores: By name of the store's task.
        local_bytes: By graph partition, bytes read on this machine that a remote store would send.
        num_hits: Rows of remote stores that a cache had.
        num_misses: Rows of remote stores that a cache did not have.
    """

    def __init__(self) -> None:
        self.stores: dict[str, StoreUse] = {}
        self.local_bytes: dict[int, int] = {}
        self.num_hits = self.num_misses = 0
        self._lock = threading.Lock()

    def add_call(
        self,
        store: str,
        times_s: tuple[float, float],
        request_bytes: int,
        reply_bytes: int,
        service_s: float,
        has_features: bool = False,
    ) -> None:
        """Add an answered request; `times_s` has its send time and its answer time."""
        with self._lock:
            use = self.stores.setdefault(store, StoreUse())
            use.num_calls += 1
            use.request_bytes += request_bytes
            use.reply_bytes += reply_bytes
            use.feature_bytes += reply_bytes if has_features else 0
            use.service_s += service_s
            use.first_s = min(use.first_s, times_s[0])
            use.last_s = max(use.last_s, times_s[1])

    def add_local(self, part: int, num_bytes: int) -> None:
        """Add bytes that were read on this machine."""
        with self._lock:
            self.local_bytes[part] = self.local_bytes.get(part, 0) + num_bytes

    def add_cached(self, num_hits: int, num_misses: int) -> None:
        """Add rows that were looked up in a cache."""
        with self._lock:
            self.num_hits += num_hits
            self.num_misses += num_misses


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


def current_meter() -> Meter | None:
    """Meter of this thread's sub-batch; none if nothing is measured."""
    return _METER.get()


@contextmanager
def metering(meter: Meter) -> Iterator[None]:
    """Use a meter for this thread's requests."""
    token = _METER.set(meter)
    try:
        yield
    finally:
        _METER.reset(token)


class Call(NamedTuple):
    """An answered request: its bytes on the network, the answer's fields, its operation."""

    start_s: float
    end_s: float
    request_bytes: int
    reply_bytes: int
    fields: Mapping[str, Any]
    op: str = ""
