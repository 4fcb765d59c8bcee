"""The controller: executes the commands of the lifecycle policy with task actors."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
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
    Log,
    Lost,
    Outcome,
    Phase,
    Place,
    Placed,
    Ready,
    Regroup,
    Ship,
    Stage,
    Start,
    Stop,
    Tick,
)
from headrace.policies.lifecycle.steps import begin, step
from headrace.policies.recovery.events import (
    Begun,
    Held,
    MachinesJoined,
    Released,
    Restart,
    Resume,
    Saved,
    TaskEnded,
)
from headrace.runtime.callbacks.base import RunCallback
from headrace.runtime.callbacks.drift_monitor import DriftMonitor
from headrace.runtime.controller.checkpoint_fetch import CheckpointFetcher, fetch_last
from headrace.runtime.controller.code_archive import Script
from headrace.runtime.controller.failure_handling import FailureHandler, FaultDebouncer, blaming
from headrace.runtime.controller.graph_shipping import GraphShipping, WantedFiles
from headrace.runtime.controller.health import Watch
from headrace.runtime.controller.log_fetch import LogReader
from headrace.runtime.controller.signals import Interruption
from headrace.runtime.controller.task_configs import TaskConfigs
from headrace.runtime.controller.worker_group import PendingActorCalls, WorkerGroup
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.parameter_check import ParameterCheck
from headrace.runtime.run_dir.attached_stores import AttachedStores
from headrace.training.checkpoint_files import Checkpoint, hold, release

_LOOP_S = 0.1
_RUNNING_LOOP_S = 0.3
# Only trainers report progress, so the other tasks are polled less often.
_OTHERS_EVERY = 4
# A call costs 0.3 ms in this process (measured); this bounds polling to a sixth of its time.
_POLL_S_PER_TASK = 0.002
_FAST_POLL_S = 0.2
_STALL_S = 2.0
# Shutdown timeout of the remaining tasks, with and without a lost task.
_LOST_CLOSE_S, _CLOSE_S = 3.0, 10.0


class Controller:
    """Drives one attempt of a run from start to end.

    Args:
        files: Graph files that each machine needs.
        checkpoints: Folder for the run's checkpoints.
        machines: Returns the available machines, given a timeout; polled if the run is elastic.
        drift: Detects drift from the plan; None to disable.
        parameters: Compares the trainers' parameters; None to disable.
        attached: Stores that run already; None if the run starts its own.
    """

    def __init__(
        self,
        worker_group: WorkerGroup,
        task_configs: TaskConfigs,
        files: Sequence[WantedFiles],
        script: Script,
        callback: RunCallback,
        checkpoints: Path,
        handler: FailureHandler,
        machines: Callable[[float], frozenset[str]],
        drift: DriftMonitor | None = None,
        parameters: ParameterCheck | None = None,
        attached: AttachedStores | None = None,
    ) -> None:
        self._worker_group, self._task_configs = worker_group, task_configs
        self._attached = attached
        self._script, self._callback, self._handler = script, callback, handler
        self._calls = PendingActorCalls(worker_group.system)
        first = next(w for w, rank in task_configs.ranks.items() if rank == 0)
        self._first, self._checkpoints = f"trainer{first}", checkpoints
        hold(checkpoints)
        piece = partial(worker_group.piece, self._first)
        self._collector = CheckpointFetcher(
            checkpoints, self._calls, piece, self._collected, callback.log
        )
        self._shipping = GraphShipping(
            files, worker_group, task_configs.set_folder, self._calls, callback.log, self._emit
        )
        sinks = {"log": callback.printed, "trace": callback.traced}
        self._reader = LogReader(self._calls, worker_group.actor, sinks)
        self._events: list[Event] = []
        self._state, self._begin = begin(worker_group.tasks, time.monotonic())
        self._polled: set[str] = set()
        self._next_poll_s = self._ticked_s = 0.0
        self._num_polls, self._was_late = 0, False
        self._output_files: dict[str, tuple[str, ...]] = {}
        self._debouncer = FaultDebouncer()
        self._starts: dict[str, int] = {}
        self._watch = Watch(
            worker_group,
            task_configs,
            self._calls,
            callback,
            handler,
            machines,
            self._emit,
            drift,
            parameters,
        )
        self._waiting_trainers: list[str] = []
        self._outcome: Outcome | None = None

    def run(self, interrupted: Interruption) -> Outcome:
        """Drive the run until all of its tasks have ended; `interrupted` stops it early."""
        try:
            return self._run(interrupted)
        except BaseException:
            # Nothing is left on other machines, whatever fails here.
            self._worker_group.close(_LOST_CLOSE_S)
            raise

    def _run(self, interrupted: Interruption) -> Outcome:
        self._execute(self._begin)
        num_handled = 0
        while self._outcome is None:
            if interrupted.num_times > num_handled:
                num_handled = interrupted.num_times
                self._emit(Interrupted())
            self._worker_group.poll()
            for fault in self._debouncer.release(time.monotonic(), not self._polled):
                self._handle_failure(fault)
            self._poll()
            self._watch.kill_stopped(time.monotonic())
            if self._state.is_training:
                self._watch.poll(time.monotonic())
            if self._attached is not None:
                self._attached.poll(time.monotonic(), self._emit, self._callback.log)
            self._tick()
            self._process_events()
            self._calls.collect(_RUNNING_LOOP_S if self._state.phase is Phase.RUNNING else _LOOP_S)
        return self._outcome

    def _tick(self) -> None:
        now_s = time.monotonic()
        is_late = now_s > self._ticked_s + _STALL_S
        if is_late and not self._was_late and self._worker_group.is_placed:
            # This process was stalled, so missed replies do not count; twice in a row they do.
            self._emit(Heard(frozenset(self._worker_group.names)))
        self._ticked_s, self._was_late = now_s, is_late
        self._emit(Tick())

    def _emit(self, event: Event) -> None:
        self._events.append(event)

    def _process_events(self) -> None:
        while self._events:
            events, self._events = self._events, []
            for event in events:
                before = self._state
                self._state, commands = step(before, event, time.monotonic())
                if self._state is not before:
                    self._callback.changed(self._state, event)
                if before.unverified and not self._state.unverified:
                    release(self._checkpoints)
                    self._save(Released())
                if isinstance(event, Placed):
                    self._callback.placed(self._worker_group.registrations)
                if self._state.phase is Phase.RUNNING and before.phase is not Phase.RUNNING:
                    # Comparing clocks takes seconds, in which nobody hears anything.
                    self._watch.begin(time.monotonic())
                    self._callback.synchronised(self._worker_group.clock_offsets())
                self._execute(commands)

    def _execute(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Place():
                    self._worker_group.place(self._calls, self._emit, self._callback.log)
                case Ship():
                    self._shipping.begin()
                case Start(task):
                    self._start(task)
                case Stop(task, is_urgent):
                    self._stop(task, is_urgent)
                case Log(line):
                    self._callback.log(line)
                case Finish(outcome):
                    self._finish(outcome)

    def _start(self, name: str) -> None:
        slot, actor = self._worker_group.slot(name), self._worker_group.actor(name)
        machine = self._worker_group.machine(name)
        keys = self._task_configs.keys(machine)
        if slot.task.role is Role.STORE:
            ports = self._task_configs.attached_ports(machine)
            if ports is None:
                ref = actor.start.remote(self._task_configs.store(machine), keys)
            else:
                ref = actor.attach.remote(dict(ports), self._attached is None)
            self._track_call(name, ref)
        elif slot.task.role is Role.SAMPLER:
            settings, seeds = self._task_configs.sampler(slot.index)
            self._track_call(name, actor.prepare.remote(settings, keys, seeds), is_ready=True)
        elif slot.task.role is Role.SERVER:
            self._track_call(name, actor.start.remote(self._task_configs.server(slot.index), keys))
        else:
            self._waiting_trainers.append(name)
            if len(self._waiting_trainers) == 1:
                ref = self._worker_group.actor(self._first).free_port.remote()
                self._calls.add(ref, self._start_trainers, self._failed(self._first))

    def _start_trainers(self, port: int) -> None:
        if self._state.phase is not Phase.TRAINERS:
            return
        self._handler.handle(Begun())
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
                self._script.folder,
            )
            self._track_call(name, started, is_ready=True)

    def _track_call(self, name: str, ref: Any, is_ready: bool = False) -> None:
        then = (lambda _: self._emit(Ready(name))) if is_ready else (lambda _: None)
        self._calls.add(ref, then, self._failed(name))

    def _failed(self, name: str) -> Any:
        return lambda error: self._emit(self._worker_group.explain(name, error))

    def _stop(self, name: str, is_urgent: bool) -> None:
        self._track_call(name, self._worker_group.actor(name).stop.remote(is_urgent))
        self._next_poll_s = 0.0

    def _poll(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_poll_s or not self._worker_group.is_placed:
            return
        is_calm = self._state.phase in (Phase.RUNNING, Phase.SHIPPING)
        poll_s = self._worker_group.system.poll_interval_s
        calm_s = max(poll_s, _POLL_S_PER_TASK * len(self._worker_group.names))
        # An immediate poll covers all tasks.
        polls_all = not is_calm or self._next_poll_s == 0.0 or self._num_polls % _OTHERS_EVERY == 0
        self._next_poll_s = now_s + (calm_s if is_calm else _FAST_POLL_S)
        self._num_polls += 1
        for name in self._worker_group.names:
            if not polls_all and self._worker_group.slot(name).task.role is not Role.TRAINER:
                continue
            if name in self._polled:
                continue
            self._debouncer.unasked.discard(name)
            if not self._worker_group.is_lost(name):
                self._polled.add(name)
                ref = self._worker_group.actor(name).state.remote()
                self._calls.add(ref, self._on_state(name), self._on_state_error(name))

    def _on_state(self, name: str) -> Any:
        def then(state: ActorState) -> None:
            self._polled.discard(name)
            if name in self._debouncer.unasked:
                self._next_poll_s = 0.0
            self._emit(Heard(frozenset({name})))
            self._callback.polled(name, state)
            self._output_files[name] = state.output
            if name == self._first:
                self._collector.update(state.checkpoints)
            if self._record_ports(name, state):
                self._emit(Ready(name))
            self._watch.update(name, state, time.monotonic())
            self._record_restarts(name, state)
            if state.code is not None:
                self._record_exit(name, state)
            elif state.pid is None and self._state.stages[name] is Stage.STOPPING:
                # No process is running, so the stop is complete.
                self._emit(Ended(name, 0, "ended"))
            self._reader.update(name, state, self._state.phase is Phase.RUNNING)

        return then

    def _record_exit(self, name: str, state: ActorState) -> None:
        # The last line of a killed process is unrelated to its end.
        assert state.code is not None
        output = "" if state.code in (-signal.SIGKILL, -signal.SIGTERM) else state.last_error
        ended = Ended(name, state.code, state.how, output)
        is_stopping = self._state.phase in (Phase.STOPPING, Phase.ENDED)
        role = self._worker_group.slot(name).task.role
        if is_stopping or (not ended.code and role is not Role.STORE):
            self._emit(ended)
        elif role is Role.SAMPLER and self._can_recover:
            # Its trainer restarts it on demand, or fails.
            return
        elif state.starts > self._starts.get(name, 0):
            if role is Role.STORE:
                # Report each exit once.
                self._starts[name] = state.starts
            self._debounce(ended, state.ended_ago_s)

    def _record_restarts(self, name: str, state: ActorState) -> None:
        """Count samplers that were restarted by their trainers."""
        # A restart shortly before the end is reported after it.
        outcome, can_restart = self._state.outcome, self._handler.state.limits.restarts > 0
        is_over = outcome is not None and outcome.is_success and can_restart
        if state.restarts <= self._starts.get(name, 0) or not (self._can_recover or is_over):
            return
        self._starts[name] = state.restarts
        task, why = self._worker_group.slot(name).task, state.why or "was lost"
        decision = self._handler.handle(TaskEnded(task, -1, why, can_restart=True))
        if not isinstance(decision, Restart) and not is_over:
            self._emit(Ended(name, -1, why))

    def _record_ports(self, name: str, state: ActorState) -> bool:
        """Record the ports of a task; return whether it listens."""
        if state.port is not None:
            self._task_configs.set_server_port(self._worker_group.slot(name).index, state.port)
            return True
        if state.ports is not None:
            ports = {int(part): port for part, port in state.ports.items()}
            self._task_configs.set_ports(self._worker_group.machine(name), ports)
            return True
        return False

    def _debounce(self, fault: Ended | Lost, ago_s: float = 0.0) -> None:
        now_s = time.monotonic()
        if self._debouncer.hold(fault, now_s - ago_s, now_s, self._worker_group.names):
            self._next_poll_s = 0.0

    def _on_state_error(self, name: str) -> Any:
        def failed(error: Exception) -> None:
            self._polled.discard(name)
            if not self._worker_group.is_transient(error):
                event = self._worker_group.explain(name, error)
                if isinstance(event, Lost) and name == event.name:
                    # If all tasks of the machine are lost, the machine is.
                    self._debounce(event)
                else:
                    self._emit(event)

        return failed

    @property
    def _can_recover(self) -> bool:
        return self._state.phase is Phase.RUNNING and self._handler.state.limits.restarts > 0

    def _handle_failure(self, fault: Ended | Lost) -> None:
        """Restart a store in place if possible; pass all other faults to the lifecycle."""
        if isinstance(fault, Ended) and self._can_recover:
            slot = self._worker_group.slot(fault.task)
            if slot.task.role is Role.STORE:
                event = TaskEnded(slot.task, fault.code, fault.how, can_restart=True)
                if isinstance(self._handler.handle(event), Restart):
                    ref = self._worker_group.actor(fault.task).restart.remote()
                    self._track_call(fault.task, ref)
                    return
        if isinstance(fault, Lost):
            fault = self._worker_group.judge(fault)
        self._emit(fault)

    def _collected(self, checkpoint: Checkpoint) -> None:
        self._callback.collected(checkpoint)
        iteration = checkpoint.sidecar.iteration
        self._save(Held(iteration) if self._state.unverified else Saved(iteration))

    def _save(self, event: Held | Released | Saved) -> None:
        if self._state.phase is not Phase.RUNNING:
            # Do not add machines to a run that is ending.
            self._handler.handle(MachinesJoined(frozenset()))
        decision = self._handler.handle(event)
        if isinstance(decision, Resume):
            self._emit(Regroup(decision.why))

    def _finish(self, outcome: Outcome) -> None:
        lost = [name for name in self._worker_group.names if self._worker_group.is_lost(name)]
        ending_s = _LOST_CLOSE_S if lost or isinstance(outcome.fault, Lost) else _CLOSE_S
        end_s = time.monotonic() + ending_s
        while (self._reader.is_busy or self._polled) and time.monotonic() < end_s:
            self._calls.collect(_LOOP_S)
        if self._reader.is_busy or self._polled:
            self._callback.log(f"some tasks do not answer after {ending_s:.0f} s: ending without")
        problem, remedy = fetch_last(
            self._first,
            self._collector,
            names=self._output_files.get(self._first, ()),
            pieces=partial(self._worker_group.pieces, self._first, self._callback.log),
            callback=self._callback,
            waits=outcome.is_success,
            is_lost=self._worker_group.is_lost(self._first),
        )
        if problem and outcome.is_success:
            outcome = Outcome(problem=f"the run has ended, but {problem}", remedy=remedy)
        if isinstance(outcome.fault, Ended | Lost):
            # Peers of a lost machine often fail before the loss of its actors is detected.
            outcome = blaming(outcome, self._worker_group.judge(outcome.fault))
        self._worker_group.close(ending_s, self._callback.log)
        self._outcome = outcome
