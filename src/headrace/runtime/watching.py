"""Watches a run while nothing is wrong with any task: whether it moves, and who has joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.errors import DamagedGraphError
from headrace.core.job import Role
from headrace.graph.manifest import REMEDY
from headrace.policies.lifecycle.events import Event, Failed, Regroup, Verified
from headrace.policies.recovery.events import MachinesJoined, Resume, Stepped
from headrace.runtime import finite_check
from headrace.runtime.calls import Calls
from headrace.runtime.crew import Crew
from headrace.runtime.drifting import DriftWatch
from headrace.runtime.finite_check import FiniteCheck
from headrace.runtime.mending import Mender
from headrace.runtime.observer import Observer
from headrace.runtime.orders import Orders
from headrace.runtime.parameter_check import ParameterCheck
from headrace.runtime.stalling import NetworkProbe, StallWatch

_JOINING_S = 5.0


class Watch:
    """Says what a run waits for, lets machines look for a cut network, and asks for new machines.

    Args:
        crew: Shells of all tasks.
        orders: Know where stores listen.
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
        crew: Crew,
        orders: Orders,
        calls: Calls,
        observer: Observer,
        mender: Mender,
        there: Callable[[], frozenset[str]],
        tell: Callable[[Event], None],
        drift: DriftWatch | None = None,
        parameters: ParameterCheck | None = None,
    ) -> None:
        self._drift, self._parameters, self._finite = drift, parameters, FiniteCheck()
        self._crew, self._orders, self._calls = crew, orders, calls
        self._observer, self._mender, self._there, self._tell = observer, mender, there, tell
        self._stalls = StallWatch(crew.tasks, 0.0)
        self._next_join_s = 0.0

    def begin(self, now_s: float) -> None:
        """All tasks run from now on."""
        self._stalls = StallWatch(self._crew.tasks, now_s)

    def see(self, name: str, state: Mapping[str, Any], now_s: float) -> None:
        """Take note of how a task is."""
        if self._stalls.see(name, state, now_s):
            self._mender.take(Stepped())
        task = self._crew.slot(name).task
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
        stores = self._crew.stores
        places = {
            slot.task.machine: (slot.node.address, self._orders.some_port(slot.index))
            for slot in stores
        }
        probe = NetworkProbe(places, self._crew.home, self._observer.say, self._tell)
        shells = {slot.task.machine: self._crew.shell(slot.task.name) for slot in stores}
        probe.begin(self._calls, shells)
