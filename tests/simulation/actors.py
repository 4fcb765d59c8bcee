"""Ray's part of a run in virtual time: it reserves, starts and kills actors; it knows the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.runtime.cluster.actor_system import CallFailure, Location
from headrace.runtime.cluster.head import CALL_S, SILENT_S, HeadLostError
from headrace.runtime.cluster.placement_group import TaskPlacement
from tests.simulation.cluster import Actor, CallError, Cluster, Handle, Ref
from tests.simulation.world import Killed, Machine, Process

_BROKEN = {
    "environment": (CallFailure.NO_ENVIRONMENT, "pip could not reach the package index"),
    "import": (CallFailure.DIED, "ModuleNotFoundError: No module named 'headrace'"),
}


class VirtualActors:
    """An `ActorSystem` for one driver.

    Args:
        make: Makes the body of an actor, given its role's class, task and machine.
    """

    poll_interval_s = 1.0
    has_fork_server = False
    metrics_endpoint = None
    errors: tuple[type[Exception], ...] = (CallError,)

    def __init__(
        self, cluster: Cluster, driver: Process, make: Callable[[type, str, Machine], Any]
    ) -> None:
        self._cluster, self._world, self._driver = cluster, cluster.world, driver
        self._make = make
        self.made: list[Actor] = []
        self.num_reserved = 0
        self._left_s = CALL_S

    @property
    def head_silent_s(self) -> float:
        """Time since the head answered."""
        return self._cluster.head_silent_s

    def _ask_head(self, timeout_s: float = CALL_S) -> None:
        if self._world.is_closing:
            raise Killed
        if not self._cluster.head_silent_s:
            self._left_s = CALL_S
            return
        if self._cluster.head_silent_s < SILENT_S:
            # All calls together wait for the first one, which stays open, once.
            wait_s = min(timeout_s, self._left_s)
            self._left_s -= wait_s
            self._world.sleep(wait_s)
        raise HeadLostError

    def nodes(self, timeout_s: float = CALL_S) -> Sequence[Mapping[str, Any]]:
        """All nodes."""
        self._ask_head(timeout_s)
        return self._cluster.nodes()

    def location(self) -> Location:
        """The driver's machine."""
        return Location(self._driver.machine.node_id, self._driver.machine.address)

    def gpu_ids(self) -> list[str]:
        """There are none."""
        return []

    def reserve(self, slots: Sequence[TaskPlacement], name: str) -> Reserved:
        """Reserve nothing, which takes a while."""
        self._ask_head()
        self.num_reserved += 1
        return Reserved(self, slots)

    def start(self, machine: Machine, actor: type, arguments: Sequence[Any]) -> Handle:
        """Start an actor."""
        body = self._make(actor, str(arguments[0]), machine)
        made = Actor(self._cluster, machine, body)
        body.actor = made
        if not machine.is_alive:
            made.die(is_machine=True)
        elif machine.broken:
            made.never_began = CallError(*_BROKEN[machine.broken])
            made.die()
        self.made.append(made)
        return Handle(made, self._driver)

    def wait(self, refs: Sequence[Ref], timeout_s: float, num: int = 1) -> list[Ref]:
        """Wait until `num` results are available; return all that are."""
        end_s = self._world.now_s + timeout_s
        while True:
            done = [ref for ref in refs if ref.is_done]
            left_s = end_s - self._world.now_s
            if (refs and len(done) >= num) or left_s <= 0:
                if self._world.is_closing:
                    raise Killed
                return done
            ticket = self._world.ticket()
            for ref in refs:
                if not ref.is_done:
                    ref.waiting = [ticket]
            self._world.block(left_s)

    def get(self, ref: Ref, timeout_s: float) -> Any:
        """Result of a call."""
        self.wait([ref], timeout_s)
        if not ref.is_done:
            raise CallError(CallFailure.TRANSIENT, "timeout")
        if ref.error is not None:
            raise ref.error
        return ref.value

    def kill(self, actor: Handle) -> None:
        """Kill an actor."""
        try:
            self._ask_head()
        except HeadLostError:
            return
        self.end(actor.actor)

    def end(self, actor: Actor) -> None:
        """End an actor, where it can be reached."""
        self._cluster.send(self._driver.machine, actor.machine, actor.die)

    def why(self, error: Exception) -> CallFailure:
        """Why a call failed."""
        return error.kind if isinstance(error, CallError) else CallFailure.RAISED


class Reserved:
    """A placement group."""

    def __init__(self, system: VirtualActors, slots: Sequence[TaskPlacement]) -> None:
        self._system, self._slots = system, slots
        self._cluster, self._world = system._cluster, system._world
        self._ready_s = self._world.now_s + self._world.random.uniform(0.1, 2.0)
        self._was_ready = False

    @property
    def is_ready(self) -> bool:
        """Whether all machines were there long enough."""
        self._system._ask_head()
        by_id = {machine.node_id for machine in self._world.machines.values() if machine.is_alive}
        if not all(slot.node.node_id in by_id for slot in self._slots):
            return self._was_ready
        self._was_ready = self._was_ready or self._world.now_s >= self._ready_s
        return self._was_ready

    def lacks(self) -> dict[str, str]:
        """What tasks wait for."""
        name = self._slots[0].task.name
        return {name: "1 CPU (0 available)"}

    def start(self, number: int, actor: type, *arguments: Any) -> Handle:
        """Start the actor of a slot."""
        slot = self._slots[number]
        machine = self._world.machines[slot.task.machine]
        handle = self._system.start(machine, actor, arguments)
        if machine.node_id != slot.node.node_id:
            handle.actor.die(is_machine=True)
        return handle

    def remove(self) -> None:
        """Release everything, where it can be reached."""
        self._system.num_reserved -= 1
