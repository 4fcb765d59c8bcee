"""Watches a run while nothing is wrong with any task: whether it moves, and who has joined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.core.errors import DamagedGraphError
from headrace.core.job import Role
from headrace.graph.format.manifest import REMEDY
from headrace.policies.lifecycle.events import Event, Failed, Lost, Regroup, Task, Verified
from headrace.policies.recovery.events import MachinesJoined, Resume, Stepped
from headrace.policies.recovery.stalls import Stall, accuse, describe, look
from headrace.runtime.callbacks.base import Observer
from headrace.runtime.callbacks.drift_monitor import DriftMonitor
from headrace.runtime.controller.failure_handling import FailureHandler
from headrace.runtime.controller.task_configs import TaskConfigs
from headrace.runtime.controller.worker_group import PendingActorCalls, WorkerGroup
from headrace.runtime.protocol import finite_check
from headrace.runtime.protocol.finite_check import FiniteCheck
from headrace.runtime.protocol.parameter_check import ParameterCheck
from headrace.runtime.protocol.trainer_messages import ASKED

_JOINING_S = 5.0


class Watch:
    """Says what a run waits for, lets machines look for a cut network, and asks for new machines.

    Args:
        worker_group: Actors of all tasks.
        task_configs: Know where stores listen.
        calls: To ask shells with.
        observer: Is told what is seen.
        mender: Is told of steps, and of machines that have joined.
        there: Names of the machines that are there.
        tell: Told who cannot be reached, and when to go on otherwise.
        drift: Says when the run has drifted from its plan; none if nobody asks.
        parameters: Compares trainers' parameters; none if each may have a model of its own.
    """

    def __init__(
        self,
        worker_group: WorkerGroup,
        task_configs: TaskConfigs,
        calls: PendingActorCalls,
        observer: Observer,
        mender: FailureHandler,
        there: Callable[[], frozenset[str]],
        tell: Callable[[Event], None],
        drift: DriftMonitor | None = None,
        parameters: ParameterCheck | None = None,
    ) -> None:
        self._drift, self._parameters, self._finite = drift, parameters, FiniteCheck()
        self._worker_group, self._task_configs, self._calls = worker_group, task_configs, calls
        self._observer, self._mender, self._there, self._tell = observer, mender, there, tell
        self._stalls = StallDetector(worker_group.tasks, 0.0)
        self._next_join_s = 0.0

    def begin(self, now_s: float) -> None:
        """All tasks run from now on."""
        self._stalls = StallDetector(self._worker_group.tasks, now_s)

    def see(self, name: str, state: Mapping[str, Any], now_s: float) -> None:
        """Take note of how a task is."""
        if self._stalls.see(name, state, now_s):
            self._mender.take(Stepped())
        task = self._worker_group.slot(name).task
        if state.get("is_verified"):
            self._tell(Verified(name))
        if task.role is Role.STORE and state["code"] == DamagedGraphError.exit_code:
            self._fail(Failed(f"{task}: {state['said'].rpartition(' ERROR ')[2]}", REMEDY))
        for message in state.get("messages", ()):
            if message.get("kind") == "note":
                self._observer.say(f"{task}: {message['text']}")
            elif message.get("kind") == "parameters" and self._parameters is not None:
                self._fail(self._parameters.see(str(task), message))
            elif message.get("kind") == finite_check.KIND:
                self._fail(self._finite.see(str(task), message, now_s))

    def look(self, now_s: float) -> None:
        """Do what it is time for."""
        self._fail(self._finite.look(now_s))
        line, probes = self._stalls.look(now_s)
        if line:
            self._observer.say(line)
        if probes:
            self._probe()
        if self._mender.state.elastic and now_s >= self._next_join_s:
            self._next_join_s = now_s + _JOINING_S
            before = self._mender.state.joined
            self._mender.take(MachinesJoined(self._there()))
            for name in sorted(self._mender.state.joined - before):
                self._observer.say(f"{name} has joined: it is used from the next checkpoint on")
        if self._drift is not None:
            drifted = self._drift.look(now_s, self._mender.state.saved is not None)
            if drifted is not None and isinstance(self._mender.take(drifted), Resume):
                self._tell(Regroup(drifted.why))

    def _fail(self, failed: Failed | None) -> None:
        if failed is not None:
            self._tell(failed)

    def _probe(self) -> None:
        self._observer.say("machines try whether they reach each other")
        stores = self._worker_group.stores
        places = {
            slot.task.machine: (slot.node.address, self._task_configs.some_port(slot.index))
            for slot in stores
        }
        probe = PartitionProbe(places, self._worker_group.home, self._observer.say, self._tell)
        actors = {slot.task.machine: self._worker_group.actor(slot.task.name) for slot in stores}
        probe.begin(self._calls, actors)


_MOVES = ("batches", "report", "checkpoint", "resumed")
"""Messages of a trainer that does something."""

# Nobody listens there; who is reached refuses.
_ANY_PORT = 1


class StallDetector:
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


class PartitionProbe:
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

    def begin(self, calls: PendingActorCalls, actors: Mapping[str, Any]) -> None:
        """Ask all machines at once.

        Args:
            calls: Carry the answers.
            actors: Of each machine's store.
        """
        self._asked = set(actors)
        for name, actor in actors.items():
            others = {other: place for other, place in self._places.items() if other != name}
            calls.ask(actor.reach.remote(others), self._answered(name), self._failed(name))

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
