"""`priority`: strict classes by when the data is needed, max-min inside a class.

Parameters and gradients go first, then graph data of earlier iterations, and of one iteration what
is closer to the trainer.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.core.tasks import EdgeKind
from headrace.policies.compiled import hot
from headrace.policies.flow._base import FlowPolicy
from headrace.policies.flow.filling import fill_flows, port_capacities

_GRAPH = int(EdgeKind.GRAPH)
_BATCH = int(EdgeKind.BATCH)
_AFTER_SYNC = 1 << 40


@hot
def priority_class(kind, iteration):
    """Smaller is served first."""
    if kind == _GRAPH:
        return np.int64(_AFTER_SYNC) + 2 * np.int64(iteration) + 1
    if kind == _BATCH:
        return np.int64(_AFTER_SYNC) + 2 * np.int64(iteration)
    return np.int64(iteration)


@njit(cache=True)
def priority_rates(flows, nic_out, nic_in, pace_s, rates):
    """Fill class after class with what earlier classes left."""
    rates[:] = 0.0
    left = port_capacities(nic_out, nic_in)
    classes = np.empty(len(flows), np.int64)
    for i in range(len(flows)):
        classes[i] = priority_class(flows[i].kind, flows[i].iteration)
    weight = np.ones(len(flows))
    for current in np.unique(classes):
        fill_flows(flows, classes == current, weight, left, rates)


PRIORITY = FlowPolicy(
    "priority", 2, "what is needed first goes first, max-min among equals", priority_rates
)
