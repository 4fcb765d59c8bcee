"""Notices that nothing moves any more, says who waits for whom, and looks for cut networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.core.job import Role
from headrace.policies.lifecycle.events import Lost, Task
from headrace.policies.recovery.stalls import Stall, accuse, describe, look
from headrace.runtime.calls import Calls
from headrace.runtime.first_batch import ASKED

_MOVES = ("batches", "report", "checkpoint", "resumed")
"""Messages of a trainer that does something."""

# Nobody listens there; who is reached refuses.
_ANY_PORT = 1


class StallWatch:
    """Watches trainers of a run.

    Args:
        tasks: All tasks.
        now_s: When it begins.
    """

    def __init__(self, tasks: Iterable[Task], now_s: float) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._stall = Stall(now_s)
        self._has_begun, self._news = False, ""
        self._sizes: dict[str, int] = {}
        self._waits: dict[str, dict[str, bool]] = {}
        self._asked: set[str] = set()

    def see(self, name: str, state: Mapping[str, Any], now_s: float) -> bool:
        """Take note of how a task is; whether a trainer has done a step of the training."""
        if self._tasks[name].role is not Role.TRAINER:
            waits_for = state.get("waits_for", "")
            self._waits[name] = {waits_for: True} if waits_for else {}
            return False
        # A script that has not begun to train, or does so in its own way, may still print.
        has_stepped, size = False, state["trace_bytes"] or state["log_bytes"]
        moves = size > self._sizes.get(name, 0)
        self._sizes[name] = size
        for message in state.get("messages", ()):
            kind = message.get("kind")
            moves = moves or kind in _MOVES
            has_stepped = has_stepped or (kind == "batches" and message["trains"])
            if kind == ASKED["kind"]:
                self._asked.add(name)
            if kind == "waits":
                self._waits.setdefault(name, {})[message["for"]] = message["waits"]
        self._has_begun = self._has_begun or has_stepped
        if moves:
            if self._stall.told_s is not None:
                self._news = f"it moves again after {now_s - self._stall.moved_s:.0f} s"
            self._stall = Stall(now_s)
        return has_stepped

    def look(self, now_s: float) -> tuple[str, bool]:
        """A line if it is time for one, and whether to look for a cut network."""
        if self._news:
            news, self._news = self._news, ""
            return news, False
        moved_s = self._stall.moved_s
        self._stall, says, probes = look(self._stall, now_s)
        waits = {
            str(self._tasks[name]): ", ".join(text for text, is_so in own.items() if is_so)
            for name, own in self._waits.items()
            if any(own.values())
        }
        if not waits and not self._has_begun:
            waits = self._first_waits()
        line = describe(now_s - moved_s, waits, self._has_begun) if says else ""
        return line, probes

    def _first_waits(self) -> dict[str, str]:
        """What trainers wait for before their first batch, as far as they have said."""
        trainers = [task for task in self._tasks.values() if task.role is Role.TRAINER]
        return {
            str(task): "its first batch; the first run of all compiles the samplers"
            if task.name in self._asked
            else "its script, which imports or prepares and has asked no loader for a batch yet"
            for task in trainers
        }


class NetworkProbe:
    """Lets all machines try whether they reach each other.

    Args:
        places: Address of every machine, and a port where somebody listens, if one does.
        home: The machine of the driver.
        say: Told what was found.
        accuse: Told who is lost, if somebody is.
    """

    def __init__(
        self,
        places: Mapping[str, tuple[str, int | None]],
        home: str,
        say: Callable[[str], None],
        accuse: Callable[[Lost], None],
    ) -> None:
        self._places = {name: (host, port or _ANY_PORT) for name, (host, port) in places.items()}
        self._home, self._say, self._accuse = home, say, accuse
        self._asked: set[str] = set()
        self._cuts: dict[tuple[str, str], str] = {}

    def begin(self, calls: Calls, shells: Mapping[str, Any]) -> None:
        """Ask all machines at once.

        Args:
            calls: Carry the answers.
            shells: Of each machine's store.
        """
        self._asked = set(shells)
        for name, shell in shells.items():
            others = {other: place for other, place in self._places.items() if other != name}
            calls.ask(shell.reach.remote(others), self._answered(name), self._failed(name))

    def _answered(self, name: str) -> Callable[[dict[str, str]], None]:
        def then(unreachable: dict[str, str]) -> None:
            self._cuts |= {(name, other): why for other, why in unreachable.items()}
            self._end(name)

        return then

    def _failed(self, name: str) -> Callable[[Exception], None]:
        # Whoever polls it finds out what became of it.
        return lambda error: self._end(name)

    def _end(self, name: str) -> None:
        self._asked.discard(name)
        if self._asked:
            return
        accused = accuse(self._cuts, self._home)
        if accused is None:
            self._say("all machines reach each other, so the network is not the reason")
            return
        pairs = [f"{one} does not reach {other}" for one, other in sorted(self._cuts)]
        self._accuse(Lost(accused, f"the network is cut: {', '.join(pairs[:4])}"))
