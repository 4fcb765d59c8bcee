"""What one part of a batch takes from every store, noted where it is asked for.

Several parts are made at the same time by several threads: who is asked notes it with the meter of
the part that asks, which the asking thread has in a context variable, not with "the current" part.
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
    """All that was asked of one store for one part.

    Attributes:
        num_calls: Requests that were answered.
        request_bytes: Of all requests, as they go over the network.
        reply_bytes: Of all answers.
        service_s: Time that the store worked, as it says.
        first_s: When the first request was sent.
        last_s: When the last answer was there.
    """

    num_calls: int = 0
    request_bytes: int = 0
    reply_bytes: int = 0
    service_s: float = 0.0
    first_s: float = float("inf")
    last_s: float = float("-inf")


class Meter:
    """Adds up what one part takes; several threads may add.

    Attributes:
        stores: By name of the store's task.
        local_bytes: What parts of the graph on this machine gave, by part: no store was asked, but
            one on another machine would have sent it.
    """

    def __init__(self) -> None:
        self.stores: dict[str, StoreUse] = {}
        self.local_bytes: dict[int, int] = {}
        self._lock = threading.Lock()

    def add_call(
        self,
        store: str,
        times_s: tuple[float, float],
        request_bytes: int,
        reply_bytes: int,
        service_s: float,
    ) -> None:
        """A request that was answered; times of sending it and of its answer."""
        with self._lock:
            use = self.stores.setdefault(store, StoreUse())
            use.num_calls += 1
            use.request_bytes += request_bytes
            use.reply_bytes += reply_bytes
            use.service_s += service_s
            use.first_s = min(use.first_s, times_s[0])
            use.last_s = max(use.last_s, times_s[1])

    def add_local(self, part: int, num_bytes: int) -> None:
        """Something that was read on this machine."""
        with self._lock:
            self.local_bytes[part] = self.local_bytes.get(part, 0) + num_bytes


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


def current_meter() -> Meter | None:
    """Of the part that this thread works on; none if nobody wants to know."""
    return _METER.get()


@contextmanager
def metering(meter: Meter) -> Iterator[None]:
    """What this thread asks for meanwhile is noted with a meter."""
    token = _METER.set(meter)
    try:
        yield
    finally:
        _METER.reset(token)


class Call(NamedTuple):
    """A request that was answered.

    Attributes:
        start_s: When it was sent.
        end_s: When the answer was there.
        request_bytes: On the network.
        reply_bytes: On the network.
        fields: Of the answer.
    """

    start_s: float
    end_s: float
    request_bytes: int
    reply_bytes: int
    fields: Mapping[str, Any]
