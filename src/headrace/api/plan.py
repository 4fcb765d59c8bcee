"""Planning, explanation and comparison of plans."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from headrace.api.full_graph_plan import compare_epochs, epoch_figures, full_graph_plan
from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.job import Job, JobKind, Role
from headrace.core.plan import Explanation, Plan
from headrace.core.profile import Problem, Profile
from headrace.core.traffic import PLAIN, TRAFFIC_NAMES, TrafficName, traffic_settings
from headrace.costs.step_time import COVERAGE
from headrace.planner.explain import explain as explain_plan
from headrace.planner.explain import limit_of
from headrace.planner.explain import num_changes as count_changes
from headrace.planner.planner import AUTO, make_plan
from headrace.profiling.default_profile import default_profile

BUDGET_METHODS = ("anneal",)
"""Placement methods that support a search budget."""


def _ignore(name: str) -> None:
    pass


def plan(
    cluster: Cluster,
    job: Job,
    profile: Profile | None = None,
    method: str = "anneal",
    policy: str = AUTO,
    seed_mix: Literal["auto", "uniform", "local-first"] = "auto",
    shares: Literal["auto", "equal"] = "auto",
    seed: int = 0,
    rounds: int = 1,
    budget_s: float | None = None,
    clock: Callable[[], float] | None = None,
    on_step: Callable[[str], None] = _ignore,
    graph: str | os.PathLike[str] | None = None,
    num_neighbors: Sequence[int] | None = None,
    traffic: TrafficName = "exact",
    cache_bytes: float | None = None,
    script: str | os.PathLike[str] | None = None,
    arguments: Sequence[str] = (),
    more_profiles: Sequence[Profile] = (),
    choose: str | None = None,
) -> Plan:
    """Choose the placement, the flow policy, the seed mix and the batch shares of a job.

    Args:
        cluster: The machines.
        job: The job.
        profile: Times and volumes of the job; the synthetic `default_profile` if not given.
        method: Name of a placement method.
        policy: Name of a flow policy, or `auto` to choose by simulation.
        seed_mix: `uniform`, `local-first`, or `auto` to choose the better one.
        shares: `equal` batch sizes, or `auto` to give trainers on slower machines fewer seeds if
            that is faster (`anneal` and `exact` only).
        seed: Random seed; equal arguments give equal plans.
        rounds: Number of search runs, each with different starting points (`anneal` only).
        budget_s: Minimum search time unless the optimum is proven earlier (`anneal` only). The
            plan then depends on the machine's speed; its `rounds` reproduce it.
        clock: Clock for the budget, e.g. `time.monotonic`.
        on_step: Called with the name of each step before it starts.
        graph: Partitioned graph, from which the plan takes the training seeds of each partition,
            and the bytes per seed of sampled batches; for a full-graph job, the rows between
            partitions.
        num_neighbors: Neighbours per hop in the script's loader; 10 and 5 by default.
        traffic: With a graph, how to reduce the bytes between machines: `exact` caches rows of
            other machines; `safe` also needs `int8` features and draws fewer neighbours of other
            partitions; `least` needs `int4` features and draws even fewer.
        cache_bytes: With a graph, memory of each sampler for rows of other machines; by default
            as much as is worthwhile and fits.
        script: With a graph, the training script. Tasks then demand the memory that `estimate`
            finds, except where the job states it. If profiles have `steps`, trainer times are
            estimated from them, unless the profile measured the same step.
        arguments: Arguments of the script.
        more_profiles: With a script, further profiles with `steps`.
        choose: For a full-graph job with a graph, what to choose by simulation: `trainers`, `sync`
            (`ring` or `ps`) and `bins` (with a script), separated by commas, or `all`.

    Raises:
        SpecError: A name is unknown, or the values are inconsistent.
        InfeasibleError: The job does not fit; the message names the scarce resource.
        MissingExtraError: The method needs a package that is not installed.

    Example:
        >>> import headrace
        >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
        >>> cluster = headrace.Cluster(machines=machines)
        >>> job = headrace.Job(trainers=2, batch_size=100, iterations=20)
        >>> plan = headrace.plan(cluster, job)
        >>> plan
        <Plan by anneal, priority: 2 trainers on 3 machines, 51.26 ms per iteration>
        >>> plan.placement.trainers
        ('m-1', 'm-2')
    """
    if rounds < 1:
        raise SpecError(f"{rounds} rounds were requested", "request at least 1")
    if budget_s is not None and clock is None:
        raise SpecError("a budget needs a clock", "pass clock=time.monotonic, or rounds instead")
    if method not in BUDGET_METHODS and (budget_s is not None or rounds > 1):
        raise SpecError(
            f"the method {method} does not support a longer search",
            f"omit the budget, or use {' or '.join(BUDGET_METHODS)}",
        )
    keep_searching = None
    if budget_s is not None and clock is not None:
        now, end_s = clock, clock() + budget_s

        def keep_searching() -> bool:
            return now() < end_s

    known = default_profile() if profile is None else profile
    if num_neighbors is not None and graph is None:
        raise SpecError("fan-outs need a graph to sample", "pass the partitioned graph too")
    settings = traffic_settings(traffic)
    if cache_bytes is not None and (graph is None or cache_bytes < 0):
        raise SpecError(
            "a cache needs a graph to sample, and a size of at least 0",
            "pass the partitioned graph, or omit the size of the cache",
        )
    if graph is None and traffic != "exact":
        raise SpecError(
            f"traffic {traffic} needs a graph to sample", "pass the partitioned graph too"
        )
    if graph is None and script is not None:
        raise SpecError("a script needs a graph to sample", "pass the partitioned graph too")
    if script is None and more_profiles:
        raise SpecError(
            "several profiles need a script to trace", "pass the script, or one profile"
        )
    make: Callable[..., Plan] = partial(
        make_plan,
        method=method,
        policy=policy,
        seed_mix=seed_mix,
        shares=shares,
        seed=seed,
        rounds=rounds,
        keep_searching=keep_searching,
        on_step=on_step,
    )
    problem = Problem(cluster, job, known)
    if job.kind is JobKind.FULL_GRAPH:
        if more_profiles or num_neighbors is not None or traffic != "exact":
            raise SpecError(
                "fan-outs, traffic settings and several profiles are those of sampled jobs",
                "omit them, or the job's `kind: full-graph`",
            )
        inputs = (profile, graph, make, on_step)
        return full_graph_plan(problem, *inputs, choose, script, arguments)
    if choose is not None:
        raise SpecError(
            f"{choose} can be chosen for full-graph jobs only",
            "omit it, or write `kind: full-graph` in the job file",
        )
    if graph is None:
        return make(problem)
    # Sampling imports half of the package.
    from headrace.api.graph import check_parts, open_graph
    from headrace.api.graph_plan import plan_with_graph
    from headrace.profiling.from_graph import FAN_OUTS

    assumed = f" with fan-outs {','.join(map(str, FAN_OUTS))}" if num_neighbors is None else ""
    on_step(f"sampling the graph{assumed}")
    opened = open_graph(graph)
    check_parts(opened, cluster)
    if script is not None:
        from headrace.api.estimate import ScriptPlanner, trace_step

        step = trace_step(script, Path(opened.folder), arguments, job.batch_size, on_step)
        parts = [float(opened.part(number).num_bytes) for number in range(opened.num_parts)]
        make = ScriptPlanner(step, parts, make, cache_bytes, tuple(more_profiles)).plan
    return plan_with_graph(
        problem, opened, settings, make, num_neighbors, seed=seed, cache_bytes=cache_bytes
    )


def explain(
    plan: Plan,
    on_step: Callable[[str], None] = _ignore,
    graph: str | os.PathLike[str] | None = None,
    num_neighbors: Sequence[int] | None = None,
) -> Explanation:
    """Report a plan's bottleneck and the changes that help most, each evaluated by re-planning.

    Args:
        plan: The plan.
        on_step: Called with the description of each change before it is planned.
        graph: Partitioned graph, to evaluate other traffic settings by sampling it.
        num_neighbors: Neighbours per hop in the script's loader; 10 and 5 by default.

    Raises:
        MissingExtraError: The plan's method needs a package that is not installed.

    Example:
        >>> import headrace
        >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
        >>> cluster = headrace.Cluster(machines=machines)
        >>> job = headrace.Job(trainers=2, batch_size=100, iterations=20)
        >>> headrace.explain(headrace.plan(cluster, job, policy="maxmin"))
        51.39 ms per iteration, simulated.
        The bottleneck is the network: m-0 sends for 49.86 ms per iteration.
        Changes that would help, each planned again:
          doubling the NICs of m-0, m-1 and m-2 saves 41 % (30.07 ms)
          a window of 4 instead of 2 changes nothing (51.24 ms)
          doubling the NIC of m-0 alone changes nothing (51.39 ms)
          one more machine like m-0 costs 15 % (58.9 ms)
    """
    if graph is None:
        return explain_plan(plan, on_step)
    from headrace.api.graph import check_parts, open_graph
    from headrace.api.graph_plan import traffic_changes

    opened = open_graph(graph)
    check_parts(opened, plan.cluster)
    return explain_plan(plan, on_step, traffic_changes(plan, opened, num_neighbors))


def num_changes(plan: Plan, *, with_graph: bool = False) -> int:
    """Number of changes that `explain` evaluates; with a graph, an upper limit."""
    return count_changes(plan) + (len(TRAFFIC_NAMES) if with_graph else 0)


def plan_summary(plan: Plan) -> dict[str, Any]:
    """Figures of a plan as plain values: part of the output of `headrace plan --json`."""
    hosts = plan.cluster.hosts
    return {
        "method": plan.method,
        "policy": plan.policy,
        "seed_mix": plan.seed_mix_name,
        "traffic": _traffic_summary(plan),
        "shares": None if plan.shares is None else list(plan.shares),
        "trainer_steps": {
            kind: {"seconds": seconds, "low_s": low_s, "high_s": high_s, "num_steps": num}
            for kind, seconds, low_s, high_s, num in estimated_steps(plan)
        },
        "memory": None if plan.memory is None else plan.memory.summary(),
        "seed": plan.seed,
        "rounds": plan.rounds,
        "predicted": None if plan.predicted is None else plan.predicted.model_dump(mode="json"),
        "terms": plan.terms.model_dump(mode="json"),
        "limit": limit_of(plan),
        "bound_s": plan.bound_s,
        "gap": plan.gap,
        "proven": plan.proven,
        "network_bytes": plan.network_bytes,
        "uniform_network_bytes": plan.uniform_network_bytes,
        "placement": plan.placement.model_dump(mode="json", exclude={"version"}),
        "parts": None if plan.parts is None else [hosts[m].name for m in plan.parts],
        "epoch": epoch_figures(plan),
        "candidates": [each.model_dump(mode="json") for each in plan.candidates],
        "shortlist": None if plan.shortlist is None else plan.shortlist.model_dump(mode="json"),
        "fingerprints": plan.fingerprints.model_dump(mode="json"),
    }


def estimated_steps(plan: Plan) -> list[tuple[str, float, float, float, int]]:
    """Estimated trainer steps: machine class, seconds, lower and upper limit, measured steps."""
    times = plan.profile.task_times.get(Role.TRAINER, {})
    kinds = {host.kind if host.kind in times else "default" for host in plan.cluster.hosts}
    found = []
    for kind in sorted(kinds & times.keys()):
        time = times[kind]
        if time.interval is not None:
            scale = plan.profile.seed_scale(Role.TRAINER, plan.job)
            low_s, high_s = (scale * limit for limit in time.interval)
            found.append((kind, scale * time.mean, low_s, high_s, time.num_samples or 0))
    return found


def _traffic_summary(plan: Plan) -> dict[str, Any]:
    return (plan.profile.traffic or PLAIN).model_dump(mode="json")


def explanation_summary(explanation: Explanation) -> dict[str, Any]:
    """Plain values of an explanation: the output of `headrace explain --json`."""
    return {
        "limit": explanation.limit,
        "bottleneck": explanation.bottleneck,
        "time_s": explanation.time_s,
        "is_rehearsed": explanation.is_rehearsed,
        "terms": explanation.plan.terms.model_dump(mode="json"),
        "bound_s": explanation.plan.bound_s,
        "gap": explanation.plan.gap,
        "proven": explanation.plan.proven,
        "idle": list(explanation.idle),
        "remedies": [
            asdict(remedy) | {"sentence": remedy.sentence()} for remedy in explanation.remedies
        ],
    }


@dataclass(frozen=True)
class Move:
    """A task on different machines; `before` or `after` is empty if only one plan has the task."""

    task: str
    before: str
    after: str


@dataclass(frozen=True)
class PlanDiff:
    """Differences between two plans.

    Attributes:
        before: First plan.
        after: Second plan.
        changed_inputs: Which of `cluster`, `job` and `profile` differ.
        moves: Tasks on different machines.
    """

    before: Plan
    after: Plan
    changed_inputs: tuple[str, ...]
    moves: tuple[Move, ...]

    @property
    def saving(self) -> float | None:
        """Fraction of the time per iteration that the second plan saves; None if not simulated.

        Also None if only one plan trains on the full graph.
        """
        if self.before.job.kind is not self.after.job.kind:
            return None
        before, after = self.before.predicted, self.after.predicted
        if before is None or after is None or before.iteration_time_s == 0:
            return None
        return 1 - after.iteration_time_s / before.iteration_time_s

    @property
    def epochs(self) -> str | None:
        """When sampling is faster than the full graph; None if both plans do the same."""
        return compare_epochs(self.before, self.after)

    def summary(self) -> dict[str, Any]:
        """Plain values: the output of `headrace plan --diff --json`."""
        return {
            "changed_inputs": list(self.changed_inputs),
            "moves": [asdict(move) for move in self.moves],
            "saving": self.saving,
            "epochs": self.epochs,
            "before": _short(self.before),
            "after": _short(self.after),
        }


def diff_plans(before: Plan, after: Plan) -> PlanDiff:
    """Compare two plans: inputs, moved tasks, policies, predicted times.

    Example:
        >>> import headrace
        >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
        >>> cluster = headrace.Cluster(machines=machines)
        >>> job = headrace.Job(trainers=2, batch_size=100, iterations=20)
        >>> before = headrace.plan(cluster, job, method="ifs", policy="fifo")
        >>> after = headrace.plan(cluster, job, method="colocate", policy="fifo")
        >>> diff = headrace.diff_plans(before, after)
        >>> [move.task for move in diff.moves]
        ['trainer0', 'trainer1', 'sampler0.0', 'sampler1.0']
    """
    changed = tuple(
        name
        for name in ("cluster", "job", "profile")
        if getattr(before.fingerprints, name) != getattr(after.fingerprints, name)
    )
    old, new = _machine_of_tasks(before), _machine_of_tasks(after)
    moves = tuple(
        Move(task, old.get(task, ""), new.get(task, ""))
        for task in dict.fromkeys([*old, *new])
        if old.get(task) != new.get(task)
    )
    return PlanDiff(before, after, changed, moves)


def _short(plan: Plan) -> dict[str, Any]:
    summary = plan_summary(plan)
    return {key: summary[key] for key in summary if key not in ("placement", "shortlist")}


def _machine_of_tasks(plan: Plan) -> dict[str, str]:
    per_trainer = plan.job.samplers_per_trainer
    return {
        **{f"trainer{w}": name for w, name in enumerate(plan.placement.trainers)},
        **{
            f"sampler{s // per_trainer}.{s % per_trainer}": name
            for s, name in enumerate(plan.placement.samplers)
        },
        **{f"ps{p}": name for p, name in enumerate(plan.placement.servers)},
    }


__all__ = [
    "AUTO",
    "BUDGET_METHODS",
    "COVERAGE",
    "Explanation",
    "Move",
    "PlanDiff",
    "diff_plans",
    "estimated_steps",
    "explain",
    "explanation_summary",
    "limit_of",
    "num_changes",
    "plan",
    "plan_summary",
]
