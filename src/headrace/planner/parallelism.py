"""What trainers of a full-graph job divide in layers that add up rows: nodes, or features.

The swaps of a job have both ways (see `RowSwap.slices`): one swap of rows between parts, or two of
slices, between which each trainer adds up its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from headrace.core.full_graph import RowSwap
from headrace.core.job import Parallelism
from headrace.core.profile import Problem

_Times = tuple[float, float]


def by_rows(problem: Problem) -> Problem:
    """The problem without slices."""
    swaps, steps, delays = _listed(problem)
    found: list[RowSwap] = []
    found_steps: list[_Times] = []
    found_delays: list[float] = []
    number = 0
    while number < len(swaps):
        swap, step, delay = swaps[number], steps[number], delays[number]
        if swap.slices and _is_pair(swaps, number):
            swap = swap.model_copy(update={"slices": ""})
            number += 1
            (hidden, between), (waiting, after) = step, steps[number]
            # Sums of own rows are added up while others are on their way.
            step = (hidden + between + waiting, after)
            delay = (delay + delays[number]) / 2
        found.append(swap)
        found_steps.append(step)
        found_delays.append(delay)
        number += 1
    return _changed(problem, found, found_steps, found_delays)


def by_features(problem: Problem, chosen: set[tuple[str, float]]) -> Problem:
    """The problem with slices instead of the rows of some sums.

    Args:
        problem: The problem, without slices.
        chosen: Edge types and bytes of these rows.
    """
    found: list[RowSwap] = []
    steps: list[_Times] = []
    delays: list[float] = []
    for swap, (hidden, after), delay in zip(*_listed(problem), strict=True):
        if not swap.is_sum or (swap.edges, swap.row_bytes) not in chosen:
            found.append(swap)
            steps.append((hidden, after))
            delays.append(delay)
            continue
        order = ("rows", "columns") if swap.is_back else ("columns", "rows")
        found += [swap.model_copy(update={"slices": slices}) for slices in order]
        # No sum is complete before all columns are there.
        steps += [(0.0, hidden), (0.0, after)]
        delays += [delay, delay]
    return _changed(problem, found, steps, delays)


def ways_of(problem: Problem, time_s: Callable[[Problem], float]) -> list[Problem]:
    """Problems with the swaps to consider: by rows, and with slices where these are faster.

    Args:
        problem: The problem.
        time_s: Estimates the time of an epoch.

    Raises:
        SpecError: The profile does not have the rows that parts exchange.
    """
    if not problem.job.swaps:
        return [problem]
    figures, wanted = problem.full_graph, problem.job.parallelism
    rows = by_rows(problem)
    if wanted is Parallelism.ROWS:
        return [rows]
    sums = {(swap.edges, swap.row_bytes) for swap in rows.job.swaps if swap.is_sum}
    able = {each for each in sums if figures.ends(each[0]) is not None}
    if wanted is Parallelism.FEATURES:
        return [by_features(rows, able)]
    least_s = time_s(rows) if able else 0.0
    chosen = {each for each in sorted(able) if time_s(by_features(rows, {each})) < least_s}
    return [rows, by_features(rows, chosen)] if chosen else [rows]


def _is_pair(swaps: Sequence[RowSwap], number: int) -> bool:
    """Whether slices and the next swap are those of one sum."""
    pair = swaps[number : number + 2]
    return len(pair) == 2 and all(
        a.slices != b.slices and b.slices and a.model_copy(update={"slices": b.slices}) == b
        for a, b in pairwise(pair)
    )


def _listed(problem: Problem) -> tuple[list[RowSwap], list[_Times], list[float]]:
    """Swaps, shares of the time during and after each, and delays; shares are 0 if not measured."""
    swaps, figures = list(problem.job.swaps), problem.profile.full_graph
    shares = () if figures is None else figures.shares
    delays = () if figures is None else figures.delays
    steps = list(zip(shares[1::2], shares[2::2], strict=True))
    return swaps, steps or [(0.0, 0.0)] * len(swaps), list(delays) or [0.0] * len(swaps)


def _changed(
    problem: Problem, swaps: list[RowSwap], steps: list[_Times], delays: list[float]
) -> Problem:
    """The problem with other swaps; unchanged if they are the same."""
    figures = problem.profile.full_graph
    if tuple(swaps) == problem.job.swaps or figures is None:
        return problem
    about: dict[str, Any] = {"swaps": tuple(swaps)} if figures.swaps else {}
    if figures.shares:
        about["shares"] = (figures.shares[0], *(each for step in steps for each in step))
    if figures.delays:
        about["delays"] = tuple(delays)
    known = figures.model_copy(update=about)
    return problem._replace(
        job=problem.job.model_copy(update={"swaps": tuple(swaps)}),
        profile=problem.profile.model_copy(update={"full_graph": known}),
    )
