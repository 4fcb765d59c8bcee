"""A channel that reconnects to a restarted store and repeats pending requests.

All requests to a store may be repeated. Gradients carry the number of their sync round, and a store
drops those of completed rounds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from headrace.rpc.client import CHECK_LOG, Channel, RpcChannel
from headrace.rpc.config import TELL_AFTER_S, TaskAddress
from headrace.rpc.credentials import Credentials
from headrace.rpc.errors import StoreError, StoreLostError
from headrace.rpc.framing import Fields, Message

# Connecting to an unreachable machine hangs: a short timeout allows a retry once it is back.
_CONNECT_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_MIN_TIMEOUT_S = 1.0
_POLL_INTERVAL_S = 0.25


@dataclass(frozen=True)
class RetryBudget:
    """How long to retry requests to a store that does not answer.

    Attributes:
        limit_s: Seconds since the request was sent.
        clock: Returns seconds.
        notify: Called with the store's name, and True when a wait becomes long, False when it ends.
    """

    limit_s: float
    clock: Callable[[], float]
    notify: Callable[[str, bool], None] = lambda _name, _waits: None


@dataclass(eq=False)
class _Request:
    """A request without a reply yet."""

    fields: Fields
    arrays: Sequence[np.ndarray]
    timeout_s: float
    asked_s: float
    future: Future[Message] = field(default_factory=Future)


class ReconnectingChannel:
    """A `Channel` that reconnects and repeats requests until the retry budget is exhausted."""

    def __init__(
        self, address: TaskAddress, connect: Callable[[], Channel], retry_budget: RetryBudget
    ) -> None:
        self._address, self._connect, self._retry_budget = address, connect, retry_budget
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._broken: Channel | None = None
        self._is_reconnecting = self._was_open = False
        self._waiting: set[_Request] = set()
        self._to_send: list[_Request] = []
        self._is_reported = False
        self._closed = threading.Event()
        self._start(self._watch)
        try:
            self.ask({"op": "ping"}, (), _CONNECT_TIMEOUT_S).result()
        except BaseException:
            self.close()
            raise

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        """Send a request; see `Channel`. It is retried within the retry budget."""
        with self._lock:
            request = _Request(fields, arrays, timeout_s, self._retry_budget.clock())
            self._waiting.add(request)
        self._send(request)
        return request.future

    def close(self) -> None:
        """Close the connection; pending requests fail."""
        self._closed.set()
        with self._lock:
            channel, self._channel = self._channel, None
            left = list(self._waiting)
        if channel is not None:
            channel.close()
        for request in left:
            self._fail(request, self._closed_error())

    def _send(self, request: _Request) -> None:
        if self._closed.is_set():
            self._fail(request, self._closed_error())
            return
        with self._lock:
            channel = self._channel
            if channel is None:
                self._send_later(request)
                return
        left_s = request.asked_s + self._retry_budget.limit_s - self._retry_budget.clock()
        timeout_s = min(request.timeout_s, max(left_s, _MIN_TIMEOUT_S))
        asked = channel.ask(request.fields, request.arrays, timeout_s)
        asked.add_done_callback(partial(self._done, request, channel))

    def _send_later(self, request: _Request) -> None:
        """Queue a request until there is a connection; the caller holds the lock."""
        self._to_send.append(request)
        if not self._is_reconnecting:
            self._is_reconnecting = True
            self._start(self._handle_failure)

    def _done(self, request: _Request, channel: Channel, asked: Future[Message]) -> None:
        error = asked.exception()
        if isinstance(error, StoreLostError) and not self._closed.is_set():
            if not self._is_late(request):
                with self._lock:
                    if self._channel is channel:
                        self._channel, self._broken = None, channel
                    self._send_later(request)
                return
            error = self._late_error(error)
        if error is None:
            self._answer(request, asked.result())
        else:
            self._fail(request, error)

    def _handle_failure(self) -> None:
        """Reconnect and send queued requests; runs in its own thread."""
        self._clear()
        # Also before the first attempt: a queued request may crash the store again and again.
        pause_s = _FIRST_PAUSE_S if self._was_open else 0.0
        while not self._closed.wait(pause_s):
            pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            channel, error = self._try()
            if channel is not None:
                self._resume(channel)
                return
            assert error is not None
            for request in self._pop_queued(only_late=isinstance(error, StoreLostError)):
                self._fail(request, error)
            with self._lock:
                if not self._to_send:
                    self._is_reconnecting = False
                    return

    def _clear(self) -> None:
        """Close the broken channel."""
        with self._lock:
            broken, self._broken = self._broken, None
        if broken is not None:
            broken.close()

    def _try(self) -> tuple[Channel | None, Exception | None]:
        try:
            # A failure of an old channel may arrive after a new one was opened.
            return self._channel or self._connect(), None
        except StoreLostError as error:
            return None, self._late_error(error)
        except Exception as error:
            return None, error

    def _resume(self, channel: Channel) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._channel, self._is_reconnecting, self._was_open = channel, False, True
            to_send, self._to_send = self._to_send, []
        if self._closed.is_set():
            channel.close()
        for request in to_send:
            self._send(request)

    def _pop_queued(self, only_late: bool) -> list[_Request]:
        """Pop queued requests: those past the retry budget, or all."""
        with self._lock:
            taken = [each for each in self._to_send if not only_late or self._is_late(each)]
            self._to_send = [each for each in self._to_send if each not in taken]
        return taken

    def _watch(self) -> None:
        """Report long waits and fail overdue requests; runs in its own thread."""
        while not self._closed.wait(_POLL_INTERVAL_S):
            now_s = self._retry_budget.clock()
            with self._lock:
                waits = any(now_s - each.asked_s > TELL_AFTER_S for each in self._waiting)
            if waits != self._is_reported:
                self._is_reported = waits
                self._retry_budget.notify(str(self._address), waits)
            # The reconnecting thread may hang in a connection attempt.
            for request in self._pop_queued(only_late=True):
                self._fail(request, self._late_error())

    def _is_late(self, request: _Request) -> bool:
        return self._retry_budget.clock() - request.asked_s >= self._retry_budget.limit_s

    def _late_error(self, error: StoreLostError | None = None) -> StoreLostError:
        why = "" if error is None else f": {error.problem}"
        return StoreLostError(
            f"{self._address} has not answered for {self._retry_budget.limit_s:g} s{why}",
            CHECK_LOG,
        )

    def _closed_error(self) -> StoreError:
        return StoreError(f"the connection to {self._address} was closed", "open a new one")

    def _answer(self, request: _Request, reply: Message) -> None:
        if self._remove(request):
            request.future.set_result(reply)

    def _fail(self, request: _Request, error: BaseException) -> None:
        if self._remove(request):
            request.future.set_exception(error)

    def _remove(self, request: _Request) -> bool:
        """Remove a request; whether it was still pending."""
        with self._lock:
            waits = request in self._waiting
            self._waiting.discard(request)
            return waits

    def _start(self, run: Callable[[], None]) -> threading.Thread:
        name = f"reconnect to {self._address}"
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread


def reach_store(
    address: TaskAddress,
    credentials: Credentials,
    timeout_s: float,
    retry_budget: RetryBudget | None,
) -> Channel:
    """Open a channel to a store; with a retry budget, one that reconnects.

    Raises:
        StoreError: The store is unreachable or rejects this client.
    """
    if retry_budget is None:
        return RpcChannel(address, credentials, timeout_s)
    connect = partial(RpcChannel, address, credentials, min(timeout_s, _CONNECT_TIMEOUT_S))
    return ReconnectingChannel(address, connect, retry_budget)
