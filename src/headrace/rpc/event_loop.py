"""Wait for many sockets with few threads.

All threads of the pool wait on one epoll. The thread that receives an event handles it itself, so
that a request costs one thread switch. A socket is watched again after its handler has returned;
while handlers block, the pool starts further threads. Idle sockets need no thread.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time  # noqa: TID251 - deadlines of sockets; tests pass another clock
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from headrace.core.errors import SpecError

_LOG = logging.getLogger(__name__)

CHECK_INTERVAL_S = 0.25

_MAX_IDLE_THREADS = 4

# A process that was stopped for longer handles what has arrived before it checks deadlines. One
# check is left out, not more: on a machine with too much work, every interval may be that long.
_PAUSE_S = 1.0

READABLE: int = getattr(select, "EPOLLIN", 1)
WRITABLE: int = getattr(select, "EPOLLOUT", 4)


class Watched(ABC):
    """Something with a file descriptor that an event loop watches.

    Attributes:
        deadline_s: Time at which the loop calls `expire`.
        events: `READABLE` or `WRITABLE`.
    """

    deadline_s: float = math.inf
    events: int = READABLE

    @abstractmethod
    def fileno(self) -> int:
        """The file descriptor."""

    @abstractmethod
    def handle(self) -> bool:
        """Handle an event; may block. Returns whether to go on watching.

        No two threads call it at the same time.
        """

    @abstractmethod
    def expire(self, now_s: float) -> None:
        """Handle the deadline; must not block. It may run beside `handle`."""

    @abstractmethod
    def release(self) -> None:
        """Close the file descriptor; the loop no longer watches it."""


class EventLoop:
    """Calls the handlers of watched file descriptors in a pool of threads.

    Args:
        clock: Returns seconds.

    Raises:
        SpecError: The system has no epoll.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        if not hasattr(select, "epoll"):
            raise SpecError("connections between tasks need epoll", "run on Linux")
        self.clock = clock
        self._epoll = select.epoll()
        self._watched: dict[int, Watched] = {}
        self._lock = threading.Lock()
        self._num_idle = 0
        self._is_started = False
        self._closed = threading.Event()
        self._wake, self._end = os.pipe()
        self._epoll.register(self._wake, select.EPOLLIN)

    def watch(self, watched: Watched) -> None:
        """Begin to watch a file descriptor."""
        with self._lock:
            is_first, self._is_started = not self._is_started, True
        if is_first:
            self._start(self._run)
            self._start(self._check)
        number = watched.fileno()
        self._watched[number] = watched
        try:
            self._epoll.register(number, watched.events | select.EPOLLONESHOT)
        except OSError:
            del self._watched[number]
            raise

    def close(self) -> None:
        """End the threads; watched file descriptors stay open. For tests."""
        self._closed.set()
        os.write(self._end, b".")

    def _start(self, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name="rpc", daemon=True).start()

    def _run(self) -> None:
        """Wait for events and handle them; several threads run this."""
        while True:
            with self._lock:
                self._num_idle += 1
            ((number, _),) = self._epoll.poll(maxevents=1)
            with self._lock:
                self._num_idle -= 1
                is_last = self._num_idle == 0
            watched = self._watched.get(number)
            if watched is None:
                return
            if is_last:
                # Before the handler runs: it may block. Without a further thread, events wait.
                with suppress(RuntimeError):
                    self._start(self._run)
            self._handle(number, watched)
            # An idle thread keeps no connection in memory.
            del watched
            with self._lock:
                if self._num_idle >= _MAX_IDLE_THREADS:
                    return

    def _handle(self, number: int, watched: Watched) -> None:
        try:
            if watched.handle():
                self._epoll.modify(number, watched.events | select.EPOLLONESHOT)
                return
        except Exception:
            _LOG.exception("a connection failed")
        del self._watched[number]
        self._epoll.unregister(number)
        watched.release()

    def _check(self) -> None:
        """Call `expire` at the deadlines; runs in its own thread."""
        before_s, was_skipped = self.clock(), False
        while not self._closed.wait(CHECK_INTERVAL_S):
            now_s = self.clock()
            was_skipped = not was_skipped and now_s - before_s > _PAUSE_S
            if not was_skipped:
                self._expire(now_s)
            before_s = self.clock()

    def _expire(self, now_s: float) -> None:
        watched = self._watched.copy().values()
        for late in [each for each in watched if each.deadline_s <= now_s]:
            try:
                late.expire(now_s)
            except Exception:
                _LOG.exception("a deadline was not handled")


@cache
def _event_loop(process: int) -> EventLoop:
    return EventLoop()


def event_loop() -> EventLoop:
    """The event loop of this process; a forked process gets its own."""
    return _event_loop(os.getpid())
