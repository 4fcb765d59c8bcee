"""Profile, plan, run and report in one call: `headrace run --auto`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.api.cluster import discover_cluster
from headrace.api.graph import check_parts
from headrace.api.graph_plan import plan_with_graph
from headrace.api.plan import plan as make_plan
from headrace.api.plan import plan_summary
from headrace.api.profile import SIZES, compare, load_trace, profile_text, profile_trace
from headrace.api.report import FILE_NAME, report_on
from headrace.core.cluster import Cluster
from headrace.core.errors import HeadraceError, SpecError
from headrace.core.job import Job, Role
from headrace.core.plan import Plan, problem_of
from headrace.core.profile import Profile
from headrace.core.traffic import PLAIN
from headrace.core.units import format_seconds
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.observability.report.reading import read_lines
from headrace.runtime.controller.run import TRACE
from headrace.runtime.run_dir.run_config import RunConfig
from headrace.runtime.run_dir.run_dir import RunDirectory

PROFILED_ITERATIONS = 40
"""Iterations of the profiling run."""

BATCH_SIZE = 1024
"""Default maximum of seeds per trainer and iteration."""

BATCHES_PER_EPOCH = 20
"""Minimum iterations per epoch; a small training set gets a smaller batch size."""

PROFILE = "profile.yaml"
"""Profile file in the run directory."""

Log = Callable[[str], None]
Run = Callable[[RunConfig], dict[str, Any]]
"""Runs a plan and returns its summary."""


@dataclass(frozen=True)
class Loop:
    """Inputs of `run_loop`.

    Attributes:
        graph: Directory of the partitioned graph.
        run_of: Builds the run of a plan.
        address: Address of the Ray cluster.
        cluster: The machines; discovered from the Ray cluster if none.
        job: The job; `usual_job` if none.
        iterations: Number of iterations to profile.
    """

    graph: Path
    run_of: Callable[[Plan], RunConfig]
    address: str | None = None
    cluster: Cluster | None = None
    job: Job | None = None
    iterations: int = PROFILED_ITERATIONS


def run_loop(wanted: Loop, run: Run, log: Log) -> dict[str, Any]:
    """Profile a job, plan it with the measured profile, run the plan and report on the run.

    Each step logs a line. The run directory also gets `profile.yaml`, `plan.json` and
    `report.html`. Returns the summary of each step, by name.
    """
    graph = open_graph(wanted.graph)
    cluster = wanted.cluster or discover_cluster(wanted.address, lambda line: None).cluster
    where = "found on Ray" if wanted.cluster is None else "as given"
    log(f"cluster: {cluster.num_machines} machines, {where}")
    check_parts(graph, cluster)
    job = wanted.job or usual_job(cluster, graph)
    if wanted.job is None:
        log(
            f"job: {job.trainers} trainers with a sampler each, {job.batch_size} seeds per trainer "
            "and iteration unless the script has a batch_size; give --job to change it"
        )
    first = _first_plan(cluster, job)
    folder = _measure(wanted, first, run, follows_script=wanted.job is None)
    asked = _asked_batch_size(folder)
    if asked is not None:
        log(f"job: {asked} seeds per trainer and iteration, the script's batch_size")
        first = _first_plan(cluster, job.model_copy(update={"batch_size": asked}))
        folder = _measure(wanted, first, run)
    profile, profiled = _profile(wanted, first, folder)
    log(
        f"profile: {profiled['iterations']} iterations of a first plan took "
        f"{format_seconds(profiled['measured_iteration_time_s'])} each"
    )
    plan = plan_for(first, profile, graph)
    log(_plan_line(plan, profiled["predicted_iteration_time_s"]))
    files = {PROFILE: profile_text(plan.profile)}
    real = wanted.run_of(plan).model_copy(update={"files": files})
    summary = run(real)
    log(f"run: done in {format_seconds(summary['elapsed_s'])}, in {summary['folder']}")
    return {
        "cluster": cluster.model_dump(mode="json"),
        "job": plan.job.model_dump(mode="json"),
        "profile": profiled,
        "plan": plan_summary(plan),
        "run": summary,
        "report": _report(Path(summary["folder"]), log),
    }


def usual_job(cluster: Cluster, graph: PartitionedGraph) -> Job:
    """Default job: one trainer per GPU, or per machine without GPUs, with one sampler each."""
    cpus = [host.resources.get("cpu", 0.0) for host in cluster.hosts]
    num_gpus = int(sum(host.resources.get("gpu", 0.0) for host in cluster.hosts))
    # One core per trainer and per sampler, as far as available.
    most = int(sum(cpu // 1 for cpu in cpus)) // 2
    trainers = max(1, min(num_gpus or cluster.num_machines, most or cluster.num_machines))
    core = {"cpu": 1.0} if most else {}
    num_seeds = max((sum(node.splits.get("train", ())) for node in graph.manifest.nodes), default=0)
    batch_size = num_seeds // (trainers * BATCHES_PER_EPOCH)
    return Job(
        trainers=trainers,
        batch_size=max(1, min(BATCH_SIZE, batch_size)),
        demands={Role.TRAINER: core | ({"gpu": 1.0} if num_gpus else {}), Role.SAMPLER: core},
    )


def plan_for(first: Plan, profile: Profile, graph: PartitionedGraph) -> Plan:
    """Plan again with the profile measured in a run of the first plan.

    Graphs for link prediction may have too few training nodes to sample; their profiles are not
    completed.
    """
    problem = problem_of(first).with_profile(profile)
    with suppress(SpecError):
        return plan_with_graph(problem, graph, PLAIN, lambda each: make_plan(*each))
    return make_plan(*problem)


def _first_plan(cluster: Cluster, job: Job) -> Plan:
    """Plan of the profiling run."""
    return make_plan(cluster, job, method="colocate", policy="maxmin", seed_mix="local-first")


def _measure(wanted: Loop, first: Plan, run: Run, follows_script: bool = False) -> Path:
    """Run some iterations of a plan; returns the run directory."""
    base = wanted.run_of(first)
    changes = {
        "name": f"{base.name or first.job.name}-profile",
        "iterations": wanted.iterations,
        "sizes": SIZES,
        "checkpoint_every": 0,
        "replan": False,
        "track": (),
        "follows_script": follows_script,
    }
    return Path(run(base.model_copy(update=changes))["folder"])


def _asked_batch_size(folder: Path) -> int | None:
    """Batch size of the script, if the run ended because it differs from the plan's."""
    path = RunDirectory(folder).events
    events = read_lines(path.read_bytes()) if path.exists() else []
    sizes = (int(event["asked"]) for event in events if event["kind"] == "batch_size")
    return next(sizes, None)


def _profile(wanted: Loop, first: Plan, folder: Path) -> tuple[Profile, dict[str, Any]]:
    trace = load_trace(folder / TRACE)
    profile = profile_trace(trace, first)
    outlook = compare(trace, first, profile)
    return profile, {
        "folder": str(folder),
        "iterations": wanted.iterations,
        **outlook.summary(),
    }


def _plan_line(plan: Plan, first_s: float) -> str:
    what = f"plan: {plan.method}, policy {plan.policy}"
    if plan.predicted is None:
        return what
    time_s = plan.predicted.iteration_time_s
    saving = 1 - time_s / first_s if first_s > 0 else 0.0
    compared = f", {saving:.0%} less than the first plan" if saving >= 0.005 else ""
    return f"{what}: {format_seconds(time_s)} per iteration predicted{compared}"


def _report(folder: Path, log: Log) -> dict[str, Any] | None:
    """Write the report; a failure does not fail the run."""
    try:
        found = report_on(folder)
        page, _ = found.save(folder / FILE_NAME)
    except HeadraceError as error:
        log(f"report: none, {error.problem}")
        return None
    except Exception as error:
        # The run succeeded, so any failure of the report is only logged.
        log(f"report: none, {type(error).__name__}: {error}")
        return None
    log(f"report: {page}")
    return {"page": str(page), **found.summary()}
