"""Carries out what the lifecycle decides, on a Ray cluster; waits for nobody without a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.core.job import Role
from headrace.policies.lifecycle.events import (
    Command,
    Ended,
    Event,
    Failed,
    Finish,
    Heard,
    Interrupted,
    Outcome,
    Phase,
    Place,
    Placed,
    Ready,
    Say,
    Ship,
    Shipped,
    Stage,
    Start,
    Stop,
    Tick,
    Waits,
)
from headrace.policies.lifecycle.steps import Lifecycle, begin, step
from headrace.runtime.calls import Calls
from headrace.runtime.clocks import ClockOffset
from headrace.runtime.collecting import Collector
from headrace.runtime.crew import Crew
from headrace.runtime.interruption import Interruption
from headrace.runtime.orders import Orders
from headrace.runtime.shipping import Shipment, WantedFiles
from headrace.training.checkpoints import Checkpoint

_LOOK_S = 0.1
_POLL_S = 1.0
# Measured: a call takes 0.3 ms of this process's time; so polling takes a sixth of it at most.
_POLL_S_PER_TASK = 0.002
_FAST_POLL_S = 0.2
_ENDING_S = 3.0
# A gigabyte over a network of a gigabit per second.
_COLLECTING_S = 10.0
_HOLD_S = 0.7


class Observer:
    """Is told what happens; does nothing with it."""

    def say(self, line: str) -> None:
        """Something happened that the user should know."""

    def placed(self, hellos: Mapping[str, Mapping[str, Any]]) -> None:
        """Every shell has said where it is."""

    def changed(self, state: Lifecycle, event: Event) -> None:
        """The lifecycle took an event."""

    def looked(self, task: str, state: Mapping[str, Any]) -> None:
        """A task's shell said how its process is."""

    def synchronised(self, offsets: Mapping[str, ClockOffset]) -> None:
        """Clocks of machines were compared with the driver's."""

    def printed(self, task: str, data: bytes) -> None:
        """A task's process printed something."""

    def traced(self, task: str, data: bytes) -> None:
        """A task's process measured something."""

    def collected(self, checkpoint: Checkpoint) -> None:
        """A checkpoint has arrived, whole."""

    def kept(self, name: str, pieces: Iterator[bytes]) -> None:
        """The script has left a file."""


@dataclass(frozen=True)
class Script:
    """What trainers run.

    Attributes:
        command: The script as its path in the code, and its arguments.
        code: The user's folder, packed; none if it is where shells run.
    """

    command: Sequence[str]
    code: bytes | None


class Controller:
    """Drives one run from its start to its end.

    Args:
        crew: Shells of all tasks.
        orders: What to tell them.
        files: What every machine needs of the graph.
        script: What trainers run.
        observer: Is told what happens.
        checkpoints: Folder for the run's checkpoints.
    """

    def __init__(
        self,
        crew: Crew,
        orders: Orders,
        files: Sequence[WantedFiles],
        script: Script,
        observer: Observer,
        checkpoints: Path,
    ) -> None:
        self._crew, self._orders, self._files = crew, orders, files
        self._script, self._observer = script, observer
        self._calls = Calls()
        first = next(w for w, rank in orders.ranks.items() if rank == 0)
        self._first = f"trainer{first}"
        self._collector = Collector(
            checkpoints,
            self._calls,
            partial(crew.piece, self._first),
            observer.collected,
        )
        self._events: list[Event] = []
        self._state, commands = begin(crew.tasks, time.monotonic())
        self._polled: set[str] = set()
        self._next_poll_s = 0.0
        self._read: dict[tuple[str, str], int] = {}
        self._reading: set[tuple[str, str]] = set()
        self._sizes: dict[tuple[str, str], int] = {}
        self._kept: dict[str, tuple[str, ...]] = {}
        self._held: dict[str, tuple[float, Ended]] = {}
        self._release_s = 0.0
        self._num_shipped = 0
        self._waiting_trainers: list[str] = []
        self._outcome: Outcome | None = None
        self._begin = commands

    def run(self, interrupted: Interruption) -> Outcome:
        """Drive the run until it has ended, and all that it started with it.

        Args:
            interrupted: Set when somebody wants the run to end.
        """
        self._obey(self._begin)
        was_told = False
        while self._outcome is None:
            if interrupted.is_set() and not was_told:
                was_told = True
                self._tell(Interrupted())
            self._crew.look()
            self._poll()
            self._release()
            self._tell(Tick())
            self._settle()
            if len(self._calls):
                self._calls.collect(_LOOK_S)
            elif not was_told:
                interrupted.wait(_LOOK_S)
            else:
                time.sleep(_LOOK_S)
        return self._outcome

    def _tell(self, event: Event) -> None:
        self._events.append(event)

    def _settle(self) -> None:
        while self._events:
            events, self._events = self._events, []
            for event in events:
                before = self._state
                self._state, commands = step(before, event, time.monotonic())
                if self._state is not before:
                    self._observer.changed(self._state, event)
                if isinstance(event, Placed):
                    self._observer.placed(self._crew.hellos)
                if self._state.phase is Phase.RUNNING and before.phase is not Phase.RUNNING:
                    self._observer.synchronised(self._crew.clock_offsets())
                self._obey(commands)

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Place():
                    self._crew.place(self._calls, self._tell)
                case Ship():
                    self._ship()
                case Start(task):
                    self._start(task)
                case Stop(task):
                    self._stop(task)
                case Say(line):
                    self._observer.say(line)
                case Finish(outcome):
                    self._finish(outcome)

    # --- graph ------------------------------------------------------------------------------------

    def _ship(self) -> None:
        for machine, wanted in enumerate(self._files):
            self._ship_to(machine, wanted)

    def _ship_to(self, machine: int, wanted: WantedFiles) -> None:
        name = f"store{machine}"
        where = self._crew.slot(name).task

        def end(folder: str, shipped_bytes: int) -> None:
            self._orders.note_folder(machine, folder)
            if shipped_bytes:
                self._observer.say(
                    f"{where.machine} got {shipped_bytes / 1e6:.1f} MB of the graph in {folder}"
                )
            self._num_shipped += 1
            if self._num_shipped == len(self._files):
                self._tell(Shipped())

        def fail(error: str | Exception) -> None:
            if isinstance(error, Exception):
                self._tell(self._crew.explain(name, error))
            else:
                problem = f"the graph does not get to {where.machine}: {error}"
                self._tell(Failed(problem, "put the graph there, or make room"))

        shell = self._crew.shell(name)
        Shipment(
            wanted,
            shell,
            self._calls,
            lambda words: self._tell(Waits(name, words)),
            end,
            fail,
        )

    # --- tasks ------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        slot, shell = self._crew.slot(name), self._crew.shell(name)
        machine = self._crew.machine(name)
        keys = self._orders.keys(machine)
        if slot.task.role is Role.STORE:
            self._ask(name, shell.start.remote(self._orders.store(machine), keys))
        elif slot.task.role is Role.SAMPLER:
            settings, seeds = self._orders.sampler(slot.index)
            self._ask(name, shell.prepare.remote(settings, keys, seeds), is_ready=True)
        elif slot.task.role is Role.SERVER:
            self._ask(name, shell.start.remote(self._orders.server(slot.index), keys))
        else:
            self._waiting_trainers.append(name)
            if len(self._waiting_trainers) == 1:
                asked = self._crew.shell(self._first).free_port.remote()
                self._calls.ask(asked, self._start_trainers, self._failed(self._first))

    def _start_trainers(self, port: int) -> None:
        if self._state.phase is not Phase.TRAINERS:
            return
        resume = self._orders.resume()
        for name in self._waiting_trainers:
            slot = self._crew.slot(name)
            context, seeds = self._orders.trainer(slot.index)
            variables = self._orders.environment(slot.index, port, self._crew.gpus)
            samplers = [self._crew.shell(sampler) for sampler in context["samplers"]]
            started = self._crew.shell(name).start.remote(
                context,
                self._orders.keys(self._crew.machine(name)),
                seeds,
                variables,
                list(self._script.command),
                self._script.code,
                samplers,
                resume,
            )
            self._ask(name, started, is_ready=True)

    def _ask(self, name: str, ref: Any, is_ready: bool = False) -> None:
        def then(_: object) -> None:
            if is_ready:
                self._tell(Ready(name))

        self._calls.ask(ref, then, self._failed(name))

    def _failed(self, name: str) -> Any:
        return lambda error: self._tell(self._crew.explain(name, error))

    def _stop(self, name: str) -> None:
        shell = self._crew.shell(name)
        self._calls.ask(shell.stop.remote(), lambda _: None, self._failed(name))
        self._next_poll_s = 0.0

    # --- looking ----------------------------------------------------------------------------------

    def _poll(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_poll_s or not self._crew.is_placed:
            return
        is_calm = self._state.phase in (Phase.RUNNING, Phase.SHIPPING)
        calm_s = max(_POLL_S, _POLL_S_PER_TASK * len(self._crew.names))
        self._next_poll_s = now_s + (calm_s if is_calm else _FAST_POLL_S)
        for name in self._crew.names:
            if name not in self._polled and not self._crew.is_lost(name):
                self._polled.add(name)
                ref = self._crew.shell(name).state.remote()
                self._calls.ask(ref, self._looked(name), self._unseen(name))

    def _looked(self, name: str) -> Any:
        def then(state: dict[str, Any]) -> None:
            self._polled.discard(name)
            self._tell(Heard(frozenset({name})))
            self._observer.looked(name, state)
            self._kept[name] = tuple(state.get("output", ()))
            if name == self._first:
                self._collector.see(state.get("checkpoints", {}))
            if self._note_ports(name, state):
                self._tell(Ready(name))
            if state["code"] is not None:
                ended = Ended(name, state["code"], state["how"], state["said"])
                if ended.code and self._state.phase is Phase.RUNNING:
                    self._hold(ended, state["ended_ago_s"])
                else:
                    self._tell(ended)
            elif state["pid"] is None and self._state.stages[name] is Stage.STOPPING:
                # Nothing runs here, so whoever waits for its end waits no longer.
                self._tell(Ended(name, 0, "ended"))
            for what in ("log", "trace"):
                self._sizes[name, what] = state[f"{what}_bytes"]
                self._fetch(name, what)

        return then

    def _note_ports(self, name: str, state: Mapping[str, Any]) -> bool:
        """Know where a task listens; whether it does."""
        if state.get("port") is not None:
            self._orders.note_server_port(self._crew.slot(name).index, state["port"])
            return True
        if state.get("ports") is not None:
            ports = {int(part): port for part, port in state["ports"].items()}
            self._orders.note_ports(self._crew.machine(name), ports)
            return True
        return False

    def _hold(self, ended: Ended, ago_s: float) -> None:
        """Keep a failure until others had time to tell theirs: the first one explains the rest."""
        now_s = time.monotonic()
        if not self._held:
            self._release_s, self._next_poll_s = now_s + _HOLD_S, 0.0
        self._held.setdefault(ended.task, (now_s - ago_s, ended))

    def _release(self) -> None:
        if self._held and time.monotonic() >= self._release_s:
            for _, ended in sorted(self._held.values(), key=lambda each: each[0]):
                self._tell(ended)
            self._held.clear()

    def _unseen(self, name: str) -> Any:
        def failed(error: Exception) -> None:
            self._polled.discard(name)
            if not self._crew.is_passing(error):
                self._tell(self._crew.explain(name, error))

        return failed

    def _fetch(self, name: str, what: str) -> None:
        key = (name, what)
        offset = self._read.get(key, 0)
        if key in self._reading or self._sizes.get(key, 0) <= offset:
            return
        self._reading.add(key)

        def then(data: bytes) -> None:
            self._reading.discard(key)
            self._read[key] = offset + len(data)
            (self._observer.printed if what == "log" else self._observer.traced)(name, data)
            if data:
                self._fetch(name, what)

        def failed(error: Exception) -> None:
            self._reading.discard(key)

        shell = self._crew.shell(name)
        ref = (shell.log if what == "log" else shell.trace).remote(offset)
        self._calls.ask(ref, then, failed)

    # --- the end ----------------------------------------------------------------------------------

    def _finish(self, outcome: Outcome) -> None:
        end_s = time.monotonic() + _ENDING_S
        while (self._reading or self._polled) and time.monotonic() < end_s:
            self._calls.collect(_LOOK_S)
        end_s = time.monotonic() + _COLLECTING_S
        while self._collector.is_busy and time.monotonic() < end_s:
            self._calls.collect(_LOOK_S)
        for name in self._kept.get(self._first, ()):
            self._observer.kept(name, self._crew.pieces(self._first, name))
        self._crew.close(_ENDING_S)
        self._outcome = outcome
