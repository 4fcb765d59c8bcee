"""The whole loop: profile a job, plan it, run it, look back; what `headrace run --auto` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.api.cluster import discover_cluster
from headrace.api.plan import plan as make_plan
from headrace.api.plan import plan_summary
from headrace.api.profile import compare, load_trace, profile_text, profile_trace
from headrace.api.report import FILE_NAME, report_on
from headrace.core.cluster import Cluster
from headrace.core.errors import HeadraceError, SpecError
from headrace.core.job import Job, Role
from headrace.core.plan import Plan
from headrace.core.profile import Profile
from headrace.core.units import format_seconds
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.observability.report.reading import read_lines
from headrace.runtime.controller.run import TRACE, ClusterRun
from headrace.runtime.run_dir.run_dir import RunDirectory

PROFILED_ITERATIONS = 40
"""Of the run that is measured to plan the real one."""

BATCH_SIZE = 1024
"""Seeds per trainer and iteration where nobody says it, if the training set is large enough ..."""

BATCHES_PER_EPOCH = 20
"""... for so many iterations per epoch."""

PROFILE = "profile.yaml"
"""In the folder of the run: what was measured before it."""

Say = Callable[[str], None]
Run = Callable[[ClusterRun], dict[str, Any]]
"""Runs a plan; its figures."""


@dataclass(frozen=True)
class Loop:
    """What to train.

    Attributes:
        graph: Directory of the partitioned graph.
        run_of: How a plan is to be run.
        address: Of the Ray cluster.
        cluster: The machines; none to look for those of the Ray cluster.
        job: The job; none for `usual_job`.
        iterations: How many to profile.
    """

    graph: Path
    run_of: Callable[[Plan], ClusterRun]
    address: str | None = None
    cluster: Cluster | None = None
    job: Job | None = None
    iterations: int = PROFILED_ITERATIONS


def run_loop(wanted: Loop, run: Run, say: Say) -> dict[str, Any]:
    """Profile a job, plan it for what was measured, run the plan, and report on the run.

    Every step says a line. The run's folder has all files: `profile.yaml`, `plan.json`,
    `report.html` beside those of any run.

    Args:
        wanted: What to train.
        run: Runs a plan and shows the run.
        say: Told what each step has found.

    Returns:
        Figures of each step, by its name.

    Raises:
        HeadraceError: A step cannot be done.
    """
    graph = open_graph(wanted.graph)
    cluster = wanted.cluster or discover_cluster(wanted.address, lambda line: None).cluster
    where = "found on Ray" if wanted.cluster is None else "as given"
    say(f"cluster: {cluster.num_machines} machines, {where}")
    check_parts(graph, cluster)
    job = wanted.job or usual_job(cluster, graph)
    if wanted.job is None:
        say(
            f"job: {job.trainers} trainers with a sampler each, {job.batch_size} seeds per trainer "
            "and iteration unless the script has a batch_size; give --job to change it"
        )
    first = _first_plan(cluster, job)
    folder = _measure(wanted, first, run, follows_script=wanted.job is None)
    asked = _asked_batch_size(folder)
    if asked is not None:
        say(f"job: {asked} seeds per trainer and iteration, the script's batch_size")
        first = _first_plan(cluster, job.model_copy(update={"batch_size": asked}))
        folder = _measure(wanted, first, run)
    profile, profiled = _profile(wanted, first, folder)
    say(
        f"profile: {profiled['iterations']} iterations of a first plan took "
        f"{format_seconds(profiled['measured_iteration_time_s'])} each"
    )
    plan = plan_for(first, profile)
    say(_plan_line(plan, profiled["predicted_iteration_time_s"]))
    real = replace(wanted.run_of(plan), files={PROFILE: profile_text(profile)})
    summary = run(real)
    say(f"run: done in {format_seconds(summary['elapsed_s'])}, in {summary['folder']}")
    return {
        "cluster": cluster.model_dump(mode="json"),
        "job": plan.job.model_dump(mode="json"),
        "profile": profiled,
        "plan": plan_summary(plan),
        "run": summary,
        "report": _report(Path(summary["folder"]), say),
    }


def check_parts(graph: PartitionedGraph, cluster: Cluster) -> None:
    """See that every machine has a part.

    Raises:
        SpecError: There are more or fewer parts.
    """
    if graph.num_parts != cluster.num_machines:
        raise SpecError(
            f"there are {cluster.num_machines} machines, and the graph has {graph.num_parts} parts",
            f"partition it with `--parts {cluster.num_machines}`, or give --cluster, a file with "
            f"{graph.num_parts} of the machines",
        )


def usual_job(cluster: Cluster, graph: PartitionedGraph) -> Job:
    """A job that suits most: a trainer per GPU, or per machine without any, with a sampler each.

    Args:
        cluster: The machines.
        graph: What it trains on.
    """
    cpus = [host.resources.get("cpu", 0.0) for host in cluster.hosts]
    num_gpus = int(sum(host.resources.get("gpu", 0.0) for host in cluster.hosts))
    # Each trainer and each sampler has a core, as far as there are any.
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


def plan_for(first: Plan, profile: Profile) -> Plan:
    """The best plan for what a run of the first one was measured to do."""
    job = first.job
    if profile.model_bytes is not None:
        job = job.model_copy(update={"model_bytes": profile.model_bytes})
    return make_plan(first.cluster, job, profile)


def _first_plan(cluster: Cluster, job: Job) -> Plan:
    """What is run to be measured."""
    return make_plan(cluster, job, method="colocate", policy="maxmin", seed_mix="local-first")


def _measure(wanted: Loop, first: Plan, run: Run, follows_script: bool = False) -> Path:
    """Run some iterations of a plan; the run's folder."""
    base = wanted.run_of(first)
    short = replace(
        base,
        name=f"{base.name or first.job.name}-profile",
        iterations=wanted.iterations,
        checkpoint_every=0,
        replan=False,
        track=(),
        follows_script=follows_script,
    )
    return Path(run(short)["folder"])


def _asked_batch_size(folder: Path) -> int | None:
    """The script's batch size, if a run ended because the plan had another one."""
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


def _report(folder: Path, say: Say) -> dict[str, Any] | None:
    """Look back at the run; that this fails takes nothing from it."""
    try:
        found = report_on(folder)
        page, _ = found.save(folder / FILE_NAME)
    except HeadraceError as error:
        say(f"report: none, {error.problem}")
        return None
    except Exception as error:
        # The run is done, whatever becomes of its report.
        say(f"report: none, {type(error).__name__}: {error}")
        return None
    say(f"report: {page}")
    return {"page": str(page), **found.summary()}
