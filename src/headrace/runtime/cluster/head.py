"""Calls that need the head of the Ray cluster, which may be lost while a run goes on.

Ray answers such calls after a minute, or ends the process. Task actors answer without the head.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from headrace.core.errors import RunError

SILENT_S = 10.0
"""Time after which a head that does not accept connections counts as lost."""

CALL_S = 8.0
"""Timeout of a call; a head under load answers in less than a second."""

_PROBE_INTERVAL_S, _PROBE_TIMEOUT_S = 3.0, 3.0

T = TypeVar("T")


class HeadLostError(RunError):
    """The head of the Ray cluster does not answer."""

    def __init__(
        self,
        problem: str = "the head of the Ray cluster does not answer",
        remedy: str = "start the cluster again, then resume the run: headrace run --resume RUN",
    ) -> None:
        super().__init__(problem, remedy)


class Head:
    """The head of the cluster.

    Args:
        address: `HOST:PORT` at which it listens.
        clock: Returns seconds.
        timeout_s: Timeout of a call.
    """

    def __init__(
        self,
        address: str,
        clock: Callable[[], float] = time.monotonic,
        timeout_s: float = CALL_S,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._clock, self._timeout_s = clock, timeout_s
        self._heard_s = clock()
        self._closed = threading.Event()
        self._call: threading.Thread | None = None
        self._left_s = 0.0
        threading.Thread(target=self._probe, name="probe the head", daemon=True).start()

    @property
    def silent_s(self) -> float:
        """Time since it accepted a connection."""
        return self._clock() - self._heard_s

    @property
    def is_lost(self) -> bool:
        """Whether it counts as lost."""
        return self.silent_s >= SILENT_S or (self._is_blocked and self._left_s <= 0)

    @property
    def _is_blocked(self) -> bool:
        return self._call is not None and self._call.is_alive()

    def ask(self, call: Callable[[], T], timeout_s: float = math.inf) -> T:
        """Result of a call that needs the head; raises its error, or `HeadLostError` in time.

        A shorter `timeout_s` does not make the head count as lost: the next call waits for the rest
        of the timeout.
        """
        if self.is_lost or not self._wait(timeout_s):
            raise HeadLostError
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(call())
            except Exception as error:
                errors.append(error)

        self._call = threading.Thread(target=run, name="ask the head", daemon=True)
        self._left_s = self._timeout_s
        self._call.start()
        self._wait(timeout_s)
        if errors:
            raise errors[0]
        if not results:
            raise HeadLostError
        return results[0]

    def _wait(self, timeout_s: float) -> bool:
        """Wait for the open call, if any; return whether none is open."""
        if self._call is not None and self._is_blocked:
            wait_s = min(timeout_s, self._left_s)
            self._left_s -= wait_s
            self._call.join(wait_s)
        return not self._is_blocked

    def close(self) -> None:
        """Stop probing."""
        self._closed.set()

    def _probe(self) -> None:
        while not self._closed.wait(_PROBE_INTERVAL_S):
            try:
                socket.create_connection(self._address, _PROBE_TIMEOUT_S).close()
            except OSError:
                continue
            self._heard_s = self._clock()
