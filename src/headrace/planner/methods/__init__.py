"""Placement methods, registered by name."""

from headrace.core.errors import SpecError
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.planner.methods._base import PlacementMethod
from headrace.planner.methods.anneal import Anneal
from headrace.planner.methods.colocate import Colocate
from headrace.planner.methods.etp import Etp
from headrace.planner.methods.exact import Exact
from headrace.planner.methods.ifs import Ifs

PLACEMENT_METHODS: dict[str, PlacementMethod] = {
    method.name: method for method in (Anneal(), Colocate(), Etp(), Exact(), Ifs())
}
"""All placement methods by name."""


def place(method: str, problem: Problem, seed: int = 0) -> Placement:
    """Place a job with the named method.

    Raises:
        SpecError: The method does not exist.
        InfeasibleError: The job does not fit the cluster.
    """
    if method not in PLACEMENT_METHODS:
        raise SpecError(
            f"there is no placement method {method!r}",
            f"use one of {', '.join(sorted(PLACEMENT_METHODS))}",
        )
    return PLACEMENT_METHODS[method].place(problem, seed)


__all__ = ["PLACEMENT_METHODS", "PlacementMethod", "place"]
