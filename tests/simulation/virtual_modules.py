"""Stand for modules `time` and `threading` in a world."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.simulation.world import Fiber, Killed, Ticket, World


class VirtualTime:
    """Stands for module `time`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        import time

        return getattr(time, name)

    def monotonic(self) -> float:
        """The clock of the current machine."""
        fiber = self._world.current
        return self._world.now_s + (0.0 if fiber is None else fiber.process.machine.clock_s)

    perf_counter = monotonic

    def time(self) -> float:
        """Seconds since the epoch."""
        return 1.7e9 + self.monotonic()

    def thread_time(self) -> float:
        """CPU time costs nothing."""
        return 0.0

    def sleep(self, time_s: float) -> None:
        """Block the current fiber."""
        self._world.sleep(time_s)


class VirtualThreading:
    """Stands for module `threading`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    def Lock(self) -> Condition:  # noqa: N802 - like threading's
        """A lock."""
        return Condition(self._world)

    RLock = Lock

    def Condition(self, lock: Any = None) -> Condition:  # noqa: N802 - like threading's
        """A condition with its lock."""
        return Condition(self._world)

    def Event(self) -> Event:  # noqa: N802 - like threading's
        """An event."""
        return Event(self._world)

    def Thread(  # noqa: N802 - like threading's
        self,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        name: str = "",
        daemon: bool = True,
    ) -> Thread:
        """A thread of the current process."""
        return Thread(self._world, lambda: target(*args, **(kwargs or {})), name)

    def current_thread(self) -> str:
        """Every fiber that asks is the main one of its process."""
        return "main"

    def main_thread(self) -> str:
        """The main thread."""
        return "main"


class Thread:
    """A fiber of the process that starts it."""

    def __init__(self, world: World, target: Callable[[], None], name: str) -> None:
        self._world, self._target, self._name = world, target, name
        self._fiber: Fiber | None = None

    def start(self) -> None:
        """Start the fiber."""
        if self._world.is_closing:
            raise Killed
        assert self._world.current is not None
        self._fiber = self._world.spawn(self._world.current.process, self._target, self._name)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._fiber is not None:
            self._world.join(self._fiber, timeout)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._fiber is not None and not self._fiber.is_done


class Condition:
    """A condition and its lock; fibers switch only where they block, so few ever wait for it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owner: Fiber | None = None
        self._is_held = False
        self._depth = 0
        self._waiting: list[Ticket] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock."""
        world = self._world
        if self._is_held and self._owner is world.current:
            self._depth += 1
            return True
        while self._is_held:
            if world.is_closing:
                raise Killed
            if not blocking:
                return False
            world.sleep(0.001)
        self._is_held, self._owner, self._depth = True, world.current, 1
        return True

    def release(self) -> None:
        """Release the lock."""
        self._depth -= 1
        if not self._depth:
            self._is_held, self._owner = False, None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until `notify_all`, or for a time."""
        ticket = self._world.ticket()
        self._waiting.append(ticket)
        self._is_held, self._owner = False, None
        try:
            return self._world.block(timeout)
        finally:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            if not self._world.is_closing:
                self.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until something holds."""
        end_s = None if timeout is None else self._world.now_s + timeout
        while not (result := predicate()):
            left_s = None if end_s is None else end_s - self._world.now_s
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return result

    def notify_all(self) -> None:
        """Wake all who wait."""
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            self._world.wake(ticket)

    notify = notify_all


class Event:
    """An event."""

    def __init__(self, world: World) -> None:
        self._condition = Condition(world)
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it."""
        self._is_set = True
        self._condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        with self._condition:
            self._condition.wait_for(self.is_set, timeout)
        return self._is_set
