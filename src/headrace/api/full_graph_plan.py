"""Plans of full-graph jobs, and what their trainers exchange in an epoch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.core.job import JobKind
from headrace.core.plan import Plan, problem_of
from headrace.core.profile import Problem, Profile
from headrace.core.units import format_seconds
from headrace.costs import swap_volumes


def full_graph_plan(
    problem: Problem,
    profile: Profile | None,
    graph: str | os.PathLike[str] | None,
    make: Callable[..., Plan],
    on_step: Callable[[str], None],
) -> Plan:
    """Plan with the rows between the partitions of a graph, or with those of the profile.

    Args:
        problem: The machines and the job.
        profile: Profile of a full-graph run, if any.
        graph: The partitioned graph, if any.
        make: Makes the plan of a problem.
        on_step: Called with the name of each step before it starts.

    Raises:
        SpecError: Neither the graph nor the profile has the rows between trainers.
    """
    if graph is not None:
        # Imports half of the package.
        from headrace.api.graph import open_graph
        from headrace.profiling.graph_parts import with_parts

        on_step("counting the rows between partitions")
        profile = with_parts(profile, open_graph(graph))
    return make(problem if profile is None else problem.with_profile(profile))


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
