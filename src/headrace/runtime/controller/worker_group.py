"""The worker group: the task actors of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.core.job import Role
from headrace.core.trace import ClockOffset
from headrace.policies.lifecycle.events import Ended, Event, Failed, Lost, Placed, Task, Waits
from headrace.prefork.identity import own_version
from headrace.runtime.cluster.actor_system import ActorSystem, CallFailure, Reservation
from headrace.runtime.cluster.clock_sync import clock_offset
from headrace.runtime.cluster.head import SILENT_S, HeadLostError
from headrace.runtime.cluster.placement_group import TaskPlacement
from headrace.runtime.traffic.coordinator import TrafficControl
from headrace.runtime.workers.parameter_server import ParameterServerActor
from headrace.runtime.workers.sampler import SamplerActor
from headrace.runtime.workers.store import StoreActor
from headrace.runtime.workers.trainer import TrainerActor

_ACTORS = {
    Role.STORE: StoreActor,
    Role.SAMPLER: SamplerActor,
    Role.SERVER: ParameterServerActor,
    Role.TRAINER: TrainerActor,
}
_POLL_INTERVAL_S = 0.1
_PENDING_INTERVAL_S = 3.0
_CHUNK_S, _CHUNK_POLL_S = 20.0, 1.0
_FIRST_TELL_S, _TELL_S = 3.0, 8.0
_NUM_PINGS = 8
_PING_TIMEOUT_S = 2.0
# A ping takes 1 ms. Only slow machines, whose offsets would be wrong, need longer for all of them.
_CLOCKS_S = 5.0
_SILENT_CLOSE_S = 4.0
# After 10 s without an iteration the user is told; what blocks the controller here adds to that.
_SILENT_HEAD_S = 2.0


class WorkerGroup:
    """Starts, checks and ends the task actors of one attempt.

    Args:
        system: Where the actors live.
        slots: Placement of every task.
        name: Name of the placement group, shown by Ray.
        cache: Folder for shipped graphs, in which `{machine}` is replaced by the machine's name;
            None for the default.
        traffic: Traffic control between machines; None to disable.
    """

    def __init__(
        self,
        system: ActorSystem,
        slots: Sequence[TaskPlacement],
        name: str,
        cache: str | None = None,
        traffic: TrafficControl | None = None,
    ) -> None:
        self.system = system
        self._slots = {slot.task.name: slot for slot in slots}
        stores = {slot.node.node_id: slot.index for slot in slots if slot.task.role is Role.STORE}
        self._machines = {slot.task.name: stores[slot.node.node_id] for slot in slots}
        self._name, self._cache, self._traffic = name, cache, traffic
        self._group: Reservation | None = None
        self._actors: dict[str, Any] = {}
        self._registrations: dict[str, dict[str, Any]] = {}
        self._lost: set[str] = set()
        self._calls = PendingActorCalls(system)
        self._emit: Callable[[Event], None] = lambda event: None
        self._log: Callable[[str], None] = lambda line: None
        self._next_poll_s = self._next_pending_s = 0.0
        self._told_s: float | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks."""
        return tuple(slot.task for slot in self._slots.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tasks."""
        return tuple(self._slots)

    @property
    def is_placed(self) -> bool:
        """Whether every task actor has registered."""
        return len(self._registrations) == len(self._slots)

    @property
    def gpus(self) -> dict[int, list[str]]:
        """GPU ids assigned by Ray, by trainer."""
        return {
            slot.index: self._registrations[name]["gpus"]
            for name, slot in self._slots.items()
            if slot.task.role is Role.TRAINER
        }

    def slot(self, name: str) -> TaskPlacement:
        """Placement of a task."""
        return self._slots[name]

    def actor(self, name: str) -> Any:
        """Actor handle of a task."""
        return self._actors[name]

    @property
    def stores(self) -> tuple[TaskPlacement, ...]:
        """Placements of the stores: one per machine."""
        return tuple(slot for slot in self._slots.values() if slot.task.role is Role.STORE)

    @property
    def home(self) -> str:
        """The machine of the driver; empty if the run does not use it."""
        own = self.system.location().node_id
        return next((slot.task.machine for slot in self.stores if slot.node.node_id == own), "")

    def clock_offsets(self) -> dict[str, ClockOffset]:
        """Clock offsets of all machines that respond; the controller waits meanwhile."""
        offsets, end_s = {}, time.monotonic() + _CLOCKS_S
        for slot in self.stores:
            ping = partial(self._clock_of, self._actors[slot.task.name], end_s)
            with suppress(*self.system.errors, TimeoutError):
                offsets[slot.task.machine] = clock_offset(ping, time.monotonic, _NUM_PINGS)
        return offsets

    def _clock_of(self, actor: Any, end_s: float) -> float:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return float(self.system.get(actor.clock.remote(), min(_PING_TIMEOUT_S, left_s)))

    def machine(self, name: str) -> int:
        """Index of a task's machine."""
        return self._machines[name]

    @property
    def registrations(self) -> dict[str, dict[str, Any]]:
        """Registration data of every task actor."""
        return self._registrations

    def pieces(self, task: str, log: Callable[[str], None], name: str) -> Iterator[bytes]:
        """Chunks of an output file of a trainer's script; raises an error if it is unreachable."""
        output, offset = self._actors[task].output, 0
        if self._told_s is None:
            # Others were quiet before; all files together are told of as one.
            self._told_s = time.monotonic() - (_TELL_S - _FIRST_TELL_S)
        while True:
            ref, end_s = output.remote(name, offset), time.monotonic() + _CHUNK_S
            while not self.system.wait([ref], _CHUNK_POLL_S) and time.monotonic() < end_s:
                if time.monotonic() >= self._told_s + _TELL_S:
                    self._told_s = time.monotonic()
                    log(f"waiting for {name} of {self._slots[task].task}: {offset:,} bytes so far")
            if not (piece := self.system.get(ref, 1.0)):
                return
            yield piece
            offset += len(piece)

    def piece(self, task: str, name: str, offset: int) -> Any:
        """Request a chunk of an output file of a trainer's script; returns an object ref."""
        return self._actors[task].output.remote(name, offset)

    def is_lost(self, name: str) -> bool:
        """Whether a task's actor is lost."""
        return name in self._lost

    def place(
        self,
        calls: PendingActorCalls,
        emit: Callable[[Event], None],
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Create the placement group; `poll` starts the actors."""
        self._calls, self._emit, self._log = calls, emit, log
        self._group = self.system.reserve(tuple(self._slots.values()), self._name)
        self._next_pending_s = time.monotonic() + _PENDING_INTERVAL_S

    def poll(self) -> None:
        """Start the task actors once the placement group is ready."""
        if self._traffic is not None:
            self._traffic.poll()
        if self._group is None or self._actors or time.monotonic() < self._next_poll_s:
            return
        self._next_poll_s = time.monotonic() + _POLL_INTERVAL_S
        if not self._group.is_ready:
            if time.monotonic() >= self._next_pending_s:
                self._next_pending_s = time.monotonic() + _PENDING_INTERVAL_S
                self._check_nodes()
                for name, what in self._group.lacks().items():
                    self._emit(Waits(name, what))
            return
        for name in self._slots:
            self.start_actor(name)

    def start_actor(self, name: str) -> None:
        """Start the actor of a task, also again after it was lost."""
        assert self._group is not None
        slot = self._slots[name]
        arguments: list[Any] = [name, slot.task.machine, self.system]
        if slot.task.role is Role.STORE and self._cache is not None:
            arguments.append(self._cache.replace("{machine}", slot.task.machine))
        number = list(self._slots).index(name)
        actor = self._group.start(number, _ACTORS[slot.task.role], *arguments)
        self._actors[name] = actor
        self._lost.discard(name)
        self._emit(Waits(name, "its task actor"))
        self._calls.add(
            actor.register.remote(),
            partial(self._register, name),
            partial(self._on_error, name),
        )

    def _check_nodes(self) -> None:
        """Report dead nodes: they block the whole placement group."""
        alive = self._alive()
        for slot in self.stores:
            if slot.node.node_id not in alive and slot.task.name not in self._lost:
                self._lost.add(slot.task.name)
                self._emit(Lost(slot.task.machine, "its Ray node is gone"))

    def _on_error(self, name: str, error: Exception) -> None:
        self._emit(self.explain(name, error))

    def _register(self, name: str, registration: dict[str, Any]) -> None:
        slot = self._slots[name]
        if registration["version"] != own_version():
            versions = f"headrace {registration['version']}, the driver {own_version()}"
            remedy = "install the same version on every machine"
            self._emit(Failed(f"{slot.task.machine} has {versions}", remedy))
            # Not registered: its state may have another format.
            return
        if registration["node_id"] != slot.node.node_id:
            self._emit(
                Failed(
                    f"{slot.task} was started at {registration['address']} instead of "
                    f"{slot.node.address}",
                    "report this as a bug: Ray ignored the placement group",
                )
            )
        self._registrations[name] = registration
        if self.is_placed:
            self._control_traffic()
            self._emit(Placed())

    def _control_traffic(self) -> None:
        """Start an agent on every machine."""
        if self._traffic is None:
            return
        address = self.system.location().address
        port = self._traffic.begin(address)
        for store in self.stores:
            beside = (name for name, slot in self._slots.items() if slot.node == store.node)
            folders = {name: self._registrations[name]["folder"] for name in beside}
            interface = self._registrations[store.task.name]["interface"] or ""
            order = self._traffic.order(store.task.machine, interface, folders, address, port)
            self._actors[store.task.name].control_traffic.remote(order)

    def is_transient(self, error: Exception) -> bool:
        """Whether an error is transient."""
        return self.system.why(error) is CallFailure.TRANSIENT

    def explain(self, name: str, error: Exception) -> Event:
        """Convert an error of an actor call to a lifecycle event."""
        slot, why = self._slots[name], self.system.why(error)
        if why is not CallFailure.RAISED:
            # An actor that raises an error lives, and removes its folder when it is closed.
            self._lost.add(name)
        if why is CallFailure.NO_ENVIRONMENT:
            return Failed(
                f"the runtime environment of {slot.task} cannot be set up: {_first_line(error)}",
                "check that the machine reaches the package index, or install the packages there",
            )
        if why in (CallFailure.DIED, CallFailure.TRANSIENT):
            try:
                alive = self._alive()
            except HeadLostError as lost:
                return Failed(f"{slot.task} is lost, and {lost.problem}", lost.remedy)
            # Ray reports the actors of a killed node as unavailable before it reports their death.
            if slot.node.node_id not in alive:
                for other, there in self._slots.items():
                    if there.node.node_id == slot.node.node_id:
                        self._lost.add(other)
                return Lost(slot.task.machine, "its Ray node is gone")
            if "No module named" in str(error) or "failed to import" in str(error):
                return Failed(
                    f"headrace cannot be imported on {slot.task.machine}: {_first_line(error)}",
                    f"install headrace[train] {own_version()} there",
                )
            if why is CallFailure.TRANSIENT:
                return Lost(name, "its Ray actor does not reply")
            return Lost(name, "its Ray actor has died, possibly out of memory")
        return Failed(f"{slot.task}: {_first_line(error)}", f"see `headrace logs --task {name}`")

    def judge(self, fault: Ended | Lost) -> Ended | Lost:
        """The fault, or the loss of a machine that has lost all of its tasks."""
        for machine in dict.fromkeys(slot.task.machine for slot in self._slots.values()):
            there = {name for name, slot in self._slots.items() if slot.task.machine == machine}
            if there <= self._lost:
                return Lost(machine, "none of its Ray actors replies")
        return fault

    def close(self, timeout_s: float, log: Callable[[str], None] = lambda line: None) -> None:
        """End all actors and release all resources; `log` is told which of them take long."""
        if self._traffic is not None:
            self._traffic.close()
        with suppress(Exception):
            # Also those that have not registered (yet): they have folders, too.
            there = self._actors.keys() - self._lost
            refs = {
                actor.close.remote(): name for name, actor in self._actors.items() if name in there
            }
            silent_s = min(timeout_s, _SILENT_CLOSE_S)
            done = self.system.wait(list(refs), silent_s, len(refs)) if refs else []
            late = [ref for ref in refs if ref not in done and refs[ref] in self._registrations]
            if late:
                names = [str(self._slots[refs[ref]].task) for ref in late]
                more = f" and {len(late) - 3} more" if len(late) > 3 else ""
                log(f"waiting for the end of {', '.join(names[:3])}{more}")
                self.system.wait(late, timeout_s - silent_s, len(late))
        for actor in self._actors.values():
            self.system.kill(actor)
        if self._group is not None:
            self._group.remove()

    def _alive(self) -> set[str]:
        try:
            nodes = self.system.nodes(_SILENT_HEAD_S)
        except HeadLostError:
            if self.system.head_silent_s < SILENT_S:
                self._log("waiting for the head of the Ray cluster, which knows what was lost")
            nodes = self.system.nodes()
        return {node["NodeID"] for node in nodes if node.get("Alive")}


def _first_line(error: Exception) -> str:
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:300]


Then = Callable[[Any], None]
OnError = Callable[[Exception], None]


class PendingActorCalls:
    """Dispatches results of actor calls to callbacks."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._open: dict[Any, tuple[Then, OnError]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, ref: Any, then: Then, failed: OnError) -> None:
        """Register callbacks for the result of a call, or its error; `collect` calls them."""
        self._open[ref] = (then, failed)

    def collect(self, timeout_s: float) -> None:
        """Handle all available results; wait up to `timeout_s` for the first."""
        for ref in self._system.wait(list(self._open), timeout_s):
            then, failed = self._open.pop(ref)
            try:
                answer = self._system.get(ref, 1.0)
            except Exception as error:
                failed(error)
            else:
                then(answer)
