"""A cluster in virtual time: machines, what they send each other, and actors behind handles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from headrace.runtime.cluster.actor_system import CallFailure
from tests.simulation.disks import Disks
from tests.simulation.world import Killed, Machine, Process, Ticket, World

NOTICED_S = 6.0
"""After this the cluster knows that a machine is dead."""

UNREACHABLE_S = 12.0
"""After this a call to an unreachable actor fails."""

GRID_S = 0.002
"""Messages arrive at multiples of this, so that a process handles several at once."""


class CallError(Exception):
    """A call failed."""

    def __init__(self, kind: CallFailure, cause: object = "") -> None:
        super().__init__(f"{kind}: {cause}")
        self.kind, self.cause = kind, cause


class Ref:
    """The result of a call."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_done, self.value, self.error = False, None, None
        self.waiting: list[Ticket] = []

    def end(self, value: Any = None, error: Any = None) -> None:
        """Set the result, once."""
        if not self.is_done:
            self.is_done, self.value, self.error = True, value, error
            for ticket in self.waiting:
                self._world.wake(ticket)
            self.waiting = []


class Later:
    """A result of a method that is not available yet."""

    def __init__(self) -> None:
        self.ended: list[tuple[Any, Any]] = []
        self.then: Callable[[Any, Any], None] = lambda value, error: self.ended.append(
            (value, error)
        )


class Cluster:
    """Machines, their network, and the head.

    Args:
        driver: The machine of the driver.
    """

    def __init__(self, world: World, disks: Disks, driver: Machine) -> None:
        self.world, self.disks, self.driver = world, disks, driver
        self.cuts: dict[frozenset[str], float] = {}
        self.slow_until_s: dict[str, float] = {}
        self.jitter_s = 0.05
        self.head_lost_s: tuple[float, float] | None = None
        self.actors: list[Actor] = []
        self.damaged, self.flips_pieces = "", 0
        self.is_script_changed = False
        self.flips_resumes = 0
        # Trainers whose script raises an error in its first step, whenever it is started.
        self.raising: set[str] = set()
        self.start_script: Callable[..., None] = lambda *_: None
        self._number = 100
        self._last_s: dict[tuple[object, object], float] = {}
        self.links: list[Any] = []
        self.stores: dict[int, Any] = {}

    def next_number(self) -> int:
        """A number that no other has: of a process, a port or a folder."""
        self._number += 1
        return self._number

    # --- network ----------------------------------------------------------------------------------

    def latency_s(self, source: Machine, target: Machine) -> float:
        """Time of a message."""
        random = self.world.random
        time_s = random.uniform(0.0005, 0.004)
        if random.random() < 0.03:
            time_s += random.uniform(0.0, self.jitter_s)
        if self.slow_until_s:
            slow_s = max(self.slow_until_s.get(each.name, 0.0) for each in (source, target))
            if slow_s > self.world.now_s:
                time_s += random.uniform(0.2, 1.5)
        return time_s

    def cut_until_s(self, source: Machine, target: Machine) -> float:
        """When the machines can reach each other."""
        return self.cuts.get(frozenset((source.name, target.name)), 0.0) if self.cuts else 0.0

    def send(
        self,
        source: Machine,
        target: Machine,
        call: Callable[[], None],
        order: tuple[object, object] | None = None,
    ) -> None:
        """Call a function at another machine, after those before it in the same `order`."""
        boots = target.num_boots
        at_s = ceil((self.world.now_s + self.latency_s(source, target)) / GRID_S) * GRID_S
        cut_s = self.cut_until_s(source, target)
        if cut_s > self.world.now_s:
            at_s = cut_s + self.world.random.uniform(0.0, 1.0)
        if order is not None:
            at_s = self._last_s[order] = max(at_s, self._last_s.get(order, 0.0) + 1e-6)

        def arrive() -> None:
            if not target.is_alive or target.num_boots != boots:
                return
            if target.frozen_until_s > self.world.now_s:
                self.world.at(target.frozen_until_s, arrive)
            else:
                call()

        self.world.at(at_s, arrive)

    # --- machines ---------------------------------------------------------------------------------

    def kill_machine(self, machine: Machine) -> None:
        """Kill a machine with all actors on it."""
        if not machine.is_alive:
            return
        machine.is_alive, machine.died_s = False, self.world.now_s
        for actor in self.actors:
            if actor.machine is machine and actor.boots == machine.num_boots:
                actor.die(is_machine=True)

    def boot(self, machine: Machine) -> None:
        """Start a dead machine again, as another node."""
        if not machine.is_alive:
            machine.num_boots += 1
            machine.is_alive, machine.frozen_until_s = True, 0.0
            machine.node_id = f"node-{machine.name}-{machine.num_boots}"

    def nodes(self) -> list[Mapping[str, Any]]:
        """What the head knows."""
        now_s = self.world.now_s
        return [
            {
                "NodeID": machine.node_id,
                "Alive": machine.is_alive or now_s < machine.died_s + NOTICED_S,
                "NodeManagerHostname": machine.name,
                "NodeManagerAddress": machine.address,
                "Resources": {"CPU": 64.0, "memory": 1e12},
            }
            for machine in self.world.machines.values()
        ]

    @property
    def head_silent_s(self) -> float:
        """Time since the head answered."""
        if self.head_lost_s is None or self.world.now_s < self.head_lost_s[0]:
            return 0.0
        is_back = self.world.now_s >= self.head_lost_s[1]
        return 0.0 if is_back else self.world.now_s - self.head_lost_s[0]


class Actor:
    """A task actor on a machine; `body` has its methods, which do not block."""

    num_made = 0

    def __init__(self, cluster: Cluster, machine: Machine, body: Any) -> None:
        self.cluster, self.machine, self.body = cluster, machine, body
        self.boots = machine.num_boots
        self.process = Process(f"actor of {body.task}", machine)
        self.open: set[Ref] = set()
        self.made_s = self.died_s = cluster.world.now_s
        self.is_dead = self.was_closed = self.was_asked_to_close = False
        self.never_began: CallError | None = None
        cluster.actors.append(self)

    def die(self, is_machine: bool = False) -> None:
        """End the actor and its processes, without a clean-up."""
        if self.is_dead:
            return
        self.is_dead = self.process.is_dead = True
        self.died_s = self.cluster.world.now_s
        self.body.die()
        for ref in sorted(self.open, key=id_of):
            self._fail(ref, is_machine)
        self.open.clear()

    def _fail(self, ref: Ref, is_machine: bool) -> None:
        random = self.cluster.world.random
        kind = CallFailure.TRANSIENT if is_machine and random.random() < 0.5 else CallFailure.DIED
        delay_s = random.uniform(0.1, 8.0) if is_machine else random.uniform(0.02, 1.0)
        error = self.never_began or CallError(kind, "the actor died")
        self.cluster.world.after(delay_s, lambda: ref.end(error=error))

    def call(self, caller: Process, method: str, arguments: tuple[Any, ...]) -> Ref:
        """Call a method from a process."""
        world, cluster = self.cluster.world, self.cluster
        if world.is_closing:
            raise Killed
        ref = Ref(world)
        ref.number = world._num  # type: ignore[attr-defined]
        if self.is_dead:
            self._fail(ref, not self.machine.is_alive)
            return ref
        self.open.add(ref)
        if method == "close":
            self.was_asked_to_close = True

        def reply(value: Any, error: Any) -> None:
            def end() -> None:
                self.open.discard(ref)
                ref.end(value, error)

            if not self.is_dead:
                cluster.send(self.machine, caller.machine, end)

        def arrive() -> None:
            if self.is_dead:
                return
            if self.process.frozen_until_s > world.now_s:
                world.at(self.process.frozen_until_s, arrive)
                return
            try:
                value = getattr(self.body, method)(*arguments)
            except Exception as error:
                reply(None, CallError(CallFailure.RAISED, error))
                return
            if method == "close":
                self.was_closed = True
            if isinstance(value, Later):
                if value.ended:
                    reply(*value.ended[0])
                else:
                    value.then = reply
            else:
                reply(value, None)

        cluster.send(caller.machine, self.machine, arrive, (caller, self))
        cut_s = cluster.cut_until_s(caller.machine, self.machine)
        if cut_s > world.now_s + UNREACHABLE_S:
            error = CallError(CallFailure.TRANSIENT, "unreachable")
            world.after(UNREACHABLE_S, lambda: ref.end(error=error))
        return ref


def id_of(ref: Ref) -> int:
    """Number of a reference, the same in every run of a seed."""
    return int(ref.number)  # type: ignore[attr-defined]


class Handle:
    """Handle of an actor for one process, with the interface of Ray's."""

    def __init__(self, actor: Actor, caller: Process) -> None:
        self.actor, self.caller = actor, caller

    def __getattr__(self, name: str) -> _Method:
        return _Method(self.actor, self.caller, name)


class _Method:
    def __init__(self, actor: Actor, caller: Process, name: str) -> None:
        self._actor, self._caller, self._name = actor, caller, name

    def remote(self, *arguments: Any) -> Ref:
        return self._actor.call(self._caller, self._name, arguments)
