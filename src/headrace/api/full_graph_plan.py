"""Plans of full-graph jobs, and what their trainers exchange in an epoch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.job import Job, JobKind
from headrace.core.plan import Plan, problem_of
from headrace.core.profile import Problem, Profile
from headrace.core.units import format_seconds
from headrace.costs import swap_volumes

if TYPE_CHECKING:
    from headrace.api.full_graph_choice import TracedMemory
    from headrace.graph.format.partitioned_graph import PartitionedGraph
    from headrace.profiling.step_estimate.script import ScriptStep


def full_graph_plan(
    problem: Problem,
    profile: Profile | None,
    graph: str | os.PathLike[str] | None,
    make: Callable[..., Plan],
    on_step: Callable[[str], None],
    choose: str | None = None,
    script: str | os.PathLike[str] | None = None,
    arguments: Sequence[str] = (),
) -> Plan:
    """Plan with the rows between the partitions of a graph, or with those of the profile.

    Args:
        problem: The machines and the job.
        profile: Profile of a full-graph run, if any.
        graph: The partitioned graph, if any.
        make: Makes the plan of a problem.
        on_step: Called with the name of each step before it starts.
        choose: What to choose; see `full_graph_choice.CHOICES`.
        script: Script whose memory is estimated, if any.
        arguments: Arguments of the script.

    Raises:
        SpecError: Neither the graph nor the profile has the rows between trainers, or a choice
            needs something else.
        InfeasibleError: The job does not fit the machines.
    """
    from headrace.api.full_graph_choice import FullGraphChooser, parse_choices

    choices = frozenset() if choose is None else parse_choices(choose)
    if graph is None:
        if choices or script is not None:
            raise SpecError("a choice needs the graph", "pass the partitioned graph (`--graph`)")
        return make(problem if profile is None else problem.with_profile(profile))
    if choose != "all" and "bins" in choices and script is None:
        raise SpecError("the number of bins depends on memory", "pass the script (`--script`)")
    # Imports half of the package.
    from headrace.api.graph import open_graph
    from headrace.profiling.graph_parts import with_parts

    opened = open_graph(graph)
    trace = None if script is None else _tracing(script, opened, arguments, on_step)
    on_step("counting the rows between partitions")

    def profile_of(parts: Sequence[int] | None) -> Profile:
        return with_parts(profile, opened, parts)

    return FullGraphChooser(problem, profile_of, make, choices, trace).plan()


def _tracing(
    script: str | os.PathLike[str],
    graph: PartitionedGraph,
    arguments: Sequence[str],
    on_step: Callable[[str], None],
) -> Callable[[Job, Sequence[int]], TracedMemory]:
    """A function that traces a script's step for the largest part of a job's trainers."""
    from headrace.api.estimate import estimate_of, task_memory, trace_step
    from headrace.api.full_graph_choice import TracedMemory

    steps: dict[tuple[tuple[int, ...], int], ScriptStep] = {}

    def trace(job: Job, parts: Sequence[int]) -> TracedMemory:
        key = tuple(parts), job.bins or 1
        if key not in steps:
            inputs = script, Path(graph.folder), arguments, None, on_step
            steps[key] = trace_step(*inputs, trainers=parts, bins=job.bins)
        step = steps[key]
        if not step.is_full_graph:
            raise SpecError(
                "the script samples, the job is one of the full graph",
                "omit `kind: full-graph` in the job file, or call `ctx.full_graph()`",
            )
        tasks = task_memory(job, step, [0.0], 0.0)
        return TracedMemory(tasks, estimate_of(step, tasks))

    return trace


def epoch_figures(plan: Plan) -> dict[str, Any] | None:
    """Rows that machines of a full-graph job exchange in an epoch; None for other jobs."""
    if not plan.job.swaps:
        return None
    apart = ~np.eye(plan.job.trainers, dtype=bool)
    pairs = np.zeros(apart.shape)
    pairs[apart] = swap_volumes(problem_of(plan)).sum(axis=0)
    by_columns = {each.row_bytes for each in plan.job.swaps if each.slices == "columns"}
    machines = zip(plan.placement.trainers, pairs.sum(axis=1), pairs.sum(axis=0), strict=True)
    return {
        "swaps": [swap.model_dump(mode="json") for swap in plan.job.swaps],
        "bytes_of_divided_rows": sorted(by_columns),
        "is_computing_known": plan.profile.source == "measured",
        "row_bytes": {
            name: {"sent_bytes": float(sent), "received_bytes": float(received)}
            for name, sent, received in machines
        },
    }


def compare_epochs(before: Plan, after: Plan) -> str | None:
    """When sampling is faster than training on the full graph; None for plans of one kind.

    A step on the full graph is an epoch; a sampled epoch has as many iterations as it takes to use
    every training node once.
    """
    if before.job.kind is after.job.kind:
        return None
    is_first = before.job.kind is JobKind.FULL_GRAPH
    full, sampled = (before, after) if is_first else (after, before)
    for plan, words in ((full, "full-graph"), (sampled, "sampled")):
        if plan.profile.source != "measured":
            return (
                f"Which has the shorter epochs is not known: the {words} plan has no measured "
                "profile. Plan with one of `headrace profile`."
            )
    seeds = sum(sampled.profile.part_seeds or ())
    if not seeds:
        return (
            "Which has the shorter epochs is not known: the sampled plan does not have the number "
            "of training nodes. Plan it with --graph."
        )
    iterations = -(-seeds // (sampled.job.trainers * sampled.job.batch_size))
    full_s, sampled_s = full.time_s, iterations * sampled.time_s
    times = (
        f"An epoch on the full graph takes {format_seconds(full_s)}, a sampled one "
        f"{format_seconds(sampled_s)} in {iterations} iterations."
    )
    if sampled_s <= full_s:
        ratio = full_s / sampled_s
        return f"{times} Sampling is faster if it needs at most {ratio:.3g} times as many epochs."
    ratio = sampled_s / full_s
    return f"{times} Sampling is faster only if the full graph needs {ratio:.3g} times as many."
