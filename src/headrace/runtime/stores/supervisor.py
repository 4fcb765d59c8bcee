"""Starts the stores of a store set, restarts those that die, and ends all of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from headrace.core.errors import DamagedGraphError
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.linux.disk import append_whole
from headrace.linux.network import write_private
from headrace.policies.lifecycle.events import (
    Command,
    Ended,
    Event,
    Failed,
    Finish,
    Heard,
    Interrupted,
    Log,
    Lost,
    Outcome,
    Phase,
    Place,
    Ready,
    Ship,
    Stage,
    Start,
    Stop,
    Tick,
    Verified,
)
from headrace.policies.lifecycle.steps import begin, step
from headrace.policies.recovery.service_restarts import ServiceRestarts
from headrace.runtime.cluster import connection
from headrace.runtime.cluster.actor_system import ActorSystem, RayActors
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.cluster.nodes import Node, find_nodes
from headrace.runtime.cluster.placement_group import store_slots
from headrace.runtime.controller.graph_shipping import GraphShipping, WantedFiles, wanted_files
from headrace.runtime.controller.health import HangWatch
from headrace.runtime.controller.log_fetch import LogReader
from headrace.runtime.controller.signals import Interruption, signals_set
from headrace.runtime.controller.task_configs import make_keys, store_config
from headrace.runtime.controller.worker_group import PendingActorCalls, WorkerGroup
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.run_dir.status import Failure, TaskState
from headrace.runtime.run_dir.store_set import (
    ServedStore,
    StoreSet,
    StoreSetConfig,
    StoreSetPhase,
    StoreSetState,
)

Logger = Callable[[str], None]

_LOOP_S, _RUNNING_LOOP_S, _FAST_POLL_S = 0.05, 0.25, 0.1
_CLOSE_S = 10.0


def supervise(store_set: StoreSet, log: Logger) -> Outcome:
    """Serve a graph until a signal or the file `stop` ends the stores, or one cannot be served.

    Must be called from the main thread.

    Raises:
        HeadraceError: The cluster or the graph cannot be used.
    """
    config, interrupted = store_set.config, Interruption()
    graph = open_graph(config.graph)
    with signals_set(interrupted), _connected(config) as system, signals_set(interrupted):
        nodes = find_nodes(config.cluster, system.nodes())
        return StoreSupervisor(store_set, config, graph, system, nodes, log).run(interrupted)


@contextmanager
def _connected(config: StoreSetConfig) -> Iterator[ActorSystem]:
    if not config.is_local:
        with connection.connected(config.address, namespace="headrace"):
            yield RayActors()
        return
    system = LocalActors(config.cluster.hosts[0].name)
    try:
        yield system
    finally:
        system.close()


class StoreSupervisor:
    """Drives the stores of a store set, with the task actors and the lifecycle of a run."""

    def __init__(
        self,
        store_set: StoreSet,
        config: StoreSetConfig,
        graph: PartitionedGraph,
        system: ActorSystem,
        nodes: Sequence[Node],
        log: Logger,
    ) -> None:
        self._store_set, self._config, self._nodes, self._log = store_set, config, nodes, log
        slots = store_slots(nodes, config.demand)
        self._worker_group = WorkerGroup(system, slots, f"stores {store_set.name}", config.cache)
        self._calls = PendingActorCalls(system)
        self._reader = LogReader(self._calls, self._worker_group.actor, {"log": self._append_log})
        self._keys = make_keys(nodes, config.tls)
        self._stores = {
            slot.task.name: ServedStore(
                task=slot.task.name, machine=slot.task.machine, host=slot.node.address
            )
            for slot in slots
        }
        for name, keys in zip(self._stores, self._keys, strict=True):
            write_private(store_set.keys(name), keys)
        files: Sequence[WantedFiles] = ()
        if config.is_local:
            self._set_folder(0, str(graph.folder.resolve()))
        else:
            files = wanted_files(graph, config.parts, len(nodes))
        self._shipping = GraphShipping(
            files, self._worker_group, self._set_folder, self._calls, log, self._emit
        )
        self._events: list[Event] = []
        self._lifecycle, self._begin = begin(
            self._worker_group.tasks, time.monotonic(), is_service=True
        )
        self._restarts = ServiceRestarts()
        self._hangs = HangWatch(self._worker_group, self._calls, log)
        self._ended_starts: dict[str, int] = {}
        self._polled: set[str] = set()
        self._next_poll_s = 0.0
        self._outcome: Outcome | None = None
        self._written: StoreSetState = store_set.read()

    def run(self, interrupted: Interruption) -> Outcome:
        """Serve until interrupted, or until a store cannot be served."""
        self._execute(self._begin)
        is_ending = False
        while self._outcome is None:
            if not is_ending and (interrupted.is_set() or self._store_set.is_stop_requested):
                is_ending = True
                self._emit(Interrupted())
            self._worker_group.poll()
            self._poll()
            self._hangs.kill_stopped(time.monotonic())
            self._emit(Tick())
            self._process_events()
            self._write()
            is_calm = self._lifecycle.phase is Phase.RUNNING
            self._calls.collect(_RUNNING_LOOP_S if is_calm else _LOOP_S)
        self._write()
        return self._outcome

    def _emit(self, event: Event) -> None:
        self._events.append(event)

    def _process_events(self) -> None:
        while self._events:
            events, self._events = self._events, []
            for event in events:
                if isinstance(event, Ended | Lost) and self._can_restart(event):
                    continue
                self._lifecycle, commands = step(self._lifecycle, event, time.monotonic())
                self._execute(commands)

    def _execute(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Place():
                    self._worker_group.place(self._calls, self._emit)
                case Ship():
                    self._shipping.begin()
                case Start(task):
                    self._start(task)
                case Stop(task, is_urgent):
                    self._track(task, self._worker_group.actor(task).stop.remote(is_urgent))
                    self._next_poll_s = 0.0
                case Log(line):
                    self._log(line)
                case Finish(outcome):
                    self._worker_group.close(_CLOSE_S)
                    self._outcome = outcome

    # --- stores -----------------------------------------------------------------------------------

    def _set_folder(self, machine: int, folder: str) -> None:
        self._update(f"store{machine}", graph=folder)

    def _start(self, name: str) -> None:
        """Start a store; after it has served, on the same ports."""
        machine, store = self._worker_group.machine(name), self._stores[name]
        own = [part for part, home in enumerate(self._config.parts) if home == machine]
        config = store_config(
            store.graph,
            store.ports or dict.fromkeys(own, 0),
            self._nodes[machine],
            self._config.tls,
        )
        # Rows that one run learns would change the batches of another.
        config["embedding_folder"] = None
        actor = self._worker_group.actor(name)
        self._track(name, actor.start.remote(config, self._keys[machine]))

    def _can_restart(self, event: Ended | Lost) -> bool:
        """Restart a store whose process or task actor has ended; whether that is possible."""
        name = event.task if isinstance(event, Ended) else event.name
        if self._lifecycle.phase is not Phase.RUNNING or name not in self._stores:
            return False
        restarts = self._restarts.after(name, time.monotonic())
        if restarts is None:
            return False
        store = self._stores[name]
        how = event.how if isinstance(event, Ended) else f"is lost: {event.why}"
        self._log(f"{name} on {store.machine} {how}: restarting it")
        self._restarts = restarts
        self._update(
            name,
            state=TaskState.STARTING,
            pid=None,
            is_verified=False,
            restarts=store.restarts + 1,
        )
        if isinstance(event, Ended):
            self._track(name, self._worker_group.actor(name).restart.remote())
        else:
            self._ended_starts.pop(name, None)
            self._reader.restart(name)
            self._worker_group.start_actor(name)
            self._start(name)
        return True

    def _track(self, name: str, ref: Any) -> None:
        self._calls.add(ref, lambda _: None, partial(self._on_error, name))

    def _on_error(self, name: str, error: Exception) -> None:
        # All pending calls of a lost actor fail; it is restarted once.
        if not self._worker_group.is_lost(name):
            self._emit(self._worker_group.explain(name, error))

    # --- polling ----------------------------------------------------------------------------------

    def _poll(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_poll_s or not self._worker_group.is_placed:
            return
        is_calm = self._lifecycle.phase is Phase.RUNNING
        calm_s = self._worker_group.system.poll_interval_s
        self._next_poll_s = now_s + (calm_s if is_calm else _FAST_POLL_S)
        for name in self._stores:
            if name not in self._polled and not self._worker_group.is_lost(name):
                self._polled.add(name)
                actor = self._worker_group.actor(name)
                self._calls.add(
                    actor.state.remote(),
                    partial(self._on_state, name, actor),
                    partial(self._on_state_error, name, actor),
                )

    def _on_state(self, name: str, actor: Any, state: ActorState) -> None:
        self._polled.discard(name)
        if actor is not self._worker_group.actor(name):
            return
        self._emit(Heard(frozenset({name})))
        self._reader.update(name, state, is_calm=False)
        self._hangs.update(name, state, time.monotonic())
        if state.code is not None:
            self._record_exit(name, state)
            return
        if state.pid is None and self._lifecycle.stages[name] is Stage.STOPPING:
            self._emit(Ended(name, 0, "ended"))
        if state.ports is not None:
            ports = {int(part): port for part, port in state.ports.items()}
            self._update(
                name,
                ports=ports,
                state=TaskState.RUNNING,
                pid=state.pid,
                actor_pid=self._worker_group.registrations[name]["pid"],
            )
            self._emit(Ready(name))
        if state.is_verified:
            self._update(name, is_verified=True)
            self._emit(Verified(name))

    def _record_exit(self, name: str, state: ActorState) -> None:
        assert state.code is not None
        if self._lifecycle.phase is Phase.STOPPING:
            self._emit(Ended(name, state.code, state.how))
        elif state.starts > self._ended_starts.get(name, 0):
            # Report each exit once.
            self._ended_starts[name] = state.starts
            task = self._worker_group.slot(name).task
            if state.code == DamagedGraphError.exit_code:
                problem = f"{task}: {state.last_error.rpartition(' ERROR ')[2]}"
                self._emit(Failed(problem, DamagedGraphError.remedy))
                return
            output = "" if state.code in (-signal.SIGKILL, -signal.SIGTERM) else state.last_error
            self._emit(Ended(name, state.code, state.how, output))

    def _on_state_error(self, name: str, actor: Any, error: Exception) -> None:
        self._polled.discard(name)
        is_current = actor is self._worker_group.actor(name)
        if is_current and not self._worker_group.is_transient(error):
            self._on_error(name, error)

    # --- files ------------------------------------------------------------------------------------

    def _append_log(self, task: str, data: bytes) -> None:
        # A full disk must not end the stores.
        with suppress(OSError):
            append_whole(self._store_set.path / f"{task}.log", data)

    def _update(self, name: str, **changes: Any) -> None:
        self._stores[name] = self._stores[name].model_copy(update=changes)

    def _write(self) -> None:
        """Write the state if it has changed."""
        changes: dict[str, Any] = {"stores": tuple(self._stores.values())}
        if self._lifecycle.phase is Phase.RUNNING:
            changes["phase"] = StoreSetPhase.SERVING
        if self._outcome is not None:
            changes |= end_of(self._outcome)
            changes["stores"] = tuple(
                store.model_copy(update={"state": TaskState.ENDED, "pid": None, "actor_pid": None})
                for store in self._stores.values()
            )
        state = self._written.model_copy(update=changes)
        if state != self._written:
            # Else it is written in the next loop.
            with suppress(OSError):
                self._store_set.write(state)
                self._written = state


def end_of(outcome: Outcome) -> dict[str, Any]:
    """Changes of the state of stores that have ended."""
    if outcome.is_interrupted:
        return {"phase": StoreSetPhase.ENDED}
    # A fault of a store has the remedy of a run.
    remedy = outcome.remedy if outcome.fault is None else "start the stores again"
    error = Failure(problem=outcome.problem, remedy=remedy)
    return {"phase": StoreSetPhase.FAILED, "error": error}
