"""Runs a plan on a Ray cluster, or a script on this machine (`headrace run`)."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from headrace.core.errors import HeadraceError, RunError, SpecError
from headrace.core.job import JobKind, Role
from headrace.core.plan import Plan
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.observability.trace_file import save_trace
from headrace.planner.replan import replan
from headrace.policies.lifecycle.events import Ended, Outcome, Task
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
from headrace.runtime.cluster.actor_system import ActorSystem, RayActors
from headrace.runtime.cluster.discovery import measure_peaks
from headrace.runtime.cluster.head import Head
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.cluster.nodes import Node, check_resources, memory_warnings, reserving
from headrace.runtime.cluster.placement_group import slots_of
from headrace.runtime.controller.code_archive import Script, pack
from headrace.runtime.controller.controller import Controller
from headrace.runtime.controller.failure_handling import FailureHandler, shell_code
from headrace.runtime.controller.graph_shipping import WantedFiles, wanted_files
from headrace.runtime.controller.machines import AvailableMachines, run_attempts
from headrace.runtime.controller.signals import Interruption, signals_set
from headrace.runtime.controller.task_configs import TaskConfigs
from headrace.runtime.controller.worker_group import WorkerGroup
from headrace.runtime.protocol.parameter_check import ParameterCheck
from headrace.runtime.run_dir.attached_stores import AttachedStores, serving_state
from headrace.runtime.run_dir.run_config import RunConfig
from headrace.runtime.run_dir.run_dir import RunDirectory, runs_folder
from headrace.runtime.run_dir.status import Failure, RunState
from headrace.runtime.run_dir.store_set import StoreSet
from headrace.runtime.traffic.coordinator import control_of
from headrace.runtime.workers.graph_cache import fingerprint_of
from headrace.training.checkpoint_files import newest_whole

TRACE = "trace.npz"
"""Trace of all tasks, in the run folder."""


def run_job(config: RunConfig, watcher: RunWatcher) -> dict[str, Any]:
    """Run a plan or a script; all started processes end with this call.

    Must be called from the main thread, which handles signals.

    Returns:
        Figures of the run: its folder, its duration, the start of each phase.

    Raises:
        SpecError: An input is invalid.
        MissingExtraError: Ray is not installed.
        RunError: A task did not start, failed or was lost; the message names it and its machine.
            In a local run its exit code is that of the script.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP, after all tasks have ended.
    """
    graph = check(config)
    store_set = None if config.store_set is None else StoreSet(config.store_set)
    script = script_of(config, watcher.log)
    with ExitStack() as stack:
        interrupted = Interruption()
        stack.enter_context(signals_set(interrupted))
        system = stack.enter_context(connected(config))
        # Set again: `ray.init` replaces the SIGTERM handler.
        stack.enter_context(signals_set(interrupted))
        machines = AvailableMachines(config.plan, system.nodes)
        there = first_machines(config, machines)
        folder = stack.enter_context(_open(config))
        if store_set is not None:
            stack.enter_context(store_set.used_by(folder.run_id))
        folder.plan.write_text(config.plan.to_text(indent=1), encoding="utf-8")
        config.settings.save(folder.path)
        for name, text in config.files.items():
            (folder.path / name).write_text(text, encoding="utf-8")
        run = _Run(config, graph, script, folder, watcher, machines, there, interrupted, system)
        try:
            outcome = run_attempts(run.plan_for, run.handler, machines, run.attempt, interrupted)
        except Exception as failure:
            run.finish(_outcome_of(failure))
            raise
        run.finish(outcome)
    if outcome.is_interrupted:
        if newest_whole(folder.checkpoints) is not None:
            place = "" if config.runs is None else f" --runs {shlex.quote(str(config.runs))}"
            watcher.log(f"to resume the run: headrace run --resume {folder.run_id}{place}")
        raise KeyboardInterrupt
    if not outcome.is_success:
        error = RunError(outcome.problem, outcome.remedy)
        fault = outcome.fault
        if config.is_local and isinstance(fault, Ended) and fault.task == "trainer0":
            error.exit_code = shell_code(fault) or error.exit_code
        raise error
    return run.summary()


class _Run:
    """All attempts of a run."""

    def __init__(
        self,
        config: RunConfig,
        graph: PartitionedGraph | None,
        script: Script,
        folder: RunDirectory,
        watcher: RunWatcher,
        machines: AvailableMachines,
        there: frozenset[str],
        interrupted: Interruption,
        system: ActorSystem,
    ) -> None:
        self._config, self._graph, self._folder, self._system = config, graph, folder, system
        self._watcher, self._machines, self._interrupted = watcher, machines, interrupted
        self._script = script
        self._callbacks = callbacks_of(config, system, folder, watcher.log)
        self._history = RunHistory()
        self._recorder: StatusWriter | None = None
        self._traffic: list[dict[str, Any]] = []
        self._plan: Plan | None = None
        self._better: dict[frozenset[str], Plan] = {}
        newest = newest_whole(folder.checkpoints)
        state = Recovery(
            machines=there,
            limits=Limits.of(config.max_restarts),
            elastic=config.elastic,
            attempt=1 if config.resume is None else folder.read_status().attempt + 1,
            needs_checkpoint=config.is_local,
            has_stepped=newest is not None,
            saved=None if newest is None else newest.sidecar.iteration,
        )
        self.handler = FailureHandler(state, self._decided)
        if config.resume is not None and newest is None:
            watcher.log("there is no complete checkpoint: the run starts from the beginning")

    def plan_for(self, machines: frozenset[str]) -> Plan:
        """The best known plan for these machines."""
        if len(machines) < self._config.plan.cluster.num_machines:
            if self._config.store_set is not None:
                raise RunError(
                    "graph partitions of running stores do not move to other machines",
                    "resume the run when the machine is back, or without --stores",
                )
            self._watcher.log(f"planning for the {len(machines)} remaining machines")
        return self._better.get(machines) or replan(self._config.plan, machines)

    def attempt(self, plan: Plan) -> tuple[Outcome, tuple[Task, ...]]:
        """Run a plan once, from the newest checkpoint."""
        config, folder = self._config, self._folder
        nodes = self._machines.nodes(plan)
        check_resources(nodes, plan.placed, reserving(plan))
        number = self.handler.state.attempt
        if self._plan is not None and plan != self._plan:
            folder.set_aside(number - 1, self._plan.to_text(indent=1))
            if plan.cluster.num_machines == config.plan.cluster.num_machines:
                # A later resume uses this plan: its seed assignment is the same.
                folder.plan.write_text(plan.to_text(indent=1), encoding="utf-8")
        attached = attached_stores(config, plan, nodes)
        slots, self._plan = slots_of(plan, nodes, starts_stores=attached is None), plan
        if config.is_local and not config.num_samplers:
            slots = tuple(slot for slot in slots if slot.task.role is not Role.SAMPLER)
        drift = self._watch_drift(plan, nodes) if config.replan else None
        callbacks = self._callbacks if drift is None else [*self._callbacks, drift]
        self._recorder = recorder = StatusWriter(
            folder, plan, slots, self._watcher, number, callbacks, self._history
        )
        for line in memory_warnings(nodes, plan):
            recorder.log(line)
        resume = newest_whole(folder.checkpoints)
        task_configs = TaskConfigs(config, plan, nodes, self._graph, resume, attached)
        files: Sequence[WantedFiles] = ()
        if self._graph is not None and attached is None:
            if config.is_local:
                task_configs.set_folder(0, str(self._graph.folder.resolve()))
            else:
                files = wanted_files(self._graph, plan.part_machines, plan.cluster.num_machines)
        traffic = control_of(plan, recorder.log) if config.traffic == "plan" else None
        worker_group = WorkerGroup(
            self._system, slots, f"{folder.run_id}-{number}", config.cache, traffic
        )
        controller = Controller(
            worker_group,
            task_configs,
            files,
            self._script,
            recorder,
            folder.checkpoints,
            self.handler,
            self._machines.there,
            drift,
            None if config.independent else ParameterCheck(),
            attached,
        )
        outcome = controller.run(self._interrupted)
        if traffic is not None:
            self._traffic.append(traffic.figures())
            folder.append_event("traffic", **self._traffic[-1])
        return outcome, worker_group.tasks

    def finish(self, outcome: Outcome) -> None:
        """Write the final status and the trace."""
        if self._recorder is None or self._plan is None:
            # No attempt has begun.
            error = Failure(problem=outcome.problem, remedy=outcome.remedy)
            changes = {"state": RunState.FAILED, "error": error, "updated_s": time.time()}
            with self._folder.tolerated():
                self._folder.write_status(self._folder.read_status().model_copy(update=changes))
            return
        self._recorder.finish(outcome)
        with self._folder.tolerated():
            trace = trace_of_folder(self._folder.path, self._plan)
            save_trace(trace, self._folder.path / TRACE)
        if self._folder.problem:
            self._watcher.log(f"there is no {TRACE}: {self._folder.problem}")

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

        def log(line: str) -> None:
            assert self._recorder is not None
            self._recorder.log(line)

        return DriftMonitor(
            plan,
            partial(measure_peaks, nodes),
            lambda: read_offsets(self._folder.path),
            adopt,
            log,
            self._folder.append_event,
            self._config.iterations,
        )


def _outcome_of(error: Exception) -> Outcome:
    """Outcome of a run that an error of this process has ended."""
    if isinstance(error, HeadraceError):
        return Outcome(problem=error.problem, remedy=error.remedy)
    return Outcome(problem=f"{type(error).__name__}: {error}", remedy="see the driver's output")


def first_machines(config: RunConfig, machines: AvailableMachines) -> frozenset[str]:
    """Check and return the machines of the first attempt."""
    there = machines.there()
    plan = replan(config.plan, there) if config.elastic else config.plan
    check_resources(machines.nodes(plan), plan.placed, reserving(plan))
    return there


def _open(config: RunConfig) -> RunDirectory:
    if config.resume is not None:
        return RunDirectory(config.resume).reopen()
    return RunDirectory.create(runs_folder(config.runs), config.name or config.plan.job.name)


def check(config: RunConfig) -> PartitionedGraph | None:
    """Check all inputs and open the graph; raises SpecError if one is missing or invalid."""
    if not config.script.is_file():
        raise SpecError(f"there is no script {config.script}", "give a Python file")
    if config.pip is not None and not config.pip.is_file():
        raise SpecError(f"there is no file {config.pip}", "give --pip a requirements file")
    check_trackers(config.track)
    if config.is_local and (config.elastic or config.replan or config.traffic == "plan"):
        raise SpecError(
            "a run on one machine has no --elastic, --replan or --traffic plan", "omit them"
        )
    if config.replan and config.plan.job.kind is JobKind.FULL_GRAPH:
        raise SpecError("parts of a full graph are not moved during a run", "omit --replan")
    if config.store_set is not None:
        check_store_set(config)
    if config.graph is None:
        return None
    graph = open_graph(config.graph)
    num_parts = len(config.plan.part_machines)
    if graph.num_parts != num_parts:
        raise SpecError(
            f"the plan needs {num_parts} partitions, {config.graph} has {graph.num_parts}",
            f"partition the graph with `--parts {num_parts}`, or plan for "
            f"{graph.num_parts} machines",
        )
    traffic = config.plan.profile.traffic
    if traffic is not None and traffic.features not in (None, *graph.feature_forms):
        raise SpecError(
            f"the plan needs {traffic.features} features, {config.graph} has "
            f"{' and '.join(graph.feature_forms) or 'none'}",
            f"partition the graph with `--features {traffic.features}`, or plan with "
            "`--traffic exact`",
        )
    return graph


def check_store_set(config: RunConfig) -> None:
    """Check that running stores serve the graph of a run; raises SpecError if they do not."""
    assert config.store_set is not None
    store_set = StoreSet(config.store_set)
    state = serving_state(store_set)
    if config.graph is None or fingerprint_of(config.graph) != state.graph_fingerprint:
        raise SpecError(
            f"the stores {state.name} serve the graph that {state.graph} had when they were "
            f"started, not {config.graph}",
            f"start stores for this graph: headrace stores up --graph {config.graph} --name NAME",
        )
    if state.is_local != config.is_local:
        raise SpecError(
            f"the stores {state.name} run {'without' if state.is_local else 'on'} Ray",
            f"run {'with' if state.is_local else 'without'} --local, or start other stores",
        )
    if state.tls != config.tls:
        raise SpecError(
            f"connections to the stores {state.name} are {'' if state.tls else 'not '}encrypted",
            "use the same setting for the run",
        )
    if config.elastic or config.replan or config.traffic == "plan":
        raise SpecError(
            "a run that uses running stores has no --elastic, --replan or --traffic plan",
            "omit them, or omit --stores",
        )


def attached_stores(config: RunConfig, plan: Plan, nodes: Sequence[Node]) -> AttachedStores | None:
    """The running stores that a run uses; None if it starts its own."""
    if config.store_set is None:
        return None
    store_set = StoreSet(config.store_set)
    machines = [(node.machine, node.address) for node in nodes]
    return AttachedStores(store_set, serving_state(store_set), machines, plan.part_machines)


def callbacks_of(
    config: RunConfig, system: ActorSystem, folder: RunDirectory, log: Callable[[str], None]
) -> list[RunCallback]:
    """Callbacks of a run: log file, Prometheus metrics and trackers."""
    plan = config.plan
    callbacks: list[RunCallback] = [LogFile(folder.path / LOG, append=folder.append)]
    endpoint = system.metrics_endpoint
    if endpoint is not None:
        folder.append_event("metrics", endpoint=endpoint)
        log(f"metrics at http://{endpoint}/metrics")
        callbacks.append(RunMetrics(RaySink(folder.run_id, plan.job.name)))
    if config.track:
        tracking = make_tracking(config.track, folder.path, plan.job.name, log)
        params = {
            "script": config.script.name,
            "arguments": " ".join(config.arguments),
            "machines": plan.cluster.num_machines,
            "trainers": plan.job.trainers,
        }
        if not config.is_local:
            params["batch_size"] = plan.job.batch_size
        tracking.start(folder.run_id, params | settings_of(config.config))
        callbacks.append(tracking)
    return callbacks


@contextmanager
def connected(config: RunConfig) -> Iterator[ActorSystem]:
    """Connect to the Ray cluster of a run, if it needs one; disconnect at the end."""
    if config.is_local:
        system = LocalActors(config.plan.cluster.hosts[0].name)
        try:
            yield system
        finally:
            system.close()
        return
    environment = {} if config.pip is None else {"pip": str(config.pip.resolve())}
    options = {"runtime_env": environment or None, "namespace": "headrace"}
    with connection.connected(config.address, **options) as ray:
        head = Head(ray.get_runtime_context().gcs_address)
        try:
            yield RayActors(head)
        finally:
            head.close()


def script_of(config: RunConfig, log: Callable[[str], None]) -> Script:
    """The script and its code; a local run uses the files of this machine."""
    folder = config.working_dir or config.script.parent
    if config.is_local:
        return Script((str(config.script), *config.arguments), None, folder)
    code = pack(folder, config.script, log)
    inside = config.script.resolve().relative_to(folder.resolve())
    return Script((str(inside), *config.arguments), code)
