"""A world in virtual time: events, ordered by time and seed, and fibers that block in it.

A fiber is a thread that runs alone: one that blocks takes the next event from the queue, and hands
over to the fiber that the event wakes. So a world with the same seed takes the same steps.
"""

from __future__ import annotations

import _thread
import heapq
import random
import sys
import threading
from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """Ends a fiber of a process that was killed; raised when the world ends."""


class StuckError(AssertionError):
    """Nothing happens any more, or too much."""


class Machine:
    """A machine: alive, frozen or dead."""

    def __init__(self, name: str, number: int = 0, clock_s: float = 0.0) -> None:
        self.name, self.clock_s = name, clock_s
        self.number = number
        self.node_id, self.address = f"node-{name}-0", f"10.0.0.{number + 1}"
        self.num_boots = 0
        self.is_alive = True
        # What is installed there: another version of headrace, or something that does not begin.
        self.version = self.broken = ""
        self.frozen_until_s = 0.0
        self.died_s = 0.0


class Process:
    """A process: its fibers are dropped when it is killed."""

    def __init__(self, name: str, machine: Machine) -> None:
        self.name, self.machine = name, machine
        self.is_dead = False
        self.frozen_until_s = self.hung_until_s = 0.0
        self.randoms: Any = None
        self.at_error: Callable[[BaseException], None] | None = None
        self.handlers: dict[int, Callable[..., None]] = {}
        self.details: dict[str, Any] = {}

    def thaws_s(self) -> float:
        """When it goes on."""
        return max(self.frozen_until_s, self.hung_until_s, self.machine.frozen_until_s)


class Fiber:
    """A thread of a process."""

    def __init__(self, process: Process, target: Callable[[], None] | None, name: str) -> None:
        self.process, self.target, self.name = process, target, name
        self.epoch, self.may_block = 0, True
        self.is_done = self.was_woken = False
        self.thread: Thread | None = None
        self.joiners: list[Ticket] = []


class Thread:
    """A thread: it runs one fiber after the other, and waits at its lock."""

    def __init__(self, fiber: Fiber | None) -> None:
        self.fiber = fiber
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self.go_on, self.wait = self._lock.release, self._lock.acquire


Ticket = tuple[Fiber, int]


class World:
    """Virtual time.

    Args:
        seed: Seed of everything that is drawn.
        limit_s: Virtual time after which the world is stuck.
    """

    def __init__(self, seed: int, limit_s: float = 3600.0) -> None:
        self.now_s, self.limit_s = 1000.0, 1000.0 + limit_s
        self.random = random.Random(seed)
        self.machines: dict[str, Machine] = {}
        self.is_closing = False
        self.error: BaseException | None = None
        self._heap: list[tuple[float, float, int, Any, Any, int, bool]] = []
        self._num = 0
        outside = Process("world", Machine("world"))
        self._main = Fiber(outside, None, "main")
        self._main.thread = Thread(self._main)
        self.current: Fiber | None = self._main
        self._fibers: list[Fiber] = []
        self._idle: list[Thread] = []
        self._owner: Process | None = None
        self.num_steps = 0
        self.save_randoms: Callable[[], Any] = lambda: None
        self.load_randoms: Callable[[Any], None] = lambda state: None

    # --- events -----------------------------------------------------------------------------------

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Call a function, which must not block, at a time."""
        self._push(time_s, call, None, 0, False)

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call a function, which must not block, after a time."""
        self._push(self.now_s + delay_s, call, None, 0, False)

    def _push(self, time_s: float, call: Any, fiber: Any, epoch: int, woken: bool) -> None:
        self._num += 1
        time_s = max(time_s, self.now_s)
        # Who is woken finds all that has arrived at that time.
        event = (time_s, self.random.random() + woken, self._num, call, fiber, epoch, woken)
        heapq.heappush(self._heap, event)

    # --- fibers -----------------------------------------------------------------------------------

    def spawn(self, process: Process, target: Callable[[], None], name: str) -> Fiber:
        """Start a fiber of a process."""
        fiber = Fiber(process, target, name)
        self._fibers.append(fiber)
        self._push(self.now_s, None, fiber, 0, True)
        return fiber

    def block(self, timeout_s: float | None = None) -> bool:
        """Block the current fiber until it is woken, or for a time; return whether it was woken."""
        fiber = self.current
        if self.is_closing:
            raise Killed
        assert fiber is not None, "an event handler must not block"
        assert fiber.may_block, "an event handler must not block"
        if timeout_s is not None:
            self._push(self.now_s + timeout_s, None, fiber, fiber.epoch, False)
        self._loop(fiber)
        if self.is_closing:
            raise Killed
        if fiber is self._main and self.error is not None:
            raise self.error
        return fiber.was_woken

    def sleep(self, time_s: float) -> None:
        """Block the current fiber for a time."""
        end_s = self.now_s + time_s
        while self.now_s < end_s:
            self.block(end_s - self.now_s)

    def ticket(self) -> Ticket:
        """What wakes the current fiber from its next block, and from no later one."""
        assert self.current is not None, "an event handler must not wait"
        return self.current, self.current.epoch

    def wake(self, ticket: Ticket) -> None:
        """Wake a blocked fiber."""
        self._push(self.now_s, None, *ticket, True)

    def call_in(self, process: Process, call: Callable[[], None]) -> None:
        """Call a function, which must not block, as a process would."""
        if process.is_dead:
            return
        before, self.current = self.current, Fiber(process, None, "handler")
        self.current.may_block = False
        try:
            call()
        finally:
            self.current = before

    def wake_main(self) -> None:
        """Wake the fiber that made the world."""
        self.wake((self._main, self._main.epoch))

    def join(self, fiber: Fiber, timeout_s: float | None = None) -> None:
        """Wait for the end of a fiber."""
        if not fiber.is_done:
            fiber.joiners.append(self.ticket())
            self.block(timeout_s)

    def _loop(self, own: Fiber | None) -> None:
        """Handle events until `own` is woken; without it, until another fiber is."""
        while True:
            if self.error is not None:
                return self._switch(own, self._main)
            if not self._heap or self._heap[0][0] > self.limit_s:
                self.error = StuckError("nothing happens any more" if not self._heap else "no end")
                continue
            time_s, _, _, call, fiber, epoch, woken = heapq.heappop(self._heap)
            self.now_s = time_s
            self.num_steps += 1
            if call is not None:
                self.current = None
                try:
                    call()
                except BaseException as error:
                    self.error = error
                continue
            if fiber.epoch != epoch or fiber.is_done or fiber.process.is_dead:
                continue
            if (thaws_s := fiber.process.thaws_s()) > self.now_s:
                self._push(thaws_s, None, fiber, epoch, woken)
                continue
            fiber.epoch += 1
            fiber.was_woken = woken
            return self._switch(own, fiber)

    def _switch(self, own: Fiber | None, other: Fiber) -> None:
        self.current = other
        if other is own:
            return
        if other.thread is not None:
            other.thread.go_on()
        elif self._idle:
            thread = other.thread = self._idle.pop()
            thread.fiber = other
            thread.go_on()
        else:
            other.thread = Thread(other)
            _thread.start_new_thread(self._work, (other.thread,))
        if own is not None:
            assert own.thread is not None
            own.thread.wait()

    def _work(self, thread: Thread) -> None:
        # Threads of module threading do so, too.
        sys.settrace(threading.gettrace())
        while thread.fiber is not None:
            self._run(thread.fiber)
            thread.fiber = None
            if self.is_closing:
                assert self._main.thread is not None
                self._main.thread.go_on()
                return
            # It may be the one that runs the next fiber.
            self._idle.append(thread)
            self._loop(None)
            thread.wait()

    def _run(self, fiber: Fiber) -> None:
        assert fiber.target is not None
        try:
            fiber.target()
        except Killed:
            pass
        except BaseException as error:
            if not self.is_closing:
                if fiber.process.at_error is None:
                    self.error = error
                else:
                    fiber.process.at_error(error)
        fiber.is_done = True
        if not self.is_closing:
            for each in fiber.joiners:
                self.wake(each)

    def take_randoms(self, process: Process) -> None:
        """Let a process draw its own global random numbers."""
        if process is not self._owner:
            if self._owner is not None:
                self._owner.randoms = self.save_randoms()
            if process.randoms is not None:
                self.load_randoms(process.randoms)
            self._owner = process

    def close(self) -> None:
        """Unwind all fibers, and end all threads."""
        self.is_closing = True
        assert self._main.thread is not None
        for fiber in self._fibers:
            if fiber.thread is not None and not fiber.is_done:
                self.current = fiber
                fiber.thread.go_on()
                self._main.thread.wait()
        for thread in self._idle:
            thread.go_on()
        self._heap.clear()
