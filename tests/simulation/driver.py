"""The driver of a simulated run: the real controller and recovery over virtual actors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.cluster import Cluster as ClusterFile
from headrace.core.cluster import Machine as MachineEntry
from headrace.core.errors import HeadraceError, SpecError
from headrace.core.job import Role
from headrace.core.trace import ClockOffset
from headrace.policies.lifecycle.events import Event, Outcome, Phase, Task
from headrace.policies.lifecycle.state import Lifecycle
from headrace.policies.recovery.deciding import Recovery
from headrace.policies.recovery.events import Decision, Limits, Resume
from headrace.runtime.callbacks.base import RunCallback
from headrace.runtime.cluster.nodes import Node
from headrace.runtime.cluster.placement_group import TaskPlacement
from headrace.runtime.controller.code_archive import Script
from headrace.runtime.controller.controller import Controller
from headrace.runtime.controller.failure_handling import FailureHandler
from headrace.runtime.controller.graph_shipping import WantedFiles
from headrace.runtime.controller.machines import AvailableMachines, run_attempts
from headrace.runtime.controller.signals import Interruption
from headrace.runtime.controller.task_configs import RETRY_BUDGET_S
from headrace.runtime.controller.worker_group import WorkerGroup
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.parameter_check import ParameterCheck
from headrace.runtime.protocol.trainer_messages import CheckpointWrite, Resumed
from headrace.training.checkpoint_files import Checkpoint, newest_whole
from tests.simulation.actors import VirtualActors
from tests.simulation.cluster import CallError
from tests.simulation.drift import Drifting, Expectation
from tests.simulation.training import Job
from tests.simulation.world import Process, World


@dataclass(frozen=True)
class Plan:
    """Where everything is: trainers go round the machines, from the machine `first` on."""

    cluster: ClusterFile
    num_trainers: int
    num_servers: int
    first: int = 0

    @classmethod
    def of(cls, names: Sequence[str], num_trainers: int, num_servers: int, first: int = 0) -> Plan:
        """The plan for these machines."""
        entries = tuple(MachineEntry(name=name, nic_in=1e9, nic_out=1e9) for name in names)
        return cls(ClusterFile(machines=entries), num_trainers, num_servers, first)

    def slots(self, nodes: Sequence[Node]) -> tuple[TaskPlacement, ...]:
        """Placements of all tasks."""
        named = [(Role.STORE, m, f"store{m}", m) for m in range(len(nodes))]
        named += [
            (Role.SAMPLER, w, f"sampler{w}.0", (self.first + w + 1) % len(nodes))
            for w in range(self.num_trainers)
        ]
        named += [
            (Role.TRAINER, w, f"trainer{w}", (self.first + w) % len(nodes))
            for w in range(self.num_trainers)
        ]
        named += [(Role.SERVER, p, f"ps{p}", p % len(nodes)) for p in range(self.num_servers)]
        return tuple(
            TaskPlacement(Task(name, role, nodes[m].machine), index, nodes[m], {"CPU": 1.0})
            for role, index, name, m in named
        )


class Configs:
    """Configs of all tasks: what simulated tasks need of them."""

    def __init__(self, plan: Plan, job: Job, resume: Checkpoint | None, limits: Limits) -> None:
        self._plan, self._job, self._resume, self._limits = plan, job, resume, limits
        self.ranks = {w: w for w in range(plan.num_trainers)}
        self.ports: dict[int, Mapping[int, int]] = {}

    def keys(self, machine: int) -> bytes:
        """No credentials."""
        return b""

    def set_folder(self, machine: int, folder: str) -> None:
        """Every machine has the graph."""

    def set_ports(self, machine: int, ports: Mapping[int, int]) -> None:
        """Record the ports of a store."""
        self.ports[machine] = ports

    def some_port(self, machine: int) -> int | None:
        """A port of a machine."""
        return next(iter(self.ports.get(machine, {}).values()), None)

    def set_server_port(self, server: int, port: int) -> None:
        """Record the port of a server."""

    def attached_ports(self, machine: int) -> None:
        """The run starts its stores."""
        return

    def store(self, machine: int) -> dict[str, Any]:
        """Fields of a store."""
        return {}

    def sampler(self, sampler: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fields of a sampler."""
        return {}, {}

    def server(self, server: int) -> dict[str, Any]:
        """Fields of a server."""
        return {}

    def trainer(self, trainer: int) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Fields of a trainer."""
        context = {
            "rank": self.ranks[trainer],
            "world_size": self._plan.num_trainers,
            "checkpoint_every": self._job.every,
            "samplers": [f"sampler{trainer}.0"],
            "assignment": "same",
            "retry_budget_s": RETRY_BUDGET_S if self._limits.restarts else 0.0,
        }
        return context, {}

    def resume(self) -> dict[str, bytes]:
        """Files of the checkpoint to resume from."""
        found = self._resume
        paths = () if found is None else (found.path, found.sidecar_path)
        return {path.name: path.read_bytes() for path in paths}

    def environment(self, trainer: int, port: int, gpus: Any) -> dict[str, str]:
        """Variables of torchrun."""
        return {"MASTER_PORT": str(port)}


class Recorder(RunCallback):
    """What the user sees of a run, and when."""

    def __init__(self, world: World, frozen_s: Callable[[float, float], float]) -> None:
        self._world, self._frozen_s = world, frozen_s
        self.lines: list[tuple[float, str]] = []
        self.longest_s, self.longest_at_s = 0.0, 0.0
        self.last_s = world.now_s
        self.phase: Phase | None = None
        self.decisions: list[str] = []
        self.phases: list[str] = []
        self.kept_files: dict[str, bytes] = {}
        self.was_collected: Callable[[Checkpoint], None] = lambda checkpoint: None
        self.begins_attempt: Callable[[], None] = lambda: None
        self.drifting: Drifting | None = None

    def sign(self) -> None:
        """The user has seen something."""
        gap_s = self._world.now_s - self.last_s - self._frozen_s(self.last_s, self._world.now_s)
        if gap_s > self.longest_s:
            self.longest_s, self.longest_at_s = gap_s, self.last_s
        self.last_s = self._world.now_s

    def log(self, line: str) -> None:
        self.lines.append((self._world.now_s, line))
        self.sign()

    def changed(self, state: Lifecycle, event: Event) -> None:
        if state.phase is not self.phase:
            self.phase = state.phase
            self.phases.append(state.phase.value)
            problem = "" if state.outcome is None else state.outcome.problem
            self.log(f"[{state.phase.value}] {problem}")

    def polled(self, task: str, state: ActorState) -> None:
        if task == "trainer0" and state.messages:
            self.sign()
        for message in state.messages:
            if isinstance(message, CheckpointWrite) and message.problem is not None:
                self.log(f"the checkpoint of iteration {message.iteration} {message.problem}")
            if isinstance(message, Resumed):
                self.log(f"resumed at iteration {message.iteration}")
        if self.drifting is not None:
            self.drifting.polled(task, state)

    def printed(self, task: str, data: bytes) -> None:
        if task.startswith("trainer"):
            self.sign()

    def decided(self, state: Recovery, decision: Decision) -> None:
        replans = isinstance(decision, Resume) and decision.replans
        self.decisions.append("Replan" if replans else type(decision).__name__)
        self.log(decision.line)

    def synchronised(self, offsets: Mapping[str, ClockOffset]) -> None:
        """Clock offsets were measured."""

    def collected(self, checkpoint: Checkpoint) -> None:
        self.was_collected(checkpoint)

    def kept(self, name: str, pieces: Iterator[bytes]) -> None:
        try:
            self.kept_files[name] = b"".join(pieces)
        except CallError as error:
            self.log(f"{name} was not fetched: {error}")


@dataclass(frozen=True)
class Settings:
    """How a run is recovered.

    Attributes:
        is_elastic: Whether machines that join are used.
        is_local: Whether everything is on one machine, without Ray.
        expectation: What the plan predicts; None if the run is not watched for drift.
    """

    limits: Limits
    is_elastic: bool = False
    is_local: bool = False
    expectation: Expectation | None = None


class Driver:
    """One driver: it starts or resumes a run, in as many attempts as it takes.

    Attributes:
        outcome: How the run ended; None if the driver was killed before.
    """

    def __init__(
        self,
        world: World,
        process: Process,
        system: VirtualActors,
        job: Job,
        plan: Plan,
        checkpoints: Path,
        recorder: Recorder,
        first_attempt: int,
        settings: Settings,
    ) -> None:
        self._world, self._process, self._system = world, process, system
        self._job, self._plan, self._checkpoints = job, plan, checkpoints
        self._recorder, self._first_attempt = recorder, first_attempt
        self._settings = settings
        self._better: dict[frozenset[str], int] = {}
        self.interrupted = Interruption()
        self.outcome: Outcome | None = None
        self.attempt_s = 0.0
        self.handler: FailureHandler | None = None
        self.controller: Controller | None = None

    def __call__(self) -> None:
        """Drive the run to its end."""
        try:
            self._run()
        except HeadraceError as error:
            # The user is told the same.
            self.outcome = Outcome(problem=error.problem, remedy=error.remedy)

    def _run(self) -> None:
        known: Any = self._plan
        machines = AvailableMachines(known, self._system.nodes)
        there = machines.there()
        newest = newest_whole(self._checkpoints)
        settings = self._settings
        state = Recovery(
            machines=there if settings.is_elastic else frozenset(self._names(self._plan)),
            limits=settings.limits,
            elastic=settings.is_elastic,
            needs_checkpoint=settings.is_local,
            attempt=self._first_attempt,
            has_stepped=newest is not None,
            saved=None if newest is None else newest.sidecar.iteration,
        )
        self.handler = FailureHandler(state, self._recorder.decided)

        def attempt(plan: Any) -> tuple[Outcome, tuple[Task, ...]]:
            return self._attempt(plan, machines)

        plan_for: Any = self._plan_for
        outcome = run_attempts(plan_for, self.handler, machines, attempt, self.interrupted)
        if self._recorder.drifting is not None:
            status: Any = None
            self._recorder.drifting.monitor.finished(status)
        self.outcome = outcome

    def _plan_for(self, machines: frozenset[str]) -> Plan:
        names = [name for name in self._names(self._plan) if name in machines]
        if not names:
            # As `replan` says it.
            raise SpecError("no machine of the plan is left", "restart at least one of them")
        first = self._better.get(machines, 0)
        return Plan.of(names, self._plan.num_trainers, self._plan.num_servers, first)

    @staticmethod
    def _names(plan: Plan) -> list[str]:
        return [host.name for host in plan.cluster.hosts]

    def _attempt(self, plan: Plan, machines: AvailableMachines) -> tuple[Outcome, tuple[Task, ...]]:
        assert self.handler is not None
        known: Any = plan
        self.attempt_s = self._world.now_s
        nodes = machines.nodes(known)
        slots = plan.slots(nodes)
        self._recorder.phase = None
        self._recorder.begins_attempt()
        configs: Any = Configs(
            plan, self._job, newest_whole(self._checkpoints), self._settings.limits
        )
        number = self.handler.state.attempt
        system: Any = self._system
        worker_group = WorkerGroup(system, slots, f"run-{number}")
        drifting = self._recorder.drifting = self._watch_drift(plan)
        files = [WantedFiles(Path("/parts"), "f", {}, {}) for _ in nodes]
        self.controller = Controller(
            worker_group,
            configs,
            files,
            Script(("train.py",), b""),
            self._recorder,
            self._checkpoints,
            self.handler,
            machines.there,
            None if drifting is None else drifting.monitor,
            ParameterCheck(),
        )
        outcome = self.controller.run(self.interrupted)
        return outcome, worker_group.tasks

    def _watch_drift(self, plan: Plan) -> Drifting | None:
        expectation = self._settings.expectation
        if expectation is None:
            return None

        def adopt() -> None:
            self._better[frozenset(self._names(plan))] = plan.first + 1

        return Drifting(self._world, plan, expectation, adopt, self._recorder.log)
