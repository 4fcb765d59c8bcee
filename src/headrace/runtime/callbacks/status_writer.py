"""Writes status, events and logs of a run to its folder."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.core.errors import SpecError
from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.core.trace import ClockOffset
from headrace.linux.disk import is_full
from headrace.policies.lifecycle.events import (
    Ended,
    Event,
    Heard,
    Outcome,
    Phase,
    Stage,
    Tick,
    Waits,
)
from headrace.policies.lifecycle.state import Lifecycle
from headrace.policies.recovery.deciding import Recovery
from headrace.policies.recovery.events import Decision
from headrace.profiling.trace_assembly import read_records, write_offsets
from headrace.runtime.callbacks.base import CallbackList, RunCallback, RunWatcher
from headrace.runtime.callbacks.line_buffer import LineBuffer
from headrace.runtime.callbacks.progress import Progress
from headrace.runtime.callbacks.work_totals import WorkTotals
from headrace.runtime.cluster.placement_group import TaskPlacement
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    BatchSizeRequest,
    CheckpointWrite,
    Message,
    Report,
    Resumed,
    encode,
)
from headrace.runtime.run_dir.run_dir import RunDirectory, push
from headrace.runtime.run_dir.status import (
    Failure,
    MachineStatus,
    RunState,
    Status,
    TaskState,
    TaskStatus,
)
from headrace.runtime.run_dir.versions import versions
from headrace.training.checkpoint_files import Checkpoint

_WRITE_INTERVAL_S = 1.0
_TAIL_BYTES = 4096
_PROBLEM_CHARS = 200
_STAGES = {
    Stage.WAITING: TaskState.WAITING,
    Stage.STARTING: TaskState.STARTING,
    Stage.READY: TaskState.READY,
    Stage.STOPPING: TaskState.RUNNING,
    Stage.ENDED: TaskState.ENDED,
    Stage.LOST: TaskState.LOST,
}


@dataclass
class RunHistory:
    """State of all attempts of a run; it began at `since_s` (epoch) or `begin_s` (monotonic)."""

    since_s: float = field(default_factory=time.time)
    begin_s: float = field(default_factory=time.monotonic)
    num_restarts: int = 0
    last_decision: str = ""
    work: WorkTotals = field(default_factory=WorkTotals)


class StatusWriter(RunCallback):
    """Writes the run folder and notifies watcher and other callbacks; one per attempt.

    The other callbacks get `began`, `say`, `polled`, `printed`, `traced`, `reported`, `updated` and
    `finished`.
    """

    def __init__(
        self,
        folder: RunDirectory,
        plan: Plan,
        slots: Sequence[TaskPlacement],
        watcher: RunWatcher,
        attempt: int = 1,
        callbacks: Sequence[RunCallback] = (),
        history: RunHistory | None = None,
    ) -> None:
        self._attempt = attempt
        self._callbacks = CallbackList(callbacks)
        self._callbacks.began(plan, slots)
        folder.append_event("attempt", number=attempt, versions=versions())
        self._folder, self._plan, self._slots, self._watcher = folder, plan, slots, watcher
        self._history = history or RunHistory()
        self._history.work.place(plan, slots)
        self._begin_s = self._history.begin_s
        self._progress = {
            slot.task.name: Progress() for slot in slots if slot.task.role is Role.TRAINER
        }
        first = plan.placed.ring_order[0]
        self._first = f"trainer{first}"
        self._seen: dict[str, ActorState] = {}
        self._peaks: dict[str, int] = {}
        self._nics: dict[str, tuple[float, int, int]] = {}
        self._rates: dict[str, tuple[float, float]] = {}
        self._lines = LineBuffer()
        self._iterations: dict[str, int] = {}
        self._busy: dict[str, float] = {}
        self._state: Lifecycle | None = None
        self._outcome: Outcome | None = None
        self._next_write_s = 0.0
        self._phases: dict[str, float] = {}
        self._problem = ""
        folder.reserve()

    def summary(self) -> dict[str, Any]:
        """Figures of the run: its folder, its duration, the start of each phase."""
        return {
            "run_id": self._folder.run_id,
            "folder": str(self._folder.path),
            "elapsed_s": time.monotonic() - self._begin_s,
            "phases_s": dict(self._phases),
        }

    def log(self, line: str) -> None:
        """Show and log a line."""
        self._folder.append_event("say", line=line)
        self._callbacks.log(line)
        self._watcher.log(line)
        self._update_status()

    def placed(self, registrations: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the registration data of all task actors."""
        keys = ("address", "interface", "pid", "gpus")
        tasks = {task: {key: each[key] for key in keys} for task, each in registrations.items()}
        self._folder.append_event("places", tasks=tasks)

    def changed(self, state: Lifecycle, event: Event) -> None:
        """Write a change of the lifecycle state."""
        before, self._state = self._state, state
        if before is None or before.phase is not state.phase:
            self._phases[state.phase] = time.monotonic() - self._begin_s
            self._folder.append_event("phase", phase=state.phase.value)
            self._callbacks.log(_line_of(state))
            self._watcher.log(_line_of(state))
            self._next_write_s = 0.0
            self._update_status()
        if not isinstance(event, Heard | Tick | Waits):
            if before is not None and before.stages == state.stages and isinstance(event, Ended):
                return
            self._folder.append_event(type(event).__name__.lower(), **asdict(event))

    def polled(self, task: str, state: ActorState) -> None:
        """Update from a task's state."""
        self._seen[task] = state
        if state.anonymous_bytes:
            self._peaks[task] = max(state.anonymous_bytes, self._peaks.get(task, 0))
        self._callbacks.polled(task, state)
        for message in state.messages:
            self._progress[task] = self._progress[task].after(message)
            if isinstance(message, BatchProgress) and message.steps:
                # More recent than the trace, which is fetched in large chunks.
                self._iterations[task] = max(self._iterations.get(task, 0), message.steps - 1)
            if task == self._first:
                self._record(message)
                self._watcher.notify(message)
        if state.nic is not None:
            self._record_nic(task, *state.nic)
        self._update_status()

    def _update_status(self) -> None:
        """Write the status and notify the callbacks, if due."""
        if self._state is not None and time.monotonic() >= self._next_write_s:
            self._next_write_s = time.monotonic() + _WRITE_INTERVAL_S
            status = self.status()
            with self._folder.tolerated():
                self._folder.write_status(status)
            self._callbacks.updated(status)
            self._report_problem()

    def _report_problem(self) -> None:
        before, self._problem = self._problem, self._folder.problem
        if self._problem and not before:
            what = f"{self._folder.path} cannot be written ({self._problem}): the run goes on"
            self._watcher.log(f"{what}, but its logs, trace and status are incomplete")
        elif before and not self._problem:
            self.log(f"{self._folder.path} can be written again")

    def printed(self, task: str, data: bytes) -> None:
        """Write output of a task to its log."""
        self._folder.append(self._folder.log(task), data)
        self._callbacks.printed(task, data)
        if task in self._progress:
            for line in self._lines.add(task, data):
                self._show(task, line)

    def synchronised(self, offsets: Mapping[str, ClockOffset]) -> None:
        """Write the clock offsets."""
        with self._folder.tolerated():
            write_offsets(self._folder.path, offsets)

    def traced(self, task: str, data: bytes) -> None:
        """Write trace records of a task."""
        self._folder.append(self._folder.path / f"trace-{task}.jsonl", data)
        self._callbacks.traced(task, data)
        self._history.work.add(task, data)
        self._record_work(task, data)

    def collected(self, checkpoint: Checkpoint) -> None:
        """Write the event of a fetched checkpoint."""
        what = checkpoint.sidecar.model_dump(include={"iteration", "epoch", "batch", "size"})
        self._folder.append_event("collected", **what)

    def decided(self, state: Recovery, decision: Decision) -> None:
        """Write and show a decision of the recovery policy."""
        self._history.num_restarts, self._history.last_decision = state.num_restarts, decision.line
        what = type(decision).__name__.lower()
        clock_s = round(time.monotonic(), 6)
        self._folder.append_event("decision", what=what, line=decision.line, clock_s=clock_s)
        self._next_write_s = 0.0
        self.log(decision.line)

    def kept(self, name: str, pieces: Iterator[bytes]) -> None:
        """Fetch an output file of the script."""
        try:
            push(self._folder.path, name, pieces)
        except SpecError as error:
            self.log(f"{name} was not fetched: {error.problem}")
        except Exception as error:
            if is_full(error):
                raise
            # A missing output file does not fail the run.
            self.log(f"{name} was not fetched: {type(error).__name__}")

    def finish(self, outcome: Outcome) -> None:
        """Write the final status."""
        for task, line in self._lines.flush():
            self._show(task, line)
        self._outcome = outcome
        self._folder.release()
        self._folder.append_event("outcome", **asdict(outcome))
        status = self.status()
        with self._folder.tolerated():
            self._folder.write_status(status)
        self._callbacks.finished(status)
        with self._folder.tolerated():
            self._folder.summary.write_text(json.dumps(self.summary()) + "\n", encoding="utf-8")

    def status(self) -> Status:
        """Current status of the run."""
        slowest = max(self._progress.values(), key=lambda each: each.idle_share)
        shown = self._progress[self._first]
        known = [each for each in self._progress.values() if each.num_batches]
        error = None
        if self._outcome is not None and self._outcome.problem:
            error = Failure(problem=self._outcome.problem, remedy=self._outcome.remedy)
        epoch = shown.figures.get("epoch", 0)
        return Status(
            run_id=self._folder.run_id,
            state=self._run_state(),
            since_s=self._history.since_s,
            updated_s=time.time(),
            job=self._plan.job.name,
            attempt=self._attempt,
            restarts=self._history.num_restarts,
            last_decision=self._history.last_decision,
            iterations=min(self._iterations.get(task, -1) for task in self._progress) + 1,
            epoch=epoch if isinstance(epoch, int) and epoch >= 0 else 0,
            figures=shown.figures,
            samples_per_s=sum(each.samples_per_s for each in known) if known else None,
            idle_share=sum(each.idle_share for each in known) / len(known) if known else None,
            waits_for="" if slowest.waits_for == "nothing" else slowest.waits_for,
            epoch_bytes=self._epoch_bytes(shown.num_batches),
            cache_hit_rate=self._cache_hit_rate(),
            machines=tuple(
                self._machine(slot) for slot in self._slots if slot.task.role is Role.STORE
            ),
            tasks=tuple(self._task(slot) for slot in self._slots),
            error=error,
        )

    def _epoch_bytes(self, num_batches: int) -> dict[str, float]:
        """Bytes between machines per epoch of so many batches, from the traces so far."""
        work = self._history.work
        num_steps = work.steps.get(self._first, 0)
        if not num_steps or not num_batches:
            return {}
        scale = num_batches / num_steps
        return {kind: round(scale * num) for kind, num in sorted(work.remote_bytes.items())}

    def _cache_hit_rate(self) -> float | None:
        hits, misses = self._history.work.cached_rows
        return float(hits / (hits + misses)) if hits + misses else None

    def _run_state(self) -> RunState:
        outcome, state = self._outcome, self._state
        if outcome is not None:
            if outcome.is_interrupted:
                return RunState.INTERRUPTED
            return RunState.DONE if outcome.is_success else RunState.FAILED
        if state is None or state.phase not in (Phase.RUNNING, Phase.STOPPING, Phase.ENDED):
            return RunState.STARTING
        return RunState.RUNNING if state.phase is Phase.RUNNING else RunState.STOPPING

    def _machine(self, slot: TaskPlacement) -> MachineStatus:
        rates = self._rates.get(slot.task.name)
        return MachineStatus(
            name=slot.task.machine,
            address=slot.node.address,
            nic_in_bytes_per_s=None if rates is None else rates[0],
            nic_out_bytes_per_s=None if rates is None else rates[1],
        )

    def _task(self, slot: TaskPlacement) -> TaskStatus:
        name, state = slot.task.name, self._state
        seen = self._seen.get(name, ActorState())
        stage = _STAGES[state.stages[name]] if state is not None else TaskState.WAITING
        if self._outcome is not None and stage is not TaskState.LOST:
            # Tasks that did not stop in time were killed with their actor.
            stage = TaskState.ENDED
        if stage is TaskState.READY and seen.pid is not None:
            stage = TaskState.RUNNING
        progress = self._progress.get(name)
        waits = "" if state is None else state.waits.get(name, "")
        if progress is not None and progress.waits_for != "nothing":
            waits = progress.waits_for
        return TaskStatus(
            name=name,
            role=slot.task.role,
            machine=slot.task.machine,
            state=stage,
            pid=seen.pid,
            waits_for=waits,
            iteration=self._iterations.get(name),
            busy_share=self._busy.get(name),
            rss_bytes=seen.rss_bytes,
            peak_bytes=self._peaks.get(name),
        )

    def _record(self, message: Message) -> None:
        """Write a message of the first trainer, if it belongs in the run folder."""
        if isinstance(message, Report):
            num = self._iterations.get(self._first, -1) + 1
            self._folder.append_report(message.figures, iterations=num)
            self._callbacks.reported(message.figures)
        if isinstance(message, BatchSizeRequest | CheckpointWrite | Resumed):
            self._folder.append_event(**encode(message))
        if isinstance(message, CheckpointWrite) and message.problem is not None:
            self.log(f"the checkpoint of iteration {message.iteration} {message.problem}")
        if isinstance(message, Resumed):
            where = f"epoch {message.epoch}, batch {message.batch}"
            self.log(f"resumed at iteration {message.iteration} ({where})")
            if message.is_over:
                self.log("all epochs of the script were completed before: nothing is left to do")
            elif message.deals_anew:
                self.log("the seed assignment has changed, so batches differ from before")

    def _record_work(self, task: str, data: bytes) -> None:
        """Update iteration and busy share of a task from its latest records."""
        # The first line may be incomplete.
        latest = read_records(data[-_TAIL_BYTES:].splitlines())
        records = [record[2:5] for record in latest if record[:2] == ["exec", task]]
        if records:
            first, last = records[0], records[-1]
            self._iterations[task] = int(last[0])
            busy_s = sum(end_s - start_s for _, start_s, end_s in records)
            self._busy[task] = min(1.0, busy_s / max(last[2] - first[1], 1e-9))

    def _record_nic(self, task: str, in_bytes: int, out_bytes: int) -> None:
        now_s = time.monotonic()
        before = self._nics.get(task)
        if before is not None and now_s - before[0] < _WRITE_INTERVAL_S / 2:
            return
        if before is not None:
            passed_s = now_s - before[0]
            self._rates[task] = (
                max(in_bytes - before[1], 0) / passed_s,
                max(out_bytes - before[2], 0) / passed_s,
            )
        self._nics[task] = (now_s, in_bytes, out_bytes)

    def _show(self, task: str, line: bytes) -> None:
        text = line.decode(errors="replace")
        self._watcher.show(text if len(self._progress) == 1 else f"{task}: {text}")


def _line_of(state: Lifecycle) -> str:
    """Description of a phase for the user."""
    num = {role: len(state.of_role(role)) for role in Role}
    problem = "" if state.outcome is None else state.outcome.problem
    lines = {
        Phase.PLACING: f"placing {len(state.tasks)} tasks",
        Phase.SHIPPING: "all tasks are placed; locating the graph on every machine",
        Phase.STORES: f"starting {num[Role.STORE]} stores",
        Phase.SAMPLERS: f"preparing {num[Role.SAMPLER]} samplers",
        Phase.SERVERS: f"starting {num[Role.SERVER]} parameter servers",
        Phase.TRAINERS: f"starting {num[Role.TRAINER]} trainers",
        Phase.RUNNING: "running",
        Phase.STOPPING: f"stopping: {problem[:_PROBLEM_CHARS]}" if problem else "stopping",
        Phase.ENDED: "ended",
    }
    return lines[state.phase]
