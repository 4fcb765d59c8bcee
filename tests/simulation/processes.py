"""Processes of task actors."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable

from headrace.runtime.workers.task_process import how_ended
from tests.simulation.cluster import Cluster
from tests.simulation.world import Process


class Task:
    """The process of an actor; like `TaskProcess`, it acts when its code is asked for.

    Args:
        react: What it does when it is asked to exit; by default it exits.
    """

    def __init__(
        self, cluster: Cluster, process: Process, react: Callable[[], None] | None
    ) -> None:
        self._world, self.process, self._react = cluster.world, process, react
        self.pid = cluster.next_number()
        self.exit_code: int | None = None
        self.ended_s = self.began_s = self._world.now_s
        self._kill_s = self._repeat_s = math.inf
        self._why = ""
        self.last_error = ""
        self.at_exit: list[Callable[[], None]] = []

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return self.exit_code is None and self.process.frozen_until_s > self._world.now_s

    def code(self) -> int | None:
        """Exit code, if it has exited."""
        now_s = self._world.now_s
        if self.exit_code is None and now_s >= self._kill_s:
            self.exit(-signal.SIGKILL)
        elif self.exit_code is None and now_s >= self._repeat_s:
            self._repeat_s = math.inf
            self._ask()
        return self.exit_code

    def exit(self, code: int, error: str = "") -> None:
        """End the process."""
        if self.exit_code is None:
            self.exit_code, self.ended_s, self.last_error = code, self._world.now_s, error
            self.process.is_dead = True
            for each in self.at_exit:
                each()

    @property
    def how(self) -> str:
        """How it ended."""
        return "" if self.exit_code is None else self._why or how_ended(self.exit_code)

    def kill(self, why: str) -> None:
        """Kill it for a reason."""
        if self.code() is None:
            self._why = f"{why}, and was killed"
            self.exit(-signal.SIGKILL)

    def stop(self, grace_s: float) -> None:
        """Ask it to exit."""
        if self.code() is not None:
            return
        now_s, is_first = self._world.now_s, math.isinf(self._kill_s)
        if now_s + grace_s < self._kill_s:
            self._kill_s, self._repeat_s = now_s + grace_s, now_s + grace_s / 2
        if is_first:
            self._ask()

    def _ask(self) -> None:
        def react() -> None:
            if self.process.is_dead:
                return
            if self.process.thaws_s() > self._world.now_s:
                self._world.at(self.process.thaws_s(), react)
            elif self._react is None:
                self.exit(0)
            else:
                self._react()

        self._world.after(self._world.random.uniform(0.005, 0.1), react)
