"""Monitors a healthy run: stalls, hung tasks, network partitions, joined machines, drift."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.core.errors import DamagedGraphError
from headrace.core.job import Role
from headrace.linux.process import Activity
from headrace.policies.lifecycle.events import Event, Failed, Lost, Regroup, Task, Verified
from headrace.policies.recovery import hangs
from headrace.policies.recovery.events import MachinesJoined, Resume, Stepped
from headrace.policies.recovery.stalls import Stall, accuse, check, describe
from headrace.runtime.callbacks.base import RunCallback
from headrace.runtime.callbacks.drift_monitor import DriftMonitor
from headrace.runtime.cluster.head import SILENT_S, HeadLostError
from headrace.runtime.controller.failure_handling import FailureHandler
from headrace.runtime.controller.task_configs import TaskConfigs
from headrace.runtime.controller.worker_group import PendingActorCalls, WorkerGroup
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.finite_check import FiniteCheck
from headrace.runtime.protocol.parameter_check import ParameterCheck
from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    BatchRequested,
    CheckpointWrite,
    LoopLeft,
    NonFinite,
    Note,
    ParameterChecksum,
    Report,
    Resumed,
    Waiting,
)

_JOIN_POLL_INTERVAL_S = 5.0
# Meanwhile no reply is handled and nothing is logged, and the next poll asks again.
_JOIN_TIMEOUT_S = 1.0
_HEARD_S = 5.0
"""A head that was heard at this time before counts as there; it is probed every 3 s."""


class Watch:
    """Detects stalls, probes the network, and polls for joined machines and drift.

    Args:
        alive: Returns the names of the available machines, given a timeout in seconds.
        emit: Emits lifecycle events.
        drift: Detects drift from the plan; None to disable.
        parameters: Compares the trainers' parameters; None to disable.
    """

    def __init__(
        self,
        worker_group: WorkerGroup,
        task_configs: TaskConfigs,
        calls: PendingActorCalls,
        callback: RunCallback,
        handler: FailureHandler,
        alive: Callable[[float], frozenset[str]],
        emit: Callable[[Event], None],
        drift: DriftMonitor | None = None,
        parameters: ParameterCheck | None = None,
    ) -> None:
        self._drift, self._parameters, self._finite = drift, parameters, FiniteCheck()
        self._worker_group, self._task_configs, self._calls = worker_group, task_configs, calls
        self._callback, self._handler, self._alive, self._emit = callback, handler, alive, emit
        self._stalls = StallDetector(worker_group.tasks, 0.0)
        self._hangs = HangWatch(worker_group, calls, callback.log)
        self._next_join_s, self._is_head_lost = 0.0, False

    def begin(self, now_s: float) -> None:
        """Start monitoring: all tasks are running."""
        self._stalls = StallDetector(self._worker_group.tasks, now_s)

    def update(self, name: str, state: ActorState, now_s: float) -> None:
        """Update with the state of a task."""
        self._hangs.update(name, state, now_s)
        if self._stalls.update(name, state, now_s):
            self._handler.handle(Stepped())
        task = self._worker_group.slot(name).task
        if state.is_verified:
            self._emit(Verified(name))
        if task.role is Role.STORE and state.code == DamagedGraphError.exit_code:
            self._fail(
                Failed(
                    f"{task}: {state.last_error.rpartition(' ERROR ')[2]}", DamagedGraphError.remedy
                )
            )
        for message in state.messages:
            match message:
                case Note(text):
                    self._callback.log(f"{task}: {text}")
                case ParameterChecksum() if self._parameters is not None:
                    self._fail(self._parameters.update(str(task), message))
                case NonFinite():
                    self._fail(self._finite.update(str(task), message, now_s))

    def kill_stopped(self, now_s: float) -> None:
        """Kill processes that have been stopped for too long, in any phase."""
        self._hangs.kill_stopped(now_s)

    def poll(self, now_s: float) -> None:
        """Run all checks that are due while the run trains."""
        self._fail(self._finite.poll(now_s))
        self._check_head()
        line, probes = self._stalls.poll(now_s)
        if line:
            self._callback.log(line)
        if probes and len(self._worker_group.stores) > 1:
            self._probe()
        self._hangs.examine(now_s, self._stalls.first_still(now_s))
        is_heard = self._worker_group.system.head_silent_s < _HEARD_S
        if self._handler.state.elastic and is_heard and now_s >= self._next_join_s:
            self._next_join_s = now_s + _JOIN_POLL_INTERVAL_S
            before = self._handler.state.joined
            # Without the head no machine can join.
            with suppress(HeadLostError):
                self._handler.handle(MachinesJoined(self._alive(_JOIN_TIMEOUT_S)))
            for name in sorted(self._handler.state.joined - before):
                self._callback.log(f"{name} has joined: it is used after the next checkpoint")
        # Another plan is not worth a run that cannot be started again.
        if self._drift is not None and is_heard:
            drifted = self._drift.poll(now_s, self._handler.state.saved is not None)
            if drifted is not None and isinstance(self._handler.handle(drifted), Resume):
                self._emit(Regroup(drifted.why))

    def _check_head(self) -> None:
        silent_s = self._worker_group.system.head_silent_s
        is_lost = silent_s >= SILENT_S
        if is_lost and not self._is_head_lost:
            what = f"the head of the Ray cluster has not answered for {silent_s:.0f} s"
            self._callback.log(f"{what}: the run goes on, but it ends if a machine or task is lost")
        elif self._is_head_lost and not is_lost:
            self._callback.log("the head of the Ray cluster answers again")
        self._is_head_lost = is_lost

    def _fail(self, failed: Failed | None) -> None:
        if failed is not None:
            self._emit(failed)

    def _probe(self) -> None:
        self._callback.log("probing the connections between all machines")
        stores = self._worker_group.stores
        places = {
            slot.task.machine: (slot.node.address, self._task_configs.some_port(slot.index))
            for slot in stores
        }
        probe = PartitionProbe(places, self._worker_group.home, self._callback.log, self._emit)
        actors = {slot.task.machine: self._worker_group.actor(slot.task.name) for slot in stores}
        probe.begin(self._calls, actors)


_PROGRESS = (BatchProgress, Report, CheckpointWrite, Resumed)
"""Messages that count as progress of a trainer."""

# A closed port: a reachable machine refuses the connection.
_CLOSED_PORT = 1


class StallDetector:
    """Detects trainers that make no progress."""

    def __init__(self, tasks: Iterable[Task], now_s: float) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._stall = Stall(now_s)
        self._has_begun, self._pending_line = False, ""
        self._sizes: dict[str, int] = {}
        self._waits: dict[str, dict[str, bool]] = {}
        self._asked: set[str] = set()
        self._moved_s: dict[str, float] = {}
        self._in_loop: dict[str, bool] = {
            task.name: False for task in self._tasks.values() if task.role is Role.TRAINER
        }

    def update(self, name: str, state: ActorState, now_s: float) -> bool:
        """Update with the state of a task; return whether a trainer has done a training step."""
        if self._tasks[name].role is not Role.TRAINER:
            self._waits[name] = {state.waits_for: True} if state.waits_for else {}
            return False
        # A script that does not use headrace loaders (yet) may still print.
        has_stepped, size = False, state.trace_bytes or state.log_bytes
        moves = size > self._sizes.get(name, 0)
        self._sizes[name] = size
        for message in state.messages:
            moves = moves or isinstance(message, _PROGRESS)
            match message:
                case BatchProgress(trains, batch, num_batches):
                    has_stepped = has_stepped or trains
                    self._in_loop[name] = trains and batch < num_batches
                case LoopLeft():
                    self._in_loop[name] = False
                case BatchRequested():
                    self._asked.add(name)
                case Waiting(task, is_waiting):
                    self._waits.setdefault(name, {})[task] = is_waiting
        if moves:
            if self._stall.reported_s is not None and self._has_begun:
                self._pending_line = f"the run resumed after {now_s - self._stall.moved_s:.0f} s"
            pause_s = now_s - self._stall.moved_s if self._has_begun else 0.0
            self._stall = Stall(now_s, longest_s=max(self._stall.longest_s, pause_s))
            self._moved_s[name] = now_s
        if state.code is not None:
            self._in_loop.pop(name, None)
        self._has_begun = self._has_begun or has_stepped
        return has_stepped

    def poll(self, now_s: float) -> tuple[str, bool]:
        """A line for the user, if due, and whether to probe the network."""
        if self._pending_line:
            line, self._pending_line = self._pending_line, ""
            return line, False
        moved_s = self._stall.moved_s
        self._stall, says, probes = check(self._stall, now_s)
        waits = {
            str(self._tasks[name]): ", ".join(text for text, is_so in own.items() if is_so)
            for name, own in self._waits.items()
            if any(own.values())
        }
        if not waits and not self._has_begun:
            waits = self._first_waits()
        line = describe(now_s - moved_s, waits, self._has_begun) if says else ""
        return line, probes

    def first_still(self, now_s: float) -> tuple[str, float] | None:
        """The trainer that was the first to stop, and for how long none has progressed.

        None unless the run may hang.
        """
        still_s = now_s - self._stall.moved_s
        if not hangs.may_hang(still_s, self._stall.longest_s, self._in_loop.values()):
            return None
        return min(self._in_loop, key=lambda name: self._moved_s.get(name, 0.0)), still_s

    def _first_waits(self) -> dict[str, str]:
        """What blocks each trainer before its first batch."""
        trainers = [task for task in self._tasks.values() if task.role is Role.TRAINER]
        return {
            str(task): "its first batch; the very first run compiles the sampling kernels"
            if task.name in self._asked
            else "its script, which imports or prepares and has not requested a batch yet"
            for task in trainers
        }


class HangWatch:
    """Kills tasks that make no progress; their exit is handled like any other."""

    def __init__(
        self, worker_group: WorkerGroup, calls: PendingActorCalls, log: Callable[[str], None]
    ) -> None:
        self._worker_group, self._calls, self._log = worker_group, calls, log
        self._stopped_s: dict[str, float] = {}
        self._before: dict[str, Activity] = {}
        self._num_open = 0
        self._next_s = self._began_s = 0.0

    def update(self, name: str, state: ActorState, now_s: float) -> None:
        """Update with the state of a task."""
        if state.is_stopped:
            self._stopped_s.setdefault(name, now_s)
        else:
            self._stopped_s.pop(name, None)

    def kill_stopped(self, now_s: float) -> None:
        """Kill processes that have been stopped for too long."""
        for name, since_s in list(self._stopped_s.items()):
            if now_s - since_s >= hangs.STOPPED_S:
                # Its actor checks again: it may run since the last poll.
                del self._stopped_s[name]
                why = f"made no progress for {now_s - since_s:.0f} s, because it is stopped"
                self._kill(name, why, only_stopped=True)

    def examine(self, now_s: float, first: tuple[str, float] | None) -> None:
        """Kill the trainer that was the first to stop, if no task does anything."""
        if first is None:
            self._before = {}
        elif not self._num_open and now_s >= self._next_s:
            self._next_s = now_s + hangs.EXAMINE_S
            before, self._before = self._before, {}
            passed_s, self._began_s = now_s - self._began_s, now_s
            self._ask(partial(self._compare, first, before, passed_s))

    def _ask(self, then: Callable[[dict[str, Activity]], None]) -> None:
        names = [name for name in self._worker_group.names if not self._worker_group.is_lost(name)]
        found: dict[str, Activity] = {}
        self._num_open = len(names)

        def end() -> None:
            self._num_open -= 1
            if not self._num_open:
                then(found)

        def keep(name: str, activity: Activity) -> None:
            found[name] = activity
            end()

        for name in names:
            ref = self._worker_group.actor(name).activity.remote()
            # The state poll detects a lost actor.
            self._calls.add(ref, partial(keep, name), lambda error: end())

    def _compare(
        self,
        first: tuple[str, float],
        before: Mapping[str, Activity],
        passed_s: float,
        now: dict[str, Activity],
    ) -> None:
        if before.keys() != now.keys():
            self._before = now
            return
        is_idle = all(
            hangs.is_idle(each.cpu_s - before[name].cpu_s, passed_s, each.waits_for_disk)
            for name, each in now.items()
        )
        if is_idle:
            name, still_s = first
            self._kill(name, f"made no progress for {still_s:.0f} s, and no task computes", False)
        self._next_s = self._began_s + hangs.REPEAT_S

    def _kill(self, name: str, why: str, only_stopped: bool) -> None:
        self._log(f"{self._worker_group.slot(name).task} {why}: killing it")
        ref = self._worker_group.actor(name).kill_hung.remote(why, only_stopped)
        self._calls.add(ref, lambda _: None, lambda error: None)


class PartitionProbe:
    """Probes the connections between all machines.

    Args:
        places: Address of every machine and an open port, if any.
        home: The machine of the driver.
        accuse: Called with the unreachable machine, if any.
    """

    def __init__(
        self,
        places: Mapping[str, tuple[str, int | None]],
        home: str,
        log: Callable[[str], None],
        accuse: Callable[[Lost], None],
    ) -> None:
        self._places = {name: (host, port or _CLOSED_PORT) for name, (host, port) in places.items()}
        self._home, self._log, self._accuse = home, log, accuse
        self._asked: set[str] = set()
        self._cuts: dict[tuple[str, str], str] = {}

    def begin(self, calls: PendingActorCalls, actors: Mapping[str, Any]) -> None:
        """Probe from all machines in parallel, through the actors of their stores."""
        self._asked = set(actors)
        for name, actor in actors.items():
            others = {other: place for other, place in self._places.items() if other != name}
            calls.add(actor.reach.remote(others), self._on_reply(name), self._failed(name))

    def _on_reply(self, name: str) -> Callable[[dict[str, str]], None]:
        def then(unreachable: dict[str, str]) -> None:
            self._cuts |= {(name, other): why for other, why in unreachable.items()}
            self._end(name)

        return then

    def _failed(self, name: str) -> Callable[[Exception], None]:
        # The state poll detects a lost actor.
        return lambda error: self._end(name)

    def _end(self, name: str) -> None:
        self._asked.discard(name)
        if self._asked:
            return
        accused = accuse(self._cuts, self._home)
        if accused is None:
            self._log("all machines are connected: the network is not the cause")
            return
        pairs = [f"{one} cannot reach {other}" for one, other in sorted(self._cuts)]
        self._accuse(Lost(accused, f"the network is partitioned: {', '.join(pairs[:4])}"))
