"""A channel that outlives its connection: a store that is started again is asked again.

All questions to a store may be asked twice; gradients are numbered by rounds, and a store leaves
out those of rounds that it has made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from headrace.rpc.channel import Address, Channel
from headrace.rpc.credentials import Credentials
from headrace.rpc.errors import StoreError, StoreLostError
from headrace.rpc.framing import Fields, Message
from headrace.rpc.limits import TELL_AFTER_S
from headrace.rpc.socket_channel import open_channel

# A store's machine that is cut off lets a connection hang: better to try anew when it is back.
_CONNECT_S = 5.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_CLOSE_S = 3.0
_LEAST_S = 1.0
_LOOK_S = 0.25


@dataclass(frozen=True)
class RetryBudget:
    """How long to wait for a store that does not answer.

    Attributes:
        limit_s: From when it was asked.
        clock: Seconds.
        tell: Called with who is waited for, and true once it takes long, false when that is over.
    """

    limit_s: float
    clock: Callable[[], float]
    tell: Callable[[str, bool], None] = lambda _name, _waits: None


@dataclass(eq=False)
class _Request:
    """A question whose answer has not come."""

    fields: Fields
    arrays: Sequence[np.ndarray]
    timeout_s: float
    asked_s: float
    future: Future[Message] = field(default_factory=Future)


class ReconnectingChannel:
    """A `Channel` that connects again and asks again, until its patience ends.

    Args:
        address: Where the store is, for messages.
        connect: Opens a connection.
        retry_budget: How long to wait.

    Raises:
        StoreError: The store cannot be reached in all that time, or does not let this client in.
    """

    def __init__(
        self, address: Address, connect: Callable[[], Channel], retry_budget: RetryBudget
    ) -> None:
        self._address, self._connect, self._retry_budget = address, connect, retry_budget
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._broken: Channel | None = None
        self._is_mending = self._was_open = False
        self._waiting: set[_Request] = set()
        self._to_send: list[_Request] = []
        self._told = False
        self._closed = threading.Event()
        self._start(self._watch)
        try:
            self.ask({"op": "ping"}, (), _CONNECT_S).result()
        except BaseException:
            self.close()
            raise

    @property
    def current(self) -> Channel | None:
        """The connection that is open now."""
        return self._channel

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        """Send a request; see `Channel`. It waits as long as patience allows."""
        with self._lock:
            request = _Request(fields, arrays, timeout_s, self._retry_budget.clock())
            self._waiting.add(request)
        self._send(request)
        return request.future

    def close(self) -> None:
        """Give up what is still open."""
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
        timeout_s = min(request.timeout_s, max(left_s, _LEAST_S))
        asked = channel.ask(request.fields, request.arrays, timeout_s)
        asked.add_done_callback(partial(self._done, request, channel))

    def _send_later(self, request: _Request) -> None:
        """Keep a request until there is a connection; for whoever has the lock."""
        self._to_send.append(request)
        if not self._is_mending:
            self._is_mending = True
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
        """Connect anew, and send what waits; in a thread of its own."""
        self._clear()
        # Also before the first try: a store may fall over what waits again and again.
        pause_s = _FIRST_PAUSE_S if self._was_open else 0.0
        while not self._closed.wait(pause_s):
            pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            channel, error = self._try()
            if channel is not None:
                self._resume(channel)
                return
            assert error is not None
            for request in self._take(only_late=isinstance(error, StoreLostError)):
                self._fail(request, error)
            with self._lock:
                if not self._to_send:
                    self._is_mending = False
                    return

    def _clear(self) -> None:
        """Close what is broken: a channel that gives up cuts all connections to its store."""
        with self._lock:
            broken, self._broken = self._broken, None
        if broken is not None:
            # It may hang, and is not worth waiting for then.
            self._start(broken.close).join(_CLOSE_S)

    def _try(self) -> tuple[Channel | None, Exception | None]:
        try:
            # There may be one: what fails with an old one may come here late.
            return self._channel or self._connect(), None
        except StoreLostError as error:
            return None, self._late_error(error)
        except Exception as error:
            return None, error

    def _resume(self, channel: Channel) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._channel, self._is_mending, self._was_open = channel, False, True
            to_send, self._to_send = self._to_send, []
        if self._closed.is_set():
            channel.close()
        for request in to_send:
            self._send(request)

    def _take(self, only_late: bool) -> list[_Request]:
        """Requests that wait for a connection and need wait no more."""
        with self._lock:
            taken = [each for each in self._to_send if not only_late or self._is_late(each)]
            self._to_send = [each for each in self._to_send if each not in taken]
        return taken

    def _watch(self) -> None:
        """Say who is waited for, and end what has waited too long; in a thread of its own."""
        while not self._closed.wait(_LOOK_S):
            now_s = self._retry_budget.clock()
            with self._lock:
                waits = any(now_s - each.asked_s > TELL_AFTER_S for each in self._waiting)
            if waits != self._told:
                self._told = waits
                self._retry_budget.tell(str(self._address), waits)
            # Whoever mends may hang in a connection.
            for request in self._take(only_late=True):
                self._fail(request, self._late_error())

    def _is_late(self, request: _Request) -> bool:
        return self._retry_budget.clock() - request.asked_s >= self._retry_budget.limit_s

    def _late_error(self, error: StoreLostError | None = None) -> StoreLostError:
        why = "" if error is None else f": {error.problem}"
        return StoreLostError(
            f"{self._address} has not answered for {self._retry_budget.limit_s:g} s{why}",
            "see its log, or whether its machine is up, and start the run again",
        )

    def _closed_error(self) -> StoreError:
        return StoreError(f"the connection to {self._address} was closed", "open a new one")

    def _answer(self, request: _Request, reply: Message) -> None:
        if self._forget(request):
            request.future.set_result(reply)

    def _fail(self, request: _Request, error: BaseException) -> None:
        if self._forget(request):
            request.future.set_exception(error)

    def _forget(self, request: _Request) -> bool:
        """Whether nobody has answered this request yet."""
        with self._lock:
            waits = request in self._waiting
            self._waiting.discard(request)
            return waits

    def _start(self, run: Callable[[], None]) -> threading.Thread:
        name = f"patience with {self._address}"
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread


def reach_store(
    address: Address, credentials: Credentials, timeout_s: float, retry_budget: RetryBudget | None
) -> Channel:
    """The fastest way to a store; with patience, one that lasts if the store is back in time.

    Raises:
        StoreError: The store cannot be reached, or does not let this client in.
        MissingExtraError: pyarrow is not installed.
    """
    if retry_budget is None:
        return open_channel(address, credentials, timeout_s)
    connect = partial(open_channel, address, credentials, min(timeout_s, _CONNECT_S))
    return ReconnectingChannel(address, connect, retry_budget)
