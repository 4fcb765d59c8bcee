"""Batch shares in the simulator: against equal shares and against a grid search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from headrace.core.growth import Growth
from headrace.core.plan import Plan
from headrace.core.profile import Problem
from headrace.planner.cost.seed_mix import seeds_of
from headrace.planner.planner import make_plan
from headrace.simulator.rehearser import Rehearser

ITERATIONS = 40
STEPS = 20
"""Sizes of a share that the grid search tries, up to twice the batch size."""

CURVED = Growth(seeds=(125, 500, 2000), nodes=(1.0, 3.0, 7.5), edges=(1.0, 3.6, 12.0))
"""Growth of a graph with much overlap; every other random cluster has it."""


def curved(problem: Problem) -> Problem:
    """The problem with growth curves, profiled at its own batch size."""
    job = problem.job
    changes = {
        "growth": CURVED,
        "version": 2,
        "seeds_per_sampler": job.batch_size / job.samplers_per_trainer,
        "seeds_per_trainer": float(job.batch_size),
    }
    return problem._replace(profile=problem.profile.model_copy(update=changes))


def grid(plan: Plan) -> Iterator[tuple[int, ...]]:
    """All shares on a grid that are equal for trainers of one machine."""
    job = plan.job
    machines = list(dict.fromkeys(plan.placed.trainers))
    counts = [plan.placed.trainers.count(machine) for machine in machines]
    total = job.trainers * job.batch_size
    sizes = [round(2 * job.batch_size * step / STEPS) for step in range(1, STEPS + 1)]
    for first in product(sizes, repeat=len(machines) - 1):
        left = total - sum(size * num for size, num in zip(first, counts, strict=False))
        last = left // counts[-1]
        if last < job.samplers_per_trainer:
            continue
        own = dict(zip(machines, (*first, last), strict=True))
        shares = [own[machine] for machine in plan.placed.trainers]
        shares[-1] += total - sum(shares)
        if min(shares) >= job.samplers_per_trainer:
            yield tuple(shares)


def compare(problem: Problem) -> dict[str, float] | None:
    """The plan against equal shares, and against the best shares of a grid; None if infeasible."""
    plan = make_plan(problem, seed_mix="uniform")
    equal = make_plan(problem, seed_mix="uniform", shares="equal")
    rehearser = Rehearser(problem, num_iterations=ITERATIONS)

    def time_s(each: Plan, shares: Any) -> float:
        seeds = seeds_of(problem, each.placed, local_seeds=False, shares=shares)
        return rehearser.makespan_s(each.placed, each.policy, seeds)

    ours_s, equal_s = time_s(plan, plan.shares), time_s(equal, None)
    best_s = min((time_s(plan, shares) for shares in grid(plan)), default=ours_s)
    return {
        "over_equal": ours_s / equal_s,
        "over_grid": ours_s / min(best_s, ours_s),
        "has_shares": float(plan.shares is not None),
        "bound_over_objective": plan.bound_s / plan.terms.time_s,
    }


def run_shares(
    num_clusters: int, random_problem: Callable[[int], Problem], trainers_bind: Callable[..., Any]
) -> dict[str, Any]:
    """Random clusters, and clusters of two speeds where trainers bind."""
    from headrace.core.errors import InfeasibleError

    rows: list[dict[str, float]] = []
    seed = 0
    while len(rows) < num_clusters:
        problem = random_problem(seed)
        seed += 1
        try:
            row = compare(curved(problem) if seed % 2 else problem)
        except InfeasibleError:
            continue
        if row is not None:
            rows.append(row)
    found: dict[str, Any] = {
        "clusters": len(rows),
        "with_shares": sum(row["has_shares"] for row in rows),
        "worse_than_equal": sum(row["over_equal"] > 1 + 1e-6 for row in rows),
        "over_equal_worst": max(row["over_equal"] for row in rows),
        "over_equal_mean": float(np.mean([row["over_equal"] for row in rows])),
        "over_grid_mean": float(np.mean([row["over_grid"] for row in rows])),
        "over_grid_worst": max(row["over_grid"] for row in rows),
        "bounds_above_the_truth": sum(row["bound_over_objective"] > 1 + 1e-9 for row in rows),
    }
    for ratio in (2, 4):
        problem = trainers_bind(ratio)
        ours_s = make_plan(problem).time_s
        equal_s = make_plan(problem, shares="equal").time_s
        found[f"1:{ratio}"] = {"ours_s": ours_s, "equal_s": equal_s, "saved": 1 - ours_s / equal_s}
    return found
