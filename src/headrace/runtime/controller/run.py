"""Runs a plan on a Ray cluster (`headrace run --plan`)."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headrace.core.errors import RunError, SpecError
from headrace.core.plan import Plan
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.observability.trace_file import save_trace
from headrace.planner.replan import replan
from headrace.policies.lifecycle.events import Outcome, Task
from headrace.policies.recovery.deciding import Recovery
from headrace.policies.recovery.events import Decision, Limits
from headrace.profiling.trace_assembly import read_offsets, trace_of_folder
from headrace.runtime.callbacks.base import RunCallback, RunWatcher
from headrace.runtime.callbacks.drift_monitor import DriftMonitor
from headrace.runtime.callbacks.log_file import LOG, LogFile
from headrace.runtime.callbacks.metrics import RaySink, RunMetrics
from headrace.runtime.callbacks.status_writer import RunHistory, StatusWriter
from headrace.runtime.callbacks.trackers import check_trackers, make_tracking, settings_of
from headrace.runtime.cluster import connection
from headrace.runtime.cluster.discovery import measure_peaks
from headrace.runtime.cluster.nodes import Node, check_resources
from headrace.runtime.cluster.placement_group import slots_of
from headrace.runtime.cluster.prometheus import endpoint_here
from headrace.runtime.controller.code_archive import Script, pack
from headrace.runtime.controller.controller import Controller
from headrace.runtime.controller.failure_handling import FailureHandler
from headrace.runtime.controller.graph_shipping import wanted_files
from headrace.runtime.controller.machines import AvailableMachines, run_attempts
from headrace.runtime.controller.signals import Interruption, signals_set
from headrace.runtime.controller.task_configs import RETRY_BUDGET_S, TaskConfigs
from headrace.runtime.controller.worker_group import WorkerGroup
from headrace.runtime.protocol.parameter_check import ParameterCheck
from headrace.runtime.run_dir.run_config import RunFile, Traffic
from headrace.runtime.run_dir.run_dir import RunDirectory, runs_folder
from headrace.runtime.traffic.coordinator import control_of
from headrace.training.checkpoint_files import newest_whole

TRACE = "trace.npz"
"""Trace of all tasks, in the run folder."""


@dataclass(frozen=True)
class ClusterRun:
    """Settings of a run on a cluster.

    Attributes:
        plan: The plan.
        graph: Directory of the partitioned graph, one partition per machine of the plan.
        script: Python training script.
        arguments: Arguments of the script.
        address: Ray address; None for `RAY_ADDRESS`, else the local cluster.
        config: The user's config of the script.
        name: Name of the run; the job's name if empty.
        runs: Folder of all runs; None for the default.
        tls: Whether connections between machines are encrypted.
        working_dir: Folder with the user's code; None for the script's folder.
        iterations: Number of iterations to run; None for all.
        pip: Requirements file of the script.
        cache: Folder for shipped graphs on every machine, in which `{machine}` is replaced by the
            machine's name; None for the default.
        checkpoint_every: Steps between checkpoints; 0 for none.
        resume: Folder of the run to resume from its newest complete checkpoint; None for a new run.
        max_restarts: Restarts of a task without a new checkpoint; 0 to stop at the first fault.
        elastic: Whether to run without missing machines of the plan and add them when they join.
        replan: Whether to replan and resume when the measured performance drifts from the plan.
        traffic: `plan` to enforce the plan's flow policy, which needs privileges on every machine;
            `none` to leave flows to the operating system.
        track: Experiment trackers: `tensorboard[:DIR]`, `mlflow[:URI]`.
        independent: Whether trainers may have different models; else their parameters are compared
            after the first steps.
        allow_nan: Whether losses and gradients may be infinite or NaN; else the run fails.
        follows_script: Whether the run stops if the script sets another batch size.
        files: Texts to write to the run folder, by name.
    """

    plan: Plan
    graph: Path
    script: Path
    arguments: tuple[str, ...] = ()
    address: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    runs: Path | None = None
    tls: bool = True
    working_dir: Path | None = None
    pip: Path | None = None
    iterations: int | None = None
    cache: str | None = None
    checkpoint_every: int = 0
    resume: Path | None = None
    max_restarts: int = 3
    elastic: bool = False
    replan: bool = False
    traffic: Traffic = "none"
    track: tuple[str, ...] = ()
    independent: bool = False
    allow_nan: bool = False
    follows_script: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


def resumed(folder: RunDirectory, **changes: Any) -> ClusterRun:
    """Settings to resume a run, from its run folder.

    Args:
        folder: The run folder.
        **changes: Overrides of `ClusterRun` fields; `config` is merged into the run's config.

    Raises:
        SpecError: A file in the folder is missing or invalid.
    """
    saved = RunFile.load(folder.path)
    try:
        plan = changes.pop("plan", None) or Plan.model_validate_json(folder.plan.read_bytes())
    except (OSError, ValueError):
        raise SpecError(
            f"{folder.plan} cannot be read as a plan", "give --plan with the plan of the run"
        ) from None
    fields = {name: getattr(saved, name) for name in type(saved).model_fields if name != "version"}
    config = {**saved.config, **changes.pop("config", {})}
    whole = {**fields, **changes, "config": config, "resume": folder.path}
    return ClusterRun(plan=plan, **whole)


def run_cluster(wanted: ClusterRun, watcher: RunWatcher) -> dict[str, Any]:
    """Run a plan; all started processes end with this call.

    Must be called from the main thread, which handles signals.

    Returns:
        Figures of the run: its folder, its duration, the start of each phase.

    Raises:
        SpecError: An input is invalid.
        MissingExtraError: Ray is not installed.
        RunError: A task did not start, failed or was lost; the message names it and its machine.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP, after all tasks have ended.
    """
    graph = check(wanted)
    code = pack(wanted.working_dir or wanted.script.parent, wanted.script, watcher.say)
    with ExitStack() as stack:
        interrupted = Interruption()
        stack.enter_context(signals_set(interrupted))
        ray = stack.enter_context(connected(wanted))
        # Set again: `ray.init` replaces the SIGTERM handler.
        stack.enter_context(signals_set(interrupted))
        machines = AvailableMachines(wanted.plan, ray.nodes)
        there = first_machines(wanted, machines)
        folder = stack.enter_context(_open(wanted))
        folder.plan.write_text(wanted.plan.to_text(indent=1), encoding="utf-8")
        _run_file(wanted).save(folder.path)
        for name, text in wanted.files.items():
            (folder.path / name).write_text(text, encoding="utf-8")
        run = _Run(wanted, graph, code, folder, watcher, machines, there, interrupted, ray)
        outcome = run_attempts(run.plan_for, run.handler, machines, run.attempt, interrupted)
        run.finish(outcome)
    if outcome.is_interrupted:
        if newest_whole(folder.checkpoints) is not None:
            place = "" if wanted.runs is None else f" --runs {shlex.quote(str(wanted.runs))}"
            watcher.say(f"to resume the run: headrace run --resume {folder.run_id}{place}")
        raise KeyboardInterrupt
    if not outcome.is_success:
        raise RunError(outcome.problem, outcome.remedy)
    return run.summary()


class _Run:
    """All attempts of a run."""

    def __init__(
        self,
        wanted: ClusterRun,
        graph: PartitionedGraph,
        code: bytes,
        folder: RunDirectory,
        watcher: RunWatcher,
        machines: AvailableMachines,
        there: frozenset[str],
        interrupted: Interruption,
        ray: Any,
    ) -> None:
        self._wanted, self._graph, self._folder, self._ray = wanted, graph, folder, ray
        self._watcher, self._machines, self._interrupted = watcher, machines, interrupted
        inside = (wanted.working_dir or wanted.script.parent).resolve()
        command = (str(wanted.script.resolve().relative_to(inside)), *wanted.arguments)
        self._script = Script(command, code)
        self._callbacks = callbacks_of(wanted, folder, watcher.say)
        self._history = RunHistory()
        self._recorder: StatusWriter | None = None
        self._traffic: list[dict[str, Any]] = []
        self._plan: Plan | None = None
        self._better: dict[frozenset[str], Plan] = {}
        newest = newest_whole(folder.checkpoints)
        state = Recovery(
            machines=there,
            limits=Limits.of(wanted.max_restarts),
            elastic=wanted.elastic,
            attempt=1 if wanted.resume is None else folder.read_status().attempt + 1,
            has_stepped=newest is not None,
            saved=None if newest is None else newest.sidecar.iteration,
        )
        self.handler = FailureHandler(state, self._decided)
        if wanted.resume is not None and newest is None:
            watcher.say("there is no complete checkpoint: the run starts from the beginning")

    def plan_for(self, machines: frozenset[str]) -> Plan:
        """The best known plan for these machines."""
        if len(machines) < self._wanted.plan.cluster.num_machines:
            self._watcher.say(f"planning for the {len(machines)} remaining machines")
        return self._better.get(machines) or replan(self._wanted.plan, machines)

    def attempt(self, plan: Plan) -> tuple[Outcome, tuple[Task, ...]]:
        """Run a plan once, from the newest checkpoint."""
        wanted, folder = self._wanted, self._folder
        nodes = self._machines.nodes(plan)
        check_resources(nodes, plan.placed, plan.job)
        number = self.handler.state.attempt
        if self._plan is not None and plan != self._plan:
            folder.set_aside(number - 1, self._plan.to_text(indent=1))
            if plan.cluster.num_machines == wanted.plan.cluster.num_machines:
                # A later resume uses this plan: its seed assignment is the same.
                folder.plan.write_text(plan.to_text(indent=1), encoding="utf-8")
        slots, self._plan = slots_of(plan, nodes), plan
        drift = self._watch_drift(plan, nodes) if wanted.replan else None
        callbacks = self._callbacks if drift is None else [*self._callbacks, drift]
        self._recorder = recorder = StatusWriter(
            folder, plan, slots, self._watcher, number, callbacks, self._history
        )
        task_configs = TaskConfigs(
            plan,
            nodes,
            self._graph,
            wanted.tls,
            wanted.config,
            wanted.iterations,
            wanted.checkpoint_every,
            newest_whole(folder.checkpoints),
            wanted.plan,
            RETRY_BUDGET_S if wanted.max_restarts else 0.0,
            wanted.allow_nan,
            wanted.follows_script,
        )
        traffic = control_of(plan, recorder.say) if wanted.traffic == "plan" else None
        worker_group = WorkerGroup(slots, f"{folder.run_id}-{number}", wanted.cache, traffic)
        controller = Controller(
            worker_group,
            task_configs,
            wanted_files(plan, self._graph),
            self._script,
            recorder,
            folder.checkpoints,
            self.handler,
            self._machines.there,
            drift,
            None if wanted.independent else ParameterCheck(),
        )
        outcome = controller.run(self._interrupted)
        if traffic is not None:
            self._traffic.append(traffic.figures())
            folder.append_event("traffic", **self._traffic[-1])
        return outcome, worker_group.tasks

    def finish(self, outcome: Outcome) -> None:
        """Write the final status and the trace."""
        assert self._recorder is not None
        assert self._plan is not None
        self._recorder.finish(outcome)
        trace = trace_of_folder(self._folder.path, self._plan)
        save_trace(trace, self._folder.path / TRACE)

    def summary(self) -> dict[str, Any]:
        """Figures of the run."""
        assert self._recorder is not None
        return {
            **self._recorder.summary(),
            "attempts": self.handler.state.attempt,
            "restarts": self.handler.state.num_restarts,
            "traffic": self._traffic,
        }

    def _decided(self, state: Recovery, decision: Decision) -> None:
        assert self._recorder is not None
        self._recorder.decided(state, decision)

    def _watch_drift(self, plan: Plan, nodes: Sequence[Node]) -> DriftMonitor:
        machines = frozenset(node.machine for node in nodes)

        def adopt(better: Plan) -> None:
            self._better[machines] = better

        def say(line: str) -> None:
            assert self._recorder is not None
            self._recorder.say(line)

        return DriftMonitor(
            plan,
            partial(measure_peaks, self._ray, nodes),
            lambda: read_offsets(self._folder.path),
            adopt,
            say,
            self._folder.append_event,
            self._wanted.iterations,
        )


def first_machines(wanted: ClusterRun, machines: AvailableMachines) -> frozenset[str]:
    """Check and return the machines of the first attempt."""
    there = machines.there()
    plan = replan(wanted.plan, there) if wanted.elastic else wanted.plan
    check_resources(machines.nodes(plan), plan.placed, plan.job)
    return there


def _open(wanted: ClusterRun) -> RunDirectory:
    if wanted.resume is not None:
        return RunDirectory(wanted.resume).reopen()
    return RunDirectory.create(runs_folder(wanted.runs), wanted.name or wanted.plan.job.name)


def _run_file(wanted: ClusterRun) -> RunFile:
    fields = {name: getattr(wanted, name) for name in RunFile.model_fields if name != "version"}
    for name in ("graph", "script", "working_dir", "pip"):
        fields[name] = None if fields[name] is None else fields[name].resolve()
    return RunFile(**fields)


def check(wanted: ClusterRun) -> PartitionedGraph:
    """Check all inputs and open the graph; raises SpecError if one is missing or invalid."""
    if not wanted.script.is_file():
        raise SpecError(f"there is no script {wanted.script}", "give a Python file")
    if wanted.pip is not None and not wanted.pip.is_file():
        raise SpecError(f"there is no file {wanted.pip}", "give --pip a requirements file")
    check_trackers(wanted.track)
    graph = open_graph(wanted.graph)
    num_parts = len(wanted.plan.part_machines)
    if graph.num_parts != num_parts:
        raise SpecError(
            f"the plan needs {num_parts} partitions, {wanted.graph} has {graph.num_parts}",
            f"partition the graph with `--parts {num_parts}`, or plan for "
            f"{graph.num_parts} machines",
        )
    return graph


def callbacks_of(
    wanted: ClusterRun, folder: RunDirectory, say: Callable[[str], None]
) -> list[RunCallback]:
    """Callbacks of a run: log file, Prometheus metrics and trackers."""
    plan = wanted.plan
    callbacks: list[RunCallback] = [LogFile(folder.path / LOG)]
    endpoint = endpoint_here()
    if endpoint is not None:
        folder.append_event("metrics", endpoint=endpoint)
        say(f"metrics at http://{endpoint}/metrics")
        callbacks.append(RunMetrics(RaySink(folder.run_id, plan.job.name)))
    if wanted.track:
        tracking = make_tracking(wanted.track, folder.path, plan.job.name, say)
        params = {
            "script": wanted.script.name,
            "arguments": " ".join(wanted.arguments),
            "machines": plan.cluster.num_machines,
            "trainers": plan.job.trainers,
            "batch_size": plan.job.batch_size,
        }
        tracking.start(folder.run_id, params | settings_of(wanted.config))
        callbacks.append(tracking)
    return callbacks


@contextmanager
def connected(wanted: ClusterRun) -> Iterator[Any]:
    """Connect to the Ray cluster; disconnect at the end."""
    environment = {} if wanted.pip is None else {"pip": str(wanted.pip.resolve())}
    options = {"runtime_env": environment or None, "namespace": "headrace"}
    with connection.connected(wanted.address, **options) as ray:
        yield ray
