"""Task actors as plain objects of this process, for runs on one machine without Ray."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.linux.memory import available_bytes
from headrace.prefork.client import keep_s
from headrace.runtime.cluster.actor_system import CallFailure, Location, Reservation

if TYPE_CHECKING:
    from headrace.runtime.cluster.placement_group import TaskPlacement

NODE_ID = "local"
ADDRESS = "127.0.0.1"


class LocalActors:
    """Task actors whose methods run in the thread that created this object.

    Their processes exit with the thread that started them, so calls of other threads wait until
    that thread calls `wait`.
    """

    poll_interval_s = 0.2
    metrics_endpoint = None
    head_silent_s = 0.0
    errors: tuple[type[Exception], ...] = (TimeoutError,)

    def __init__(self, machine: str) -> None:
        self._machine, self._thread = machine, threading.get_ident()
        # For a single run the imports of a fork server save nothing.
        self.has_fork_server = keep_s() > 0
        self._handles: list[LocalHandle] = []
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def nodes(self, timeout_s: float = 0.0) -> Sequence[Mapping[str, Any]]:
        """This machine."""
        return [
            {
                "NodeID": NODE_ID,
                "Alive": True,
                "NodeManagerHostname": self._machine,
                "NodeManagerAddress": ADDRESS,
                "Resources": {"CPU": math.inf, "memory": float(available_bytes())},
            }
        ]

    def location(self) -> Location:
        """This machine."""
        return Location(NODE_ID, ADDRESS)

    def gpu_ids(self) -> list[str]:
        """No ids: the trainer sees all GPUs."""
        return []

    def reserve(self, slots: Sequence[TaskPlacement], name: str) -> Reservation:
        """Reserve nothing."""
        return _Unlimited(self)

    def wait(self, refs: Sequence[Any], timeout_s: float, num: int = 1) -> list[Any]:
        """Run calls of other threads; return all available references.

        `num` is not used: the results of this thread's calls are available at once.
        """
        has_result = any(ref.done() for ref in refs)
        with suppress(queue.Empty):
            self._calls.get(timeout=0 if has_result else timeout_s)()
            while True:
                self._calls.get_nowait()()
        return [ref for ref in refs if ref.done()]

    def get(self, ref: Future[Any], timeout_s: float) -> Any:
        """Result of a call; raises its error."""
        return ref.result(timeout_s)

    def kill(self, actor: LocalHandle) -> None:
        """End the actor's processes."""
        with suppress(Exception):
            actor.actor.close()

    def close(self) -> None:
        """End the processes of all actors."""
        for handle in self._handles:
            self.kill(handle)

    def start(self, actor: type, *arguments: Any) -> LocalHandle:
        """Create an actor."""
        self._handles.append(LocalHandle(self, actor(*arguments)))
        return self._handles[-1]

    def why(self, error: Exception) -> CallFailure:
        """Every error is raised by the called method."""
        return CallFailure.RAISED

    def call(self, method: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a method in the thread of this object."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(method(*arguments))
            except Exception as error:
                future.set_exception(error)

        if threading.get_ident() == self._thread:
            run()
        else:
            self._calls.put(run)
        return future


class LocalHandle:
    """Handle of an actor with the interface of Ray's."""

    def __init__(self, system: LocalActors, actor: Any) -> None:
        self.actor, self._system = actor, system

    def __getattr__(self, name: str) -> _Method:
        return _Method(partial(self._system.call, getattr(self.actor, name)))


class _Method:
    def __init__(self, call: Callable[..., Future[Any]]) -> None:
        self.remote = call


class _Unlimited:
    is_ready = True

    def __init__(self, system: LocalActors) -> None:
        self._system = system

    def lacks(self) -> dict[str, str]:
        return {}

    def start(self, number: int, actor: type, *arguments: Any) -> LocalHandle:
        return self._system.start(actor, *arguments)

    def remove(self) -> None:
        pass
