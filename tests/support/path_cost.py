"""The cost that ETP minimises, computed from a whole placement."""

from __future__ import annotations

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.core.placement import Placement, resource_names
from headrace.planner.methods.critical_path import ROUNDING, CriticalPath


def path_cost_s(path: CriticalPath, cluster: Cluster, job: Job, placement: Placement) -> float:
    """Critical path times one plus the sum of relative capacity violations (eq. 27).

    Infinite if a task demands a resource that its machine does not have.
    """
    capacities = cluster.capacities(resource_names(cluster, job))
    excess = placement.usage(cluster, job) - capacities
    over = excess > ROUNDING * np.maximum(capacities, 1)
    with np.errstate(divide="ignore"):
        penalty = (excess[over] / capacities[over]).sum()
    return path.length_s(placement) * (1.0 + float(penalty))
