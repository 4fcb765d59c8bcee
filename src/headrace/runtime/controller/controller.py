"""Carries out what the lifecycle decides, on a Ray cluster; waits for nobody without a deadline."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.core.job import Role
from headrace.policies.lifecycle.events import (
    Command,
    Ended,
    Event,
    Finish,
    Heard,
    Interrupted,
    Lost,
    Outcome,
    Phase,
    Place,
    Placed,
    Ready,
    Regroup,
    Say,
    Ship,
    Stage,
    Start,
    Stop,
    Tick,
)
from headrace.policies.lifecycle.steps import begin, step
from headrace.policies.recovery.events import MachinesJoined, Restart, Resume, Saved, TaskEnded
from headrace.runtime.callbacks.base import Observer
from headrace.runtime.callbacks.drift_monitor import DriftMonitor
from headrace.runtime.controller.checkpoint_fetch import CheckpointFetcher
from headrace.runtime.controller.code_archive import Script
from headrace.runtime.controller.failure_handling import FailureHandler, FaultDebouncer
from headrace.runtime.controller.graph_shipping import GraphShipping, WantedFiles
from headrace.runtime.controller.health import Watch
from headrace.runtime.controller.log_fetch import LogReader
from headrace.runtime.controller.signals import Interruption
from headrace.runtime.controller.task_configs import TaskConfigs
from headrace.runtime.controller.worker_group import PendingActorCalls, WorkerGroup
from headrace.runtime.protocol.parameter_check import ParameterCheck
from headrace.training.checkpoint_files import Checkpoint, hold, release

_LOOK_S = 0.1
_CALM_LOOK_S = 0.3
_POLL_S = 1.0
# Measured: a call takes 2 ms of two processes' time. Trainers say how the run goes; all others only
# that they are well.
_OTHERS_EVERY = 4
# Measured: a call takes 0.3 ms of this process's time; so polling takes a sixth of it at most.
_POLL_S_PER_TASK = 0.002
_FAST_POLL_S = 0.2
_STALL_S = 2.0
# For those that are there, if somebody is lost and if nobody is.
_ENDING_S, _CALM_ENDING_S = 3.0, 10.0


class Controller:
    """Drives one run from its start to its end.

    Args:
        worker_group: Actors of all tasks.
        task_configs: What to tell them.
        files: What every machine needs of the graph.
        script: What trainers run.
        observer: Is told what happens.
        checkpoints: Folder for the run's checkpoints.
        mender: Decides what to do about faults.
        there: Names of the machines that are there; asked now and then if those that join are used.
        drift: Says when the run has drifted from its plan; none if nobody asks.
        parameters: Compares trainers' parameters; none if each may have a model of its own.
    """

    def __init__(
        self,
        worker_group: WorkerGroup,
        task_configs: TaskConfigs,
        files: Sequence[WantedFiles],
        script: Script,
        observer: Observer,
        checkpoints: Path,
        mender: FailureHandler,
        there: Callable[[], frozenset[str]],
        drift: DriftMonitor | None = None,
        parameters: ParameterCheck | None = None,
    ) -> None:
        self._worker_group, self._task_configs = worker_group, task_configs
        self._script, self._observer, self._mender = script, observer, mender
        self._calls = PendingActorCalls()
        first = next(w for w, rank in task_configs.ranks.items() if rank == 0)
        self._first, self._checkpoints = f"trainer{first}", checkpoints
        hold(checkpoints)
        piece = partial(worker_group.piece, self._first)
        self._collector = CheckpointFetcher(checkpoints, self._calls, piece, self._collected)
        self._shipping = GraphShipping(
            files, worker_group, task_configs, self._calls, observer.say, self._tell
        )
        take = {"log": observer.printed, "trace": observer.traced}
        self._reader = LogReader(self._calls, worker_group.actor, take)
        self._events: list[Event] = []
        self._state, commands = begin(worker_group.tasks, time.monotonic())
        self._polled: set[str] = set()
        self._next_poll_s = self._ticked_s = 0.0
        self._num_polls, self._was_late = 0, False
        self._kept: dict[str, tuple[str, ...]] = {}
        self._held = FaultDebouncer()
        self._starts: dict[str, int] = {}
        self._watch = Watch(
            worker_group,
            task_configs,
            self._calls,
            observer,
            mender,
            there,
            self._tell,
            drift,
            parameters,
        )
        self._waiting_trainers: list[str] = []
        self._outcome: Outcome | None = None
        self._begin = commands

    def run(self, interrupted: Interruption) -> Outcome:
        """Drive the run until it has ended, and all that it started with it.

        Args:
            interrupted: Set when somebody wants the run to end.
        """
        self._obey(self._begin)
        num_told = 0
        while self._outcome is None:
            if interrupted.num_times > num_told:
                num_told = interrupted.num_times
                self._tell(Interrupted())
            self._worker_group.look()
            for fault in self._held.release(time.monotonic(), not self._polled):
                self._handle_failure(fault)
            self._poll()
            if self._state.is_training:
                self._watch.look(time.monotonic())
            self._tick()
            self._settle()
            wait_s = _CALM_LOOK_S if self._state.phase is Phase.RUNNING else _LOOK_S
            if len(self._calls):
                self._calls.collect(wait_s)
            else:
                time.sleep(wait_s)
        return self._outcome

    def _tick(self) -> None:
        now_s = time.monotonic()
        is_late = now_s > self._ticked_s + _STALL_S
        if is_late and not self._was_late and self._worker_group.is_placed:
            # Nobody was silent: this process did not listen. Not so if it is always late.
            self._tell(Heard(frozenset(self._worker_group.names)))
        self._ticked_s, self._was_late = now_s, is_late
        self._tell(Tick())

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
                if before.unverified and not self._state.unverified:
                    release(self._checkpoints)
                if isinstance(event, Placed):
                    self._observer.placed(self._worker_group.hellos)
                if self._state.phase is Phase.RUNNING and before.phase is not Phase.RUNNING:
                    self._observer.synchronised(self._worker_group.clock_offsets())
                    self._watch.begin(time.monotonic())
                self._obey(commands)

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Place():
                    self._worker_group.place(self._calls, self._tell)
                case Ship():
                    self._shipping.begin()
                case Start(task):
                    self._start(task)
                case Stop(task, is_urgent):
                    self._stop(task, is_urgent)
                case Say(line):
                    self._observer.say(line)
                case Finish(outcome):
                    self._finish(outcome)

    # --- tasks ------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        slot, actor = self._worker_group.slot(name), self._worker_group.actor(name)
        machine = self._worker_group.machine(name)
        keys = self._task_configs.keys(machine)
        if slot.task.role is Role.STORE:
            self._ask(name, actor.start.remote(self._task_configs.store(machine), keys))
        elif slot.task.role is Role.SAMPLER:
            settings, seeds = self._task_configs.sampler(slot.index)
            self._ask(name, actor.prepare.remote(settings, keys, seeds), is_ready=True)
        elif slot.task.role is Role.SERVER:
            self._ask(name, actor.start.remote(self._task_configs.server(slot.index), keys))
        else:
            self._waiting_trainers.append(name)
            if len(self._waiting_trainers) == 1:
                asked = self._worker_group.actor(self._first).free_port.remote()
                self._calls.ask(asked, self._start_trainers, self._failed(self._first))

    def _start_trainers(self, port: int) -> None:
        if self._state.phase is not Phase.TRAINERS:
            return
        resume = self._task_configs.resume()
        for name in self._waiting_trainers:
            slot = self._worker_group.slot(name)
            context, seeds = self._task_configs.trainer(slot.index)
            variables = self._task_configs.environment(slot.index, port, self._worker_group.gpus)
            samplers = [self._worker_group.actor(sampler) for sampler in context["samplers"]]
            started = self._worker_group.actor(name).start.remote(
                context,
                self._task_configs.keys(self._worker_group.machine(name)),
                seeds,
                variables,
                list(self._script.command),
                self._script.code,
                samplers,
                resume,
            )
            self._ask(name, started, is_ready=True)

    def _ask(self, name: str, ref: Any, is_ready: bool = False) -> None:
        then = (lambda _: self._tell(Ready(name))) if is_ready else (lambda _: None)
        self._calls.ask(ref, then, self._failed(name))

    def _failed(self, name: str) -> Any:
        return lambda error: self._tell(self._worker_group.explain(name, error))

    def _stop(self, name: str, is_urgent: bool) -> None:
        self._ask(name, self._worker_group.actor(name).stop.remote(is_urgent))
        self._next_poll_s = 0.0

    # --- looking ----------------------------------------------------------------------------------

    def _poll(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_poll_s or not self._worker_group.is_placed:
            return
        is_calm = self._state.phase in (Phase.RUNNING, Phase.SHIPPING)
        calm_s = max(_POLL_S, _POLL_S_PER_TASK * len(self._worker_group.names))
        # Whoever asked for a look at once wants to see all.
        sees_all = not is_calm or self._next_poll_s == 0.0 or self._num_polls % _OTHERS_EVERY == 0
        self._next_poll_s = now_s + (calm_s if is_calm else _FAST_POLL_S)
        self._num_polls += 1
        for name in self._worker_group.names:
            if not sees_all and self._worker_group.slot(name).task.role is not Role.TRAINER:
                continue
            if name not in self._polled and not self._worker_group.is_lost(name):
                self._polled.add(name)
                ref = self._worker_group.actor(name).state.remote()
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
            self._watch.see(name, state, time.monotonic())
            self._note_restarts(name, state)
            if state["code"] is not None:
                self._note_end(name, state)
            elif state["pid"] is None and self._state.stages[name] is Stage.STOPPING:
                # Nothing runs here, so whoever waits for its end waits no longer.
                self._tell(Ended(name, 0, "ended"))
            self._reader.see(name, state, self._state.phase is Phase.RUNNING)

        return then

    def _note_end(self, name: str, state: Mapping[str, Any]) -> None:
        # Whoever is killed has no last words: its last line is about something else.
        said = "" if state["code"] in (-signal.SIGKILL, -signal.SIGTERM) else state["said"]
        ended = Ended(name, state["code"], state["how"], said)
        is_stopping = self._state.phase in (Phase.STOPPING, Phase.ENDED)
        role = self._worker_group.slot(name).task.role
        if is_stopping or (not ended.code and role is not Role.STORE):
            self._tell(ended)
        elif role is Role.SAMPLER and self._mends:
            # Its trainer starts another one when it needs it, or fails.
            return
        elif state.get("starts", 1) > self._starts.get(name, 0):
            if role is Role.STORE:
                # Until it is started again, it has ended only once.
                self._starts[name] = state["starts"]
            self._hold(ended, state["ended_ago_s"])

    def _note_restarts(self, name: str, state: Mapping[str, Any]) -> None:
        """Count samplers that their trainers have started again."""
        num = state.get("restarts", 0)
        if num <= self._starts.get(name, 0) or not self._mends:
            return
        self._starts[name] = num
        task, why = self._worker_group.slot(name).task, state.get("why") or "was lost"
        decision = self._mender.take(TaskEnded(task, -1, why, can_restart=True))
        if not isinstance(decision, Restart):
            self._tell(Ended(name, -1, why))

    def _note_ports(self, name: str, state: Mapping[str, Any]) -> bool:
        """Know where a task listens; whether it does."""
        if state.get("port") is not None:
            self._task_configs.note_server_port(self._worker_group.slot(name).index, state["port"])
            return True
        if state.get("ports") is not None:
            ports = {int(part): port for part, port in state["ports"].items()}
            self._task_configs.note_ports(self._worker_group.machine(name), ports)
            return True
        return False

    def _hold(self, fault: Ended | Lost, ago_s: float = 0.0) -> None:
        now_s = time.monotonic()
        if self._held.hold(fault, now_s - ago_s, now_s):
            self._next_poll_s = 0.0

    def _unseen(self, name: str) -> Any:
        def failed(error: Exception) -> None:
            self._polled.discard(name)
            if not self._worker_group.is_passing(error):
                event = self._worker_group.explain(name, error)
                if isinstance(event, Lost) and name == event.name:
                    # Others of its machine may be gone too, and then the machine is.
                    self._hold(event)
                else:
                    self._tell(event)

        return failed

    # --- faults -----------------------------------------------------------------------------------

    @property
    def _mends(self) -> bool:
        return self._state.phase is Phase.RUNNING and self._mender.state.limits.restarts > 0

    def _handle_failure(self, fault: Ended | Lost) -> None:
        """Do at once what can be done while all others wait; the lifecycle hears of all else."""
        if isinstance(fault, Ended) and self._mends:
            slot = self._worker_group.slot(fault.task)
            if slot.task.role is Role.STORE:
                event = TaskEnded(slot.task, fault.code, fault.how, can_restart=True)
                if isinstance(self._mender.take(event), Restart):
                    self._ask(fault.task, self._worker_group.actor(fault.task).restart.remote())
                    return
        if isinstance(fault, Lost):
            fault = self._worker_group.judge(fault)
        self._tell(fault)

    def _collected(self, checkpoint: Checkpoint) -> None:
        self._observer.collected(checkpoint)
        if self._state.phase is not Phase.RUNNING:
            # Nobody joins a run that is about to end.
            self._mender.take(MachinesJoined(frozenset()))
        decision = self._mender.take(Saved(checkpoint.sidecar.iteration))
        if isinstance(decision, Resume):
            self._tell(Regroup(decision.why))

    # --- the end ----------------------------------------------------------------------------------

    def _finish(self, outcome: Outcome) -> None:
        lost = [name for name in self._worker_group.names if self._worker_group.is_lost(name)]
        ending_s = _ENDING_S if lost or isinstance(outcome.fault, Lost) else _CALM_ENDING_S
        end_s = time.monotonic() + ending_s
        while (self._reader.is_busy or self._polled) and time.monotonic() < end_s:
            self._calls.collect(_LOOK_S)
        self._fetch()
        if isinstance(outcome.fault, Ended | Lost):
            # Whoever was with a machine that is gone has often failed before its shells are missed.
            outcome = replace(outcome, fault=self._worker_group.judge(outcome.fault))
        self._worker_group.close(ending_s)
        self._outcome = outcome

    def _fetch(self) -> None:
        """Fetch what the first trainer has left, if it is there."""
        if self._worker_group.is_lost(self._first):
            return
        if self._collector.is_busy:
            self._observer.say("waiting for the newest checkpoint to arrive")
        if not self._collector.wait():
            self._observer.say(f"{self._first} does not answer: its last files stay behind")
            return
        for name in self._kept.get(self._first, ()):
            self._observer.kept(name, self._worker_group.pieces(self._first, name))
